/** Warnings about single buckets. */
import type { BucketLimits } from '../../core/bucket/limits.js'
import { durationText } from '../../core/units.js'
import { exactDuration, exactRate } from '../read-values.js'
import { smallestCost, waitFor } from '../report/longest-waits.js'
import { isScheduled, unreachedEntries } from '../schedule.js'
import type { BucketSettings, RateSchedule, RouteSettings, Settings } from '../settings.js'
import { isPerClient, type Place, placesOf, usersOf, type Warning } from './key-scope.js'

/** How long HTTP clients, load balancers and people usually wait, in ms. */
const PATIENCE = 30_000
/** ms. A rate whose queue takes so long to drain is probably a quota. */
const QUOTA = 3_600_000

export function bucketWarnings(settings: Settings): Warning[] {
  return settings.buckets.flatMap(bucket => {
    const users = usersOf(bucket, settings)
    if (users.length === 0) {
      return [
        ...timesOf(bucket),
        { path: ['buckets', bucket.name], message: 'no route uses it; name it in "buckets" of one, or remove it' },
      ]
    }
    return [
      ...timesOf(bucket),
      ...(bucket.paces ? [] : [...tooSmall(bucket, users), ...tooLarge(bucket, users)]),
      ...idleBurst(bucket),
      ...idleInFlightAtGates(bucket, users),
      ...blocksAll(bucket),
      ...sharedTiers(bucket),
    ]
  })
}

/** Warns of a bound on requests under way, of which a gate sees none. */
function idleInFlightAtGates({ name, limits }: BucketSettings, users: readonly RouteSettings[]): Warning[] {
  if (limits.maxInFlight === undefined || users.some(({ gate }) => gate === undefined)) return []
  const message =
    'has no effect, as only routes with "upstream": "gate:" use it, and there a request is over when it may pass; remove it'
  return [{ path: ['buckets', name, 'maxInFlight'], message }]
}

function timesOf(bucket: BucketSettings): Warning[] {
  const { name, schedule, timeZone, tiers } = bucket
  const path = ['buckets', name]
  // A tier without a rate has the very schedule of its bucket.
  const own = tiers.map(tier => (tier.schedule?.entries === schedule?.entries ? undefined : tier.schedule))
  const idle = timeZone !== undefined && !isScheduled(bucket)
  const message = 'has no effect, as no rate has a time of day; remove it, or write the rate as a list'
  return [
    ...(idle ? [{ path: [...path, 'timeZone'], message }] : []),
    ...unreached(schedule, [...path, 'rate']),
    ...own.flatMap((each, index) => unreached(each, [...path, 'tiers', index, 'rate'])),
  ]
}

function unreached(schedule: RateSchedule | undefined, path: readonly PropertyKey[]): Warning[] {
  const { entries = [] } = schedule ?? {}
  return unreachedEntries(entries).map(index => {
    // The last one has no times, and there has to be one without.
    const isNeeded = index === entries.length - 1 && entries[index - 1]?.from !== undefined
    const remedy = isNeeded
      ? 'remove it, and "from" and "to" of the entry before it'
      : 'move it before them, or remove it'
    return { path: [...path, index], message: `never holds, as the entries before it take all of its time; ${remedy}` }
  })
}

/** Warns of room for a single request: no queue in `shape`, no burst in `meter`. */
function tooSmall(bucket: BucketSettings, users: readonly RouteSettings[]): Warning[] {
  if (bucket.quota !== undefined) return []
  const shaping = users.filter(({ mode }) => mode === 'shape')
  const cost = Math.min(...(shaping.length > 0 ? shaping : users).map(route => smallestCost(route, bucket)))
  const [own, ...tiers] = placesOf(bucket)
  // An inherited capacity is reported once.
  const places = [own, ...tiers.filter(({ limits }) => limits.capacity !== own.limits.capacity)]
  return places.flatMap(({ path, limits: { rate, capacity } }) => {
    if (capacity >= 2 * cost) return []
    const room = `${capacity} has room for one request${cost === 1 ? '' : ` of cost ${cost}`} only`
    const atOnce = `raise it to at least ${2 * cost}, better to the burst that you expect`
    const rateText = exactRate(rate)
    if (shaping.length > 0 && isSlow(rateText)) {
      const pace = `of ${rateText} one request leaves every ${durationText((cost || 1) / rate)}, and ${capacity} may be there`
      const remedy = `if this is a count by the calendar, use e.g. "quota": { "limit": ${Number.parseFloat(rateText)}, "per": "month" }; if many may pass at once, set "burst" and a capacity, or "mode": "meter" on route "${shaping[0]!.name}"`
      return [{ path: [...path, 'capacity'], message: `${pace}; ${remedy}` }]
    }
    if (shaping.length > 0)
      return [{ path: [...path, 'capacity'], message: `${room}, so there is no queue at all; ${atOnce}` }]
    // "1/m" may well mean one at a time. "12/m" hardly does.
    if (Number.parseFloat(rateText) < 2 * cost) return []
    const pace = durationText(cost / rate)
    const message = `${room}: of ${rateText} only one every ${pace} passes, two at once never do; ${atOnce}`
    return [{ path: [...path, 'capacity'], message }]
  })
}

/** Whether a rate is written for more than a minute: it is hardly meant as a pace. */
function isSlow(rateText: string): boolean {
  const [, count = '', unit = 's'] = /\/(\d*)([smhd])$/.exec(rateText) ?? []
  return unit === 'h' || unit === 'd' || (unit === 'm' && Number(count || 1) > 1)
}

/** Warns of a queue in which requests wait longer than their clients. */
function tooLarge(bucket: BucketSettings, users: readonly RouteSettings[]): Warning[] {
  const found = placesOf(bucket).flatMap(place => {
    const route = users.find(each => each.mode === 'shape' && isTooLong(place, smallestCost(each, bucket), each))
    return route === undefined ? [] : [{ place, route }]
  })
  return found.slice(0, 1).map(({ place: { path, limits }, route }) => {
    const cost = smallestCost(route, bucket)
    const wait = durationText(waitFor(cost, limits))
    if (waitFor(cost, limits) >= QUOTA) {
      const pace = `one request leaves every ${durationText((cost || 1) / limits.rate)}, the last of ${limits.capacity} after ${wait}`
      const remedy = `if this is a quota that a client may use at once, use "quota" where it starts anew with the calendar, set "burst": ${limits.capacity}, or "mode": "meter" on route "${route.name}"; if not, lower the capacity`
      return { path: [...path, 'capacity'], message: `${pace}; ${remedy}` }
    }
    const patience = exactDuration(PATIENCE)
    // With a burst `maxDelay` would be shorter than the wait that it is to bound: capacity = rate x maxDelay.
    const instead =
      path.length === 2 && limits.burst === undefined
        ? `"maxDelay": "${patience}" instead of capacity`
        : 'a smaller capacity'
    const message = `a request can wait ${wait}, and many clients give up after ${patience}; set "maxWait" on route "${route.name}" to what its clients accept, or ${instead}`
    return { path: [...path, 'capacity'], message }
  })
}

function idleBurst(bucket: BucketSettings): Warning[] {
  const [own, ...tiers] = placesOf(bucket)
  const isOwn = ({ burst, capacity }: BucketLimits): boolean => {
    return burst !== own.limits.burst || capacity !== own.limits.capacity
  }
  // Inherited limits are reported once.
  return [own, ...tiers.filter(({ limits }) => isOwn(limits))].flatMap(({ path, limits: { burst = 0, capacity } }) => {
    if (burst <= capacity) return []
    const message = `the bucket holds ${capacity} and rejects what goes beyond, so ${burst} never leave at once; raise the capacity to at least ${burst}, or lower this`
    return [{ path: [...path, 'burst'], message }]
  })
}

/** A `maxWait` below the longest wait is deliberate, so it needs no warning. */
function isTooLong({ limits }: Place, cost: number, { maxWait }: RouteSettings): boolean {
  const wait = waitFor(cost, limits)
  return wait > PATIENCE && maxWait >= wait
}

function blocksAll(bucket: BucketSettings): Warning[] {
  const { blockFor } = bucket.limits
  if (blockFor === undefined || isPerClient(bucket)) return []
  const until = blockFor === 'drain' ? 'until it has drained' : `for ${exactDuration(blockFor)}`
  const message = `one client that overflows this bucket blocks all others, too, ${until}; block on a bucket whose key tells clients apart, e.g. "ip"`
  return [{ path: ['buckets', bucket.name, 'blockFor'], message }]
}

/** Warns of tiers with the key `all`: the only instance would take the limits of the last request. */
function sharedTiers({ name, key, tiers }: BucketSettings): Warning[] {
  if (tiers.length === 0 || key.parts.some(({ kind }) => kind !== 'all')) return []
  const message =
    'with the key "all" all clients share one bucket, so tiers cannot set any apart; move the tiers to a bucket whose key tells clients apart, e.g. "ip"'
  return [{ path: ['buckets', name, 'tiers'], message }]
}
