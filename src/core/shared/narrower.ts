/** What holds back the requests that wait for a leased bucket: other buckets of their stacks let them through one after the other. */

import { allSources } from '../bucket/waiting.js'
import { Lane, type SharedBucket, type Source } from '../queue/lane.js'
import { FRAME } from '../store.js'
import type { StoredBucket } from './stored-bucket.js'

/** An instance gets slots by so much faster than it had them: its part may grow. */
const SHARE_ROOM = 1.15

/** Among more sources than this it is not looked at what each lane passes. */
export const MOST_SOURCES = 1_000

/**
 * A leased bucket that is no faster than this one, and that all passes as well that waits for this one here. Its slots are apart, so the claims
 * for them do not meet. Undefined: there is none.
 */
export function soleBeside(bucket: StoredBucket): StoredBucket | undefined {
  // Rates of different units do not compare.
  if (bucket.isMixed) return undefined
  let common: readonly SharedBucket[] | undefined
  const isSole = everyLane(bucket, ({ stack }) => {
    common = (common ?? stack).filter(other => isNarrower(other, bucket, stack))
    return common.length > 0
  })
  return isSole ? (common?.[0] as StoredBucket | undefined) : undefined
}

/** Whether all that waits for a bucket passes another one as well, as far as can be seen soon. */
export function allPass(bucket: SharedBucket, other: SharedBucket): boolean {
  return everyLane(bucket, ({ stack }) => stack.includes(other))
}

/**
 * How fast this instance can use slots of a bucket, in cost units per ms: each lane as fast as the narrowest bucket of its stack lets it. Of
 * a bucket that others lease as well that is about the part that this instance has of it. Slots that are even in both buckets of a stack meet.
 * A request whose own bucket is idle can use a slot at once, so it counts with one in this frame, and in any frame there is one slot. Infinity: as fast
 * as they come, or it cannot be seen soon.
 */
export function paceOf(bucket: StoredBucket, now: number): number {
  // Turns are those of the oldest request there, whichever instance has it.
  if (bucket.isMixed || bucket.shard.keepsOrder) return Infinity
  const counted = new Set<SharedBucket>()
  let pace = 0
  const isHeldBack = everyLane(bucket, ({ stack }) => {
    const narrowest = narrowestBeside(bucket, stack)
    if (narrowest === undefined) return false
    if (!counted.has(narrowest)) pace += paceThrough(narrowest, now)
    counted.add(narrowest)
    // A bucket with a burst lets several through at once.
    return pace < bucket.limits.rate && narrowest.limits.burst === undefined
  })
  return isHeldBack && pace > 0 ? Math.max(pace, bucket.leastCost / FRAME) : Infinity
}

function paceThrough({ limits, lease, slotShare, ownUntil, leastCost }: StoredBucket, now: number): number {
  const isIdle = lease === undefined && ownUntil <= now
  return limits.rate * Math.min(1, SHARE_ROOM * slotShare) + (isIdle ? leastCost / FRAME : 0)
}

/** Whether this holds for each lane that waits for a bucket. False: there are too many. */
function everyLane(bucket: SharedBucket, holds: (lane: Lane) => boolean): boolean {
  let seen = 0
  const holdsBelow = (source: Source): boolean => {
    seen += 1
    if (source instanceof Lane) return holds(source)
    if (seen + source.count > MOST_SOURCES) return false
    for (let at = source.first; at !== undefined; at = at.after) if (!holdsBelow(at)) return false
    return true
  }
  return allSources(bucket).every(holdsBelow)
}

/** Of two that are as fast the first one of a stack counts as the narrower one. */
function isNarrower(other: SharedBucket, bucket: SharedBucket, stack: readonly SharedBucket[]): boolean {
  const { lease, limits } = other as StoredBucket
  const [place, own] = [stack.indexOf(other), stack.indexOf(bucket)]
  if (place === -1 || place === own || lease === undefined || limits.burst !== undefined) return false
  return limits.rate < bucket.limits.rate || (limits.rate === bucket.limits.rate && place < own)
}

/** The narrowest bucket of a stack, if slots of this one are to be as far apart as those of that one. Undefined: they are not. */
function narrowestBeside(bucket: StoredBucket, stack: readonly SharedBucket[]): StoredBucket | undefined {
  let narrowest: SharedBucket = bucket
  for (const other of stack) if (other.limits.rate < narrowest.limits.rate) narrowest = other
  if (narrowest !== bucket) return narrowest as StoredBucket
  // Its own slots need to be even only to meet those of another bucket.
  return stack.some(other => other !== bucket && (other as StoredBucket).lease !== undefined) ? bucket : undefined
}
