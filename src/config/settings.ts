import type { BucketLimits } from '../core/bucket/bucket.js'

/**
 * The effective configuration: every default filled in, durations in milliseconds, rates in cost units per
 * millisecond, names resolved. This is what the other rooms read; the file's own vocabulary ends here.
 */
export interface Settings {
  listen: Listen
  /** Where levels and schedules are kept: in this process, or where instances share them; takes effect at start. */
  store: 'memory' | StoreSettings
  /** Which hops may set X-Forwarded-For: all, none, a hop count, or addresses, CIDRs and named ranges. */
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
  /** How releases are timed; takes effect at start. */
  pacing: 'precise' | 'timer'
  /** Undefined: there is no admin server. Takes effect at start. */
  admin?: AdminSettings
  /** Whether each request is logged. Takes effect at start. */
  accessLog: boolean
}

export interface AdminSettings {
  listen: { host: string; port: number }
  /** A secret. Undefined on a loopback address only. */
  token?: string
}

/** A store that instances share. Its URLs carry passwords: `maskUrl` of messages.ts before they are shown. */
export type StoreSettings = (
  | {
      type: 'redis'
      /** One server, or Sentinels. Absent where there is `cluster`, and only there. */
      url?: string
      /** URLs of some nodes. */
      cluster?: readonly string[]
      /** What every key starts with. */
      prefix: string
    }
  | {
      type: 'postgres'
      url: string
      /** `"table"` or `"schema.table"`. */
      table: string
    }
) & {
  /** How long an answer may take, in ms. */
  timeout: number
  /** Without the store: a share of the rates each, nothing, or everything. */
  onOutage: 'local' | 'closed' | 'open'
  /** How many instances there are at least, until the store has told. Absent: 1. */
  instances?: number
}

export interface Listen {
  /** Without the brackets of an IPv6 address. */
  host: string
  /** 0: any free port. */
  port: number
  /** File paths. */
  tls?: { cert: string; key: string }
}

export interface UpstreamSettings {
  /** `"http://host:port"`, `"https://host:port"` or `"echo:"`; never a trailing slash. */
  url: string
  hostHeader: 'preserve' | 'upstream'
  /** Infinity when the file sets none. */
  maxInFlight: number
  connectTimeout: number
  responseTimeout: number
  idleTimeout: number
  /** `ca` is a file path. */
  tls: { ca?: string; servername?: string }
  /** Answers that pause all releases. Durations in ms. */
  pauseOn?: { status: readonly number[]; default: number; max: number }
  /** Answers on which a request is put back at the head of its lane. */
  retry?: { status: readonly number[]; max: number }
  /** Whether requests carry `Via`, and one that comes back is refused. */
  via: boolean
  /** Whether the rate follows what its answers say of its limits. */
  learn: boolean
}

/** Header names are lower-cased. */
export type KeyPart =
  | { kind: 'all' | 'ip' | 'route' | 'method' | 'host' }
  | { kind: 'header' | 'cookie' | 'query'; name: string }

export interface KeySettings {
  parts: readonly KeyPart[]
  missing: 'ip' | 'reject' | 'all'
}

export interface BucketSettings {
  name: string
  key: KeySettings
  /** The status of a rejection, 400 to 599. */
  status: number
  /** The share of a lane whose stack has no weight before this one; absent where the file sets none. */
  weight?: number
  /** What holds for keys in no tier; `overflow` is always filled in. */
  limits: BucketLimits
  /** Cost units per millisecond, as in `limits`. */
  rate: number
  /** Cost units, as in `limits`. */
  capacity: number
  /** In file order. No key is in two of them. */
  tiers: readonly TierSettings[]
}

/** Other limits for some requests: those with one of the keys, or else with the headers. Either is enough. */
export interface TierSettings {
  name: string
  /** As the bucket's key gives them. */
  keys?: readonly string[]
  /** Names lower-cased, values exact; a request has to have all of them. */
  header?: Readonly<Record<string, string>>
  /** Named like the bucket, and whole: what the tier leaves out is the bucket's. */
  limits: BucketLimits
  /** The bucket's where the tier sets none. */
  weight?: number
}

export interface MatchSettings {
  /** Exact, or a prefix where it ends in `*`. */
  path?: string
  /** Upper-cased. */
  method?: readonly string[]
  /** Lower-cased. */
  host?: string
  /** Names lower-cased, values exact. */
  header?: Readonly<Record<string, string>>
}

export type CostSettings =
  | { kind: 'fixed'; cost: number }
  | { kind: 'method'; costs: Readonly<Record<string, number>>; default: number }
  | { kind: 'header'; name: string; min: number; max: number; default: number }

export interface RouteSettings {
  name: string
  match: MatchSettings
  mode: 'shape' | 'meter' | 'off'
  buckets: readonly BucketSettings[]
  cost: CostSettings
  /** Milliseconds; Infinity when the file sets none. */
  maxWait: number
  dryRun: boolean
  /** Whether answers tell how they were decided. */
  explain: boolean
  headers: boolean
  upstream: UpstreamSettings
}

export interface ServerLimits {
  /** Bucket instances. */
  maxKeys: number
  /** Requests queued in all. */
  maxQueued: number
  /** Of clients, open. */
  maxConnections: number
  headersTimeout: number
  keepAliveTimeout: number
  tunnelIdleTimeout: number
  /** Bytes. */
  maxHeaderSize: number
  shutdownTimeout: number
}
