import { fieldsOf } from '../http/quota/field-values.js'
import { namedPause } from '../http/quota/pause-rule.js'

/** ms. Sums of periods may be this much too long; do not round up for it. */
const ROUNDING = 1e-6

/**
 * The wait to tell a caller, in ms: whole, and 1 ms longer than needed, because `setTimeout` may fire that much early.
 * 0 stays 0: the caller may try again at once.
 */
export function retryAfter(ms: number): number {
  return ms > 0 ? Math.ceil(ms - ROUNDING) + 1 : 0
}

/** The headers of an answer, as HTTP clients have them. */
export type AnswerHeaders =
  | {
      /** The value of a header; null or undefined: there is none. */
      get(name: string): unknown
    }
  | Readonly<Record<string, string | number | readonly string[] | null | undefined>>

/**
 * How long an answer asks to wait, for the `retry` of `createShaper`: its `Retry-After`, or the time until a limit that is used up
 * begins anew.
 *
 * @returns ms, whole and enough; undefined: it does not say, or there are no headers
 */
export function retryAfterOf(headers: AnswerHeaders | null | undefined): number | undefined {
  if (headers === null || headers === undefined) return undefined
  const { get } = headers
  const fields =
    typeof get === 'function' ? (name: string) => textOf(get.call(headers, name)) : fieldsOf(lowered(headers))
  const ms = namedPause(fields, Date.now())
  return ms === undefined ? undefined : retryAfter(ms)
}

function textOf(value: unknown): string | undefined {
  return value === undefined || value === null ? undefined : String(value)
}

function lowered(headers: object): object {
  const entries = Object.entries(headers).map(([name, value]) => {
    return [name.toLowerCase(), Array.isArray(value) ? value : textOf(value)]
  })
  return Object.fromEntries(entries)
}
