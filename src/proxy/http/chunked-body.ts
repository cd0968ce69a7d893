/**
 * Decodes a body in chunks (RFC 9112 7.1) strictly. A chunk has a size in hex digits and nothing around it, or spaces behind it
 * where that is allowed. Extensions are ignored, malformed ones refused. Trailers are fields that say nothing about the framing.
 */
import { ProtocolError, parseFields } from './fields.js'
import { HeldText } from './held-text.js'

/** Takes the content. The buffer is valid only during the call. */
export interface ContentSink {
  body(buffer: Buffer, from: number, to: number): void
}

interface ChunkLimits {
  /** Bytes. The longest line with the size of a chunk, its extensions and its CRLF. */
  readonly line: number
  readonly trailers: number
  /** Whether a size may have spaces behind it. Some devices send them, and nginx and curl read them. */
  readonly padding: 'read' | 'refused'
}

/** Extensions are ignored (RFC 9112 7.1.1). */
const SIZE =
  /^([0-9a-fA-F]{1,13})([ \t]*)(?:;[\w!#$%&'*+\-.^`|~]+(?:=(?:[\w!#$%&'*+\-.^`|~]+|"[\w !#$%&'()*+,\-./:;<=>?@[\]^`{|}~]*"))?)*\r\n$/

const FRAMING = new Set(['content-length', 'transfer-encoding', 'connection', 'proxy-connection', 'upgrade'])
const CR = 13
const LF = 10
const NONE: readonly string[] = []

export class ChunkedBody {
  ended = false
  /** Names and values in turn. Valid once it has ended. */
  trailers: readonly string[] = NONE
  readonly #sink: ContentSink
  readonly #limits: ChunkLimits
  readonly #section: HeldText
  #state: 'size' | 'chunk' | 'chunk end' | 'trailers' = 'size'
  #left = 0
  /** The part of a size line, or of the CRLF behind a chunk, that has come. */
  #line = ''

  constructor(sink: ContentSink, limits: ChunkLimits) {
    this.#sink = sink
    this.#limits = limits
    this.#section = new HeldText(limits.trailers)
  }

  start(): void {
    this.ended = false
    this.trailers = NONE
    this.#state = 'size'
    this.#line = ''
    this.#section.clear()
  }

  stop(): void {
    this.ended = true
  }

  /**
   * Takes bytes of `buffer` from `from` to `end`, up to the end of the body.
   *
   * @returns the place behind the last byte taken
   * @throws ProtocolError if they are malformed
   */
  read(buffer: Buffer, from: number, end: number): number {
    let at = from
    while (at < end && !this.ended) {
      if (this.#state === 'size') at = this.#readSize(buffer, at, end)
      else if (this.#state === 'chunk') at = this.#readChunk(buffer, at, end)
      else if (this.#state === 'chunk end') at = this.#readChunkEnd(buffer, at, end)
      else at = this.#readTrailers(buffer, at, end)
    }
    return at
  }

  #readSize(buffer: Buffer, from: number, end: number): number {
    const { line: longest, padding } = this.#limits
    const to = lineEnd(buffer, from, Math.min(end, from + longest))
    this.#line += buffer.toString('latin1', from, to)
    if (buffer[to - 1] !== LF) {
      if (this.#line.length >= longest) throw new ProtocolError('chunk extensions that are too large', 413)
      return to
    }
    const size = SIZE.exec(this.#line)
    if (size === null || (size[2] !== '' && padding === 'refused')) throw badChunk()
    this.#line = ''
    this.#left = Number.parseInt(size[1]!, 16)
    this.#state = this.#left > 0 ? 'chunk' : 'trailers'
    if (this.#left === 0) this.#section.followLine()
    return to
  }

  #readChunk(buffer: Buffer, from: number, end: number): number {
    const to = Math.min(end, from + this.#left)
    this.#left -= to - from
    if (this.#left === 0) this.#state = 'chunk end'
    this.#sink.body(buffer, from, to)
    return to
  }

  #readChunkEnd(buffer: Buffer, from: number, end: number): number {
    let at = from
    if (this.#line === '') {
      if (buffer[at] !== CR) throw badChunk()
      at += 1
      if (at === end) {
        this.#line = '\r'
        return at
      }
    }
    if (buffer[at] !== LF) throw badChunk()
    this.#line = ''
    this.#state = 'size'
    return at + 1
  }

  #readTrailers(buffer: Buffer, from: number, end: number): number {
    const to = this.#section.take(buffer, from, end)
    if (to < 0) return end
    const lines = this.#section.text.slice(0, -2)
    if (lines !== '') this.trailers = readTrailers(lines)
    this.ended = true
    return to
  }
}

function lineEnd(buffer: Buffer, from: number, end: number): number {
  for (let at = from; at < end; at += 1) if (buffer[at] === LF) return at + 1
  return end
}

function readTrailers(lines: string): string[] {
  const trailers = parseFields(lines, 0)
  // A recipient could apply them to the message or the connection (RFC 9110 6.5.1). llhttp does with some.
  for (let at = 0; at < trailers.length; at += 2) {
    if (FRAMING.has(trailers[at]!.toLowerCase())) throw new ProtocolError('a trailer that describes the framing')
  }
  return trailers
}

function badChunk(): ProtocolError {
  return new ProtocolError('a malformed chunk')
}
