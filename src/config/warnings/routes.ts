/** Warnings about single routes. */

import { durationText, formatDuration } from '../../core/units.js'
import { windowOf } from '../../decider/costs.js'
import {
  createPathMatcher,
  expressionOf,
  type Normalisation,
  partsOf,
  spelledPattern,
  withOtherEnd,
} from '../../http/matching/path-pattern.js'
import { followersOf } from '../../http/quota/quota-fields.js'
import { covers } from '../checks/match-coverage.js'
import { requiredText } from '../checks/required-text.js'
import { withEgressRoutes } from '../derived/egress-routes.js'
import { either } from '../messages.js'
import { allLimits, longestWaitOf, smallestCost, waitsForAnswers } from '../report/longest-waits.js'
import { mayBeMissing } from '../schema/key.js'
import type { BucketSettings, MatchSettings, RouteSettings, Settings } from '../settings.js'
import { isPerClient, placesOf, usersOf, type Warning } from './key-scope.js'

export function routeWarnings(settings: Settings): Warning[] {
  const { routes } = settings
  const destined = withEgressRoutes(settings).routes
  return [
    ...routes.flatMap((route, index) => [
      ...unreachable(route, index, routes),
      ...spelledOtherwise(route, routes).map(message => ({ path: ['routes', index, 'match', 'path'], message })),
      ...unlimited(route).map(message => ({ path: ['routes', index, 'buckets'], message })),
      ...idleMaxWait(route, settings).map(message => ({ path: ['routes', index, 'maxWait'], message })),
      ...idlePatience(route).map(message => ({ path: ['routes', index, 'patience'], message })),
      ...idleCoalesce(route, settings).map(message => ({ path: ['routes', index, 'coalesce'], message })),
      ...idleAppointments(route).map(message => ({ path: ['routes', index, 'appointments'], message })),
      ...idleRetry(route).map(message => ({ path: ['routes', index, 'upstream', 'retry'], message })),
      ...lowBackoff(route).map(message => ({ path: ['routes', index, 'deliver', 'maxBackoff'], message })),
      ...unsharedLearning(route, destined).map(message => ({ path: ['routes', index, 'upstream', 'learn'], message })),
      ...costlyHeader(route).map(message => ({ path: ['routes', index, 'cost', 'max'], message })),
      ...idleBucketCosts(route).map(({ at, message }) => {
        return { path: ['routes', index, 'cost', 'buckets', ...at], message }
      }),
    ]),
    ...idleUpstreamKeys(routes),
    ...onlyRehearsed(settings),
  ]
}

function unreachable({ match }: RouteSettings, index: number, routes: readonly RouteSettings[]): Warning[] {
  const first = routes.findIndex(earlier => covers(earlier.match, match))
  if (first === index) return []
  const message = `can never be reached: routes[${first}] ("${routes[first]!.name}") comes first and matches all requests that this one matches; move this before it, or remove it`
  return [{ path: ['routes', index], message }]
}

/** Warns where a client that spells a path otherwise comes to a route that limits nothing. Many servers take both for one path. */
function spelledOtherwise(route: RouteSettings, routes: readonly RouteSettings[]): string[] {
  const { path, normalise = [] } = route.match
  if (path === undefined || route.mode === 'off') return []
  const found = new Map<Normalisation, { spelled: string; taker: RouteSettings }>()
  for (const [by, spelled] of spellingsOf(path)) {
    if (normalise.includes(by) || found.has(by)) continue
    const taker = unlimitedTaker(route, spelled, routes)
    if (taker !== undefined) found.set(by, { spelled, taker })
  }
  const [first] = found.values()
  if (first === undefined) return []
  const { taker } = first
  const spellings = either([...found.values()].map(({ spelled }) => spelled))
  const all = [...normalise, ...found.keys()].map(each => `"${each}"`).join(', ')
  return [
    `a request for ${spellings} goes to routes[${routes.indexOf(taker)}] ("${taker.name}"), which limits nothing; add "normalise": [${all}] beside "path"`,
  ]
}

/** What many servers take for a path, or for paths of a pattern. */
function spellingsOf(pattern: string): [Normalisation, string][] {
  const path = samplePath(pattern)
  if (path === undefined) return []
  const upper = path.toUpperCase()
  const spellings: [Normalisation, string][] = [
    ['case', upper === path ? path.toLowerCase() : upper],
    ['slash', path.endsWith('/*') ? path.slice(0, -2) : withOtherEnd(path)],
    ['params', `${path};a=1`],
    ['params', `/;a=1${path}`],
  ]
  return spellings.filter(
    ([by, spelled]) => spelled !== path && spelled !== '' && (by !== 'params' || !path.includes(';')),
  )
}

/** A pattern without expression as it is spelled, or a path that the expression matches. Undefined: none was found. */
function samplePath(pattern: string): string | undefined {
  if (partsOf(pattern).length > 1) return undefined
  const expression = expressionOf(pattern)
  if (expression === undefined) return spelledPattern(pattern)
  const { texts } = requiredText(expression)
  const matches = createPathMatcher(pattern)
  const samples = ['', '0', 'a', '/'].flatMap(between => ['', '/'].map(start => start + texts.join(between)))
  return samples.find(path => path.startsWith('/') && matches({ path, target: path }))
}

/** The route without limits that takes requests of a route if they are spelled so. */
function unlimitedTaker(
  { match: { normalise: _, ...own }, dryRun }: RouteSettings,
  path: string,
  routes: readonly RouteSettings[],
): RouteSettings | undefined {
  const firstFor = (narrow: MatchSettings) =>
    routes.find(({ match }) => {
      const leavesOut = match.normalise?.includes('params') === true
      return covers(match, leavesOut ? { ...narrow, normalise: ['params'] } : narrow)
    })
  return routes.find(each => {
    if (each.refuse || (each.mode !== 'off' && (dryRun || !each.dryRun))) return false
    const { method = own.method } = each.match
    const common = own.method === undefined ? method : method?.filter(name => own.method!.includes(name))
    if (common?.length === 0) return false
    const narrow = { ...own, path, ...(common && { method: common }) }
    return covers(each.match, narrow) && firstFor(narrow) === each
  })
}

/** Warns where a client chooses whether anything limits it. */
function unlimited({ mode, buckets }: RouteSettings): string[] {
  const isSkipped = ({ key: { parts, missing } }: BucketSettings) => missing === 'skip' && parts.some(mayBeMissing)
  if (mode === 'off' || buckets.length === 0 || !buckets.every(isSkipped)) return []
  const names = buckets.map(({ name }) => `"${name}"`).join(', ')
  return [
    `a request without the key of ${names} passes without any limit, as it says "missing": "skip"; add a bucket that every request has, e.g. with the key "ip"`,
  ]
}

function idleMaxWait(route: RouteSettings, settings: Settings): string[] {
  const { mode, maxWait } = route
  if (maxWait === Infinity) return []
  if (mode !== 'shape') return [withoutQueue(mode)]
  const longest = longestWaitOf(route)
  if (maxWait <= longest || !isFifo(route, settings)) return []
  const wait = durationText(longest)
  return [`has no effect, as nothing waits longer than ${wait} anyway; lower it below that, or remove it`]
}

function idlePatience({ mode, patience }: RouteSettings): string[] {
  return mode === 'shape' || patience === 'auto' ? [] : [withoutQueue(mode)]
}

/** Headers whose requests are never answered together. */
const NEVER_TOGETHER = ['authorization', 'cookie', 'range']

function idleCoalesce({ coalesce, mode, gate, match }: RouteSettings, { egress }: Settings): string[] {
  if (!coalesce) return []
  if (mode !== 'shape') return [withoutQueue(mode)]
  if (gate !== undefined) return ['has no effect, as a gate forwards nothing; remove it']
  if (egress !== undefined) return ['has no effect with --egress; remove it']
  const { method, header = {} } = match
  if (method?.includes('GET') === false) return ['has no effect, as only GETs are answered together; remove it']
  const name = Object.keys(header).find(each => NEVER_TOGETHER.includes(each.toLowerCase()))
  if (name === undefined) return []
  return [`has no effect, as requests with the header "${name}" are never answered together; remove it`]
}

function idleAppointments(route: RouteSettings): string[] {
  const { appointments, buckets } = route
  const isBooked = (bucket: BucketSettings) =>
    allLimits(bucket).some(
      limits =>
        limits.blockFor === undefined &&
        limits.overflow !== 'fill' &&
        windowOf(smallestCost(route, bucket), limits.capacity, limits) > 0,
    )
  if (!appointments || buckets.some(isBooked)) return []
  return [
    'has no effect, as nothing is booked in a bucket for less than four requests, with "blockFor" or with "overflow": "fill"; change a bucket of this route, or remove it',
  ]
}

export function withoutQueue(mode: string): string {
  return `has no effect, as nothing waits in mode "${mode}"; remove it, or use mode "shape"`
}

/**
 * Whether the longest wait is exactly that of the bucket. It may be longer when several lanes share the bucket, because
 * lanes take turns, and when the upstream is full or too many requests are in flight.
 */
function isFifo(route: RouteSettings, settings: Settings): boolean {
  const { buckets, upstream } = route
  const [only] = buckets
  if (only === undefined || buckets.length > 1 || usersOf(only, settings).length > 1) return false
  return upstream.pauseOn === undefined && !upstream.learn && !waitsForAnswers(route)
}

/** Reported once for each upstream. */
function idleUpstreamKeys(routes: readonly RouteSettings[]): Warning[] {
  const common = routes[0]?.upstream
  const upstreams = new Map(routes.map(({ upstream }, index) => [upstream, index]))
  return [...upstreams].flatMap(([upstream, index]) => {
    const { url, tls, maxInFlight, connections = Infinity } = upstream
    const at = (key: string): Warning['path'] => [...(upstream === common ? [] : ['routes', index]), 'upstream', key]
    const none = `has no effect, as each request needs a connection and there are only ${connections} (connections); lower it below that, or remove it`
    const isPlain = (tls?.ca ?? tls?.cert ?? tls?.servername) !== undefined && /^(http|unix):/.test(url)
    return [
      ...(maxInFlight < Infinity && maxInFlight > connections ? [{ path: at('maxInFlight'), message: none }] : []),
      ...(isPlain
        ? [{ path: at('tls'), message: 'has no effect, as the upstream is without TLS; use https, or remove it' }]
        : []),
    ]
  })
}

function idleRetry({ mode, upstream }: RouteSettings): string[] {
  if (upstream.retry === undefined || mode !== 'off') return []
  return ['has no effect in mode "off", where nothing limits it; use mode "shape" or "meter"']
}

function lowBackoff({ deliver }: RouteSettings): string[] {
  if (deliver === undefined || deliver.maxBackoff >= deliver.backoff) return []
  const least = formatDuration(deliver.backoff)
  return [`is below backoff (${least}), so that has no effect; raise it to ${least} at least, or lower backoff`]
}

/** Several clients or routes together may exceed a learnt rate, although each keeps to it. */
function unsharedLearning(route: RouteSettings, destined: readonly RouteSettings[]): string[] {
  const { name, mode, upstream, buckets } = route
  if (!upstream.learn || mode === 'off') return []
  const following = followersOf(
    'requests',
    buckets.map(({ name }) => name),
  )
  const shared = buckets.filter(bucket => following.includes(bucket.name) && !isPerClient(bucket))
  if (shared.length === 0)
    return ['several clients together may exceed what is learnt; add a bucket with "key": "all" to the route']
  const isCommon = ({ upstream: { url } }: RouteSettings): boolean => {
    const others = destined.filter(other => other.mode !== 'off' && other.upstream.url === url)
    return shared.some(bucket => others.every(other => other.buckets.includes(bucket)))
  }
  if (destined.filter(each => each.name === name).every(isCommon)) return []
  return [
    'the routes to this upstream together may exceed what is learnt; give them a bucket with "key": "all" in common',
  ]
}

/** Warns of a cost header that may ask for more than the capacity. */
function costlyHeader({ mode, cost, buckets }: RouteSettings): string[] {
  if (mode === 'off' || cost.kind !== 'header') return []
  const [smallest] = buckets.flatMap(placesOf).sort((a, b) => a.limits.capacity - b.limits.capacity)
  if (smallest === undefined || cost.max <= smallest.limits.capacity) return []
  const { title, limits } = smallest
  return [
    `a request that says more than ${limits.capacity} never fits ${title} and is always rejected; lower this to ${limits.capacity}, or raise the capacity`,
  ]
}

function idleBucketCosts({ mode, cost, upstream }: RouteSettings): { at: string[]; message: string }[] {
  if (cost.kind !== 'buckets') return []
  if (mode === 'off') {
    return [
      { at: [], message: 'has no effect, as mode "off" counts nothing; remove it, or use mode "shape" or "meter"' },
    ]
  }
  if (upstream.requestBuffer > 0) return []
  return Object.entries(cost.costs).flatMap(([name, { estimate, max }]) => {
    const isRead = typeof estimate === 'object' && 'path' in estimate
    const message = 'has no effect, as no body is read with "requestBuffer": 0; raise that, or remove this'
    return [
      ...(isRead ? [{ at: [name, 'estimate'], message }] : []),
      ...(max === undefined ? [] : [{ at: [name, 'max'], message }]),
    ]
  })
}

function onlyRehearsed({ dryRun, routes }: Settings): Warning[] {
  const limited = routes.filter(({ mode }) => mode !== 'off')
  if (limited.length === 0 || !limited.every(route => route.dryRun)) return []
  const message = dryRun
    ? 'nothing is held or rejected; remove "dryRun", or the flag --dry-run, to enforce the limits'
    : 'nothing is held or rejected: every route with limits is a dry run; remove "dryRun" to enforce the limits'
  return [{ path: [dryRun ? 'dryRun' : 'routes'], message }]
}
