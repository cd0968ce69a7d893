import type { Fields } from './field-values.js'
import { readQuota } from './quota-fields.js'
import { readRetryAfter } from './retry-after.js'

/** When an answer stops everything behind it, and for how long. */
export interface PauseRule {
  readonly status: readonly number[]
  /** ms, where the answer does not say; 0: only where it does. */
  readonly default: number
  /** ms */
  readonly max: number
}

/**
 * How long to send nothing after an answer: its Retry-After, else the end of the window whose quota is used up, else
 * the rule's default.
 *
 * @param wallNow ms since 1970
 * @returns ms; 0: no pause
 */
export function pauseAfter(rule: PauseRule, status: number, fields: Fields, wallNow: number): number {
  if (!rule.status.includes(status)) return 0
  return Math.min(readRetryAfter(fields, wallNow) ?? untilReset(fields, wallNow) ?? rule.default, rule.max)
}

function untilReset(fields: Fields, wallNow: number): number | undefined {
  const quota = readQuota(fields, wallNow)
  // A window that ends within the second it is told in is no reason to go on at once.
  return (quota?.remaining ?? 0) < 1 && quota?.reset !== 0 ? quota?.reset : undefined
}
