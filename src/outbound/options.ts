/** The options of the library. They are validated with the schema and the messages of the configuration file. */
import * as z from 'zod'
import { quote, wants } from '../config/messages.js'
import { findingsOf, formatPath } from '../config/problems.js'
import { store } from '../config/schema/store.js'
import { duration, headerName, object, rate, read } from '../config/schema/values.js'
import type { StoreSettings } from '../config/settings.js'
import type { Clock } from '../core/clock.js'
import type { OnOutage } from '../core/shared-shaper.js'
import type { Store } from '../core/store.js'
import type { PauseRule } from '../http/quota/pause-rule.js'

/** Redis or Redis Cluster, as in the configuration file. */
export interface RedisStoreOptions {
  readonly type: 'redis'
  /** `"redis://user:password@host:6379/0"`, also `rediss:` and `redis+sentinel:`. Not with `cluster`. */
  readonly url?: string
  /** URLs of some nodes of a cluster. */
  readonly cluster?: readonly string[]
  /** Prefix of every key. Each shaper needs its own. Default `"shaper:"`. */
  readonly prefix?: string
  /** How long an answer may take. Default `"250ms"`. */
  readonly timeout?: string
  /**
   * Without the store: go on at a share of the rate (`"local"`, the default), send nothing (`"closed"`), or send
   * everything (`"open"`).
   */
  readonly onOutage?: OnOutage
  /** The least number of processes that share the store, assumed until the store has answered. Default 1. */
  readonly instances?: number
}

/** PostgreSQL, as in the configuration file. */
export interface PostgresStoreOptions {
  readonly type: 'postgres'
  readonly url: string
  /** The table. Each shaper needs its own. Default `"shaper_buckets"`. */
  readonly table?: string
  readonly timeout?: string
  readonly onOutage?: OnOutage
  readonly instances?: number
}

/** Options that can change while calls wait. */
export interface UpdateOptions {
  /** The rate in cost units: `"5/s"`, `"6/30s"`, `"1000/30d"`, or a number per second. */
  readonly rate?: string | number
  /** The most cost of one key, waiting and just sent. Infinity, only without a store: no bound. */
  readonly capacity?: number
  /** What may leave without spacing after idling, in cost units. Default: one call. */
  readonly burst?: number
  /** The longest wait of a call: `"10s"`, or ms. Default: no bound. */
  readonly maxWait?: string | number
  /** The most keys in use at once. Default 100_000. */
  readonly maxKeys?: number
  /** The most waiting calls of all keys. Default: no bound. */
  readonly maxQueued?: number
}

export interface ShaperOptions extends UpdateOptions {
  readonly rate: string | number
  readonly capacity: number
  /** The most running calls of one key. Default: no bound. */
  readonly maxInFlight?: number
  /** The store that processes share. Default `"memory"`: this process only. */
  readonly store?: 'memory' | RedisStoreOptions | PostgresStoreOptions | Store
  /** The source of time. Default: one precise clock for all shapers of the process. */
  readonly clock?: Clock
}

/** `ShaperOptions` after reading: ms, and cost units per ms. */
export interface ShaperSettings {
  readonly rate: number
  readonly capacity: number
  readonly burst?: number
  readonly maxWait: number
  readonly maxInFlight: number
  readonly maxKeys: number
  readonly maxQueued: number
  /** Undefined: in memory. */
  readonly store: StoreSettings | { readonly own: Store } | undefined
  readonly clock: Clock | undefined
}

/** `UpdateOptions` after reading. */
export type Changes = Partial<Pick<ShaperSettings, 'rate' | 'capacity' | 'burst' | 'maxWait' | 'maxKeys' | 'maxQueued'>>

/** The options of `shape` about requests and their answers. */
export interface RequestSettings<Options> {
  readonly key: 'origin' | 'all' | { readonly header: string } | ((options: Options) => string)
  readonly cost: number | ((options: Options) => number)
  readonly pauseOn: PauseRule | undefined
  readonly retry: { readonly status: readonly number[]; readonly max: number }
}

/** A value that is checked by hand: it may be Infinity or a function, which a file cannot contain. */
function value<T>(noun: string, remedy: string, isRight: (value: unknown) => value is T) {
  return read(z.unknown(), (input): T => {
    if (isRight(input)) return input
    throw new RangeError(input === undefined ? `missing; ${remedy}` : `${quote(input)} is not ${noun}; ${remedy}`)
  })
}

const isNumber = (input: unknown): input is number => typeof input === 'number'
const isFunction = (input: unknown): input is (...given: never) => never => typeof input === 'function'

function isObject(input: unknown): input is Record<string, unknown> {
  return typeof input === 'object' && input !== null
}

const capacity = value('a capacity', 'use a number of cost units above 0, e.g. 100', (input): input is number => {
  return isNumber(input) && input > 0
})

const burst = value('a burst', 'use a number of cost units above 0, e.g. 10', (input): input is number => {
  return isNumber(input) && input > 0 && input < Infinity
})

const wait = z.unknown().transform((input, ctx): number => {
  if (isNumber(input) && input >= 0) return input
  const parsed = isNumber(input) ? undefined : duration.safeParse(input)
  if (parsed?.success) return parsed.data
  const message = `${quote(input)} is not a duration; use e.g. "10s", or a number of ms`
  ctx.issues.push({ code: 'custom', message, input })
  return z.NEVER
})

function count(noun: string, remedy: string) {
  return value(noun, remedy, (input): input is number => {
    return input === Infinity || (Number.isInteger(input) && (input as number) > 0)
  })
}

const isStore = (input: unknown): input is Store =>
  isObject(input) && ['admit', 'claim', 'giveBack', 'beat', 'exchange', 'close'].every(verb => isFunction(input[verb]))

/** Treats undefined members of an object as unset. */
function unsetUndefined<S extends z.ZodType>(schema: S) {
  return z.preprocess(input => (isObject(input) && !Array.isArray(input) ? withoutUndefined(input) : input), schema)
}

function withoutUndefined(options: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))
}

const anyStore = z.unknown().transform((input, ctx): ShaperSettings['store'] => {
  if (isStore(input)) return { own: input }
  const parsed = store.safeParse(isObject(input) && !Array.isArray(input) ? withoutUndefined(input) : input)
  if (parsed.success) return parsed.data === 'memory' ? undefined : parsed.data
  ctx.issues.push(...parsed.error.issues.map(issue => ({ ...issue, input: undefined })))
  return z.NEVER
})

const changeable = {
  rate: rate.exactOptional(),
  capacity: capacity.exactOptional(),
  burst: burst.exactOptional(),
  maxWait: wait.exactOptional(),
  maxKeys: count('a number of keys', 'use e.g. 100000').exactOptional(),
  maxQueued: count('a number of calls', 'use e.g. 10000').exactOptional(),
}

const shaper = {
  ...changeable,
  rate,
  capacity,
  maxInFlight: count('a number of calls', 'use e.g. 10').exactOptional(),
  store: anyStore.exactOptional(),
  clock: value('a clock', 'use an object with now() and at(due, run)', (input): input is Clock => {
    return isObject(input) && isFunction(input.now) && isFunction(input.at)
  }).exactOptional(),
}

const status = z
  .array(
    value('a status', 'use e.g. 429', (input): input is number => {
      return Number.isInteger(input) && (input as number) >= 200 && (input as number) <= 599
    }),
    { error: 'not a list of statuses; use e.g. [429, 503]' },
  )
  .readonly()

const key = value(
  'a key',
  'use "origin", "all", "header:NAME" or a function',
  (input): input is string | ((options: never) => string) => {
    return isFunction(input) || (typeof input === 'string' && /^(origin|all|header:.+)$/.test(input))
  },
)

const PAUSE = 'use false, or e.g. { status: [429, 503], default: "1s", max: "60s" }'

const request = {
  key: read(key, input => {
    return typeof input === 'string' && input.startsWith('header:') ? { header: headerName(input.slice(7)) } : input
  }).exactOptional(),
  cost: value('a cost', 'use a finite number of units, 0 or more, or a function', (input): input is number => {
    return isFunction(input) || isCost(input)
  }).exactOptional(),
  pauseOn: unsetUndefined(
    z.union(
      [
        z.literal(false),
        object(
          { status: status.exactOptional(), default: wait.exactOptional(), max: wait.exactOptional() },
          'a rule',
          PAUSE,
        ),
      ],
      { error: wants('a rule', PAUSE) },
    ),
  ).exactOptional(),
  retry: unsetUndefined(
    object(
      { status, max: count('a number of tries', 'use e.g. 3') },
      'a rule',
      'use e.g. { status: [429, 503], max: 3 }',
    ),
  ).exactOptional(),
}

const noun = ['a set of options', 'use e.g. { rate: "5/s", capacity: 100 }'] as const
const shaperSchema = object(shaper, ...noun)
const shapeSchema = object({ ...shaper, ...request }, ...noun)
const changesSchema = object(changeable, 'a set of options', 'use e.g. { rate: "5/s" }')

/** Whether the input is a valid cost: finite, 0 or more. */
export function isCost(input: unknown): input is number {
  return isNumber(input) && input >= 0 && input < Infinity
}

/** @throws RangeError with one line for each problem; TypeError if `options` is no object */
export function readShaperOptions(options: ShaperOptions): ShaperSettings {
  return settingsOf(parse(shaperSchema, options))
}

/** @throws as readShaperOptions */
export function readChanges(options: UpdateOptions, use: { readonly isShared: boolean }): Changes {
  const changes = parse(changesSchema, options)
  checkCapacity(changes.capacity, use)
  return changes
}

/** @throws as readShaperOptions */
export function readShapeOptions<Options>(options: object): {
  settings: ShaperSettings
  request: RequestSettings<Options>
} {
  const { key, cost, pauseOn, retry, ...rest } = parse(shapeSchema, options)
  const rule = pauseOn === false ? undefined : { status: [429, 503], default: 1_000, max: 60_000, ...pauseOn }
  return {
    settings: settingsOf(rest),
    request: {
      key: (key ?? 'origin') as RequestSettings<Options>['key'],
      cost: cost ?? 1,
      pauseOn: rule,
      retry: retry ?? { status: [], max: 0 },
    },
  }
}

function settingsOf(options: z.output<typeof shaperSchema>): ShaperSettings {
  const { maxWait = Infinity, maxInFlight = Infinity, maxKeys = 100_000, maxQueued = Infinity, ...rest } = options
  checkCapacity(rest.capacity, { isShared: rest.store !== undefined })
  return { store: undefined, clock: undefined, ...rest, maxWait, maxInFlight, maxKeys, maxQueued }
}

function checkCapacity(capacity: number | undefined, { isShared }: { readonly isShared: boolean }): void {
  if (capacity !== Infinity || !isShared) return
  throw new RangeError('capacity: Infinity is for a shaper without a store; use a number of cost units, e.g. 1000')
}

function parse<S extends z.ZodType>(schema: S, options: unknown): z.output<S> {
  if (!isObject(options)) throw new TypeError(`${quote(options)} is not ${noun[0]}; ${noun[1]}`)
  const result = schema.safeParse(withoutUndefined(options))
  if (result.success) return result.data
  const lines = findingsOf(result.error).map(({ path, message }) => `${formatPath(path)}: ${message}`)
  throw new RangeError(lines.join('\n'))
}
