/** Keeps the latest 256 times of an event. */
const KEPT = 256

export class RecentTimes {
  #times: number[] = []

  add(time: number): void {
    this.#times.push(time)
    // Dropping many at once keeps the cost per event low.
    if (this.#times.length >= 2 * KEPT) this.#times = this.#times.slice(-KEPT)
  }

  /** Oldest first. */
  list(): number[] {
    return this.#times.slice(-KEPT)
  }
}
