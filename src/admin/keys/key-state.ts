/** What is told of a single key: its bucket, what a newcomer would wait, and how its latest requests ended. */
import type { Override } from '../../core/board.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import { mergeRecent, type RecentRequest } from '../counters/recent-requests.js'
import type { InstanceSnapshot } from '../snapshot/snapshot.js'

export interface KeyState extends Omit<InstanceSnapshot, 'overriddenUntil'> {
  /** ms since 1970 */
  readonly at: number
  readonly bucket: string
  /** As logs show the key. */
  readonly hash: string
  readonly inFlight: number
  readonly override?: OverrideState
  /** What a newcomer would meet on each route. */
  readonly routes: Readonly<Record<string, RouteOutlook>>
  /** The latest last. */
  readonly recent: readonly RecentRequest[]
}

export interface RouteOutlook {
  readonly predictedWaitMs: number
  /** Buckets whose key does not follow from this one. They are taken as idle. */
  readonly assumed: readonly string[]
  /** It would be rejected. Absent: it would not. */
  readonly rejected?: {
    readonly reason: string
    /** Empty: no bucket would reject it. */
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
export function overrideState({ bucket, key, rate, capacity, endsIn }: Override, wall: number): OverrideState {
  return {
    ...{ bucket, key },
    ...(rate !== undefined && { rate: rate * 1_000 }),
    ...(capacity !== undefined && { capacity }),
    until: new Date(wall + endsIn).toISOString(),
  }
}

/** What an instance tells of itself. */
export function instanceState(
  key: string,
  bucket: SharedBucket,
  now: number,
): Omit<InstanceSnapshot, 'predictedWaitMs'> {
  const { tier, rate, capacity, burst } = bucket.limits.whole ?? bucket.limits
  const blocked = bucket.blockedFor(now)
  return {
    key,
    ...(tier !== undefined && { tier }),
    rate: rate * 1_000,
    capacity: finiteOrNull(capacity),
    ...(burst !== undefined && { burst }),
    level: bucket.occupancy(now),
    waiting: bucket.waiting,
    queued: bucket.queued,
    ...(blocked > 0 && { blockedMs: blocked === Infinity ? -1 : blocked }),
  }
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
  return {
    ...longest,
    // All of them see one level, that of the store. What waits counts in each.
    level: Math.max(queued, ...parts.map(({ level }) => level)),
    waiting: sum(part => part.waiting),
    queued,
    inFlight: sum(part => part.inFlight),
    recent: mergeRecent(parts.map(({ recent }) => recent)),
  }
}
