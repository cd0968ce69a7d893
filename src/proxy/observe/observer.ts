import type { SharedBucket } from '../../core/queue/lane.js'
import type { MembershipState } from '../../sharing/membership.js'

/** How a request ended; each ends with exactly one. */
export type Outcome = 'forwarded' | 'rejected' | 'cancelled' | 'expired' | 'failed' | 'refused'

/** What a dry run would have done to a request. */
export type Decision = 'would_reject' | 'would_delay'

/** A request as observers see it, as long as they are being called. */
export interface RequestRecord {
  /** '' before any matched. */
  readonly route: string
  /** '' where it could not be read. */
  readonly method: string
  /** As it came, the query included. */
  readonly target: string
  readonly stack: readonly SharedBucket[]
  /** Of the buckets of the stack. */
  readonly keys: readonly string[]
  readonly cost: number
  /** How long it was queued, in ms. */
  readonly wait: number
  /** From sending to the head of the answer, in ms. */
  readonly upstreamTime: number | undefined
  /** How often it was put back into its queue. */
  readonly retries: number
  /** It is with the upstream. */
  readonly inFlight: boolean
  /** A header, by its lower-case name. */
  header(name: string): string | undefined
}

/** Who watches: metrics, logs, the demo. Called on the hot path; must not throw. */
export interface Observer {
  /** A request is about to ask its buckets. */
  arrived?(request: RequestRecord): void
  /** A request waits. */
  queued?(request: RequestRecord): void
  /** It waits no more, whatever becomes of it. */
  unqueued?(request: RequestRecord): void
  /** It may leave for the upstream, in `shape`: how late against its slot, in ms. */
  released?(request: RequestRecord, lateness: number): void
  /** It is being sent. */
  sent?(request: RequestRecord): void
  finished?(request: RequestRecord, outcome: Outcome, status: number): void
  /** `bucket` decided; `wait` is the predicted one, in ms, of what would be delayed. */
  rehearsed?(request: RequestRecord, decision: Decision, bucket: string, wait: number): void
  /** Whether the store that instances share can be relied on, and how many of them there are. */
  shared?(state: MembershipState, instances: number): void
  /** An upstream wants to be left alone for so many ms; so many waiters were told that they would wait too long. */
  paused?(upstream: string, ms: number, expired: number): void
  /** What an upstream allows has changed: cost units per second, Infinity where it does not say. */
  learned?(upstream: string, rate: number): void
  /** A request is about to be sent again, in a slot of its own, instead of an answer with this status. */
  retried?(request: RequestRecord, status: number): void
  /** The upstream could not be used, or a WebSocket to it was closed because it was idle. */
  failed?(route: string, detail: string, cause?: Error): void
}
