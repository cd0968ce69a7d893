/** Counts events of the last minute, in whole seconds. */
const SECONDS = 60

export class MinuteCount {
  readonly #counts = new Uint32Array(SECONDS)
  /** The latest second with an event, since the origin of the clock. */
  #latest = -Infinity

  /** @param now ms */
  add(now: number): void {
    this.#advance(now)
    this.#counts[placeOf(this.#latest)]! += 1
  }

  /** @param now ms */
  count(now: number): number {
    this.#advance(now)
    return this.#counts.reduce((sum, count) => sum + count, 0)
  }

  /** Forgets the seconds that are a minute old. */
  #advance(now: number): void {
    const second = Math.floor(now / 1_000)
    const passed = Math.min(SECONDS, second - this.#latest)
    for (let back = 0; back < passed; back += 1) this.#counts[placeOf(second - back)] = 0
    this.#latest = Math.max(second, this.#latest)
  }
}

function placeOf(second: number): number {
  return ((second % SECONDS) + SECONDS) % SECONDS
}
