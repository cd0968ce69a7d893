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
 * and the j-th adds at most the largest cost: rate * (W + max(1 / rate, 2 ms)) + cMax.
 */

/** Decisions compare levels with this much tolerance, in cost units. */
export const LEVEL_TOLERANCE = 1e-9

/** A stall of up to this many ms is made up for at any rate. */
const SHORTEST_GRACE = 2

/** What a bucket allows. */
export interface BucketLimits {
  readonly name: string
  /** Cost units per ms. */
  readonly rate: number
  /** Cost units. */
  readonly capacity: number
}

/**
 * One instance of a bucket: that of one key. Times are in ms, costs in cost units.
 *
 * `Outlet` is whatever those who let requests pass keep about the ones that wait.
 */
export class Bucket<Outlet = unknown> {
  readonly limits: BucketLimits
  /** Cost of the requests that wait to pass through. */
  queued = 0
  /** How many those are. */
  waiting = 0
  /** Where lanes contend for this bucket; undefined while nobody waits. */
  outlet: Outlet | undefined = undefined
  #held = 0
  #heldAt = 0

  constructor(limits: BucketLimits) {
    this.limits = limits
  }

  /** What is left at `now` of what passed last. */
  hold(now: number): number {
    return this.#held === 0 ? 0 : Math.max(0, this.#held - Math.max(0, now - this.#heldAt) * this.limits.rate)
  }

  level(now: number): number {
    return this.hold(now) + this.queued
  }

  /** When the next release is possible. */
  get freeAt(): number {
    return this.#heldAt + this.#held / this.limits.rate
  }

  /** How much of `cost` does not fit at `now`; 0: it is admitted. */
  excess(cost: number, now: number): number {
    const excess = this.level(now) + cost - this.limits.capacity
    return excess <= LEVEL_TOLERANCE ? 0 : excess
  }

  /** Whether `cost` fits when the bucket is empty. */
  canEverFit(cost: number): boolean {
    return cost <= this.limits.capacity + LEVEL_TOLERANCE
  }

  /** Adds a metered cost, which passes at once. */
  fill(cost: number, now: number): void {
    this.#held = this.hold(now) + cost
    this.#heldAt = now
  }

  enqueue(cost: number): void {
    this.queued += cost
    this.waiting += 1
  }

  dequeue(cost: number): void {
    this.waiting -= 1
    this.queued = this.waiting === 0 ? 0 : this.queued - cost
  }

  /**
   * Lets a shaped cost pass in its slot.
   *
   * @param slot when the release became possible; not before `freeAt`
   * @param now when it happens; what it is late beyond the grace is forfeited
   */
  pass(cost: number, slot: number, now: number): void {
    this.#held = cost
    this.#heldAt = this.#onGrid(slot, now)
  }

  /** Makes the slot of a release free again, if nothing has passed since. */
  restore(cost: number, slot: number, releasedAt: number): void {
    if (this.#held === cost && this.#heldAt === this.#onGrid(slot, releasedAt)) this.#held = 0
  }

  #onGrid(slot: number, now: number): number {
    const period = 1 / this.limits.rate
    const forfeited = now - slot - Math.max(period, SHORTEST_GRACE)
    return forfeited > 0 ? slot + Math.ceil(forfeited / period) * period : slot
  }
}
