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
import { ChunkedBody } from './chunked-body.js'
import { checkCharacters, ProtocolError, parseFields } from './fields.js'
import { HeldText } from './held-text.js'
import { ResponseFraming } from './response-framing.js'

export interface ResponseHead {
  readonly status: number
  readonly reason: string
  /** Names and values in turn, as they came. */
  readonly fields: readonly string[]
  /** Bytes of the body. Undefined: its end is not known yet. */
  readonly length: number | undefined
}

/** What a parser reports. Any of these may call `stop`. */
export interface ResponseSink {
  /** A 1xx. Another head follows. */
  interim(status: number, fields: readonly string[]): void
  head(head: ResponseHead): void
  /** Part of the body. The buffer is valid only during the call. */
  body(buffer: Buffer, from: number, to: number): void
  /**
   * The response is complete.
   *
   * @param trailers names and values in turn
   */
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
  /** Bytes left of the body. */
  #left = 0
  readonly #head = new HeldText(MAX_HEAD)
  /** Undefined: no response has come in chunks. */
  #chunks: ChunkedBody | undefined

  constructor(sink: ResponseSink) {
    this.#sink = sink
  }

  /** A request has been sent. */
  expect(method: string): void {
    this.#method = method
    this.#state = 'head'
  }

  /** Reports nothing more. */
  stop(): void {
    this.#state = 'stopped'
    this.#head.clear()
    this.#chunks?.stop()
  }

  /**
   * Takes the bytes of `buffer` before `end`.
   *
   * @throws ProtocolError if they are not a valid response. No further call is allowed then
   */
  read(buffer: Buffer, end: number): void {
    let at = 0
    while (at < end) {
      switch (this.#state) {
        case 'head':
          at = this.#readHead(buffer, at, end)
          break
        case 'sized':
          at = this.#readBody(buffer, at, end)
          break
        case 'until close':
          this.#sink.body(buffer, at, end)
          return
        case 'chunked':
          at = this.#readChunks(buffer, at, end)
          break
        case 'idle':
          throw new ProtocolError('more bytes than the response has')
        case 'stopped':
          return
      }
    }
  }

  /**
   * The connection has ended.
   *
   * @returns false if a response is incomplete
   */
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

  /**
   * @param received the status line and the fields, each with its CRLF
   * @param rest how many bytes follow in the buffer
   */
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
