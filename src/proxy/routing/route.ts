import { routeKey } from '../../config/derived/egress-routes.js'
import { keyPartsOf, namesIn, needsOf } from '../../config/derived/header-needs.js'
import type { BucketSettings, CostSettings, RouteSettings } from '../../config/settings.js'
import type { Comeback } from '../../core/admission/comeback.js'
import { Patience } from '../../core/patience/patience.js'
import { ServiceTime } from '../../core/patience/service-time.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { LaneRoute } from '../../core/queue/lane.js'
import { ownValue } from '../../core/structures/own-value.js'
import { AddressRanges, parseKeyRange, parseRange } from '../../http/matching/address-ranges.js'
import { createPathMatcher } from '../../http/matching/path-pattern.js'
import { createHostMatcher, createWildcard } from '../../http/matching/wildcard.js'
import { urgencyOf } from '../../http/structured-fields.js'
import type { RenderedPage } from '../http/client.js'
import { LookAlikes, UNMISTAKABLE } from '../http/fields.js'
import { boundedKey } from '../http/meant-key.js'
import { headerValue, type RequestFacts } from '../http/request.js'
import type { BucketOwner, KeyLimits } from '../limits/key-limits.js'
import type { Upstream } from '../upstream/upstream.js'
import { type BodyFigures, type BodyMeasure, BucketCosts, readBody, USUAL_COST } from './bucket-costs.js'
import { createDuplicateFinder, createKeyReader, type DuplicateFinder, type KeyReader } from './key.js'

export interface RoutedRequest {
  readonly facts: RequestFacts
  /** The client's address, as for `ip` keys. */
  readonly address: string
}

export interface RouteBucket {
  readonly settings: BucketSettings
  readonly key: KeyReader
  /** Undefined: the key has no header. */
  readonly duplicate: DuplicateFinder | undefined
  /** Whose limits a request with this key has, if not those of the bucket: its own, or those of its tier. */
  readonly owner: (key: string, facts: Pick<RequestFacts, 'rawHeaders'>) => BucketOwner | undefined
  readonly ofOneClient: boolean
  /** Position in the file. The first bucket that has a weight sets the lane's weight. */
  readonly place: number
}

export interface Rule {
  readonly name: string
  readonly settings: RouteSettings
  /** In order from the client's own bucket to the bucket for everyone. */
  readonly buckets: readonly RouteBucket[]
  readonly matches: (request: RoutedRequest) => boolean
  readonly cost: (facts: RequestFacts) => number
  /** Undefined: it costs the same in each bucket. */
  readonly bucketCosts: BucketCosts | undefined
  /** Whether the claims of a token are part of a key. */
  readonly readsClaims: boolean
  /** Whether the body of a request has to come first. @param length its bytes, if they are known */
  readonly waitsForBody: (length: number | undefined) => boolean
  /** Undefined: neither costs nor keys ask for a body. */
  readonly readBody: ((body: BodyMeasure) => BodyFigures) | undefined
  readonly reads: ReadonlySet<string>
  readonly lookAlikes: LookAlikes
}

export interface Route extends Rule {
  readonly upstream: Upstream
  /** Identifies its lanes. The same across reloads. */
  readonly lane: LaneRoute
  /** What is learnt of its clients' patience and of its upstream. The same across reloads. */
  readonly waits: RouteWaits
  /** Reads by which key a server is picked. Undefined: by none. */
  readonly pickKey: KeyReader | undefined
  /** What rejected browsers get. Undefined: what all get. */
  readonly page: WaitingPage | undefined
}

export interface WaitingPage {
  /** @param live whether the page listens for what becomes of its wait */
  render(comeback: Comeback, live: 'live' | 'alone'): RenderedPage
}

interface RouteWaits {
  readonly patience: Patience
  readonly service: ServiceTime
}

export type RouteParts = Pick<Route, 'upstream' | 'page'>

/** Creates routes. Those of the same name share what is learnt. Requests wait on in lanes of present routes with the same gate. */
export function createRoutes(
  settings: readonly RouteSettings[],
  partsOf: (key: string) => RouteParts,
  { routes: former, keyLimits }: { readonly routes: readonly Route[]; readonly keyLimits: KeyLimits },
): Route[] {
  const previous = new Map(former.map(route => [routeKey(route.settings), route]))
  const waits = new Map(former.map(route => [route.name, route.waits]))
  return settings.map(each => {
    const key = routeKey(each)
    const learnt = waits.get(each.name) ?? { patience: new Patience(), service: new ServiceTime() }
    waits.set(each.name, learnt)
    const { upstream, page } = partsOf(key)
    const rule = ruleOf(each, upstream, keyLimits)
    return { ...rule, ...lineOf(each, upstream, previous.get(key)), upstream, waits: learnt, page }
  })
}

function ruleOf(settings: RouteSettings, { adaptive }: Upstream, keyLimits: KeyLimits): Rule {
  const { mode, buckets } = settings
  const all = adaptive === undefined || mode === 'off' ? buckets : [...buckets, adaptive.bucket]
  return createRule({ ...settings, buckets: all }, keyLimits)
}

function lineOf(
  { name, upstream: { pick } }: RouteSettings,
  { gate }: Upstream,
  previous: Route | undefined,
): Pick<Route, 'pickKey' | 'lane'> {
  return {
    pickKey: typeof pick === 'object' ? createKeyReader(pick.hash) : undefined,
    lane: previous?.lane.gate === gate ? previous.lane : { name, gate },
  }
}

/** Where the requests of a route go now. After a reload that is the upstream that has taken over their lane, if there is one. */
export function currentUpstream({ upstream, lane }: Route, routes: readonly Route[]): Upstream {
  if (upstream.onUnused === undefined) return upstream
  return routes.find(route => route.lane === lane)?.upstream ?? upstream
}

/** @param keyLimits undefined: no key has limits of its own but in a tier */
export function createRule(settings: RouteSettings, keyLimits?: KeyLimits): Rule {
  const buckets = settings.buckets.map((bucket, place) => ({
    settings: bucket,
    key: createKeyReader(bucket.key),
    duplicate: createDuplicateFinder(bucket.key),
    owner: createOwnerFinder(bucket, keyLimits),
    // A client is an address, of IPv6 a /64.
    ofOneClient: bucket.key.ipv6 >= 64 && bucket.key.parts.some(({ kind }) => kind === 'ip'),
    place,
    breadth: breadth(bucket.key.parts.map(part => part.kind)),
  }))
  // Lanes meet at the end of their stacks, so the bucket with the fewest instances comes last (core/queue/lane.ts).
  buckets.sort((a, b) => a.breadth - b.breadth)
  const parts = keyPartsOf([settings])
  const ofKeys = namesIn(parts, 'body')
  const bucketCosts = settings.cost.kind === 'buckets' ? new BucketCosts(settings.cost.costs) : undefined
  const reads = new Set(needsOf([settings]).map(({ name }) => name))
  return {
    name: settings.name,
    settings,
    buckets,
    matches: createMatcher(settings),
    cost: createCost(settings.cost),
    bucketCosts,
    readsClaims: namesIn(parts, 'jwt').length > 0,
    waitsForBody: length =>
      ofKeys.length > 0 || (settings.mode !== 'off' && bucketCosts?.waitsForBody(length) === true),
    readBody:
      ofKeys.length > 0 || bucketCosts !== undefined
        ? body => readBody(body, bucketCosts?.bodyPaths ?? [], ofKeys, settings.upstream.requestBuffer)
        : undefined,
    reads,
    lookAlikes: new LookAlikes([...UNMISTAKABLE, ...reads]),
  }
}

/** Limits of a single key go before those of its tier. */
function createOwnerFinder(bucket: BucketSettings, keyLimits: KeyLimits | undefined): RouteBucket['owner'] {
  const ofTier = createTierFinder(bucket)
  const limits = bucket.outside && keyLimits?.of(bucket.name)
  return limits === undefined ? ofTier : (key, facts) => limits.ownerOf(bucket, key) ?? ofTier(key, facts)
}

function createTierFinder({ key: { parts, ipv6 }, tiers }: BucketSettings): RouteBucket['owner'] {
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

/**
 * The priority of a request: what a trusted hop says, if the route believes it, or that of its key or tier, or that of the route.
 *
 * @param ofTier undefined: it is in no tier with a priority
 */
export function priorityOf(
  { settings: { priority } }: Route,
  { rawHeaders }: RequestFacts,
  ofTier: number | undefined,
  isTrusted: () => boolean,
): number {
  if (priority !== 'header') return ofTier ?? priority
  const said = isTrusted() ? headerValue(rawHeaders, 'priority') : undefined
  return (said === undefined ? undefined : urgencyOf(said)) ?? ofTier ?? DEFAULT_PRIORITY
}

/** The priority of a request whose headers are unknown. */
export function usualPriorityOf({ settings: { priority } }: Route, ofTier: number | undefined): number {
  return ofTier ?? (priority === 'header' ? DEFAULT_PRIORITY : priority)
}
