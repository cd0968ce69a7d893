/** The simple values of the file: their form, their name in messages, and their parsed type. */
import { METHODS } from 'node:http'
import * as z from 'zod'
import { LAST_PRIORITY } from '../../core/priority.js'
import { METHOD } from '../../http/method.js'
import { either, nearest, quote, unknownKey, wants } from '../messages.js'
import {
  durationError,
  NAME,
  NAME_REMEDY,
  rateError,
  readDuration,
  readRate,
  readSpan,
  timerLength,
} from '../read-values.js'

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

const durationText = z.string({ error: durationError })

export const rate = read(z.union([z.string(), z.number()], { error: rateError }), readRate)

export const duration = read(durationText, readDuration)

/** A duration above 0. */
export const span = read(durationText, readSpan)

/** A duration above 0 that one timer can hold. */
export const timeout = read(durationText, text => timerLength(text, readSpan(text)))

/** A duration that one timer can hold. 0 is allowed. */
export const timerDuration = read(durationText, text => timerLength(text, readDuration(text)))

/** One of a few words, or a duration. A text without a digit is hardly meant as a duration. */
export function wordOr<const T extends readonly string[]>(words: T, length: typeof duration, error: typeof rateError) {
  return z.union([z.enum(words), z.string({ error }).regex(/\d/, { error }).pipe(length)], { error })
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

/** A method, upper-cased. One that resembles a usual one is a misspelling of that. @throws RangeError */
export function methodName(value: string): string {
  const method = value.toUpperCase()
  const near = METHODS.includes(method) ? undefined : nearest(method, METHODS)
  if (METHOD.test(method) && near === undefined) return method
  throw new RangeError(
    `${quote(value)} is not an HTTP method; ${near ? `did you mean "${near}"?` : 'use e.g. "GET", "POST"'}`,
  )
}

/** The form of a bearer token (RFC 6750 2.1). */
const B64TOKEN = /^[A-Za-z0-9\-._~+/]+=*$/

const SECRET = {
  error: `not a token; use at least 16 letters, digits and -._~+/ without spaces, e.g. "\${SHAPER_TOKEN}" with the output of: openssl rand -hex 32`,
}

const TICKET_KEY = {
  error: `not a key; use at least 32 characters, e.g. "\${SHAPER_TICKET_KEY}" with the output of: openssl rand -base64 32`,
}

/** A secret that signs. The length of a secret is not in the schema for editors, as the name of a variable may be shorter. */
export const ticketKey = z.string(TICKET_KEY).refine(key => key.length >= 32, TICKET_KEY)

/** A secret that travels in a header. */
export const token = z
  .string(SECRET)
  .regex(B64TOKEN, SECRET)
  .refine(text => text.length >= 16, SECRET)
