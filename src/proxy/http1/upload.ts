import type { Socket } from 'node:net'
import type { Readable } from 'node:stream'

/** Writes a request with its body to a connection, with backpressure. */
export class Upload {
  /** The whole body has been written. */
  ended = false
  readonly #socket: Socket
  readonly #body: Readable
  readonly #chunked: boolean

  /**
   * Writes the head at once, in one piece with what the body has by now.
   *
   * @param framing `sized`: the head has a Content-Length, and the body has that many bytes
   */
  constructor(socket: Socket, head: string, body: Readable, framing: 'sized' | 'chunked') {
    this.#socket = socket
    this.#body = body
    this.#chunked = framing === 'chunked'
    socket.cork()
    socket.write(head, 'latin1')
    body.on('data', this.#write).once('end', this.#finish)
    socket.on('drain', this.#resume)
    process.nextTick(uncork, socket)
  }

  /** Reads no more of the body. */
  stop(): void {
    this.#body.off('data', this.#write).off('end', this.#finish)
    this.#socket.off('drain', this.#resume)
  }

  readonly #write = (chunk: Buffer): void => {
    const socket = this.#socket
    let taken: boolean
    if (this.#chunked) {
      socket.cork()
      socket.write(`${chunk.length.toString(16)}\r\n`, 'latin1')
      socket.write(chunk)
      taken = socket.write('\r\n', 'latin1')
      socket.uncork()
    } else taken = socket.write(chunk)
    if (!taken) this.#body.pause()
  }

  readonly #resume = (): void => {
    this.#body.resume()
  }

  readonly #finish = (): void => {
    this.stop()
    this.ended = true
    if (this.#chunked) this.#socket.write('0\r\n\r\n', 'latin1')
  }
}

function uncork(socket: Socket): void {
  socket.uncork()
}
