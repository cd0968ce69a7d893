/** Whether a stack of buckets takes a request. If not, why and until when. Nothing is changed. */
import { isCost, slackOf } from '../../decider/costs.js'
import { type BucketLimits, timeToPass } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import {
  type Arrival,
  costAt,
  costIn,
  type Demand,
  type Gate,
  type Rejection,
  reservedFrom,
  type SharedBucket,
} from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'
import { isMixed, timeUntilLevel } from './drain-time.js'
import { levelWait, predictedWait } from './predicted-wait.js'

/** @param maxWait ms. A longer predicted wait is rejected. @param pause ms during which nothing leaves */
export function decide(arrival: Arrival, maxWait: number, now: number, pause = 0): Rejection | undefined {
  const { stack, costs } = arrival
  const refused = uncountable(arrival)
  if (refused !== undefined) return refused
  let inTurn = 0
  for (let place = 0; place < stack.length; place += 1) {
    const bucket = stack[place]!
    const cost = costAt(arrival, place)
    const { capacity } = bucket.limits
    const level = bucket.level(now) + reservedFrom(arrival, bucket, now)
    const full = level + cost - capacity > LEVEL_TOLERANCE
    if (full || bucket.blockedFor(now) > 0) return explainRejection(arrival, maxWait, now, pause)
    // Who waits for as long as it takes need not know how long.
    if (maxWait === Infinity) continue
    const wait = levelWait(bucket, cost, { level, now, pause })
    inTurn += wait
    if (wait > maxWait) return explainRejection(arrival, maxWait, now, pause)
  }
  // One bucket may delay some of those before it and another the others.
  if (costs !== undefined && inTurn > maxWait) return explainRejection(arrival, maxWait, now, pause)
  // Without a bucket the pause is all that it waits for as far as is known.
  if (stack.length === 0 && pause > maxWait)
    return { reason: 'max-wait', buckets: stack, retryAfterMs: pause - Math.max(0, maxWait) }
  return undefined
}

export function uncountable({ stack, cost, costs }: Demand): Rejection | undefined {
  if (isCost(cost) && (costs === undefined || costs.every(isCost))) return undefined
  return { reason: 'too-costly', buckets: stack, retryAfterMs: undefined }
}

/** Why a request that may not wait cannot pass a gate now. Undefined: it can. */
export function shutOut(gate: Gate, now: number): Rejection | undefined {
  if (gate.paused) return { reason: 'paused', buckets: [], retryAfterMs: gate.pausedFor(now) }
  return gate.open ? undefined : { reason: 'crowded', buckets: [], retryAfterMs: undefined }
}

/** Why a request that may not wait cannot be in flight besides the others of its buckets. Undefined: it can. */
export function placeless({ stack }: Demand): Rejection | undefined {
  const buckets = stack.filter(bucket => !bucket.hasPlace)
  return buckets.length === 0 ? undefined : { reason: 'in-flight', buckets, retryAfterMs: undefined }
}

function explainRejection(arrival: Arrival, maxWait: number, now: number, pause: number): Rejection | undefined {
  const { stack } = arrival
  const tooSmall = stack.filter((bucket, place) => !bucket.canEverFit(costAt(arrival, place)))
  if (tooSmall.length > 0) return { reason: 'too-costly', buckets: tooSmall, retryAfterMs: undefined }
  const blocked = stack.filter(bucket => bucket.blockedFor(now) > 0)
  const full = stack.filter(
    bucket => bucket.excess(costIn(arrival, bucket) + reservedFrom(arrival, bucket, now), now) > 0,
  )
  // Its turn among others may come before all of them have left.
  const reserved = stack.map(bucket => timeToPass(bucket.limits, reservedFrom(arrival, bucket, now), now))
  const wait = predictedWait(arrival, now, pause) + Math.max(0, ...reserved)
  if (blocked.length + full.length === 0 && wait <= maxWait) return undefined
  // Of buckets that delay one after the other each may fit by itself.
  const late = isMixed(arrival) ? wait - Math.max(0, maxWait) : 0
  const retryAfterMs = Math.max(timeUntilFit(arrival, maxWait, now, pause), late)
  if (blocked.length > 0) return { reason: 'blocked', buckets: blocked, retryAfterMs }
  if (full.length > 0) return { reason: 'overflow', buckets: full, retryAfterMs }
  const slow = stack.filter(bucket => {
    const level = bucket.level(now) + reservedFrom(arrival, bucket, now)
    return levelWait(bucket, costIn(arrival, bucket), { level, now, pause }) > maxWait
  })
  return { reason: 'max-wait', buckets: slow, retryAfterMs }
}

/** ms. Whole seconds are told, and each client another moment. */
const LATEST_RETURN = 60_000

/** The most that a bucket may hold when a request comes that waits for at most `maxWait` ms. */
function roomFor(limits: BucketLimits, cost: number, maxWait: number): number {
  // Who may wait for less than no time is told when it would not wait.
  return Math.min(limits.capacity - cost, limits.rate * Math.max(0, maxWait) + slackOf(limits, cost))
}

/** ms until a bucket holds no more than `target`, with what is kept for others. */
function timeUntilRoom(bucket: SharedBucket, target: number, reserved: number, now: number): number {
  const excess = bucket.level(now) + reserved - target
  if (excess <= 0) return 0
  const { quota } = bucket.limits
  if (quota !== undefined) return Math.max(0, quota.until - now)
  // A cost that was metered while requests wait drains no faster, though the first of them may leave before it has.
  return Math.max(
    timeToPass(bucket.limits, excess, now),
    timeUntilLevel(bucket, reserved > 0 ? Math.max(0, target - reserved) : target, now),
  )
}

/** @returns ms until such a request is admitted if nobody else comes but those that have booked */
export function timeUntilFit(demand: Demand, maxWait: number, now: number, pause = 0): number {
  let time = 0
  for (const [place, bucket] of demand.stack.entries()) {
    const cost = costAt(demand, place)
    const blocked = bucket.blockedFor(now)
    const { next } = bucket.limits
    const present = blocked === Infinity ? 0 : roomFor(bucket.limits, cost, maxWait)
    let fit = timeUntilRoom(bucket, present, reservedFrom(demand, bucket, now), now)
    // It may come back, and wait, when the limits have changed.
    if (next !== undefined && now + fit + maxWait + LATEST_RETURN > next.at) {
      const later = Math.max(0, roomFor({ ...bucket.limits, ...next }, cost, maxWait))
      fit = timeUntilRoom(bucket, Math.min(present, later), reservedFrom(demand, bucket, now), now)
    }
    time = Math.max(time, fit)
    if (pause > 0)
      time = Math.max(
        time,
        levelWait(bucket, cost, { level: bucket.level(now), now, pause }) + SAME_TIME - Math.max(0, maxWait),
      )
    if (blocked < Infinity) time = Math.max(time, blocked)
  }
  return time
}
