/**
 * When a full bucket has room again, if nobody else comes.
 *
 * What holds the bucket drains at its rate. What is queued leaves only when it is released, which a bucket elsewhere in
 * its stack may delay: a shared bucket full of one slow client's requests empties at that client's rate. So the answer
 * is the time of the next releases through the bucket, plus the drain of what they held. For a bucket that is the
 * slowest of all its lanes this is `excess / rate`, exactly; where lanes contend for another bucket it supposes that
 * everyone who can go there goes first.
 */

import type { Junction, SharedBucket } from './lane.js'

/** How many contenders are looked at to find the one that can go first. */
const LOOKED_AT = 64

/** @returns ms until a request of `cost`, which is no more than the capacity, is admitted by `bucket` */
export function timeUntilRoom(bucket: SharedBucket, cost: number, now: number): number {
  const { rate } = bucket.limits
  const beyondHold = bucket.excess(cost, now) - bucket.hold(now)
  if (beyondHold <= 0 || bucket.outlet === undefined) return bucket.excess(cost, now) / rate
  let soonest = Infinity
  for (const junction of bucket.outlet.junctions) {
    const head = headCost(junction)
    const releases = Math.ceil(beyondHold / head - 1e-9)
    const first = Math.max(bucket.freeAt - now, timeBelow(junction, now), timeAbove(junction, head, now))
    soonest = Math.min(
      soonest,
      first + (releases - 1) * slowestPeriod(junction, head) + (beyondHold - (releases - 1) * head) / rate,
    )
  }
  return soonest
}

/** ms until somebody below the junction has passed all the buckets before it. */
function timeBelow(junction: Junction, now: number): number {
  if (junction.lanes.length > 0) return 0
  let soonest = Infinity
  let looked = 0
  for (const below of junction.junctions) {
    soonest = Math.min(soonest, Math.max(below.bucket!.freeAt - now, timeBelow(below, now)))
    looked += 1
    if (looked === LOOKED_AT || soonest <= 0) break
  }
  return soonest
}

/** ms until the junction has had its turn at every bucket after it. */
function timeAbove(junction: Junction, cost: number, now: number): number {
  let longest = 0
  for (let at = junction.parent; at?.bucket !== undefined; at = at.parent) {
    const others = at.lanes.length + at.junctions.size - 1
    longest = Math.max(longest, at.bucket.freeAt - now + (others * cost) / at.bucket.limits.rate)
  }
  return longest
}

/** ms between two releases of `cost` through the junction, once everyone else has left. */
function slowestPeriod(junction: Junction, cost: number): number {
  let slowest = 0
  for (let at: Junction | undefined = junction; at?.bucket !== undefined; at = at.parent) {
    slowest = Math.max(slowest, cost / at.bucket.limits.rate)
  }
  for (let at: Junction | undefined = junction; at !== undefined; at = first(at.junctions)) {
    if (at.bucket !== undefined) slowest = Math.max(slowest, cost / at.bucket.limits.rate)
  }
  return slowest
}

function headCost(junction: Junction): number {
  let at = junction
  for (let below = first(at.junctions); at.lanes.length === 0 && below !== undefined; below = first(at.junctions))
    at = below
  return at.lanes[0]!.headCost()
}

function first<T>(set: ReadonlySet<T>): T | undefined {
  return set.values().next().value
}
