import type { BucketTable } from '../core/bucket-table.js'
import type { Clock } from '../core/clock.js'
import type { Gate } from '../core/queue/lane.js'
import type { Shaper } from '../core/shaper.js'
import type { Sharing } from '../sharing/sharing.js'
import type { Deadlines } from './deadlines.js'
import type { Trust } from './http/client-address.js'
import type { LingerDeadlines } from './http/linger.js'
import type { Via } from './http/via.js'
import type { LearnedLimits } from './learned-limits.js'
import type { Observer } from './observe/observer.js'
import type { Route } from './routing/route.js'
import type { UpstreamQuota } from './upstream/upstream-quota.js'

/** What all requests have in common: the line of the design, server -> route -> key -> admit -> lane -> forward. */
export interface ProxyContext {
  readonly clock: Clock
  /** ms since 1970, for dates in headers. */
  readonly wallNow: () => number
  readonly shaper: Shaper
  readonly bucketTable: BucketTable
  /** Where buckets are kept in a store. */
  readonly sharing: Sharing | undefined
  /** What upstreams have said of their own limits. */
  readonly learned: LearnedLimits
  rateLearned(quota: UpstreamQuota): void
  routes: readonly Route[]
  trust: Trust
  readonly via: Via
  readonly observer: Observer
  /** For clients that still send a body nobody wants. */
  readonly linger: LingerDeadlines
  /** For clients that do not take our answers. */
  readonly flush: Deadlines
  /** Open ones; to those above it nothing but a refusal is given. */
  maxConnections: number
  /** How long a WebSocket may be silent, in ms. */
  tunnelIdleTimeout: number
  /** No new requests; connections end after their current one. */
  draining: boolean
  /** How many requests have begun and not been answered, refused or abandoned. */
  inProgress: number
  /** Called when `inProgress` falls to 0. */
  idle(): void
}

/** A request in flight has ended: the next may go. */
export function leaveGate({ shaper }: ProxyContext, gate: Gate): void {
  gate.leave()
  if (gate.awaited) shaper.wake(gate)
}
