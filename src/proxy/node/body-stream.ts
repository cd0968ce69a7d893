import type { IncomingMessage } from 'node:http'
import { PassThrough } from 'node:stream'
import { BODY_BUFFER, type ByteBudget, HeldBytes, MOST_AHEAD, MOST_TURNS, QUIET_TURNS } from '../http/byte-budget.js'
import type { RequestBody } from '../http/client.js'

/** Carries a request body to the upstream. Destroying it leaves the client's connection open. */
export class BodyStream extends PassThrough implements RequestBody {
  onProgress: () => void = ignore
  readonly #req: IncomingMessage
  /** What was read ahead. */
  readonly #ahead: HeldBytes

  constructor(req: IncomingMessage, budget: ByteBudget) {
    super({ highWaterMark: BODY_BUFFER })
    this.#req = req
    this.#ahead = new HeldBytes(budget, MOST_AHEAD)
    // An abort destroys this stream with an error that is reported elsewhere.
    this.on('error', ignore)
    req.on('data', this.#progress)
    // The client does not send again what was read ahead, but the upstream still takes it.
    this.on('drain', this.#progress)
    req.pipe(this)
  }

  get held(): boolean {
    return this.writableNeedDrain
  }

  readAhead(done: () => void): void {
    const chunks: Buffer[] = []
    let buffered = 0
    let quiet = 0
    let turn = 0
    const look = (): void => {
      if (this.destroyed) return
      const now = this.#ahead.held + this.readableLength + this.writableLength
      quiet = now === buffered ? quiet + 1 : 0
      buffered = now
      turn += 1
      if (quiet >= QUIET_TURNS || turn > MOST_TURNS || !this.#takeAhead(chunks)) {
        for (const chunk of chunks.reverse()) this.unshift(chunk)
        done()
      } else setImmediate(look)
    }
    setImmediate(look)
  }

  /**
   * Takes out the received bytes, so that more can come.
   *
   * @returns false if there is no room for more
   */
  #takeAhead(chunks: Buffer[]): boolean {
    // Reading the last chunk would end the stream, and nothing could be put back.
    if (this.writableEnded) return true
    if (!this.#ahead.hasRoom(BODY_BUFFER)) return false
    const chunk = super.read() as Buffer | null
    if (chunk === null) return true
    chunks.push(chunk)
    this.#ahead.hold(this.#ahead.held + chunk.length)
    return true
  }

  override read(size?: number): unknown {
    const chunk: unknown = super.read(size)
    if (this.#ahead.held > this.readableLength) this.#ahead.hold(this.readableLength)
    return chunk
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#ahead.hold(0)
    // The code that answers the client reads the rest.
    this.#req.off('data', this.#progress)
    if (!this.#req.readableEnded) this.#req.unpipe(this)
    super._destroy(error, callback)
  }

  readonly #progress = (): void => this.onProgress()
}

function ignore(): void {}
