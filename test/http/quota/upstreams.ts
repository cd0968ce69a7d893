import type { Quota } from '../../../src/http/quota/field-values.js'
import { LearnedRate } from '../../../src/http/quota/learned-rate.js'

/** An upstream with its own limit, on virtual time. */
export interface Upstream {
  /** The requests that it accepts in a time in ms, in the long run. */
  readonly rate: number
  /** Takes a request; false: 429. */
  take(now: number): boolean
  /** The headers of its answer. */
  quota(now: number): Quota
}

type Told = 'declared' | 'undeclared'

/** Seconds, rounded up, as by most upstreams. */
function inSeconds(ms: number): number {
  return Math.ceil(ms / 1_000 - 1e-9) * 1_000
}

export function fixedWindow(limit: number, length: number, told: Told, start = 0): Upstream {
  let number = 0
  let used = 0
  const turn = (now: number): void => {
    const current = Math.floor((now - start) / length + 1e-9)
    if (current !== number) used = 0
    number = current
  }
  return {
    rate: limit / length,
    take(now) {
      turn(now)
      if (used >= limit) return false
      used += 1
      return true
    },
    quota(now) {
      turn(now)
      const reset = inSeconds(start + (number + 1) * length - now)
      return { limit, window: told === 'declared' ? length : undefined, remaining: limit - used, reset, grain: 1_000 }
    },
  }
}

/** @param says what the reset tells: when the oldest request leaves the window, or the length of the window */
export function slidingWindow(
  limit: number,
  length: number,
  told: Told,
  says: 'oldest' | 'length' = 'oldest',
): Upstream {
  let taken: number[] = []
  return {
    rate: limit / length,
    take(now) {
      taken = taken.filter(at => at > now - length + 1e-6)
      if (taken.length >= limit) return false
      taken.push(now)
      return true
    },
    quota(now) {
      const reset = says === 'length' ? length : inSeconds((taken[0] ?? now) + length - now)
      const window = told === 'declared' ? length : undefined
      return { limit, window, remaining: limit - taken.length, reset, grain: 1_000 }
    },
  }
}

/** Our own headers: `r` is the free capacity, `t` the time until the bucket is empty, `w` the time to drain a full one. */
export function leakyBucket(perSecond: number, capacity: number): Upstream {
  const rate = perSecond / 1_000
  let emptyAt = 0
  const level = (now: number): number => Math.max(0, emptyAt - now) * rate
  return {
    rate,
    take(now) {
      if (level(now) + 1 > capacity + 1e-6) return false
      emptyAt = Math.max(emptyAt, now) + 1 / rate
      return true
    },
    quota(now) {
      const remaining = Math.floor(capacity - level(now) + 1e-6)
      const reset = inSeconds(level(now) / rate)
      return { limit: capacity, window: inSeconds(capacity / rate), remaining, reset, grain: 1_000 }
    },
  }
}

/** OpenAI and Anthropic: a full bucket of `limit` that refills evenly in a minute. The reset is when it will be full again. */
export function refilling(limit: number, grain: number): Upstream {
  const rate = limit / 60_000
  let fullAt = 0
  const missing = (now: number): number => Math.max(0, fullAt - now) * rate
  return {
    rate,
    take(now) {
      if (missing(now) + 1 > limit + 1e-6) return false
      fullAt = Math.max(fullAt, now) + 1 / rate
      return true
    },
    quota(now) {
      const reset = Math.ceil(missing(now) / rate / grain - 1e-9) * grain
      const remaining = Math.floor(limit - missing(now) + 1e-6)
      return { bucket: 'requests', limit, window: undefined, remaining, reset, grain }
    },
  }
}

export interface Outcome {
  /** The time and the outcome of each request. */
  readonly sent: readonly { readonly at: number; readonly admitted: boolean }[]
  /** The share of the quota that was used between two times. */
  used(from: number, to: number): number
  readonly rejectedAt: readonly number[]
}

export interface Conditions {
  readonly until: number
  readonly from?: number
  /** ms from a request to its answer. */
  readonly latency?: number
  /** The rate that the client never exceeds, in requests per ms. */
  readonly atMost?: number
  /** The times at which another client takes a request. */
  readonly others?: readonly number[]
}

/** A client that always has a next request and sends it as soon as the learned rate allows. */
export function pace(
  upstream: Upstream,
  { until, from = 0, latency = 0, atMost = Infinity, others = [] }: Conditions,
): Outcome {
  const learned = new LearnedRate()
  const sent: { at: number; admitted: boolean }[] = []
  const answers: { at: number; quota: Quota }[] = []
  let now = from
  let last = -Infinity
  let other = 0
  for (;;) {
    // The order within one instant: requests of others, answers, our own requests.
    while (other < others.length && others[other]! <= now) upstream.take(others[other++]!)
    while (answers.length > 0 && answers[0]!.at <= now) learned.learn(answers.shift()!.quota, now)
    const gap = 1 / Math.min(learned.allowed(now), atMost)
    const due = Math.max(last + gap, learned.pausedUntil, now)
    const next = Math.min(due, learned.expiresAt, answers[0]?.at ?? Infinity, others[other] ?? Infinity)
    if (next > now || due > now) {
      now = next
      if (now >= until) break
      continue
    }
    sent.push({ at: now, admitted: upstream.take(now) })
    answers.push({ at: now + latency, quota: upstream.quota(now) })
    last = now
  }
  const admitted = sent.filter(request => request.admitted)
  return {
    sent,
    used: (start, end) => admitted.filter(({ at }) => at >= start && at < end).length / ((end - start) * upstream.rate),
    rejectedAt: sent.filter(request => !request.admitted).map(({ at }) => at),
  }
}
