import { type Fields, LONGEST, readDecimal } from './field-values.js'
import { readAnswerTime, readHttpDate } from './http-date.js'

/**
 * How long an answer asks to wait: `Retry-After` in seconds or as an HTTP-date (RFC 9110 10.2.3), or the finer
 * `retry-after-ms` of OpenAI and Azure.
 *
 * @param wallNow ms since 1970; used if the answer has no Date
 * @returns ms, from 0 to a leap year; undefined if it does not say
 */
export function readRetryAfter(fields: Fields, wallNow: number): number | undefined {
  const ms = readDecimal(fields('retry-after-ms'))
  if (ms !== undefined) return Math.min(ms, LONGEST)
  const text = fields('retry-after')
  // Proxies may add lines. The longest counts.
  const all = text?.split(',').map(part => readDecimal(part.trim())) ?? []
  const seconds = all.some(each => each === undefined) ? undefined : Math.max(...(all as number[]))
  if (seconds !== undefined && seconds >= 0) return Math.min(seconds * 1_000, LONGEST)
  const date = readHttpDate(text, wallNow)
  if (date === undefined) return undefined
  return Math.min(Math.max(0, date - readAnswerTime(fields, wallNow).at), LONGEST)
}
