/** How long requests waited: exact as long as they are few, then in bins. */

/** As many are kept as they are. */
const EXACT = 1_000_000

/** Of the bits of a 32-bit float the sign, the exponent and so many of the fraction are a bin: each is at most 1.6 % wide. */
const FRACTION_BITS = 6
const SHIFT = 23 - FRACTION_BITS
export const BINS = 2 ** (8 + FRACTION_BITS)

const single = new Float32Array(1)
const bits = new Uint32Array(single.buffer)

/** The bin of a wait in ms. */
export function binOf(wait: number): number {
  single[0] = wait
  return bits[0]! >>> SHIFT
}

/** The wait in ms that a bin begins with. */
export function binStart(bin: number): number {
  bits[0] = bin << SHIFT
  return single[0]!
}

/** The q-th quantile of what bins count, at the end of its bin, so not below the exact one; 0 where there is nothing. */
export function binnedQuantile(bins: Uint32Array, count: number, q: number): number {
  let left = Math.max(1, Math.ceil(q * count))
  if (count === 0) return 0
  for (let bin = 0; bin < bins.length; bin += 1) {
    left -= bins[bin]!
    if (left <= 0) return binStart(bin + 1)
  }
  return 0
}

/** In ms. */
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
  #exact = new Float64Array(1_024)

  add(wait: number): void {
    if (this.count < EXACT) {
      if (this.count === this.#exact.length) {
        const more = new Float64Array(Math.min(EXACT, 2 * this.#exact.length))
        more.set(this.#exact)
        this.#exact = more
      }
      this.#exact[this.count] = wait
    }
    this.count += 1
    this.bins[binOf(wait)]! += 1
    if (wait > this.max) this.max = wait
  }

  /** Each the smallest wait that so many of all do not exceed (nearest rank). */
  summary(): WaitSummary {
    const sorted = this.count <= EXACT ? this.#exact.subarray(0, this.count).slice().sort() : undefined
    const quantile = (q: number): number =>
      sorted === undefined
        ? Math.min(this.max, binnedQuantile(this.bins, this.count, q))
        : (sorted[Math.max(0, Math.ceil(q * this.count) - 1)] ?? 0)
    return { p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99), max: this.max }
  }
}
