/**
 * A quota that is spread: beside its count there is a bucket that paces what is left of it evenly until the period ends.
 *
 *     rate = (limit - what has passed) / (end of the period - when the next request may leave)
 *
 * While requests wait this stays the same: each release takes one gap from the time and its cost from what is left. After a pause, or
 * when a cost turns out to be another, it is higher or lower. So all of it can be used by the end, and never more, as the count bounds it.
 */
import type { BucketLimits } from './limits.js'
import type { QueuedBucket } from './queued-bucket.js'

/** A rate that differs by less, as a part of it, is the same. */
const SAME_RATE = 1e-3

/**
 * The limits of the bucket that paces a key.
 *
 * @param configured with the rate of a period from its beginning
 * @param count the quota, of the same key
 * @param present the bucket that paces, as it is. Undefined: there is none yet
 * @returns those that it has, if they may stay
 */
export function pacedLimits(
  configured: BucketLimits,
  count: QueuedBucket,
  present: QueuedBucket | undefined,
  now: number,
): BucketLimits {
  const { quota, capacity } = count.limits.whole ?? count.limits
  const free = present?.freeAt ?? now
  const from = free < Infinity ? Math.max(now, free) : now
  if (quota === undefined || from >= quota.until) return configured
  const left = capacity - count.level(now) + count.queued
  const rate = left > 0 ? left / (quota.until - from) : configured.rate
  const known = present?.limits
  const whole = known?.whole ?? known
  const isSame = whole?.capacity === configured.capacity && whole.tier === configured.tier
  return isSame && Math.abs(whole.rate - rate) <= SAME_RATE * rate ? known! : { ...configured, rate }
}
