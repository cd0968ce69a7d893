/**
 * Quantiles of the last ten seconds. There is a histogram for each second with bins 2 % wide, so the cost of a quantile
 * does not depend on the number of samples. A quantile is exact within 1 %, the maximum is exact.
 */
import type { Quantiles } from '../snapshot/snapshot.js'

const SECONDS = 10
/** Samples below this count as 0, in ms. */
const LEAST = 0.001
const WIDTH = Math.log(1.02)
/** The largest bin is at about eleven days. */
const BINS = Math.ceil(Math.log(1e12) / WIDTH) + 1

interface Second {
  number: number
  count: number
  max: number
  readonly bins: Uint32Array
}

export class SlidingQuantiles {
  readonly #seconds: Second[] = Array.from({ length: SECONDS + 1 }, () => {
    return { number: Number.NEGATIVE_INFINITY, count: 0, max: 0, bins: new Uint32Array(BINS) }
  })

  add(value: number, now: number): void {
    const number = Math.floor(now / 1_000)
    const second = this.#seconds[((number % (SECONDS + 1)) + SECONDS + 1) % (SECONDS + 1)]!
    if (second.number !== number) {
      second.number = number
      second.count = 0
      second.max = 0
      second.bins.fill(0)
    }
    second.count += 1
    if (value > second.max) second.max = value
    const bin = value < LEAST ? 0 : 1 + Math.floor(Math.log(value / LEAST) / WIDTH)
    second.bins[Math.min(BINS - 1, bin)]! += 1
  }

  quantiles(now: number): Quantiles {
    const oldest = Math.floor(now / 1_000) - SECONDS
    const seconds = this.#seconds.filter(({ number, count }) => number >= oldest && count > 0)
    const count = seconds.reduce((sum, second) => sum + second.count, 0)
    const max = Math.max(0, ...seconds.map(second => second.max))
    const [p50 = 0, p90 = 0, p99 = 0] = quantilesOf(seconds, count, [0.5, 0.9, 0.99], max)
    return { count, p50, p90, p99, max }
  }
}

function quantilesOf(seconds: readonly Second[], count: number, parts: readonly number[], max: number): number[] {
  const found: number[] = []
  let sum = 0
  for (let bin = 0; bin < BINS && found.length < parts.length && count > 0; bin += 1) {
    for (const { bins } of seconds) sum += bins[bin]!
    while (found.length < parts.length && sum > Math.min(count - 1, Math.floor(parts[found.length]! * count)))
      found.push(bin === 0 ? 0 : Math.min(max, LEAST * Math.exp((bin - 0.5) * WIDTH)))
  }
  return found
}
