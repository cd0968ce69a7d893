/** Sums up what happens in the latest seconds: the present one, and as many whole ones before it. */
export class RecentSum {
  readonly #sums: Float64Array
  /** The latest second in which something happened, since the origin of the clock. */
  #latest = -Infinity

  /** @param seconds how many, the present one included */
  constructor(seconds: number) {
    this.#sums = new Float64Array(seconds)
  }

  /** @param now ms */
  add(now: number, amount = 1): void {
    this.#advance(now)
    this.#sums[this.#placeOf(this.#latest)]! += amount
  }

  /** @param now ms */
  sum(now: number): number {
    this.#advance(now)
    return this.#sums.reduce((total, sum) => total + sum, 0)
  }

  /** Of how many ms the sum is. */
  span(now: number): number {
    return now - (Math.floor(now / 1_000) + 1 - this.#sums.length) * 1_000
  }

  /** Forgets the seconds that are too old. */
  #advance(now: number): void {
    const second = Math.floor(now / 1_000)
    const passed = Math.min(this.#sums.length, second - this.#latest)
    for (let back = 0; back < passed; back += 1) this.#sums[this.#placeOf(second - back)] = 0
    this.#latest = Math.max(second, this.#latest)
  }

  #placeOf(second: number): number {
    const { length } = this.#sums
    return ((second % length) + length) % length
  }
}
