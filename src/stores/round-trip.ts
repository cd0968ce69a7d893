/** The usual round trip to a store, and what claims of slots derive from it. */
import { HORIZON, longestBackDate } from '../core/store.js'

/** How many round trips ahead a slot may be claimed. */
const ROUND_TRIPS_AHEAD = 2.5

/** The weight of a new round trip in the average. */
const SMOOTHING = 1 / 8

export class RoundTrip {
  /** The average in ms. 0: nothing is known. */
  #usual = 0

  /** @param took ms */
  learn(took: number): void {
    // Answers after an outage show how long it was, not how far the server is.
    const bounded = Math.min(took, HORIZON.most / ROUND_TRIPS_AHEAD)
    this.#usual += (bounded - this.#usual) * (this.#usual === 0 ? 1 : SMOOTHING)
  }

  forget(): void {
    this.#usual = 0
  }

  /** How far ahead a slot may be claimed, in ms. */
  get horizon(): number {
    return Math.min(Math.max(this.#usual * ROUND_TRIPS_AHEAD, HORIZON.least), HORIZON.most)
  }

  /** How far back a slot may lie, in ms, as `longestBackDate`. */
  get back(): number {
    return longestBackDate(this.#usual)
  }
}
