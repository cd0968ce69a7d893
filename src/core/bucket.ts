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
 * and the j-th adds at most the largest cost: rate * (W + max(1 / rate, 2 ms)) + cMax. Sending takes time, too: what
 * was sent later than it was let pass forfeits by the same rule (`delay`), before the next one passes, so the bound is
 * that of what is sent.
 */

/** Decisions compare levels with this much tolerance, in cost units. */
export const LEVEL_TOLERANCE = 1e-9

/** The rounding of a period at 5000/s after ten days, in cost units, is a tenth of this. */
const ROUNDING = 1e-5

/** A stall of up to this many ms is made up for at any rate. */
const SHORTEST_GRACE = 2

/** What a bucket allows. */
export interface BucketLimits {
  readonly name: string
  /** The tier of its keys, if any. */
  readonly tier?: string
  /** Cost units per ms. */
  readonly rate: number
  /** Cost units. */
  readonly capacity: number
  /**
   * What an overflow does besides: nothing (default), fill the bucket to its brim, or make room for a lane that has
   * less than its share at the expense of the heaviest one.
   */
  readonly overflow?: 'reject' | 'fill' | 'fair'
  /** An overflow blocks the key for so many ms, or until the bucket has drained. */
  readonly blockFor?: number | 'drain'
}

/**
 * One instance of a bucket: that of one key. Times are in ms, costs in cost units.
 *
 * `Outlet` is whatever those who let requests pass keep about the ones that wait.
 */
export class Bucket<Outlet = unknown> {
  #limits: BucketLimits
  /** Cost of the requests that wait to pass through. */
  queued = 0
  /** How many those are. */
  waiting = 0
  /** Where lanes contend for this bucket; undefined while nobody waits. */
  outlet: Outlet | undefined = undefined
  #held = 0
  #heldAt = 0
  /** `freeAt`, where it is not to move. */
  #promised: number | undefined = undefined
  /** What it has been filled up with while requests waited: part of `held`, and behind all of them. */
  #behind = 0
  /** The time at which a block ends, in ms; Infinity: when drained. */
  #blockedUntil: number | undefined = undefined

  constructor(limits: BucketLimits) {
    this.#limits = limits
  }

  get limits(): BucketLimits {
    return this.#limits
  }

  /** Changes what the bucket allows; its level stays, and drains at the new rate from now on. */
  retune(limits: BucketLimits, now: number): void {
    // Also where nothing is left: at a slower rate it would be there again.
    this.#held = this.hold(now)
    this.#heldAt = Math.max(now, this.#heldAt)
    if (this.#promised !== undefined) {
      this.#promised = now + (Math.max(0, this.#promised - now) * this.#limits.rate) / limits.rate
    }
    this.#limits = limits
  }

  /** What is left at `now` of what passed last. */
  hold(now: number): number {
    return this.#held === 0 ? 0 : Math.max(0, this.#held - Math.max(0, now - this.#heldAt) * this.#limits.rate)
  }

  level(now: number): number {
    return this.hold(now) + this.queued
  }

  /** When the next release is possible. */
  get freeAt(): number {
    return this.#promised ?? this.#heldAt + this.#held / this.#limits.rate
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
    if (this.waiting > 0) this.#promised = this.freeAt
    this.#held = this.hold(now) + cost
    this.#heldAt = now
  }

  /** Does to the bucket, which has just overflowed, what its limits say. */
  punish(now: number): void {
    const { overflow, blockFor, capacity } = this.#limits
    const room = capacity - this.level(now)
    if (overflow === 'fill' && room > 0) {
      this.#behind = this.waiting > 0 ? Math.min(this.#behind, this.hold(now)) + room : 0
      this.fill(room, now)
    }
    if (blockFor !== undefined) this.#blockedUntil = blockFor === 'drain' ? Infinity : now + blockFor
  }

  /** How much longer everything is rejected: 0, ms, or Infinity: until the bucket has drained. */
  blockedFor(now: number): number {
    if (this.#blockedUntil === undefined) return 0
    const over = this.#blockedUntil === Infinity ? this.level(now) <= LEVEL_TOLERANCE : now >= this.#blockedUntil
    if (over) this.#blockedUntil = undefined
    return this.#blockedUntil === undefined ? 0 : this.#blockedUntil - now
  }

  /** Whether it is as good as new. */
  idle(now: number): boolean {
    return this.waiting === 0 && this.hold(now) === 0 && this.blockedFor(now) === 0
  }

  /** Forgets what passed, and any block; what is queued stays. */
  reset(): void {
    this.#held = 0
    this.#behind = 0
    this.#promised = undefined
    this.#blockedUntil = undefined
  }

  enqueue(cost: number): void {
    this.queued += cost
    this.waiting += 1
  }

  dequeue(cost: number): void {
    this.waiting -= 1
    this.queued = this.waiting === 0 ? 0 : this.queued - cost
    if (this.waiting === 0) {
      this.#behind = 0
      this.#promised = undefined
    }
  }

  /**
   * Lets a shaped cost pass in its slot.
   *
   * @param slot when the release became possible; not before `freeAt`
   * @param now when it happens; what it is late beyond the grace is forfeited
   */
  pass(cost: number, slot: number, now: number): void {
    const at = this.#onGrid(slot, now)
    // Nothing is left where all was shaped; what is has been metered.
    const metered = this.hold(at)
    this.#held = metered < ROUNDING ? cost : metered + cost
    this.#heldAt = at
    this.#behind = metered < ROUNDING ? 0 : Math.min(this.#behind, metered)
    this.#promised = this.#behind === 0 ? undefined : at + (this.#held - this.#behind) / this.#limits.rate
  }

  /**
   * Tells that what passed in a slot was sent later than it passed. False: nothing follows from that, for it is still
   * within the grace, or something else has passed since.
   */
  delay(cost: number, slot: number, releasedAt: number, sentAt: number): boolean {
    const at = this.#onGrid(slot, sentAt)
    if (at === this.#heldAt || this.#held !== cost || this.#heldAt !== this.#onGrid(slot, releasedAt)) return false
    this.#heldAt = at
    return true
  }

  /** Makes the slot of a release free again, if nothing has passed since. */
  restore(cost: number, slot: number, releasedAt: number): void {
    if (this.#held === cost && this.#heldAt === this.#onGrid(slot, releasedAt)) this.#held = 0
  }

  #onGrid(slot: number, now: number): number {
    const period = 1 / this.#limits.rate
    const forfeited = now - slot - Math.max(period, SHORTEST_GRACE)
    return forfeited > 0 ? slot + Math.ceil(forfeited / period) * period : slot
  }
}
