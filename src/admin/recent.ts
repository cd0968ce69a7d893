import type { Quantiles } from './snapshot.js'

/** How long a sample counts, in ms, and how many are kept. */
const SPAN = 10_000
const KEPT = 4_096

/** Samples of the last ten seconds: the latest of them where there are very many. */
export class Recent {
  readonly #values = new Float64Array(KEPT)
  readonly #times = new Float64Array(KEPT).fill(-Infinity)
  #next = 0

  add(value: number, now: number): void {
    this.#values[this.#next] = value
    this.#times[this.#next] = now
    this.#next = (this.#next + 1) % KEPT
  }

  quantiles(now: number): Quantiles {
    const values = this.#values.filter((_, place) => this.#times[place]! > now - SPAN).sort()
    const { length: count } = values
    const at = (part: number): number => (count === 0 ? 0 : values[Math.min(count - 1, Math.floor(part * count))]!)
    return { count, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1) }
  }
}
