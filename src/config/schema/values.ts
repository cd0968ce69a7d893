/** The simple values of the file: their form, their name in messages, and their parsed type. */
import { METHODS } from 'node:http'
import * as z from 'zod'
import { LAST_PRIORITY } from '../../core/priority.js'
import { type JsonPath, parseJsonPath } from '../../http/figures/json-path.js'
import { METHOD } from '../../http/method.js'
import { either, nearest, quote, unknownKey, wants, wantsSecret } from '../messages.js'
import {
  durationError,
  exactDuration,
  exactRate,
  headerName,
  NAME,
  NAME_REMEDY,
  rateError,
  readDuration,
  readRate,
  readSpan,
  timerLength,
} from '../read-values.js'

export type Issues = Parameters<Parameters<typeof z.codec>[2]['decode']>[1]

/**
 * A value of the file, and how it is printed. The message of a RangeError becomes that of the issue. In a union a form refuses by
 * `NOT_THIS_FORM` what another form prints.
 *
 * @param print undefined: as it is
 */
export function read<S extends z.ZodType, O>(
  schema: S,
  parse: (value: z.output<S>, issues: Issues) => O,
  print: (value: O) => z.output<S> = value => value as z.output<S>,
) {
  return z.codec(schema, z.custom<O>(), { decode: orIssue(parse), encode: orIssue(print) })
}

/** Said to nobody: another form of the union prints the value. */
export const NOT_THIS_FORM = new RangeError('another form prints this')

function orIssue<I, O>(convert: (value: I, issues: Issues) => O) {
  return (value: I, issues: Issues): O => {
    try {
      // zod prints keys that are absent, too, and drops the issue.
      if (value === undefined) throw NOT_THIS_FORM
      return convert(value, issues)
    } catch (error) {
      if (!(error instanceof RangeError)) throw error
      issues.issues.push({ code: 'custom', message: error.message, input: value })
      return z.NEVER
    }
  }
}

/** Reports at a key of the object that is parsed. */
export function report(issues: Pick<Issues, 'issues'>, key: PropertyKey, message: string): void {
  issues.issues.push({ code: 'custom', path: [key], message, input: undefined })
}

/** At least one. @param example what to write in place of an empty list */
export function someOf<S extends z.ZodType>(item: S, error: typeof rateError, example: string) {
  return z.array(item, { error }).min(1, { error: `the list is empty; ${example}` })
}

/** One value in place of a list. */
export function alone<S extends z.ZodType>(item: S) {
  const only = ([one, ...others]: z.output<S>[]): z.output<S> => {
    if (others.length > 0) throw NOT_THIS_FORM
    return one!
  }
  return read(item, (one): z.output<S>[] => [one], only)
}

export function oneOrMany<S extends z.ZodType>(item: S, empty: string, error: typeof rateError) {
  const form = z.union([item, z.array(item).min(1, { error: empty })], { error })
  return read(form, (given): z.output<S>[] => (Array.isArray(given) ? given : [given]))
}

/** A key that may be absent, and then is. */
export const maybe = z.exactOptional

/** An object. Each unknown key is one line of the message. `complain` is for a value that is no object. */
export function object<S extends z.core.$ZodLooseShape>(
  shape: S,
  remedy: string,
  noun = 'an object',
  complain = wants,
) {
  const known = Object.keys(shape)
  return z.strictObject(shape, {
    error: issue =>
      issue.code === 'unrecognized_keys'
        ? issue.keys.map(key => unknownKey(key, known)).join('\n')
        : complain(noun, remedy)(issue),
  })
}

export function oneOf<const T extends readonly string[]>(words: T, noun: string) {
  return z.enum(words, { error: wants(noun, `use ${either(words)}`) })
}

/** As `read`. Nothing but a number is printed, so it may stand in a union. */
export function number<S extends z.ZodType>(
  schema: S,
  parse: (value: z.output<S>) => number,
  print: (value: number) => string,
) {
  return z.codec(schema, z.number(), {
    decode: orIssue(parse),
    encode: orIssue(print as (value: number) => z.output<S>),
  })
}

const durationText = z.string({ error: durationError })
export const rate = number(z.union([z.string(), z.number()], { error: rateError }), readRate, exactRate)
export const duration = number(durationText, readDuration, exactDuration)
/** A duration above 0. */
export const span = number(durationText, readSpan, exactDuration)
/** A duration above 0 that one timer can hold. */
export const timeout = number(durationText, text => timerLength(text, readSpan(text)), exactDuration)
/** A duration that one timer can hold. 0 is allowed. */
export const timerDuration = number(durationText, text => timerLength(text, readDuration(text)), exactDuration)

/** One of a few words, or a duration. A text without a digit is hardly meant as a duration. */
export function wordOr<const T extends readonly string[]>(words: T, length: typeof duration, error: typeof rateError) {
  return z.union([z.enum(words), z.string({ error }).regex(/\d/, { error }).pipe(length)], { error })
}

export function positive(noun: string, remedy: string) {
  const error = wants(noun, remedy)
  return z.number({ error }).gt(0, { error })
}

export function whole(noun: string, remedy: string, min: number, max = Number.MAX_SAFE_INTEGER) {
  const error = wants(noun, remedy)
  return z.int({ error }).min(min, { error }).max(max, { error })
}

export function count(noun: string, example: number) {
  return whole(noun, `use a whole number above 0, e.g. ${example}`, 1)
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

export const JSON_PATHS =
  'use names and places, e.g. "usage.total_tokens" or "choices[0].index"; there are no expressions'

/** @throws RangeError */
export function readJsonPath(value: string): JsonPath {
  const path = parseJsonPath(value)
  if (path === undefined) throw new RangeError(`${quote(value)} is not a path in JSON; ${JSON_PATHS}`)
  return path
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

export const token = z
  .string(SECRET)
  .regex(B64TOKEN, SECRET)
  .refine(text => text.length >= 16, SECRET)

/** Header names, lower-cased, with their exact values. */
export function headers(noun: string, remedy: string) {
  const value = z.string({ error: wantsSecret('a header value', 'use a string, e.g. "gold"') })
  const values = z.record(z.string(), value, { error: wantsSecret(noun, remedy) })
  return read(values, (given, issues) => renameKeys(given, headerName, issues))
}

/** Renames every key. A key that `rename` refuses, or that becomes the same as another, is an issue. */
export function renameKeys<T>(
  values: Record<string, T>,
  rename: (key: string) => string,
  ctx: Issues,
): Record<string, T> {
  const entries = Object.entries(values).map(([key, value]) => [renameOrReport(key, rename, key, ctx), value] as const)
  const names = entries.map(([key]) => key)
  Object.keys(values).forEach((key, index) => {
    if (names.indexOf(names[index]!) < index) {
      ctx.issues.push({
        code: 'custom',
        path: [key],
        message: 'given twice in different cases; remove one',
        input: key,
      })
    }
  })
  return Object.fromEntries(entries)
}

/** Renames one key. A key that `rename` refuses stays as it is and is an issue. */
export function renameOrReport(value: string, rename: (value: string) => string, key: string, ctx: Issues): string {
  try {
    return rename(value)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    ctx.issues.push({ code: 'custom', path: [key], message: error.message, input: value })
    return value
  }
}
