import { needsOf } from '../../config/header-needs.js'
import type { BucketSettings, CostSettings, MatchSettings, RouteSettings, TierSettings } from '../../config/settings.js'
import type { LaneRoute } from '../../core/queue/lane.js'
import { UNMISTAKABLE } from '../http/hop-by-hop.js'
import { headerValue, matchingPath, type RequestFacts } from '../http/request.js'
import { LookAlikes } from '../http1/look-alikes.js'
import type { Upstream } from '../upstream/upstream.js'
import { createDuplicateFinder, createKeyReader, type DuplicateFinder, hostName, type KeyReader } from './key.js'

/** A bucket as a route uses it. */
export interface RouteBucket {
  readonly settings: BucketSettings
  readonly key: KeyReader
  /** Undefined: the key has no header. */
  readonly duplicate: DuplicateFinder | undefined
  /** The tier of a request with this key; undefined: none. */
  readonly tier: (key: string, facts: RequestFacts) => TierSettings | undefined
  /** Position in the file. The first bucket that has a weight sets the lane's weight. */
  readonly place: number
}

/** The rules of a route, independent of its upstream. */
export interface Rule {
  readonly name: string
  readonly settings: RouteSettings
  /** In order from the client's own bucket to the bucket for everyone. */
  readonly buckets: readonly RouteBucket[]
  readonly matches: (facts: RequestFacts) => boolean
  readonly cost: (facts: RequestFacts) => number
  /** Lower-case names of the headers that the route reads. */
  readonly reads: ReadonlySet<string>
  readonly lookAlikes: LookAlikes
}

/** A route in front of its upstream. */
export interface Route extends Rule {
  readonly upstream: Upstream
  /** Identifies its lanes. The same across reloads. */
  readonly lane: LaneRoute
}

/**
 * Creates a route in front of an upstream.
 *
 * @param previous the route of that name so far. If the gate is the same, requests that wait in its lanes stay there
 */
export function createRoute(settings: RouteSettings, upstream: Upstream, previous?: Route): Route {
  const { name } = settings
  const { gate } = upstream
  return {
    ...createRule(settings),
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
    tier: createTierFinder(bucket.tiers),
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
    matches: createMatcher(settings.match),
    cost: createCost(settings.cost),
    reads,
    lookAlikes: new LookAlikes([...UNMISTAKABLE, ...reads]),
  }
}

function createTierFinder(tiers: readonly TierSettings[]): RouteBucket['tier'] {
  if (tiers.length === 0) return () => undefined
  const byKey = new Map(tiers.flatMap(tier => (tier.keys ?? []).map(key => [key, tier] as const)))
  const byHeader = tiers.filter(({ header }) => header !== undefined)
  return (key, facts) =>
    byKey.get(key) ??
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

function createMatcher({ path, method, host, header }: MatchSettings): (facts: RequestFacts) => boolean {
  const tests: ((facts: RequestFacts) => boolean)[] = []
  if (path !== undefined) {
    const isPrefix = path.endsWith('*')
    const wanted = isPrefix ? matchingPrefix(path.slice(0, -1)) : matchingPath(path)
    tests.push(isPrefix ? facts => facts.path.startsWith(wanted) : facts => facts.path === wanted)
  }
  if (method !== undefined) tests.push(facts => method.includes(facts.method))
  if (host !== undefined) tests.push(facts => hostName(facts.host) === host || facts.host?.toLowerCase() === host)
  for (const [name, value] of Object.entries(header ?? {})) {
    tests.push(facts => headerValue(facts.rawHeaders, name) === value)
  }
  return facts => tests.every(test => test(facts))
}

/** A prefix in the spelling of paths. Its last segment may be incomplete. */
function matchingPrefix(prefix: string): string {
  const last = matchingPath(`${prefix}x`)
  return last.slice(0, -1)
}

function createCost(settings: CostSettings): (facts: RequestFacts) => number {
  switch (settings.kind) {
    case 'fixed':
      return () => settings.cost
    case 'method':
      return facts => settings.costs[facts.method] ?? settings.default
    case 'header':
      return facts => {
        const sent = headerValue(facts.rawHeaders, settings.name)
        if (sent === undefined || !/^\d+(\.\d+)?$/.test(sent)) return settings.default
        return Math.min(Math.max(Number(sent), settings.min), settings.max)
      }
  }
}
