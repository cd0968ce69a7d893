/**
 * Parses the requests on one connection (RFC 9112).
 *
 * The parser is strict, because a request that we and another party read differently can smuggle a second one. Of what llhttp
 * refuses it takes only methods that llhttp does not know. It reads everything it takes as llhttp does: a differential test with
 * random requests holds this. In particular:
 * - A line ends with CRLF. Names are tokens, and values have no control characters.
 * - A target is a path, `*`, or an absolute URL, of visible ASCII.
 * - There is at most one Content-Length, in digits. Transfer-Encoding and Content-Length exclude each other. Neither has a tab
 *   behind its value, which not everybody takes for white space.
 *
 * Bytes may arrive in any pieces, and the work is linear in their number. Heads, trailers and size lines have an upper bound.
 */
import { METHOD } from '../../http/method.js'
import { ChunkedBody, type ContentSink } from '../http/chunked-body.js'
import { checkCharacters, isNamed, listed, ProtocolError, parseFields } from '../http/fields.js'
import { HeldText } from '../http/held-text.js'

export interface RequestHead {
  readonly method: string
  readonly url: string
  readonly httpVersionMinor: 0 | 1
  readonly rawHeaders: string[]
  readonly framing: RequestFraming
  complete: boolean
}

/** What a parser reports. Any of these may call `stop`. */
export interface RequestSink extends ContentSink {
  head(head: RequestHead): void
  /** The body is complete. Trailers are dropped (RFC 9110 6.5.1). Not called for a request without a body. */
  end(): void
}

export interface HeadLimits {
  /** Bytes of the longest head, and of the longest trailer section. */
  readonly maxHeaderSize: number
  readonly maxHeaders: number
}

/** Bytes. The longest line with the size of a chunk, its extensions and its CRLF. */
const MAX_SIZE_LINE = 16 * 1024
/** More than one space is borne (RFC 9112 3). */
const REQUEST_LINE = /^([\x21-\x7e]+) +([\x21-\x7e]+)(?: +HTTP\/(\d)\.(\d))?$/
/** Whether a target begins as one of a known form. The reader of the head checks the rest. */
const TARGET = /^(?:[/*]|[A-Za-z]+:\/\/[\w\-.!~*'()%;:&=+$,[\]]+(?:[/?]|$))/
/** The usual end of a request line, and the usual target. */
const VERSION = ' HTTP/1.1'
const PATH = /^\/[\x21-\x7e]*$/
const CR = 13
const LF = 10
const FIRST_UPPER = 65
const LAST_UPPER = 90
/** Bytes of a line that are kept to tell which one it was. */
const LINE = 1_024

/** What clients send in error, by their first line. */
const LOOKS_LIKE: readonly (readonly [line: RegExp, what: string])[] = [
  [/^(?:PROXY |\0)/, 'this looks like the PROXY protocol, and "proxyProtocol" does not list this peer'],
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a client of TLS begins with it.
  [/^\x16/, 'this looks like TLS, and this address is for plain HTTP'],
  [/^[A-Z]*[a-z]/, 'the method is not in capitals'],
  [/^[^ ]+ +[^ ]*[\x80-\xff]/, 'the target has bytes above 127; they have to be percent-encoded'],
]

export class RequestParser {
  readonly #sink: RequestSink
  readonly #limits: HeadLimits
  readonly #head: HeldText
  readonly #connect: 'refused' | 'taken'
  /** The begin of the request that was refused. '': it came in pieces. */
  line = ''
  #chunks: ChunkedBody | undefined
  #state: 'stopped' | 'before' | 'head' | 'sized' | 'chunked' = 'before'
  #halfLine = false
  #left = 0
  #ended = false

  /** @param connect whether CONNECT is taken. It has no body, and nothing behind it is a request */
  constructor(sink: RequestSink, limits: HeadLimits, connect: 'refused' | 'taken' = 'refused') {
    this.#sink = sink
    this.#connect = connect
    this.#limits = limits
    this.#head = new HeldText(limits.maxHeaderSize)
  }

  get isBetween(): boolean {
    return this.#state === 'before'
  }

  stop(): void {
    this.#state = 'stopped'
    this.#head.clear()
    this.#chunks?.stop()
  }

  /**
   * Takes bytes of `buffer` from `from` to `end`, up to the end of a request.
   *
   * @returns the place behind the last byte taken
   * @throws ProtocolError if they are not a valid request. No further call is allowed then
   */
  read(buffer: Buffer, from: number, end: number): number {
    let at = from
    while (at < end) {
      if (this.#state === 'before') at = this.#skipLines(buffer, at, end)
      else if (this.#state === 'head') at = this.#readHead(buffer, at, end)
      else if (this.#state === 'sized') at = this.#readBody(buffer, at, end)
      else if (this.#state === 'chunked') at = this.#readChunks(buffer, at, end)
      else return end
      if (this.#ended) break
    }
    this.#ended = false
    return at
  }

  /** Servers bear empty lines before a request (RFC 9112 2.2). */
  #skipLines(buffer: Buffer, from: number, end: number): number {
    for (let at = from; at < end; at += 1) {
      const byte = buffer[at]!
      if (byte === (this.#halfLine ? LF : CR)) this.#halfLine = !this.#halfLine
      else if (this.#halfLine || byte < FIRST_UPPER || byte > LAST_UPPER)
        throw notARequest(this.#halfLine ? '' : String.fromCharCode(byte))
      else {
        this.#state = 'head'
        return at
      }
    }
    return end
  }

  #readHead(buffer: Buffer, from: number, end: number): number {
    const isWhole = this.#head.isEmpty
    let to: number
    let head: RequestHead
    try {
      to = this.#head.take(buffer, from, end)
      if (to < 0) return end
      head = readHead(this.#head.text.slice(0, -2), this.#limits, this.#connect)
    } catch (error) {
      if (isWhole) this.line = buffer.toString('latin1', from, Math.min(end, from + LINE))
      throw error
    }
    const { length, chunked } = head.framing
    if (length === 0) this.#end()
    else if (length !== undefined) {
      this.#left = length
      this.#state = 'sized'
    } else if (chunked) this.#startChunks()
    else this.#state = 'stopped'
    this.#sink.head(head)
    return to
  }

  #startChunks(): void {
    const limits = { line: MAX_SIZE_LINE, trailers: this.#limits.maxHeaderSize, padding: 'refused' } as const
    this.#chunks ??= new ChunkedBody(this.#sink, limits)
    this.#chunks.start()
    this.#state = 'chunked'
  }

  #readBody(buffer: Buffer, from: number, end: number): number {
    const to = Math.min(end, from + this.#left)
    this.#left -= to - from
    this.#sink.body(buffer, from, to)
    if (this.#left === 0) this.#endBody('sized')
    return to
  }

  #readChunks(buffer: Buffer, from: number, end: number): number {
    const to = this.#chunks!.read(buffer, from, end)
    if (this.#chunks!.ended) this.#endBody('chunked')
    return to
  }

  #endBody(state: 'sized' | 'chunked'): void {
    // The sink may have stopped the parser.
    if (this.#state !== state) return
    this.#end()
    this.#sink.end()
  }

  #end(): void {
    this.#ended = true
    this.#state = 'before'
  }
}

function readHead(text: string, { maxHeaders }: HeadLimits, connect: 'refused' | 'taken'): RequestHead {
  const lineEnd = text.indexOf('\r\n')
  const [method, url, httpVersionMinor] = plainLine(text, lineEnd) ?? readLine(text.slice(0, lineEnd))
  if (text.includes('\t')) checkTabs(text)
  // A copy has no spare room: a request that waits keeps it.
  const rawHeaders = parseFields(text, lineEnd + 2).slice()
  if (rawHeaders.length > 2 * maxHeaders) throw new ProtocolError(tooMany(maxHeaders), 431)
  const framing = new RequestFraming(rawHeaders, httpVersionMinor)
  if (method === 'CONNECT' && connect === 'refused') throw new ProtocolError('CONNECT is not supported', 405)
  // Bytes of the tunnel could be read as a body (RFC 9110 9.3.6).
  if (method === 'CONNECT' && framing.length !== 0) throw new ProtocolError('CONNECT with a body')
  const complete = framing.length === 0
  return { method, url, httpVersionMinor, rawHeaders, framing, complete }
}

export function tooMany(maxHeaders: number): string {
  return `there are more than ${maxHeaders} header fields`
}

type RequestLine = readonly [method: string, url: string, version: 0 | 1]

function plainLine(text: string, end: number): RequestLine | undefined {
  const space = text.indexOf(' ')
  const urlEnd = end - VERSION.length
  if (space >= urlEnd || !text.startsWith(VERSION, urlEnd)) return undefined
  const method = text.slice(0, space)
  const url = text.slice(space + 1, urlEnd)
  return METHOD.test(method) && PATH.test(url) ? [method, url, 1] : undefined
}

function readLine(line: string): RequestLine {
  checkCharacters(line)
  const [, method, url, major, minor] = REQUEST_LINE.exec(line) ?? []
  if (method === undefined || url === undefined || !METHOD.test(method)) throw notARequest(line)
  if (method !== 'CONNECT' && !TARGET.test(url)) throw notARequest(line)
  const version = major === undefined ? '0.9' : `${major}.${minor}`
  if (version === '1.1') return [method, url, 1]
  if (version === '1.0') return [method, url, 0]
  // These are versions of HTTP all the same.
  if (version === '0.9' || version === '2.0') {
    throw new ProtocolError('only HTTP/1.0 and HTTP/1.1 are supported', 505)
  }
  throw notARequest(line)
}

/** @throws ProtocolError if there is a tab at the end of a line that frames the body */
function checkTabs(text: string): void {
  for (let at = 0; at < text.length; ) {
    const end = text.indexOf('\r\n', at)
    let last = end - 1
    while (text[last] === ' ') last -= 1
    if (text[last] === '\t' && /^(?:content-length|transfer-encoding):/i.test(text.slice(at, at + 18))) {
      throw new ProtocolError('a tab behind the framing of the body')
    }
    at = end + 2
  }
}

function notARequest(line: string): ProtocolError {
  const [, what = 'not a request line of HTTP/1'] = LOOKS_LIKE.find(([pattern]) => pattern.test(line)) ?? []
  return new ProtocolError(what)
}

const DIGITS = /^\d{1,15}$/

/** What the fields of a request say about its length and its connection (RFC 9112 6 and 9). */
class RequestFraming {
  chunked = false
  /** Bytes of the body. 0: there is none. Undefined: it comes in chunks, or nobody can say where it ends. */
  length: number | undefined
  /** The connection can be used again after the request. */
  readonly persistent: boolean
  upgrade = false
  /** The client waits for a 100 before it sends its body. */
  expectsContinue = false
  #declared: number | undefined
  #codings: string | undefined
  #close = false
  #keep = false

  /** @param version the second number of HTTP/1.x @throws ProtocolError if the fields are ambiguous */
  constructor(fields: readonly string[], version: 0 | 1) {
    for (let at = 0; at < fields.length; at += 2) this.#take(fields[at]!, fields[at + 1]!)
    if (this.#codings === undefined) this.length = this.#declared ?? 0
    else this.chunked = this.#isChunked(this.#codings, version)
    // `close` counts more than `keep-alive` (RFC 9112 9.3).
    if (version === 0 || this.length === 0) this.expectsContinue = false
    this.persistent = !this.#close && (this.#keep || version === 1)
  }

  #take(name: string, value: string): void {
    if (isNamed(name, 'expect')) this.expectsContinue ||= isNamed(value, '100-continue')
    else if (isNamed(name, 'connection') || isNamed(name, 'proxy-connection')) this.#takeOptions(value)
    else if (isNamed(name, 'content-length')) this.#takeLength(value)
    else if (isNamed(name, 'transfer-encoding'))
      this.#codings = this.#codings === undefined ? value : `${this.#codings}, ${value}`
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
