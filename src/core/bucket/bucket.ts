/**
 * The arithmetic of one leaky bucket.
 *
 * A bucket's level is what still *holds* it plus what is *queued* for it:
 *
 *     level(now) = hold(now) + queued          hold(now) = max(0, held - (now - heldAt) * rate)
 *
 * `held` at `heldAt` is the state of a leaky bucket as a meter, and `freeAt = heldAt + held / rate`, the moment it has
 * drained, is the theoretical arrival time of the virtual scheduling form (GCRA, ITU-T I.371 Annex A). A metered
 * request adds its cost to `held` at once. A shaped one is first `queued`; at its release, which is never before
 * `freeAt`, its cost moves from `queued` to `held`. Hence the two modes admit alike: in a busy period that starts at t0
 * the releases follow each other without a gap, so `hold` falls at `rate` between them and a release leaves
 * `hold + queued` as it is; both modes have level = sum of costs - rate * (now - t0).
 *
 * Why `held` and `heldAt` and not `freeAt` alone: a level computed as `(freeAt - now) * rate` carries the rounding of
 * an absolute time (1e-7 ms after ten days of uptime) and would refuse the b-th of b simultaneous requests. Here b
 * simultaneous requests add up without any product.
 *
 * Slots are absolute. A release belongs to its slot, the moment it became possible, however late the process woke:
 * the next slot is counted from the slot. Only lateness beyond `grace` is forfeited, in whole periods, so that the
 * slot stays on its grid. The bound that users are promised follows. Number the releases of a bucket i..j that happen
 * in a window of W. Every release happens at most `grace` after its slot and never before it, and slots are at least
 * cost / rate apart, so
 *
 *     cost(i..j-1) <= rate * (slot(j) - slot(i)) <= rate * (W + grace),
 *
 * and the j-th adds at most the largest cost: rate * (W + max(1 / rate, 2 ms)) + cMax. Limits with a `grace` of their own
 * forfeit lateness beyond it to the full: two releases are never closer than a period less the grace. Sending takes time, too: what
 * was sent later than it was let pass forfeits by the same rule (`delay`), before the next one passes, so the bound is
 * that of what is sent.
 */

import type { BucketLimits } from './limits.js'
import { WaitingState } from './waiting.js'

export type { BucketLimits } from './limits.js'

/** Decisions compare levels with this much tolerance, in cost units. */
export const LEVEL_TOLERANCE = 1e-9

/** The rounding of a period at 5000/s after ten days, in cost units, is a tenth of this. */
const ROUNDING = 1e-5

/** A stall of up to this many ms is made up for at any rate. */
const SHORTEST_GRACE = 2

/**
 * One instance of a bucket: that of one key. Times are in ms, costs in cost units.
 *
 * `Junction` and `Lane` are whatever those who let requests pass keep about the ones that wait.
 */
export class Bucket<Junction = unknown, Lane = unknown> {
  #limits: BucketLimits
  #held = 0
  #heldAt = 0
  /** Undefined while nobody waits and no block lasts. */
  waitingState: WaitingState<Junction, Lane> | undefined = undefined

  constructor(limits: BucketLimits) {
    this.#limits = limits
  }

  get limits(): BucketLimits {
    return this.#limits
  }

  /** Cost of the requests that wait to pass through. */
  get queued(): number {
    return this.waitingState === undefined ? 0 : this.waitingState.queued
  }

  /** How many those are. */
  get waiting(): number {
    return this.waitingState === undefined ? 0 : this.waitingState.waiting
  }

  /** Whether somebody counts on this very instance. */
  get engaged(): boolean {
    return this.waiting > 0
  }

  /** Changes what the bucket allows; its level stays, and drains at the new rate from now on. */
  setLimits(limits: BucketLimits, now: number): void {
    const { rate } = this.#limits
    if (limits.rate !== rate) {
      // What passed last stays whole, for `postpone` has to know it: it is dated so that as much of it is left as before.
      const leaked = this.#held - this.hold(now)
      this.#heldAt = Math.max(now, this.#heldAt) - leaked / limits.rate
      const waitingState = this.waitingState
      if (waitingState?.pinnedFreeAt !== undefined) {
        waitingState.pinnedFreeAt = now + (Math.max(0, waitingState.pinnedFreeAt - now) * rate) / limits.rate
      }
    }
    this.#limits = limits
  }

  /** What is left at `now` of what passed last. */
  hold(now: number): number {
    return this.#held === 0 ? 0 : Math.max(0, this.#held - Math.max(0, now - this.#heldAt) * this.#limits.rate)
  }

  level(now: number): number {
    const hold = this.hold(now)
    return this.waitingState === undefined ? hold : hold + this.waitingState.queued
  }

  /** When the next release is possible. */
  get freeAt(): number {
    return this.waitingState?.pinnedFreeAt ?? this.#heldAt + this.#held / this.#limits.rate
  }

  /** How much of `cost` does not fit at `now`; 0: it is admitted. */
  excess(cost: number, now: number): number {
    const excess = this.level(now) + cost - this.#limits.capacity
    return excess <= LEVEL_TOLERANCE ? 0 : excess
  }

  /** Whether `cost` fits when the bucket is empty. */
  canEverFit(cost: number): boolean {
    return cost <= this.#limits.capacity + LEVEL_TOLERANCE
  }

  /** Adds a metered cost, which passes at once. It takes room, but does not keep those waiting who came before it. */
  fill(cost: number, now: number): void {
    const waitingState = this.waitingState
    if (waitingState !== undefined && waitingState.waiting > 0) waitingState.pinnedFreeAt = this.freeAt
    this.#held = this.hold(now) + cost
    this.#heldAt = now
  }

  /** Does to the bucket, which has just overflowed, what its limits say. */
  applyOverflowPolicy(now: number): void {
    const { overflow, blockFor, capacity } = this.#limits
    const room = capacity - this.level(now)
    if (overflow === 'fill' && room > 0) {
      const waitingState = this.waitingState
      if (waitingState !== undefined) {
        waitingState.fillBehindQueue =
          waitingState.waiting > 0 ? Math.min(waitingState.fillBehindQueue, this.hold(now)) + room : 0
      }
      this.fill(room, now)
    }
    if (blockFor !== undefined) this.openWaitingState().blockedUntil = blockFor === 'drain' ? Infinity : now + blockFor
  }

  /** How much longer everything is rejected: 0, ms, or Infinity: until the bucket has drained. */
  blockedFor(now: number): number {
    const waitingState = this.waitingState
    if (waitingState?.blockedUntil === undefined) return 0
    const over =
      waitingState.blockedUntil === Infinity ? this.level(now) <= LEVEL_TOLERANCE : now >= waitingState.blockedUntil
    if (!over) return waitingState.blockedUntil - now
    waitingState.blockedUntil = undefined
    this.closeWaitingState()
    return 0
  }

  /** Whether it is as good as new. */
  idle(now: number): boolean {
    return !this.engaged && this.hold(now) === 0 && this.blockedFor(now) === 0
  }

  /** Forgets what passed, and any block; what is queued stays, and may leave from now on. */
  reset(now: number): void {
    this.#held = 0
    this.#heldAt = now
    const waitingState = this.waitingState
    if (waitingState === undefined) return
    waitingState.fillBehindQueue = 0
    waitingState.pinnedFreeAt = undefined
    waitingState.blockedUntil = undefined
    this.closeWaitingState()
  }

  enqueue(cost: number): void {
    const waitingState = this.openWaitingState()
    waitingState.queued += cost
    waitingState.waiting += 1
  }

  /** Takes out what was enqueued. */
  dequeue(cost: number): void {
    const waitingState = this.waitingState!
    waitingState.waiting -= 1
    waitingState.queued = waitingState.waiting === 0 ? 0 : waitingState.queued - cost
    if (waitingState.waiting > 0) return
    waitingState.fillBehindQueue = 0
    waitingState.pinnedFreeAt = undefined
    this.closeWaitingState()
  }

  openWaitingState(): WaitingState<Junction, Lane> {
    this.waitingState ??= new WaitingState()
    return this.waitingState
  }

  /** Lets go of the outlet, or of what it knows of those who waited, once nobody does and it has no junction. */
  closeWaitingState(): void {
    const waitingState = this.waitingState
    if (waitingState === undefined || waitingState.waiting > 0 || waitingState.junctions.length > 0) return
    if (waitingState.blockedUntil === undefined) {
      this.waitingState = undefined
    } else {
      waitingState.leastCost = Infinity
      waitingState.heaviest = undefined
    }
  }

  /** Others, too, pass through the bucket, and it is free from then on, in ms: what has passed is not known here. */
  occupyUntil(free: number): void {
    this.#held = 0
    this.#heldAt = free
  }

  /**
   * Lets a shaped cost pass in its slot.
   *
   * @param slot when the release became possible; not before `freeAt`
   * @param now when it happens; what it is late beyond the grace is forfeited
   */
  pass(cost: number, slot: number, now: number): void {
    const at = onGrid(slot, now, this.#limits)
    // Nothing is left where all was shaped; what is has been metered.
    const metered = this.hold(at)
    this.#held = metered < ROUNDING ? cost : metered + cost
    this.#heldAt = at
    const waitingState = this.waitingState
    if (waitingState === undefined) return
    waitingState.fillBehindQueue = metered < ROUNDING ? 0 : Math.min(waitingState.fillBehindQueue, metered)
    waitingState.pinnedFreeAt =
      waitingState.fillBehindQueue === 0
        ? undefined
        : at + (this.#held - waitingState.fillBehindQueue) / this.#limits.rate
  }

  /**
   * Tells that what passed in a slot was sent later than it passed. False: nothing follows from that, for it is still
   * within the grace, or something else has passed since.
   */
  delay(cost: number, slot: number, releasedAt: number, sentAt: number): boolean {
    return this.#heldAt === onGrid(slot, releasedAt, this.#limits) && this.postpone(cost, sentAt)
  }

  /** Tells that what passed last was sent only then. False: nothing follows from that. */
  postpone(cost: number, sentAt: number): boolean {
    const at = onGrid(this.#heldAt, sentAt, this.#limits)
    if (at === this.#heldAt || this.#held !== cost) return false
    this.#heldAt = at
    return true
  }

  /** Makes the slot of a release free again, if nothing has passed since. */
  restore(cost: number, slot: number, releasedAt: number): void {
    if (this.#held === cost && this.#heldAt === onGrid(slot, releasedAt, this.#limits)) this.#held = 0
  }
}

/** Not a method: private ones cost every instance a field. */
function onGrid(slot: number, now: number, { rate, grace }: BucketLimits): number {
  if (grace !== undefined) return now - slot > grace ? now : slot
  const period = 1 / rate
  const forfeited = now - slot - Math.max(period, SHORTEST_GRACE)
  return forfeited > 0 ? slot + Math.ceil(forfeited / period) * period : slot
}
