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
 * This is exact. After `MOST_WALKED` requests, and where other lanes share a bucket, the buckets are counted one after the other:
 * the answer is then longer than the wait.
 */

import { slackOf } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { type Arrival, costAt, type Demand, type Lane, type SharedBucket, type Ticket } from '../queue/lane.js'
import { laneAlone, SAME_TIME } from '../queue/ready-lanes.js'
import { findLane } from '../queue/tree.js'

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
  const walk = new Walk(stack, now + pause)
  const isAlone = stack.every(bucket => bucket.waiting === 0 || (lane !== undefined && laneAlone(bucket) === lane))
  let left = stack.map(({ queued }) => queued)
  if (isAlone) {
    for (const ticket of waitingIn(lane)) {
      if (walk.count === MOST_WALKED) break
      walk.pass(ticket)
      left = left.map((cost, place) => cost - costAt(ticket, place))
    }
  }
  return walk.slotOf(arrival) + serially(stack, left) - now - SAME_TIME
}

/** @returns ms until the level of a bucket for which requests wait is `target` cost units */
export function timeUntilLevelOfMixed(bucket: SharedBucket, target: number, now: number): number {
  const { rate } = bucket.limits
  const lane = laneAlone(bucket)
  const isAlone = lane?.stack.every(other => laneAlone(other) === lane) === true
  if (!isAlone) {
    const stacks = lane?.stack ?? [bucket]
    return serially(
      stacks,
      stacks.map(other => (other === bucket ? other.level(now) - target : other.level(now))),
    )
  }
  const { stack } = lane
  const place = stack.indexOf(bucket)
  const walk = new Walk(stack, now + lane.gate.pausedFor(now))
  let left = stack.map(({ queued }) => queued)
  let slot = now
  // From each release on the bucket drains to what waits behind it.
  const isReached = (): boolean => left[place]! <= target + LEVEL_TOLERANCE
  const reachedAt = (): number => Math.max(slot, walk.drained[place]! - (target - left[place]!) / rate) - now
  if (isReached()) return reachedAt()
  for (const ticket of waitingIn(lane)) {
    if (walk.count === MOST_WALKED) break
    slot = walk.pass(ticket)
    left = left.map((cost, at) => cost - costAt(ticket, at))
    if (isReached()) return reachedAt()
  }
  left[place] = Math.max(0, left[place]! - target)
  return Math.max(...walk.drained) + serially(stack, left) - now
}

/** The releases of a lane, one by one. Times in ms. */
class Walk {
  count = 0
  /** When each bucket has drained of what has passed. */
  readonly drained: number[]
  readonly #stack: readonly SharedBucket[]
  #slot: number

  constructor(stack: readonly SharedBucket[], start: number) {
    this.#stack = stack
    this.#slot = start
    // Slots that a store will grant are not known before it does.
    this.drained = stack.map(({ drainedAt }) => (drainedAt < Infinity ? drainedAt : start))
  }

  slotOf(demand: Demand): number {
    let slot = this.#slot
    for (const [place, { limits }] of this.#stack.entries()) {
      slot = Math.max(slot, this.drained[place]! - slackOf(limits, costAt(demand, place)) / limits.rate)
    }
    return slot
  }

  /** Returns its slot. */
  pass(demand: Demand): number {
    this.#slot = this.slotOf(demand)
    this.count += 1
    for (const [place, { limits }] of this.#stack.entries()) {
      this.drained[place] = Math.max(this.drained[place]!, this.#slot) + costAt(demand, place) / limits.rate
    }
    return this.#slot
  }
}

/** ms in which costs leave buckets, one bucket after the other. */
function serially(stack: readonly SharedBucket[], costs: readonly number[]): number {
  let time = 0
  for (const [place, { limits }] of stack.entries()) time += Math.max(0, costs[place]!) / limits.rate
  return time
}

/** The requests of a lane that wait for a slot, those that claim one first. */
function* waitingIn(lane: Lane | undefined): Generator<Ticket> {
  if (lane === undefined) return
  yield* lane.claiming ?? []
  yield* lane.tickets
}
