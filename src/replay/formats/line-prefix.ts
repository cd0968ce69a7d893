/**
 * What others put before each line of a log: syslog and `journalctl` a time, the host and a tag; Docker and Kubernetes the
 * name of the container or a time. A line may have several of these, one after the other.
 */

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
const SYSLOG = `${PRIORITY}(?:${TIME} (?:\\S{1,255} )?${TAG}|\\d{1,2} ${ISO_TIME} ${FIELDS})`
/** `docker compose logs`: `web-1  | `, and `docker service logs`: `web.1.x7k@node    | `. */
const COMPOSE = '[\\w.@-]{1,128} {1,64}\\| ?'
/** `kubectl logs --prefix`. */
const POD = '\\[pod/[^\\]\\s]{1,255}\\] '
/** The files of Kubernetes (CRI), or `docker logs -t`, which has a time only. That stands before an address or a bracket. */
const CONTAINER = `${ISO_TIME} (?:std(?:out|err) [FP] |(?=[\\da-fA-F.:]{3,45} |[[{]))`

const PREFIX = new RegExp([SYSLOG, COMPOSE, POD, CONTAINER].join('|'), 'y')
/** The beginnings of prefixes. No line of a known format begins like this. */
const BEGINNING = new RegExp(
  `<\\d{1,3}>|${MONTH} [ \\d]?\\d |(?:\\d{1,2} )?\\d{4}-\\d\\d-\\d\\d(?:[T ]|$)|${FULL_TIME} |${UNIX_TIME} |${MONOTONIC_TIME} `,
  'y',
)

const LONGEST = 1_024
const LONGEST_NAME = 128
const TAB = 9
const SPACE = 32
const MINUS = 45
const LESS = 60
const OPEN = 91
const PIPE = 124
const BYTE_ORDER_MARK = [0xef, 0xbb, 0xbf]

/** The length of the prefixes; 0: there is none; -1: what begins like one is of no known form. */
export function prefixLength(text: string): number {
  let at = 0
  for (PREFIX.lastIndex = 0; PREFIX.test(text); ) at = PREFIX.lastIndex
  BEGINNING.lastIndex = at
  return BEGINNING.test(text) ? -1 : at
}

/** The place after the prefixes; -1: the line begins like one but is of no known form. */
export function bodyStart(bytes: Uint8Array, from: number, to: number): number {
  if (!mayBePrefixed(bytes, from, to)) return from
  const length = prefixLength(
    Buffer.from(bytes.buffer, bytes.byteOffset + from, Math.min(to - from, LONGEST)).toString('latin1'),
  )
  return length < 0 ? -1 : from + length
}

/** The place of the first character: after blanks, and after the mark with which some programs begin a file. */
export function textStart(bytes: Uint8Array, from: number, to: number): number {
  let at = BYTE_ORDER_MARK.every((byte, index) => bytes[from + index] === byte) ? from + BYTE_ORDER_MARK.length : from
  while (at < to && (bytes[at] === SPACE || bytes[at] === TAB)) at += 1
  return at
}

/** A quick check of the first bytes, because most logs have no prefix. */
function mayBePrefixed(bytes: Uint8Array, from: number, to: number): boolean {
  const first = bytes[from]!
  if (first === LESS || first === OPEN || bytes[from + 3] === SPACE) return true
  // An address has at most three digits in a row.
  if (isDigit(first) && isDigit(bytes[from + 3]!) && isDigit(bytes[from + 4]!)) return true
  if (bytes[from + 4] === MINUS || bytes[from + 1] === SPACE || bytes[from + 2] === SPACE) return true
  let at = from
  for (const end = Math.min(to, from + LONGEST_NAME); at < end && bytes[at] !== SPACE; ) at += 1
  return bytes[at + 1] === SPACE || bytes[at + 1] === PIPE
}

function isDigit(byte: number): boolean {
  return byte >= 48 && byte <= 57
}

/** Whether journalctl wrote the line about itself: `-- Boot 3a9c --`. */
export function isRemark(bytes: Uint8Array, from: number): boolean {
  return bytes[from] === MINUS && bytes[from + 1] === MINUS && bytes[from + 2] === SPACE
}
