/**
 * The rate that an upstream's own words allow.
 *
 * **Base.** A limit of `limit` requests per window allows `limit / window` in the long run. A window that is not
 * declared is estimated as the longest `reset` seen for this limit: some request was answered that long before the
 * window's end, so it is a lower bound, nearly reached in the first whole window of whoever sends steadily; rounding up
 * to whole seconds only makes it longer, the rate lower. Without a limit there is no base.
 *
 * **What is left.** `remaining` requests in the time T until the reset allow `remaining / T`. What others take of the
 * same quota shows in `remaining`, so this follows them. T is `reset` itself: rounded up it is too long by a second at
 * most, 10 % of a window of 10 s. In a shorter window that second is too much: of a 1 s window `reset` says 1 all along,
 * and `remaining / 1 s` falls as remaining falls, so that a third is never used. There T is `reset - grain`, the least
 * it can be, where a base bounds the rate: pacing at base cannot use such a window up alone. Where that T is not above
 * 0, remaining says nothing. An estimated window is not taken for short before one has passed as a whole: who comes in
 * the last second of an hour would else take it for a window of one second.
 *
 * **Others, near the end.** Until our next request, T / remaining from now, others go on. Let them have taken n since
 * this window was first seen, a time e ago; they will take n / e * T / remaining, or, where e < T says little, at most
 * n / remaining. They do not come evenly: if twice as many would leave nothing for us, the next request waits for the
 * reset. So at most some sqrt(2 n) requests are left to them, and none where we are alone.
 *
 * **Allowed** is the lesser of base and what is left until the reset has passed, then base, which is kept for 10 windows
 * without news. **Nothing left**: a pause of T, then base. It is never 0: at least one request per reset gets through,
 * or nothing new would ever be learned.
 *
 * Without a `reset`, what is left says nothing of a rate. Once nothing is left, the window bounds the pause, but at most
 * a minute, since most of a long window may well be over.
 */

import type { Quota } from './field-values.js'

/** ms: in windows shorter than this whole seconds say too little. */
const SHORT_WINDOW = 10_000

/** Windows without news after which the base is forgotten. */
const MEMORY = 10

/** ms: the longest pause where it is not known when a window ends. */
const BLIND_PAUSE = 60_000

export class LearnedRate {
  #limit: number | undefined
  /** The longest reset seen for this limit, in ms. */
  #longestReset = 0
  /** From then on a window has been seen from its start. */
  #wholeAt = Infinity
  /** Requests per ms. */
  #base = Infinity
  #forgetAt = Infinity
  /** What is left allows, in requests per ms, until `#resetAt`. */
  #left = Infinity
  #resetAt = Infinity
  #pausedUntil = -Infinity
  #lastRemaining = -Infinity
  /** What would be left if nobody else had taken any since `#windowSeenAt`. */
  #expectedRemaining = 0
  #windowSeenAt = 0

  /** Monotonic ms until which the upstream has nothing left; -Infinity: it never said so. */
  get pausedUntil(): number {
    return this.#pausedUntil
  }

  /** Monotonic ms at which `allowed` changes by itself, as of the last call of a method; Infinity: never. */
  get expiresAt(): number {
    return Math.min(this.#resetAt, this.#forgetAt)
  }

  /**
   * Takes note of an answer, whatever its status.
   *
   * @param now monotonic ms
   */
  learn(quota: Quota, now: number): void {
    this.#expire(now)
    const window = this.#learnBase(quota, now)
    const isWhole = quota.window !== undefined || now >= this.#wholeAt
    const { remaining, reset, grain } = quota
    if (remaining === undefined) return
    const isShort = isWhole && this.#base < Infinity && window !== undefined && window < SHORT_WINDOW
    const time = reset === undefined ? undefined : isShort ? reset - grain : reset
    const others = this.#countOthers(remaining, now)
    if (remaining < 1) return this.#stop(time ?? Math.min(window ?? 0, BLIND_PAUSE), now)
    if (time === undefined || time <= 0) return this.#leave(Infinity, now)
    const expected = others * Math.min(1, time / (now - this.#windowSeenAt))
    const isForOthers = 2 * expected > remaining * (remaining - 1)
    this.#leave((isForOthers ? 1 : remaining) / time, now + reset!)
  }

  /**
   * @param now monotonic ms
   * @returns requests per ms, above 0; Infinity where nothing is known, or no longer
   */
  allowed(now: number): number {
    this.#expire(now)
    return Math.min(this.#base, this.#left)
  }

  /** @returns the window in ms, as far as it is known */
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

  /** @returns how many requests were taken in this window beside our own, since its first answer */
  #countOthers(remaining: number, now: number): number {
    if (remaining > this.#lastRemaining) {
      this.#expectedRemaining = remaining
      this.#windowSeenAt = now
    } else this.#expectedRemaining -= 1
    this.#lastRemaining = remaining
    return Math.max(0, this.#expectedRemaining - remaining)
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
