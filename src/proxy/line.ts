import type { Clock } from '../core/clock.js'
import type { Keyspace } from '../core/keyspace.js'
import type { Gate } from '../core/lane.js'
import type { Shaper } from '../core/shaper.js'
import type { Sharing } from '../stores/sharing.js'
import type { Trust } from './address.js'
import type { Deadlines } from './deadline.js'
import type { Observer } from './events.js'
import type { LearnedLimits } from './learned-limits.js'
import type { Route } from './route.js'
import type { UpstreamQuota } from './upstream-quota.js'

/** What all requests have in common: the line of the design, server -> route -> key -> admit -> lane -> forward. */
export interface Line {
  readonly clock: Clock
  /** ms since 1970, for dates in headers. */
  readonly wallNow: () => number
  readonly shaper: Shaper
  readonly keyspace: Keyspace
  /** Where buckets are kept in a store. */
  readonly sharing: Sharing | undefined
  /** What upstreams have said of their own limits. */
  readonly learned: LearnedLimits
  relearned(quota: UpstreamQuota): void
  routes: readonly Route[]
  trust: Trust
  readonly observer: Observer
  /** For clients that still send a body nobody wants. */
  readonly linger: Deadlines
  /** For clients that do not take our answers. */
  readonly flush: Deadlines
  /** Open ones; to those above it nothing but a refusal is given. */
  maxConnections: number
  /** No new requests; connections end after their current one. */
  draining: boolean
  /** How many requests have begun and not been answered, refused or abandoned. */
  inProgress: number
  /** Called when `inProgress` falls to 0. */
  idle(): void
}

/** A request in flight has ended: the next may go. */
export function leaveGate({ shaper }: Line, gate: Gate): void {
  gate.leave()
  if (gate.awaited) shaper.wake(gate)
}
