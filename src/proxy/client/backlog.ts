import type { Socket } from 'node:net'
import type { Watched } from '../deadlines.js'
import { type ByteBudget, HeldBytes } from '../http/connection/byte-budget.js'
import { bytesTaken, type LeastRate } from '../http/connection/least-rate.js'
import { unconfirmedBytes } from '../http/connection/send-queue.js'

export interface BacklogOptions {
  readonly socket: Socket
  /** What waits is kept twice, as it is and encrypted. */
  readonly encrypted: boolean
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
    const { socket, most } = this.#options
    const waiting = socket.writableLength
    this.#count(waiting)
    if (waiting > 0 && !this.#isWaiting) {
      this.#isWaiting = true
      this.#watch()
      socket.write('', 'latin1', this.#taken)
    }
    return waiting === 0 || (waiting < most && this.#held.hasRoom)
  }

  #count(waiting: number): void {
    this.#held.hold(this.#options.encrypted ? 2 * waiting : waiting)
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
    return bytesTaken(this.#options.socket) + this.#confirmed
  }

  #watch(): void {
    const { socket, leastRate } = this.#options
    this.#measured = bytesTaken(socket)
    this.#kept = undefined
    this.#measurements += 1
    if (leastRate === undefined) return
    leastRate.windows.watch(this)
    const measurement = this.#measurements
    void unconfirmedBytes(socket).then(kept => {
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
    const { socket, leastRate } = this.#options
    const waiting = socket.writableLength
    this.#count(waiting)
    if (waiting === 0) return
    const taken = bytesTaken(socket) - this.#measured
    if (taken >= leastRate!.bytes) this.#watch()
    else void this.#look(taken)
  }

  /** Reports the client, unless it has taken enough of what the kernel kept. */
  async #look(taken: number): Promise<void> {
    const { socket, leastRate, onTooSlow } = this.#options
    const before = this.#kept
    const after = before === undefined ? undefined : await unconfirmedBytes(socket)
    // It has been measured anew, or has taken all, in the meantime.
    if (this.#ended || !this.#isWaiting || this.#kept !== before || socket.destroyed) return
    const confirmed = before === undefined || after === undefined ? 0 : before - after
    if (taken + confirmed < leastRate!.bytes) return onTooSlow()
    this.#confirmed += confirmed
    this.#watch()
  }
}
