import { performance } from 'node:perf_hooks'
import { Bucket, LEVEL_TOLERANCE } from '../core/bucket/bucket.js'
import { parseRate } from '../core/units.js'
import { checkOptions } from './calls/call-options.js'
import { retryAfter } from './retry-after.js'

export interface LeakyBucketOptions {
  /** What leaks: `"5/s"`, `"6/30s"`, or a number of cost units per second. */
  readonly rate: string | number
  /** The most it holds, in cost units. */
  readonly capacity: number
  /** Where time comes from: monotonic ms. Default: the process's own. */
  readonly clock?: { now(): number }
}

/** What became of a cost that was offered. */
export interface Addition {
  readonly admitted: boolean
  /** What the bucket holds now. */
  readonly level: number
  /** What it could still take. */
  readonly remaining: number
  /**
   * The same cost is admitted that many ms later if nothing else comes: 0 when it was admitted, Infinity when it never can be.
   * It is a whole number and 1 ms longer than needed, because `setTimeout` may fire that much early.
   */
  readonly retryAfterMs: number
  /** ms until what was there before has leaked: how long it waits where the bucket is a queue. */
  readonly waitMs: number
}

/**
 * One leaky bucket as a meter: it holds up to `capacity` units of cost and leaks `rate` of them per second.
 *
 * J. Turner, "New directions in communications (or which way to the information age?)", IEEE Communications Magazine,
 * 1986, in the continuous-state form of ITU-T I.371 Annex A, which is the same as its virtual scheduling form (GCRA):
 * the level is the time by which a theoretical arrival time lies ahead, times the rate.
 */
export class LeakyBucket {
  readonly #bucket: Bucket
  readonly #clock: { now(): number }

  /** @throws RangeError for a rate that is none, a capacity that is not finite and above 0, an option that is not known */
  constructor(options: LeakyBucketOptions) {
    checkOptions(options, ['rate', 'capacity', 'clock'], '{ rate: "1/s", capacity: 10 }')
    const { rate, capacity, clock = performance } = options
    if (!(typeof capacity === 'number' && capacity > 0 && capacity < Infinity)) {
      throw new RangeError(`capacity ${capacity} is not a finite number of cost units above 0`)
    }
    this.#bucket = new Bucket({ name: '', rate: parseRate(rate), capacity })
    this.#clock = clock
  }

  /** What the bucket holds now, in cost units. */
  get level(): number {
    return this.#bucket.level(this.#clock.now())
  }

  /** Pours in a cost whatever there is room for: what is beyond the capacity is lost. `full` holds for this instant. */
  fillup(cost: number): { level: number; full: boolean } {
    checkCost(cost)
    const now = this.#clock.now()
    const { capacity } = this.#bucket.limits
    this.#bucket.fill(Math.min(cost, capacity - this.#bucket.level(now)), now)
    const level = this.#bucket.level(now)
    return { level, full: level >= capacity - LEVEL_TOLERANCE }
  }

  /** Whether a cost would be admitted now. Changes nothing. */
  ableToAccept(cost: number): boolean {
    checkCost(cost)
    return this.#bucket.excess(cost, this.#clock.now()) === 0
  }

  /** Admits a cost that fits; else changes nothing. */
  tryAdd(cost = 1): Addition {
    checkCost(cost)
    const bucket = this.#bucket
    const { capacity, rate } = bucket.limits
    const now = this.#clock.now()
    const before = bucket.level(now)
    const excess = bucket.excess(cost, now)
    const admitted = excess === 0
    if (admitted) bucket.fill(cost, now)
    const level = admitted ? before + cost : before
    return {
      admitted,
      level,
      remaining: Math.max(0, capacity - level),
      retryAfterMs: admitted ? 0 : bucket.canEverFit(cost) ? retryAfter(excess / rate) : Infinity,
      waitMs: before / rate,
    }
  }

  /** ms until everything has leaked if nothing else comes. */
  timeToEmpty(): number {
    return this.level / this.#bucket.limits.rate
  }
}

function checkCost(cost: number): void {
  if (!(typeof cost === 'number' && cost >= 0 && cost < Infinity))
    throw new RangeError(`cost ${cost} is not a finite number of units, 0 or more`)
}
