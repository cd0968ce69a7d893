import type { Socket } from 'node:net'
import type { Watched } from '../deadlines.js'
import { type ByteBudget, HeldBytes } from '../http/connection/byte-budget.js'
import { bytesTaken, type LeastRate } from '../http/connection/least-rate.js'
import { unconfirmedBytes } from '../http/connection/send-queue.js'

/** What an answer is written to. */
export interface BackloggedWriter {
  /** Bytes that it has not taken. */
  readonly waiting: number
  /** Bytes that it has taken. */
  readonly taken: number
  /** Bytes by which that may be too few. */
  readonly grain: number
  readonly destroyed: boolean
  /** Runs once when all that waits now has been taken, or never will be. */
  onceTaken(run: (error?: Error | null) => void): void
  /** What the kernel keeps of what it has taken. Undefined: unknown. */
  unconfirmed(): Promise<number | undefined>
}

/** The socket of a connection that carries one answer at a time. */
export class SocketWriter implements BackloggedWriter {
  readonly grain = 0
  readonly #socket: Socket

  constructor(socket: Socket) {
    this.#socket = socket
  }

  get waiting(): number {
    return this.#socket.writableLength
  }

  get taken(): number {
    return bytesTaken(this.#socket)
  }

  get destroyed(): boolean {
    return this.#socket.destroyed
  }

  onceTaken(run: (error?: Error | null) => void): void {
    this.#socket.write('', 'latin1', run)
  }

  unconfirmed(): Promise<number | undefined> {
    return unconfirmedBytes(this.#socket)
  }
}

export interface BacklogOptions {
  readonly writer: BackloggedWriter
  /** How often what waits is kept. Over TLS twice, as it is and encrypted. */
  readonly copies: number
  readonly budget: ByteBudget
  /** The client, whose share of the budget counts. */
  readonly client: string
  /** Bytes that may wait. */
  readonly most: number
  /** Undefined: the client may be as slow as it likes. */
  readonly leastRate: LeastRate | undefined
  /** The client takes too little. */
  onTooSlow(): void
}

/**
 * The bytes of an answer that its client has not taken. They are read ahead of it, so that the upstream is free sooner. A
 * client that takes too few of them is reported. The kernel takes megabytes at a time and then nothing for minutes,
 * so what it still keeps is not taken.
 */
export class Backlog implements Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  /** Called once, when the client has taken all that waits now. */
  onDrained: (() => void) | undefined
  readonly #options: BacklogOptions
  readonly #held: HeldBytes
  /** Bytes that the kernel had taken when the rate was measured last. */
  #measured = 0
  /** What the kernel kept of them then. Undefined: unknown. */
  #kept: number | undefined
  /** What the client has taken of that, seen at the end of measurements. */
  #confirmed = 0
  /** How often a measurement has begun. */
  #measurements = 0
  /** Hears when what waits has been taken. */
  #isWaiting = false
  #ended = false

  constructor(options: BacklogOptions) {
    this.#options = options
    this.#held = new HeldBytes(options.budget, options.client)
  }

  /**
   * More has been written to the socket.
   *
   * @returns whether more may follow
   */
  grown(): boolean {
    const { writer, most } = this.#options
    const { waiting } = writer
    this.#count(waiting)
    if (waiting > 0 && !this.#isWaiting) {
      this.#isWaiting = true
      this.#watch()
      writer.onceTaken(this.#taken)
    }
    return waiting === 0 || (waiting < most && this.#held.hasRoom)
  }

  #count(waiting: number): void {
    this.#held.hold(this.#options.copies * waiting)
  }

  readonly #taken = (error?: Error | null): void => {
    this.#isWaiting = false
    if (error || this.#ended) return
    this.grown()
    if (!this.#isWaiting) this.#options.leastRate?.windows.unwatch(this)
    const { onDrained } = this
    this.onDrained = undefined
    onDrained?.()
  }

  /** It grows while the client takes something. */
  get taken(): number {
    return this.#options.writer.taken + this.#confirmed
  }

  #watch(): void {
    const { writer, leastRate } = this.#options
    this.#measured = writer.taken
    this.#kept = undefined
    this.#measurements += 1
    if (leastRate === undefined) return
    leastRate.windows.watch(this)
    const measurement = this.#measurements
    void writer.unconfirmed().then(kept => {
      if (this.#measurements === measurement) this.#kept = kept
    })
  }

  /** The answer is over: the client has taken all, or never will. */
  end(): void {
    this.#ended = true
    this.#held.hold(0)
    this.#options.leastRate?.windows.unwatch(this)
  }

  /** The time over which the rate is measured has passed. */
  expired(): void {
    const { writer, leastRate } = this.#options
    const { waiting } = writer
    this.#count(waiting)
    if (waiting === 0) return
    const taken = writer.taken + writer.grain - this.#measured
    if (taken >= leastRate!.bytes) this.#watch()
    else void this.#look(taken)
  }

  /** Reports the client, unless it has taken enough of what the kernel kept. */
  async #look(taken: number): Promise<void> {
    const { writer, leastRate, onTooSlow } = this.#options
    const before = this.#kept
    const after = before === undefined ? undefined : await writer.unconfirmed()
    // It has been measured anew, or has taken all, in the meantime.
    if (this.#ended || !this.#isWaiting || this.#kept !== before || writer.destroyed) return
    const confirmed = before === undefined || after === undefined ? 0 : before - after
    if (taken + confirmed < leastRate!.bytes) return onTooSlow()
    this.#confirmed += confirmed
    this.#watch()
  }
}
