import type { BucketLimits } from '../core/bucket/bucket.js'
import type { Route } from './routing/route.js'

/** The limits of buckets, lowered to what the upstreams behind them have said that they allow. */
export class LearnedLimits {
  /** Cost units per ms, by the name of a bucket. */
  readonly #rates = new Map<string, number>()
  #lowered = new WeakMap<BucketLimits, BucketLimits>()

  /** Takes over what the upstreams of these routes have said; a bucket before several of them keeps to the lowest. */
  adjust(routes: readonly Route[]): void {
    this.#rates.clear()
    this.#lowered = new WeakMap()
    for (const { upstream, settings } of routes) {
      const rate = upstream.quota?.rate ?? Infinity
      if (rate === Infinity) continue
      for (const { name } of settings.buckets) this.#rates.set(name, Math.min(rate, this.#rates.get(name) ?? Infinity))
    }
  }

  /** Never above what is configured. */
  limitsOf(limits: BucketLimits): BucketLimits {
    const rate = this.#rates.size === 0 ? undefined : this.#rates.get(limits.name)
    if (rate === undefined || rate >= limits.rate) return limits
    const known = this.#lowered.get(limits)
    if (known !== undefined) return known
    const lowered = { ...limits, rate }
    this.#lowered.set(limits, lowered)
    return lowered
  }
}
