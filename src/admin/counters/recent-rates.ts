import type { BucketRates } from '../snapshot/snapshot.js'
import { RecentSum } from './recent-sum.js'

/** The present second and the four before it, so that a burst of a fraction of a second is seen by who looks right after it. */
const SECONDS = 5

/** ms. What has begun just now is not taken for a high rate. */
const LEAST = 1_000

/** What arrived at a bucket, left it and was rejected in the latest seconds. Times in ms. */
export class RecentRates {
  readonly offered = new RecentSum(SECONDS)
  readonly released = new RecentSum(SECONDS)
  readonly rejected = new RecentSum(SECONDS)
  readonly #since: number

  /** @param since nothing happened before */
  constructor(since: number) {
    this.#since = since
  }

  rates(now: number): BucketRates {
    const seconds = Math.max(LEAST, Math.min(now - this.#since, this.offered.span(now))) / 1_000
    const rate = (sum: RecentSum): number => Math.round((sum.sum(now) / seconds) * 1_000) / 1_000
    return { offered: rate(this.offered), released: rate(this.released), rejected: rate(this.rejected) }
  }
}
