import { Readable } from 'node:stream'
import type { Watched } from '../deadlines.js'
import { type ByteBudget, HeldBytes } from '../http/byte-budget.js'
import type { RequestBody } from '../http/client.js'
import type { LeastRate } from '../http/pace.js'
import { KeptBytes } from './kept-bytes.js'

/** Most bytes of a body to read in search of a hang-up: about as much as the kernels hold. */
const MOST_AHEAD = 4 * 1024 * 1024
/** Most turns of the event loop spent on reading ahead. A client may send one byte in each. */
const MOST_TURNS = 256
/** Bytes. A client that sends fewer in a turn sends on: what the kernel has kept comes in larger pieces. */
const FEW = 16 * 1024
/** After this many turns with so few bytes nothing more is expected soon. */
const QUIET_TURNS = 3
/** Bytes of a body that are read before the upstream takes it. */
export const BODY_BUFFER = 64 * 1024
/** Bytes. Of a body that is streamed an upstream that has not processed it has no more: its window, and what waits on the way. */
const MOST_COPIED = 4 * BODY_BUFFER

export interface BodySource {
  /** What comes from now on is for this one. */
  bodyGoesTo(body: ClientBody): void
  pauseBody(): void
  resumeBody(): void
  /** The client owes bytes and sends too few. */
  bodyTooSlow(): void
}

interface BodyOptions {
  readonly budget: ByteBudget
  readonly client: string
  /** Applies to a body whose length is known. Undefined: the client may be as slow as it likes. */
  readonly leastRate: LeastRate | undefined
}

/** The body of a request that our own server reads. Its bytes are kept until they are wanted. */
export class ClientBody extends Readable implements RequestBody, Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  onProgress: () => void = ignore
  onReady: () => void = ignore
  whole = false
  readonly #source: BodySource
  readonly #options: BodyOptions
  readonly #held: HeldBytes
  #kept = new KeptBytes()
  /** All of it that has come, as long as it may have to be sent again. */
  #copy: KeptBytes | undefined
  #reach = BODY_BUFFER
  /** The reader wants more. What is kept follows when it has taken all. */
  #wanted = false
  #paused = false
  /** Bytes that have come and that the upstream's connection has not sent. */
  #unsent = 0
  #measured = 0

  constructor(source: BodySource, options: BodyOptions) {
    super({ highWaterMark: BODY_BUFFER })
    const { budget, client, leastRate } = options
    this.#source = source
    this.#options = options
    this.#held = new HeldBytes(budget, client)
    // An abort destroys this stream with an error that is reported elsewhere.
    this.on('error', ignore)
    leastRate?.windows.watch(this)
  }

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

  receive(bytes: Buffer): void {
    this.#measured += bytes.length
    this.#count(bytes.length)
    // A stream takes 100 bytes for each piece. So while some wait there, the others are kept together.
    if (this.#wanted && this.readableLength === 0) this.#wanted = this.push(bytes)
    else this.#kept.add(bytes)
    if (this.#copy !== undefined) this.#addToCopy(bytes)
    if (this.#isFull()) this.#pause()
    this.onProgress()
  }

  #count(change: number): void {
    this.#unsent += change
    this.#held.hold(Math.max(this.#unsent, this.#copy?.length ?? 0))
  }

  #addToCopy(bytes: Buffer): void {
    this.#copy!.add(bytes)
    this.#count(0)
    if (this.#copy!.length > MOST_COPIED || !this.#held.hasRoom) this.forget()
  }

  #isFull(): boolean {
    return this.#waiting >= this.#reach || (this.#waiting > 0 && !this.#held.hasRoom)
  }

  #pause(): void {
    if (this.#paused || this.whole) return
    this.#paused = true
    this.#options.leastRate?.windows.unwatch(this)
    this.#source.pauseBody()
    this.onReady()
  }

  #resume(): void {
    if (this.#paused && !this.whole) {
      this.#measured = 0
      this.#options.leastRate?.windows.watch(this)
    }
    this.#paused = false
    this.#source.resumeBody()
  }

  finish(): void {
    this.whole = true
    this.#options.leastRate?.windows.unwatch(this)
    if (this.#wanted) this._read()
    this.onReady()
  }

  buffer(bytes: number): void {
    this.#reach = bytes
    if (this.#isFull()) this.#pause()
  }

  expired(): void {
    if (this.#measured < this.#options.leastRate!.bytes) return this.#source.bodyTooSlow()
    this.#measured = 0
    this.#options.leastRate!.windows.watch(this)
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
    if (this.readableDidRead) return
    this.#copy = new KeptBytes()
    for (const piece of this.#kept.pieces) this.#copy.add(piece)
  }

  forget(): void {
    this.#copy = undefined
    this.#count(0)
  }

  again(): ClientBody | undefined {
    const copy = this.#copy
    if (copy === undefined) return undefined
    this.forget()
    const body = new ClientBody(this.#source, this.whole ? { ...this.#options, leastRate: undefined } : this.#options)
    body.whole = this.whole
    for (const piece of copy.pieces) body.receive(piece)
    if (!this.whole) this.#source.bodyGoesTo(body)
    return body
  }

  written(bytes: number): void {
    this.#count(-bytes)
    if (!this.destroyed) this.onProgress()
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#count(-this.#waiting)
    this.#kept = new KeptBytes()
    this.#options.leastRate?.windows.unwatch(this)
    super._destroy(error, callback)
  }
}

function ignore(): void {}
