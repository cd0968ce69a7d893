/**
 * One bucket instance: a meter (meter.ts), and the requests that wait for it.
 *
 * Its level is what the meter still *holds* plus what is *queued*:
 *
 *     level(now) = hold(now) + queued
 *
 * A metered request adds its cost to the meter at once. A shaped one is first `queued`. At its release, which is never
 * before `freeAt`, its cost moves from `queued` to the meter. So the two modes admit alike. In a busy period that starts
 * at t0 the releases follow each other without a gap. Between them `hold` falls at `rate`, and a release leaves
 * `hold + queued` as it is. Both modes have level = sum of costs - rate * (now - t0).
 *
 * Slots are absolute. A release belongs to its slot, the moment it became possible, however late the process woke: the
 * next slot is counted from the slot. Only lateness beyond `grace` is forfeited, in whole periods, so that the slot stays
 * on its grid. The bound that users are promised follows. Number the releases of a bucket i..j that happen in a window of
 * W. After that, each is at most `grace` later than its slot and never before it. Slots are at least cost / rate apart. So
 *
 *     cost(i..j-1) <= rate * (slot(j) - slot(i)) <= rate * (W + grace),
 *
 * and the j-th adds at most the largest cost: rate * (W + max(1 / rate, 2 ms)) + cMax. If limits set `grace`, a release
 * later than that loses all of its lateness: two releases are never closer than a period less the grace. Sending takes time,
 * too. A request that is sent later than it was released forfeits by the same rule (`delay`) before the next one passes, so
 * the bound is that of what is sent.
 */

import type { BucketLimits } from './limits.js'
import { LEVEL_TOLERANCE, Meter } from './meter.js'
import { WaitingState } from './waiting.js'

export type { BucketLimits } from './limits.js'

/** The rounding of a period at 5000/s after ten days, in cost units, is a tenth of this. */
const ROUNDING = 1e-5

/** ms. A stall this short is made up for at any rate. */
const SHORTEST_GRACE = 2

/**
 * Times are in ms, costs in cost units.
 *
 * @typeParam Source where its requests come from
 * @typeParam Lane the queue of one key
 */
export class QueuedBucket<Source = unknown, Lane = unknown> extends Meter {
  /** Undefined while nobody waits and no block lasts. */
  declare waitingState: WaitingState<Source, Lane> | undefined

  constructor(limits: BucketLimits) {
    super(limits)
    this.waitingState = undefined
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

  override setLimits(limits: BucketLimits, now: number): void {
    const { rate } = this.limits
    super.setLimits(limits, now)
    const waitingState = this.waitingState
    if (waitingState?.pinnedFreeAt === undefined || limits.rate === rate) return
    waitingState.pinnedFreeAt = now + (Math.max(0, waitingState.pinnedFreeAt - now) * rate) / limits.rate
  }

  override level(now: number): number {
    const hold = this.hold(now)
    return this.waitingState === undefined ? hold : hold + this.waitingState.queued
  }

  /** When the next release is possible. */
  override get freeAt(): number {
    return this.waitingState?.pinnedFreeAt ?? super.freeAt
  }

  /** Adds a metered cost, which passes at once. It takes room, but does not delay requests that wait already. */
  override fill(cost: number, now: number): void {
    const waitingState = this.waitingState
    if (waitingState !== undefined) {
      this.endBlock(now)
      if (waitingState.waiting > 0) waitingState.pinnedFreeAt = this.freeAt
    }
    super.fill(cost, now)
  }

  /** The bucket has just overflowed: fills or blocks it as its limits say. */
  applyOverflowPolicy(now: number): void {
    const { overflow, blockFor, capacity } = this.limits
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
    const until = this.waitingState?.blockedUntil
    if (until === undefined) return 0
    if (until === Infinity) return this.level(now) <= LEVEL_TOLERANCE ? 0 : Infinity
    return Math.max(0, until - now)
  }

  /** Forgets a block that is over. To be called before a cost is added: a block until drained must not come back. */
  endBlock(now: number): void {
    const waitingState = this.waitingState
    if (waitingState?.blockedUntil === undefined || this.blockedFor(now) > 0) return
    waitingState.blockedUntil = undefined
    this.closeWaitingState()
  }

  /** Whether dropping the instance loses nothing. */
  idle(now: number): boolean {
    return !this.engaged && this.hold(now) === 0 && this.blockedFor(now) === 0
  }

  /** Forgets what passed, and any block. What is queued stays, and may leave from now on. */
  reset(now: number): void {
    this.held = 0
    this.heldAt = now
    const waitingState = this.waitingState
    if (waitingState === undefined) return
    waitingState.fillBehindQueue = 0
    waitingState.pinnedFreeAt = undefined
    waitingState.blockedUntil = undefined
    this.closeWaitingState()
  }

  enqueue(cost: number): void {
    const waitingState = this.openWaitingState()
    if (waitingState.waiting === 0 || cost < waitingState.leastCost) waitingState.leastCost = cost
    waitingState.queued += cost
    waitingState.waiting += 1
  }

  /** Takes out a cost that was enqueued. */
  dequeue(cost: number): void {
    const waitingState = this.waitingState!
    waitingState.waiting -= 1
    waitingState.queued = waitingState.waiting === 0 ? 0 : waitingState.queued - cost
    if (waitingState.waiting > 0) return
    waitingState.fillBehindQueue = 0
    waitingState.pinnedFreeAt = undefined
    this.closeWaitingState()
  }

  openWaitingState(): WaitingState<Source, Lane> {
    this.waitingState ??= new WaitingState()
    return this.waitingState
  }

  /** Drops the waiting state once nobody waits. While a block lasts it stays, without the waiting requests. */
  closeWaitingState(): void {
    const waitingState = this.waitingState
    if (waitingState === undefined || waitingState.waiting > 0 || waitingState.source !== undefined) return
    if (waitingState.blockedUntil === undefined) {
      this.waitingState = undefined
    } else {
      waitingState.heaviest = undefined
    }
  }

  /**
   * Lets a shaped cost pass in its slot.
   *
   * @param slot when the release became possible; not before `freeAt`
   * @param now when it happens; lateness beyond the grace is forfeited
   */
  pass(cost: number, slot: number, now: number): void {
    const at = onGrid(slot, now, this.limits)
    // What is left has been metered: of shaped requests nothing is left at a slot.
    const metered = this.hold(at)
    this.held = metered < ROUNDING ? cost : metered + cost
    this.heldAt = at
    const waitingState = this.waitingState
    if (waitingState === undefined) return
    waitingState.fillBehindQueue = metered < ROUNDING ? 0 : Math.min(waitingState.fillBehindQueue, metered)
    waitingState.pinnedFreeAt =
      waitingState.fillBehindQueue === 0
        ? undefined
        : at + (this.held - waitingState.fillBehindQueue) / this.limits.rate
  }

  /**
   * The request that passed in a slot was sent later than it passed. False: this changes nothing, as it is within the
   * grace, or as another has passed since.
   */
  delay(cost: number, slot: number, releasedAt: number, sentAt: number): boolean {
    return this.heldAt === onGrid(slot, releasedAt, this.limits) && this.postpone(cost, sentAt)
  }

  /** The request that passed last was sent only then. False: this changes nothing. */
  postpone(cost: number, sentAt: number): boolean {
    const at = onGrid(this.heldAt, sentAt, this.limits)
    if (at === this.heldAt || this.held !== cost) return false
    this.heldAt = at
    return true
  }

  /** Makes the slot of a release free again, if nothing has passed since. */
  restore(cost: number, slot: number, releasedAt: number): void {
    if (this.held === cost && this.heldAt === onGrid(slot, releasedAt, this.limits)) this.held = 0
  }
}

/** Not a method: a private one costs each instance a field. */
function onGrid(slot: number, now: number, { rate, grace }: BucketLimits): number {
  if (grace !== undefined) return now - slot > grace ? now : slot
  const period = 1 / rate
  const forfeited = now - slot - defaultGrace(rate)
  return forfeited > 0 ? slot + Math.ceil(forfeited / period) * period : slot
}

/** How late a release may be without losing its lateness, in ms. */
export function graceOf({ rate, grace = defaultGrace(rate) }: BucketLimits): number {
  return grace
}

/** Where the limits set no grace. */
function defaultGrace(rate: number): number {
  return Math.max(1 / rate, SHORTEST_GRACE)
}
