/**
 * What answers have said of an upstream's limits, on requests and on tokens apart, and the rates that buckets follow. The proxy
 * has it for an upstream, the library for a key.
 */
import { LIMITED, type Limited, type Quota } from './field-values.js'
import { LearnedRate } from './learned-rate.js'
import { LONGEST_PAUSE } from './pause-rule.js'

/** Smaller relative changes of a rate are ignored, because every change plans anew what waits. */
const NOTABLE_CHANGE = 0.01

export interface AnsweredRequest {
  /** ms after which a request asks again even if nothing is left. */
  readonly longest: number
  /** What it has taken. Absent: 1. */
  readonly costs?: Readonly<Partial<Record<Limited, number>>>
}

export class LearnedQuotas {
  readonly #learned: Readonly<Record<Limited, LearnedRate>> = { requests: new LearnedRate(), tokens: new LearnedRate() }
  readonly #rates: Record<Limited, number> = { requests: Infinity, tokens: Infinity }
  /** Lower bound of the rates, in cost units per ms: a request must ask again some time. */
  #least = 1 / LONGEST_PAUSE

  /** The rate that buckets follow, in cost units per ms; Infinity: no such limit is announced. */
  rateOf(limited: Limited): number {
    return this.#rates[limited]
  }

  /** Monotonic ms at which what is known of a limit changes by itself; Infinity: never. */
  expiresAt(limited: Limited): number {
    return this.#learned[limited].expiresAt
  }

  /**
   * Learns from an answer. The rates stay until `follow`.
   *
   * @param now monotonic ms
   * @returns ms for which nothing is left, at most `longest`; 0: something is
   */
  learn(quotas: readonly Quota[], now: number, { longest, costs = {} }: AnsweredRequest): number {
    let pause = 0
    for (const quota of quotas) {
      const { bucket = 'requests' } = quota
      const learned = this.#learned[bucket]
      learned.learn(quota, now, costs[bucket])
      pause = Math.max(pause, Math.min(learned.pausedUntil - now, longest))
    }
    if (quotas.length > 0) this.#least = 1 / longest
    return pause
  }

  /**
   * Brings the rates up to date.
   *
   * @param now monotonic ms
   * @param told the rate of requests that counts in place of the learnt one
   * @returns the limits whose rates have changed
   */
  follow(now: number, told?: number): readonly Limited[] {
    return LIMITED.filter(limited => {
      const known = (limited === 'requests' ? told : undefined) ?? this.#learned[limited].allowed(now)
      const rate = Math.max(known, this.#least)
      const before = this.#rates[limited]
      if (rate === before || Math.abs(rate - before) < before * NOTABLE_CHANGE) return false
      this.#rates[limited] = rate
      return true
    })
  }
}
