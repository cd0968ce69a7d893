/**
 * How long sending usually takes: a moving mean, in ms. Where two sendings must keep their distance it is what one takes
 * longer than usual that counts; what all of them take moves all of them alike.
 */
export class SendLatency {
  #usual = 0

  /** @returns what is usual, for a sending that has taken so many ms */
  usual(taken: number): number {
    const usual = this.#usual
    this.#usual += (Math.min(taken, MOST) - usual) * WEIGHT
    return usual
  }
}

/** Longer is never usual. */
const MOST = 1

/** Of the newest in the mean. */
const WEIGHT = 0.1
