/** What is told of a single key: its bucket, what a newcomer would wait, and how its latest requests ended. */
import { isAnyRate } from '../../config/derived/default-capacity.js'
import type { QuotaPeriod } from '../../core/bucket/limits.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import { defined } from '../../core/structures/defined.js'
import { ownValue } from '../../core/structures/own-value.js'
import type { Override } from '../../sharing/board.js'
import { StoredBucket } from '../../sharing/stored-bucket.js'
import { mergeRecent, type RecentRequest } from '../counters/recent-requests.js'
import { mergeHeldBy, mergeLevels, oldestOf } from '../snapshot/merge-snapshots.js'
import type { InstanceSnapshot } from '../snapshot/snapshot.js'

export interface KeyState extends Omit<InstanceSnapshot, 'overriddenUntil'> {
  /** ms since 1970 */
  readonly at: number
  readonly bucket: string
  /** As logs show the key. */
  readonly hash: string
  /** Its limits come from outside, not from the configuration. */
  readonly outside?: true
  readonly inFlight: number
  /** How many may be. Absent: any number. */
  readonly maxInFlight?: number
  readonly override?: OverrideState
  readonly routes: Readonly<Record<string, RouteOutlook>>
  readonly recent: readonly RecentRequest[]
}

export interface RouteOutlook {
  /** Where `heldBy` has entries it waits at least so long. */
  readonly predictedWaitMs: number
  /** What that wait comes from: `bucket NAME`, or the URL of the upstream and what is wrong with it. Absent: it does not wait. */
  readonly waitsFor?: string
  /** What else holds it, for an unknown time. Absent: nothing. */
  readonly heldBy?: readonly string[]
  /** Buckets whose key does not follow from this one. They are taken as idle. */
  readonly assumed: readonly string[]
  /** It would be rejected. Absent: it would not. */
  readonly rejected?: {
    readonly reason: string
    readonly bucket: string
    /** Absent: not known, or never. */
    readonly retryAfterMs?: number
  }
}

/** Other limits of a key, for a while. */
export interface OverrideState {
  readonly bucket: string
  readonly key: string
  /** Cost units per second. Absent: as configured. */
  readonly rate?: number
  /** Cost units. Absent: as configured. */
  readonly capacity?: number
  /** ISO 8601 */
  readonly until: string
}

/** @param wall ms since 1970 */
export function overrideState(override: Override, wall: number): OverrideState {
  const { bucket, key, rate, capacity } = override
  const perSecond = rate === undefined ? undefined : rate * 1_000
  return { bucket, key, ...defined({ rate: perSecond, capacity }), until: endOfOverride(override, wall) }
}

/** ISO 8601. @param wall ms since 1970 */
export function endOfOverride({ endsIn, until }: Override, wall: number): string {
  return new Date(until ?? wall + endsIn).toISOString()
}

export function instanceState(
  key: string,
  bucket: SharedBucket,
  now: number,
): Omit<InstanceSnapshot, 'predictedWaitMs'> {
  const { tier, rate, capacity, burst, quota } = bucket.limits.whole ?? bucket.limits
  const blocked = bucket.blockedFor(now)
  const { freeAt } = bucket
  return {
    ...{ key, ...defined({ tier, burst }) },
    rate: isAnyRate({ rate, capacity }) ? null : rate * 1_000,
    capacity: finiteOrNull(capacity),
    ...quotaEnds(quota),
    level: bucket.occupancy(now),
    ...unreportedOf(bucket),
    waiting: bucket.waiting,
    queued: bucket.queued,
    ...(freeAt < Infinity && { nextReleaseMs: Math.max(0, freeAt - now) }),
    ...(blocked > 0 && { blockedMs: blocked === Infinity ? -1 : blocked }),
  }
}

export function quotaEnds(quota: QuotaPeriod | undefined): { readonly quotaEnds?: string } {
  return quota === undefined ? {} : { quotaEnds: new Date(quota.end).toISOString() }
}

function unreportedOf(bucket: SharedBucket): Pick<InstanceSnapshot, 'unreported'> {
  const unreported = bucket instanceof StoredBucket ? bucket.unreported : 0
  return unreported === 0 ? {} : { unreported }
}

/** JSON has no other numbers. */
export function finiteOrNull(capacity: number): number | null {
  return capacity === Infinity ? null : capacity
}

/** What several processes know of one key. A newcomer may come to any of them. */
export function mergeKeyStates(parts: readonly KeyState[]): KeyState {
  const sum = (of: (part: KeyState) => number): number => parts.reduce((total, part) => total + of(part), 0)
  const longest = parts.reduce((one, other) => (other.predictedWaitMs > one.predictedWaitMs ? other : one))
  const queued = sum(part => part.queued)
  const routes = Object.entries(longest.routes).map(([name, outlook]) => {
    return [name, { ...outlook, ...mergeHeldBy(parts.flatMap(part => ownValue(part.routes, name) ?? [])) }] as const
  })
  return {
    ...longest,
    ...mergeHeldBy(parts),
    routes: Object.fromEntries(routes),
    ...mergeLevels(parts, queued),
    waiting: sum(part => part.waiting),
    queued,
    ...oldestOf(parts),
    inFlight: sum(part => part.inFlight),
    recent: mergeRecent(parts.map(({ recent }) => recent)),
  }
}

/**
 * With what other programs on the store tell of the key. All of them see one level. What they have admitted since they told it may be
 * reported by now. Room for which they have reported requests that have not come is mostly still unused.
 */
export function withOthers({ unreported: _, ...state }: KeyState, others: readonly InstanceSnapshot[]): KeyState {
  const waiting = others.reduce((sum, other) => sum + other.waiting, state.waiting)
  const queued = others.reduce((sum, other) => sum + other.queued, state.queued)
  const unused = others.reduce((sum, { unreported = 0 }) => sum + Math.min(0, unreported), 0)
  return { ...state, ...oldestOf([state, ...others]), waiting, queued, level: Math.max(state.level + unused, queued) }
}
