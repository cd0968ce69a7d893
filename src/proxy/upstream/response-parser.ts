/**
 * Parses the responses on one connection, one for each request (RFC 9112).
 *
 * The parser is strict, because a message that we and another party read differently can smuggle a second one. Of what llhttp
 * refuses it takes only spaces behind the size of a chunk. It reads everything it takes as llhttp does: a differential test with
 * random messages holds this. In particular:
 * - A line ends with CRLF. Names are tokens, and values have no control characters.
 * - A status is 100 to 599: no other is valid (RFC 9110 15).
 * - There is at most one Content-Length, in digits, without leading zeros. Transfer-Encoding is exactly `chunked`, alone, and not
 *   in HTTP/1.0.
 * - A chunk has a size in hex digits. Extensions are ignored, malformed ones refused.
 *
 * Bytes may arrive in any pieces. The work is linear in their number: what is incomplete is kept as a list of pieces and
 * joined once. Lines and heads have an upper bound.
 */
import { ChunkedBody } from '../http/chunked-body.js'
import { checkCharacters, isNamed, listed, ProtocolError, parseFields } from '../http/fields.js'
import { HeldText } from '../http/held-text.js'

export interface ResponseHead {
  readonly status: number
  readonly reason: string
  readonly fields: readonly string[]
  /** Bytes of the body; 0 if there is none, whatever the headers say. Undefined: its end is not known yet. */
  readonly length: number | undefined
}

export interface ResponseSink {
  /** A 1xx. Another head follows. */
  interim(status: number, fields: readonly string[]): void
  head(head: ResponseHead): void
  body(buffer: Buffer, from: number, to: number): void
  /** The response is complete. @param trailers names and values in turn */
  end(trailers: readonly string[]): void
}

/** Bytes. The longest head or trailer section. */
const MAX_HEAD = 64 * 1024
/** Bytes. The longest line with the size of a chunk, its extensions and its CRLF. */
const MAX_SIZE_LINE = 256
const STATUS_LINE = /^HTTP\/1\.([01]) ([1-5]\d\d)(?: (.*))?$/
const NONE: readonly string[] = []
type State = 'stopped' | 'idle' | 'head' | 'sized' | 'until close' | 'chunked'

export class ResponseParser {
  /** The last response lets the connection be used again. */
  persistent = true
  /** ms for which the upstream keeps the idle connection. Undefined: not announced. */
  keepAlive: number | undefined
  readonly #sink: ResponseSink
  #state: State = 'idle'
  #method = ''
  #left = 0
  readonly #head = new HeldText(MAX_HEAD)
  #chunks: ChunkedBody | undefined

  constructor(sink: ResponseSink) {
    this.#sink = sink
  }

  expect(method: string): void {
    this.#method = method
    this.#state = 'head'
  }

  stop(): void {
    this.#state = 'stopped'
    this.#head.clear()
    this.#chunks?.stop()
  }

  /** Takes the bytes of `buffer` before `end`. @throws ProtocolError if they are not a valid response. It is the last call then */
  read(buffer: Buffer, end: number): void {
    let at = 0
    while (at < end) {
      if (this.#state === 'head') at = this.#readHead(buffer, at, end)
      else if (this.#state === 'sized') at = this.#readBody(buffer, at, end)
      else if (this.#state === 'chunked') at = this.#readChunks(buffer, at, end)
      else if (this.#state === 'until close') return this.#sink.body(buffer, at, end)
      else if (this.#state === 'idle') throw new ProtocolError('more bytes than the response has')
      else return
    }
  }

  /** The connection has ended. @returns false if a response is incomplete */
  ended(): boolean {
    if (this.#state === 'until close') this.#end(NONE, 0)
    return this.#state === 'idle' || this.#state === 'stopped'
  }

  #readHead(buffer: Buffer, from: number, end: number): number {
    const to = this.#head.take(buffer, from, end)
    if (to < 0) return end
    this.#takeHead(this.#head.text.slice(0, -2), end - to)
    return to
  }

  /** @param received the status line and the fields, each with its CRLF @param rest how many bytes follow in the buffer */
  #takeHead(received: string, rest: number): void {
    // Some servers end a body with a line too many, as llhttp knows.
    const text = received.startsWith('\r\n') ? received.slice(2) : received
    const lineEnd = text.indexOf('\r\n')
    const statusLine = text.slice(0, lineEnd)
    checkCharacters(statusLine)
    const line = STATUS_LINE.exec(statusLine)
    if (line === null) throw new ProtocolError('not a status line of HTTP/1')
    const status = Number(line[2])
    const fields = parseFields(text, lineEnd + 2)
    const framing = new ResponseFraming(fields, line[1] === '0' ? 'HTTP/1.0' : 'HTTP/1.1')
    if (status === 101) throw new ProtocolError('a switch of protocols that nobody asked for')
    if (status < 200) {
      // llhttp takes nothing after it. HTTP/1.0 has no interim responses (RFC 9110 15.2).
      if (!framing.persistent) throw new ProtocolError('an interim response that ends the connection')
      return this.#sink.interim(status, fields)
    }
    this.#startBody({ status, reason: line[3] ?? '', fields, length: framing.length }, framing)
    if (this.#state === 'sized' && this.#left === 0) this.#end(NONE, rest)
  }

  #startBody(head: ResponseHead, { chunked, length, persistent, keepAlive }: ResponseFraming): void {
    const bodiless = this.#method === 'HEAD' || head.status === 204 || head.status === 304
    const left = bodiless ? 0 : length
    this.persistent = persistent && (bodiless || chunked || length !== undefined)
    this.keepAlive = keepAlive
    if (!bodiless && chunked) this.#startChunks()
    else if (left === undefined) this.#state = 'until close'
    else {
      this.#left = left
      this.#state = 'sized'
    }
    this.#sink.head(head)
  }

  #startChunks(): void {
    this.#chunks ??= new ChunkedBody(this.#sink, { line: MAX_SIZE_LINE, trailers: MAX_HEAD, padding: 'read' })
    this.#chunks.start()
    this.#state = 'chunked'
  }

  #readBody(buffer: Buffer, from: number, end: number): number {
    const to = Math.min(end, from + this.#left)
    this.#left -= to - from
    this.#sink.body(buffer, from, to)
    if (this.#left === 0 && this.#state === 'sized') this.#end(NONE, end - to)
    return to
  }

  #readChunks(buffer: Buffer, from: number, end: number): number {
    const chunks = this.#chunks!
    const to = chunks.read(buffer, from, end)
    if (chunks.ended && this.#state === 'chunked') this.#end(chunks.trailers, end - to)
    return to
  }

  /** @param surplus bytes that follow. They belong to no request, so the connection cannot be trusted any further */
  #end(trailers: readonly string[], surplus: number): void {
    if (surplus > 0) this.persistent = false
    this.#state = surplus > 0 ? 'stopped' : 'idle'
    this.#sink.end(trailers)
  }
}

/** Longer ones are not exact as numbers. */
const MOST_DIGITS = 15
const ZERO = 48
const KEEP_ALIVE_TIMEOUT = /(?:^|[\s,;])timeout=(\d{1,9})(?:$|[\s,;])/i

/** What the fields of a response, also of HTTP/2, say about its length and its connection (RFC 9112 6 and 9). */
export class ResponseFraming {
  chunked = false
  /** Bytes. Undefined: not declared. */
  length: number | undefined
  readonly persistent: boolean
  keepAlive: number | undefined
  readonly #version: 'HTTP/1.0' | 'HTTP/1.1'
  #close = false
  #keep = false

  /** @throws ProtocolError if the fields are ambiguous or a coding is unknown */
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
