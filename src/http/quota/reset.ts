import { type Fields, LONGEST, readDecimal, trimValue } from './field-values.js'
import { readAge, readAnswerTime, readHttpDate } from './http-date.js'

/** A number from here on is not a wait in seconds but seconds since 1970 (here: the year 2001). */
const EPOCH_SECONDS = 1e9
/** A number from here on is milliseconds since 1970 (here: the year 1973). */
export const EPOCH_MS = 1e11
const UNIT_MS = [86_400_000, 3_600_000, 60_000, 1_000, 1]
const DURATION = /^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?$/
/** RFC 3339, and ISO 8601 without a zone: then it is UTC. */
const TIMESTAMP = /^(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?(?: ?(?:[Zz]|UTC|GMT)| ?([+-]\d\d):?(\d\d))?$/
/** Between the lines of a field. Not the comma in an HTTP-date. */
const COMMA = /(?<![A-Z][a-z]{2,8}),/

/** In ms. */
export interface QuotaReset {
  readonly reset: number
  /** How much too long `reset` may be. */
  readonly grain: number
}

/**
 * Reads the time until a window ends. It understands seconds, seconds or ms since 1970 (told apart by size), a duration
 * such as `6m0s` or `120ms`, a time of ISO 8601, and an HTTP-date. Absolute times are compared with the answer's own
 * Date. Proxies may add lines: the longest counts.
 *
 * @param wallNow ms since 1970
 * @returns undefined if it says nothing that makes sense
 */
export function readReset(text: string | undefined, fields: Fields, wallNow: number): QuotaReset | undefined {
  const found = readTime(text, fields, wallNow)
  return found !== undefined && found.reset <= LONGEST ? found : undefined
}

/** As `readReset`, however long it is. */
export function readTime(text: string | undefined, fields: Fields, wallNow: number): QuotaReset | undefined {
  const all = text?.split(COMMA).map(line => readLine(trimValue(line), fields, wallNow)) ?? []
  const readable = all.filter(each => each !== undefined)
  return readable.sort((one, other) => other.reset - one.reset)[0]
}

function readLine(text: string | undefined, fields: Fields, wallNow: number): QuotaReset | undefined {
  if (text === undefined || text === '') return undefined
  const wait = readWait(text)
  if (wait !== undefined) return { ...wait, reset: Math.max(0, wait.reset - readAge(fields)) }
  const end = readEnd(text, wallNow)
  if (end === undefined) return undefined
  const answered = readAnswerTime(fields, wallNow)
  return { reset: Math.max(0, end.at - answered.at), grain: end.grain + answered.grain }
}

function readWait(text: string): QuotaReset | undefined {
  const seconds = readDecimal(text)
  if (seconds !== undefined)
    return seconds < EPOCH_SECONDS ? { reset: seconds * 1_000, grain: grainOfSeconds(text) } : undefined
  const parts = DURATION.exec(text)?.slice(1)
  if (parts === undefined) return undefined
  const reset = parts.reduce((sum, part, unit) => sum + Number(part ?? 0) * UNIT_MS[unit]!, 0)
  return { reset, grain: parts[4] === undefined ? grainOfSeconds(parts[3] ?? '') : 1 }
}

/** A moment in ms since 1970. */
function readEnd(text: string, wallNow: number): { readonly at: number; readonly grain: number } | undefined {
  const number = readDecimal(text)
  if (number !== undefined)
    return number < EPOCH_MS ? { at: number * 1_000, grain: grainOfSeconds(text) } : { at: number, grain: 1 }
  const [, day, time, fraction = '', hours = '+00', minutes = '00'] = TIMESTAMP.exec(text) ?? []
  if (day === undefined) {
    const at = readHttpDate(text, wallNow)
    return at === undefined ? undefined : { at, grain: 1_000 }
  }
  const at = Date.parse(`${day}T${time}${fraction.slice(0, 4)}${hours}:${minutes}`)
  return Number.isNaN(at) ? undefined : { at, grain: grainOfSeconds(fraction) }
}

/** One unit of the last decimal place, in ms. */
function grainOfSeconds(text: string): number {
  const point = text.indexOf('.')
  return point < 0 ? 1_000 : Math.max(1, 1_000 / 10 ** (text.length - point - 1))
}
