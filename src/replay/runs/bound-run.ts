/** Counts at each of many points whether bounds are kept. No quantile is computed, so none is rounded. */
import { LevelRows, type Point, type Request } from './level-rows.js'
import { rankOf } from './wait-quantiles.js'

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

/** The counts that decide whether a point keeps the bounds. */
export interface PointCounts extends Point {
  readonly requests: number
  readonly rejected: number
  readonly delayed: number
  /** For each bound, how many requests waited longer; 0 for a bound on a share. */
  readonly longer: readonly number[]
}

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

/** Whether a point keeps the bounds. */
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
