import type { MembershipState } from '../stores/membership.js'

/** How a request ended; each ends with exactly one. */
export type Outcome = 'forwarded' | 'rejected' | 'cancelled' | 'expired' | 'failed' | 'refused'

/** What a dry run would have done to a request. */
export type Decision = 'would_reject' | 'would_delay'

/** Who watches: metrics, logs, the demo. Called on the hot path; must not throw. `route` is '' before any matched. */
export interface Observer {
  /** A request waits. */
  queued?(route: string): void
  /** It leaves the queue for the upstream: `wait` and how late against its slot, in ms. */
  released?(route: string, wait: number, lateness: number): void
  finished?(route: string, outcome: Outcome, status: number): void
  /** `bucket` decided; `wait` is the predicted one, in ms, of what would be delayed. */
  rehearsed?(route: string, decision: Decision, bucket: string, wait: number): void
  /** Whether the store that instances share can be relied on, and how many of them there are. */
  shared?(state: MembershipState, instances: number): void
  /** An upstream wants to be left alone for so many ms; so many waiters were told that they would wait too long. */
  paused?(upstream: string, ms: number, expired: number): void
  /** What an upstream allows has changed: cost units per second, Infinity where it does not say. */
  learned?(upstream: string, rate: number): void
  /** A request was put back into its queue after an answer with this status. */
  retried?(route: string, status: number): void
  /** The upstream could not be used. */
  failed?(route: string, detail: string, cause?: Error): void
}
