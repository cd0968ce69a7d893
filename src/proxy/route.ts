import type { CostSettings, MatchSettings, RouteSettings } from '../config/settings.js'
import type { BucketLimits } from '../core/bucket.js'
import type { Gate } from '../core/lane.js'
import { createKeyReader, hostName, type KeyReader } from './key.js'
import { headerValue, matchingPath, type RequestFacts } from './request.js'
import type { Upstream } from './upstream.js'

/** A bucket as a route uses it. */
export interface RouteBucket {
  readonly limits: BucketLimits
  readonly status: number
  readonly key: KeyReader
}

/** A route, ready to be applied. It is a lane's identity (core/lane.ts). */
export interface Route {
  readonly name: string
  readonly settings: RouteSettings
  readonly upstream: Upstream
  readonly gate: Gate
  /** From the client's own to everyone's. */
  readonly buckets: readonly RouteBucket[]
  readonly matches: (facts: RequestFacts) => boolean
  readonly cost: (facts: RequestFacts) => number
}

/** Puts a route's settings into effect in front of an upstream. */
export function createRoute(settings: RouteSettings, upstream: Upstream): Route {
  const buckets = settings.buckets.map(bucket => ({
    limits: bucket,
    status: bucket.status,
    key: createKeyReader(bucket.key),
    breadth: breadth(bucket.key.parts.map(part => part.kind)),
  }))
  // Lanes share what comes last in a stack: the bucket with the fewest instances (core/lane.ts).
  buckets.sort((a, b) => a.breadth - b.breadth)
  return {
    name: settings.name,
    settings,
    upstream,
    gate: upstream.gate,
    buckets,
    matches: createMatcher(settings.match),
    cost: createCost(settings.cost),
  }
}

/** Higher: one instance of the bucket serves more clients. Equal: as in the file. */
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

/** A prefix in the spelling of paths; its last segment is not a whole one. */
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
        const cost = sent !== undefined && /^\d+(\.\d+)?$/.test(sent) ? Number(sent) : 0
        return cost > 0 ? Math.min(cost, settings.max) : settings.default
      }
  }
}
