import { type Fields, LONGEST, readDecimal, trimValue } from './field-values.js'

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec']
const TIME = '(?<hour>[01]\\d|2[0-3]):(?<minute>[0-5]\\d):(?<second>[0-5]\\d|60)'
const SHORT_DAY = '(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)'
const LONG_DAY = '(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day'

/** IMF-fixdate, and the obsolete forms of RFC 850 and of C's asctime. */
const FORMS = [
  `${SHORT_DAY}, (?<day>\\d\\d) (?<month>[A-Z][a-z]{2}) (?<year>\\d{4}) ${TIME} GMT`,
  `${LONG_DAY}, (?<day>\\d\\d)-(?<month>[A-Z][a-z]{2})-(?<year>\\d\\d) ${TIME} GMT`,
  `${SHORT_DAY} (?<month>[A-Z][a-z]{2}) (?<day>[ \\d]\\d) ${TIME} (?<year>\\d{4})`,
].map(form => new RegExp(`^${form}$`))

/**
 * Reads an HTTP-date in any of its three forms (RFC 9110 5.6.7).
 *
 * @param wallNow ms since 1970; a year of two digits is at most 50 years after it
 * @returns ms since 1970
 */
export function readHttpDate(text: string | undefined, wallNow: number): number | undefined {
  const trimmed = trimValue(text)
  if (trimmed === undefined) return undefined
  for (const form of FORMS) {
    const parts = form.exec(trimmed)?.groups
    if (parts !== undefined) return toTime(parts, wallNow)
  }
  return undefined
}

function toTime(parts: Record<string, string>, wallNow: number): number | undefined {
  const month = MONTHS.indexOf(parts.month!)
  const day = Number(parts.day)
  const year = parts.year!.length === 2 ? fullYear(Number(parts.year), wallNow) : Number(parts.year)
  const midnight = new Date(0).setUTCFullYear(year, month, day)
  const date = new Date(midnight)
  if (month < 0 || date.getUTCMonth() !== month || date.getUTCDate() !== day) return undefined
  return midnight + ((Number(parts.hour) * 60 + Number(parts.minute)) * 60 + Number(parts.second)) * 1_000
}

function fullYear(twoDigits: number, wallNow: number): number {
  const latest = new Date(wallNow).getUTCFullYear() + 50
  return latest - ((((latest - twoDigits) % 100) + 100) % 100)
}

/** For how long a cache had an answer (RFC 9111 5.1), in ms. Of its waits so much is over. */
export function readAge(fields: Fields): number {
  return Math.min((readDecimal(fields('age')) ?? 0) * 1_000, LONGEST)
}

/**
 * The present time by the server's own clock (its Date field), so that a difference of clocks does not matter.
 * Date is in whole seconds, rounded down.
 *
 * @returns `at` in ms since 1970, and `grain`, the ms by which it may be too early
 */
export function readAnswerTime(fields: Fields, wallNow: number): { readonly at: number; readonly grain: number } {
  const date = readHttpDate(fields('date'), wallNow)
  return date === undefined ? { at: wallNow, grain: 0 } : { at: date + readAge(fields), grain: 1_000 }
}
