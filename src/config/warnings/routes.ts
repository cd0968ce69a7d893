/** What to think of each route. */
import { formatDuration } from '../../core/units.js'
import { covers } from '../checks/match-coverage.js'
import { longestWaitOf } from '../report/longest-waits.js'
import type { RouteSettings, Settings, UpstreamSettings } from '../settings.js'
import { isPerClient, placesOf, usersOf, type Warning } from './key-scope.js'

export function routeWarnings(settings: Settings): Warning[] {
  const { routes } = settings
  return [
    ...routes.flatMap((route, index) => [
      ...unreachable(route, index, routes),
      ...idleMaxWait(route, settings).map(message => ({ path: ['routes', index, 'maxWait'], message })),
      ...idleRetry(route).map(message => ({ path: ['routes', index, 'upstream', 'retry'], message })),
      ...unsharedLearning(route, routes).map(message => ({ path: ['routes', index, 'upstream', 'learn'], message })),
      ...costlyHeader(route).map(message => ({ path: ['routes', index, 'cost', 'max'], message })),
    ]),
    ...onlyRehearsed(settings),
  ]
}

function unreachable({ match }: RouteSettings, index: number, routes: readonly RouteSettings[]): Warning[] {
  const first = routes.findIndex(earlier => covers(earlier.match, match))
  if (first === index) return []
  const message = `can never be reached: routes[${first}] ("${routes[first]!.name}") comes first and takes all that this one would; move this before it, or remove it`
  return [{ path: ['routes', index], message }]
}

function idleMaxWait(route: RouteSettings, settings: Settings): string[] {
  const { mode, maxWait } = route
  if (maxWait === Infinity) return []
  if (mode !== 'shape') return [`has no effect, as nothing waits in mode "${mode}"; remove it, or use mode "shape"`]
  const longest = longestWaitOf(route)
  if (maxWait <= longest || !isFifo(route, settings)) return []
  const wait = formatDuration(longest)
  return [`has no effect, as nothing waits longer than ${wait} anyway; lower it below that, or remove it`]
}

/**
 * Whether the longest wait is that of the bucket. Where several lanes share one, fairness may keep a request waiting
 * longer than what was predicted on its arrival, and so may an upstream that is full.
 */
function isFifo({ buckets, upstream }: RouteSettings, settings: Settings): boolean {
  return buckets.length === 1 && usersOf(buckets[0]!, settings).length === 1 && isPrompt(upstream)
}

function idleRetry({ mode, upstream }: RouteSettings): string[] {
  if (upstream.retry === undefined || mode === 'shape') return []
  return [`has no effect in mode "${mode}", where there is no queue to go back to; use mode "shape"`]
}

/** Each client, and each route, alone keeps to what was learnt; all of them together may not. */
function unsharedLearning({ mode, upstream, buckets }: RouteSettings, routes: readonly RouteSettings[]): string[] {
  if (!upstream.learn || mode === 'off') return []
  const shared = buckets.filter(bucket => !isPerClient(bucket))
  if (shared.length === 0) {
    return ['several clients together may exceed what is learnt; add a bucket with "key": "all" to the route']
  }
  const others = routes.filter(other => other.mode !== 'off' && other.upstream.url === upstream.url)
  if (shared.some(bucket => others.every(other => other.buckets.includes(bucket)))) return []
  return [
    'the routes to this upstream together may exceed what is learnt; give them a bucket with "key": "all" in common',
  ]
}

/** Whether nothing but the buckets keeps requests from it. */
function isPrompt({ maxInFlight, pauseOn, learn }: UpstreamSettings): boolean {
  return maxInFlight === Infinity && pauseOn === undefined && !learn
}

/** A header that may ask for more than there is room for. */
function costlyHeader({ mode, cost, buckets }: RouteSettings): string[] {
  if (mode === 'off' || cost.kind !== 'header') return []
  const [smallest] = buckets.flatMap(placesOf).sort((a, b) => a.limits.capacity - b.limits.capacity)
  if (smallest === undefined || cost.max <= smallest.limits.capacity) return []
  const { title, limits } = smallest
  return [
    `a request that says more than ${limits.capacity} never fits ${title} and is always rejected; lower this to ${limits.capacity}, or raise the capacity`,
  ]
}

function onlyRehearsed({ dryRun, routes }: Settings): Warning[] {
  const limited = routes.filter(({ mode }) => mode !== 'off')
  if (limited.length === 0 || !limited.every(route => route.dryRun)) return []
  const message = dryRun
    ? 'nothing is held or rejected; remove "dryRun", or the flag --dry-run, to enforce the limits'
    : 'nothing is held or rejected: every route with limits is a dry run; remove "dryRun" to enforce the limits'
  return [{ path: [dryRun ? 'dryRun' : 'routes'], message }]
}
