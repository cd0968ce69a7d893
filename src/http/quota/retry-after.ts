import { type Fields, LONGEST, readDecimal } from './field-values.js'
import { readAge } from './http-date.js'
import { readTime } from './reset.js'

/**
 * How long an answer asks to wait: `Retry-After` in seconds or as an HTTP-date (RFC 9110 10.2.3), or as other times are written, or
 * the finer `retry-after-ms` of OpenAI and Azure.
 *
 * @param wallNow ms since 1970; used if the answer has no Date
 * @returns ms, from 0 to a leap year; undefined if it does not say
 */
export function readRetryAfter(fields: Fields, wallNow: number): number | undefined {
  const ms = readDecimal(fields('retry-after-ms')) ?? readDecimal(fields('x-ms-retry-after-ms'))
  const wait = ms === undefined ? readTime(fields('retry-after'), fields, wallNow)?.reset : ms - readAge(fields)
  return wait === undefined ? undefined : Math.min(Math.max(0, wait), LONGEST)
}
