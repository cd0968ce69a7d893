/**
 * Many limits at once on the same arrivals: for each client one row of levels, one for each point, all brought up to
 * date together. The arithmetic is that of a metered bucket (core/bucket/bucket.ts), without an object for each.
 */
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'

/** Rate in cost units per ms. */
export interface Point {
  readonly rate: number
  readonly capacity: number
}

/** Clients whose levels are kept in one piece. */
const PAGE = 1_024

export abstract class LevelRows {
  requests = 0
  readonly delayed: Float64Array
  readonly rejected: Float64Array
  readonly #cost: number
  readonly #rates: Float64Array
  /** A level above this, before the request, does not fit; one above `#least` waits. */
  readonly #most: Float64Array
  readonly #least: Float64Array
  readonly #levels: Float64Array[] = []
  readonly #times: Float64Array[] = []

  constructor(points: readonly Point[], cost: number) {
    this.#cost = cost
    this.#rates = Float64Array.from(points, ({ rate }) => rate)
    this.#most = Float64Array.from(points, ({ capacity }) => capacity + LEVEL_TOLERANCE - cost)
    this.#least = Float64Array.from(points, ({ rate }) => rate * SAME_TIME)
    this.delayed = new Float64Array(points.length)
    this.rejected = new Float64Array(points.length)
  }

  /** A request is delayed at a point. @param level before it */
  protected abstract delay(point: number, level: number): void

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
        else this.rejected[point]! += 1
      } else if (level > most[point]!) {
        levels[row + point] = level
        this.rejected[point]! += 1
      } else {
        levels[row + point] = level + cost
        this.delayed[point]! += 1
        this.delay(point, level)
      }
    }
  }
}
