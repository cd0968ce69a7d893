import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import type { JsonPath } from '../http/figures/json-path.js'
import type { Normalisation } from '../http/matching/path-pattern.js'
import type { Finding } from './problems.js'
import type { ProfileName } from './profiles.js'

/**
 * The effective configuration, as the other folders read it: defaults are filled in, names resolved, durations in ms,
 * rates in cost units per ms.
 */
export interface Settings {
  listen: Listen
  /** Where levels and schedules are kept: in this process, or shared by instances. Takes effect at start. */
  store: 'memory' | StoreSettings
  /** The hops that may set X-Forwarded-For: all, none, a hop count, or addresses, CIDRs and named ranges. */
  trustProxy: boolean | number | readonly string[]
  /** In file order. */
  buckets: readonly BucketSettings[]
  /** In file order: the first match wins. */
  routes: readonly RouteSettings[]
  limits: ServerLimits
  /** Also folded into each route's own `dryRun`. */
  dryRun: boolean
  /** Also folded into each route's own `headers`. */
  headers: boolean
  /** How releases are timed. Takes effect at start. */
  pacing: 'precise' | 'timer'
  /** Undefined: no admin server. Takes effect at start. */
  admin?: AdminSettings
  /** Secrets that sign tickets. The first one signs, all are accepted. Undefined: one is made. */
  ticketKeys?: readonly string[]
  /** Undefined: requests go to the upstream of their route. Takes effect at start, but for what is in it. */
  egress?: EgressSettings
  /** Whether each request is logged. Takes effect at start. */
  accessLog: boolean
  /** Texts of the file in which `$NAME` is perhaps meant as a variable. */
  notReplaced?: readonly Finding[]
}

export interface AdminSettings {
  listen: { host: string; port: number }
  /** A secret. Only undefined on a loopback address. */
  token?: string
}

/** Where requests go: to the upstreams of their routes, or where they say (`--egress`). */
export type ConfigMode = 'proxy' | 'egress'

/** Requests go where they say. The upstream of every route has the URL `"egress:"`, which stands for all that are allowed. */
export interface EgressSettings {
  /** `"host:port"` in the spelling of `formatAuthority`. */
  allow: readonly string[]
  /** A secret. Only undefined on a loopback address. */
  token?: string
}

/** A store that instances share. Its URLs hold passwords: mask them with `maskUrl` before showing them. */
export type StoreSettings = (
  | {
      type: 'redis'
      /** One server, or Sentinels. Exactly one of `url` and `cluster` is set. */
      url?: string
      /** URLs of some nodes. */
      cluster?: readonly string[]
      /** The prefix of every key. */
      prefix: string
    }
  | {
      type: 'postgres'
      url: string
      /** `"table"` or `"schema.table"`. */
      table: string
    }
) & {
  /** The longest time for an answer, in ms. */
  timeout: number
  /** What to release without the store: a share of the rates, nothing, or everything. */
  onOutage: 'local' | 'closed' | 'open'
  /** The least number of instances to assume until the store has answered. Absent: 1. */
  instances?: number
}

export interface Listen {
  /** Without the brackets of an IPv6 address. */
  host: string
  /** 0: any free port. */
  port: number
  /** File paths. */
  tls?: { cert: string; key: string }
  /** Where gates are asked by gRPC. Undefined: nowhere. */
  grpc?: { host: string; port: number }
}

export interface UpstreamSettings {
  /** What the file took from a profile is in the other settings, and in buckets. */
  profile?: ProfileName
  /** `"http://host:port"`, `"https://host:port"`, `"echo:"`, `"gate:"` or `"egress:"`; never a trailing slash. */
  url: string
  hostHeader: 'preserve' | 'upstream'
  /** Infinity when the file sets none. */
  maxInFlight: number
  /** Most connections, those of `off` routes and dry runs included. Absent when the file sets none. */
  connections?: number
  /** How long an idle connection is kept. 0: each serves one request. */
  keepAlive: number
  /** No connection serves another request after this age. */
  maxConnectionAge: number
  /** Bytes of a body that are read before its request is sent. */
  requestBuffer: number
  /** Bytes of an answer that are read ahead of its client. */
  responseBuffer: number
  connectTimeout: number
  responseTimeout: number
  idleTimeout: number
  /** `ca` is a file path. */
  tls: { ca?: string; servername?: string }
  /** Undefined: none. */
  breaker?: BreakerSettings
  /** What its rate adapts to. Undefined: it does not. */
  adapt?: AdaptSettings
  /** How long the rate climbs from a tenth after a failure or a pause. Undefined: no climb. */
  warmUp?: number
  /** Answers that pause all releases. Durations in ms. */
  pauseOn?: { status: readonly number[]; default: number; max: number }
  /** Answers after which a request goes back to the head of its lane. */
  retry?: { status: readonly number[]; max: number }
  /** Whether requests carry `Via`, and a request that comes back is refused. */
  via: boolean
  /** Whether requests go over HTTP/2. */
  http2: boolean
  /** Whether the rate follows the rate limit headers of its answers. */
  learn: boolean
  /** In which of the limits of its URL its requests count. Undefined: in the one of all that name none. */
  resource?: string
}

/** What the rate of an upstream adapts to. Rates in cost units per ms. */
export interface AdaptSettings {
  min: number
  max: number
  start: number
  /** The part of the answers, 0 to 1, whose latency is to be at most `ms`. Absent: any latency will do. */
  latency?: { part: number; ms: number }
  /** The part of the requests that may fail, 0 to 1. */
  errors: number
}

/** When requests are kept away from an upstream that fails. Durations in ms. */
export interface BreakerSettings {
  /** So many failures in a row open it. */
  failures: number
  /** Answers that count as failures. */
  status: readonly number[]
  /** From the opening to the first probe. Each further one is twice as long after the one before. */
  probe: number
  maxProbe: number
  /** How long requests wait for it to close. */
  hold: number
}

/** Header names are lower-cased. */
export type KeyPart =
  | { kind: 'all' | 'ip' | 'route' | 'method' | 'host' }
  | { kind: 'header' | 'cookie' | 'query'; name: string }

export interface KeySettings {
  parts: readonly KeyPart[]
  /** What to do with a request without a part of it. `skip`: the bucket does not apply to it. */
  missing: 'ip' | 'reject' | 'all' | 'skip'
  /** What to do with a header of the key that has several lines: the first counts, or 400. */
  duplicates: 'first' | 'reject'
  /** Bits of an IPv6 network in the key, 1 to 128. */
  ipv6: number
}

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
  /** Absent when the file sets none. */
  timeZone?: string
  /** Cost units per millisecond, as in `limits`. */
  rate: number
  /** Cost units, as in `limits`. */
  capacity: number
  /** In file order. No key is in two tiers. */
  tiers: readonly TierSettings[]
}

/** A rate by the time of day. The first entry whose time it is counts; the last has no times. */
export interface RateSchedule {
  /** IANA */
  timeZone: string
  entries: readonly RateEntry[]
}

export interface RateEntry {
  /** Minutes since midnight. The end is not within, and may be on the next day. Both or none are set. */
  from?: number
  to?: number
  /** Cost units per millisecond. */
  rate: number
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

export interface MatchSettings {
  /** Text in which `*` stands for any text, or `~ ` and a regular expression. */
  path?: string
  /** Differences in the path that do not count. Only set beside a path. */
  normalise?: readonly Normalisation[]
  /** Upper-cased. */
  method?: readonly string[]
  /** Lower-cased; `*` stands for any text. */
  host?: string
  /** Names lower-cased; in values `*` stands for any text. */
  header?: Readonly<Record<string, string>>
  /** Addresses and CIDRs of clients. */
  ip?: readonly string[]
}

export type CostSettings =
  | { kind: 'fixed'; cost: number }
  | { kind: 'method'; costs: Readonly<Record<string, number>>; default: number }
  | { kind: 'header'; name: string; min: number; max: number; default: number }
  | { kind: 'buckets'; costs: Readonly<Record<string, BucketCostSettings>> }

/** What a request costs in one bucket: reserved before it is sent, and corrected by its answer. */
export interface BucketCostSettings {
  /** A number, the bytes of the body divided by one, or what the body says. */
  estimate: number | { bytesPerUnit: number } | { path: JsonPath }
  /** Where the body says what the answer may cost. That is reserved as well. */
  max?: JsonPath
  /** Where the answer says what the request has cost: the first of these that is there counts. */
  after?: readonly JsonPath[]
}

export interface RouteSettings {
  name: string
  /** The only origin that it leads to, as in a URL. Absent: it leads to its upstream, wherever that is. */
  origin?: string
  match: MatchSettings
  mode: 'shape' | 'meter' | 'off'
  buckets: readonly BucketSettings[]
  cost: CostSettings
  /** Milliseconds; Infinity when the file sets none. */
  maxWait: number
  /** 0 to 7, or what trusted hops say in `Priority`. */
  priority: number | 'header'
  /** How long clients wait for an answer: ms, learnt, or for ever. */
  patience: number | 'auto' | 'none'
  dryRun: boolean
  /** Whether it answers 404 to all. Its mode is `off`. */
  refuse: boolean
  /** Whether answers explain their decision. */
  explain: boolean
  /** Whether one answer does for identical GETs that wait at the same time. */
  coalesce: boolean
  /** Whether rejections carry a ticket, for which room is kept. */
  appointments: boolean
  /** What rejected browsers get in place of the problem document. Absent: nothing. */
  waitingPage?: WaitingPageSettings
  headers: boolean
  /** Set if its upstream is `"gate:"`: it forwards nothing, and tells a proxy when a request may pass. */
  gate?: GateSettings
  upstream: UpstreamSettings
}

export interface WaitingPageSettings {
  /** A file path. Absent: the page that comes with the program. */
  template?: string
}

export interface GateSettings {
  /** The status of every rejection. Absent: that of the bucket, or 503. */
  rejectStatus?: number
}

export interface ServerLimits {
  /** Bucket instances. */
  maxKeys: number
  /** Requests queued in all. */
  maxQueued: number
  /** Open client connections. */
  maxConnections: number
  /** Open connections of one address. */
  connectionsPerClient: number
  headersTimeout: number
  keepAliveTimeout: number
  tunnelIdleTimeout: number
  /** How long the body of a request may take from its turn on, in ms. */
  bodyTimeout: number
  /** Bytes/s that a client must send or take while we wait for it. 0: none. */
  minBodyRate: number
  /** Bytes of all buffers together. */
  bufferMemory: number
  /** Bytes. */
  maxHeaderSize: number
  /** Header fields of a request. */
  maxHeaders: number
  /** ms from SIGTERM until no more connections are accepted. */
  drainDelay: number
  shutdownTimeout: number
}
