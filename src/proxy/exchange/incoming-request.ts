import type { Comeback } from '../../core/admission/comeback.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import { pacedLimits } from '../../core/bucket/pace.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { Cost, SharedBucket } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import { followersOf } from '../../http/quota/quota-fields.js'
import type { ProxyContext } from '../context.js'
import { askedRequest } from '../features/gate.js'
import { asksForPage } from '../features/waiting-page.js'
import type { ClientConnection, ClientRequest, RenderedPage } from '../http/client.js'
import { addressKey, clientAddress } from '../http/client-address.js'
import { upstreamHeaders } from '../http/headers.js'
import { headerValue, Refusal, type RequestFacts } from '../http/request.js'
import type { BucketOwner } from '../limits/key-limits.js'
import { limitsOf } from '../live-limits.js'
import { type BodyFigures, NO_BODY } from '../routing/bucket-costs.js'
import { type Claims, NO_CLAIMS } from '../routing/key.js'
import { currentUpstream, priorityOf, type Route, type RouteBucket, type RoutedRequest } from '../routing/route.js'
import { hostTowards, requestEnded } from '../upstream/upstream.js'
import type { UpstreamServer } from '../upstream/upstream-server.js'
import { type Prospects, prospectsOf } from './prospects.js'

const NOTHING: readonly never[] = []
const NO_ROUTE = new Refusal(404, 'no route matches')
const REFUSED = new Refusal(404, 'a route with "refuse" takes it')

function unlessRefused(route: Route): Route | Refusal {
  return route.settings.refuse ? REFUSED : route
}

export class IncomingRequest implements Applicant {
  facts!: RequestFacts
  stack: readonly SharedBucket[] = NOTHING
  keys: readonly string[] = NOTHING
  cost = 0
  costs: readonly number[] | undefined
  priority = DEFAULT_PRIORITY
  claims = NO_CLAIMS
  /** What its route looks for in its body. */
  body = NO_BODY
  prospects: Prospects | undefined
  /** The route that it goes to, at whose upstream it counts. Undefined: none has matched. */
  route: Route | undefined
  #asked: RequestFacts | undefined
  #address: string | undefined
  #client: string | undefined

  constructor(
    readonly context: ProxyContext,
    readonly connection: ClientConnection,
    readonly req: ClientRequest,
  ) {}

  get isAsked(): boolean {
    return this.#asked !== undefined
  }

  get address(): string {
    this.#address ??= addressOfClient(this.context, this.connection, this.facts)
    return this.#address
  }

  get client(): string {
    this.#client ??= clientKey(this.address, this.connection)
    return this.#client
  }

  get certificate(): string | undefined {
    return this.connection.certificate
  }

  get method(): string {
    return this.#asked?.method ?? this.req.method
  }

  get target(): string {
    return this.#asked?.target ?? this.req.url
  }

  header(name: string): string | undefined {
    return headerValue(this.req.rawHeaders, name)
  }

  /** The first that matches. A gate looks at the request that a trusted proxy asks for. */
  findRoute(): Route | Refusal {
    let asked: RequestFacts | Refusal | undefined
    const { stored } = this.req
    if (stored !== undefined) return this.context.routes.find(({ name }) => name === stored.route) ?? NO_ROUTE
    for (const route of this.context.routes) {
      if (route.settings.gate === undefined) {
        if (route.matches(this)) return unlessRefused(route)
        continue
      }
      asked ??= this.context.trust(this.connection.peer, 0) ? askedRequest(this.facts) : this.facts
      if (asked instanceof Refusal || !route.matches({ facts: asked, address: this.address })) continue
      this.#asked = asked
      this.facts = asked
      return route
    }
    return asked instanceof Refusal ? asked : NO_ROUTE
  }

  goTo(route: Route): void {
    const before = this.route
    this.route = route
    route.upstream.requests += 1
    if (before !== undefined) requestEnded(before.upstream)
  }

  /** A reload may have changed the upstream while the request waited. */
  followUpstream(): void {
    const route = this.route!
    const upstream = currentUpstream(route, this.context.routes)
    if (upstream !== route.upstream) this.goTo({ ...route, upstream })
  }

  /** What it asks the buckets of a route. They are held from now on. */
  arrivalAt(route: Route): Arrival | Refusal {
    const { context, connection, facts } = this
    const found = findStack(context, route, this)
    if (found instanceof Refusal) return found
    this.stack = found.buckets
    this.keys = found.keys
    this.#reserve(route)
    const { stack, client, cost } = this
    const isTrusted = (): boolean => context.trust(connection.peer, 0)
    this.priority = priorityOf(route, facts, found.priority, isTrusted)
    this.prospects = prospectsOf(this, route, isTrusted)
    const costs = this.costs?.some(each => each !== cost) ? this.costs : undefined
    return {
      route: route.lane,
      stack,
      cost,
      costs,
      weight: found.weight,
      priority: this.priority,
      client,
      patience: this.prospects?.longestWait(context.clock.now()) ?? Infinity,
      appointment: route.settings.appointments ? { redeems: this.#claimOn(route, { cost, costs }) } : undefined,
    }
  }

  #reserve({ bucketCosts, cost }: Route): void {
    this.cost = cost(this.facts)
    if (bucketCosts === undefined) return
    this.costs = bucketCosts.reserve(this.#names, this.body)
    this.cost = this.costs.at(-1) ?? this.cost
  }

  get #names(): string[] {
    return this.stack.map(({ limits }) => limits.name)
  }

  get presentCost(): number {
    return this.route!.cost(this.facts)
  }

  /** What is reserved for it in the bucket that follows a limit on tokens. Undefined: there is none. */
  get reservedTokens(): number | undefined {
    if (this.costs === undefined) return undefined
    const names = this.#names
    const [bucket] = followersOf('tokens', names)
    return bucket === undefined ? undefined : this.costs[names.indexOf(bucket)]
  }

  #claimOn(route: Route, cost: Cost): number | undefined {
    const { tickets, shaper } = this.context
    const { stack, client } = this
    const claim = tickets.read(this.header('shaper-ticket'), { route: route.name, client, cost })
    return claim ?? (this.#isForPage(route) ? shaper.bookingOf({ stack, ...cost }, client) : undefined)
  }

  #isForPage({ page }: Route): boolean {
    return page !== undefined && this.#asked === undefined && asksForPage(this.facts)
  }

  /** Makes the page that it gets if it is rejected. Undefined: it is no browser, or its route has no page. */
  get renderPage(): ((comeback: Comeback) => RenderedPage) | undefined {
    const route = this.route!
    if (!this.#isForPage(route)) return undefined
    // Its stream would be served by a shaper before this one, which knows nothing of these buckets.
    const isBehind = this.facts.via !== undefined && /\bshaper\b/.test(this.facts.via)
    return comeback => route.page!.render(comeback, isBehind ? 'alone' : 'live')
  }

  /** Those for the upstream, as they would be sent now: names and values in turn. */
  forwardedHeaders(server: UpstreamServer): string[] {
    const { connection, facts, context } = this
    const { upstream, reads, lookAlikes, settings } = this.route!
    const { appointments } = settings
    const { peer: address, encrypted } = connection
    const peer = { address, encrypted, trusted: context.trust(address, 0) }
    const host = hostTowards(upstream, server, facts.host)
    const via = upstream.settings.via ? context.via.value(this.req) : undefined
    const rules = { host, via, kept: reads, lookAlikes, forwarded: facts.origin === undefined, appointments }
    return upstreamHeaders(facts, peer, rules)
  }
}

/** The bucket instances of a request, and what the owners of their limits say of its turn. */
export interface Stack {
  readonly buckets: SharedBucket[]
  readonly keys: readonly string[]
  readonly weight: number
  /** Undefined: no owner has a priority. */
  readonly priority: number | undefined
}

interface Applicant extends RoutedRequest {
  readonly client: string
  readonly certificate: string | undefined
  readonly claims: Claims
  readonly body: BodyFigures
}

export function addressOfClient(
  { trust }: Pick<ProxyContext, 'trust'>,
  { peer }: ClientConnection,
  { forwardedFor }: RequestFacts,
): string {
  return forwardedFor.length === 0 ? peer : clientAddress(peer, forwardedFor, trust)
}

/** An address of a client as its share of our own resources is counted: IPv6 by /64. */
export function clientKey(address: string, { peer, peerKey }: ClientConnection): string {
  return address === peer ? peerKey : addressKey(address)
}

/** Finds the bucket instances of a request and holds them. Creates none before every key is known. */
export function findStack(context: ProxyContext, route: Route, applicant: Applicant): Stack | Refusal {
  const used: RouteBucket[] = []
  const keys: string[] = []
  for (const bucket of route.buckets) {
    const key = findKey(context, route, bucket, applicant)
    if (key instanceof Refusal) return key
    if (key === undefined) continue
    used.push(bucket)
    keys.push(key)
  }
  const buckets: SharedBucket[] = []
  const owners: BucketOwner[] = []
  for (const { settings, owner: ownerOf } of used) {
    const key = keys[buckets.length]!
    const owner = ownerOf(key, applicant.facts) ?? settings
    if (!addInstance(context, owner.limits, key, buckets)) {
      return new Refusal(503, 'too many keys have waiting requests')
    }
    owners.push(owner)
  }
  // An array that has grown has room for 17, and a request that waits keeps it. A copy has the room that it needs.
  return { buckets: buckets.slice(), keys: keys.slice(), ...turnOf(used, owners) }
}

/** What the owners of the limits say of the turn of a request. The first in the file that says something counts. */
export function turnOf(
  used: readonly RouteBucket[],
  owners: readonly BucketOwner[],
): Pick<Stack, 'weight' | 'priority'> {
  let weight: number | undefined
  let weightFrom = Infinity
  let priority: number | undefined
  let priorityFrom = Infinity
  for (let at = 0; at < used.length; at += 1) {
    const { place } = used[at]!
    const owner = owners[at]!
    if (owner.weight !== undefined && place < weightFrom) {
      weight = owner.weight
      weightFrom = place
    }
    if (owner.priority !== undefined && place < priorityFrom) {
      priority = owner.priority
      priorityFrom = place
    }
  }
  return { weight: weight ?? 1, priority }
}

/** The key of a request in a bucket. Undefined: it has none, and the bucket does not apply to it. */
function findKey(
  { observer }: ProxyContext,
  { name }: Route,
  { key, duplicate, settings }: RouteBucket,
  { facts, address, client, certificate, claims, body }: Applicant,
): string | undefined | Refusal {
  const header = duplicate?.(facts)
  if (header !== undefined) {
    if (settings.key.duplicates === 'reject') {
      return new Refusal(400, `bucket "${settings.name}" needs one ${header} header, and the request has several`)
    }
    observer.duplicated?.(name, header)
  }
  const value = key({ facts, address, ip: client, route: name, certificate, claims, body })
  if (value !== undefined || settings.key.missing === 'skip') return value
  return new Refusal(400, `bucket "${settings.name}" needs a key that the request does not have`)
}

/** Adds the instance of a key, held. False: there is no room for it, and those before it are held no more. */
function addInstance(context: ProxyContext, configured: BucketLimits, key: string, to: SharedBucket[]): boolean {
  const { bucketTable, shaper, clock } = context
  const known = bucketTable.peek(configured.name, key)
  const paced = configured.paces ? pacedLimits(configured, to.at(-1)!, known, clock.now()) : configured
  const limits = configured.paces && paced === known?.limits ? paced : limitsOf(context, paced, key)
  // Of a key that is known no time is needed. Reading the clock costs as much as finding it.
  const bucket = known ?? bucketTable.find(limits, key, clock.now(), to)
  if (bucket === undefined) {
    for (const found of to) bucketTable.rest(found)
    return false
  }
  bucketTable.hold(bucket)
  to.push(bucket)
  if (bucket.limits !== limits) shaper.engine.setLimits(bucket, limits)
  return true
}
