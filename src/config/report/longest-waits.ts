/** The longest waits that the limits allow. */
import type { BucketLimits } from '../../core/bucket/queued-bucket.js'
import { durationText, formatDuration } from '../../core/units.js'
import { staticCosts } from '../checks/checks.js'
import { adaptedUpstreams } from '../derived/adapted-upstreams.js'
import { isAnyRate } from '../derived/default-capacity.js'
import { exactRate } from '../read-values.js'
import type { BucketSettings, RateSchedule, RouteSettings, Settings } from '../settings.js'

export interface LongestWait {
  name: string
  /**
   * E.g. `"5/s"`; where it depends on the time, the slowest; `"any rate"` where only requests in flight are bounded; of a quota
   * e.g. `"100000 a month"`.
   */
  rate: string
  /** Cost units. Infinity: any amount, or a quota. */
  capacity: number
  /** Cost units. Absent: one request. */
  burst?: number
  longestWaitMs: number
}

type BucketWait = LongestWait & { readonly tiers: readonly LongestWait[] }

/**
 * The longest wait `(b - c) / r` for each bucket and tier, in ms. c is the smallest static cost on any route through it, or the
 * burst if that is more.
 * Only routes in mode `shape` hold requests: without one the wait is 0.
 */
export function longestWaits({ buckets, routes }: Settings): BucketWait[] {
  return buckets.map(bucket => {
    const { name, limits, schedule, quota, tiers } = bucket
    const costs = routes
      .filter(route => route.mode === 'shape' && route.buckets.some(each => each.name === name))
      .map(route => smallestCost(route, bucket))
    const cost = Math.min(...costs)
    const rateOf = ({ rate, capacity }: BucketLimits, byTime?: RateSchedule): string => {
      if (quota !== undefined) return `${capacity} ${quota.per === 'hour' ? 'an' : 'a'} ${quota.per}`
      return capacity === Infinity ? 'any rate' : `${exactRate(rate)}${byTime === undefined ? '' : ' at the slowest'}`
    }
    const waitOf = (name: string, own: BucketLimits, byTime?: RateSchedule): LongestWait => ({
      name,
      rate: rateOf(own, byTime),
      // Of a quota it is the limit, which is told already.
      capacity: quota === undefined ? own.capacity : Infinity,
      ...(own.burst !== undefined && { burst: own.burst }),
      longestWaitMs: waitFor(cost, own),
    })
    const ofTiers = tiers.map(tier => waitOf(tier.name, tier.limits, tier.schedule))
    return { ...waitOf(name, limits, schedule), tiers: ofTiers }
  })
}

/** The longest of its buckets, in ms. 0 in modes other than `shape`; Infinity: there is no bound. */
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
  if (route.deliver?.when === 'always') return 'no bound: requests are stored (deliver)'
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

/** The wait of a request of this cost that just fits, in ms. A bucket that holds any amount, and a quota, have no rate that matters. */
export function waitFor(cost: number, { rate, capacity, burst = 0 }: BucketLimits): number {
  return isAnyRate({ rate, capacity }) ? 0 : Math.max(0, (capacity - Math.max(burst, cost)) / rate)
}

/** A bucket's limits and those of its tiers. */
export function allLimits({ limits, tiers }: BucketSettings): BucketLimits[] {
  return [limits, ...tiers.map(tier => tier.limits)]
}

const NAMED = 8

/** What the limits are, and how long they let requests wait: one line each. */
export function summary(settings: Settings): string[] {
  return [`limits: ${limitsText(settings)}`, `longest wait: ${waitText(settings)}`]
}

function limitsText(settings: Settings): string {
  const limited = settings.routes.filter(({ mode }) => mode !== 'off')
  const used = new Set(limited.flatMap(({ buckets }) => buckets.map(({ name }) => name)))
  const adapted = adaptedUpstreams(limited.map(({ upstream }) => upstream))
  const all = [
    ...longestWaits(settings)
      .filter(({ name }) => used.has(name))
      .map(limitText),
    ...[...adapted.values()].map(({ name, targets: { min, max } }) => `${name} ${exactRate(min)} to ${exactRate(max)}`),
  ]
  if (all.length === 0) return 'none, every request is forwarded at once'
  const named = all.length > NAMED ? [...all.slice(0, NAMED), `${all.length - NAMED} more`] : all
  const isDry = limited.every(({ dryRun }) => dryRun)
  return `${named.join('; ')}${isDry ? ' (a dry run: nothing is held or rejected)' : ''}`
}

function limitText({ name, rate, capacity, burst, tiers }: BucketWait): string {
  const parts = [`${name} ${rate}`]
  if (capacity < Infinity) parts.push(`capacity ${capacity}`)
  if (burst !== undefined) parts.push(`burst ${burst}`)
  if (tiers.length > 0) parts.push(`${tiers.length} tier${tiers.length === 1 ? '' : 's'}`)
  return parts.join(', ')
}

function waitText({ routes }: Settings): string {
  const [longest] = routes
    .filter(({ mode, dryRun }) => mode === 'shape' && !dryRun)
    .map(route => ({ route, wait: Math.min(route.maxWait, longestWaitOf(route)) }))
    .sort((one, other) => other.wait - one.wait)
  return longest === undefined
    ? 'none, no route holds requests'
    : `${longestWaitText(longest.route)}, of route ${longest.route.name}`
}

/** What users of `--egress` must know. `start` and `check` say it. */
export const CONNECT_PACED =
  'egress: CONNECT is paced for each connection, not for each request in it; a base URL such as /https/HOST paces requests'
