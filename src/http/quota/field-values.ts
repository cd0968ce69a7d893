import { ownValue } from '../../core/structures/own-value.js'
/** Types and helpers that the readers of quota headers share. */

/** Returns a field of an answer by its lower-case name. Several lines are joined with `', '`. */
export type Fields = (name: string) => string | undefined

/** Reads headers as undici has parsed them, by lower-case name. Values of one name are joined (RFC 9110 5.3). */
export function fieldsOf(headers: object): Fields {
  const values = headers as Readonly<Record<string, string | string[] | undefined>>
  return name => {
    const value = ownValue(values, name)
    return Array.isArray(value) ? value.join(', ') : value
  }
}

/** What an upstream may limit separately. Buckets with these names follow these limits. */
export const LIMITED = ['requests', 'tokens'] as const
export type Limited = (typeof LIMITED)[number]

/**
 * The buckets, by name, that follow an upstream's limit: those called like it (`requests`, or `openai.requests`). A limit
 * on requests without such a bucket holds for all but those of tokens.
 *
 * @param usual the buckets that it may hold for if none is called like it
 */
export function followersOf(limited: Limited, names: readonly string[], usual = names): readonly string[] {
  const called = (what: Limited) => (name: string) => name === what || name.endsWith(`.${what}`)
  const own = names.filter(called(limited))
  if (limited === 'tokens' || own.length > 0) return own
  return usual.filter(name => !called('tokens')(name))
}

/** One limit, as an upstream announces it. It counts requests, or what `bucket` says. */
export interface Quota {
  /** What it limits, where its field names say so. Absent: requests. */
  readonly bucket?: Limited
  /** Requests per window, at least 1. */
  readonly limit: number | undefined
  /** ms, as declared. */
  readonly window: number | undefined
  /** Requests left in this window. It may be a fraction. */
  readonly remaining: number | undefined
  /** ms until the window ends. */
  readonly reset: number | undefined
  /** ms by which `reset` may be too long: 1_000 if it is in whole seconds. */
  readonly grain: number
}

/** ms. A longer wait or window (above a leap year) is taken for a mistake. */
export const LONGEST = 366 * 86_400_000
/** Longer texts are no numbers or times. */
const MOST_DIGITS = 40
const DECIMAL = /^\d+(?:\.\d*)?$|^\.\d+$/

/** Reads a decimal number of 0 or more, without sign or exponent. */
export function readDecimal(text: string | undefined): number | undefined {
  const trimmed = trimValue(text)
  return trimmed !== undefined && DECIMAL.test(trimmed) ? Number(trimmed) : undefined
}

/** The text without surrounding space. Undefined if it is too long to be a number or a time. */
export function trimValue(text: string | undefined): string | undefined {
  const trimmed = text === undefined || text.length > 2 * MOST_DIGITS ? undefined : text.trim()
  return trimmed !== undefined && trimmed.length <= MOST_DIGITS ? trimmed : undefined
}
