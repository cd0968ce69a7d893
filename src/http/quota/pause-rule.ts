import type { Fields } from './field-values.js'
import { readQuota } from './quota-fields.js'
import { readRetryAfter } from './retry-after.js'

/** ms. The least growth of a running pause by answers. */
export const PAUSE_STEP = 100

/** Which answers cause a pause, and how long. */
export interface PauseRule {
  readonly status: readonly number[]
  /** ms, if the answer names no time. 0: no pause then. */
  readonly default: number
  /** ms */
  readonly max: number
}

/**
 * How long to send nothing after an answer: its Retry-After, else the end of the window whose quota is used up, else
 * the rule's default. At most the rule's `max`.
 *
 * @param wallNow ms since 1970
 * @returns ms; 0: no pause
 */
export function pauseAfter(rule: PauseRule, status: number, fields: Fields, wallNow: number): number {
  if (!rule.status.includes(limitStatus(status, fields, wallNow))) return 0
  return Math.min(readRetryAfter(fields, wallNow) ?? untilReset(fields, wallNow) ?? rule.default, rule.max)
}

/**
 * The status of an answer, or 429 for a 403 that means the same: GitHub answers so, with a Retry-After or with a quota that is used up.
 *
 * @param wallNow ms since 1970
 */
export function limitStatus(status: number, fields: Fields, wallNow: number): number {
  if (status !== 403) return status
  const isLimit = readRetryAfter(fields, wallNow) !== undefined || (readQuota(fields, wallNow)?.remaining ?? 1) < 1
  return isLimit ? 429 : status
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
  const quota = readQuota(fields, wallNow)
  // A `reset` of 0 is rounded. Do not take it for "go on at once": use the rule's default.
  return (quota?.remaining ?? 0) < 1 && quota?.reset !== 0 ? quota?.reset : undefined
}
