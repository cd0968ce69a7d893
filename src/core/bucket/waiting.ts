/**
 * What a bucket keeps only while requests wait for it or a block lasts. Most buckets of a proxy have nothing queued, and
 * there are many of them, so this is an object of its own.
 */

import { NONE, withEntry, withoutEntry } from '../structures/compact-list.js'
import type { DueHeap, Timed } from '../structures/due-heap.js'

/** A lane's rank among those of one bucket: the heaviest is due first. */
export interface LaneRank<Lane> extends Timed {
  readonly lane: Lane
  readonly among: DueHeap<LaneRank<Lane>>
}

/** `place` is that in the heap of buckets that become free (ready-lanes.ts). */
export class WaitingState<Source, Lane> implements Timed {
  place = -1
  /** Cost of the requests that wait to pass. */
  queued = 0
  /** How many those are. */
  waiting = 0
  /** No waiting request costs less. Meaningless while none waits. */
  leastCost = 0
  /** Where the requests that wait come from: one source for each node after the bucket. While only a block lasts there is none. */
  source: Source | undefined = undefined
  /** All but the first. Replaced, not changed. */
  otherSources: readonly Source[] = NONE
  /** All lanes, the heaviest first. Made when first needed. */
  heaviest: DueHeap<LaneRank<Lane>> | undefined = undefined
  /** The bucket's `freeAt` in ms. Set while metered costs are held, so that they do not delay waiting requests. */
  pinnedFreeAt: number | undefined = undefined
  /** Part of what the bucket holds: the cost that an overflow added behind all waiting requests. */
  fillBehindQueue = 0
  /** Its next releases are armed: the core need not wake for them in time. */
  covered = false
  /** When a block ends, in ms. Infinity: when the bucket has drained. */
  blockedUntil: number | undefined = undefined
}

type Sources<Source> = Pick<WaitingState<Source, unknown>, 'source' | 'otherSources'>

export function addSource<Source>(to: Sources<Source>, source: Source): void {
  if (to.source === undefined) to.source = source
  else to.otherSources = withEntry(to.otherSources, source)
}

export function dropSource<Source>(from: Sources<Source>, source: Source): void {
  if (from.source !== source) from.otherSources = withoutEntry(from.otherSources, source)
  else {
    from.source = from.otherSources[0]
    if (from.source !== undefined) from.otherSources = withoutEntry(from.otherSources, from.source)
  }
}

export function replaceSource<Source>(among: Sources<Source>, source: Source, by: Source): void {
  if (among.source === source) among.source = by
  else among.otherSources = among.otherSources.map(other => (other === source ? by : other))
}

/** The source whose requests go on to a node. */
export function sourceBefore<Source extends { readonly parent: unknown }>(
  { source, otherSources }: Sources<Source>,
  node: Source['parent'],
): Source | undefined {
  if (source === undefined || source.parent === node) return source
  return otherSources.find(other => other.parent === node)
}

/** All of them, the one that is picked first at the front. */
export function allSources<Source>({ source, otherSources }: Sources<Source>): readonly Source[] {
  return source === undefined ? NONE : [source, ...otherSources]
}
