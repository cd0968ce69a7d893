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
 * This is exact. After `MOST_WALKED` requests, and where other lanes share a bucket, the buckets of a stack are counted one after the
 * other: the answer is then longer than the wait.
 */

import { slackOf, timeToPass, timeUntilDrained } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { allSources } from '../bucket/waiting.js'
import { type Arrival, costAt, type Demand, type Lane, type SharedBucket, type Ticket } from '../queue/lane.js'
import { laneAlone, SAME_TIME } from '../queue/ready-lanes.js'
import { findLane, lanesBelow } from '../queue/tree.js'

/** Requests that are looked at one by one. */
const MOST_WALKED = 1_000

/** Whether requests cost different amounts in the buckets of a stack. */
export function isMixed({ stack, costs }: Demand): boolean {
  return costs !== undefined || stack.some(bucket => bucket.isMixed)
}

/**
 * @param pause ms during which nothing leaves
 * @returns ms until a newcomer leaves, less what rounding may add
 */
export function waitOfMixed(arrival: Arrival, now: number, pause: number): number {
  const { stack } = arrival
  const lane = findLane(arrival)
  const walk = new Walk(stack, now, pause)
  const isAlone = stack.every(bucket => bucket.waiting === 0 || (lane !== undefined && laneAlone(bucket) === lane))
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
export function timeUntilLevelOfMixed(bucket: SharedBucket, target: number, now: number): number {
  const lane = laneAlone(bucket)
  const isAlone = lane?.stack.every(other => laneAlone(other) === lane) === true
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

/** The releases of a lane, one by one. Times in ms. */
class Walk {
  count = 0
  /** When each bucket has drained of what has passed. */
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

  /** Returns its slot. */
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
 * ms until the level of a bucket is `target` cost units, where other lanes share the buckets of its own. While the bucket is free
 * and somebody waits for it, another one of that request's stack is not, and each of those delays for no longer than it takes to drain.
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

/** The requests of a lane that wait for a slot, those that claim one first. */
function* waitingIn(lane: Lane | undefined): Generator<Ticket> {
  if (lane === undefined) return
  yield* lane.claiming ?? []
  yield* lane.tickets
}
