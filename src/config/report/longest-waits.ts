/** How long requests can wait: what the limits of a route amount to for a client. */
import type { BucketLimits } from '../../core/bucket/bucket.js'
import { staticCosts } from '../checks/checks.js'
import type { BucketSettings, RouteSettings, Settings } from '../settings.js'
import { exactRate } from './exact-units.js'

/** How long an admitted request can wait at most on one bucket. */
export interface LongestWait {
  name: string
  /** As `"5/s"`. */
  rate: string
  /** Cost units. */
  capacity: number
  longestWaitMs: number
}

/**
 * Per bucket and per tier of it `(b - c) / r`, c the smallest cost that is known beforehand on any route through it.
 * Only routes in mode `shape` hold requests: 0 where there is none.
 */
export function longestWaits({ buckets, routes }: Settings): (LongestWait & { tiers: LongestWait[] })[] {
  return buckets.map(({ name, limits, tiers }) => {
    const costs = routes
      .filter(route => route.mode === 'shape' && route.buckets.some(bucket => bucket.name === name))
      .map(smallestCost)
    const cost = Math.min(...costs)
    const waitOf = (name: string, own: BucketLimits): LongestWait => ({
      name,
      rate: exactRate(own.rate),
      capacity: own.capacity,
      longestWaitMs: waitFor(cost, own),
    })
    return { ...waitOf(name, limits), tiers: tiers.map(tier => waitOf(tier.name, tier.limits)) }
  })
}

/**
 * How long an admitted request of a route can wait at most, as the largest of its stack's buckets tells.
 *
 * @param cost of that request
 * @returns ms; 0 in modes other than `shape`
 */
export function longestWaitOf(route: RouteSettings, cost = smallestCost(route)): number {
  if (route.mode !== 'shape') return 0
  return Math.max(0, ...route.buckets.flatMap(allLimits).map(limits => waitFor(cost, limits)))
}

/** The smallest cost of a route that is known before any request. */
export function smallestCost({ cost }: RouteSettings): number {
  return Math.min(...staticCosts(cost).map(({ amount }) => amount))
}

/** What a request of this cost waits for a bucket that it just fits; ms. */
export function waitFor(cost: number, { rate, capacity }: BucketLimits): number {
  return Math.max(0, (capacity - cost) / rate)
}

/** A bucket's limits and those of its tiers. */
export function allLimits({ limits, tiers }: BucketSettings): BucketLimits[] {
  return [limits, ...tiers.map(tier => tier.limits)]
}
