import { type Fields, LONGEST, readDecimal } from './field-values.js'
import { readAge } from './http-date.js'
import { readQuotas } from './quota-fields.js'
import { readTime } from './reset.js'

/** ms. The least growth of a running pause by answers. */
export const PAUSE_STEP = 100
/** ms. The longest pause where no rule sets one. After it one request asks again. */
export const LONGEST_PAUSE = 60_000

export interface PauseRule {
  readonly status: readonly number[]
  /** ms, if the answer names no time. 0: no pause then. */
  readonly default: number
  /** ms */
  readonly max: number
}

/**
 * Whether an answer has one of these statuses. GitHub refuses with 403 where others use 429: such a 403 counts as 429, too. It
 * has `Retry-After` (the secondary limits) or says that a quota is used up (the primary one). Any other 403 is a 403.
 */
export function hasStatus(statuses: readonly number[], status: number, fields: Fields): boolean {
  if (statuses.includes(status)) return true
  if (status !== 403 || !statuses.includes(429)) return false
  // What is asked does not depend on the time.
  return readRetryAfter(fields, 0) !== undefined || readQuotas(fields, 0).some(({ remaining = 1 }) => remaining < 1)
}

/**
 * How long to send nothing after an answer: as long as it says, else the rule's default. At most the rule's `max`.
 *
 * @param wallNow ms since 1970
 * @returns ms; 0: no pause
 */
export function pauseAfter(rule: PauseRule, status: number, fields: Fields, wallNow: number): number {
  if (!hasStatus(rule.status, status, fields)) return 0
  return Math.min(namedPause(fields, wallNow) ?? rule.default, rule.max)
}

/** How long an answer says to wait: its Retry-After, else the end of the window whose quota is used up. ms; undefined: it does not. */
export function namedPause(fields: Fields, wallNow: number): number | undefined {
  return readRetryAfter(fields, wallNow) ?? untilReset(fields, wallNow)
}

/**
 * How long a pause lasts if an answer asks for `ms`. A running one grows in steps: each answer names a slightly later end,
 * and each growth costs a plan for all that wait.
 *
 * @param left ms that the running pause still lasts; 0: there is none
 * @returns ms; `left` if that is enough
 */
export function growPause(left: number, ms: number): number {
  if (ms <= left) return left
  return left > 0 ? left + Math.ceil((ms - left) / PAUSE_STEP) * PAUSE_STEP : ms
}

function untilReset(fields: Fields, wallNow: number): number | undefined {
  let longest: number | undefined
  for (const { remaining = 0, reset = 0 } of readQuotas(fields, wallNow)) {
    // A `reset` of 0 is rounded. Do not take it for "go on at once": use the rule's default.
    if (remaining < 1 && reset > (longest ?? 0)) longest = reset
  }
  return longest
}

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
