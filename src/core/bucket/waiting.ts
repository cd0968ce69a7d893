/**
 * What a bucket keeps only while requests wait for it or a block lasts. Most buckets of a proxy are those of clients
 * that have nothing queued, and there are many of them, so it is no part of the bucket.
 */

import { NONE } from '../structures/compact-list.js'
import type { DueHeap, Timed } from '../structures/due-heap.js'

/** A lane's place among those of one bucket: the heaviest is due first. */
export interface LaneRank<Lane> extends Timed {
  readonly lane: Lane
  readonly among: DueHeap<LaneRank<Lane>>
}

/** The waiting side of one bucket instance. On a schedule's timeline, by when the bucket is free, it has junctions. */
export class WaitingState<Junction, Lane> implements Timed {
  due = 0
  place = -1
  /** Cost of the requests that wait to pass through. */
  queued = 0
  /** How many those are. */
  waiting = 0
  /** No request that waits costs less. */
  leastCost = Infinity
  /** Where the lanes that contend for the bucket meet; none where it is there for a block only. Replaced, not changed. */
  junctions: readonly Junction[] = NONE
  /** All lanes, the heaviest first; made when first asked for. */
  heaviest: DueHeap<LaneRank<Lane>> | undefined = undefined
  /** The bucket's `freeAt` in ms, where it is not to move. */
  pinnedFreeAt: number | undefined = undefined
  /** What the bucket has been filled up with while requests waited: part of what it holds, and behind all of them. */
  fillBehindQueue = 0
  /** The time at which a block ends, in ms; Infinity: when drained. */
  blockedUntil: number | undefined = undefined
}
