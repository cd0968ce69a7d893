import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import type { Route } from './routing/route.js'

/** Bucket limits, lowered to what the upstreams behind the buckets allow. */
export class LearnedLimits {
  /** Cost units per ms, by bucket name. */
  readonly #rates = new Map<string, number>()
  #lowered = new WeakMap<BucketLimits, BucketLimits>()

  /**
   * Reads the rates of the upstreams of these routes, as far as they have `learn`. A bucket in front of several upstreams
   * takes the lowest rate.
   */
  adjust(routes: readonly Route[]): void {
    this.#rates.clear()
    this.#lowered = new WeakMap()
    for (const { upstream, settings } of routes) {
      const rate = upstream.quota?.rate ?? Infinity
      if (rate === Infinity || !settings.upstream.learn) continue
      for (const { name } of settings.buckets) this.#rates.set(name, Math.min(rate, this.#rates.get(name) ?? Infinity))
    }
  }

  /** The limits to use. The rate is never above the configured one. */
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
