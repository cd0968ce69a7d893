import type { IncomingMessage } from 'node:http'
import { PassThrough } from 'node:stream'

/** How much of a body is read before the upstream takes it, in bytes. */
const BUFFER = 64 * 1024

/** How much of a body is read at most to look for a hang-up behind it: about as much as the kernels hold, in bytes. */
const MOST_AHEAD = 4 * 1024 * 1024

/** What all bodies together may hold of what was read ahead, in bytes. Without room a body is read up to its buffer. */
const ALL_AHEAD = 32 * 1024 * 1024

/** Turns of the event loop that reading ahead takes at most: a client may send a byte in each. */
const MOST_TURNS = 256

/** Turns without a byte after which no more is expected at once. */
const QUIET_TURNS = 3

let allAhead = 0

/** What a body is fed through: undici would end its reader, and with it the client's connection. */
export class BodyStream extends PassThrough {
  /** What it holds of what was read ahead, in bytes. */
  #ahead = 0

  constructor(req: IncomingMessage) {
    super({ highWaterMark: BUFFER })
    // An abort destroys it with an error that has been told elsewhere.
    this.on('error', () => undefined)
    req.pipe(this)
  }

  /**
   * Reads on where a hang-up may hide: until the body ends, enough has come, or nothing more comes at once. An RST is seen
   * at once, a FIN behind no more than `MOST_AHEAD` bytes.
   *
   * @param done not called after a hang-up, which destroys the feed
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

  /** Takes out what has come, so that more comes. False: there is no room for more. */
  #takeAhead(chunks: Buffer[]): boolean {
    // To read the last of it would end the stream, and nothing could be put back.
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
