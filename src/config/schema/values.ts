/** The simple values of the file: their form, their name in messages, and their parsed type. */
import { METHODS } from 'node:http'
import * as z from 'zod'
import { LAST_PRIORITY } from '../../core/priority.js'
import { parseDuration, parseRate, rateRemedy } from '../../core/units.js'
import { either, nearest, quote, type RefusedValue, unknownKey, wants } from '../messages.js'

const LONGEST_TIMER_MS = 2 ** 31 - 1
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/
export const NAME = /^[A-Za-z0-9_.-]{1,64}$/
export const NAME_REMEDY = 'use 1 to 64 letters, digits, "_", "." or "-"'

/** Parses a value of the file. The message of a RangeError from `parse` becomes that of the issue. */
export function read<S extends z.ZodType, O>(schema: S, parse: (value: z.output<S>) => O) {
  return schema.transform((value, ctx): O => {
    try {
      return parse(value)
    } catch (error) {
      if (!(error instanceof RangeError)) throw error
      ctx.issues.push({ code: 'custom', message: error.message, input: value })
      return z.NEVER
    }
  })
}

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

/** An object. Each unknown key is one line of the message. `complain` is for a value that is no object. */
export function object<S extends z.core.$ZodLooseShape>(shape: S, noun: string, remedy: string, complain = wants) {
  const known = Object.keys(shape)
  return z.strictObject(shape, {
    error: issue =>
      issue.code === 'unrecognized_keys'
        ? issue.keys.map(key => unknownKey(key, known)).join('\n')
        : complain(noun, remedy)(issue),
  })
}

/** One of a few words. */
export function oneOf<const T extends readonly string[]>(words: T, noun: string) {
  return z.enum(words, { error: wants(noun, `use ${either(words)}`) })
}

const durationError = ({ input }: RefusedValue) =>
  typeof input === 'number'
    ? `${input} has no unit; write e.g. "${input}s" or "${input}ms"`
    : wants('a duration', 'use e.g. "250ms", "10s", "1m"')({ input })
const durationText = z.string({ error: durationError })

export const rateError = (refused: RefusedValue) => wants('a rate', rateRemedy(refused.input))(refused)
export const rate = read(z.union([z.string(), z.number()], { error: rateError }), withMessage(parseRate, rateError))

const readDuration = withMessage(parseDuration, durationError)

export const duration = read(durationText, readDuration)

/** A duration above 0. */
export const span = read(durationText, text => {
  const ms = readDuration(text)
  if (ms === 0) throw new RangeError(`${quote(text)} is not above 0; use e.g. "10s"`)
  return ms
})

/** A duration above 0 that one timer can hold. */
export const timeout = read(durationText, text => {
  const ms = readDuration(text)
  if (ms === 0) throw new RangeError(`${quote(text)} is not above 0; use e.g. "10s"`)
  return timerLength(text, ms)
})

/** A duration that one timer can hold. 0 is allowed. */
export const timerDuration = read(durationText, text => timerLength(text, readDuration(text)))

/** One of a few words, or a duration. A text without a digit is hardly meant as a duration. */
export function wordOr<const T extends readonly string[]>(words: T, length: typeof duration, error: typeof rateError) {
  return z.union([z.enum(words), z.string({ error }).regex(/\d/, { error }).pipe(length)], { error })
}

function timerLength(text: string, ms: number): number {
  if (ms > LONGEST_TIMER_MS) throw new RangeError(`${quote(text)} is longer than a timer can run; use at most "24d"`)
  return ms
}

/** A finite number above 0. */
export function positive(noun: string, remedy: string) {
  const error = wants(noun, remedy)
  return z.number({ error }).gt(0, { error })
}

/** A whole number within bounds. */
export function whole(noun: string, remedy: string, min: number, max = Number.MAX_SAFE_INTEGER) {
  const error = wants(noun, remedy)
  return z.int({ error }).min(min, { error }).max(max, { error })
}

/** As in RFC 9218: 0 leaves first. */
export const priority = whole('a priority', 'use a whole number from 0 (first) to 7 (last)', 0, LAST_PRIORITY)

/** A number of bytes, at most 1 GiB. */
export function bytes(noun: string, remedy: string) {
  return whole(noun, remedy, 0, 2 ** 30)
}

export const flag = z.boolean({ error: wants('true or false', 'write true or false, without quotes') })

export function text(noun: string, remedy: string) {
  const error = wants(noun, remedy)
  return z.string({ error }).min(1, { error })
}

const nameError = wants('a name', NAME_REMEDY)
export const name = z.string({ error: nameError }).regex(NAME, { error: nameError })

/** A header name, lower-cased. @throws RangeError */
export function headerName(value: string): string {
  if (!TOKEN.test(value)) throw new RangeError(`${quote(value)} is not a header name; use e.g. "x-api-key"`)
  return value.toLowerCase()
}

/** A cookie name. @throws RangeError */
export function cookieName(value: string): string {
  if (!TOKEN.test(value)) throw new RangeError(`${quote(value)} is not a cookie name; use e.g. "session"`)
  return value
}

/** A method, upper-cased. Others than those of Node's parser could never match. @throws RangeError */
export function methodName(value: string): string {
  const method = value.toUpperCase()
  if (METHODS.includes(method)) return method
  const near = nearest(method, METHODS)
  throw new RangeError(
    `${quote(value)} is not an HTTP method; ${near ? `did you mean "${near}"?` : 'use e.g. "GET", "POST"'}`,
  )
}

/** The form of a bearer token (RFC 6750 2.1). */
const B64TOKEN = /^[A-Za-z0-9\-._~+/]+=*$/

const SECRET = {
  error: `not a token; use letters, digits and -._~+/ without spaces, e.g. "\${SHAPER_TOKEN}"`,
}

/** A secret that travels in a header. */
export const token = z.string(SECRET).regex(B64TOKEN, SECRET)
