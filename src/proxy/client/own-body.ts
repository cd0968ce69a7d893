import { Readable } from 'node:stream'
import { BODY_BUFFER, type ByteBudget, HeldBytes, MOST_AHEAD, MOST_TURNS, QUIET_TURNS } from '../http/byte-budget.js'
import type { RequestBody } from '../http/client.js'

/** Where a body comes from. */
export interface BodySource {
  /** Bytes of the body that nobody has taken stop the reading. */
  pauseBody(): void
  resumeBody(): void
}

/** The body of a request that our own server reads. */
export class OwnBody extends Readable implements RequestBody {
  onProgress: () => void = ignore
  readonly #source: BodySource
  readonly #held: HeldBytes
  /** Bytes that may wait here before the source is paused. */
  #reach = BODY_BUFFER
  /** All of it has come. */
  #whole = false

  constructor(source: BodySource, budget: ByteBudget) {
    super({ highWaterMark: BODY_BUFFER })
    this.#source = source
    this.#held = new HeldBytes(budget, MOST_AHEAD)
    // An abort destroys this stream with an error that is reported elsewhere.
    this.on('error', ignore)
  }

  get held(): boolean {
    return this.readableLength >= BODY_BUFFER
  }

  /** Takes bytes that have come. */
  receive(bytes: Buffer): void {
    this.push(bytes)
    this.#held.hold(this.readableLength)
    if (this.readableLength >= this.#reach) this.#source.pauseBody()
    this.onProgress()
  }

  /** All of it has come. */
  finish(): void {
    this.#whole = true
    this.push(null)
  }

  readAhead(done: () => void): void {
    let buffered = -1
    let quiet = 0
    let turn = 0
    this.#reach = MOST_AHEAD
    this.#source.resumeBody()
    const look = (): void => {
      if (this.destroyed) return
      quiet = this.readableLength === buffered ? quiet + 1 : 0
      buffered = this.readableLength
      turn += 1
      const goesOn = quiet < QUIET_TURNS && turn <= MOST_TURNS && !this.#whole && this.#held.hasRoom(BODY_BUFFER)
      if (goesOn) return void setImmediate(look)
      this.#reach = BODY_BUFFER
      if (this.readableLength >= BODY_BUFFER) this.#source.pauseBody()
      done()
    }
    setImmediate(look)
  }

  override _read(): void {
    this.#source.resumeBody()
  }

  override read(size?: number): unknown {
    const chunk: unknown = super.read(size)
    if (this.#held.held > this.readableLength) {
      this.#held.hold(this.readableLength)
      this.onProgress()
    }
    return chunk
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#held.hold(0)
    super._destroy(error, callback)
  }
}

function ignore(): void {}
