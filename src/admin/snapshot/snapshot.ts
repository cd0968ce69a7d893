/** What a process, or all of them together, tells of itself at one moment. */
import type { AgentClass } from '../../http/agent-class.js'
import type { Decision, Outcome } from '../../proxy/observe/observer.js'

export interface Snapshot {
  /** ms since 1970, fractional. */
  readonly at: number
  /** Seconds since the start. */
  readonly uptime: number
  /** How many processes this is of. */
  readonly processes: number
  readonly draining: boolean
  /** Where buckets are kept, and whether that can be relied on. */
  readonly store: {
    readonly type: 'memory' | 'redis' | 'postgres'
    readonly ready: boolean
    readonly instances: number
  }
  /** Requests in queues, and on their way to an upstream. */
  readonly queued: number
  readonly inFlight: number
  readonly buckets: readonly BucketSnapshot[]
  readonly routes: readonly RouteSnapshot[]
  readonly upstreams: readonly UpstreamSnapshot[]
  /** How long requests were queued, and how late releases were against their slots: of the last ten seconds. */
  readonly wait: Quantiles
  readonly lateness: Quantiles
  /** What dry runs would have done; undefined where no route is one. */
  readonly dryRun?: DryRunSnapshot
}

/** ms; all 0 where there were none. */
export interface Quantiles {
  readonly count: number
  readonly p50: number
  readonly p90: number
  readonly p99: number
  readonly max: number
}

export interface BucketSnapshot {
  readonly name: string
  /** As in the file, e.g. `ip`, or `ip + route`. */
  readonly key: string
  /** Cost units per second, now; `configured` where an upstream has had it lowered. */
  readonly rate: number
  readonly configured: number
  /** Cost units. */
  readonly capacity: number
  /** Routes that ask it. */
  readonly routes: readonly string[]
  /** Known instances. */
  readonly keys: number
  /** Cost units since the start: asked for, sent upstream, turned away. */
  readonly offered: number
  readonly released: number
  readonly rejected: number
  /** In queues: cost units, requests. */
  readonly queued: number
  readonly waiting: number
  /** At most 20, the fullest first. */
  readonly fullest: readonly InstanceSnapshot[]
  /** What happened lately at the fullest of them: times in ms since 1970, at most 256 each, oldest first. */
  readonly focus?: {
    readonly key: string
    readonly arrivals: readonly number[]
    readonly releases: readonly number[]
    readonly rejections: readonly number[]
  }
}

/** One instance of a bucket. */
export interface InstanceSnapshot {
  readonly key: string
  readonly tier?: string
  /** Its own: cost units per second, cost units. */
  readonly rate: number
  readonly capacity: number
  readonly level: number
  /** Requests. */
  readonly waiting: number
  /** ms until the next release is possible; 0: at once. */
  readonly nextReleaseMs: number
  /** ms for which everything is rejected; absent: not blocked; -1: until it has drained. */
  readonly blockedMs?: number
}

export interface RouteSnapshot {
  readonly name: string
  readonly mode: 'shape' | 'meter' | 'off'
  readonly dryRun: boolean
  readonly queued: number
  /** Requests since the start. */
  readonly outcomes: Readonly<Record<Outcome, number>>
  readonly rehearsed: Readonly<Record<Decision, number>>
}

export interface UpstreamSnapshot {
  readonly url: string
  readonly inFlight: number
  /** ms for which it has asked to be left alone; 0: it has not. */
  readonly pausedMs: number
  /** Cost units per second that it allows; absent: it has not said. */
  readonly allows?: number
}

export interface DryRunSnapshot {
  /** ms since 1970. */
  readonly since: number
  /** Who would have been hit most, at most 50. */
  readonly keys: readonly {
    readonly route: string
    readonly bucket: string
    readonly key: string
    readonly agent: AgentClass
    readonly wouldReject: number
    readonly wouldDelay: number
    /** ms; the longest that one would have been delayed. */
    readonly longestWait: number
  }[]
  readonly agents: Readonly<Record<AgentClass, Readonly<Record<Decision, number>>>>
}
