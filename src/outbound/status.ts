import type { CallContext } from './call-context.js'

/** How many keys are listed. */
const LISTED = 20

/** One key. */
export interface KeyStatus {
  readonly key: string
  /** What its bucket holds, in cost units: those who wait, and what is left of those who have gone. */
  readonly level: number
  readonly queued: number
  /** Calls of `run`, `wrap` and requests of `shape` that have begun and not ended. */
  readonly inFlight: number
  /** ms; 0: not paused. */
  readonly pausedForMs: number
  /** ms until the next may go, whether or not one waits; 0: at once. */
  readonly nextReleaseMs: number
}

/** All of them. */
export interface ShaperStatus {
  readonly queued: number
  readonly inFlight: number
  /** How many keys are in use, or were lately. */
  readonly keys: number
  /** ms for which everything is paused, whatever is paused by key; 0: it is not. */
  readonly pausedForMs: number
  /** It has been drained, or is being. */
  readonly closed: boolean
  /** How far the store can be relied on; absent without one. */
  readonly store?: 'shared' | 'doubtful' | 'alone' | 'returning'
  /** The 20 keys whose buckets are fullest. */
  readonly fullest: readonly KeyStatus[]
}

export function keyStatus(traffic: CallContext, key: string): KeyStatus {
  const now = traffic.clock.now()
  const line = traffic.lines.get(key)
  const bucket = line?.stack[0]
  const pausedForMs = line?.gate.pausedFor(now) ?? traffic.pauses.allFor(now)
  return {
    key,
    level: bucket?.level(now) ?? 0,
    queued: line?.waiting ?? 0,
    inFlight: line?.running ?? 0,
    pausedForMs,
    nextReleaseMs: Math.max(0, pausedForMs, (bucket?.freeAt ?? 0) - now),
  }
}

export function shaperStatus(traffic: CallContext): ShaperStatus {
  const now = traffic.clock.now()
  const levels = Array.from(traffic.lines, ({ name, stack }) => ({ name, level: stack[0]?.level(now) ?? 0 }))
  const fullest = levels.sort((a, b) => b.level - a.level).slice(0, LISTED)
  return {
    queued: traffic.waiting.size,
    inFlight: traffic.running,
    keys: traffic.lines.size,
    pausedForMs: traffic.pauses.allFor(now),
    closed: traffic.closed,
    ...(traffic.sharing !== undefined && { store: traffic.sharing.state }),
    fullest: fullest.map(({ name }) => keyStatus(traffic, name)),
  }
}
