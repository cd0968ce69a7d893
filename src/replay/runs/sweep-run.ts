/** The outcomes of the requests at each of many points. */
import { LevelRows, type Point, type Request } from './level-rows.js'
import { type WaitSummary, Waits } from './wait-quantiles.js'

/** The outcomes at a point. Waits are those of the delayed requests, in ms. */
export interface PointOutcome extends Point {
  readonly requests: number
  readonly delayed: number
  readonly rejected: number
  readonly wait: WaitSummary
}

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
