/** Warnings about buckets that are used together. */

import { exactRate } from '../report/exact-units.js'
import { allLimits } from '../report/longest-waits.js'
import { ratesOf } from '../schedule.js'
import type { BucketSettings, RouteSettings, Settings } from '../settings.js'
import { isInside, isPerClient, passesOne, placesOf, type Warning } from './key-scope.js'

/** Each pair of buckets is reported once, for the first route that has both. */
export function stackWarnings({ routes }: Settings): Warning[] {
  const reported = new Set<string>()
  return routes.flatMap(route => {
    if (route.mode === 'off') return []
    return pairsOf(route).flatMap(([narrow, wide]) =>
      [...unreachableRate(narrow, wide, route), ...oneClientFills(narrow, wide, route)].filter(({ path }) => {
        const subject = [...path, narrow.name, wide.name].join('\n')
        return !reported.has(subject) && reported.add(subject)
      }),
    )
  })
}

/** Each bucket of a stack with each wider bucket of that stack. */
function pairsOf({ buckets }: RouteSettings): [narrow: BucketSettings, wide: BucketSettings][] {
  return buckets.flatMap(narrow =>
    buckets.filter(wide => isInside(narrow, wide)).map((wide): [BucketSettings, BucketSettings] => [narrow, wide]),
  )
}

/** Warns of a rate that a wider bucket never lets through. A bucket without a rate only bounds what is in flight. */
function unreachableRate(narrow: BucketSettings, wide: BucketSettings, { name }: RouteSettings): Warning[] {
  const fastest = Math.max(...[wide, ...wide.tiers].flatMap(ratesOf))
  const place = placesOf(narrow).find(({ limits }) => limits.capacity < Infinity && limits.rate > fastest)
  if (place === undefined) return []
  const message = `${exactRate(place.limits.rate)} can never be reached: bucket "${wide.name}", which comes with it on route "${name}", lets ${exactRate(fastest)} pass for all its keys together; raise that one or lower this`
  return [{ path: [...place.path, 'rate'], message }]
}

/** Warns of a shared bucket that one client can fill. */
function oneClientFills(narrow: BucketSettings, wide: BucketSettings, route: RouteSettings): Warning[] {
  const { name, mode, buckets } = route
  const { overflow } = wide.limits
  if (isPerClient(wide) || !isPerClient(narrow) || (mode === 'shape' && overflow === 'fair')) return []
  const least = Math.min(...allLimits(wide).map(({ capacity }) => capacity))
  const most = mostHeld(narrow)
  // Another bucket of the same client may hold less.
  if (buckets.some(other => isPerClient(other) && passesOne(narrow, other) && mostHeld(other) < least)) return []
  const path = ['buckets', wide.name, mode === 'shape' ? 'overflow' : 'capacity']
  const fair = mode === 'shape' ? 'set "overflow": "fair", or ' : ''
  const message = `one client can fill this bucket (${least}) on route "${name}", as its own bucket "${narrow.name}" ${most === Infinity ? 'has no capacity' : `holds ${most}`}, and then everyone else is rejected; ${fair}make this capacity larger or that one smaller`
  return [{ path, message }]
}

function mostHeld(bucket: BucketSettings): number {
  return Math.max(...allLimits(bucket).map(({ capacity }) => capacity))
}
