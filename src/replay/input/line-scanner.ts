import { type BadLine, DIRECTIVE, type LineParser, SKIPPED } from '../formats/line-parser.js'
import { bodyStart, isRemark, textStart } from '../formats/line-prefix.js'

const NEWLINE = 10
const RETURN = 13
/** The longest line, in bytes. No server accepts a request that makes a longer one. */
export const LONGEST_LINE = 1 << 18
/** How many bad lines to show, and how many characters of each. */
const SHOWN = 5
const CLIPPED = 120

export interface BadExample {
  readonly line: number
  readonly reason: BadLine
  readonly text: string
}

export class BadLines {
  count = 0
  readonly reasons = new Map<BadLine, number>()
  readonly examples: BadExample[] = []

  add(reason: BadLine, line: number, text: Buffer): void {
    this.count += 1
    this.reasons.set(reason, (this.reasons.get(reason) ?? 0) + 1)
    if (this.examples.length < SHOWN) this.examples.push(exampleOf(reason, line, text))
  }
}

function exampleOf(reason: BadLine, line: number, text: Buffer): BadExample {
  return { line, reason, text: clipped(text) }
}

export function clipped(text: Buffer): string {
  return printable(text.subarray(0, 4 * CLIPPED).toString(), CLIPPED)
}

/** A text without control characters: text from clients must not control the terminal. */
export function printable(text: string, longest: number): string {
  const clean = text.replace(/[^\x20-\x7e\u00a0-\u2027\u2030-\ud7ff\uf900-\ufffd]/g, '?')
  return clean.length > longest ? `${clean.slice(0, longest - 1)}~` : clean
}

export class Scanner {
  lines = 0
  skipped = 0
  /** Lines that could not be read, and the first of them. */
  unread = 0
  firstUnread: BadExample | undefined
  #directives = 0
  readonly #parser: LineParser
  readonly #good: (parser: LineParser) => void
  readonly #bad: BadLines
  #carried: Buffer[] = []
  #carriedBytes = 0

  /** @param good called for each good line, while the parser holds its fields */
  constructor(parser: LineParser, good: (parser: LineParser) => void, bad: BadLines) {
    this.#parser = parser
    this.#good = good
    this.#bad = bad
  }

  feed(chunk: Buffer): void {
    let from = 0
    if (this.#carriedBytes > 0) {
      const end = chunk.indexOf(NEWLINE)
      if (end < 0) return this.#carry(chunk)
      this.#carry(chunk.subarray(0, end))
      this.end()
      from = end + 1
    }
    for (let end = chunk.indexOf(NEWLINE, from); end >= 0; end = chunk.indexOf(NEWLINE, from)) {
      this.#line(chunk, from, end)
      from = end + 1
    }
    if (from < chunk.length) this.#carry(chunk.subarray(from))
  }

  end(): void {
    if (this.#carriedBytes === 0) return
    // Of a line that is too long it has more than the longest.
    const line = Buffer.concat(this.#carried)
    this.#carried = []
    this.#carriedBytes = 0
    this.#line(line, 0, line.length)
  }

  /** How many lines are not about the log itself. */
  get entries(): number {
    return this.lines - this.#directives
  }

  #carry(part: Buffer): void {
    if (this.#carriedBytes <= LONGEST_LINE) this.#carried.push(Buffer.from(part))
    this.#carriedBytes += part.length
  }

  #line(bytes: Buffer, begin: number, newline: number): void {
    const to = newline > begin && bytes[newline - 1] === RETURN ? newline - 1 : newline
    const from = textStart(bytes, begin, to)
    if (to === from) return
    this.lines += 1
    if (to - begin > LONGEST_LINE) return this.#addBad('too long', bytes.subarray(from, to))
    const parser = this.#parser
    const start = parser.prefixed ? bodyStart(bytes, from, to) : from
    const reason = start < 0 ? 'unknown prefix' : isRemark(bytes, from) ? DIRECTIVE : parser.parse(bytes, start, to)
    if (reason === undefined) this.#good(parser)
    else if (reason === SKIPPED) this.skipped += 1
    else if (reason === DIRECTIVE) this.#directives += 1
    else this.#addBad(reason, bytes.subarray(from, to))
  }

  #addBad(reason: BadLine, line: Buffer): void {
    this.#bad.add(reason, this.lines, line)
    this.unread += 1
    this.firstUnread ??= exampleOf(reason, this.lines, line)
  }
}
