/** When something happened lately: the latest 256 times. */
const KEPT = 256

export class RecentTimes {
  #times: number[] = []

  add(time: number): void {
    this.#times.push(time)
    // Seldom and many at a time.
    if (this.#times.length >= 2 * KEPT) this.#times = this.#times.slice(-KEPT)
  }

  clear(): void {
    this.#times = []
  }

  /** Oldest first. */
  list(): number[] {
    return this.#times.slice(-KEPT)
  }
}
