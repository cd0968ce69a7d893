import type { BucketTable } from '../core/bucket-table.js'
import type { Shaper } from '../core/shaper.js'
import type { Pacer } from '../pacing/pacer.js'
import type { Sharing } from '../sharing/sharing.js'
import type { Coalescing } from './coalescing/groups.js'
import type { Deadlines } from './deadlines.js'
import type { Egress } from './egress/egress.js'
import type { BodyLimits } from './exchange/body/body-limits.js'
import type { OpenBodies } from './exchange/body/open-bodies.js'
import type { Tickets } from './exchange/tickets/tickets.js'
import type { Trust } from './http/client-address.js'
import type { ByteBudget } from './http/connection/byte-budget.js'
import type { LingerDeadlines } from './http/connection/linger.js'
import type { Via } from './http/via.js'
import type { LearnedLimits } from './learned-limits.js'
import type { Observer } from './observe/observer.js'
import type { Propagate } from './observe/propagate.js'
import type { Overrides } from './overrides.js'
import type { Route } from './routing/route.js'
import type { UpstreamQuota } from './upstream/upstream-quota.js'
import type { PageStreams } from './waiting/page-streams.js'

/** What all requests of one proxy share. */
export interface ProxyContext {
  readonly clock: Pacer
  /** ms since 1970, for dates in headers. */
  readonly wallNow: () => number
  readonly shaper: Shaper
  readonly bucketTable: BucketTable
  /** Undefined: buckets are kept in memory. */
  readonly sharing: Sharing | undefined
  /** Limits that upstreams have announced. */
  readonly learned: LearnedLimits
  /** Other limits of single keys. */
  readonly overrides: Overrides
  rateLearned(quota: UpstreamQuota): void
  routes: readonly Route[]
  /** Undefined: the routes decide where requests go. */
  readonly egress: Egress | undefined
  trust: Trust
  readonly via: Via
  readonly observer: Observer
  /** Undefined: requests are not traced. */
  readonly propagate: Propagate | undefined
  /** Bytes of bodies and answers that are held in memory. */
  readonly bodyBytes: ByteBudget
  bodyLimits: BodyLimits
  readonly openBodies: OpenBodies
  readonly tickets: Tickets
  readonly coalescing: Coalescing
  /** Of pages that wait to come back. */
  readonly pageStreams: PageStreams
  /** For clients that are still sending a body after their answer. */
  readonly linger: LingerDeadlines
  /** For clients that do not read our answers. */
  readonly flush: Deadlines
  /** At this number an idle connection makes room for the next one. If none is idle, that is answered 503. */
  maxConnections: number
  /** Connections of one peer above this number are answered 503, unless it is a trusted hop. */
  connectionsPerClient: number
  /** Time in ms after which a WebSocket without traffic is closed. */
  tunnelIdleTimeout: number
  /** The end is near: /readyz is 503, and each connection closes after its current request. */
  leaving: boolean
  /** The server is shutting down: it accepts no more, and requests that were sent ahead of answers are answered 503. */
  draining: boolean
  /** Requests that have begun and have not ended, and connections whose last request is waited for. */
  inProgress: number
  /** Called when `inProgress` falls to 0. */
  idle(): void
}
