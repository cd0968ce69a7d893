/** The options of the library. */

import type { IncomingHttpHeaders } from 'node:http'
import { QUOTA_RATE } from '../config/derived/default-capacity.js'
import { either, quote, quoteUrl, wants } from '../config/messages.js'
import { DEFAULT_SPREAD, LENGTHS, PACE, PERIODS, type QuotaSettings } from '../config/periods.js'
import { formatPath } from '../config/problems.js'
import {
  headerName,
  NAME,
  NAME_REMEDY,
  rateError,
  readRate,
  readSpan,
  readTimeZone,
  timerLength,
} from '../config/read-values.js'
import { readPostgresUrl, readRedisNode, readRedisUrl, readTable, type StoreSettings } from '../config/store-url.js'
import type { BucketLimits } from '../core/bucket/limits.js'
import type { Clock } from '../core/clock.js'
import { defined } from '../core/structures/defined.js'
import { isCost } from '../decider/costs.js'
import type { PauseRule } from '../http/quota/pause-rule.js'
import type { OnOutage } from '../sharing/shard.js'
import type { Store } from '../sharing/store.js'
import {
  durationOf,
  isRecord,
  list,
  members,
  type ObjectOf,
  type OptionReader,
  optional,
  readAll,
  record,
  tested,
  value,
} from './option-reader.js'

/** Redis or Redis Cluster, as in the configuration file. */
export interface RedisStoreOptions {
  /** Which store. */
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
  /** Which store. */
  readonly type: 'postgres'
  /** `"postgres://user:password@host:5432/database"`. */
  readonly url: string
  /** The table. Each shaper needs its own. Default `"shaper_buckets"`. */
  readonly table?: string
  /** How long an answer may take. Default `"250ms"`. */
  readonly timeout?: string
  /** As in `RedisStoreOptions`. */
  readonly onOutage?: OnOutage
  /** As in `RedisStoreOptions`. */
  readonly instances?: number
}

/** A count by the calendar. */
export interface QuotaOptions {
  /** Cost units that may pass in a period. What is over fails with OverflowError, which says when the next one begins. */
  readonly limit: number
  /** `"hour"`, `"day"` or `"month"`. */
  readonly per: 'hour' | 'day' | 'month'
  /** Where a period begins with the clock: an IANA name. Default `"UTC"`. */
  readonly timeZone?: string
  /** What is left leaves evenly until the period ends, so `capacity` calls may wait. Default false. */
  readonly spread?: boolean
}

/** A quota beside other buckets. */
export interface QuotaBucketOptions {
  /** In place of a rate. Changed limits have its limit as `capacity`. */
  readonly quota: QuotaOptions
  /** With `spread`: how much of one key may wait. Default 10. */
  readonly capacity?: number
  /** `"all"`: one count for the calls of all keys. Default: one for each key. */
  readonly key?: 'all'
  /** A quota has none. */
  readonly rate?: undefined
}

/** One limit: a leaky bucket. Costs are in units that the API counts, for example requests or tokens. */
export interface BucketOptions {
  /** The rate in cost units: `"5/s"`, `"6/30s"`, `"1000/30d"`, or a number per second. */
  readonly rate: string | number
  /**
   * The most cost of one key, waiting and just sent. A call that does not fit fails with OverflowError. Absent or Infinity, only
   * without a store: no bound.
   */
  readonly capacity?: number
  /** What may leave without spacing after idling, in cost units. Default: one call. */
  readonly burst?: number
  /** `"all"`: one bucket for the calls of all keys. Default: one for each key. */
  readonly key?: 'all'
}

/** A credential of several. */
export interface CredentialOptions {
  /** Stands for it in events, and in the context of a run. */
  readonly name: string
  /** The rate of this one. Default: that of the shaper. */
  readonly rate?: string | number
  /** For `shape`: headers that requests are sent with, in place of their own of these names. */
  readonly header?: Readonly<Record<string, string>>
  /** For `shape`, and required there: the origins that it is for. Requests to others pass untouched. */
  readonly origins?: readonly string[]
}

/** The most running calls, or (only without a store) the most cost of them. A call that costs more runs alone. */
export type InFlightBound = number | { readonly cost: number }

/** Limits that differ from the usual ones: those of one key, or new ones. */
export interface ChangedLimits<Name extends string = string> extends Partial<Omit<BucketOptions, 'key'>> {
  /** Of several buckets, what differs, by name. */
  readonly buckets?: { readonly [K in Name]?: Partial<Omit<BucketOptions, 'key'>> }
}

/** Bounds that can change while calls wait. */
interface Bounds {
  /** The longest wait of a call: `"10s"`, or ms. Default: no bound. */
  readonly maxWait?: string | number
  /** The most keys in use at once. Default 100_000. */
  readonly maxKeys?: number
  /** The most waiting calls of all keys. Default: no bound. */
  readonly maxQueued?: number
  /** The most running calls of one key. Default: no bound. */
  readonly maxInFlight?: InFlightBound
  /** The most running calls of all keys. Default: no bound. */
  readonly maxInFlightAll?: InFlightBound
}

/** Options that can change while calls wait. */
export interface UpdateOptions<Name extends string = string> extends ChangedLimits<Name>, Bounds {}

/**
 * Says what to do after the function of `run` has failed.
 *
 * @param attempt 1 for the first one
 * @returns how long until it is called again, at the head of its queue and in its turn: ms, or `"1s"`. Undefined, null or false:
 *   the error is the result
 */
export type RetryRule = (error: unknown, attempt: number) => number | string | false | null | undefined

/** One limit for each key. */
export interface OneLimit extends Omit<BucketOptions, 'key'> {
  /** Several limits have this in place of `rate`, `capacity` and `burst`. */
  readonly buckets?: undefined
  /** A count by the calendar has this in place of `rate` and `burst`. */
  readonly quota?: undefined
}

/** One quota for each key. */
export interface OneQuota extends Omit<QuotaBucketOptions, 'key'> {
  /** A quota has none. */
  readonly burst?: undefined
  /** Several limits have this in its place. */
  readonly buckets?: undefined
}

/** Several limits for each key. */
export interface SeveralLimits<Name extends string = string> {
  /**
   * By name, in place of `rate`, `capacity` and `burst`. A call waits until all of them let it pass, and takes from all or from none.
   */
  readonly buckets: Readonly<Record<Name, BucketOptions | QuotaBucketOptions>>
  /** One limit has this. */
  readonly rate?: undefined
  /** As `rate`. */
  readonly capacity?: undefined
  /** As `rate`. */
  readonly burst?: undefined
  /** As `rate`. */
  readonly quota?: undefined
}

/** Options that last. */
export interface LastingOptions<Name extends string = string> extends Bounds {
  /**
   * Limits of single keys: what they leave out, and a key for which the function returns nothing, has those of the shaper. Called when a
   * key comes into use, and for all keys in use by `update`. With a store it has to say the same in all processes.
   */
  readonly limits?: (key: string) => ChangedLimits<NoInfer<Name>> | undefined
  /** Says when a run that failed is tried again, at the head of its queue and in its turn. Default: never. */
  readonly retry?: RetryRule
  /** Several credentials, each with its own bucket, pause and bound. Each call takes the one that is free first. */
  readonly credentials?: readonly CredentialOptions[]
  /** The store that processes share. Default `"memory"`: this process only. */
  readonly store?: 'memory' | RedisStoreOptions | PostgresStoreOptions
  /** The source of time. Default: one precise clock for all shapers of the process. */
  readonly clock?: Clock
}

/** The limits of each key. */
export type KeyOptions<Name extends string = string> = OneLimit | OneQuota | SeveralLimits<Name>

/** One limit for each key: `rate` and `capacity`, or `quota`. Or several `buckets`: a call waits until all of them let it pass. */
export type ShaperOptions<Name extends string = string> = LastingOptions<Name> & KeyOptions<Name>

/** A limit after reading: cost units per ms, and cost units. */
interface LimitSettings extends Pick<BucketLimits, 'name' | 'rate' | 'capacity' | 'burst'> {
  /** One for all keys. */
  readonly isCommon: boolean
  /** Its limit is the capacity. Absent: it has a rate. */
  readonly counts?: QuotaSettings
  /** It paces the quota before it. */
  readonly paces?: true
}

/** A credential after reading: cost units per ms. Names of headers are in lower case. */
export interface Credential {
  readonly name: string
  readonly rate?: number
  readonly header?: Readonly<Record<string, string>>
  /** An empty one for calls that are no requests, and those of `shape`. */
  readonly origins: readonly string[]
}

/** A bound after reading. */
export interface InFlight {
  readonly most: number
  readonly by: 'calls' | 'cost'
}

/** `ShaperOptions` after reading: ms. */
export interface ShaperSettings {
  /** In the order in which a call passes them: those of its key, then the common ones. */
  readonly buckets: readonly LimitSettings[]
  readonly areNamed: boolean
  readonly maxWait: number
  readonly maxInFlight: InFlight
  readonly maxInFlightAll: InFlight
  readonly maxKeys: number
  readonly maxQueued: number
  readonly retry: RetryRule | undefined
  readonly limits: ((key: string) => LimitChanges) | undefined
  readonly credentials: readonly Credential[] | undefined
  /** Undefined: in memory. */
  readonly store: StoreSettings | { readonly own: Store } | undefined
  readonly clock: Clock | undefined
}

/** What differs of each bucket, by name. */
export type LimitChanges = Readonly<Record<string, Partial<Pick<LimitSettings, 'rate' | 'capacity' | 'burst'>>>>

/** `UpdateOptions` after reading. */
export interface Changes
  extends Partial<Pick<ShaperSettings, 'maxWait' | 'maxInFlight' | 'maxInFlightAll' | 'maxKeys' | 'maxQueued'>> {
  readonly buckets: LimitChanges
}

interface KnownBuckets {
  readonly isShared: boolean
  readonly areNamed: boolean
  readonly names: readonly string[]
  /** Those that are quotas. */
  readonly quotas: readonly string[]
}

export interface RequestSettings<Options> {
  readonly key: 'origin' | 'all' | { readonly header: string } | ((options: Options) => string)
  readonly cost: number | Costs | ((options: Options) => number | Costs)
  readonly costAfter: CostAfter | undefined
  readonly learn: boolean
  readonly resource: string | ((options: Options) => string | undefined) | undefined
  readonly pauseOn: PauseRule | undefined
  /** The backoffs are ms. */
  readonly retry: {
    readonly status: readonly number[]
    readonly max: number
    readonly backoff: number
    readonly maxBackoff: number
  }
  /** ms */
  readonly revokedFor: number
}

/** Cost units by bucket. A bucket that is not named costs 1. */
export type Costs<Name extends string = string> = { readonly [K in Name]?: number | undefined }
/** Cost units: in each bucket, or by name where there are several. */
export type CostOf<Name extends string = string> = [Name] extends [never] ? number : number | Costs<Name>

/**
 * What a request really costs, by its answer: it takes the place of what was reserved.
 *
 * @returns in each bucket, or by name. Undefined: what was reserved
 */
export type CostAfter<Name extends string = string> = (
  status: number,
  headers: IncomingHttpHeaders,
) => CostOf<Name> | undefined

/** The name of the only bucket. */
export const ONLY = 'outbound'
const isNumber = (input: unknown): input is number => typeof input === 'number'
const isFunction = (input: unknown): input is (...given: never) => never => typeof input === 'function'
const isBoolean = (input: unknown): input is boolean => typeof input === 'boolean'
const isAbove0 = (input: unknown): input is number => isNumber(input) && input > 0
const isFiniteAbove0 = (input: unknown): input is number => isAbove0(input) && input < Infinity
const isWhole =
  (least: number, most: number) =>
  (input: unknown): input is number =>
    Number.isInteger(input) && (input as number) >= least && (input as number) <= most
const isCount = (input: unknown): input is number => input === Infinity || isWhole(1, Infinity)(input)
const isText = (input: unknown): input is string => typeof input === 'string' && input !== ''

const rate = value(input => {
  if (typeof input !== 'string' && !isNumber(input)) throw new RangeError(rateError({ input }))
  return readRate(input)
})

const capacity = tested('a capacity', 'use a number of cost units above 0, e.g. 100', isAbove0)
const burst = tested('a burst', 'use a number of cost units above 0, e.g. 10', isFiniteAbove0)
const wait = value(durationOf)
const count = (noun: string, remedy: string) => tested(noun, remedy, isCount)
const calls = count('a number of calls', 'use e.g. 10')

const inFlight: OptionReader<InFlight> = (input, path, problems) => {
  if (!isRecord(input)) return { most: calls(input, path, problems), by: 'calls' }
  const { cost } = costBound(input, path, problems)
  return { most: cost, by: 'cost' }
}

const costBound = members({ cost: tested('a cost', 'use a number of cost units above 0, e.g. 10', isAbove0) }, input =>
  wants('a bound', 'use e.g. 10, or { cost: 10 }')({ input }),
)

/** A store of a test, which has no settings. */
const isStore = (input: unknown): input is Store =>
  isRecord(input) &&
  (['admit', 'claim', 'giveBack', 'beat', 'exchange', 'close'] as const).every(verb => isFunction(input[verb]))

const FORMS = 'use "memory", or an object with "type": "redis" or "postgres"'
const noStore = (input: unknown): string => wants('a store', FORMS)({ input })
const OUTAGES = ['local', 'closed', 'open'] as const

const timeout = value((input): number => {
  const text = wants('a duration', 'use e.g. "250ms"')
  if (typeof input !== 'string') throw new RangeError(text({ input }))
  return timerLength(input, readSpan(input))
})

const instances = tested('a number of instances', 'use a whole number from 1 to 10000, e.g. 3', isWhole(1, 10_000))

const common = {
  type: tested('a kind of store', 'use "redis" or "postgres"', isText),
  timeout: optional(timeout),
  onOutage: optional(
    tested('a choice for an outage', `use ${either(OUTAGES)}`, (input): input is OnOutage =>
      OUTAGES.includes(input as OnOutage),
    ),
  ),
  instances: optional(instances),
}

const redisStore = members(
  {
    ...common,
    url: optional(value(readRedisUrl)),
    cluster: optional(
      list(value(readRedisNode), input => wants('a list of URLs', 'use e.g. ["redis://10.0.0.1:6379"]')({ input })),
    ),
    prefix: optional(tested('a prefix', 'use e.g. "shaper:"', isText)),
  },
  noStore,
)

const postgresStore = members({ ...common, url: value(readPostgresUrl), table: optional(value(readTable)) }, noStore)

const anyStore: OptionReader<ShaperSettings['store']> = (input, path, problems) => {
  if (input === 'memory') return undefined
  if (isStore(input)) return { own: input }
  const { type } = isRecord(input) ? input : {}
  if (type === 'redis') return readRedis(input, path, problems)
  if (type === 'postgres') {
    const settings = postgresStore(input, path, problems)
    return { timeout: 250, onOutage: 'local', table: 'shaper_buckets', ...settings, type }
  }
  problems.push(isRecord(input) && !Array.isArray(input) ? `store.type: ${noKind(type)}` : `store: ${noStore(input)}`)
  return undefined
}

function noKind(type: unknown): string {
  return `${type === undefined ? 'missing' : `${quote(type)} is not a kind of store`}; use "redis" or "postgres"`
}

const readRedis: OptionReader<StoreSettings> = (input, path, problems) => {
  const known = problems.length
  const { url, cluster, ...rest } = redisStore(input, path, problems)
  const hasCluster = cluster !== undefined && cluster.length > 0
  if (problems.length === known && (url === undefined) !== hasCluster) {
    problems.push(
      `store.url: ${url === undefined ? 'missing; give url or cluster' : 'give either url or cluster; remove one'}`,
    )
  }
  const where = { ...(url !== undefined && { url }), ...(hasCluster && { cluster: [...cluster] }) }
  return { timeout: 250, onOutage: 'local', prefix: 'shaper:', ...rest, ...where, type: 'redis' }
}

/** A function, which is taken as it is. */
const func = <Fn>(remedy: string) => optional(tested('a function', remedy, (input): input is Fn => isFunction(input)))

const quota = members(
  {
    limit: tested('a limit', 'use a number of cost units above 0, e.g. 100000', isFiniteAbove0),
    per: tested('a period', `use ${either(PERIODS)}`, (input): input is QuotaSettings['per'] =>
      PERIODS.some(each => each === input),
    ),
    timeZone: optional(value(input => readTimeZone(String(input)))),
    spread: optional(tested('true or false', 'write true or false, without quotes', isBoolean)),
  },
  input => wants('a quota', 'use e.g. { limit: 100000, per: "month" }')({ input }),
)

const bucket = {
  rate: optional(rate),
  quota: optional(quota),
  capacity: optional(capacity),
  burst: optional(burst),
  key: optional(tested('a key', 'use "all", or leave it out', (input): input is 'all' => input === 'all')),
}

const changedBucket = { rate: optional(rate), capacity: optional(capacity), burst: optional(burst) }
/** In the place of the name is its path. */
const named: OptionReader<unknown> = (_, path, problems) => bucketName(path.at(-1), path, problems)
const EXAMPLE = '{ requests: { rate: "500/m" }, tokens: { rate: "30000/m" } }'
const noBucket = (input: unknown): string => wants('a bucket', 'use e.g. { rate: "500/m" }')({ input })
const noBuckets = (input: unknown): string => wants('a set of buckets', `use e.g. ${EXAMPLE}`)({ input })

const bounds = {
  maxWait: optional(wait),
  maxKeys: optional(count('a number of keys', 'use e.g. 100000')),
  maxQueued: optional(count('a number of calls', 'use e.g. 10000')),
  maxInFlight: optional(inFlight),
  maxInFlightAll: optional(inFlight),
}

const bucketName = value(name => {
  if (typeof name !== 'string' || !NAME.test(name)) throw new RangeError(`${quote(name)} is not a name; ${NAME_REMEDY}`)
  return name
})

const HEADERS = 'use e.g. { authorization: "Bearer ..." }'
const headers = record(
  (_, path, problems) => value(name => headerName(name as string))(path.at(-1), path, problems),
  // What it says is not told: it is a secret.
  value(input => {
    if (typeof input === 'string' && !/[\r\n\0]/.test(input)) return input
    throw new RangeError(`not the value of a header; ${HEADERS}`)
  }),
  () => `not a set of headers; ${HEADERS}`,
)

const origin = value(input => {
  const url = typeof input === 'string' && URL.canParse(input) ? new URL(input) : undefined
  if (url !== undefined && url.origin === input && /^https?:/.test(url.protocol)) return url.origin
  throw new RangeError(`${quoteUrl(input)} is not an origin; use e.g. "https://eu.api.example.com"`)
})

const ORIGINS = 'use e.g. ["https://api.example.com"]'
const originList = list(origin, input => wants('a list of origins', ORIGINS)({ input }))
const origins: typeof originList = (input, path, problems) => {
  if (Array.isArray(input) && input.length === 0) problems.push(`${formatPath(path)}: empty; ${ORIGINS}`)
  return originList(input, path, problems)
}

const credential = { name: bucketName, rate: optional(rate), header: optional(headers), origins: optional(origins) }
const [RUN_CREDENTIAL, SHAPE_CREDENTIAL] = [
  '{ name: "first" }',
  '{ name: "first", origins: ["https://api.example.com"], header: { authorization: "Bearer ..." } }',
]

function credentials<S extends typeof credential>(readers: S, example: string) {
  const one = members(readers, () => `not a credential; use e.g. ${example}`)
  const all = list(one, () => `not a list of credentials; use e.g. [${example}]`)
  return optional<ReturnType<typeof all>>((input, path, problems) => {
    if (Array.isArray(input) && input.length === 0) problems.push(`${formatPath(path)}: empty; use e.g. [${example}]`)
    return all(input, path, problems)
  })
}

const lasting = {
  limits: func<(key: string) => unknown>('use e.g. key => (key === "acme" ? { rate: "50/s" } : undefined)'),
  credentials: credentials(credential, RUN_CREDENTIAL),
  store: optional(anyStore),
  clock: optional(
    tested('a clock', 'use an object with now() and at(due, run)', (input): input is Clock => {
      return isRecord(input) && isFunction(input.now) && isFunction(input.at)
    }),
  ),
}

const shaper = {
  ...changedBucket,
  quota: optional(quota),
  buckets: optional(record(named, members(bucket, noBucket), noBuckets)),
  ...bounds,
  ...lasting,
}

const runRetry = func<RetryRule>('use e.g. (error, attempt) => (attempt < 3 ? 1000 : undefined)')

const status = list(
  tested('a status', 'use e.g. 429', isWhole(200, 599)),
  () => 'not a list of statuses; use e.g. [429, 503]',
)

const key = value((input): RequestSettings<never>['key'] => {
  if (isFunction(input) || input === 'origin' || input === 'all') return input as RequestSettings<never>['key']
  if (typeof input === 'string' && /^header:.+$/.test(input)) return { header: headerName(input.slice(7)) }
  throw new RangeError(`${quote(input)} is not a key; use "origin", "all", "header:NAME" or a function`)
})

const PAUSE = 'use false, or e.g. { status: [429, 503], default: "1s", max: "60s" }'
const pauseRule = members({ status: optional(status), default: optional(wait), max: optional(wait) }, input =>
  wants('a rule', PAUSE)({ input }),
)

const request = {
  key: optional(key),
  cost: optional(
    tested(
      'a cost',
      'use a finite number of units, 0 or more, or a function',
      (input): input is number | ((options: never) => number) => isFunction(input) || isCost(input) || isRecord(input),
    ),
  ),
  costAfter: func<CostAfter>('use e.g. (status, headers) => Number(headers["x-cost"])'),
  learn: optional(tested('true or false', 'write true or false, without quotes', isBoolean)),
  resource: optional(
    tested(
      'a resource',
      'use e.g. ({ path }) => (path.startsWith("/search") ? "search" : "core")',
      (input): input is string | ((options: never) => string | undefined) => isText(input) || isFunction(input),
    ),
  ),
  pauseOn: optional<false | ObjectOf<{ status: OptionReader<readonly number[] | undefined> }>>(
    (input, path, problems) => (input === false ? false : pauseRule(input, path, problems)),
  ),
  retry: optional(
    members(
      { status, max: count('a number of tries', 'use e.g. 3'), backoff: optional(wait), maxBackoff: optional(wait) },
      input => wants('a rule', 'use e.g. { status: [429, 503], max: 3 }')({ input }),
    ),
  ),
  revokedFor: optional(wait),
  credentials: credentials({ ...credential, origins }, SHAPE_CREDENTIAL),
}

/** Reports a missing limit even if other options are wrong. */
function withRate<T>(reader: OptionReader<T>): OptionReader<T> {
  return (input, path, problems) => {
    const { rate, quota, buckets } = input as Partial<ShaperOptions>
    if (rate === undefined && quota === undefined && buckets === undefined)
      problems.push('rate: missing; use e.g. "5/s", "6/30s"')
    return reader(input, path, problems)
  }
}

const noOptions = (input: unknown): string =>
  `${quote(input)} is not a set of options; use e.g. { rate: "5/s", capacity: 100 }`
const shaperReader = withRate(members({ ...shaper, retry: runRetry }, noOptions))
const shapeReader = withRate(members({ ...shaper, ...request }, noOptions))
const changedLimits = {
  ...changedBucket,
  buckets: optional(record(named, members(changedBucket, noBucket), noBuckets)),
}
const noChanges = (input: unknown): string => `${quote(input)} is not a set of options; use e.g. { rate: "5/s" }`
const changesReader = members({ ...changedLimits, ...bounds }, noChanges)
const keyLimitsReader = members(changedLimits, noChanges)

/** @throws RangeError with one line for each problem; TypeError if `options` is no object */
export function readShaperOptions(options: ShaperOptions): ShaperSettings {
  const read = readAll(shaperReader, options, noOptions)
  for (const [place, credential] of (read.credentials ?? []).entries()) {
    const unused = (['header', 'origins'] as const).find(name => credential[name] !== undefined)
    if (unused === undefined) continue
    throw new RangeError(
      `credentials[${place}].${unused}: only shape() sends it; remove it, and use the key of the context`,
    )
  }
  return settingsOf(read)
}

/** @throws as readShaperOptions */
export function readChanges(options: UpdateOptions, known: KnownBuckets): Changes {
  const { rate, capacity, burst, buckets, ...rest } = readAll(changesReader, options, noOptions)
  if (known.isShared) checkInFlight(rest)
  return { ...rest, buckets: changesOf({ rate, capacity, burst, buckets }, known) }
}

interface GivenLimits {
  readonly rate?: number | undefined
  readonly capacity?: number | undefined
  readonly burst?: number | undefined
  readonly buckets?: LimitChanges | undefined
}

/** By bucket. @throws RangeError */
function changesOf({ buckets = {}, ...single }: GivenLimits, known: KnownBuckets): LimitChanges {
  const { isShared, areNamed, names, quotas } = known
  const only = defined(single)
  const [first] = Object.keys(only)
  if (areNamed && first !== undefined)
    throw new RangeError(`${first}: there are several buckets; use e.g. { buckets: { ${names[0]}: { rate: "5/s" } } }`)
  if (!areNamed && Object.keys(buckets).length > 0)
    throw new RangeError('buckets: there is only one bucket; use e.g. { rate: "5/s" }')
  const changed = areNamed ? buckets : { [ONLY]: only }
  for (const [name, { capacity, ...others }] of Object.entries(changed)) {
    const path = areNamed ? `buckets.${name}.` : ''
    if (areNamed && !names.includes(name))
      throw new RangeError(`buckets.${name}: there is no such bucket; use ${either(names)}`)
    const [idle] = quotas.includes(name) ? Object.keys(others) : []
    if (idle !== undefined) throw new RangeError(`${path}${idle}: has no effect on a quota; use capacity, its limit`)
    checkCapacity(capacity, { isShared, path })
  }
  return changed
}

/** @returns what reads the limits of a key. It throws a RangeError or TypeError */
function keyLimits(limits: (key: string) => unknown, known: KnownBuckets): (key: string) => LimitChanges {
  return key => {
    const given = limits(key)
    if (given === undefined || given === null) return {}
    if (given instanceof Promise) {
      given.catch(() => undefined)
      throw new TypeError('limits: it returned a promise; return the limits themselves, and read them before')
    }
    try {
      return changesOf(readAll(keyLimitsReader, given, noChanges), known)
    } catch (error) {
      throw new RangeError(`limits of ${quote(key)}: ${(error as Error).message}`, { cause: error })
    }
  }
}

/** @throws as readShaperOptions */
export function readShapeOptions<Options>(options: object): {
  settings: ShaperSettings
  request: RequestSettings<Options>
} {
  const {
    key = 'origin',
    cost = 1,
    costAfter,
    learn = false,
    resource,
    pauseOn,
    retry,
    revokedFor = 60_000,
    ...rest
  } = readAll(shapeReader, options, noOptions)
  const rule = pauseOn === false ? undefined : { status: [429, 503, 529], default: 1_000, max: 60_000, ...pauseOn }
  return {
    settings: settingsOf(rest),
    request: {
      key: key as RequestSettings<Options>['key'],
      cost: cost as RequestSettings<Options>['cost'],
      costAfter,
      learn,
      resource: resource as RequestSettings<Options>['resource'],
      pauseOn: rule,
      retry: { status: [], max: 0, backoff: 500, maxBackoff: 30_000, ...retry },
      revokedFor,
    },
  }
}

const UNBOUND: InFlight = { most: Infinity, by: 'calls' }

function settingsOf(options: ObjectOf<typeof shaper> & { retry?: RetryRule }): ShaperSettings {
  const { rate, quota, capacity, burst, buckets, retry, clock, store, credentials, limits, ...rest } = options
  const { maxWait = Infinity, maxKeys = 100_000, maxQueued = Infinity } = rest
  const { maxInFlight = UNBOUND, maxInFlightAll = UNBOUND } = rest
  const single = [rate, quota, capacity, burst].some(given => given !== undefined)
  if (buckets !== undefined && single) throw new RangeError('buckets: give either buckets or rate, capacity and burst')
  if (buckets !== undefined && Object.keys(buckets).length === 0)
    throw new RangeError(`buckets: empty; use e.g. ${EXAMPLE}`)
  const isShared = store !== undefined
  if (isShared) checkInFlight({ maxInFlight, maxInFlightAll })
  const areNamed = buckets !== undefined
  checkCredentials(credentials, { areNamed })
  if (credentials !== undefined && limits !== undefined)
    throw new RangeError(
      'limits: the shaper has credentials, and its calls no keys; use credentials[0].rate and the like',
    )
  const all = Object.entries(buckets ?? { [ONLY]: defined({ rate, quota, capacity, burst }) })
  const read = all.flatMap(([name, given]: [string, ObjectOf<typeof bucket>]): LimitSettings[] => {
    const { quota, rate, capacity, burst, key } = given
    const path = areNamed ? `buckets.${name}.` : ''
    if (quota !== undefined) return countedBy(name, { ...given, quota }, path)
    if (rate === undefined) throw new RangeError(`${path}rate: missing; use e.g. "5/s", "6/30s", or quota`)
    checkCapacity(capacity ?? Infinity, { isShared, path })
    const bursts = burst !== undefined && { burst }
    return [{ name, rate, capacity: capacity ?? Infinity, ...bursts, isCommon: key === 'all' }]
  })
  const own = read.filter(({ isCommon }) => !isCommon)
  const quotas = own.filter(({ counts }) => counts !== undefined).map(({ name }) => name)
  const known = { isShared, areNamed, names: own.map(({ name }) => name), quotas }
  return {
    buckets: [...own, ...read.filter(({ isCommon }) => isCommon)],
    areNamed,
    limits: limits && keyLimits(limits, known),
    ...{ maxWait, maxInFlight, maxInFlightAll, maxKeys, maxQueued, retry, store, clock },
    credentials: credentials?.map(each => ({ ...each, origins: ['', ...(each.origins ?? [])] })),
  }
}

/** A quota, and what paces it. */
function countedBy(
  name: string,
  given: ObjectOf<typeof bucket> & { readonly quota: NonNullable<ObjectOf<typeof bucket>['quota']> },
  path: string,
): LimitSettings[] {
  const { limit, per, timeZone = 'UTC', spread = false } = given.quota
  const idle = (['rate', 'burst', ...(spread ? [] : ['capacity' as const])] as const).find(
    each => given[each] !== undefined,
  )
  if (idle !== undefined) throw new RangeError(`${path}${idle}: has no effect beside quota; remove it`)
  const isCommon = given.key === 'all'
  const counts = { per, timeZone, spread }
  const counted = { name, rate: QUOTA_RATE, capacity: limit, isCommon, counts }
  if (!spread) return [counted]
  const { capacity = DEFAULT_SPREAD } = given
  return [counted, { name: name + PACE, rate: limit / LENGTHS[per], capacity, isCommon, paces: true }]
}

function checkCredentials(
  credentials: ObjectOf<typeof shaper>['credentials'] = [],
  { areNamed }: { readonly areNamed: boolean },
): void {
  const names = credentials.map(({ name }) => name)
  const twice = names.findIndex((name, place) => names.indexOf(name) !== place)
  if (twice >= 0)
    throw new RangeError(`credentials[${twice}].name: there is another one of this name; use e.g. "second"`)
  const rated = credentials.findIndex(({ rate }) => rate !== undefined)
  if (areNamed && rated >= 0)
    throw new RangeError(`credentials[${rated}].rate: with several buckets all have the same rates; remove it`)
}

/** With a store. */
function checkInFlight(bounds: Pick<Changes, 'maxInFlight' | 'maxInFlightAll'>): void {
  for (const [name, bound] of Object.entries(bounds)) {
    if ((bound as Partial<InFlight> | undefined)?.by !== 'cost') continue
    throw new RangeError(`${name}: with a store it is a number of calls; use e.g. 10`)
  }
}

function checkCapacity(
  capacity: number | undefined,
  { isShared, path = '' }: { readonly isShared: boolean; readonly path?: string },
): void {
  if (capacity !== Infinity || !isShared) return
  throw new RangeError(`${path}capacity: with a store it has to be finite; use a number of cost units, e.g. 1000`)
}
