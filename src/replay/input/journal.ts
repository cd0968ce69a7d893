/**
 * The messages of systemd's journal, one a line, from what `journalctl -o export` or `-o json` writes
 * (systemd.io/JOURNAL_EXPORT_FORMATS), and those of Docker from its files (`json-file`).
 *
 * An entry of the export format ends with an empty line. A field is `NAME=value`, or where the value is no plain text
 * `NAME`, a newline, the length as 64 bits (little endian), the value and a newline.
 */
import { readJsonObject } from '../formats/line-parser.js'

const NEWLINE = 10
const EQUALS = 61
const MESSAGE = 'MESSAGE'
/** The longest name of a field, in bytes, and the longest line of JSON. */
const LONGEST_NAME = 64
const LONGEST_ENTRY = 1 << 20
const SIZE = 8

/** Takes the pieces of a journal and returns the messages that are complete, as lines. */
export interface JournalDecoder {
  decode(piece: Buffer): Buffer
}

export function journalDecoderFor(head: Buffer): JournalDecoder | undefined {
  const end = head.indexOf(NEWLINE)
  const first = head.toString('utf8', 0, end < 0 ? head.length : end)
  if (/^__(?:CURSOR|REALTIME_TIMESTAMP)=/.test(first)) return new ExportDecoder()
  const { __CURSOR, __REALTIME_TIMESTAMP, stream, log } = readJsonObject(first) ?? {}
  const isDocker = typeof stream === 'string' && typeof log === 'string'
  return (__CURSOR ?? __REALTIME_TIMESTAMP) !== undefined || isDocker ? new JsonDecoder() : undefined
}

class ExportDecoder implements JournalDecoder {
  #state: 'name' | 'text' | 'size' | 'data' = 'name'
  #name = ''
  #size: number[] = []
  /** The bytes of a value that are still to come, with the newline after them. */
  #left = 0

  decode(piece: Buffer): Buffer {
    const messages: Buffer[] = []
    for (let at = 0; at < piece.length; ) {
      if (this.#state === 'name') at = this.#readName(piece, at)
      else if (this.#state === 'size') at = this.#readSize(piece, at)
      else at = this.#readValue(piece, at, messages)
    }
    return Buffer.concat(messages)
  }

  #readName(piece: Buffer, from: number): number {
    let at = from
    while (at < piece.length && piece[at] !== EQUALS && piece[at] !== NEWLINE) at += 1
    if (this.#name.length <= LONGEST_NAME) this.#name += piece.toString('latin1', from, at)
    if (at === piece.length) return at
    if (piece[at] === EQUALS) this.#state = 'text'
    else if (this.#name !== '') this.#state = 'size'
    return at + 1
  }

  #readSize(piece: Buffer, at: number): number {
    this.#size.push(piece[at]!)
    if (this.#size.length === SIZE) {
      this.#left = Number(Buffer.from(this.#size).readBigUInt64LE()) + 1
      this.#size = []
      this.#state = 'data'
    }
    return at + 1
  }

  #readValue(piece: Buffer, from: number, messages: Buffer[]): number {
    const newline = this.#state === 'text' ? piece.indexOf(NEWLINE, from) : from + this.#left - 1
    const end = newline < 0 ? piece.length : Math.min(piece.length, newline + 1)
    if (this.#name === MESSAGE) messages.push(inOneLine(piece.subarray(from, end), newline - from))
    if (this.#state === 'data') this.#left -= end - from
    if (newline >= 0 && newline < piece.length) {
      this.#state = 'name'
      this.#name = ''
    }
    return end
  }
}

/** A part of a message, with spaces for all its newlines but the one at `last`. */
function inOneLine(part: Buffer, last: number): Buffer {
  // The piece is overwritten later.
  const copy = Buffer.from(part)
  for (let at = copy.indexOf(NEWLINE); at >= 0; at = copy.indexOf(NEWLINE, at + 1)) if (at !== last) copy[at] = 32
  return copy
}

class JsonDecoder implements JournalDecoder {
  #begun: Buffer[] = []
  #bytes = 0

  decode(piece: Buffer): Buffer {
    const messages: Buffer[] = []
    let from = 0
    for (let end = piece.indexOf(NEWLINE); end >= 0; end = piece.indexOf(NEWLINE, from)) {
      this.#begin(piece.subarray(from, end))
      messages.push(messageOf(Buffer.concat(this.#begun).toString()))
      this.#begun = []
      this.#bytes = 0
      from = end + 1
    }
    this.#begin(piece.subarray(from))
    return Buffer.concat(messages)
  }

  /** A line that is too long is cut off, and so no JSON. */
  #begin(part: Buffer): void {
    if (this.#bytes < LONGEST_ENTRY) this.#begun.push(Buffer.from(part))
    this.#bytes += part.length
  }
}

/** The message of an entry as a line: a text, or the bytes of one that is no UTF-8. A line that is no entry stays as it is. */
function messageOf(line: string): Buffer {
  const entry = readJsonObject(line)
  // Docker cuts a long line into entries, and the last one ends with a newline.
  if (typeof entry?.log === 'string') return Buffer.from(entry.log)
  const message = entry === undefined ? line : entry[MESSAGE]
  if (typeof message !== 'string' && !Array.isArray(message)) return Buffer.alloc(0)
  const bytes = typeof message === 'string' ? Buffer.from(message) : Buffer.from(message)
  return Buffer.concat([inOneLine(bytes, -1), Buffer.of(NEWLINE)])
}
