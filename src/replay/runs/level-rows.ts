/**
 * Applies many limits to the same arrivals at once. Each client has a row of levels, one for each point, and all of a row
 * are updated together. The arithmetic is that of a bucket (core/bucket/queued-bucket.ts), without an object for each.
 */
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'

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

export abstract class LevelRows {
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
