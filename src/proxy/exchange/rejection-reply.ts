import type { Rejection, SharedBucket } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import { limitHeaders, RETRY_SOON_MS, type Reply, upstreamDown } from '../http/reply.js'
import type { GivenUp } from '../observe/observer.js'
import type { Route } from '../routing/route.js'

const LONG_PAUSE = 'the upstream asks for a pause, and the wait would be longer than maxWait'

interface RejectedVisit {
  readonly arrival: Arrival
  readonly givenUp: GivenUp | undefined
}

/** The answer to a request that was not admitted. */
export function rejectionReply(
  { reason, buckets, retryAfterMs }: Rejection,
  route: Route,
  { arrival: { stack, cost }, givenUp }: RejectedVisit,
  now: number,
): Reply {
  if (reason === 'crowded') {
    return { status: 503, detail: 'too many requests are waiting or in flight', retryAfterMs: RETRY_SOON_MS }
  }
  if (reason === 'down') return upstreamDown(retryAfterMs!)
  if (reason === 'paused') return { status: 503, detail: 'the upstream asks for a pause', retryAfterMs }
  if (reason === 'unavailable') {
    return { status: 503, detail: 'the store of the limits does not answer', retryAfterMs: RETRY_SOON_MS }
  }
  const [first] = buckets
  // No bucket applies to it, and a pause is longer than its `maxWait`.
  if (first === undefined) return { status: 429, detail: LONG_PAUSE, retryAfterMs }
  const retry = reason === 'in-flight' ? RETRY_SOON_MS : retryAfterMs
  return {
    status: route.buckets.find(({ settings }) => settings.name === first.limits.name)?.settings.status ?? 429,
    detail: reason === 'max-wait' ? explainWait(route, first, now, givenUp) : explain(reason, first, cost, now),
    // A policy without a quota is none.
    violated: buckets.filter(({ limits }) => limits.capacity < Infinity),
    retryAfterMs: retry,
    headers: limitHeaders(stack, buckets, now, retry),
  }
}

function explainWait(route: Route, bucket: SharedBucket, now: number, givenUp?: GivenUp): string {
  if (route.lane.gate.pausedFor(now) > 0) {
    return LONG_PAUSE
  }
  const { name, rate } = bucket.limits
  const wait = `bucket "${name}" would make it wait ${short(bucket.level(now) / rate / 1_000)} s`
  return givenUp === undefined ? wait : `${wait}, and clients stop waiting before the answer`
}

function explain(reason: Rejection['reason'], bucket: SharedBucket, cost: number, now: number): string {
  const { name, capacity } = bucket.limits
  const level = bucket.level(now)
  if (reason === 'in-flight')
    return `bucket "${name}" has ${bucket.inFlight} in flight and may have ${bucket.limits.maxInFlight}`
  if (reason === 'too-costly') return `the cost ${short(cost)} can never fit bucket "${name}" of ${short(capacity)}`
  if (reason === 'blocked') return `bucket "${name}" has overflowed and is blocked for a while`
  return `bucket "${name}" is full: ${short(level)} of ${short(capacity)}`
}

function short(value: number): string {
  return String(Math.round(value * 100) / 100)
}
