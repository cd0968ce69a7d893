import { groupedBy } from '../../core/structures/maps.js'
import type {
  BucketSnapshot,
  DryRunSnapshot,
  InstanceSnapshot,
  PatienceSnapshot,
  Quantiles,
  RouteSnapshot,
  ServerSnapshot,
  Snapshot,
  UpstreamSnapshot,
  WatchedSnapshot,
} from './snapshot.js'

const MOST = { instances: 20, moments: 256, keys: 50 }

/** @param all at least one snapshot */
export function mergeSnapshots(all: readonly Snapshot[]): Snapshot {
  const [first, ...more] = all
  if (more.length === 0) return first!
  const dryRuns = all.flatMap(({ dryRun }) => dryRun ?? [])
  return {
    at: Math.max(...all.map(({ at }) => at)),
    uptime: Math.max(...all.map(({ uptime }) => uptime)),
    ...sums(all, 'processes', 'queued', 'inFlight'),
    draining: all.every(({ draining }) => draining),
    store: {
      // Of one that is without the store it says why.
      ...(all.find(({ store }) => store.reason !== undefined) ?? first!).store,
      ready: all.some(({ store }) => store.ready),
      instances: Math.max(...all.map(({ store }) => store.instances)),
    },
    ...oldestOf(all),
    buckets: byName(all.flatMap(({ buckets }) => buckets)).map(mergeBuckets),
    routes: byName(all.flatMap(({ routes }) => routes)).map(mergeRoutes),
    upstreams: mergedBy(
      all.flatMap(({ upstreams }) => upstreams),
      ({ url }) => url,
      mergeUpstreams,
    ),
    wait: mergeQuantiles(all.map(({ wait }) => wait)),
    lateness: mergeQuantiles(all.map(({ lateness }) => lateness)),
    ...(dryRuns.length > 0 && { dryRun: mergeDryRuns(dryRuns) }),
  }
}

function sum<T>(list: readonly T[], of: (item: T) => number): number {
  return list.reduce((total, item) => total + of(item), 0)
}

function sums<Figure extends string>(parts: readonly Readonly<Record<Figure, number>>[], ...figures: Figure[]) {
  const all = figures.map(figure => [figure, sum(parts, part => part[figure])])
  return Object.fromEntries(all) as Record<Figure, number>
}

/** The longest wait of those that wait in several processes. */
export function oldestOf(parts: readonly { readonly oldestMs?: number }[]): { readonly oldestMs?: number } {
  const oldest = parts.flatMap(({ oldestMs }) => oldestMs ?? [])
  return oldest.length === 0 ? {} : { oldestMs: Math.max(...oldest) }
}

function byName<T extends { readonly name: string }>(all: readonly T[]): T[][] {
  return [...groupedBy(all, ({ name }) => name).values()]
}

/** One for each key: those that have it, merged one after the other. */
export function mergedBy<T>(all: readonly T[], keyOf: (each: T) => string, merge: (one: T, other: T) => T): T[] {
  return Array.from(groupedBy(all, keyOf).values(), alike => alike.reduce((one, other) => merge(one, other)))
}

function mergeBuckets(parts: readonly BucketSnapshot[]): BucketSnapshot {
  const fullest = mergeFullest(parts.flatMap(({ fullest }) => fullest))
  const focused = parts.flatMap(({ focus }) => focus ?? [])
  const place = (key: string): number => fullest.findIndex(instance => instance.key === key) >>> 0
  const rates = parts.flatMap(({ perSecond }) => perSecond ?? [])
  const fullestKey = focused.map(({ key }) => key).sort((a, b) => place(a) - place(b))[0]
  return {
    ...parts[0]!,
    keys: Math.max(...parts.map(({ keys }) => keys)),
    ...sums(parts, 'offered', 'released', 'rejected', 'queued', 'waiting'),
    ...(rates.length > 0 && { perSecond: sums(rates, 'offered', 'released', 'rejected') }),
    ...oldestOf(parts),
    fullest: fullest.slice(0, MOST.instances),
    ...(fullestKey !== undefined && { focus: mergeFocus(focused.filter(({ key }) => key === fullestKey)) }),
  }
}

type Focus = NonNullable<BucketSnapshot['focus']>

/** @param watching of one key, at least one */
function mergeFocus(watching: readonly Focus[]): Focus {
  const moments = (of: (one: Focus) => readonly number[]): number[] =>
    watching
      .flatMap(of)
      .sort((a, b) => a - b)
      .slice(-MOST.moments)
  return {
    key: watching[0]!.key,
    ...sums(watching, 'watchers'),
    arrivals: moments(({ arrivals }) => arrivals),
    releases: moments(({ releases }) => releases),
    rejections: moments(({ rejections }) => rejections),
  }
}

/** What the processes of one program tell of a key. Undefined: none of them knows its bucket. */
export function mergeWatched(parts: readonly WatchedSnapshot[]): WatchedSnapshot | undefined {
  const [first] = parts
  return (
    first && {
      bucket: first.bucket,
      instance: parts.map(({ instance }) => instance).reduce(mergeStates),
      ...sums(parts, 'offered', 'released', 'rejected'),
      focus: mergeFocus(parts.map(({ focus }) => focus)),
    }
  )
}

/** With what other programs on the store list of the key. What it has asked of them is not known. */
export function watchedWithOthers(watched: WatchedSnapshot, others: readonly InstanceSnapshot[]): WatchedSnapshot {
  return { ...watched, instance: [watched.instance, ...others].reduce(mergeStates) }
}

type InstanceState = WatchedSnapshot['instance']

/** One key in two processes. One may know a level or a block that the other has not yet heard of from the store. */
function mergeStates(one: InstanceState, other: InstanceState): InstanceState {
  const queued = one.queued + other.queued
  const blocks = [one, other].flatMap(({ blockedMs }) => blockedMs ?? [])
  const releases = [one, other].flatMap(({ nextReleaseMs }) => nextReleaseMs ?? [])
  return {
    ...other,
    ...one,
    ...mergeLevels([one, other], queued),
    waiting: one.waiting + other.waiting,
    queued,
    ...oldestOf([one, other]),
    ...(releases.length > 0 && { nextReleaseMs: Math.min(...releases) }),
    ...(blocks.length > 0 && { blockedMs: blocks.includes(-1) ? -1 : Math.max(...blocks) }),
  }
}

/** All processes see one level, that of the store, and each knows better what it has admitted itself. What waits counts in each. */
export function mergeLevels(
  parts: readonly Pick<InstanceState, 'level' | 'unreported'>[],
  queued: number,
): Pick<InstanceState, 'level' | 'unreported'> {
  const unreported = sum(parts, part => part.unreported ?? 0)
  const reported = Math.max(...parts.map(part => part.level - (part.unreported ?? 0)))
  return {
    level: Math.max(queued, reported + unreported),
    ...(parts.some(part => part.unreported !== undefined) && { unreported }),
  }
}

/** A newcomer may come to any of the processes. */
export function mergeInstances(one: InstanceSnapshot, other: InstanceSnapshot): InstanceSnapshot {
  return {
    ...other,
    ...one,
    ...mergeStates(one, other),
    ...mergeHeldBy([one, other]),
    predictedWaitMs: Math.max(one.predictedWaitMs, other.predictedWaitMs),
  }
}

export function mergeHeldBy(parts: readonly { readonly heldBy?: readonly string[] }[]): {
  readonly heldBy?: readonly string[]
} {
  const heldBy = [...new Set(parts.flatMap(part => part.heldBy ?? []))]
  return heldBy.length === 0 ? {} : { heldBy }
}

/** An instance in several processes has one level, kept by the store, and waiters in each process. The fullest come first. */
function mergeFullest(parts: readonly InstanceSnapshot[]): InstanceSnapshot[] {
  // As one process ranks its own.
  const rank = ({ level, capacity, waiting, blockedMs }: InstanceSnapshot): number =>
    level / (capacity ?? Infinity) + (waiting > 0 ? 1 : 0) + (blockedMs === undefined ? 0 : 1)
  return mergedBy(parts, ({ key }) => key, mergeInstances).sort((a, b) => rank(b) - rank(a))
}

function mergeRoutes(parts: readonly RouteSnapshot[]): RouteSnapshot {
  const coalesced = sum(parts, part => part.coalesced ?? 0)
  const waits = parts.flatMap(({ predictedWaitMs }) => predictedWaitMs ?? [])
  return {
    ...parts[0]!,
    ...sums(parts, 'queued'),
    outcomes: addUp(parts.map(({ outcomes }) => outcomes)),
    ...(coalesced > 0 && { coalesced }),
    upstreamResponses: addUp(parts.map(({ upstreamResponses }) => upstreamResponses)),
    rejections: addUp(parts.map(({ rejections }) => rejections)),
    rehearsed: addUp(parts.map(({ rehearsed }) => rehearsed)),
    ...(waits.length > 0 && { predictedWaitMs: Math.max(...waits) }),
    ...mergeHeldBy(parts),
    ...mergePatience(parts.flatMap(({ patience }) => patience ?? [])),
  }
}

/** Each process learns for itself, so times are means. */
function mergePatience(parts: readonly PatienceSnapshot[]): Pick<RouteSnapshot, 'patience'> {
  if (parts.length === 0) return {}
  const learnt = parts.flatMap(({ learntMs }) => learntMs ?? [])
  const service = parts.flatMap(({ serviceMs }) => serviceMs ?? [])
  const mean = (times: readonly number[]): number => sum(times, time => time) / times.length
  return {
    patience: {
      ...(learnt.length > 0 && { learntMs: mean(learnt) }),
      ...(service.length > 0 && { serviceMs: mean(service) }),
      ...sums(parts, 'givenUp', 'lastMinute'),
    },
  }
}

/** By name. Not each part has each. */
function addUp<Name extends string, Counts extends Readonly<Partial<Record<Name, number>>>>(parts: readonly Counts[]) {
  const total: Partial<Record<string, number>> = {}
  for (const part of parts) for (const name in part) total[name] = (total[name] ?? 0) + (part[name] as number)
  return total as Counts
}

function mergeUpstreams(one: UpstreamSnapshot, other: UpstreamSnapshot): UpstreamSnapshot {
  const both = [one, other]
  const servers = mergedBy(
    both.flatMap(each => each.servers ?? []),
    ({ url }) => url,
    mergeServers,
  )
  const [silent] = both.flatMap(each => each.silent ?? []).toSorted((a, b) => a.ms - b.ms)
  return {
    ...one,
    ...other,
    ...placesOf(one, other),
    ...(one.isFull !== other.isFull && { isFull: false }),
    pausedMs: Math.max(one.pausedMs, other.pausedMs),
    ...(silent && { silent }),
    ...(servers.length > 0 && { servers }),
  }
}

function mergeServers(one: ServerSnapshot, other: ServerSnapshot): ServerSnapshot {
  const probes = [one, other].flatMap(({ probeMs }) => probeMs ?? [])
  return {
    ...one,
    ...other,
    isUp: one.isUp && other.isUp,
    ...placesOf(one, other),
    ...(probes.length > 0 && { probeMs: Math.min(...probes) }),
  }
}

type Places = Pick<UpstreamSnapshot, 'inFlight' | 'maxInFlight'>

function placesOf({ inFlight, maxInFlight }: Places, other: Places): Places {
  return {
    inFlight: inFlight + other.inFlight,
    ...(maxInFlight !== undefined && { maxInFlight: maxInFlight + (other.maxInFlight ?? 0) }),
  }
}

/** The largest p99 and maximum, and weighted means of p50 and p90: close enough when processes share the work evenly. */
function mergeQuantiles(parts: readonly Quantiles[]): Quantiles {
  const count = sum(parts, part => part.count)
  const mean = (of: (part: Quantiles) => number): number =>
    count === 0 ? 0 : sum(parts, part => of(part) * part.count) / count
  return {
    count,
    p50: mean(({ p50 }) => p50),
    p90: mean(({ p90 }) => p90),
    p99: Math.max(...parts.map(({ p99 }) => p99)),
    max: Math.max(...parts.map(({ max }) => max)),
  }
}

function mergeDryRuns(parts: readonly DryRunSnapshot[]): DryRunSnapshot {
  const keys = new Map<string, DryRunSnapshot['keys'][number]>()
  for (const hit of parts.flatMap(part => part.keys)) {
    const id = JSON.stringify([hit.route, hit.bucket, hit.key, hit.agent])
    const known = keys.get(id)
    const both = known === undefined ? [hit] : [known, hit]
    const longestWait = Math.max(...both.map(each => each.longestWait))
    keys.set(id, { ...hit, ...sums(both, 'wouldReject', 'wouldDelay'), longestWait })
  }
  const agents = { ...parts[0]!.agents }
  for (const name of Object.keys(agents) as (keyof typeof agents)[])
    agents[name] = sums(
      parts.map(part => part.agents[name]),
      'would_reject',
      'would_delay',
    )
  return {
    since: Math.min(...parts.map(({ since }) => since)),
    keys: [...keys.values()]
      .sort((a, b) => b.wouldReject - a.wouldReject || b.wouldDelay - a.wouldDelay)
      .slice(0, MOST.keys),
    agents,
  }
}
