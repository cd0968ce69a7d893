/** Merges the snapshots of several processes. */
import type {
  BucketSnapshot,
  DryRunSnapshot,
  InstanceSnapshot,
  PatienceSnapshot,
  Quantiles,
  RouteSnapshot,
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
    processes: sum(all, ({ processes }) => processes),
    draining: all.every(({ draining }) => draining),
    store: {
      // Of one that is without the store it says why.
      ...(all.find(({ store }) => store.reason !== undefined) ?? first!).store,
      ready: all.some(({ store }) => store.ready),
      instances: Math.max(...all.map(({ store }) => store.instances)),
    },
    queued: sum(all, ({ queued }) => queued),
    inFlight: sum(all, ({ inFlight }) => inFlight),
    ...oldestOf(all),
    buckets: byName(all.map(({ buckets }) => buckets)).map(mergeBuckets),
    routes: byName(all.map(({ routes }) => routes)).map(mergeRoutes),
    upstreams: mergeUpstreams(all.flatMap(({ upstreams }) => upstreams)),
    wait: mergeQuantiles(all.map(({ wait }) => wait)),
    lateness: mergeQuantiles(all.map(({ lateness }) => lateness)),
    ...(dryRuns.length > 0 && { dryRun: mergeDryRuns(dryRuns) }),
  }
}

function sum<T>(list: readonly T[], of: (item: T) => number): number {
  return list.reduce((total, item) => total + of(item), 0)
}

/** The longest wait of those that wait in several processes. */
export function oldestOf(parts: readonly { readonly oldestMs?: number }[]): { readonly oldestMs?: number } {
  const oldest = parts.flatMap(({ oldestMs }) => oldestMs ?? [])
  return oldest.length === 0 ? {} : { oldestMs: Math.max(...oldest) }
}

function byName<T extends { readonly name: string }>(lists: readonly (readonly T[])[]): T[][] {
  const found = new Map<string, T[]>()
  for (const item of lists.flat()) found.set(item.name, [...(found.get(item.name) ?? []), item])
  return [...found.values()]
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
    ...addUpCosts(parts),
    ...(rates.length > 0 && { perSecond: addUpCosts(rates) }),
    queued: sum(parts, ({ queued }) => queued),
    waiting: sum(parts, ({ waiting }) => waiting),
    ...oldestOf(parts),
    fullest: fullest.slice(0, MOST.instances),
    ...(fullestKey !== undefined && { focus: mergeFocus(focused.filter(({ key }) => key === fullestKey)) }),
  }
}

function addUpCosts(
  parts: readonly Pick<BucketSnapshot, 'offered' | 'released' | 'rejected'>[],
): Pick<BucketSnapshot, 'offered' | 'released' | 'rejected'> {
  return {
    offered: sum(parts, ({ offered }) => offered),
    released: sum(parts, ({ released }) => released),
    rejected: sum(parts, ({ rejected }) => rejected),
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
    watchers: sum(watching, ({ watchers }) => watchers),
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
      ...addUpCosts(parts),
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

/** What holds a newcomer at any of several processes. */
export function mergeHeldBy(parts: readonly { readonly heldBy?: readonly string[] }[]): {
  readonly heldBy?: readonly string[]
} {
  const heldBy = [...new Set(parts.flatMap(part => part.heldBy ?? []))]
  return heldBy.length === 0 ? {} : { heldBy }
}

/** An instance in several processes has one level, kept by the store, and waiters in each process. The fullest come first. */
function mergeFullest(parts: readonly InstanceSnapshot[]): InstanceSnapshot[] {
  const found = new Map<string, InstanceSnapshot>()
  for (const part of parts) {
    const known = found.get(part.key)
    found.set(part.key, known === undefined ? part : mergeInstances(known, part))
  }
  // As one process ranks its own.
  const rank = ({ level, capacity, waiting, blockedMs }: InstanceSnapshot): number =>
    level / (capacity ?? Infinity) + (waiting > 0 ? 1 : 0) + (blockedMs === undefined ? 0 : 1)
  return [...found.values()].sort((a, b) => rank(b) - rank(a))
}

function mergeRoutes(parts: readonly RouteSnapshot[]): RouteSnapshot {
  const coalesced = sum(parts, part => part.coalesced ?? 0)
  return {
    ...parts[0]!,
    queued: sum(parts, ({ queued }) => queued),
    outcomes: addUp(parts.map(({ outcomes }) => outcomes)),
    ...(coalesced > 0 && { coalesced }),
    upstreamResponses: addUp(parts.map(({ upstreamResponses }) => upstreamResponses)),
    rejections: addUpKnown(parts.map(({ rejections }) => rejections)),
    rehearsed: addUp(parts.map(({ rehearsed }) => rehearsed)),
    ...longestWait(parts.flatMap(({ predictedWaitMs }) => predictedWaitMs ?? [])),
    ...mergeHeldBy(parts),
    ...mergePatience(parts.flatMap(({ patience }) => patience ?? [])),
  }
}

/** A newcomer may come to any of them. */
function longestWait(waits: readonly number[]): Pick<RouteSnapshot, 'predictedWaitMs'> {
  return waits.length === 0 ? {} : { predictedWaitMs: Math.max(...waits) }
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
      givenUp: sum(parts, ({ givenUp }) => givenUp),
      lastMinute: sum(parts, ({ lastMinute }) => lastMinute),
    },
  }
}

function addUp<Key extends string>(parts: readonly Readonly<Record<Key, number>>[]): Record<Key, number> {
  const total: Record<Key, number> = { ...parts[0]! }
  for (const part of parts.slice(1)) for (const key in part) total[key] += part[key]
  return total
}

/** As `addUp`, where not each part has each key. */
function addUpKnown<Key extends string>(parts: readonly Readonly<Partial<Record<Key, number>>>[]) {
  const total: Partial<Record<Key, number>> = {}
  for (const part of parts) for (const key in part) total[key] = (total[key] ?? 0) + part[key]!
  return total
}

function mergeUpstreams(parts: readonly UpstreamSnapshot[]): UpstreamSnapshot[] {
  const found = new Map<string, UpstreamSnapshot>()
  for (const part of parts) {
    const known = found.get(part.url)
    if (known === undefined) found.set(part.url, part)
    else {
      const { inFlight, maxInFlight, pausedMs, isFull } = known
      const silent = [known, part].flatMap(each => each.silent ?? []).toSorted((a, b) => a.ms - b.ms)
      found.set(part.url, {
        ...known,
        ...part,
        inFlight: inFlight + part.inFlight,
        ...(maxInFlight !== undefined && { maxInFlight: maxInFlight + (part.maxInFlight ?? 0) }),
        ...(isFull !== part.isFull && { isFull: false }),
        pausedMs: Math.max(pausedMs, part.pausedMs),
        ...(silent.length > 0 && { silent: silent[0]! }),
      })
    }
  }
  return [...found.values()]
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
    keys.set(
      id,
      known === undefined
        ? hit
        : {
            ...hit,
            wouldReject: known.wouldReject + hit.wouldReject,
            wouldDelay: known.wouldDelay + hit.wouldDelay,
            longestWait: Math.max(known.longestWait, hit.longestWait),
          },
    )
  }
  const agents = { ...parts[0]!.agents }
  for (const name of Object.keys(agents) as (keyof typeof agents)[]) {
    agents[name] = addUp(parts.map(part => part.agents[name]))
  }
  return {
    since: Math.min(...parts.map(({ since }) => since)),
    keys: [...keys.values()]
      .sort((a, b) => b.wouldReject - a.wouldReject || b.wouldDelay - a.wouldDelay)
      .slice(0, MOST.keys),
    agents,
  }
}
