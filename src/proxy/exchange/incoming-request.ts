import type { Comeback } from '../../core/admission/comeback.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { Cost, SharedBucket } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import { followersOf } from '../../http/quota/quota-fields.js'
import type { ProxyContext } from '../context.js'
import { askedRequest } from '../http/asked-request.js'
import type { ClientRequest } from '../http/client.js'
import type { ClientConnection } from '../http/connection/client-connection.js'
import { upstreamHeaders } from '../http/headers.js'
import { headerValue, Refusal, type RequestFacts } from '../http/request.js'
import { type BodyMeasure, NO_BODY } from '../routing/bucket-costs.js'
import { priorityOf } from '../routing/priority.js'
import { currentUpstream, type Route } from '../routing/route.js'
import { hostTowards, requestEnded } from '../upstream/upstream.js'
import { asksForPage } from '../waiting/asks-for-page.js'
import type { RenderedPage } from '../waiting/waiting-page.js'
import { type Applicant, addressOfClient, clientKey, findStack } from './find-stack.js'
import { type Prospects, prospectsOf } from './prospects.js'

const NOTHING: readonly never[] = []

const NO_ROUTE = new Refusal(404, 'no route matches')
const REFUSED = new Refusal(404, 'a route with "refuse" takes it')

function unlessRefused(route: Route): Route | Refusal {
  return route.settings.refuse ? REFUSED : route
}

/** A request as it has come: whose it is, where it goes, which buckets it has to pass, and what it costs in each. */
export abstract class IncomingRequest implements Applicant {
  protected readonly context: ProxyContext
  protected readonly connection: ClientConnection
  protected readonly req: ClientRequest
  facts!: RequestFacts
  stack: readonly SharedBucket[] = NOTHING
  keys: readonly string[] = NOTHING
  cost = 0
  costs: readonly number[] | undefined
  priority = DEFAULT_PRIORITY
  prospects: Prospects | undefined
  /** The route that it goes to, at whose upstream it counts. */
  protected matched: Route | undefined
  /** Its route is a gate: the request that it asks for. */
  #asked: RequestFacts | undefined
  #address: string | undefined
  #client: string | undefined

  constructor(context: ProxyContext, connection: ClientConnection, req: ClientRequest) {
    this.context = context
    this.connection = connection
    this.req = req
  }

  /** It is sent on a connection of its upstream's pool. */
  get pooled(): boolean {
    return this.#asked === undefined
  }

  get route(): string {
    return this.matched?.name ?? ''
  }

  get address(): string {
    this.#address ??= addressOfClient(this.context, this.connection, this.facts)
    return this.#address
  }

  get client(): string {
    this.#client ??= clientKey(this.address, this.connection)
    return this.#client
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

  /** Those that may match it. */
  protected get routes(): readonly Route[] {
    return this.context.routes
  }

  /** The first that matches. A gate looks at the request that a trusted proxy asks for. */
  protected findRoute(): Route | Refusal {
    let asked: RequestFacts | Refusal | undefined
    for (const route of this.routes) {
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

  /** It goes to this route from now on. */
  protected goTo(route: Route): void {
    const before = this.matched
    this.matched = route
    route.upstream.requests += 1
    if (before !== undefined) requestEnded(before.upstream)
  }

  /** A reload may have changed the upstream while the request waited. */
  protected followUpstream(): void {
    const route = this.matched!
    const upstream = currentUpstream(route, this.context.routes)
    if (upstream !== route.upstream) this.goTo({ ...route, upstream })
  }

  /** What has come of its body. */
  protected get measure(): BodyMeasure {
    return NO_BODY
  }

  /** What it asks the buckets of a route. They are held from now on. */
  protected arrivalAt(route: Route): Arrival | Refusal {
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
      appointment: route.settings.appointments ? { claim: this.#claimOn(route, { cost, costs }) } : undefined,
    }
  }

  /** What it costs. */
  #reserve({ bucketCosts, cost }: Route): void {
    this.cost = cost(this.facts)
    if (bucketCosts === undefined) return
    this.costs = bucketCosts.reserve(this.#names, this.measure)
    this.cost = this.costs.at(-1) ?? this.cost
  }

  get #names(): string[] {
    return this.stack.map(({ limits }) => limits.name)
  }

  /** What it would cost in a bucket for all requests. A reload may have changed that. */
  protected get presentCost(): number {
    return this.matched!.cost(this.facts)
  }

  /** What is reserved for it in the bucket that follows a limit on tokens. Undefined: there is none. */
  protected get reservedTokens(): number | undefined {
    if (this.costs === undefined) return undefined
    const names = this.#names
    const [bucket] = followersOf('tokens', names)
    return bucket === undefined ? undefined : this.costs[names.indexOf(bucket)]
  }

  /** The booking that it comes for. */
  #claimOn(route: Route, cost: Cost): number | undefined {
    const { tickets, shaper } = this.context
    const { stack, client } = this
    const claim = tickets.read(this.header('shaper-ticket'), { route: route.name, client, cost })
    // A browser that comes back shows no ticket. Its address stands for it.
    return claim ?? (this.#isForPage(route) ? shaper.bookingOf({ stack, ...cost }, client) : undefined)
  }

  #isForPage({ page }: Route): boolean {
    return page !== undefined && this.#asked === undefined && asksForPage(this.facts)
  }

  /** Makes the page that it gets if it is rejected. Undefined: it is no browser, or its route has no page. */
  get renderPage(): ((comeback: Comeback) => RenderedPage) | undefined {
    const route = this.matched!
    if (!this.#isForPage(route)) return undefined
    // Its stream would be served by a shaper before this one, which knows nothing of these buckets.
    const isBehind = this.facts.via !== undefined && /\bshaper\b/.test(this.facts.via)
    return comeback => route.page!.render(comeback, isBehind ? 'alone' : 'live')
  }

  /** Those for the upstream, as they would be sent now: names and values in turn. */
  forwardedHeaders(): string[] {
    const { connection, facts, context } = this
    const { upstream, reads, lookAlikes, settings } = this.matched!
    const { appointments } = settings
    const { peer: address, encrypted } = connection
    const peer = { address, encrypted, trusted: context.trust(address, 0) }
    const host = hostTowards(upstream, facts.host)
    const via = upstream.settings.via ? context.via.value(this.req) : undefined
    const rules = { host, via, kept: reads, lookAlikes, forwarded: facts.origin === undefined, appointments }
    return upstreamHeaders(facts, peer, rules)
  }
}
