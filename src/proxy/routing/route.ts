import { routeKey } from '../../config/derived/egress-routes.js'
import { needsOf } from '../../config/derived/header-needs.js'
import type { BucketSettings, CostSettings, KeySettings, RouteSettings, TierSettings } from '../../config/settings.js'
import { Patience } from '../../core/patience/patience.js'
import { ServiceTime } from '../../core/patience/service-time.js'
import type { LaneRoute } from '../../core/queue/lane.js'
import { ownValue } from '../../core/structures/own-value.js'
import { AddressRanges, parseKeyRange, parseRange } from '../../http/matching/address-ranges.js'
import { createHostMatcher } from '../../http/matching/host-pattern.js'
import { createPathMatcher } from '../../http/matching/path-pattern.js'
import { createWildcard } from '../../http/matching/wildcard.js'
import { UNMISTAKABLE } from '../http/hop-by-hop.js'
import { headerValue, type RequestFacts } from '../http/request.js'
import { LookAlikes } from '../http1/look-alikes.js'
import type { Upstream } from '../upstream/upstream.js'
import type { WaitingPage } from '../waiting/waiting-page.js'
import { BucketCosts, USUAL_COST } from './bucket-costs.js'
import { boundedKey, createDuplicateFinder, createKeyReader, type DuplicateFinder, type KeyReader } from './key.js'

/** What routes look at. */
export interface RoutedRequest {
  readonly facts: RequestFacts
  /** The client's address, as for `ip` keys. */
  readonly address: string
}

/** A bucket as a route uses it. */
export interface RouteBucket {
  readonly settings: BucketSettings
  readonly key: KeyReader
  /** Undefined: the key has no header. */
  readonly duplicate: DuplicateFinder | undefined
  /** The tier of a request with this key; undefined: none. */
  readonly tier: (key: string, facts: Pick<RequestFacts, 'rawHeaders'>) => TierSettings | undefined
  /** Whether each of its instances has a single client. */
  readonly ofOneClient: boolean
  /** Position in the file. The first bucket that has a weight sets the lane's weight. */
  readonly place: number
}

/** The rules of a route, independent of its upstream. */
export interface Rule {
  readonly name: string
  readonly settings: RouteSettings
  /** In order from the client's own bucket to the bucket for everyone. */
  readonly buckets: readonly RouteBucket[]
  readonly matches: (request: RoutedRequest) => boolean
  readonly cost: (facts: RequestFacts) => number
  /** Undefined: it costs the same in each bucket. */
  readonly bucketCosts: BucketCosts | undefined
  /** Lower-case names of the headers that the route reads. */
  readonly reads: ReadonlySet<string>
  readonly lookAlikes: LookAlikes
}

/** A route in front of its upstream. */
export interface Route extends Rule {
  readonly upstream: Upstream
  /** Identifies its lanes. The same across reloads. */
  readonly lane: LaneRoute
  /** What is learnt of its clients' patience and of its upstream. The same across reloads. */
  readonly waits: RouteWaits
  /** What rejected browsers get. Undefined: what all get. */
  readonly page: WaitingPage | undefined
}

export interface RouteWaits {
  readonly patience: Patience
  readonly service: ServiceTime
}

/** What a route needs besides its settings. */
export type RouteParts = Pick<Route, 'upstream' | 'page'>

/**
 * Creates routes in front of their upstreams. Routes of the same name share what is learnt.
 *
 * @param former the routes so far. If the gate is the same, requests that wait in the lanes of a route stay there
 */
export function createRoutes(
  settings: readonly RouteSettings[],
  partsOf: (key: string) => RouteParts,
  former: readonly Route[],
): Route[] {
  const previous = new Map(former.map(route => [routeKey(route.settings), route]))
  const waits = new Map(former.map(route => [route.name, route.waits]))
  return settings.map(each => {
    const key = routeKey(each)
    const learnt = waits.get(each.name) ?? { patience: new Patience(), service: new ServiceTime() }
    waits.set(each.name, learnt)
    const { upstream, page } = partsOf(key)
    return { ...createRoute(each, upstream, previous.get(key)), waits: learnt, page }
  })
}

function createRoute(
  settings: RouteSettings,
  upstream: Upstream,
  previous: Route | undefined,
): Omit<Route, 'waits' | 'page'> {
  const { name, mode, buckets } = settings
  const { gate, adaptive } = upstream
  const all = adaptive === undefined || mode === 'off' ? buckets : [...buckets, adaptive.bucket]
  return {
    ...createRule({ ...settings, buckets: all }),
    upstream,
    lane: previous?.lane.gate === gate ? previous.lane : { name, gate },
  }
}

/**
 * Where the requests of a route go now. After a reload those that waited go through the upstream that has taken over
 * their lane, if there is one.
 */
export function currentUpstream({ upstream, lane }: Route, routes: readonly Route[]): Upstream {
  if (upstream.onUnused === undefined) return upstream
  return routes.find(route => route.lane === lane)?.upstream ?? upstream
}

export function createRule(settings: RouteSettings): Rule {
  const buckets = settings.buckets.map((bucket, place) => ({
    settings: bucket,
    key: createKeyReader(bucket.key),
    duplicate: createDuplicateFinder(bucket.key),
    tier: createTierFinder(bucket),
    ofOneClient: isOfOneClient(bucket.key),
    place,
    breadth: breadth(bucket.key.parts.map(part => part.kind)),
  }))
  // Lanes meet at the end of their stacks, so the bucket with the fewest instances comes last (core/queue/lane.ts).
  buckets.sort((a, b) => a.breadth - b.breadth)
  const reads = new Set(needsOf([settings]).map(({ name }) => name))
  return {
    name: settings.name,
    settings,
    buckets,
    matches: createMatcher(settings),
    cost: createCost(settings.cost),
    bucketCosts: settings.cost.kind === 'buckets' ? new BucketCosts(settings.cost.costs) : undefined,
    reads,
    lookAlikes: new LookAlikes([...UNMISTAKABLE, ...reads]),
  }
}

function createTierFinder({ key: { parts, ipv6 }, tiers }: BucketSettings): RouteBucket['tier'] {
  if (tiers.length === 0) return () => undefined
  const members = tiers.flatMap(tier => (tier.keys ?? []).map(key => [key, tier] as const))
  const byKey = new Map(members.map(([key, tier]) => [boundedKey(key), tier]))
  const ranges = parts.every(({ kind }) => kind === 'ip')
    ? members.flatMap(([key, tier]) => {
        const range = parseKeyRange(key, ipv6)
        return range === undefined ? [] : [[range, tier] as const]
      })
    : []
  const byAddress = ranges.length > 0 ? new AddressRanges(ranges) : undefined
  const byHeader = tiers.filter(({ header }) => header !== undefined)
  return (key, facts) =>
    byKey.get(key) ??
    // A key of IPv6 is a network: its first address, a slash and its length.
    byAddress?.find(key.split('/')[0]!) ??
    byHeader.find(({ header }) =>
      Object.entries(header!).every(([name, value]) => headerValue(facts.rawHeaders, name) === value),
    )
}

/** A client is an address, of IPv6 a /64. */
function isOfOneClient({ parts, ipv6 }: KeySettings): boolean {
  return ipv6 >= 64 && parts.some(({ kind }) => kind === 'ip')
}

/** How many clients share one instance: a higher number, more clients. Equal numbers keep the order of the file. */
function breadth(kinds: readonly string[]): number {
  if (kinds.every(kind => kind === 'all')) return 2
  if (kinds.every(kind => kind === 'all' || kind === 'route' || kind === 'method' || kind === 'host')) return 1
  return -kinds.length
}

function createMatcher({ match, origin }: RouteSettings): Rule['matches'] {
  const { path, normalise, method, host, header, ip } = match
  const tests: ((request: RoutedRequest) => boolean)[] = []
  if (origin !== undefined) tests.push(({ facts }) => facts.origin === origin)
  if (path !== undefined) {
    const isWanted = createPathMatcher(path, normalise)
    tests.push(({ facts }) => isWanted(facts))
  }
  if (method !== undefined) tests.push(({ facts }) => method.includes(facts.method))
  if (host !== undefined) {
    const isWanted = createHostMatcher(host)
    tests.push(({ facts: { host: asked } }) => asked !== undefined && isWanted(asked))
  }
  for (const [name, value] of Object.entries(header ?? {})) {
    const isWanted = createWildcard(value)
    tests.push(({ facts }) => {
      const sent = headerValue(facts.rawHeaders, name)
      return sent !== undefined && isWanted(sent)
    })
  }
  if (ip !== undefined) {
    const ranges = new AddressRanges(ip.map(range => [parseRange(range)!, true]))
    tests.push(({ address }) => ranges.find(address) === true)
  }
  return request => tests.every(test => test(request))
}

/** The cost of a request of which only the method is known. */
export function usualCost(settings: CostSettings, method: string | undefined): number {
  switch (settings.kind) {
    case 'fixed':
      return settings.cost
    case 'method':
      return (method === undefined ? undefined : ownValue(settings.costs, method)) ?? settings.default
    case 'header':
      return settings.default
    case 'buckets':
      return USUAL_COST
  }
}

function createCost(settings: CostSettings): (facts: RequestFacts) => number {
  switch (settings.kind) {
    case 'fixed':
      return () => settings.cost
    case 'method':
      return facts => ownValue(settings.costs, facts.method) ?? settings.default
    case 'header':
      return facts => {
        const sent = headerValue(facts.rawHeaders, settings.name)
        if (sent === undefined || !/^\d+(\.\d+)?$/.test(sent)) return settings.default
        return Math.min(Math.max(Number(sent), settings.min), settings.max)
      }
    case 'buckets':
      return () => USUAL_COST
  }
}
