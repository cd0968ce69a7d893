import type { Socket } from 'node:net'
import type { Readable } from 'node:stream'

/** The body of a request to an upstream. */
export interface UploadBody extends Readable {
  /** The connection has taken this many bytes that were read before, or it never will. */
  written?(bytes: number): void
  /** It may have to be sent again: keeps what is about to be read, if all of it has come. */
  keep?(): void
  /** It will not be sent again. */
  forget?(): void
}

/** Writes a request with its body to a connection, with backpressure. */
export class Upload {
  /** The whole body has been written. */
  ended = false
  readonly #socket: Socket
  readonly #body: UploadBody
  readonly #chunked: boolean
  /** The head has not left yet. */
  #starting = true
  /** The piece that is written next. */
  #chunk: Buffer | undefined
  /** The body has ended, perhaps before its last piece was written. */
  #isLast = false
  #stopped = false

  /**
   * Writes the head at once, in one piece with what the body has by now.
   *
   * @param framing `sized`: the head has a Content-Length, and the body has that many bytes
   */
  constructor(socket: Socket, head: string, body: UploadBody, framing: 'sized' | 'chunked') {
    this.#socket = socket
    this.#body = body
    this.#chunked = framing === 'chunked'
    socket.cork()
    socket.write(head, 'latin1')
    body.on('data', this.#take).once('end', this.#finish)
    socket.on('drain', this.#resume)
    // What the body has comes in the next tick, and its end in the tick after.
    process.nextTick(() => process.nextTick(this.#started))
  }

  /** Reads no more of the body. */
  stop(): void {
    this.#stopped = true
    this.#body.off('data', this.#take).off('end', this.#finish)
    this.#socket.off('drain', this.#resume)
  }

  readonly #started = (): void => {
    this.#starting = false
    this.#socket.uncork()
  }

  /**
   * Writes what comes with the head at once, and later pieces after all sockets have been read: a write to an upstream that
   * has answered early and closed ends the connection, and would lose that answer.
   */
  readonly #take = (chunk: Buffer): void => {
    if (this.#starting) return this.#write(chunk)
    this.#body.pause()
    this.#chunk = chunk
    setImmediate(this.#writeChunk)
  }

  readonly #writeChunk = (): void => {
    const chunk = this.#chunk!
    this.#chunk = undefined
    if (this.#stopped) return this.#body.written?.(chunk.length)
    this.#body.resume()
    this.#write(chunk)
    if (this.#isLast) this.#finish()
  }

  #write(chunk: Buffer): void {
    const socket = this.#socket
    // Also called if the connection ends before.
    const written = (): void => this.#body.written?.(chunk.length)
    let taken: boolean
    if (this.#chunked) {
      socket.cork()
      socket.write(`${chunk.length.toString(16)}\r\n`, 'latin1')
      socket.write(chunk, written)
      taken = socket.write('\r\n', 'latin1')
      socket.uncork()
    } else taken = socket.write(chunk, written)
    if (!taken) this.#body.pause()
  }

  readonly #resume = (): void => {
    if (this.#chunk === undefined) this.#body.resume()
  }

  readonly #finish = (): void => {
    this.#isLast = true
    if (this.#chunk !== undefined) return
    this.stop()
    this.ended = true
    if (this.#chunked) this.#socket.write('0\r\n\r\n', 'latin1')
  }
}
