/** The prefix that syslog, or `journalctl`, puts before each line: its time, the host and a tag. */

const MONTH = '(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)'
/** RFC 3164, also with a year or a fraction: `Feb  3 10:00:00`. */
const OLD_TIME = `${MONTH} [ \\d]?\\d (?:\\d{4} )?\\d\\d:\\d\\d:\\d\\d(?:\\.\\d{1,9})?`
const ISO_TIME = '\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(?:[.,]\\d{1,9})?(?:Z|[+-]\\d\\d:?\\d\\d)'
/** journalctl `-o short-full`, `short-unix` and `short-monotonic`. */
const WEEKDAY = '(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)'
const FULL_TIME = `${WEEKDAY} \\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d(?:\\.\\d{1,9})? [A-Z+\\-\\d:]{1,9}`
const UNIX_TIME = '\\d{9,11}\\.\\d{1,9}'
const MONOTONIC_TIME = '\\[ {0,11}\\d{1,12}\\.\\d{1,9}\\]'
const TIME = `(?:${[OLD_TIME, ISO_TIME, FULL_TIME, UNIX_TIME, MONOTONIC_TIME].join('|')})`
const PRIORITY = '(?:<\\d{1,3}>)?'
/** `nginx:` or `nginx[12]:`. */
const TAG = '[^\\s:[\\]]{1,64}(?:\\[[^\\s\\]]{0,32}\\])?:(?: +|(?=\\{))'
/** RFC 5424: host, program, process, kind of message, and data in brackets. */
const FIELDS = '(?:\\S{1,255} ){4}(?:-|(?:\\[(?:[^\\]"\\\\]|\\\\.|"(?:[^"\\\\]|\\\\.)*")*\\])+) (?:\\xef\\xbb\\xbf)?'

const PREFIX = new RegExp(`^${PRIORITY}(?:${TIME} (?:\\S{1,255} )?${TAG}|\\d{1,2} ${ISO_TIME} ${FIELDS})`)
/** The beginnings of prefixes. No line of a known format begins like this. */
const BEGINNING = new RegExp(
  `^(?:<\\d{1,3}>|${MONTH} [ \\d]?\\d |(?:\\d{1,2} )?\\d{4}-\\d\\d-\\d\\d(?:[T ]|$)|${FULL_TIME} |${UNIX_TIME} |${MONOTONIC_TIME} )`,
)

/** The longest prefix, in characters. */
const LONGEST = 1_024

const LESS = 60
const SPACE = 32
const MINUS = 45
const OPEN = 91

/** The length of the prefix; 0: there is none; -1: the line begins like one but is of no known form. */
export function prefixLength(text: string): number {
  const [prefix] = PREFIX.exec(text) ?? []
  return prefix?.length ?? (BEGINNING.test(text) ? -1 : 0)
}

/** The place after the prefix; -1: the line begins like a prefix but is of no known form. */
export function bodyStart(bytes: Uint8Array, from: number, to: number): number {
  if (!mayBePrefixed(bytes, from)) return from
  const length = prefixLength(
    Buffer.from(bytes.buffer, bytes.byteOffset + from, Math.min(to - from, LONGEST)).toString('latin1'),
  )
  return length < 0 ? -1 : from + length
}

/** A quick check of the first bytes, because most logs have no prefix. */
function mayBePrefixed(bytes: Uint8Array, from: number): boolean {
  const first = bytes[from]!
  if (first === LESS || first === OPEN) return true
  if (first >= 65 && first <= 90) return bytes[from + 3] === SPACE
  if (!isDigit(first)) return false
  // An address has at most three digits in a row.
  if (isDigit(bytes[from + 3]!) && isDigit(bytes[from + 4]!)) return true
  return bytes[from + 4] === MINUS || bytes[from + 1] === SPACE || bytes[from + 2] === SPACE
}

function isDigit(byte: number): boolean {
  return byte >= 48 && byte <= 57
}

/** Whether journalctl wrote the line about itself: `-- Boot 3a9c --`. */
export function isRemark(bytes: Uint8Array, from: number): boolean {
  return bytes[from] === MINUS && bytes[from + 1] === MINUS && bytes[from + 2] === SPACE
}
