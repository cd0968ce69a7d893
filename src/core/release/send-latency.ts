/**
 * How long a send usually takes: a moving average, in ms. Only the excess over it counts against the distance of two sends,
 * as a constant delay shifts all of them equally.
 */
export class SendLatency {
  #usual = 0

  get usual(): number {
    return this.#usual
  }

  record(taken: number): void {
    this.#usual += (Math.min(taken, LONGEST_USUAL) - this.#usual) * WEIGHT
  }
}

/** ms. A longer one is never usual. */
const LONGEST_USUAL = 1

/** Of the newest in the average. */
const WEIGHT = 0.1
