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

  /** Whether `--field` can name where lines of this log have it. */
  takes(_use: FieldUse): boolean {
    return false
  }
}

const SPACE = 32

/** Reads `METHOD TARGET HTTP/x` into the fields of a parser. False for anything else, such as TLS on a plain port. */
export function readRequestLine(parser: LineParser, bytes: Uint8Array, from: number, to: number): boolean {
  let at = from
  while (at < to && bytes[at]! >= 65 && bytes[at]! <= 90) at += 1
  if (at === from || bytes[at] !== SPACE || at >= to) return false
  parser.methodFrom = from
  parser.methodTo = at
  at += 1
  parser.targetFrom = at
  while (at < to && bytes[at] !== SPACE) at += 1
  parser.targetTo = at
  return at > parser.targetFrom
}
