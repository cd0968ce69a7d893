/**
 * Applies many limits to the same arrivals at once. Each client has a row of levels, one for each point, and all of a row
 * are updated together. The arithmetic is that of a bucket (core/bucket/queued-bucket.ts), without an object for each.
 */

import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import type { Outcomes } from './run-tally.js'
import { rankOf, type WaitSummary, Waits } from './wait-quantiles.js'

/** Rate in cost units per ms. */
export interface Point {
  readonly rate: number
  readonly capacity: number
}

/** What all requests have in common, in cost units. */
export interface Request {
  readonly cost: number
  /** How much may be held still when one leaves. */
  readonly slack: number
}

/** How many clients share one array of levels. */
const PAGE = 1_024

abstract class LevelRows {
  requests = 0
  readonly delayed: Float64Array
  readonly rejected: Float64Array
  readonly #cost: number
  readonly #slack: number
  readonly #rates: Float64Array
  /** A request that finds a level above this does not fit. A level below `#least` counts as none. */
  readonly #most: Float64Array
  readonly #least: Float64Array
  readonly #levels: Float64Array[] = []
  readonly #times: Float64Array[] = []

  constructor(points: readonly Point[], { cost, slack }: Request) {
    this.#cost = cost
    this.#slack = slack
    this.#rates = Float64Array.from(points, ({ rate }) => rate)
    this.#most = Float64Array.from(points, ({ capacity }) => capacity + LEVEL_TOLERANCE - cost)
    this.#least = Float64Array.from(points, ({ rate }) => rate * SAME_TIME)
    this.delayed = new Float64Array(points.length)
    this.rejected = new Float64Array(points.length)
  }

  /** Called when a request is delayed at a point. @param ahead cost units that have to drain before it leaves */
  protected abstract delay(point: number, ahead: number): void

  arrive(at: number, client: number): void {
    this.requests += 1
    const count = this.#rates.length
    const rates = this.#rates
    const most = this.#most
    const least = this.#least
    const cost = this.#cost
    const slack = this.#slack
    const page = Math.floor(client / PAGE)
    if (this.#times[page] === undefined) {
      this.#times[page] = new Float64Array(PAGE).fill(-Infinity)
      this.#levels[page] = new Float64Array(PAGE * count)
    }
    const times = this.#times[page]!
    const levels = this.#levels[page]!
    const row = (client % PAGE) * count
    const elapsed = at - times[client % PAGE]!
    times[client % PAGE] = at
    for (let point = 0; point < count; point += 1) {
      const level = levels[row + point]! - elapsed * rates[point]!
      const fits = level <= least[point]! ? most[point]! >= 0 : level <= most[point]!
      if (!fits) {
        levels[row + point] = Math.max(0, level)
        this.rejected[point]! += 1
      } else if (level <= slack + least[point]!) {
        levels[row + point] = Math.max(0, level) + cost
      } else {
        levels[row + point] = level + cost
        this.delayed[point]! += 1
        this.delay(point, level - slack)
      }
    }
  }
}

/** Quantiles of the waits of delayed requests. */
const QUANTILES = { p50: 0.5, p90: 0.9, p99: 0.99, max: 1 } as const
export const METRICS = ['reject', 'delay', 'p50', 'p90', 'p99', 'max'] as const

/** An upper bound: `most` is a share from 0 to 1, or a wait in ms. */
export interface Bound {
  readonly metric: (typeof METRICS)[number]
  readonly most: number
}

/** Waits are reported and compared in whole microseconds. */
const PER_MS = 1_000

export interface PointCounts extends Point, Outcomes {
  /** For each bound, how many requests waited longer; 0 for a bound on a share. */
  readonly longer: readonly number[]
}

/** Counts at each of many points whether bounds are kept. No quantile is computed, so none is rounded. */
export class BoundRun extends LevelRows {
  readonly #points: readonly Point[]
  readonly #bounds: readonly Bound[]
  /** By point, then by bound: a request that has more ahead of it waits longer than the bound. */
  readonly #limits: Float64Array
  readonly #longer: Float64Array

  constructor(points: readonly Point[], request: Request, bounds: readonly Bound[]) {
    super(points, request)
    this.#points = points
    this.#bounds = bounds
    this.#limits = Float64Array.from(points.flatMap(({ rate }) => bounds.map(bound => rate * longestOf(bound))))
    this.#longer = new Float64Array(this.#limits.length)
  }

  counts(): PointCounts[] {
    const { length } = this.#bounds
    return this.#points.map((point, at) => ({
      ...point,
      requests: this.requests,
      rejected: this.rejected[at]!,
      delayed: this.delayed[at]!,
      longer: [...this.#longer.subarray(at * length, (at + 1) * length)],
    }))
  }

  protected delay(point: number, ahead: number): void {
    const { length } = this.#bounds
    for (let at = point * length; at < (point + 1) * length; at += 1) {
      if (ahead > this.#limits[at]!) this.#longer[at]! += 1
    }
  }
}

/** The longest wait in ms that keeps the bound when it is rounded to a microsecond. */
function longestOf({ metric, most }: Bound): number {
  if (metric === 'reject' || metric === 'delay') return Infinity
  return (Math.floor(most * PER_MS + 1e-6) + 0.5) / PER_MS
}

export function keeps(counts: PointCounts, bounds: readonly Bound[]): boolean {
  return mayKeep(counts, counts, bounds)
}

/**
 * Whether a capacity between those of `low` and `high`, at the same rate, may keep the bounds. False is certain.
 *
 * Capacities have to differ by at least the cost. Then a larger capacity
 * - never rejects more, and
 * - never delays fewer requests, nor fewer for longer than a given wait: the level is never lower, and a request that no
 *   longer fits was displaced by one that waits at least as long.
 */
export function mayKeep(low: PointCounts, high: PointCounts, bounds: readonly Bound[]): boolean {
  return bounds.every(({ metric, most }, at) => {
    if (metric === 'reject') return high.rejected / high.requests <= most
    if (metric === 'delay') return low.delayed / low.requests <= most
    return low.longer[at]! <= high.delayed - (high.delayed === 0 ? 0 : rankOf(QUANTILES[metric], high.delayed))
  })
}

/** The outcomes at a point. Waits are those of the delayed requests, in ms. */
export interface PointOutcome extends Point, Outcomes {
  readonly wait: WaitSummary
}

/** The outcomes at each of many points. */
export class SweepRun extends LevelRows {
  readonly #points: readonly Point[]
  readonly #waits: readonly Waits[]

  /** @param exact how many waits of a point to keep; with more, quantiles are up to 1.6 % too high */
  constructor(points: readonly Point[], request: Request, exact = 0) {
    super(points, request)
    this.#points = points
    this.#waits = points.map(() => new Waits(exact))
  }

  outcomes(): PointOutcome[] {
    return this.#points.map((point, at) => ({
      ...point,
      requests: this.requests,
      delayed: this.delayed[at]!,
      rejected: this.rejected[at]!,
      wait: this.#waits[at]!.summary(),
    }))
  }

  protected delay(point: number, ahead: number): void {
    this.#waits[point]!.add(ahead / this.#points[point]!.rate)
  }
}
