/**
 * The arithmetic of a leaky bucket as a meter: what it holds, and when it has drained.
 *
 *     level(now) = max(0, held - (now - heldAt) * rate)          drainedAt = heldAt + held / rate
 *
 * `drainedAt` is the theoretical arrival time of the virtual scheduling form (GCRA, ITU-T I.371 Annex A). The state is `held`
 * at `heldAt` and not `drainedAt` alone: a level computed as `(drainedAt - now) * rate` carries the rounding of an absolute time
 * (1e-7 ms after ten days of uptime) and would refuse the b-th of b simultaneous requests. Here b simultaneous requests
 * add up without any product.
 */
import { isCost } from '../../decider/costs.js'
import { type BucketLimits, isFormer } from './limits.js'

/** Decisions compare levels with this much tolerance, in cost units. */
export const LEVEL_TOLERANCE = 1e-9

/**
 * Times are in ms, costs in cost units.
 *
 * The constructors of this class and of those that extend it set all fields, and none is private to JavaScript: an instance
 * is made for each request, and fields with a value here would take another call for each class.
 */
export class Meter {
  declare protected allowed: BucketLimits
  declare protected held: number
  declare protected heldAt: number

  constructor(limits: BucketLimits) {
    this.allowed = limits
    this.held = 0
    // Not whole: V8 would have to change the shape of all buckets at the first time that is not.
    this.heldAt = -0.5
  }

  get limits(): BucketLimits {
    return this.allowed
  }

  /** Changes what the bucket allows. Its level stays, and drains at the new rate from now on. */
  setLimits(limits: BucketLimits, now: number): void {
    // A count does not drain. What has drained until now is not to come back in it.
    if (limits.quota !== undefined && this.allowed.quota === undefined) this.set(this.hold(now), now)
    if (limits.rate !== this.allowed.rate) {
      // `held` stays whole, as `postpone` compares it with a cost. Its date moves so that as much is left as before.
      const leaked = this.held - this.hold(now)
      this.heldAt = Math.max(now, this.heldAt) - leaked / limits.rate
    }
    this.allowed = limits
  }

  /** What is left at `now` of what has passed. */
  hold(now: number): number {
    const { quota } = this.allowed
    if (quota !== undefined) return isFormer(quota, this.heldAt, now) ? 0 : this.held
    return this.held === 0 ? 0 : Math.max(0, this.held - Math.max(0, now - this.heldAt) * this.allowed.rate)
  }

  level(now: number): number {
    return this.hold(now)
  }

  get drainedAt(): number {
    return this.heldAt + this.held / this.allowed.rate
  }

  /** How much of `cost` does not fit at `now`. 0: it is admitted. */
  excess(cost: number, now: number): number {
    const excess = this.level(now) + cost - this.allowed.capacity
    return excess <= LEVEL_TOLERANCE ? 0 : excess
  }

  canEverFit(cost: number): boolean {
    return isCost(cost) && cost <= this.allowed.capacity + LEVEL_TOLERANCE
  }

  fill(cost: number, now: number): void {
    this.set(this.hold(now) + cost, now)
  }

  set(held: number, now: number): void {
    this.held = held
    this.heldAt = now
  }
}
