/** Whether a stack of buckets takes a request. If not, why and until when. Nothing is changed. */

import { slackOf } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import type { Demand, Gate, Rejection, SharedBucket } from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'
import { timeUntilLevel } from './drain-time.js'

/**
 * @param maxWait ms. The predicted wait is the longest of the stack's.
 * @param pause ms during which nothing leaves
 */
export function decide(demand: Demand, maxWait: number, now: number, pause = 0): Rejection | undefined {
  const { stack, cost } = demand
  for (const bucket of stack) {
    const { capacity } = bucket.limits
    const level = bucket.level(now)
    const full = level + cost - capacity > LEVEL_TOLERANCE
    const slack = slackOf(bucket.limits, cost)
    if (full || waitOf(bucket, level - slack, pause, bucket.queued - slack) > maxWait || bucket.blockedFor(now) > 0) {
      return explainRejection(demand, maxWait, now, pause)
    }
  }
  // Without a bucket the pause is all that it waits for as far as is known.
  if (stack.length === 0 && pause > maxWait)
    return { reason: 'max-wait', buckets: stack, retryAfterMs: pause - maxWait }
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

/**
 * How long, in ms, a level of a bucket takes to leave, less what rounding may add. For the wait of a request take its slack from
 * the level and from what is queued.
 *
 * @param queued the part of the level that waits, in cost units
 */
export function waitOf({ limits: { rate } }: SharedBucket, level: number, pause: number, queued: number): number {
  if (pause === 0) return level / rate - SAME_TIME
  // What has passed leaks during the pause. What is queued does not.
  const left = Math.max(Math.min(queued, level), level - pause * rate)
  return pause + Math.max(0, left) / rate - SAME_TIME
}

function explainRejection(demand: Demand, maxWait: number, now: number, pause: number): Rejection {
  const { stack, cost } = demand
  const tooSmall = stack.filter(bucket => !bucket.canEverFit(cost))
  if (tooSmall.length > 0) return { reason: 'too-costly', buckets: tooSmall, retryAfterMs: undefined }
  const retryAfterMs = timeUntilFit(demand, maxWait, now, pause)
  const blocked = stack.filter(bucket => bucket.blockedFor(now) > 0)
  if (blocked.length > 0) return { reason: 'blocked', buckets: blocked, retryAfterMs }
  const full = stack.filter(bucket => bucket.excess(cost, now) > 0)
  if (full.length > 0) return { reason: 'overflow', buckets: full, retryAfterMs }
  const slow = stack.filter(bucket => {
    const slack = slackOf(bucket.limits, cost)
    return waitOf(bucket, bucket.level(now) - slack, pause, bucket.queued - slack) > maxWait
  })
  return { reason: 'max-wait', buckets: slow, retryAfterMs }
}

/** @returns ms until such a request is admitted if nobody else comes */
export function timeUntilFit({ stack, cost }: Demand, maxWait: number, now: number, pause = 0): number {
  let time = 0
  for (const bucket of stack) {
    const { rate, capacity } = bucket.limits
    const blocked = bucket.blockedFor(now)
    const slack = slackOf(bucket.limits, cost)
    const target = blocked === Infinity ? 0 : Math.min(capacity - cost, rate * maxWait + slack)
    const excess = bucket.level(now) - target
    // A cost that was metered while requests wait drains no faster, though the first of them may leave before it has.
    if (excess > 0) time = Math.max(time, excess / rate, timeUntilLevel(bucket, target, now))
    if (pause > 0) {
      const wait = waitOf(bucket, bucket.level(now) - slack, pause, bucket.queued - slack)
      time = Math.max(time, wait + SAME_TIME - maxWait)
    }
    if (blocked < Infinity) time = Math.max(time, blocked)
  }
  return time
}
