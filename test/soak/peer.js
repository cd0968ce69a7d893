// @ts-check
/** A client connection that writes any bytes, and reads answers one after another. */
import { connect } from 'node:net'

/** How long to wait for data, in ms: longer than every timeout of the proxy. */
const PATIENCE = 15_000

export class Peer {
  #held = Buffer.alloc(0)
  #ended = false
  /** @type {AsyncIterator<Buffer>} */
  #chunks

  /** @param {import('node:net').Socket} socket */
  constructor(socket) {
    this.socket = socket
    this.#chunks = socket[Symbol.asyncIterator]()
  }

  /** @param {number} port @returns {Promise<Peer>} */
  static open(port) {
    return new Promise((resolve, reject) => {
      const socket = connect({ port, host: '127.0.0.1', noDelay: true })
      socket.once('error', reject)
      socket.once('connect', () => {
        socket.off('error', reject).on('error', () => undefined)
        socket.setTimeout(PATIENCE, () => socket.destroy())
        resolve(new Peer(socket))
      })
    })
  }

  get open() {
    return !this.#ended && !this.socket.destroyed
  }

  /** @param {string | Buffer} data */
  write(data) {
    this.socket.write(data)
  }

  /** Closes the connection. The other side still reads everything that was written. */
  close() {
    this.socket.destroy()
  }

  reset() {
    this.socket.resetAndDestroy()
  }

  /**
   * Reads the next answer; undefined: the connection ended before it. Unwanted 1xx answers are skipped.
   *
   * @param {{ method?: string, pause?: () => Promise<void>, interim?: boolean }} [options] `pause` is waited for
   *   between two pieces
   * @returns {Promise<import('./ledger.js').Answer | undefined>}
   */
  async answer({ method = 'GET', pause, interim = false } = {}) {
    const head = await this.head()
    if (head === undefined) return undefined
    const { status, headers } = head
    if (status === 100 && interim) return { ...head, body: Buffer.alloc(0), complete: true }
    if (status < 200) return this.answer({ method, ...(pause && { pause }) })
    if (method === 'HEAD' || status === 204 || status === 304) return { ...head, body: Buffer.alloc(0), complete: true }
    const length = headers.get('content-length')
    const { body, complete } =
      length === undefined ? await this.#chunked(pause) : await this.#take(Number(length), pause)
    return { ...head, body, complete }
  }

  /** Reads the head of the next answer. @returns {Promise<{ status: number, headers: Map<string, string> } | undefined>} */
  async head() {
    let end = this.#held.indexOf('\r\n\r\n')
    while (end < 0) {
      if (!(await this.#more())) return undefined
      end = this.#held.indexOf('\r\n\r\n')
    }
    const [first, ...lines] = this.#held.toString('latin1', 0, end).split('\r\n')
    this.#held = this.#held.subarray(end + 4)
    const headers = new Map(lines.map(line => /** @type {[string, string]} */ (split(line))))
    return { status: Number(first.slice(9, 12)), headers }
  }

  /** @param {number} length @param {() => Promise<void>} [pause] */
  async #take(length, pause) {
    const pieces = []
    let left = length
    for (;;) {
      const piece = this.#held.subarray(0, left)
      this.#held = this.#held.subarray(piece.length)
      left -= piece.length
      pieces.push(piece)
      if (left === 0 || !(await this.#more())) return { body: Buffer.concat(pieces), complete: left === 0 }
      await pause?.()
    }
  }

  /** @param {() => Promise<void>} [pause] */
  async #chunked(pause) {
    const pieces = []
    for (;;) {
      let end = this.#held.indexOf('\r\n')
      while (end < 0) {
        if (!(await this.#more())) return { body: Buffer.concat(pieces), complete: false }
        end = this.#held.indexOf('\r\n')
      }
      const size = Number.parseInt(this.#held.toString('latin1', 0, end), 16)
      this.#held = this.#held.subarray(end + 2)
      const { body, complete } = await this.#take(size + 2, pause)
      if (!complete || size === 0) return { body: Buffer.concat(pieces), complete }
      pieces.push(body.subarray(0, size))
    }
  }

  async #more() {
    const step = await this.#chunks.next().catch(() => undefined)
    if (step === undefined || step.done) {
      this.#ended = true
      return false
    }
    this.#held = this.#held.length === 0 ? step.value : Buffer.concat([this.#held, step.value])
    return true
  }
}

/** @param {string} line */
function split(line) {
  const at = line.indexOf(':')
  return [line.slice(0, at).toLowerCase(), line.slice(at + 1).trim()]
}
