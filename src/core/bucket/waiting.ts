/** What a bucket keeps of the requests that wait for it, beside their number and cost (queued-bucket.ts). */
import { NONE, withoutEntry } from '../structures/compact-list.js'
import { DueHeap, type Timed } from '../structures/due-heap.js'
import type { Promises } from './promises.js'

export interface LaneRank<Lane> extends Timed {
  readonly lane: Lane
  readonly among: Ranking<Lane>
}

/** The lanes of one priority at a bucket, the one that is to make room first in front. */
export class Ranking<Lane> extends DueHeap<LaneRank<Lane>> {
  /** @param by the heaviest lane is the first, or the one with the newest request */
  constructor(
    readonly priority: number,
    readonly by: 'weight' | 'age',
  ) {
    super()
  }
}

/** A request, as far as the upstream is concerned to which it goes. */
export interface Held {
  readonly route: { readonly gate: object }
}

/** What few buckets need, while requests wait for them or a block lasts. So it is an object of its own. */
export class WaitingExtras<Source, Lane> {
  otherSources: readonly Source[] = NONE
  rankings: readonly Ranking<Lane>[] = NONE
  /** What each class owes to those behind it (queue/ready-lanes.ts), in cost units by priority. Undefined: nothing. */
  owed: number[] | undefined = undefined
  /** The bucket's `drainedAt` in ms. Set while metered costs are held, so that they do not delay waiting requests. */
  pinnedDrainedAt: number | undefined = undefined
  fillBehindQueue = 0
  nextCost = 0
  aside = 0
  mixed = 0
  held: readonly Held[] = NONE
  /** When a block ends, in ms. Infinity: when the bucket has drained. */
  blockedUntil: number | undefined = undefined
  /** When rejected clients were told to come back. Undefined: nothing is promised. */
  promises: Promises | undefined = undefined
}

interface Sources<Source> {
  source: Source | undefined
  readonly extras: { otherSources: readonly Source[] } | undefined
  openExtras(): { otherSources: readonly Source[] }
}

/** The last one is picked first: a newcomer has its turn after all that are there. */
export function addSource<Source>(to: Sources<Source>, source: Source): void {
  const before = to.source
  to.source = source
  if (before === undefined) return
  const extras = to.openExtras()
  extras.otherSources = [before, ...extras.otherSources]
}

export function dropSource<Source>(from: Sources<Source>, source: Source): void {
  const { extras } = from
  let gone: Source | undefined = source
  if (from.source === source) {
    // The next one takes its place.
    gone = extras?.otherSources[0]
    from.source = gone
  }
  if (extras !== undefined && gone !== undefined) extras.otherSources = withoutEntry(extras.otherSources, gone)
}

export function replaceSource<Source>(among: Sources<Source>, source: Source, by: Source): void {
  if (among.source === source) among.source = by
  else {
    const extras = among.openExtras()
    extras.otherSources = extras.otherSources.map(other => (other === source ? by : other))
  }
}

/** The source whose requests go on to a node. */
export function sourceBefore<Source extends { readonly parent: unknown }>(
  { source, extras }: Sources<Source>,
  node: Source['parent'],
): Source | undefined {
  if (source === undefined || source.parent === node) return source
  return extras?.otherSources.find(other => other.parent === node)
}

export function allSources<Source>({ source, extras }: Sources<Source>): readonly Source[] {
  return source === undefined ? NONE : [source, ...(extras?.otherSources ?? NONE)]
}
