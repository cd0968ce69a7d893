import { performance } from 'node:perf_hooks'
import { quote } from '../config/messages.js'
import { LEVEL_TOLERANCE, Meter } from '../core/bucket/meter.js'
import { parseRate } from '../core/units.js'
import { slackOf } from '../decider/costs.js'
import { checkCost, checkOptions } from './calls/call-options.js'
import { retryAfter } from './retry-after.js'

/** Options of a `LeakyBucket`. */
export interface LeakyBucketOptions {
  /** The leak rate: `"5/s"`, `"6/30s"`, or a number of cost units per second. */
  readonly rate: string | number
  /** The most it holds, in cost units. */
  readonly capacity: number
  /** What may leave without spacing after idling, in cost units. It shortens `waitMs`. Default: one request. */
  readonly burst?: number
  /** The source of time: monotonic ms. Default: `performance`. */
  readonly clock?: { now(): number }
}

/** The result of offering a cost. */
export interface Addition {
  /** Whether it fitted. If not, nothing has changed. */
  readonly admitted: boolean
  /** What the bucket holds now. */
  readonly level: number
  /** The free room, in cost units. */
  readonly remaining: number
  /**
   * The same cost is admitted this many ms later if nothing else comes. 0: it was admitted. Infinity: it can never be.
   * A whole number, 1 ms longer than needed, because `setTimeout` may fire that much early.
   */
  readonly retryAfterMs: number
  /** The wait in ms if the bucket were a queue: until the level before this addition has leaked, or the burst has room. */
  readonly waitMs: number
}

/**
 * A leaky bucket as a meter: it holds up to `capacity` units of cost and leaks `rate` of them per second.
 *
 * J. Turner, "New directions in communications (or which way to the information age?)", IEEE Communications Magazine,
 * 1986, in the continuous-state form of ITU-T I.371 Annex A. That form is equivalent to virtual scheduling (GCRA): the
 * level is the rate times the lead of the theoretical arrival time.
 */
export class LeakyBucket {
  readonly #bucket: Meter
  readonly #clock: { now(): number }

  /**
   * @throws RangeError for an invalid rate, a capacity or burst that is not finite and above 0, or an unknown option; TypeError
   *   if `options` is no object
   */
  constructor(options: LeakyBucketOptions) {
    checkOptions(options, ['rate', 'capacity', 'burst', 'clock'], '{ rate: "1/s", capacity: 10 }')
    const { rate, capacity, burst, clock = performance } = options
    const missing = [
      rate === undefined && 'rate: missing; use e.g. "5/s"',
      capacity === undefined && 'capacity: missing; use e.g. 10',
    ]
    if (missing.some(Boolean)) throw new RangeError(missing.filter(Boolean).join('\n'))
    if (!(typeof capacity === 'number' && capacity > 0 && capacity < Infinity))
      throw new RangeError(`capacity: ${quote(capacity)} is not a finite number of cost units above 0; use e.g. 10`)
    if (burst !== undefined && !(typeof burst === 'number' && burst > 0 && burst < Infinity))
      throw new RangeError(`burst: ${quote(burst)} is not a finite number of cost units above 0; use e.g. 5`)
    this.#bucket = new Meter({ name: '', rate: parseRate(rate), capacity, ...(burst !== undefined && { burst }) })
    this.#clock = clock
  }

  /** What the bucket holds now, in cost units. */
  get level(): number {
    return this.#bucket.level(this.#clock.now())
  }

  /** Pours in a cost. What exceeds the capacity is lost. `full` is true only at this instant. */
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

  /** Admits a cost if it fits; else changes nothing. */
  tryAdd(cost = 1): Addition {
    checkCost(cost)
    const bucket = this.#bucket
    const { capacity, rate } = bucket.limits
    const now = this.#clock.now()
    const before = bucket.level(now)
    const excess = before + cost - capacity
    const admitted = excess <= LEVEL_TOLERANCE
    const level = admitted ? before + cost : before
    if (admitted) bucket.set(level, now)
    return {
      admitted,
      level,
      remaining: Math.max(0, capacity - level),
      retryAfterMs: admitted ? 0 : bucket.canEverFit(cost) ? retryAfter(excess / rate) : Infinity,
      waitMs: Math.max(0, before - slackOf(bucket.limits, cost)) / rate,
    }
  }

  /** ms until everything has leaked if nothing else comes. */
  timeToEmpty(): number {
    return this.level / this.#bucket.limits.rate
  }
}
