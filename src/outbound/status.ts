import type { CallContext } from './call-context.js'

/** Keys listed in `fullest`. */
const LISTED = 20

/** The status of one key. */
export interface KeyStatus {
  /** Its queue. */
  readonly key: string
  /** The level of its bucket, of several that of the last, in cost units: waiting calls, and what is left of released ones. */
  readonly level: number
  /** Of several buckets, the level of each by its name. */
  readonly levels?: Readonly<Record<string, number>>
  /** Waiting calls. */
  readonly queued: number
  /** Calls of `run`, `wrap` and requests of `shape` that have begun and not ended. */
  readonly inFlight: number
  /** ms; 0: not paused. */
  readonly pausedForMs: number
  /** ms until all its buckets let the next call pass, even if none waits. 0: at once. */
  readonly nextReleaseMs: number
}

/** The status of a shaper. */
export interface ShaperStatus {
  /** Waiting calls. */
  readonly queued: number
  /** Running calls, of `run` and of `shape`. */
  readonly inFlight: number
  /** Keys in use, now or recently. */
  readonly keys: number
  /** ms that the pause of all keys still lasts. 0: there is none. Pauses of single keys do not count. */
  readonly pausedForMs: number
  /** It has been drained, or drains now. */
  readonly closed: boolean
  /** The state of the store; absent without one. */
  readonly store?: 'shared' | 'doubtful' | 'alone' | 'returning'
  /** The 20 keys whose buckets are fullest. */
  readonly fullest: readonly KeyStatus[]
}

export function keyStatus(context: CallContext, key: string): KeyStatus {
  const now = context.clock.now()
  const queue = context.queues.get(key)
  const stack = queue?.stack ?? []
  const releases = stack.map(bucket => bucket.freeFor(bucket.nextCost || 1) - now)
  const pausedForMs = queue?.gate.pausedFor(now) ?? context.pauses.allFor(now)
  return {
    key,
    level: stack.at(-1)?.level(now) ?? 0,
    ...(context.names && { levels: Object.fromEntries(stack.map(bucket => [bucket.limits.name, bucket.level(now)])) }),
    queued: queue?.waiting ?? 0,
    inFlight: queue?.running ?? 0,
    pausedForMs,
    nextReleaseMs: Math.max(0, pausedForMs, ...releases),
  }
}

export function shaperStatus(context: CallContext): ShaperStatus {
  const now = context.clock.now()
  const levels = Array.from(context.queues, ({ name, stack }) => ({ name, level: stack.at(-1)?.level(now) ?? 0 }))
  const fullest = levels.sort((a, b) => b.level - a.level).slice(0, LISTED)
  return {
    queued: context.waiting.size,
    inFlight: context.running,
    keys: context.queues.size,
    pausedForMs: context.pauses.allFor(now),
    closed: context.closed,
    ...(context.sharing !== undefined && { store: context.sharing.state }),
    fullest: fullest.map(({ name }) => keyStatus(context, name)),
  }
}
