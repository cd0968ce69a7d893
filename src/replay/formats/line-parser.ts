/** What is read of a line of a log; each format has a parser of its own. */

export type FormatName = 'common' | 'combined' | 'json' | 'alb' | 'shaper'

/** What is wrong with a line. */
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

/** A line that is no request, and is not meant to be one. */
export const SKIPPED = 'skipped'

/**
 * Reads one line at a time and says what it found in its own fields, as places in `bytes`: no object is made for a line.
 * An empty place (from = to) means that the line does not have it.
 */
export abstract class LineParser {
  abstract readonly format: FormatName
  /** What the places below are places in. */
  bytes: Uint8Array = new Uint8Array(0)
  /** The logged time: whole seconds since 1970, and ms beyond them; -1: the log knows seconds only. */
  second = 0
  fraction = -1
  /** How much earlier than that the request came, in ms. */
  duration = 0
  addressFrom = 0
  addressTo = 0
  methodFrom = 0
  methodTo = 0
  targetFrom = 0
  targetTo = 0
  agentFrom = 0
  agentTo = 0

  /** Whether lines say how long their requests took. */
  abstract readonly timed: boolean

  /** Undefined: the line is good, and its fields are here until the next one is read. */
  abstract parse(bytes: Uint8Array, from: number, to: number): BadLine | typeof SKIPPED | undefined

  /** The authority that was asked for. */
  abstract host(): string | undefined

  /** @param name in lower case */
  abstract header(name: string): string | undefined

  /** Whether lines of this format, as it is, can have the header; `host` stands for the authority. */
  abstract has(name: string): boolean
}

const SPACE = 32

/** Reads `METHOD TARGET HTTP/x` into the fields of a parser. False: it is none, as when TLS came to a port without. */
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
