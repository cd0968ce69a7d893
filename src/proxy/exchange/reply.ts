import { predictedWait } from '../../core/admission/predicted-wait.js'
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import { costIn, type Rejection, type SharedBucket } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import type { Reply } from '../http/client.js'
import { limitHeaders, RETRY_SOON_MS, upstreamDown } from '../http/reply.js'
import type { GivenUp } from '../observe/observer.js'
import type { Route } from '../routing/route.js'

interface RejectedVisit {
  readonly arrival: Arrival
  /** ms. That of its route, or what its client prefers. */
  readonly maxWait: number
  readonly givenUp: GivenUp | undefined
}

export function rejectionReply(rejection: Rejection, route: Route, visit: RejectedVisit, now: number): Reply {
  const { reason, buckets, retryAfterMs } = rejection
  const { arrival } = visit
  if (reason === 'crowded') {
    return { status: 503, detail: 'too many requests are waiting or in flight', retryAfterMs: RETRY_SOON_MS }
  }
  if (reason === 'down') return upstreamDown(retryAfterMs!)
  if (reason === 'paused') return { status: 503, detail: 'the upstream asks for a pause', retryAfterMs }
  if (reason === 'unavailable') {
    const detail = 'the store of the limits does not answer'
    return { status: 503, detail, retryAfterMs: RETRY_SOON_MS, outage: true }
  }
  const [first] = buckets
  // No bucket applies to it.
  if (first === undefined) return { status: 429, detail: explainWait(route, visit, first, now), retryAfterMs }
  const retry = reason === 'in-flight' ? RETRY_SOON_MS : retryAfterMs
  return {
    status: route.buckets.find(({ settings }) => settings.name === first.limits.name)?.settings.status ?? 429,
    detail:
      reason === 'max-wait'
        ? explainWait(route, visit, first, now)
        : explain(rejection, first, costIn(arrival, first), now),
    // A policy without a quota is none.
    violated: buckets.filter(({ limits }) => limits.capacity < Infinity),
    retryAfterMs: retry,
    headers: limitHeaders(arrival.stack, buckets, now, {
      retryAfterMs: retry,
      misfit: reason === 'overflow' ? arrival : undefined,
    }),
  }
}

function explainWait(
  { lane, settings }: Route,
  { arrival, maxWait, givenUp }: RejectedVisit,
  bucket: SharedBucket | undefined,
  now: number,
): string {
  const isLost = givenUp && `clients stop waiting before the answer${timesOf(givenUp)}`
  if (lane.gate.pausedFor(now) > 0) {
    const limit = maxWait < settings.maxWait ? 'its "Prefer: wait"' : 'maxWait'
    return `the upstream asks for a pause, and ${isLost ?? `the wait would be longer than ${limit}`}`
  }
  if (bucket === undefined) return isLost!
  // The prediction counts classes, turns and bursts. The level does not.
  const text = `bucket "${bucket.limits.name}" would make it wait ${seconds(Math.max(0, predictedWait(arrival, now, 0)))}`
  return isLost === undefined ? text : `${text}, and ${isLost}`
}

function timesOf({ patience, source, service }: GivenUp): string {
  const who = source === 'known' ? 'this one waits' : 'most like this one wait'
  const takes = service === 0 ? '' : `, and answers take ${seconds(service)}`
  return `: ${who} ${seconds(patience)}${takes}`
}

function seconds(ms: number): string {
  return `${short(ms / 1_000)} s`
}

function explain({ reason, evicted }: Rejection, bucket: SharedBucket, cost: number, now: number): string {
  const { name, capacity, quota } = bucket.limits
  const level = bucket.level(now)
  if (reason === 'in-flight')
    return `bucket "${name}" has ${bucket.inFlight} in flight and may have ${bucket.limits.maxInFlight}`
  if (reason === 'too-costly') return `the cost ${short(cost)} can never fit bucket "${name}" of ${short(capacity)}`
  if (reason === 'blocked') return `bucket "${name}" has overflowed and is blocked for a while`
  const kept = bucket.reserved(now)
  // Rounded up: with less it would have had room.
  const held = Math.ceil(Math.max(level, bucket.queued) * 100 - LEVEL_TOLERANCE) / 100
  const tickets = kept > 0 ? `, and ${short(kept)} kept for clients with a ticket` : ''
  const left = capacity - held - kept
  // With a store others may have leased the rest.
  const lacks = left > cost ? ', and the rest is for other instances' : `, and this request costs ${short(cost)}`
  if (quota !== undefined) {
    const most = left > 0 ? `, and this request costs ${short(cost)}` : ''
    const until = new Date(quota.end).toISOString().replace('.000', '')
    return `the quota of bucket "${name}" is used up until ${until}: ${short(held)} of ${short(capacity)}${most}`
  }
  const full = `bucket "${name}" is full: ${short(held)} of ${short(capacity)}${tickets}${left > 0 && !evicted ? lacks : ''}`
  return evicted ? `${full}, and this request made room for another` : full
}

function short(value: number): string {
  return String(Math.round(value * 100) / 100)
}
