/** Parsers of simple values, for the file (schema/values.ts) and for the options of the library. They throw RangeErrors. */
import { parseDuration, parseRate, rateFault, rateRemedy } from '../core/units.js'
import { quote, type RefusedValue, wants } from './messages.js'

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

/** A header name, lower-cased. */
export function headerName(value: string): string {
  if (!TOKEN.test(value)) throw new RangeError(`${quote(value)} is not a header name; use e.g. "x-api-key"`)
  return value.toLowerCase()
}

/** A cookie name. */
export function cookieName(value: string): string {
  if (!TOKEN.test(value)) throw new RangeError(`${quote(value)} is not a cookie name; use e.g. "session"`)
  return value
}
