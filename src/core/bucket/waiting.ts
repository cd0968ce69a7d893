/**
 * What a bucket keeps only while requests wait for it or a block lasts. Most buckets of a proxy have nothing queued, and
 * there are many of them, so this is an object of its own.
 */

import { NONE } from '../structures/compact-list.js'
import type { DueHeap, Timed } from '../structures/due-heap.js'

/** A lane's rank among those of one bucket: the heaviest is due first. */
export interface LaneRank<Lane> extends Timed {
  readonly lane: Lane
  readonly among: DueHeap<LaneRank<Lane>>
}

/** `due` and `place` are those of the heap of buckets that become free (ready-lanes.ts). */
export class WaitingState<Node, Lane> implements Timed {
  due = 0
  place = -1
  /** Cost of the requests that wait to pass. */
  queued = 0
  /** How many those are. */
  waiting = 0
  /** No waiting request costs less. */
  leastCost = Infinity
  /** Where the lanes meet that contend for the bucket. Empty while only a block lasts. Replaced, not changed. */
  shareNodes: readonly Node[] = NONE
  /** All lanes, the heaviest first. Made when first needed. */
  heaviest: DueHeap<LaneRank<Lane>> | undefined = undefined
  /** The bucket's `freeAt` in ms. Set while metered costs are held, so that they do not delay waiting requests. */
  pinnedFreeAt: number | undefined = undefined
  /** Part of what the bucket holds: the cost that an overflow added behind all waiting requests. */
  fillBehindQueue = 0
  /** When a block ends, in ms. Infinity: when the bucket has drained. */
  blockedUntil: number | undefined = undefined
}
