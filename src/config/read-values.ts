/** Simple values, for the file and for the options of the library. What is printed parses to exactly the same number. */
import { orElse } from '../core/structures/or-else.js'
import { formatDuration, formatRate, parseDuration, parseRate, rateFault, rateRemedy } from '../core/units.js'
import { hint, quote, type RefusedValue, wants } from './messages.js'

const LONGEST_TIMER_MS = 2 ** 31 - 1
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/
export const NAME = /^[A-Za-z0-9_.-]{1,64}$/
export const NAME_REMEDY = 'use 1 to 64 letters, digits, "_", "." or "-"'

/** Replaces the message of a parser's error, so that no credentials are shown. */
function withMessage<I, O>(parse: (value: I) => O, say: (refused: RefusedValue) => string): (value: I) => O {
  return value => {
    try {
      return parse(value)
    } catch (cause) {
      throw new RangeError(say({ input: value }), { cause })
    }
  }
}

export const durationError = ({ input }: RefusedValue): string =>
  typeof input === 'number'
    ? `${input} has no unit; write e.g. "${input}s" or "${input}ms"`
    : wants('a duration', 'use e.g. "250ms", "10s", "1m"')({ input })

/** ms */
export const readDuration: (text: string) => number = withMessage(parseDuration, durationError)

/** A duration above 0, in ms. */
export function readSpan(text: string): number {
  const ms = readDuration(text)
  if (ms === 0) throw new RangeError(`${quote(text)} is not above 0; use e.g. "10s"`)
  return ms
}

/** A duration that one timer can hold, in ms. */
export function timerLength(text: string, ms: number): number {
  if (ms > LONGEST_TIMER_MS) throw new RangeError(`${quote(text)} is longer than a timer can run; use at most "24d"`)
  return ms
}

export function rateError({ input }: RefusedValue): string {
  const fault = rateFault(input)
  return fault === undefined ? wants('a rate', rateRemedy(input))({ input }) : `${quote(input)} ${fault}`
}

/** Cost units per ms. */
export const readRate: (value: string | number) => number = withMessage(parseRate, rateError)

export const ZONE_REMEDY = 'use the name of an IANA time zone, e.g. "Europe/Berlin"'

export function readTimeZone(text: string): string {
  // The name of a place follows its summer time. A distance to UTC does not.
  const isKnown = orElse(() => new Intl.DateTimeFormat('en', { timeZone: text }), undefined) !== undefined
  if (/^[A-Za-z]/.test(text) && isKnown) return text
  const near = hint(text, ['UTC', ...Intl.supportedValuesOf('timeZone')], '')
  throw new RangeError(`${quote(text)} is not a time zone; ${near.startsWith('did you') ? near : ZONE_REMEDY}`)
}

export function headerName(value: string): string {
  if (!TOKEN.test(value)) throw new RangeError(`${quote(value)} is not a header name; use e.g. "x-api-key"`)
  return value.toLowerCase()
}

export function cookieName(value: string): string {
  if (!TOKEN.test(value)) throw new RangeError(`${quote(value)} is not a cookie name; use e.g. "session"`)
  return value
}

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, ms: 1 } as const
const LONGEST_SPAN = 120

/** A rate in cost units per ms, written as by `formatRate` if that is exact, else like `"100/3d"`, else with all digits. */
export function exactRate(perMs: number): string {
  const exact = (text: string) => parsesTo(text, perMs, parseRate)
  const short = formatRate(perMs)
  if (exact(short)) return short
  for (let span = 1; span <= LONGEST_SPAN; span++) {
    for (const [unit, ms] of Object.entries(UNITS)) {
      const count = Math.round(perMs * ms * span)
      const text = `${decimal(count)}/${span === 1 ? '' : span}${unit}`
      if (exact(text)) return text
    }
  }
  const perSecond = `${decimal(perMs * UNITS.s)}/s`
  return exact(perSecond) ? perSecond : `${decimal(perMs)}/ms`
}

/** A duration in ms, written as by `formatDuration` if that is exact, else with all digits. */
export function exactDuration(ms: number): string {
  const short = formatDuration(ms)
  return parsesTo(short, ms, parseDuration) ? short : `${decimal(ms)}ms`
}

function parsesTo(text: string, value: number, parse: (text: string) => number): boolean {
  return orElse(() => parse(text) === value, false)
}

/** A number with all its digits and without an exponent, which rates and durations do not allow. */
function decimal(value: number): string {
  const [digits = '', exponent] = String(value).split('e')
  if (exponent === undefined) return digits
  const plain = digits.replace('.', '')
  const places = Number(exponent)
  return places < 0 ? `0.${'0'.repeat(-places - 1)}${plain}` : plain.padEnd(places + 1, '0')
}
