/**
 * Parses the responses on one connection, one for each request (RFC 9112).
 *
 * The parser is strict, because a message that we and another party read differently can smuggle a second one. It takes
 * nothing that llhttp refuses, and reads everything it takes as llhttp does: a differential test with random messages
 * holds this. In particular:
 * - A line ends with CRLF. Names are tokens, and values have no control characters.
 * - There is at most one Content-Length, in digits. Transfer-Encoding is exactly `chunked`, alone, and not in HTTP/1.0.
 * - A chunk has a size in hex digits. Extensions are ignored, malformed ones refused.
 *
 * Bytes may arrive in any pieces. The work is linear in their number: what is incomplete is kept as a list of pieces and
 * joined once. Lines and heads have an upper bound.
 */
import { checkCharacters, isNamed, ProtocolError, parseFields } from './fields.js'
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

const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: (.*))?$/
/** Extensions are ignored (RFC 9112 7.1.1). */
const SIZE =
  /^([0-9a-fA-F]{1,13})(?:;[\w!#$%&'*+\-.^`|~]+(?:=(?:[\w!#$%&'*+\-.^`|~]+|"[\w !#$%&'()*+,\-./:;<=>?@[\]^`{|}~]*"))?)*\r\n$/

const BLANK_LINE = Buffer.from('\r\n\r\n')
const CR = 13
const LF = 10
const NONE: readonly string[] = []

type State = 'stopped' | 'idle' | 'head' | 'sized' | 'until close' | 'size line' | 'chunk' | 'chunk end' | 'trailers'

export class ResponseParser {
  /** The last response lets the connection be used again. */
  persistent = true
  /** ms for which the upstream keeps the idle connection. Undefined: not announced. */
  keepAlive: number | undefined
  readonly #sink: ResponseSink
  #state: State = 'idle'
  #method = ''
  /** Bytes left of the body or the chunk. */
  #left = 0
  /** Text of a head, a size line or the trailers that is incomplete. */
  #pieces: string[] = []
  #held = 0

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
    this.#pieces = []
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
        case 'chunk':
          at = this.#readBody(buffer, at, end)
          break
        case 'until close':
          this.#sink.body(buffer, at, end)
          return
        case 'size line':
          at = this.#readSize(buffer, at, end)
          break
        case 'chunk end':
          at = this.#readChunkEnd(buffer, at, end)
          break
        case 'trailers':
          at = this.#readTrailers(buffer, at, end)
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
    // Only up to the blank line: many 1xx may follow each other in one buffer.
    const blank = buffer.indexOf(BLANK_LINE, from)
    let text = buffer.toString('latin1', from, blank < 0 || blank + 4 > end ? end : blank + 4)
    let taken = from
    if (this.#held > 0) {
      // The blank line may have begun in an earlier piece.
      const tail = this.#tail()
      const mark = (tail + text).indexOf('\r\n\r\n')
      if (mark < 0) return this.#hold(text, end)
      taken -= this.#held
      text = this.#joined(text.slice(0, mark + 4 - tail.length))
    }
    const mark = text.indexOf('\r\n\r\n')
    if (mark < 0) return this.#hold(text, end)
    if (mark + 4 > MAX_HEAD) throw tooLarge()
    const to = taken + mark + 4
    this.#takeHead(text.slice(0, mark + 2), end - to)
    return to
  }

  /** The last three characters held. */
  #tail(): string {
    let tail = ''
    for (let at = this.#pieces.length - 1; at >= 0 && tail.length < 3; at -= 1) tail = this.#pieces[at]! + tail
    return tail.slice(-3)
  }

  #hold(text: string, end: number): number {
    this.#held += text.length
    if (this.#held > MAX_HEAD) throw tooLarge()
    this.#pieces.push(text)
    return end
  }

  #joined(last: string): string {
    this.#pieces.push(last)
    const text = this.#pieces.join('')
    this.#pieces = []
    this.#held = 0
    return text
  }

  /**
   * @param received the status line and the fields, each with its CRLF
   * @param rest how many bytes follow in the buffer
   */
  #takeHead(received: string, rest: number): void {
    // Some servers end a body with a line too many, as llhttp knows.
    const text = received.startsWith('\r\n') ? received.slice(2) : received
    checkCharacters(text)
    const lineEnd = text.indexOf('\r\n')
    const line = STATUS_LINE.exec(text.slice(0, lineEnd))
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
    if (!bodiless && chunked) this.#state = 'size line'
    else if (left === undefined) this.#state = 'until close'
    else {
      this.#left = left
      this.#state = 'sized'
    }
    this.#sink.head(head)
  }

  #readBody(buffer: Buffer, from: number, end: number): number {
    const to = Math.min(end, from + this.#left)
    this.#left -= to - from
    this.#sink.body(buffer, from, to)
    if (this.#left > 0) return to
    if (this.#state === 'chunk') this.#state = 'chunk end'
    else if (this.#state === 'sized') this.#end(NONE, end - to)
    return to
  }

  #readSize(buffer: Buffer, from: number, end: number): number {
    const to = this.#lineEnd(buffer, from, Math.min(end, from + MAX_SIZE_LINE))
    const piece = buffer.toString('latin1', from, to)
    if (!piece.endsWith('\n')) {
      if (this.#held + piece.length >= MAX_SIZE_LINE) throw badChunk()
      return this.#hold(piece, to)
    }
    const line = this.#held > 0 ? this.#joined(piece) : piece
    const size = SIZE.exec(line)
    if (size === null) throw badChunk()
    this.#left = Number.parseInt(size[1]!, 16)
    this.#state = this.#left > 0 ? 'chunk' : 'trailers'
    return to
  }

  #readChunkEnd(buffer: Buffer, from: number, end: number): number {
    let at = from
    if (this.#held === 0 && buffer[at] === CR) {
      at += 1
      if (at === end) return this.#hold('\r', end)
    } else if (this.#held === 0) throw badChunk()
    if (buffer[at] !== LF) throw badChunk()
    this.#pieces = []
    this.#held = 0
    this.#state = 'size line'
    return at + 1
  }

  #readTrailers(buffer: Buffer, from: number, end: number): number {
    const tail = this.#held > 0 ? this.#tail() : '\r\n'
    const text = buffer.toString('latin1', from, Math.min(end, from + MAX_HEAD + 1))
    // The line of the last chunk has ended with CRLF. So a second CRLF ends the section, wherever it comes.
    const seen = this.#held > 0 && this.#held < 3 ? `\r\n${tail}` : tail
    const mark = (seen + text).indexOf('\r\n\r\n')
    if (mark < 0) return this.#hold(text, from + text.length)
    const last = mark + 4 - seen.length
    const to = from + last
    const section = this.#joined(text.slice(0, last)).slice(0, -2)
    if (section.length > MAX_HEAD) throw tooLarge()
    this.#end(section === '' ? NONE : readTrailers(section), end - to)
    return to
  }

  #lineEnd(buffer: Buffer, from: number, end: number): number {
    for (let at = from; at < end; at += 1) if (buffer[at] === LF) return at + 1
    return end
  }

  /** @param surplus bytes that follow. They belong to no request, so the connection cannot be trusted any further */
  #end(trailers: readonly string[], surplus: number): void {
    if (surplus > 0) this.persistent = false
    this.#state = surplus > 0 ? 'stopped' : 'idle'
    this.#sink.end(trailers)
  }
}

function readTrailers(section: string): string[] {
  checkCharacters(section)
  const trailers = parseFields(section, 0)
  // A recipient could take them for the framing of the message (RFC 9110 6.5.1).
  for (let at = 0; at < trailers.length; at += 2) {
    const name = trailers[at]!
    if (isNamed(name, 'content-length') || isNamed(name, 'transfer-encoding')) {
      throw new ProtocolError('a trailer that describes the framing')
    }
  }
  return trailers
}

function tooLarge(): ProtocolError {
  return new ProtocolError('headers that are too large')
}

function badChunk(): ProtocolError {
  return new ProtocolError('a malformed chunk')
}
