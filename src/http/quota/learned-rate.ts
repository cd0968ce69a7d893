/**
 * The rate that an upstream's own headers allow.
 *
 * **Base.** A limit of `limit` requests per window allows `limit / window` in the long run. If the window is not
 * declared, it is estimated as the longest `reset` seen for this limit. Some request was answered that long before the
 * end of the window, so the estimate is a lower bound. A steady client comes close to it in its first whole window.
 * Rounding up to whole seconds makes the estimate longer and the rate lower. Without a limit there is no base.
 *
 * **What is left.** `remaining` requests in the time T until the reset allow `remaining / T`. Other users of the same
 * quota lower `remaining`, so this rate follows them. T is `reset` itself. A rounded `reset` is at most a second too
 * long, which is 10 % of a window of 10 s. In a shorter window that second is too much: in a window of 1 s `reset` is
 * always 1, and `remaining / 1 s` falls with `remaining`, so a third is never used. In short windows T is therefore
 * `reset - grain`, its least possible value, if a base bounds the rate: pacing at the base cannot use up such a window
 * alone. If that T is not above 0, `remaining` says nothing, unless it is 0. An estimated window counts as short only after one whole
 * window has passed. Otherwise a client that comes in the last second of an hour would estimate a window of one second.
 *
 * **Others, near the end.** Our next request comes in T / remaining. Others go on until then. Suppose others took n
 * requests since this window was first seen, a time e ago. They will take n / e * T / remaining, or at most n /
 * remaining where e < T says little. They do not come evenly. If twice as many would leave nothing for us, the next
 * request waits for the reset. So at most about sqrt(2 n) requests are left to the others, and none if we are alone.
 *
 * **Allowed** is the lesser of the base and what is left, until the reset. After it, the base. The base is kept for 10
 * windows without news. **Nothing left** means a pause until the reset, then the base. In a short window that we have used
 * up alone the pause ends one window after the oldest of these requests, if that is sooner. At the base rate that is about the
 * next slot, so it is none, and the rounded reset costs nothing. After a burst it is the end of the window. The rate is never 0: at least one
 * request per reset gets through, or nothing new would be learned.
 *
 * Without a `reset`, what is left determines no rate. Once nothing is left, the window bounds the pause, but to at most
 * a minute, because most of a long window may be over.
 */

import type { Quota } from './field-values.js'

/** ms. In shorter windows whole seconds are too coarse. */
const SHORT_WINDOW = 10_000
/** Windows without news until the base is forgotten. */
const MEMORY = 10
/** Requests in a short window whose times are kept. */
const MOST_OWN = 1_000
/** ms. The longest pause if the end of the window is unknown. */
const BLIND_PAUSE = 60_000

export class LearnedRate {
  #limit: number | undefined
  #longestReset = 0
  /** From this time on, one whole window has been seen. */
  #wholeAt = Infinity
  #base = Infinity
  #forgetAt = Infinity
  /** Requests per ms that `remaining` allows, until `#resetAt`. */
  #left = Infinity
  #resetAt = Infinity
  #pausedUntil = -Infinity
  #lastRemaining = -Infinity
  /** What would be left if only we had taken requests since `#windowSeenAt`. */
  #expectedRemaining = 0
  #windowSeenAt = 0
  /** When own requests were answered in a short window, in ms. */
  readonly #own: number[] = []

  /** Monotonic ms until which the upstream has nothing left; -Infinity: it never said so. */
  get pausedUntil(): number {
    return this.#pausedUntil
  }

  /** Monotonic ms at which `allowed` changes by itself, as of the last call of a method; Infinity: never. */
  get expiresAt(): number {
    return Math.min(this.#resetAt, this.#forgetAt)
  }

  /**
   * Learns from an answer of any status.
   *
   * @param now monotonic ms
   * @param cost what its own request has taken
   */
  learn(quota: Quota, now: number, cost = 1): void {
    this.#expire(now)
    const window = this.#learnBase(quota, now)
    const { remaining, reset, grain } = quota
    if (remaining === undefined) return
    const shortWindow = this.#isShort(quota, window, now) ? window : undefined
    const others = this.#countOthers(remaining, now, cost)
    if (shortWindow !== undefined && cost === 1) this.#log(now, shortWindow)
    if (remaining < 1) {
      const pause = shortWindow === undefined ? reset : this.#shortPause(quota, shortWindow, now)
      return this.#stop(pause ?? Math.min(window ?? 0, BLIND_PAUSE), now)
    }
    const time = reset === undefined || shortWindow === undefined ? reset : reset - grain
    if (time === undefined || time <= 0) return this.#leave(Infinity, now)
    const expected = others * Math.min(1, time / (now - this.#windowSeenAt))
    const isForOthers = 2 * expected > remaining * (remaining - 1)
    this.#leave((isForOthers ? 1 : remaining) / time, now + reset!)
  }

  /**
   * @param now monotonic ms
   * @returns requests per ms, above 0; Infinity: nothing is known, or no longer
   */
  allowed(now: number): number {
    this.#expire(now)
    return Math.min(this.#base, this.#left)
  }

  /** @returns the window in ms; undefined: not known yet */
  #learnBase({ limit, window, reset = 0 }: Quota, now: number): number | undefined {
    if (limit === undefined) return window
    if (limit !== this.#limit) {
      this.#limit = limit
      this.#longestReset = 0
      this.#wholeAt = now + reset
      this.#lastRemaining = -Infinity
    }
    this.#longestReset = Math.max(this.#longestReset, reset)
    const length = window ?? this.#longestReset
    if (length <= 0) return undefined
    this.#base = limit / length
    this.#forgetAt = now + MEMORY * length
    return length
  }

  #isShort(quota: Quota, window: number | undefined, now: number): boolean {
    const isWhole = quota.window !== undefined || now >= this.#wholeAt
    return isWhole && this.#base < Infinity && window !== undefined && window < SHORT_WINDOW
  }

  #log(now: number, window: number): void {
    this.#own.push(now)
    // A little longer than the window, because answers do not take equally long.
    while (this.#own[0]! < now - 1.25 * window || this.#own.length > 2 * MOST_OWN) this.#own.shift()
  }

  /** @returns how many requests others took in this window since its first answer */
  #countOthers(remaining: number, now: number, cost: number): number {
    if (remaining > this.#lastRemaining) {
      this.#expectedRemaining = remaining
      this.#windowSeenAt = now
    } else this.#expectedRemaining -= cost
    this.#lastRemaining = remaining
    return Math.max(0, this.#expectedRemaining - remaining)
  }

  /** ms to send nothing in a short window that is used up. */
  #shortPause({ limit, reset, grain }: Quota, window: number, now: number): number | undefined {
    if (reset === undefined || limit! > MOST_OWN) return reset && reset - grain
    const oldest = this.#own.at(-Math.ceil(limit!))
    if (oldest === undefined) return reset
    const pause = Math.min(reset, oldest + window - now)
    return limit! > 1 && pause < (1.5 * window) / limit! ? 0 : pause
  }

  #stop(time: number, now: number): void {
    if (time <= 0) return this.#leave(Infinity, now)
    this.#pausedUntil = now + time
    this.#leave(1 / time, now + time)
  }

  #leave(rate: number, resetAt: number): void {
    const isFelt = rate < this.#base
    this.#left = isFelt ? rate : Infinity
    this.#resetAt = isFelt ? resetAt : Infinity
  }

  #expire(now: number): void {
    if (now >= this.#resetAt) this.#leave(Infinity, Infinity)
    if (now < this.#forgetAt) return
    this.#base = Infinity
    this.#forgetAt = Infinity
    this.#limit = undefined
    this.#longestReset = 0
  }
}
