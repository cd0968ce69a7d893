/** What keeps requests from being served, in words: one text each, for the dashboard, `shaper top` and `shaper key`. */

import { durationText } from '../../core/units.js'
import type { Upstream } from '../../proxy/upstream/upstream.js'
import { failureText } from '../../proxy/upstream/upstream-error.js'
import type { UpstreamServer } from '../../proxy/upstream/upstream-server.js'
import type { OnOutage } from '../../sharing/shard.js'
import { isRefusal } from '../../stores/describe-error.js'
import type { ServerSnapshot, Snapshot, UpstreamSnapshot } from './snapshot.js'

/** ms. An upstream that has answered nothing for so long, and for twice its usual time, is told. */
const SILENCE = 5_000
/** Servers that are named in one text. */
const MOST_NAMED = 3

/** The configuration of the file is not in effect. */
export interface FailedReload {
  /** ms since 1970 */
  readonly at: number
  readonly problems: readonly string[]
}

interface Trouble {
  readonly what: string
  readonly next: string
}

/** @param usual the time that its answers usually take, in ms. Undefined: not known */
export function upstreamSnapshot(upstream: Upstream, now: number, usual = 0): UpstreamSnapshot {
  const { settings, gate, quota, answer, answeredAt, clock, failure, servers } = upstream
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
    ...(upstream.isDown && { probeMs: upstream.retryAfter }),
    ...(failure && { failure: failureText(failure) }),
    ...(Number.isFinite(allows) && { allows }),
    ...((settings.servers ?? servers.length > 1) && {
      servers: servers.map(each => serverSnapshot(each, clock.now())),
    }),
  }
}

function serverSnapshot({ url, place, breaker, check }: UpstreamServer, now: number): ServerSnapshot {
  const { rules, isUp, part, isDown, sent } = place
  // Its check is asked first, as in the core.
  const judge = isDown ? check : breaker
  const failure = isUp ? undefined : judge?.failure
  return {
    url,
    isUp,
    inFlight: sent,
    ...(rules.maxInFlight < Infinity && { maxInFlight: rules.maxInFlight }),
    weight: rules.weight,
    backup: rules.backup,
    ...(part < 1 && { part }),
    ...(!isUp && { probeMs: Math.max(0, (judge?.nextProbeAt ?? now) - now) }),
    ...(failure && { failure: failureText(failure) }),
  }
}

/** How texts call it. With a list of servers its URL is that of all. */
export function upstreamName({ url, servers }: UpstreamSnapshot): string {
  if (servers === undefined) return url
  return servers.length === 1 ? servers[0]!.url : `${servers[0]!.url} (and ${servers.length - 1} more)`
}

/** Undefined: there is none. Of several it is the worst. */
export function upstreamTrouble(upstream: UpstreamSnapshot): Trouble | undefined {
  const { inFlight, maxInFlight, isFull, pausedMs, silent, probeMs, failure, servers = [] } = upstream
  const sent = isFull ? `${inFlight} of ${maxInFlight} in flight` : `${inFlight} in flight`
  if (probeMs !== undefined) {
    const idle = inFlight > 0 ? 'being tried now' : 'tried again with the next request'
    const next = probeMs > 0 ? `tried again in ${durationText(probeMs)}` : idle
    const causes = [
      ...(servers.length > 1 ? [`all ${servers.length} servers are down`] : []),
      ...(failure ? [failure] : []),
    ]
    return { what: `fails${causes.length === 0 ? '' : `: ${causes.join('; ')}`}`, next }
  }
  if (pausedMs > 0)
    return { what: 'has asked for a pause', next: `nothing is sent to it for ${durationText(pausedMs)} more` }
  if (silent !== undefined) {
    const next = `the first of these requests is given up in ${durationText(silent.givenUpMs)}`
    return { what: `has answered nothing for ${durationText(silent.ms)}, with ${sent}`, next }
  }
  return isFull ? { what: `is full, with ${sent}`, next: 'a request is sent when one of these is answered' } : undefined
}

/** Some of its servers are down, and others take their requests. */
function serversTrouble({ servers = [], probeMs }: UpstreamSnapshot): string[] {
  const down = servers.filter(({ isUp }) => !isUp)
  if (down.length === 0 || probeMs !== undefined || servers.length === 1) return []
  const named = down.slice(0, MOST_NAMED).map(({ url, failure = 'its last check passed' }) => `${url} (${failure})`)
  if (down.length > MOST_NAMED) named.push(`${down.length - MOST_NAMED} more`)
  const next = Math.min(...down.map(server => server.probeMs ?? 0))
  const again = next > 0 ? `tried again in ${durationText(next)}` : 'being tried, or tried again with the next request'
  return [
    `${down.length} of ${servers.length} servers ${down.length === 1 ? 'is' : 'are'} down: ${named.join(', ')}; ${again}`,
  ]
}

export function withTroubles(snapshot: Snapshot, reload?: FailedReload): Snapshot {
  const all: string[] = []
  const upstreams = snapshot.upstreams.map(upstream => {
    const trouble = upstreamTrouble(upstream)
    const whole = trouble === undefined ? [] : [`${trouble.what}; ${trouble.next}`]
    const parts = serversTrouble(upstream)
    all.push(...whole.map(text => `${upstreamName(upstream)} ${text}`), ...parts)
    const own = [...whole, ...parts]
    return own.length === 0 ? upstream : { ...upstream, trouble: own.join('. ') }
  })
  const troubles = [
    ...all,
    ...storeTrouble(snapshot.store),
    ...(reload === undefined ? [] : reloadTrouble(reload, snapshot.at)),
  ]
  return { ...snapshot, upstreams, ...(troubles.length > 0 && { troubles: [...new Set(troubles)] }) }
}

function storeTrouble({ type, ready, reason, onOutage, instances }: Snapshot['store']): string[] {
  if (ready && reason === undefined) return []
  const fails = isRefusal(reason) ? 'refuses' : 'does not answer'
  const what = `${ready ? 'a part of the store' : 'the store'} ${type} ${fails}`
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
