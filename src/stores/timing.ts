import { HORIZON, longestBackDate } from '../sharing/store.js'

/** How much faster one clock may run than the other. */
const DRIFT = 2e-4

/**
 * The offset between a store's clock and ours.
 *
 * An answer carries the store's time `theirs`. It was asked for at `sent` and arrived at `received`. So the offset
 * ours - theirs lies between sent - theirs and received - theirs. The least upper end is the best one: a moment mapped with
 * it is late by no more than the fastest answer took, and never early. Clocks drift apart, so the bound loosens with time.
 * The greatest lower end counts as well: half of what lies between them is about how late such a moment is. If an upper bound
 * falls below a lower one, a clock was changed. Then only the new answer counts.
 */
export class Offset {
  #upper = Infinity
  #lower = -Infinity
  #at = 0

  /** All in ms: `sent` and `received` by our clock, `theirs` by the store's. */
  learn(sent: number, received: number, theirs: number): void {
    const [lower, upper] = [sent - theirs, received - theirs]
    const drift = (received - this.#at) * DRIFT
    const [loosenedLower, loosenedUpper] = [this.#lower - drift, this.#upper + drift]
    const isChanged = loosenedUpper < lower || loosenedLower > upper
    this.#upper = isChanged ? upper : Math.min(loosenedUpper, upper)
    this.#lower = isChanged ? lower : Math.max(loosenedLower, lower)
    this.#at = received
  }

  /** How late moments of the store's clock are by ours, in ms, if both ways take as long. 0: nothing is known. */
  get lateness(): number {
    return this.#upper === Infinity ? 0 : (this.#upper - this.#lower) / 2
  }

  /** A moment of the store's clock by ours, in ms. */
  ours(theirs: number): number {
    return theirs + this.#upper
  }

  /** A moment of our clock by the store's, in ms, not after it. */
  theirs(ours: number): number {
    return ours - this.#upper
  }
}

/** How many round trips ahead a slot may be claimed. */
const ROUND_TRIPS_AHEAD = 2.5
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

  /** @param took ms @param late ms from the store's moment, as it is mapped, until the answer was there */
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

  /** What a round trip takes, in ms. 0: nothing is known. */
  get usual(): number {
    return this.#usual
  }

  /** How far ahead a slot may be claimed, in ms. */
  get horizon(): number {
    return Math.min(Math.max(this.#usual * ROUND_TRIPS_AHEAD, HORIZON.least), HORIZON.most)
  }

  /** How far back a slot may lie, in ms (`longestBackDate`). Negative: ahead by no more than answers come after the fastest one. */
  get back(): number {
    return Math.max(longestBackDate(this.#usual), -RESERVE * this.#latest)
  }
}

/**
 * The answer of some work, or an error if it takes longer than `ms`.
 *
 * @param late the error, made when the time is over
 * @param work calls `check` before each thing that must not be done later: it throws once the time is over
 */
export async function inTime<T>(ms: number, late: () => Error, work: (check: () => void) => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  let error: Error | undefined
  const over = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      error = late()
      reject(error)
    }, ms)
  })
  const check = (): void => {
    if (error !== undefined) throw error
  }
  try {
    return await Promise.race([work(check), over])
  } finally {
    clearTimeout(timer)
  }
}
