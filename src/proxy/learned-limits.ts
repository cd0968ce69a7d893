import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import { followersOf, LIMITED } from '../http/quota/quota-fields.js'
import type { Route } from './routing/route.js'
import type { AdaptiveLimit } from './upstream/adaptive-limit.js'

/** Bucket limits, lowered to what the upstreams behind the buckets allow, and while these warm up. Bursts warm up, too. */
export class LearnedLimits {
  /** Cost units per ms, by bucket name. */
  readonly #rates = new Map<string, number>()
  /** The part of its rate that a bucket has while an upstream warms up, by bucket name. */
  readonly #parts = new Map<string, number>()
  /** The adaptive rates of upstreams, by bucket name. */
  readonly #adaptive = new Map<string, AdaptiveLimit>()
  #lowered = new WeakMap<BucketLimits, BucketLimits>()

  /**
   * Reads the rates of the upstreams of these routes, as far as they have `learn` or `adapt`, and how far these have warmed
   * up. A bucket in front of several upstreams takes the lowest rate. Limits on requests and on tokens are followed by the
   * buckets that are called so.
   */
  adjust(routes: readonly Route[]): void {
    this.#rates.clear()
    this.#parts.clear()
    this.#adaptive.clear()
    this.#lowered = new WeakMap()
    for (const { upstream, settings } of routes) {
      const { adaptive, part, quota } = upstream
      const names = settings.buckets.map(({ name }) => name)
      if (adaptive !== undefined) this.#adaptive.set(adaptive.bucket.name, adaptive)
      if (part < 1) lower(this.#parts, names, part)
      if (quota === undefined || !settings.upstream.learn) continue
      for (const limited of LIMITED) {
        const rate = quota.rateOf(limited)
        if (rate < Infinity) lower(this.#rates, followersOf(limited, names), rate)
      }
    }
  }

  /** The limits to use. The rate is never above the configured one. */
  limitsOf(configured: BucketLimits): BucketLimits {
    const limits = this.#adaptive.size === 0 ? configured : (this.#adaptive.get(configured.name)?.limits ?? configured)
    if (this.#rates.size + this.#parts.size === 0 || limits.quota !== undefined) return limits
    const part = this.#parts.get(limits.name) ?? 1
    const lowerRate = (rate: number): number => Math.min(this.#rates.get(limits.name) ?? Infinity, rate * part)
    const { next } = limits
    const rate = lowerRate(limits.rate)
    if (rate >= limits.rate && next === undefined) return limits
    const known = this.#lowered.get(limits)
    if (known !== undefined) return known
    const { burst } = limits
    const lowered = {
      ...limits,
      rate,
      ...(next && { next: { ...next, rate: lowerRate(next.rate) } }),
      ...(burst !== undefined && { burst: burst * part }),
    }
    this.#lowered.set(limits, lowered)
    return lowered
  }
}

function lower(all: Map<string, number>, names: readonly string[], value: number): void {
  for (const name of names) all.set(name, Math.min(value, all.get(name) ?? Infinity))
}
