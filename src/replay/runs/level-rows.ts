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

/** How many clients share one array of levels. */
const PAGE = 1_024

export abstract class LevelRows {
  requests = 0
  readonly delayed: Float64Array
  readonly rejected: Float64Array
  readonly #cost: number
  readonly #rates: Float64Array
  /** A request that finds a level above this does not fit. One that finds a level above `#least` waits. */
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

  /** Called when a request is delayed at a point. @param level before the request */
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
