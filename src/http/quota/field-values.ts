/** The words of this room: what is asked of an answer, and what comes of it. */

/** A field of an answer by its lower-case name; several lines of it joined with `', '`. */
export type Fields = (name: string) => string | undefined

/** Headers as undici has parsed them, by their lower-case names; values of one name are joined (RFC 9110 5.3). */
export function fieldsOf(headers: object): Fields {
  const values = headers as Readonly<Record<string, string | string[] | undefined>>
  return name => {
    const value = values[name]
    return Array.isArray(value) ? value.join(', ') : value
  }
}

/** What an upstream says of one limit on the number of requests. */
export interface Quota {
  /** Requests per window, at least 1. */
  readonly limit: number | undefined
  /** ms, as declared. */
  readonly window: number | undefined
  /** Requests left in this window; may be a fraction. */
  readonly remaining: number | undefined
  /** ms until the window ends. */
  readonly reset: number | undefined
  /** ms that `reset` may be too long by: 1_000 where it is in whole seconds. */
  readonly grain: number
}

/** ms: a wait or a window beyond a leap year is a mistake. */
export const LONGEST = 366 * 86_400_000

/** No number or time that is meant is longer than this. */
const MOST_DIGITS = 40

const DECIMAL = /^\d+(?:\.\d*)?$|^\.\d+$/

/** A decimal number of 0 or more, without sign or exponent. */
export function readDecimal(text: string | undefined): number | undefined {
  const trimmed = trimValue(text)
  return trimmed !== undefined && DECIMAL.test(trimmed) ? Number(trimmed) : undefined
}

/** Without the space around it; undefined where it is too long to be a number or a time. */
export function trimValue(text: string | undefined): string | undefined {
  const trimmed = text === undefined || text.length > 2 * MOST_DIGITS ? undefined : text.trim()
  return trimmed !== undefined && trimmed.length <= MOST_DIGITS ? trimmed : undefined
}
