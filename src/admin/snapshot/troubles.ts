/** What keeps requests from being served, in words: one text each, for the dashboard, `shaper top` and `shaper key`. */
import type { OnOutage } from '../../core/shared-shaper.js'
import { durationText } from '../../core/units.js'
import type { Upstream } from '../../proxy/upstream/upstream.js'
import { failureText } from '../../proxy/upstream/upstream-error.js'
import type { Snapshot, UpstreamSnapshot } from './snapshot.js'

/** ms. An upstream that has answered nothing for so long, and for twice its usual time, is told. */
const SILENCE = 5_000

/** The configuration of the file is not in effect. */
export interface FailedReload {
  /** ms since 1970 */
  readonly at: number
  readonly problems: readonly string[]
}

/** What is wrong, and what comes next. */
interface Trouble {
  readonly what: string
  readonly next: string
}

/** @param usual the time that its answers usually take, in ms. Undefined: not known */
export function upstreamSnapshot(upstream: Upstream, now: number, usual = 0): UpstreamSnapshot {
  const { settings, gate, quota, breaker, answer, answeredAt, clock } = upstream
  const allows = (quota?.rateOf('requests') ?? Infinity) * 1_000
  const { ran = 0, left = 0 } = answer.oldest ?? {}
  const ms = Math.min(ran, clock.now() - answeredAt)
  return {
    url: settings.url,
    inFlight: gate.inFlight,
    ...(gate.maxInFlight < Infinity && { maxInFlight: gate.maxInFlight }),
    ...(gate.isFull && gate.awaited && { isFull: true }),
    pausedMs: gate.pausedFor(now),
    ...(ms >= Math.max(SILENCE, 2 * usual) && { silent: { ms, givenUpMs: Math.max(0, left) } }),
    ...(breaker?.isOpen && { probeMs: breaker.retryAfter }),
    ...(breaker?.failure && { failure: failureText(breaker.failure) }),
    ...(Number.isFinite(allows) && { allows }),
  }
}

/** Undefined: there is none. Of several it is the worst. */
export function upstreamTrouble(upstream: UpstreamSnapshot): Trouble | undefined {
  const { inFlight, maxInFlight, isFull, pausedMs, silent, probeMs, failure } = upstream
  const sent = isFull ? `${inFlight} of ${maxInFlight} in flight` : `${inFlight} in flight`
  if (probeMs !== undefined) {
    const idle = inFlight > 0 ? 'being tried now' : 'tried again with the next request'
    const next = probeMs > 0 ? `tried again in ${durationText(probeMs)}` : idle
    return { what: `fails${failure === undefined ? '' : `: ${failure}`}`, next }
  }
  if (pausedMs > 0)
    return { what: 'has asked for a pause', next: `nothing is sent to it for ${durationText(pausedMs)} more` }
  if (silent !== undefined) {
    const next = `the first of these requests is given up in ${durationText(silent.givenUpMs)}`
    return { what: `has answered nothing for ${durationText(silent.ms)}, with ${sent}`, next }
  }
  return isFull ? { what: `is full, with ${sent}`, next: 'a request is sent when one of these is answered' } : undefined
}

/** A snapshot with its troubles in words. */
export function withTroubles(snapshot: Snapshot, reload?: FailedReload): Snapshot {
  const upstreams = snapshot.upstreams.map(upstream => {
    const trouble = upstreamTrouble(upstream)
    return trouble === undefined ? upstream : { ...upstream, trouble: `${trouble.what}; ${trouble.next}` }
  })
  const troubles = [
    ...upstreams.flatMap(({ url, trouble }) => (trouble === undefined ? [] : `${url} ${trouble}`)),
    ...storeTrouble(snapshot.store),
    ...(reload === undefined ? [] : reloadTrouble(reload, snapshot.at)),
  ]
  return { ...snapshot, upstreams, ...(troubles.length > 0 && { troubles: [...new Set(troubles)] }) }
}

function storeTrouble({ type, ready, reason, onOutage, instances }: Snapshot['store']): string[] {
  if (ready && reason === undefined) return []
  const what = `${ready ? 'a part of the store' : 'the store'} ${type} does not answer`
  const effect = onOutage === undefined ? '' : `: ${withoutStore(onOutage, instances)}`
  return [`${what}${reason === undefined ? '' : ` (${reason})`}${effect}; tried again all the time`]
}

/** What an instance does while its store is away. */
export function withoutStore(onOutage: OnOutage, instances: number): string {
  if (onOutage === 'closed') return 'rejecting what has limits'
  if (onOutage === 'open') return 'forwarding everything at once'
  return `going on alone, at 1/${instances} of the rates`
}

function reloadTrouble({ at, problems }: FailedReload, now: number): string[] {
  const since = durationText(Math.max(0, Math.round((now - at) / 1_000)) * 1_000)
  return [
    `the configuration was not reloaded ${since} ago (${problems.join('; ')}); the former one stays until the file changes`,
  ]
}
