/**
 * The offset between a store's clock and ours.
 *
 * An answer carries the store's time `theirs`. It was asked for at `sent` and arrived at `received`. So the offset
 * ours - theirs lies between sent - theirs and received - theirs. The least upper end is the best one: a moment mapped with
 * it is late by no more than the fastest answer took, and never early. Clocks drift apart, so the bound loosens with time.
 * The greatest lower end counts as well: half of what lies between them is about how late such a moment is. If an upper bound
 * falls below a lower one, a clock was changed. Then only the new answer counts.
 */

/** How much faster one clock may run than the other. */
const DRIFT = 2e-4

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
