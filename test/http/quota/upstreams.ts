import type { Quota } from '../../../src/http/quota/field-values.js'
import { LearnedRate } from '../../../src/http/quota/learned-rate.js'

/** An upstream with a limit of its own, on virtual time. */
export interface Upstream {
  /** Requests that it lets through in ms, in the long run. */
  readonly rate: number
  /** Takes a request; false: 429. */
  take(now: number): boolean
  /** What it says in its answer. */
  quota(now: number): Quota
}

type Told = 'declared' | 'undeclared'

/** Rounded up to whole seconds, as most upstreams have it. */
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

/** @param says when the oldest request leaves the window, or its whole length, as many do */
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

/** Ours: `r` is what is free, `t` the time until it is empty, `w` the time it takes to drain from the brim. */
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

export interface Outcome {
  /** When each request was sent, and what became of it. */
  readonly sent: readonly { readonly at: number; readonly admitted: boolean }[]
  /** How much of what the upstream would let through was used between two times. */
  used(from: number, to: number): number
  readonly rejectedAt: readonly number[]
}

export interface Conditions {
  readonly until: number
  readonly from?: number
  /** ms from a request to its answer. */
  readonly latency?: number
  /** Requests per ms that the client would never exceed, told or not. */
  readonly atMost?: number
  /** When somebody else takes one. */
  readonly others?: readonly number[]
}

/** A client that always has a next request, and sends it as soon as the learned rate allows. */
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
    // In one instant: what others send, then the answers, then our own.
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
