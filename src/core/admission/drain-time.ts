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
import { slackOf } from '../../decider/costs.js'
import { type BucketLimits, timeToPass, timeUntilDrained } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { allSources } from '../bucket/waiting.js'
import {
  type Arrival,
  costAt,
  type Demand,
  Lane,
  type SharedBucket,
  type ShareNode,
  type Source,
  type Ticket,
} from '../queue/lane.js'
import { onlyLaneFor, SAME_TIME } from '../queue/ready-lanes.js'
import { findLane, lanesBelow, sourcesBelow } from '../queue/tree.js'

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

/** ms until requests of `cost` units can start to be released. Those that may go ahead of them count as going first. */
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

interface Batch {
  readonly count: number
  readonly cost: number
}

function isAlwaysFaster(one: BucketLimits, other: BucketLimits): boolean {
  return one.next === undefined && other.next === undefined && one.rate >= other.rate
}

/** ms until the source, ready in `ready` ms, has sent a batch through every bucket after it, behind all that may go ahead. */
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

/** Upper bound of what other classes and gates send before a source. A class behind may be owed its slot, or leave meanwhile. */
function costOfOtherSources(source: Source): number {
  const { bucket } = source
  if (bucket === undefined) return 0
  let cost = 0
  for (const other of allSources(bucket)) if (other !== source) cost += other.queued
  return cost
}

const MOST_WALKED = 1_000

/** Whether requests cost different amounts in the buckets of a stack. */
export function isMixed({ stack, costs }: Demand): boolean {
  return costs !== undefined || stack.some(bucket => bucket.isMixed)
}

/** @param pause ms during which nothing leaves @returns ms until a newcomer leaves, less what rounding may add */
export function waitOfMixed(arrival: Arrival, now: number, pause: number): number {
  const { stack } = arrival
  const lane = findLane(arrival)
  const walk = new Walk(stack, now, pause)
  const isAlone = stack.every(bucket => bucket.waiting === 0 || (lane !== undefined && onlyLaneFor(bucket) === lane))
  let left = stack.map(({ queued }) => queued)
  if (isAlone) {
    for (const ticket of waitingIn(lane)) {
      if (walk.count === MOST_WALKED) break
      walk.pass(ticket)
      left = left.map((cost, place) => cost - costAt(ticket, place))
    }
  }
  const slot = walk.slotOf(arrival)
  return slot + serially(stack, left, slot) - now - SAME_TIME
}

/** @returns ms until the level of a bucket for which requests wait is `target` cost units */
function timeUntilLevelOfMixed(bucket: SharedBucket, target: number, now: number): number {
  const lane = onlyLaneFor(bucket)
  const isAlone = lane?.stack.every(other => onlyLaneFor(other) === lane) === true
  if (!isAlone) return timeBesideOthers(bucket, target, now)
  const { stack } = lane
  const place = stack.indexOf(bucket)
  const walk = new Walk(stack, now, lane.gate.pausedFor(now))
  let left = stack.map(({ queued }) => queued)
  let slot = now
  // From each release on the bucket drains to what waits behind it.
  const isReached = (): boolean => left[place]! <= target + LEVEL_TOLERANCE
  const reachedAt = (): number => Math.max(slot, before(bucket, target - left[place]!, walk.drained[place]!)) - now
  if (isReached()) return reachedAt()
  for (const ticket of waitingIn(lane)) {
    if (walk.count === MOST_WALKED) break
    slot = walk.pass(ticket)
    left = left.map((cost, at) => cost - costAt(ticket, at))
    if (isReached()) return reachedAt()
  }
  left[place] = Math.max(0, left[place]! - target)
  const drained = Math.max(...walk.drained)
  return drained + serially(stack, left, drained) - now
}

/**
 * How long requests wait that cost different amounts in the buckets of their stack.
 *
 * Where a request costs the same in each bucket, the slowest bucket delays all of them. Here one bucket may delay the first and
 * another the second, so no level alone says when the last of them leaves. The releases of a lane that is alone on its buckets
 * follow one by one:
 *
 *     slot(i) = max(slot(i - 1), drained(b) - slack(b, i) / rate(b) of each bucket b)
 *     drained(b) = max(drained(b), slot(i)) + cost(b, i) / rate(b)
 *
 * This is exact. After `MOST_WALKED` requests, and where other lanes share a bucket, the buckets of a stack are counted one
 * after the other: the answer is then longer than the wait.
 */
class Walk {
  count = 0
  readonly drained: number[]
  readonly #stack: readonly SharedBucket[]
  #slot: number

  /** @param pause ms from `now` on during which nothing leaves */
  constructor(stack: readonly SharedBucket[], now: number, pause: number) {
    const start = now + pause
    this.#stack = stack
    this.#slot = start
    // Slots that a store will grant are not known before it does.
    this.drained = stack.map(bucket => {
      return bucket.drainedAt < Infinity ? now + timeUntilDrained(bucket, now) : start
    })
  }

  slotOf(demand: Demand): number {
    let slot = this.#slot
    for (const [place, bucket] of this.#stack.entries()) {
      slot = Math.max(slot, before(bucket, slackOf(bucket.limits, costAt(demand, place)), this.drained[place]!))
    }
    return slot
  }

  pass(demand: Demand): number {
    this.#slot = this.slotOf(demand)
    this.count += 1
    for (const [place, { limits }] of this.#stack.entries()) {
      const start = Math.max(this.drained[place]!, this.#slot)
      this.drained[place] = start + timeToPass(limits, costAt(demand, place), start)
    }
    return this.#slot
  }
}

/** ms in which costs leave buckets from `start` on, one bucket after the other. */
function serially(stack: readonly SharedBucket[], costs: readonly number[], start: number): number {
  let time = 0
  let slowest = 0
  let change = Infinity
  for (const [place, { limits }] of stack.entries()) {
    const { rate, next } = limits
    const cost = Math.max(0, costs[place]!)
    time += cost / rate
    slowest += cost / (next === undefined ? rate : Math.min(rate, next.rate))
    if (next !== undefined) change = Math.min(change, next.at)
  }
  // Which of them delays when is not known. So each may do so after a change.
  return start + time <= change ? time : slowest
}

/**
 * ms until the level of a bucket is `target` cost units, where other lanes share the buckets of its own. While the bucket is
 * free and somebody waits for it, another one of that request's stack is not, and each of those delays for no longer than it
 * takes to drain.
 */
function timeBesideOthers(bucket: SharedBucket, target: number, now: number): number {
  let longest = serially([bucket], [bucket.level(now) - target], now)
  for (const { stack } of allSources(bucket).flatMap(lanesBelow)) {
    const costs = stack.map(other => other.level(now) - (other === bucket ? target : 0))
    longest = Math.max(longest, serially(stack, costs, now))
  }
  return longest
}

/** When a bucket still holds so much, if it has drained at `drained`. */
function before({ limits: { rate, next } }: SharedBucket, cost: number, drained: number): number {
  if (next === undefined || drained <= next.at) return drained - cost / rate
  const since = drained - cost / next.rate
  return since >= next.at ? since : next.at - (cost - (drained - next.at) * next.rate) / rate
}

function* waitingIn(lane: Lane | undefined): Generator<Ticket> {
  if (lane === undefined) return
  yield* lane.claiming ?? []
  yield* lane.tickets
}
