import { isNamed, listed, ProtocolError } from './fields.js'

const DIGITS = /^\d{1,15}$/

/** What the fields of a request say about its length and its connection (RFC 9112 6 and 9). */
export class RequestFraming {
  chunked = false
  /** Bytes of the body. 0: there is none. Undefined: it comes in chunks, or nobody can say where it ends. */
  length: number | undefined
  /** The connection can be used again after the request. */
  readonly persistent: boolean
  /** Connection asks for an upgrade. */
  upgrade = false
  /** The client waits for a 100 before it sends its body. */
  expectsContinue = false
  #declared: number | undefined
  /** All values of Transfer-Encoding, joined. */
  #codings: string | undefined
  #close = false
  #keep = false

  /**
   * @param fields names and values in turn
   * @param version the second number of HTTP/1.x
   * @throws ProtocolError if they are ambiguous
   */
  constructor(fields: readonly string[], version: 0 | 1) {
    for (let at = 0; at < fields.length; at += 2) this.#take(fields[at]!, fields[at + 1]!)
    if (this.#codings === undefined) this.length = this.#declared ?? 0
    else this.chunked = this.#isChunked(this.#codings, version)
    // `close` counts more than `keep-alive` (RFC 9112 9.3).
    if (version === 0 || this.length === 0) this.expectsContinue = false
    this.persistent = !this.#close && (this.#keep || version === 1)
  }

  #take(name: string, value: string): void {
    // The length of a name decides for most.
    switch (name.length) {
      case 6:
        if (isNamed(name, 'expect') && isNamed(value, '100-continue')) this.expectsContinue = true
        break
      case 10:
        if (isNamed(name, 'connection')) this.#takeOptions(value)
        break
      case 14:
        if (isNamed(name, 'content-length')) this.#takeLength(value)
        break
      case 16:
        if (isNamed(name, 'proxy-connection')) this.#takeOptions(value)
        break
      case 17:
        if (!isNamed(name, 'transfer-encoding')) break
        this.#codings = this.#codings === undefined ? value : `${this.#codings}, ${value}`
        break
    }
  }

  #takeOptions(value: string): void {
    for (const option of listed(value)) {
      if (option === 'close') this.#close = true
      else if (option === 'keep-alive') this.#keep = true
      else if (option === 'upgrade') this.upgrade = true
    }
  }

  #takeLength(value: string): void {
    if (this.#declared !== undefined || !DIGITS.test(value)) throw new ProtocolError('a bad Content-Length')
    this.#declared = Number(value)
  }

  /** @returns false if the coding is unknown, so that nobody can say where the body ends */
  #isChunked(codings: string, version: 0 | 1): boolean {
    if (this.#declared !== undefined) throw new ProtocolError('both Content-Length and Transfer-Encoding')
    if (version === 0) throw new ProtocolError('a Transfer-Encoding in HTTP/1.0')
    const all = listed(codings)
    if (all.indexOf('chunked') < all.length - 1 && all.includes('chunked')) {
      throw new ProtocolError('chunked is not the last coding')
    }
    return all.length === 1 && all[0] === 'chunked'
  }
}
