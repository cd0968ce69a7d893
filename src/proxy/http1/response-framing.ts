import { isNamed, listed, ProtocolError } from './fields.js'

/** Longer ones are not exact as numbers. */
const MOST_DIGITS = 15
const ZERO = 48
const KEEP_ALIVE_TIMEOUT = /(?:^|[\s,;])timeout=(\d{1,9})(?:$|[\s,;])/i

/**
 * What the fields of a response say about its length and its connection (RFC 9112 6 and 9). A response of HTTP/2 is read like one of
 * HTTP/1.1.
 */
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
    for (const option of listed(value)) {
      if (option === 'close') this.#close = true
      else if (option === 'keep-alive') this.#keep = true
    }
  }

  #takeLength(value: string): void {
    const length = wholeNumber(value)
    if (this.length !== undefined || length === undefined) throw new ProtocolError('a bad Content-Length')
    this.length = length
  }

  #takeCoding(value: string): void {
    if (this.chunked || this.#version === 'HTTP/1.0' || !isNamed(value, 'chunked')) {
      throw new ProtocolError(`an unknown transfer coding (${value.slice(0, 40)})`)
    }
    this.chunked = true
  }
}

/** The number that the text is in digits; undefined if it is none. Leading zeros could be read differently. */
function wholeNumber(text: string): number | undefined {
  if (text.length === 0 || text.length > MOST_DIGITS || (text.length > 1 && text.startsWith('0'))) return undefined
  let number = 0
  for (let at = 0; at < text.length; at += 1) {
    const digit = text.charCodeAt(at) - ZERO
    if (digit < 0 || digit > 9) return undefined
    number = 10 * number + digit
  }
  return number
}

function announcedTimeout(value: string): number | undefined {
  const seconds = KEEP_ALIVE_TIMEOUT.exec(value)?.[1]
  return seconds === undefined ? undefined : Number(seconds) * 1_000
}
