import type { Settings } from '../config/settings.js'
import type { BucketTable } from '../core/bucket-table.js'
import type { Shaper } from '../core/shaper.js'
import type { Pacer } from '../pacing/armed-writes.js'
import type { Sharing } from '../sharing/sharing.js'
import type { Deadlines } from './deadlines.js'
import type { Egress } from './egress/egress.js'
import type { OpenBodies } from './exchange/body.js'
import type { Coalescing } from './features/coalesce.js'
import type { PageStreams } from './features/page-streams.js'
import type { Tickets } from './features/tickets.js'
import type { ByteBudget } from './http/byte-budget.js'
import type { ClientConnection, Reply } from './http/client.js'
import type { Trust } from './http/client-address.js'
import type { Via } from './http/headers.js'
import type { BodyLimits, LingerDeadlines } from './http/pace.js'
import type { LearnedLimits } from './learned-limits.js'
import type { KeyLimits } from './limits/key-limits.js'
import type { Observer, Propagate } from './observe/observer.js'
import type { Overrides } from './overrides.js'
import type { Identity } from './routing/identity.js'
import type { Claims } from './routing/key.js'
import type { Route, RoutedRequest } from './routing/route.js'
import type { Upstream } from './upstream/upstream.js'
import type { UpstreamQuota } from './upstream/upstream-quota.js'

/** A request to store, with what its route has found. */
export interface Accepted extends Pick<RoutedRequest, 'facts'> {
  readonly connection: Pick<ClientConnection, 'peer' | 'peerKey' | 'certificate' | 'encrypted'>
  readonly claims: Claims
  readonly keys: readonly string[]
  readonly body: Buffer
}

/** An answer about a delivery: what it says as JSON, or why not. */
export type DeliveryAnswer =
  | { readonly status: number; readonly headers: readonly string[]; readonly body: string }
  | Reply

export type DeliveryOrder =
  | { readonly verb: 'list'; readonly state: string | undefined }
  /** How many wait and how many are dead, of each route. */
  | { readonly verb: 'count' }
  /** `show`: lists the one. `retry`: sends a dead letter again. `remove`: deletes what is finished, and cancels what waits. */
  | { readonly verb: 'show' | 'retry' | 'remove'; readonly id: string }

export interface DeliveryCount {
  readonly route: string
  readonly state: string
  readonly count: number
  /** ms. The age of the oldest. */
  readonly age: number
}

/** Keeps requests and sends them in their turn (src/deliver). It sends them through the exchange as any other client. */
export interface Deliveries {
  /** A route stores requests. */
  readonly isUsed: boolean
  /** Before the proxy listens. @throws if a database cannot be used */
  start(context: ProxyContext): Promise<void>
  /** Opens the databases of other settings. @returns puts them into effect @throws as `start` */
  prepare(settings: Settings): Promise<() => void>
  /** Keys have got other limits. What was held up for long is tried again. */
  limitsChanged(): void
  /** Never throws: what fails is an answer. */
  accept(route: Route, request: Accepted): Promise<DeliveryAnswer>
  /** A question about a delivery. @param id as in its path, from a client */
  ask(method: string, id: string, client: string): Promise<DeliveryAnswer>
  /** For operators. @returns what is listed, or whether it was done */
  administer(order: DeliveryOrder): Promise<readonly object[] | boolean>
  counts(): Promise<readonly DeliveryCount[]>
  /** Ends of attempts in this process, by route and result. */
  readonly results: ReadonlyMap<string, ReadonlyMap<string, number>>
  /** Begins no more. What is sent may end. */
  leave(): void
  close(): Promise<void>
}

export interface ProxyContext {
  readonly clock: Pacer
  /** ms since 1970, for dates in headers. */
  readonly wallNow: () => number
  /** Another one when a successor has taken over. */
  shaper: Shaper
  readonly bucketTable: BucketTable
  /** Undefined: buckets are kept in memory. */
  readonly sharing: Sharing | undefined
  readonly learned: LearnedLimits
  readonly overrides: Overrides
  readonly keyLimits: KeyLimits
  rateLearned(quota: UpstreamQuota): void
  routes: readonly Route[]
  /** Those of routes, and former ones that still have requests. */
  readonly upstreams: Iterable<Upstream>
  /** Undefined: the routes decide where requests go. */
  readonly egress: Egress | undefined
  trust: Trust
  readonly via: Via
  /** Undefined: no key asks for who a request is from. */
  identity: Identity | undefined
  /** Undefined: no route stores requests. */
  readonly deliveries: Deliveries | undefined
  readonly observer: Observer
  readonly propagate: Propagate | undefined
  readonly bodyBytes: ByteBudget
  bodyLimits: BodyLimits
  readonly openBodies: OpenBodies
  readonly tickets: Tickets
  readonly coalescing: Coalescing
  readonly pageStreams: PageStreams
  /** For clients that are still sending a body after their answer. */
  readonly linger: LingerDeadlines
  /** For clients that do not read our answers. */
  readonly flush: Deadlines
  /** At this number an idle connection makes room for the next one. If none is idle, that is answered 503. */
  maxConnections: number
  /** Connections of one peer above this number are answered 503, unless it is a trusted hop. */
  connectionsPerClient: number
  tunnelIdleTimeout: number
  /** The end is near: /readyz is 503, and each connection closes after its current request. */
  leaving: boolean
  /** The server is shutting down: it accepts no more. */
  draining: boolean
  /** That decides: requests that were sent ahead of answers are served. Else they are answered 503 when the server shuts down. */
  hasSuccessor: boolean
  /** Requests that have begun and have not ended, connections whose last request is waited for, and a process with guests here. */
  inProgress: number
  idle(): void
}
