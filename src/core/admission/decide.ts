/** Whether a stack of buckets takes a request. If not, why and until when. Nothing is changed. */

import { slackOf } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { type Arrival, costAt, costIn, type Demand, type Gate, type Rejection } from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'
import { timeUntilLevel } from './drain-time.js'
import { levelWait, predictedWait } from './predicted-wait.js'

/**
 * @param maxWait ms. It is rejected for a longer predicted wait (predicted-wait.ts).
 * @param pause ms during which nothing leaves
 */
export function decide(arrival: Arrival, maxWait: number, now: number, pause = 0): Rejection | undefined {
  const { stack, costs } = arrival
  let inTurn = 0
  for (let place = 0; place < stack.length; place += 1) {
    const bucket = stack[place]!
    const cost = costAt(arrival, place)
    const { capacity } = bucket.limits
    const level = bucket.level(now)
    const full = level + cost - capacity > LEVEL_TOLERANCE
    const wait = levelWait(bucket, cost, level, pause)
    inTurn += wait
    if (full || wait > maxWait || bucket.blockedFor(now) > 0) {
      return explainRejection(arrival, maxWait, now, pause)
    }
  }
  // One bucket may delay some of those before it and another the others.
  if (costs !== undefined && inTurn > maxWait) return explainRejection(arrival, maxWait, now, pause)
  // Without a bucket the pause is all that it waits for as far as is known.
  if (stack.length === 0 && pause > maxWait)
    return { reason: 'max-wait', buckets: stack, retryAfterMs: pause - Math.max(0, maxWait) }
  return undefined
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
  const full = stack.filter(bucket => bucket.excess(costIn(arrival, bucket), now) > 0)
  // Its turn among others may come before all of them have left.
  if (blocked.length + full.length === 0 && predictedWait(arrival, now, pause) <= maxWait) return undefined
  const retryAfterMs = timeUntilFit(arrival, maxWait, now, pause)
  if (blocked.length > 0) return { reason: 'blocked', buckets: blocked, retryAfterMs }
  if (full.length > 0) return { reason: 'overflow', buckets: full, retryAfterMs }
  const slow = stack.filter(bucket => levelWait(bucket, costIn(arrival, bucket), bucket.level(now), pause) > maxWait)
  return { reason: 'max-wait', buckets: slow, retryAfterMs }
}

/** @returns ms until such a request is admitted if nobody else comes */
export function timeUntilFit(demand: Demand, maxWait: number, now: number, pause = 0): number {
  let time = 0
  for (const [place, bucket] of demand.stack.entries()) {
    const cost = costAt(demand, place)
    const { rate, capacity } = bucket.limits
    const blocked = bucket.blockedFor(now)
    const slack = slackOf(bucket.limits, cost)
    // Who may wait for less than no time is told when it would not wait.
    const target = blocked === Infinity ? 0 : Math.min(capacity - cost, rate * Math.max(0, maxWait) + slack)
    const excess = bucket.level(now) - target
    // A cost that was metered while requests wait drains no faster, though the first of them may leave before it has.
    if (excess > 0) time = Math.max(time, excess / rate, timeUntilLevel(bucket, target, now))
    if (pause > 0)
      time = Math.max(time, levelWait(bucket, cost, bucket.level(now), pause) + SAME_TIME - Math.max(0, maxWait))
    if (blocked < Infinity) time = Math.max(time, blocked)
  }
  return time
}
