/** The longest waits that the limits allow. */
import type { BucketLimits } from '../../core/bucket/queued-bucket.js'
import { durationText, formatDuration } from '../../core/units.js'
import { staticCosts } from '../checks/checks.js'
import type { BucketSettings, RateSchedule, RouteSettings, Settings } from '../settings.js'
import { exactRate } from './exact-units.js'

/** The longest wait of an admitted request on one bucket. */
export interface LongestWait {
  name: string
  /** E.g. `"5/s"`; where it depends on the time, the slowest; `"any rate"` where only requests in flight are bounded. */
  rate: string
  /** Cost units. */
  capacity: number
  /** Cost units. Absent: one request. */
  burst?: number
  longestWaitMs: number
}

/**
 * The longest wait `(b - c) / r` for each bucket and tier, in ms. c is the smallest static cost on any route through it, or the
 * burst if that is more.
 * Only routes in mode `shape` hold requests: without one the wait is 0.
 */
export function longestWaits({ buckets, routes }: Settings): (LongestWait & { tiers: LongestWait[] })[] {
  return buckets.map(bucket => {
    const { name, limits, schedule, tiers } = bucket
    const costs = routes
      .filter(route => route.mode === 'shape' && route.buckets.some(each => each.name === name))
      .map(route => smallestCost(route, bucket))
    const cost = Math.min(...costs)
    const waitOf = (name: string, own: BucketLimits, byTime?: RateSchedule): LongestWait => ({
      name,
      rate:
        own.capacity === Infinity
          ? 'any rate'
          : `${exactRate(own.rate)}${byTime === undefined ? '' : ' at the slowest'}`,
      capacity: own.capacity,
      ...(own.burst !== undefined && { burst: own.burst }),
      longestWaitMs: waitFor(cost, own),
    })
    return {
      ...waitOf(name, limits, schedule),
      tiers: tiers.map(tier => waitOf(tier.name, tier.limits, tier.schedule)),
    }
  })
}

/**
 * The longest wait of an admitted request of a route: the longest of its buckets.
 *
 * @returns ms; 0 in modes other than `shape`; Infinity: there is no bound
 */
export function longestWaitOf(route: RouteSettings): number {
  if (route.mode !== 'shape') return 0
  // An adaptive bucket holds any amount.
  if (route.upstream.adapt !== undefined) return Infinity
  const waits = route.buckets.flatMap(bucket => {
    const cost = smallestCost(route, bucket)
    return allLimits(bucket).map(limits => waitFor(cost, limits))
  })
  return Math.max(0, ...waits)
}

/** The longest wait of a route in `shape`, or its `maxWait` if that is shorter. */
export function longestWaitText(route: RouteSettings): string {
  const wait = longestWaitOf(route)
  const isOpen = waitsForAnswers(route)
  const { maxWait } = route
  if (maxWait < (isOpen ? Infinity : wait)) return `${formatDuration(maxWait)} (maxWait)`
  if (wait === Infinity) return 'no bound'
  if (isOpen && wait === 0) return 'for answers only'
  return `${durationText(wait)}${isOpen ? ' by the rate alone' : ''}`
}

/** Whether requests of a route may also wait for the ends of others' answers. Then no rate bounds their wait. */
export function waitsForAnswers({ mode, buckets, upstream }: RouteSettings): boolean {
  if (mode !== 'shape') return false
  const { maxInFlight, connections } = upstream
  if (maxInFlight !== Infinity || connections !== undefined) return true
  return buckets.flatMap(allLimits).some(limits => limits.maxInFlight !== undefined)
}

/** The smallest cost of a route in a bucket. 0: it is estimated. */
export function smallestCost({ cost }: RouteSettings, { name }: BucketSettings): number {
  const costs = staticCosts(cost, name).map(({ amount }) => amount)
  return costs.length === 0 ? 0 : Math.min(...costs)
}

/** The wait of a request of this cost that just fits, in ms. A bucket that holds any amount has no rate that matters. */
export function waitFor(cost: number, { rate, capacity, burst = 0 }: BucketLimits): number {
  return capacity === Infinity ? 0 : Math.max(0, (capacity - Math.max(burst, cost)) / rate)
}

/** A bucket's limits and those of its tiers. */
export function allLimits({ limits, tiers }: BucketSettings): BucketLimits[] {
  return [limits, ...tiers.map(tier => tier.limits)]
}
