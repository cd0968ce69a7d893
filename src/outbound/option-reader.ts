/** Reads options; each wrong one is a line of one error. zod would take most of the time to load the library. */
import { hint, quote } from '../config/messages.js'
import { formatPath } from '../config/problems.js'
import { readDuration } from '../config/read-values.js'
import { ownValue } from '../core/structures/own-value.js'

type Path = readonly PropertyKey[]
/** Reads one value. It adds what is wrong to `problems`, and returns nothing that is used then. */
export type OptionReader<T> = (input: unknown, path: Path, problems: string[]) => T
type Output<R> = R extends OptionReader<infer T> ? T : never
/** Options of other libraries, and of this one in another place. */
const HINTS: Readonly<Record<string, string>> = {
  minTime: 'use rate: 1000 / minTime, e.g. "5/s" for 200',
  interval: 'use rate, e.g. "5/s"',
  limit: 'use rate, e.g. "5/s"',
  intervalCap: 'use rate, e.g. "5/s"',
  tokensPerInterval: 'use rate, e.g. "5/s"',
  maxConcurrent: 'use maxInFlight',
  concurrency: 'use maxInFlight',
  highWater: 'a shaper has capacity, which also counts the call that has just left',
  reservoir: 'use rate, e.g. "1000/h", and burst',
  datastore: 'use store: { type: "redis", url }',
  weight: 'a call has cost: run(fn, { cost: 2 })',
  timeout: 'it bounds a run: run(fn, { timeout: "30s" })',
  expiration: 'use timeout, of a run: run(fn, { timeout: "30s" })',
  origin: 'use origins: a request to another origin is not sent there, and has no credential',
  key: 'a call names its key: run("user_42", fn)',
  ...Object.fromEntries(
    ['maxInFlight', 'maxInFlightAll', 'maxKeys', 'maxQueued'].map(name => {
      return [name, 'it belongs to createShaper or shape, beside "rate" or "buckets"']
    }),
  ),
}

/** The message for an option that there is not. */
export function unknownOption(name: string, known: readonly string[]): string {
  // Its name until now. A call has `key`.
  if (name === 'keys' && known.includes('credentials')) return RENAMED
  return `unknown key; ${ownValue(HINTS, name) ?? hint(name, known, 'known keys')}`
}

const RENAMED = 'unknown key; use credentials: [{ name, origins, header, rate }]'
type Required<S> = { [K in keyof S]: undefined extends Output<S[K]> ? never : K }[keyof S]

/** What an object of these readers is read to. Those that may be undefined are left out where they are. */
export type ObjectOf<S extends Readers> = { [K in Required<S>]: Output<S[K]> } & {
  [K in Exclude<keyof S, Required<S>>]?: Exclude<Output<S[K]>, undefined>
}

type Readers = Readonly<Record<string, OptionReader<unknown>>>

/** @param parse throws a RangeError that says what the value is not, and what to write */
export function value<T>(parse: (input: unknown) => T): OptionReader<T> {
  return (input, path, problems) => {
    try {
      return parse(input)
    } catch (error) {
      if (!(error instanceof RangeError)) throw error
      problems.push(at(path, error.message))
      return undefined as T
    }
  }
}

function at(path: Path, message: string): string {
  return path.length === 0 ? message : `${formatPath(path)}: ${message}`
}

/** A duration in ms: `"10s"`, or a number of ms. @throws RangeError */
export function durationOf(input: unknown): number {
  if (typeof input === 'number' && input >= 0) return input
  try {
    if (typeof input === 'string') return readDuration(input)
  } catch {
    // Said below.
  }
  throw new RangeError(`${quote(input)} is not a duration; use e.g. "10s", or a number of ms`)
}

/** A value that a test accepts as it is. */
export function tested<T>(noun: string, remedy: string, isRight: (input: unknown) => input is T): OptionReader<T> {
  return value(input => {
    if (isRight(input)) return input
    throw new RangeError(input === undefined ? `missing; ${remedy}` : `${quote(input)} is not ${noun}; ${remedy}`)
  })
}

export function optional<T>(reader: OptionReader<T>): OptionReader<T | undefined> {
  return (input, path, problems) => (input === undefined ? undefined : reader(input, path, problems))
}

/** Members that are undefined count as absent, and unknown ones are wrong. `complain` is for what is no object. */
export function members<S extends Readers>(
  readers: S,
  complain: (input: unknown) => string,
): OptionReader<ObjectOf<S>> {
  const known = Object.keys(readers)
  return (input, path, problems) => {
    if (!isRecord(input) || Array.isArray(input)) {
      problems.push(at(path, complain(input)))
      return {} as ObjectOf<S>
    }
    // Of an object with a prototype of its own the inherited ones count, too.
    const result = Object.entries(readers).map(([name, read]) => {
      return [name, read(Reflect.get(input, name), [...path, name], problems)]
    })
    for (const [name, given] of Object.entries(input)) {
      if (!known.includes(name) && given !== undefined) problems.push(at([...path, name], unknownOption(name, known)))
    }
    return Object.fromEntries(result.filter(([, read]) => read !== undefined)) as ObjectOf<S>
  }
}

/** Names with values of one kind. */
export function record<T>(
  readName: OptionReader<unknown>,
  reader: OptionReader<T>,
  complain: (input: unknown) => string,
) {
  return (input: unknown, path: Path, problems: string[]): Readonly<Record<string, T>> => {
    if (!isRecord(input) || Array.isArray(input)) {
      problems.push(at(path, complain(input)))
      return {}
    }
    const given = Object.entries(input).filter(([, value]) => value !== undefined)
    return Object.fromEntries(
      given.map(([name, value]) => {
        readName(name, [...path, name], problems)
        return [name, reader(value, [...path, name], problems)]
      }),
    )
  }
}

export function list<T>(reader: OptionReader<T>, complain: (input: unknown) => string): OptionReader<readonly T[]> {
  return (input, path, problems) => {
    if (!Array.isArray(input)) {
      problems.push(at(path, complain(input)))
      return []
    }
    return input.map((entry: unknown, place) => reader(entry, [...path, place], problems))
  }
}

/** @throws RangeError with one line for each problem; TypeError if `input` is no object */
export function readAll<T>(reader: OptionReader<T>, input: unknown, complain: (input: unknown) => string): T {
  if (!isRecord(input) || Array.isArray(input)) throw new TypeError(complain(input))
  const problems: string[] = []
  const read = reader(input, [], problems)
  if (problems.length > 0) throw new RangeError(problems.join('\n'))
  return read
}

export function isRecord(input: unknown): input is Record<string, unknown> {
  return typeof input === 'object' && input !== null
}
