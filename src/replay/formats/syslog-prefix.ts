/** What syslog puts before each line: its time, the host and a tag. */

const MONTH = '(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)'
/** RFC 3164, also with a year or a fraction: `Feb  3 10:00:00`. */
const OLD_TIME = `${MONTH} [ \\d]?\\d (?:\\d{4} )?\\d\\d:\\d\\d:\\d\\d(?:\\.\\d{1,9})?`
const ISO_TIME = '\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(?:[.,]\\d{1,9})?(?:Z|[+-]\\d\\d:?\\d\\d)'
const PRIORITY = '(?:<\\d{1,3}>)?'
/** `nginx:` or `nginx[12]:`. */
const TAG = '[^\\s:[\\]]{1,64}(?:\\[[^\\s\\]]{0,32}\\])?:(?: +|(?=\\{))'
/** RFC 5424: host, program, process, kind of message, and data in brackets. */
const FIELDS = '(?:\\S{1,255} ){4}(?:-|(?:\\[(?:[^\\]"\\\\]|\\\\.|"(?:[^"\\\\]|\\\\.)*")*\\])+) (?:\\xef\\xbb\\xbf)?'

const PREFIX = new RegExp(
  `^${PRIORITY}(?:(?:${OLD_TIME}|${ISO_TIME}) (?:\\S{1,255} )?${TAG}|\\d{1,2} ${ISO_TIME} ${FIELDS})`,
)
/** What no log of requests begins with. */
const BEGINNING = new RegExp(`^(?:<\\d{1,3}>|${MONTH} [ \\d]?\\d |(?:\\d{1,2} )?\\d{4}-\\d\\d-\\d\\d(?:[T ]|$))`)

/** Prefixes are shorter, in characters. */
const LONGEST = 1_024

const LESS = 60
const SPACE = 32
const MINUS = 45

/** How long the prefix is; 0: there is none; -1: the line begins like one, and goes on differently. */
export function prefixLength(text: string): number {
  const [prefix] = PREFIX.exec(text) ?? []
  return prefix?.length ?? (BEGINNING.test(text) ? -1 : 0)
}

/** Where the line begins behind its prefix; -1: see above. */
export function bodyStart(bytes: Uint8Array, from: number, to: number): number {
  if (!mayBePrefixed(bytes, from)) return from
  const length = prefixLength(
    Buffer.from(bytes.buffer, bytes.byteOffset + from, Math.min(to - from, LONGEST)).toString('latin1'),
  )
  return length < 0 ? -1 : from + length
}

/** By its first bytes alone, as most logs have no prefix. */
function mayBePrefixed(bytes: Uint8Array, from: number): boolean {
  const first = bytes[from]!
  if (first === LESS) return true
  if (first >= 65 && first <= 90) return bytes[from + 3] === SPACE
  if (first < 48 || first > 57) return false
  return bytes[from + 4] === MINUS || bytes[from + 1] === SPACE || bytes[from + 2] === SPACE
}
