/** Quantiles of waits: exact up to a number of waits, from bins beyond. */
import { grown } from '../input/grown.js'

/** The default number of waits to keep. */
export const EXACT = 1_000_000
/** A bin is the upper bits of a 32-bit float, with this many bits of the fraction: at most 1.6 % wide. */
const FRACTION_BITS = 6
const SHIFT = 23 - FRACTION_BITS
const BINS = 2 ** (8 + FRACTION_BITS)
const single = new Float32Array(1)
const bits = new Uint32Array(single.buffer)

/** The bin of a wait in ms. */
function binOf(wait: number): number {
  single[0] = wait
  return bits[0]! >>> SHIFT
}

/** The lower end of a bin, in ms. */
export function binStart(bin: number): number {
  bits[0] = bin << SHIFT
  return single[0]!
}

/** The rank of the q-th quantile of `count` waits, from 1 (nearest rank). */
export function rankOf(q: number, count: number): number {
  return Math.max(1, Math.ceil(q * count))
}

/** The q-th quantile of binned waits: the upper end of its bin, so never below the exact one. 0 without waits. */
function binnedQuantile(bins: Uint32Array, count: number, q: number): number {
  let remaining = rankOf(q, count)
  if (count === 0) return 0
  for (let bin = 0; bin < bins.length; bin += 1) {
    remaining -= bins[bin]!
    if (remaining <= 0) return binStart(bin + 1)
  }
  return 0
}

export interface WaitSummary {
  readonly p50: number
  readonly p90: number
  readonly p99: number
  readonly max: number
}

export class Waits {
  count = 0
  max = 0
  readonly bins = new Uint32Array(BINS)
  readonly #most: number
  #exact: Float64Array

  /** @param most how many waits to keep */
  constructor(most = EXACT) {
    this.#most = most
    this.#exact = new Float64Array(Math.min(most, 1_024))
  }

  add(wait: number): void {
    if (this.count < this.#most) {
      const { length } = this.#exact
      if (this.count === length) this.#exact = grown(this.#exact, Math.min(this.#most, 2 * length))
      this.#exact[this.count] = wait
    }
    this.count += 1
    this.bins[binOf(wait)]! += 1
    if (wait > this.max) this.max = wait
  }

  summary(): WaitSummary {
    const sorted = this.count <= this.#most ? this.#exact.subarray(0, this.count).slice().sort() : undefined
    const quantile = (q: number): number =>
      sorted === undefined
        ? Math.min(this.max, binnedQuantile(this.bins, this.count, q))
        : (sorted[rankOf(q, this.count) - 1] ?? 0)
    return { p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99), max: this.max }
  }
}
