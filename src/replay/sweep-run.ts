/**
 * Many limits at once on the same arrivals: for each client one row of levels, one for each point, all brought up to
 * date together. The arithmetic is that of a metered bucket (core/bucket.ts), without an object for each.
 */
import { LEVEL_TOLERANCE } from '../core/bucket.js'
import { SAME_TIME } from '../core/schedule.js'
import { BINS, binnedQuantile, binOf, type WaitSummary } from './waits.js'

/** Rate in cost units per ms. */
export interface Point {
  readonly rate: number
  readonly capacity: number
}

/** What would have become of the requests at a point; waits of those delayed, in ms, to 1.6 %, the longest exactly. */
export interface PointOutcome extends Point {
  readonly requests: number
  readonly delayed: number
  readonly rejected: number
  readonly wait: WaitSummary
}

/** Clients whose levels are kept in one piece. */
const PAGE = 1_024

export class SweepRun {
  requests = 0
  readonly #points: readonly Point[]
  readonly #cost: number
  readonly #rates: Float64Array
  /** A level above this, before the request, does not fit; one above `#least` waits. */
  readonly #most: Float64Array
  readonly #least: Float64Array
  readonly #levels: Float64Array[] = []
  readonly #times: Float64Array[] = []
  readonly #delayed: Float64Array
  readonly #rejected: Float64Array
  readonly #longest: Float64Array
  readonly #bins: readonly Uint32Array[]

  constructor(points: readonly Point[], cost: number) {
    this.#points = points
    this.#cost = cost
    this.#rates = Float64Array.from(points, ({ rate }) => rate)
    this.#most = Float64Array.from(points, ({ capacity }) => capacity + LEVEL_TOLERANCE - cost)
    this.#least = Float64Array.from(points, ({ rate }) => rate * SAME_TIME)
    this.#delayed = new Float64Array(points.length)
    this.#rejected = new Float64Array(points.length)
    this.#longest = new Float64Array(points.length)
    this.#bins = points.map(() => new Uint32Array(BINS))
  }

  arrive(at: number, client: number): void {
    this.requests += 1
    const count = this.#rates.length
    const rates = this.#rates
    const most = this.#most
    const least = this.#least
    const cost = this.#cost
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
      if (level <= least[point]!) {
        if (most[point]! >= 0) levels[row + point] = Math.max(0, level) + cost
        else this.#rejected[point]! += 1
      } else if (level > most[point]!) {
        levels[row + point] = level
        this.#rejected[point]! += 1
      } else {
        levels[row + point] = level + cost
        this.#delay(point, level)
      }
    }
  }

  outcomes(): PointOutcome[] {
    return this.#points.map((point, at) => {
      const delayed = this.#delayed[at]!
      const max = this.#longest[at]! / point.rate
      const quantile = (q: number): number => Math.min(max, binnedQuantile(this.#bins[at]!, delayed, q))
      const wait = { p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99), max }
      return { ...point, requests: this.requests, delayed, rejected: this.#rejected[at]!, wait }
    })
  }

  #delay(point: number, level: number): void {
    this.#delayed[point]! += 1
    if (level > this.#longest[point]!) this.#longest[point] = level
    this.#bins[point]![binOf(level / this.#rates[point]!)]! += 1
  }
}
