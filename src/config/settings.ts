import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import type { QuotaSettings } from './periods.js'
import type { Finding } from './problems.js'
import type { File } from './schema/schema.js'

/** Where requests go: to the upstreams of their routes, or where they say (`--egress`). */
export type ConfigMode = 'proxy' | 'egress'

/**
 * The effective configuration, as the other folders read it: defaults are filled in, names resolved, durations in ms, rates in cost
 * units per ms. `listen`, `store`, `pacing`, `admin`, `egress` and `accessLog` take effect at start, but for what is allowed in
 * `egress`.
 */
export interface Settings
  extends Omit<File, '$schema' | 'upstream' | 'waitingPage' | 'store' | 'buckets' | 'routes' | 'egress'> {
  store: Exclude<File['store'], { type: 'memory' }>
  /** Where the levels of the memory are kept over restarts. Absent: they are not. */
  levelsFile?: string
  /** In file order. */
  buckets: readonly BucketSettings[]
  /** In file order: the first match wins. */
  routes: readonly RouteSettings[]
  /** Requests go where they say. Undefined: to the upstream of their route. */
  egress?: EgressSettings
  /** Texts of the file in which `$NAME` is perhaps meant as a variable. */
  notReplaced?: readonly Finding[]
}

/** The upstream of every route has the URL `"egress:"`, which stands for all that are allowed. */
export type EgressSettings = Omit<NonNullable<File['egress']>, 'upstream'>

export interface BucketSettings {
  name: string
  key: KeySettings
  /** The status of a rejection, 400 to 599. */
  status: number
  /** The weight of a lane, unless an earlier bucket of its stack has one. Absent when the file sets none. */
  weight?: number
  /** The limits of keys in no tier. `overflow` and `minShare` are always set. With a schedule `rate` is its lowest, or the present one. */
  limits: BucketLimits
  /** Absent: the rate is always the same. */
  schedule?: RateSchedule
  timeZone?: string
  /** It counts by the calendar. Its limit, and that of a tier, is the capacity. Absent: it has a rate. */
  quota?: QuotaSettings
  /** It paces the quota before it, whose name it has with `PACE` behind it. The file has no such bucket. */
  paces?: true
  /** Cost units per millisecond, as in `limits`. */
  rate: number
  /** Cost units, as in `limits`. */
  capacity: number
  /** In file order. No key is in two tiers. */
  tiers: readonly TierSettings[]
  /** Absent: no key has limits of its own but in a tier. */
  outside?: OutsideLimits
}

/** Where limits of single keys are. */
export type LimitsSource =
  | { file: string }
  | {
      postgres: { url: string; query: string }
      /** ms */
      refresh: number
      channel?: string
    }

/** Limits of single keys, from outside. They go before those of tiers. */
export interface OutsideLimits {
  source: LimitsSource
  /** As the file says of the bucket, for keys with a rate of their own. */
  capacity?: number
  /** ms */
  maxDelay?: number
  /** The part of a worker in what bounds the machine. Absent: there is one process. */
  worker?: { number: number; count: number }
}

/** A rate by the time of day. The first entry whose time it is counts; the last has no times. */
export interface RateSchedule {
  /** IANA */
  timeZone: string
  entries: readonly RateEntry[]
}

/** Other limits for requests with one of the keys, or with all of the headers. */
export interface TierSettings {
  name: string
  /** Values of the bucket's key. Where that is the address alone, CIDRs too. */
  keys?: readonly string[]
  /** Names lower-cased, values exact. A request needs all of them. */
  header?: Readonly<Record<string, string>>
  /** Named like the bucket, and complete: a limit that the tier leaves out is that of the bucket. */
  limits: BucketLimits
  /** That of the bucket when the tier sets no rate. */
  schedule?: RateSchedule
  /** The weight of the bucket when the tier sets none. */
  weight?: number
  /** 0 to 7. Absent: that of the route. */
  priority?: number
}

export interface WaitingPageSettings {
  /** A file path. Absent: the page that comes with the program. */
  template?: string
}

export interface RouteSettings extends Omit<Route, 'buckets' | 'waitingPage'> {
  name: string
  /** The only origin that it leads to, as in a URL. Absent: it leads to its upstream, wherever that is. */
  origin?: string
  buckets: readonly BucketSettings[]
  /** ms; Infinity when the file sets none. */
  maxWait: number
  /** What rejected browsers get in place of the problem document. Absent: nothing. */
  waitingPage?: WaitingPageSettings
  headers: boolean
  upstream: UpstreamSettings
}

type Bucket = File['buckets'][string]
type Route = NonNullable<File['routes']>[number]
export type Listen = File['listen'][number]
export type ServerLimits = File['limits']
export type AdminSettings = NonNullable<File['admin']>
export type KeySettings = Bucket['key']
export type KeyPart = KeySettings['parts'][number]
export type RateEntry = Exclude<NonNullable<Bucket['rate']>, number>[number]
export type MatchSettings = Route['match']
export type CostSettings = Route['cost']
export type BucketCostSettings = Extract<CostSettings, { kind: 'buckets' }>['costs'][string]
export type GateSettings = NonNullable<Route['gate']>
export type DeliverSettings = NonNullable<Route['deliver']>
export type UpstreamSettings = NonNullable<File['upstream']>
export type AdaptSettings = NonNullable<UpstreamSettings['adapt']>
export type ServerSettings = NonNullable<UpstreamSettings['servers']>[number]
export type HealthSettings = NonNullable<UpstreamSettings['health']>
export type BreakerSettings = NonNullable<UpstreamSettings['breaker']>
export type JwtSettings = NonNullable<File['identity']>['jwt']
