/** What every parser reads of a log line. Each format has its own parser. */

import type { FieldUse } from './field-names.js'
import type { FormatName } from './format-names.js'

/** The errors of a line. */
export type BadLine =
  | 'no address'
  | 'no time'
  | 'no request'
  | 'not an HTTP request'
  | 'no status'
  | 'cut off'
  | 'not JSON'
  | 'too long'
  | 'unknown prefix'
  | 'no #Fields before it'
  | 'other columns'

/** A line that is not about a request, which is no error. */
export const SKIPPED = 'skipped'

/** How much of a name to show, in characters. */
const SHOWN = 60

/** A line about the log itself. */
export const DIRECTIVE = 'directive'

/**
 * Reads one line at a time into its own fields, as places in `bytes`. It makes no object for a line, because a log is read
 * at millions of lines per second. An empty place (from = to) means that the line does not have the value.
 */
export abstract class LineParser {
  abstract readonly format: FormatName
  /** The bytes that the places below refer to. */
  bytes: Uint8Array = new Uint8Array(0)
  /** The logged time: whole seconds since 1970, and the ms after them; -1: the log has whole seconds only. */
  second = 0
  fraction = -1
  /** How long before the logged time the request arrived, in ms. */
  duration = 0
  addressFrom = 0
  addressTo = 0
  methodFrom = 0
  methodTo = 0
  targetFrom = 0
  targetTo = 0
  agentFrom = 0
  agentTo = 0

  /** Whether syslog or the journal may have put a prefix before a line. */
  readonly prefixed: boolean = true

  /** Whether the logged time is that of the end, so that `duration` is needed. */
  abstract readonly timed: boolean

  /** How long the answer took, in ms. Undefined: the line does not tell. */
  get serviceTime(): number | undefined {
    return this.timed ? this.duration : undefined
  }

  /** Reads a line. Undefined: the line is good, and the fields hold it until the next call. */
  abstract parse(bytes: Uint8Array, from: number, to: number): BadLine | typeof SKIPPED | typeof DIRECTIVE | undefined

  /** The authority of the request. */
  abstract host(): string | undefined

  /** @param name in lower case */
  abstract header(name: string): string | undefined

  /** Whether lines of this log can have the header; `host` stands for the authority. */
  abstract has(name: string): boolean

  /** How many lines had a client, how many of these a name instead of an address, and the first name. */
  #clients = 0
  #names = 0
  #name = ''

  /** @param name undefined: the client is an address */
  protected countClient(name?: string): void {
    this.#clients += 1
    if (name !== undefined && this.#names++ === 0) this.#name = name.slice(0, SHOWN).replace(/[^ -~]/g, '?')
  }

  /** What a reader has to know of the lines read so far. */
  get notes(): readonly string[] {
    if (2 * this.#names <= this.#clients) return []
    return [
      `most clients are names such as ${JSON.stringify(this.#name)}, not addresses; if they are names of the server, the log does not tell its clients`,
    ]
  }

  /** Whether `--field` can name where lines of this log have it. */
  takes(_use: FieldUse): boolean {
    return false
  }
}

const SPACE = 32
const STAR = 42
const MINUS = 45
const SLASH = 47

/** What a method may consist of (RFC 9110, section 5.6.2). Most have capitals only. */
const CAPITAL = 1
const TOKEN = 2
const KINDS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const character = String.fromCharCode(byte)
  return /[A-Z]/.test(character) ? CAPITAL : /[\w!#$%&'*+.^`|~-]/.test(character) ? TOKEN : 0
})

/**
 * Reads `METHOD TARGET HTTP/x` into the fields of a parser. False for anything else, such as TLS on a plain port: a method
 * with other characters than capitals needs a path, so that `t3 12.1.2` is none.
 */
export function readRequestLine(parser: LineParser, bytes: Uint8Array, from: number, to: number): boolean {
  let at = from
  let kinds = 0
  for (let kind = KINDS[bytes[at]!]!; at < to && kind !== 0; kind = KINDS[bytes[at]!]!) {
    kinds |= kind
    at += 1
  }
  if (at === from || bytes[from] === MINUS || bytes[at] !== SPACE || at >= to) return false
  parser.methodFrom = from
  parser.methodTo = at
  at += 1
  parser.targetFrom = at
  if (kinds !== CAPITAL && bytes[at] !== SLASH && bytes[at] !== STAR) return false
  while (at < to && bytes[at] !== SPACE) at += 1
  parser.targetTo = at
  return at > parser.targetFrom
}
