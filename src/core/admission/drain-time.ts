/**
 * When a bucket's level will have fallen far enough, if nobody else comes.
 *
 * A level falls only while the bucket holds something: `rate` per ms from each release until it has drained. What it
 * holds now drains for sure. Beyond that, requests have to be released, which other buckets may delay: a shared bucket
 * that is full of one slow client's requests empties at that client's rate. So the answer is the time until the needed
 * releases are possible, plus the drain of `excess` at `rate`. For a bucket that is alone in its stacks, or the slowest
 * of them, this is exactly `excess / rate`. Otherwise it is an upper bound: it assumes that every request that may go
 * first at another bucket does. It is never too early.
 */

import { type BucketLimits, timeToPass, timeUntilDrained } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { allSources } from '../bucket/waiting.js'
import { Lane, type SharedBucket, type ShareNode, type Source } from '../queue/lane.js'
import { sourcesBelow } from '../queue/tree.js'
import { timeUntilLevelOfMixed } from './mixed-costs.js'

/** @returns ms until the bucket's level is `target` cost units */
export function timeUntilLevel(bucket: SharedBucket, target: number, now: number): number {
  if (bucket.isMixed) return timeUntilLevelOfMixed(bucket, target, now)
  const { limits } = bucket
  const excess = bucket.level(now) - target
  const beyondHold = excess - bucket.hold(now)
  if (beyondHold <= LEVEL_TOLERANCE || bucket.waiting === 0) return timeToPass(limits, excess, now)
  const releases = timeUntilReleases(bucket, bucket.leastCost, beyondHold, now)
  return isKnown(releases) ? releases + timeToPass(limits, beyondHold, now + releases) : timeToPass(limits, excess, now)
}

/** Slots that a store will grant are not known before it does. */
function isKnown(time: number): boolean {
  return time < Infinity
}

/** @returns ms until the requests that wait for the bucket cost `target` units, as they are released one by one */
export function timeUntilQueued(bucket: SharedBucket, target: number, now: number): number {
  const beyond = bucket.queued - target
  if (beyond <= LEVEL_TOLERANCE || bucket.waiting === 0) return 0
  // The last of them leaves before its cost has drained.
  if (bucket.isMixed) return timeUntilLevelOfMixed(bucket, target, now)
  const { leastCost } = bucket
  const isUniform = Math.abs(bucket.queued - bucket.waiting * leastCost) <= LEVEL_TOLERANCE
  // The last of them leaves when those before it have drained.
  const releases = Math.ceil(beyond / leastCost - LEVEL_TOLERANCE)
  const before = releases === 1 ? 0 : isUniform ? (releases - 1) * leastCost : beyond
  const start = timeUntilReleases(bucket, leastCost, beyond, now)
  const from = isKnown(start) ? Math.max(0, start) : 0
  return from + timeToPass(bucket.limits, before, now + from)
}

/**
 * ms until enough waiting requests to make up `cost` units can start to be released. Requests that may go ahead of them
 * are counted as going first.
 */
function timeUntilReleases(bucket: SharedBucket, leastCost: number, cost: number, now: number): number {
  // One source may have less than that.
  const parts = allSources(bucket).map(source => {
    const part = Math.min(cost, source.queued)
    const start = Math.max(timeUntilDrained(bucket, now), source.gate.pausedFor(now))
    const ready = Math.max(start, timeBelow(source, part, start, now))
    const count = Math.min(source.waiting, Math.ceil(part / leastCost - LEVEL_TOLERANCE))
    return { at: timeAbove(source, { count, cost: part }, ready, now), cost: part }
  })
  return timeOfAll(parts, cost)
}

/** The time in ms at which parts make up `cost` units. */
function timeOfAll(parts: { readonly at: number; readonly cost: number }[], cost: number): number {
  parts.sort((a, b) => a.at - b.at)
  let sum = 0
  for (const part of parts) {
    sum += part.cost
    if (sum + LEVEL_TOLERANCE >= cost) return part.at
  }
  return parts.at(-1)?.at ?? 0
}

/** ms until a source has `cost` units ready for its bucket, which takes none of them before `start`. */
function timeBelow(source: Source, cost: number, start: number, now: number): number {
  // A lane has them at once.
  if (source instanceof Lane || source.first?.bucket === undefined) return 0
  const parts: { at: number; cost: number }[] = []
  for (const below of sourcesBelow(source)) {
    const bucket = below.bucket!
    const ready = Math.min(cost, below.queued)
    // If the first request covers it all, nothing has to drain between releases.
    const own = bucket.leastCost + LEVEL_TOLERANCE >= ready ? 0 : ready
    const drain = costOfOtherSources(below) + own
    const free = timeUntilFree(bucket, drain, now)
    // What has to drain between releases does so from the first one on. A faster bucket keeps up with the next one anyway.
    const first = drain === 0 || isAlwaysFaster(bucket.limits, source.bucket!.limits) ? free : Math.max(free, start)
    const begin = Math.max(first, timeBelow(below, ready, start, now))
    const at = begin + timeToPass(bucket.limits, drain, now + begin)
    if (at <= 0 && ready + LEVEL_TOLERANCE >= cost) return 0
    parts.push({ at, cost: ready })
  }
  return timeOfAll(parts, cost)
}

/** Requests that have to leave, and their cost in all. */
interface Batch {
  readonly count: number
  readonly cost: number
}

function isAlwaysFaster(one: BucketLimits, other: BucketLimits): boolean {
  return one.next === undefined && other.next === undefined && one.rate >= other.rate
}

/**
 * ms until the source, ready in `ready` ms, has sent a batch through every bucket after it. Requests that go ahead of it at one
 * bucket have to pass the next ones as well.
 */
function timeAbove(source: Source, batch: Batch, ready: number, now: number): number {
  let time = ready
  let { count, cost } = batch
  let child = source
  for (let at: ShareNode | undefined = source.parent; at?.bucket !== undefined; at = at.parent) {
    const { bucket } = at
    const others = { count: at.count - 1, weight: at.weight - child.weight }
    const inClass = at.fairQueue.longestWait(child, others, count, cost)
    const ahead = Math.min(inClass + costOfOtherSources(at), bucket.queued)
    const drain = ahead + (count > 1 ? cost : 0)
    time = Math.max(time, timeUntilFree(bucket, drain, now))
    time += timeToPass(bucket.limits, drain, now + time)
    count = Math.min(bucket.waiting, count + Math.ceil(ahead / bucket.leastCost))
    cost += ahead
    child = at
  }
  return time
}

/** ms until a bucket is free for the first of some requests. What was metered delays those after the first. */
function timeUntilFree(bucket: SharedBucket, drain: number, now: number): number {
  const free = timeUntilDrained(bucket, now)
  return drain === 0 ? free : Math.max(free, timeToPass(bucket.limits, bucket.hold(now), now))
}

/**
 * The most cost units that leave a bucket before those of a source, of other classes or towards other upstreams. Also of a class
 * behind: it may be owed its slot already, or leave while another bucket keeps those of the source.
 */
function costOfOtherSources(source: Source): number {
  const { bucket } = source
  if (bucket === undefined) return 0
  let cost = 0
  for (const other of allSources(bucket)) if (other !== source) cost += other.queued
  return cost
}
