import { Readable } from 'node:stream'
import type { Watched } from '../deadlines.js'
import { BODY_BUFFER, type ByteBudget, HeldBytes, MOST_AHEAD, MOST_TURNS, QUIET_TURNS } from '../http/byte-budget.js'
import type { RequestBody } from '../http/client.js'
import type { LeastRate } from '../http/least-rate.js'
import { KeptBytes } from './kept-bytes.js'

/** Where a body comes from. */
export interface BodySource {
  /** Bytes of the body that nobody has taken stop the reading. */
  pauseBody(): void
  resumeBody(): void
  /** The client owes bytes and sends too few. */
  bodyTooSlow(): void
}

/** How a body is read. */
export interface BodyOptions {
  readonly budget: ByteBudget
  /** The client, whose share of the budget counts. */
  readonly client: string
  /** Applies to a body whose length is known. Undefined: the client may be as slow as it likes. */
  readonly leastRate: LeastRate | undefined
}

/**
 * The body of a request that our own server reads. Its bytes are kept until they are wanted: one piece, however many came.
 */
export class OwnBody extends Readable implements RequestBody, Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  onProgress: () => void = ignore
  onReady: () => void = ignore
  /** All of it has come. */
  whole = false
  readonly #source: BodySource
  readonly #held: HeldBytes
  readonly #leastRate: LeastRate | undefined
  #kept = new KeptBytes()
  /** Bytes that may wait here before the source is paused. */
  #reach = BODY_BUFFER
  /** The reader wants more. */
  #wanted = false
  #paused = false
  /** Bytes that have come since the rate was measured last. */
  #measured = 0

  constructor(source: BodySource, { budget, client, leastRate }: BodyOptions) {
    super({ highWaterMark: BODY_BUFFER })
    this.#source = source
    this.#held = new HeldBytes(budget, client)
    this.#leastRate = leastRate
    // An abort destroys this stream with an error that is reported elsewhere.
    this.on('error', ignore)
    leastRate?.windows.watch(this)
  }

  /** Bytes that have come and were not taken. */
  get #waiting(): number {
    return this.#kept.length + this.readableLength
  }

  get held(): boolean {
    return this.#waiting >= BODY_BUFFER
  }

  get ready(): boolean {
    return this.whole || this.#paused
  }

  /** Takes bytes that have come. */
  receive(bytes: Buffer): void {
    this.#measured += bytes.length
    if (this.#wanted && this.#kept.length === 0) this.#wanted = this.push(bytes)
    else this.#kept.add(bytes)
    this.#held.hold(this.#waiting)
    if (this.#isFull()) this.#pause()
    this.onProgress()
  }

  #isFull(): boolean {
    return this.#waiting >= this.#reach || (this.#waiting > 0 && !this.#held.hasRoom)
  }

  #pause(): void {
    if (this.#paused || this.whole) return
    this.#paused = true
    this.#leastRate?.windows.unwatch(this)
    this.#source.pauseBody()
    this.onReady()
  }

  #resume(): void {
    if (this.#paused && !this.whole) {
      this.#measured = 0
      this.#leastRate?.windows.watch(this)
    }
    this.#paused = false
    this.#source.resumeBody()
  }

  /** All of it has come. */
  finish(): void {
    this.whole = true
    this.#leastRate?.windows.unwatch(this)
    if (this.#wanted && this.#kept.length === 0) this.push(null)
    this.onReady()
  }

  buffer(bytes: number): void {
    this.#reach = bytes
    if (this.#isFull()) this.#pause()
  }

  /** The time over which its rate is measured has passed. */
  expired(): void {
    if (this.#measured < this.#leastRate!.bytes) return this.#source.bodyTooSlow()
    this.#measured = 0
    this.#leastRate!.windows.watch(this)
  }

  readAhead(done: () => void): void {
    let buffered = -1
    let quiet = 0
    let turn = 0
    this.#reach = MOST_AHEAD
    this.#resume()
    const look = (): void => {
      if (this.destroyed) return
      quiet = this.#waiting === buffered ? quiet + 1 : 0
      buffered = this.#waiting
      turn += 1
      const goesOn = quiet < QUIET_TURNS && turn <= MOST_TURNS && !this.whole && !this.#isFull()
      if (goesOn) return void setImmediate(look)
      this.#reach = BODY_BUFFER
      if (this.#isFull()) this.#pause()
      done()
    }
    setImmediate(look)
  }

  override _read(): void {
    this.#wanted = true
    // What is taken waits in the upstream's socket, where nobody counts it.
    if (this.#kept.length > 0) this.#wanted = this.push(this.#kept.take(BODY_BUFFER))
    if (this.#kept.length > 0) return
    if (this.whole) this.push(null)
    else this.#resume()
  }

  override read(size?: number): unknown {
    const chunk: unknown = super.read(size)
    const waiting = this.#waiting
    if (this.#held.held > waiting) {
      this.#held.hold(waiting)
      this.onProgress()
    }
    return chunk
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#kept = new KeptBytes()
    this.#held.hold(0)
    this.#leastRate?.windows.unwatch(this)
    super._destroy(error, callback)
  }
}

function ignore(): void {}
