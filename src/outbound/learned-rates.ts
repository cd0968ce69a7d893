/**
 * Limits that answers announce, for each key: a rate that is lower than the configured one, until it is forgotten, and a pause where
 * nothing is left. What is said of requests is for the only bucket or the one called `requests`, what is said of tokens for the
 * one called `tokens`.
 */
import type { Cancel, Clock } from '../core/clock.js'
import type { Fields } from '../http/quota/field-values.js'
import { LearnedRate } from '../http/quota/learned-rate.js'
import { readQuota, readTokenQuota } from '../http/quota/quota-fields.js'
import type { KeyQueue } from './key-queues.js'
import { ONLY } from './options.js'

const TOKENS = 'tokens'
const REQUESTS = 'requests'

/** Smaller relative changes of a rate are ignored, because each change plans the waiting calls anew. */
const NOTABLE_CHANGE = 0.01

/** What is known of one limit of a key. */
interface Known {
  readonly learned: LearnedRate
  /** Calls per ms that the bucket follows. */
  rate: number
  expiry: Cancel
}

export interface LearnedRatesOptions {
  readonly clock: Clock
  /** The rate of a bucket of this queue has changed. */
  changed(queue: KeyQueue): void
}

export class LearnedRates {
  readonly #options: LearnedRatesOptions
  /** By the name of the bucket. Gone with its queue. */
  readonly #known = new WeakMap<KeyQueue, Map<string, Known>>()

  constructor(options: LearnedRatesOptions) {
    this.#options = options
  }

  /** Cost units per ms. Infinity: nothing is known. */
  rateOf(queue: KeyQueue | undefined, bucket: string): number {
    return (queue && this.#known.get(queue)?.get(bucket)?.rate) ?? Infinity
  }

  /**
   * Learns from an answer.
   *
   * @param cost of its request, by bucket
   * @returns ms for which nothing is left
   */
  learn(queue: KeyQueue, fields: Fields, cost: (bucket: string) => number | undefined): number {
    const wallNow = Date.now()
    const requests = cost(ONLY) === undefined ? REQUESTS : ONLY
    let pause = 0
    for (const [bucket, quota] of [
      [requests, readQuota(fields, wallNow)],
      [TOKENS, readTokenQuota(fields, wallNow)],
    ] as const) {
      const own = cost(bucket)
      if (quota === undefined || own === undefined) continue
      const known = this.#open(queue, bucket)
      const now = this.#options.clock.now()
      known.learned.learn(quota, now, own)
      pause = Math.max(pause, known.learned.pausedUntil - now)
      this.#follow(queue, known)
    }
    return pause
  }

  #open(queue: KeyQueue, bucket: string): Known {
    const all = this.#known.get(queue) ?? new Map<string, Known>()
    this.#known.set(queue, all)
    const known = all.get(bucket) ?? { learned: new LearnedRate(), rate: Infinity, expiry: () => false }
    all.set(bucket, known)
    return known
  }

  #follow(queue: KeyQueue, known: Known): void {
    const { clock, changed } = this.#options
    const rate = known.learned.allowed(clock.now())
    known.expiry()
    const { expiresAt } = known.learned
    if (expiresAt < Infinity) known.expiry = clock.at(expiresAt, () => this.#follow(queue, known))
    if (rate === known.rate || Math.abs(rate - known.rate) < known.rate * NOTABLE_CHANGE) return
    known.rate = rate
    changed(queue)
  }
}
