import { isNamed, ProtocolError } from './fields.js'

const DIGITS = /^\d{1,15}$/
const KEEP_ALIVE_TIMEOUT = /(?:^|[\s,;])timeout=(\d{1,9})(?:$|[\s,;])/i

/** What the fields of a response say about its length and its connection (RFC 9112 6 and 9). */
export class ResponseFraming {
  chunked = false
  /** Bytes. Undefined: not declared. */
  length: number | undefined
  /** The connection can be used again after the response. */
  readonly persistent: boolean
  /** ms for which the upstream keeps the idle connection. Undefined: not announced. */
  keepAlive: number | undefined
  readonly #version: 'HTTP/1.0' | 'HTTP/1.1'
  #close = false
  #keep = false

  /**
   * @param fields names and values in turn
   * @throws ProtocolError if they are ambiguous or a coding is unknown
   */
  constructor(fields: readonly string[], version: 'HTTP/1.0' | 'HTTP/1.1') {
    this.#version = version
    for (let at = 0; at < fields.length; at += 2) this.#take(fields[at]!, fields[at + 1]!)
    if (this.chunked && this.length !== undefined) {
      throw new ProtocolError('both Content-Length and Transfer-Encoding')
    }
    // `close` counts more than `keep-alive` (RFC 9112 9.3).
    this.persistent = !this.#close && (this.#keep || version === 'HTTP/1.1')
  }

  #take(name: string, value: string): void {
    // The length of a name decides for most.
    if (name.length === 10) {
      if (isNamed(name, 'connection')) this.#takeOptions(value)
      else if (isNamed(name, 'keep-alive')) this.keepAlive = announcedTimeout(value)
    } else if (isNamed(name, 'proxy-connection')) this.#takeOptions(value)
    else if (isNamed(name, 'content-length')) this.#takeLength(value)
    else if (isNamed(name, 'transfer-encoding')) this.#takeCoding(value)
  }

  #takeOptions(value: string): void {
    for (const option of value.toLowerCase().split(',')) {
      const name = option.trim()
      if (name === 'close') this.#close = true
      else if (name === 'keep-alive') this.#keep = true
    }
  }

  #takeLength(value: string): void {
    if (this.length !== undefined || !DIGITS.test(value)) throw new ProtocolError('a bad Content-Length')
    this.length = Number(value)
  }

  #takeCoding(value: string): void {
    if (this.chunked || this.#version === 'HTTP/1.0' || !isNamed(value, 'chunked')) {
      throw new ProtocolError(`an unknown transfer coding (${value.slice(0, 40)})`)
    }
    this.chunked = true
  }
}

function announcedTimeout(value: string): number | undefined {
  const seconds = KEEP_ALIVE_TIMEOUT.exec(value)?.[1]
  return seconds === undefined ? undefined : Number(seconds) * 1_000
}
