/** What an instance shows of itself to the other instances on its store, and how they read it. */
import type { Board, View } from '../../sharing/board.js'
import type { BucketSnapshot, MemberSnapshot, RouteSnapshot, Snapshot } from '../snapshot/snapshot.js'

export interface FleetMember {
  /** Unique among all instances. */
  readonly id: string
  readonly name: string
  readonly age: number
  readonly snapshot: Snapshot
  /** Sums over all routes. The snapshot of another instance may be without its routes. */
  readonly passed: Passed
  /** Seconds of CPU time since its start. */
  readonly cpu: number
}

type Passed = Pick<MemberSnapshot, 'forwarded' | 'rejected' | 'errors'>

/** @param broken the answers 5xx of the upstreams of a route */
export function passedOf<T extends Pick<RouteSnapshot, 'outcomes'>>(
  routes: Iterable<T>,
  broken: (route: T) => number,
): Passed {
  const sums = { forwarded: 0, rejected: 0, errors: 0 }
  for (const route of routes) {
    sums.forwarded += route.outcomes.forwarded
    sums.rejected += route.outcomes.rejected
    sums.errors += broken(route) + route.outcomes.failed
  }
  return sums
}

/** Instances of another version may show something else. */
const FORMAT = 4
/** Bytes. An instance shows no more, whatever the number of keys, buckets and routes. */
export const LARGEST_VIEW = 32 * 1_024

/** The text that others read: as much of the snapshot as fits. Undefined: not even the totals do. */
export function writeView({ name, snapshot, passed, cpu }: FleetMember): string | undefined {
  const write = (compact: Snapshot): string => JSON.stringify({ format: FORMAT, name, passed, cpu, snapshot: compact })
  for (const step of STEPS) {
    const text = write(reduced(snapshot, step))
    if (Buffer.byteLength(text) <= LARGEST_VIEW) return text
  }
  // With hundreds of routes or buckets these are left out. `passed` has their sums.
  const text = write({ ...reduced(snapshot, STEPS[3]), buckets: [], routes: [], upstreams: [] })
  return Buffer.byteLength(text) <= LARGEST_VIEW ? text : undefined
}

/** Undefined: it is of another version. Its times are moved to `wallNow`, because clocks of machines differ. */
export function readView({ id, text, age }: View, wallNow: number): FleetMember | undefined {
  try {
    const { format, name, passed, cpu, snapshot } = JSON.parse(text) as FleetMember & { format: number }
    if (format !== FORMAT) return undefined
    return { id, name, age, passed, cpu, snapshot: moved(snapshot, wallNow - age - snapshot.at) }
  } catch {
    return undefined
  }
}

function moved(snapshot: Snapshot, by: number): Snapshot {
  const all = (moments: readonly number[]): number[] => moments.map(moment => moment + by)
  return { ...snapshot, at: snapshot.at + by, buckets: snapshot.buckets.map(bucket => withMoments(bucket, all)) }
}

function withMoments(
  { focus, ...bucket }: BucketSnapshot,
  change: (all: readonly number[]) => readonly number[],
): BucketSnapshot {
  if (focus === undefined) return bucket
  const [arrivals, releases, rejections] = [focus.arrivals, focus.releases, focus.rejections].map(change)
  return { ...bucket, focus: { ...focus, arrivals: arrivals!, releases: releases!, rejections: rejections! } }
}

/** How much is kept: keys of each bucket, moments of its fullest key, keys of dry runs. Each step is smaller. */
const STEPS = [
  { keys: 10, moments: 64, dryRuns: 20 },
  { keys: 5, moments: 16, dryRuns: 10 },
  { keys: 2, moments: 0, dryRuns: 5 },
  { keys: 0, moments: 0, dryRuns: 0 },
] as const

type Step = (typeof STEPS)[number]
/** ms. Older moments were shown before. */
const RECENT = 2_500

function reduced(snapshot: Snapshot, step: Step): Snapshot {
  const { dryRun, buckets, at } = snapshot
  return {
    ...snapshot,
    buckets: buckets.map(bucket => reducedBucket(bucket, step, at)),
    ...(dryRun && { dryRun: { ...dryRun, keys: dryRun.keys.slice(0, step.dryRuns) } }),
  }
}

function reducedBucket({ focus, ...bucket }: BucketSnapshot, { keys, moments }: Step, at: number): BucketSnapshot {
  const latest = (all: readonly number[]): number[] =>
    all
      .slice(-moments)
      .filter(moment => moment > at - RECENT)
      .map(moment => Math.round(moment * 10) / 10)
  const reduced = { ...bucket, fullest: bucket.fullest.slice(0, keys) }
  return focus && moments > 0 ? withMoments({ ...reduced, focus }, latest) : reduced
}

/** ms */
const INTERVAL = 1_000

/** The text of an instance that has left. No reader takes it for a view, of whatever version it is. */
const LEFT = ''

/** Goes on while the instance drains. Returns how to end it: then the others see at once that it is not there any more. */
export function startShowing(board: Board, self: () => Promise<FleetMember>): () => Promise<void> {
  let underWay: Promise<void> | undefined
  let shownAs: string | undefined
  const show = async (): Promise<void> => {
    try {
      const member = await self()
      const text = writeView(member)
      if (text === undefined) return
      shownAs = member.id
      await board.show('present', member.id, text)
    } catch {
      // The store is away: the others see that this instance is missing, and it shows itself again later.
    }
  }
  const next = (): void => {
    underWay ??= show().finally(() => {
      underWay = undefined
    })
  }
  next()
  // Not all instances at the same moment.
  const timer = setInterval(next, INTERVAL * (0.95 + 0.1 * Math.random())).unref()
  return async () => {
    clearInterval(timer)
    // A view that arrived later would be seen for as long as that of a crashed instance.
    await underWay
    if (shownAs !== undefined) await board.show('present', shownAs, LEFT)
  }
}
