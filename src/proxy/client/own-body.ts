import { Readable } from 'node:stream'
import type { Watched } from '../deadlines.js'
import type { RequestBody } from '../http/client.js'
import {
  BODY_BUFFER,
  type ByteBudget,
  FEW,
  HeldBytes,
  MOST_AHEAD,
  MOST_TURNS,
  QUIET_TURNS,
} from '../http/connection/byte-budget.js'
import type { LeastRate } from '../http/connection/least-rate.js'
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

/** The body of a request that our own server reads. Its bytes are kept until they are wanted. */
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
  readonly #options: BodyOptions
  readonly #held: HeldBytes
  readonly #leastRate: LeastRate | undefined
  #kept = new KeptBytes()
  /** All of it, as long as it may have to be sent again. */
  #copy: KeptBytes | undefined
  /** Bytes that may wait here before the source is paused. */
  #reach = BODY_BUFFER
  /** The reader wants more. What is kept follows when it has taken all. */
  #wanted = false
  #paused = false
  /** Bytes that have come and that the upstream's connection has not sent. */
  #unsent = 0
  /** Bytes that have come since the rate was measured last. */
  #measured = 0

  constructor(source: BodySource, options: BodyOptions) {
    super({ highWaterMark: BODY_BUFFER })
    const { budget, client, leastRate } = options
    this.#source = source
    this.#options = options
    this.#held = new HeldBytes(budget, client)
    this.#leastRate = leastRate
    // An abort destroys this stream with an error that is reported elsewhere.
    this.on('error', ignore)
    leastRate?.windows.watch(this)
  }

  /** Bytes that have come and were not read. */
  get #waiting(): number {
    return this.#kept.length + this.readableLength
  }

  get held(): boolean {
    const waiting = this.#waiting
    return this.whole || waiting >= BODY_BUFFER || this.#unsent > waiting
  }

  get pieces(): readonly Uint8Array[] {
    return this.#kept.pieces
  }

  get ready(): boolean {
    return this.whole || this.#paused
  }

  /** Takes bytes that have come. */
  receive(bytes: Buffer): void {
    this.#measured += bytes.length
    this.#count(bytes.length)
    // A stream takes 100 bytes for each piece. So while some wait there, the others are kept together.
    if (this.#wanted && this.readableLength === 0) this.#wanted = this.push(bytes)
    else this.#kept.add(bytes)
    if (this.#isFull()) this.#pause()
    this.onProgress()
  }

  #count(change: number): void {
    this.#unsent += change
    this.#held.hold(Math.max(this.#unsent, this.#copy?.length ?? 0))
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
    if (this.#wanted) this._read()
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
    let buffered = -FEW
    let quiet = 0
    let turn = 0
    this.#reach = MOST_AHEAD
    if (!this.#isFull()) this.#resume()
    const look = (): void => {
      if (this.destroyed) return
      quiet = this.#waiting - buffered < FEW ? quiet + 1 : 0
      buffered = this.#waiting
      turn += 1
      // A close behind all of it is read in a turn of its own.
      const goesOn = quiet < QUIET_TURNS && turn <= MOST_TURNS && (this.whole || !this.#isFull())
      if (goesOn) return void setImmediate(look)
      this.#reach = BODY_BUFFER
      if (this.#isFull()) this.#pause()
      done()
    }
    setImmediate(look)
  }

  override _read(): void {
    const piece = this.#kept.take()
    this.#wanted = (piece === undefined || this.push(piece)) && this.#kept.length === 0
    if (this.#kept.length > 0) return
    if (this.whole) this.push(null)
    else if (!this.#isFull()) this.#resume()
  }

  override read(size?: number): unknown {
    const chunk: unknown = super.read(size)
    if (this.#wanted && this.readableLength === 0 && this.#kept.length > 0) this._read()
    // It asks for more before it takes out what it returns.
    if (this.#wanted && this.#paused && !this.#isFull()) this.#resume()
    return chunk
  }

  keep(): void {
    if (!this.whole || this.readableDidRead) return
    this.#copy = new KeptBytes()
    for (const piece of this.#kept.pieces) this.#copy.add(piece)
  }

  forget(): void {
    this.#copy = undefined
    this.#count(0)
  }

  again(): OwnBody | undefined {
    const copy = this.#copy
    if (copy === undefined) return undefined
    this.forget()
    const body = new OwnBody(this.#source, { ...this.#options, leastRate: undefined })
    body.whole = true
    for (const piece of copy.pieces) body.receive(piece)
    return body
  }

  written(bytes: number): void {
    this.#count(-bytes)
    if (!this.destroyed) this.onProgress()
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#count(-this.#waiting)
    this.#kept = new KeptBytes()
    this.#leastRate?.windows.unwatch(this)
    super._destroy(error, callback)
  }
}

function ignore(): void {}
