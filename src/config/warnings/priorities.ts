/** Warnings about priorities that change nothing. */

import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { BucketSettings, RouteSettings, Settings } from '../settings.js'
import type { Warning } from './key-scope.js'

export function priorityWarnings({ routes, trustProxy }: Settings): Warning[] {
  return routes.flatMap((route, index) => {
    if (route.priority === DEFAULT_PRIORITY) return []
    const message = idle(route, routes) ?? (route.priority === 'header' ? unbelieved(trustProxy) : undefined)
    return message === undefined ? [] : [{ path: ['routes', index, 'priority'], message }]
  })
}

function idle(route: RouteSettings, routes: readonly RouteSettings[]): string | undefined {
  const { mode, buckets } = route
  if (mode !== 'shape') {
    return `has no effect, as nothing waits in mode "${mode}"; remove it, or use mode "shape"`
  }
  const shaped = routes.filter(other => other.mode === 'shape')
  const rivals = shaped.filter(
    other => other.buckets.some(bucket => buckets.includes(bucket)) || (isBounded(route) && isSame(route, other)),
  )
  if (new Set(rivals.flatMap(prioritiesOf)).size > 1) return undefined
  return 'has no effect, as all requests that wait for the same buckets have this priority; give another route or a tier another one, or remove it'
}

function unbelieved(trustProxy: Settings['trustProxy']): string | undefined {
  const trustsNobody =
    trustProxy === false || trustProxy === 0 || (Array.isArray(trustProxy) && trustProxy.length === 0)
  return trustsNobody
    ? 'has no effect, as only trusted hops are believed; set "trustProxy", or write a number'
    : undefined
}

/** The priorities that requests of a route may have. */
function prioritiesOf({ priority, buckets }: RouteSettings): (number | string)[] {
  const ofTiers = buckets.flatMap(({ tiers }: BucketSettings) => tiers.flatMap(tier => tier.priority ?? []))
  return priority === 'header' ? ['header', DEFAULT_PRIORITY, ...ofTiers] : [priority, ...ofTiers]
}

/** Requests wait for a place at its upstream, too. */
function isBounded({ upstream }: RouteSettings): boolean {
  return upstream.maxInFlight < Infinity || upstream.connections !== undefined
}

function isSame({ upstream }: RouteSettings, other: RouteSettings): boolean {
  return other.upstream.url === upstream.url
}
