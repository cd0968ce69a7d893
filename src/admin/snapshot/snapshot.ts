/** The state of a process, or of all processes together, at one moment. */
import type { StoreSettings } from '../../config/store-url.js'
import type { AgentClass } from '../../http/agent-class.js'
import type { Decision, Outcome, RejectionCause } from '../../proxy/observe/observer.js'
import type { OnOutage } from '../../sharing/shard.js'

/** The answers of upstreams by the first digit of their status. */
type ResponseClass = '2xx' | '3xx' | '4xx' | '5xx'

export interface Snapshot {
  /** ms since 1970, fractional. */
  readonly at: number
  /** Seconds since the start. */
  readonly uptime: number
  readonly processes: number
  readonly draining: boolean
  /** Where buckets are kept, and whether that store answers. */
  readonly store: {
    readonly type: 'memory' | StoreSettings['type']
    readonly ready: boolean
    readonly instances: number
    /** Why it, or a shard of it, does not answer. Absent: all of it does, or nothing is known. */
    readonly reason?: string
    /** What is done without it. Absent: there is none, or an older version does not tell it. */
    readonly onOutage?: OnOutage
  }
  /** What is wrong and what comes next, in words. Absent: nothing. Of all that is told at once, and not in what instances show. */
  readonly troubles?: readonly string[]
  /** Requests in queues, and requests at an upstream. */
  readonly queued: number
  readonly inFlight: number
  /** How long the oldest request has been queued, in ms. Absent: none is. */
  readonly oldestMs?: number
  readonly buckets: readonly BucketSnapshot[]
  readonly routes: readonly RouteSnapshot[]
  readonly upstreams: readonly UpstreamSnapshot[]
  /** How long requests were queued, and how late releases were, in the last ten seconds. */
  readonly wait: Quantiles
  readonly lateness: Quantiles
  /** What dry runs would have done; undefined without a dry run. */
  readonly dryRun?: DryRunSnapshot
  /** One line for each instance of the store; undefined: only this program was asked for. */
  readonly members?: readonly MemberSnapshot[]
  /** The name of the only instance in this snapshot. Undefined: all, or only this program. */
  readonly shown?: string
  readonly watched?: WatchedSnapshot
}

export interface MemberSnapshot {
  /** No other instance has it. */
  readonly name: string
  readonly isHere: boolean
  readonly age: number
  readonly uptime: number
  readonly draining: boolean
  readonly storeReady: boolean
  readonly queued: number
  readonly inFlight: number
  readonly forwarded: number
  readonly rejected: number
  readonly errors: number
  readonly cpu: number
  /** In ms, of the last ten seconds. */
  readonly waitP99: number
}

/** Quantiles in ms; all 0 without samples. */
export interface Quantiles {
  readonly count: number
  readonly p50: number
  readonly p90: number
  readonly p99: number
  readonly max: number
}

export interface BucketSnapshot extends BucketRates {
  readonly name: string
  /** E.g. `ip`, or `ip + route`. */
  readonly key: string
  /** Cost units per second; null: any rate. `configured` is higher where an upstream has lowered the rate. */
  readonly rate: number | null
  readonly configured: number | null
  /** ISO 8601. Of a quota, which has no rate: when its count starts anew. */
  readonly quotaEnds?: string
  /** Cost units. null: it holds any amount. */
  readonly capacity: number | null
  /** Cost units that may leave without spacing. Absent: one request. */
  readonly burst?: number
  readonly routes: readonly string[]
  /** Known instances. */
  readonly keys: number
  /** Limits of single keys from outside. Absent: there are none. */
  readonly outside?: OutsideSnapshot
  /** The same per second, over the last five seconds. Absent: an instance of an older version does not tell it. */
  readonly perSecond?: BucketRates
  /** The cost units and the requests in queues. */
  readonly queued: number
  readonly waiting: number
  /** How long the oldest request of any of its keys has been queued, in ms. Absent: none is. */
  readonly oldestMs?: number
  /** At most 20, the fullest first. */
  readonly fullest: readonly InstanceSnapshot[]
  /** Recent events of one of the fullest instances: times in ms since 1970, at most 256 each, oldest first. */
  readonly focus?: {
    readonly key: string
    /** How many of the processes tell its events. Each watches one key. */
    readonly watchers: number
    readonly arrivals: readonly number[]
    readonly releases: readonly number[]
    readonly rejections: readonly number[]
  }
}

export interface OutsideSnapshot {
  /** How many keys have limits of their own. */
  readonly keys: number
  /** When they were read last, in ms since 1970. */
  readonly readAt: number
  /** Why they could not be read again since. Absent: nobody tried, or they could. */
  readonly failure?: string
}

/** Cost units, in all or per second: arrived, sent upstream, rejected. */
export interface BucketRates {
  readonly offered: number
  readonly released: number
  readonly rejected: number
}

/** One key of a bucket, with all that this program knows of it, since it is watched. */
export interface WatchedSnapshot extends BucketRates {
  readonly bucket: string
  readonly instance: Omit<InstanceSnapshot, 'predictedWaitMs' | 'heldBy'>
  readonly focus: NonNullable<BucketSnapshot['focus']>
}

export interface InstanceSnapshot {
  readonly key: string
  readonly tier?: string
  /** The limits of this instance: cost units per second, cost units. null is any rate, any amount. */
  readonly rate: number | null
  readonly capacity: number | null
  readonly burst?: number
  /** As that of its bucket. */
  readonly quotaEnds?: string
  /** Cost units: all that is in it, and of that what waits. */
  readonly level: number
  readonly unreported?: number
  /** Requests, and their cost. */
  readonly waiting: number
  readonly queued: number
  /** How long the oldest of them has been queued, in ms. Absent: none is, or only others were asked. */
  readonly oldestMs?: number
  /** ms until this bucket lets the next request pass. Absent: the store decides, or an older version does not tell it. */
  readonly nextReleaseMs?: number
  /** How long a newcomer would wait, on the route where that is longest. With `heldBy`: at least. */
  readonly predictedWaitMs: number
  /** What else holds a newcomer, for an unknown time. Absent: nothing. */
  readonly heldBy?: readonly string[]
  /** ms until the block ends; absent: not blocked; -1: blocked until it has drained. */
  readonly blockedMs?: number
  /** Its limits are overridden until then (ISO 8601). Absent: they are not. */
  readonly overriddenUntil?: string
}

export interface RouteSnapshot {
  readonly name: string
  readonly mode: 'shape' | 'meter' | 'off'
  readonly dryRun: boolean
  /** It stores requests. Absent: it does not. */
  readonly delivers?: true
  readonly queued: number
  readonly outcomes: Readonly<Record<Outcome, number>>
  /** How many of the forwarded were not sent: they got the answer to another one. Absent: none. */
  readonly coalesced?: number
  readonly upstreamResponses: Readonly<Record<ResponseClass, number>>
  /** Why requests were rejected, since the start. Reasons that have not happened are left out. */
  readonly rejections: Readonly<Partial<Record<RejectionCause['reason'], number>>>
  readonly rehearsed: Readonly<Record<Decision, number>>
  /** How long a newcomer would wait of whom nothing is known. Absent: nobody waits on this route. */
  readonly predictedWaitMs?: number
  readonly heldBy?: readonly string[]
  /** Absent: nothing is known of it, and no request was given up. */
  readonly patience?: PatienceSnapshot
}

/** How long the clients of a route wait for answers, and what follows from that. Times in ms. */
export interface PatienceSnapshot {
  /** After how long most clients leave, as learnt; absent: not known. */
  readonly learntMs?: number
  /** The upstream's usual time to answer; absent: not known. */
  readonly serviceMs?: number
  /** Requests that were given up: since the start, and in the last minute. */
  readonly givenUp: number
  readonly lastMinute: number
}

export interface UpstreamSnapshot {
  readonly url: string
  readonly inFlight: number
  /** How many may be. Absent: any number. */
  readonly maxInFlight?: number
  /** That many are, and requests that could be sent wait for an end of one. */
  readonly isFull?: boolean
  /** ms until its pause ends; 0: no pause. */
  readonly pausedMs: number
  /** Since how many ms it answers nothing, and when the first request is given up. Absent: it answers, or may yet. */
  readonly silent?: { readonly ms: number; readonly givenUpMs: number }
  /** It fails: ms until the next probe. 0: it is being tried, or the next request tries it. Absent: it does not fail. */
  readonly probeMs?: number
  /** Why the last request failed, where it fails. */
  readonly failure?: string
  /** The rate that it allows, in cost units per second; absent: unknown. */
  readonly allows?: number
  /** Absent: it has one. */
  readonly servers?: readonly ServerSnapshot[]
  /** Its part of `troubles`, without its URL. */
  readonly trouble?: string
}

/** One of several servers of an upstream. With several processes it is down if one of them finds it down. */
export interface ServerSnapshot {
  readonly url: string
  readonly isUp: boolean
  readonly inFlight: number
  /** How many may be. Absent: as many as the upstream's. */
  readonly maxInFlight?: number
  readonly weight: number
  /** It takes requests only while no other is up. */
  readonly backup: boolean
  /** The part of its weight that it has while it warms up. Absent: it has warmed up. */
  readonly part?: number
  /** While it is down: ms until its next probe or check. 0: it is being tried, or the next request tries it. */
  readonly probeMs?: number
  /** Why it is down. Absent: it is up, or its last check passed. */
  readonly failure?: string
}

export interface DryRunSnapshot {
  readonly since: number
  /** The keys hit most, at most 50. */
  readonly keys: readonly {
    readonly route: string
    readonly bucket: string
    readonly key: string
    readonly agent: AgentClass
    readonly wouldReject: number
    readonly wouldDelay: number
    /** The longest delay, in ms. */
    readonly longestWait: number
  }[]
  readonly agents: Readonly<Record<AgentClass, Readonly<Record<Decision, number>>>>
}
