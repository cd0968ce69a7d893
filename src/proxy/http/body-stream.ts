import type { IncomingMessage } from 'node:http'
import { PassThrough } from 'node:stream'

/** Bytes of a body that are read before the upstream takes it. */
const BUFFER = 64 * 1024

/** Most bytes of a body to read in search of a hang-up: about as much as the kernels hold. */
const MOST_AHEAD = 4 * 1024 * 1024

/** Most bytes that all bodies together may hold. Above it a body is read up to `BUFFER` only. */
const ALL_AHEAD = 32 * 1024 * 1024

/** Most turns of the event loop spent on reading ahead. A client may send one byte in each. */
const MOST_TURNS = 256

/** After this many turns without a byte nothing more is expected soon. */
const QUIET_TURNS = 3

let allAhead = 0

/** Carries a request body to undici. undici would destroy the request itself, and with it the client's connection. */
export class BodyStream extends PassThrough {
  /** Bytes held that were read ahead. */
  #ahead = 0

  constructor(req: IncomingMessage) {
    super({ highWaterMark: BUFFER })
    // An abort destroys this stream with an error that is reported elsewhere.
    this.on('error', () => undefined)
    req.pipe(this)
  }

  /**
   * Reads on where a hang-up may be hidden: until the body ends, enough has come, or nothing more comes at once. It
   * notices a reset at once. It notices a FIN only behind at most `MOST_AHEAD` bytes.
   *
   * @param done not called after a hang-up, which destroys this stream
   */
  readAhead(done: () => void): void {
    const chunks: Buffer[] = []
    let buffered = 0
    let quiet = 0
    let turn = 0
    const look = (): void => {
      if (this.destroyed) return
      const now = this.#ahead + this.readableLength + this.writableLength
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
    if (this.#ahead + BUFFER > MOST_AHEAD || allAhead + BUFFER > ALL_AHEAD) return false
    const chunk = super.read() as Buffer | null
    if (chunk === null) return true
    chunks.push(chunk)
    this.#keep(this.#ahead + chunk.length)
    return true
  }

  #keep(bytes: number): void {
    allAhead += bytes - this.#ahead
    this.#ahead = bytes
  }

  override read(size?: number): unknown {
    const chunk: unknown = super.read(size)
    if (this.#ahead > this.readableLength) this.#keep(this.readableLength)
    return chunk
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#keep(0)
    super._destroy(error, callback)
  }
}
