/** The usual round trip to a store, and what claims of slots derive from it. */
import { HORIZON, longestBackDate } from '../core/store.js'

/** How many round trips ahead a slot may be claimed. */
const ROUND_TRIPS_AHEAD = 2.5

/** The weight of a new round trip in the average. */
const SMOOTHING = 1 / 8

/** A slot lies ahead by so many times what the latest answer was late. Then hardly any slot is used late. */
const RESERVE = 1.25

/** The part of its lateness that the latest answer loses with each that is less late. */
const FORGETTING = 1 / 32

export class RoundTrip {
  /** The average in ms. 0: nothing is known. */
  #usual = 0
  /** About the latest that answers come, in ms after the store's moment as it is mapped. */
  #latest = 0

  /**
   * @param took ms
   * @param late ms from the store's moment, by the instance's clock as it is mapped, until the answer was there
   */
  learn(took: number, late: number): void {
    // Answers after an outage show how long it was, not how far the server is.
    const bounded = Math.min(took, HORIZON.most / ROUND_TRIPS_AHEAD)
    this.#usual += (bounded - this.#usual) * (this.#usual === 0 ? 1 : SMOOTHING)
    this.#latest = Math.max(late, this.#latest + (late - this.#latest) * FORGETTING)
  }

  forget(): void {
    this.#usual = 0
    this.#latest = 0
  }

  /** How far ahead a slot may be claimed, in ms. */
  get horizon(): number {
    return Math.min(Math.max(this.#usual * ROUND_TRIPS_AHEAD, HORIZON.least), HORIZON.most)
  }

  /**
   * How far back a slot may lie, in ms, as `longestBackDate`. Negative: it has to lie ahead, but only by as much as answers come
   * later than the fastest one. What that one took is in the mapped moments already.
   */
  get back(): number {
    return Math.max(longestBackDate(this.#usual), -RESERVE * this.#latest)
  }
}
