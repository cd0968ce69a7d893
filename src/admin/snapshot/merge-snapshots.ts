/** Merges the snapshots of several processes. */
import type {
  BucketSnapshot,
  DryRunSnapshot,
  PatienceSnapshot,
  Quantiles,
  RouteSnapshot,
  Snapshot,
  UpstreamSnapshot,
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
      type: first!.store.type,
      ready: all.some(({ store }) => store.ready),
      instances: Math.max(...all.map(({ store }) => store.instances)),
    },
    queued: sum(all, ({ queued }) => queued),
    inFlight: sum(all, ({ inFlight }) => inFlight),
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

function byName<T extends { readonly name: string }>(lists: readonly (readonly T[])[]): T[][] {
  const found = new Map<string, T[]>()
  for (const item of lists.flat()) found.set(item.name, [...(found.get(item.name) ?? []), item])
  return [...found.values()]
}

/** An instance in several processes has one level, kept by the store, and waiters in each process. */
function mergeBuckets(parts: readonly BucketSnapshot[]): BucketSnapshot {
  const instances = new Map<string, BucketSnapshot['fullest'][number]>()
  for (const instance of parts.flatMap(({ fullest }) => fullest)) {
    const known = instances.get(instance.key)
    instances.set(
      instance.key,
      known === undefined
        ? instance
        : { ...known, level: Math.max(known.level, instance.level), waiting: known.waiting + instance.waiting },
    )
  }
  const focused = parts.flatMap(({ focus }) => focus ?? [])
  const [focus] = focused
  const moments = (of: (one: NonNullable<BucketSnapshot['focus']>) => readonly number[]): number[] =>
    focused
      .filter(({ key }) => key === focus!.key)
      .flatMap(of)
      .sort((a, b) => a - b)
      .slice(-MOST.moments)
  return {
    ...parts[0]!,
    keys: Math.max(...parts.map(({ keys }) => keys)),
    offered: sum(parts, ({ offered }) => offered),
    released: sum(parts, ({ released }) => released),
    rejected: sum(parts, ({ rejected }) => rejected),
    queued: sum(parts, ({ queued }) => queued),
    waiting: sum(parts, ({ waiting }) => waiting),
    fullest: [...instances.values()]
      .sort((a, b) => b.level / (b.capacity ?? Infinity) - a.level / (a.capacity ?? Infinity))
      .slice(0, MOST.instances),
    ...(focus && {
      focus: {
        key: focus.key,
        arrivals: moments(({ arrivals }) => arrivals),
        releases: moments(({ releases }) => releases),
        rejections: moments(({ rejections }) => rejections),
      },
    }),
  }
}

function mergeRoutes(parts: readonly RouteSnapshot[]): RouteSnapshot {
  return {
    ...parts[0]!,
    queued: sum(parts, ({ queued }) => queued),
    outcomes: addUp(parts.map(({ outcomes }) => outcomes)),
    responses: addUp(parts.map(({ responses }) => responses)),
    rejections: addUpKnown(parts.map(({ rejections }) => rejections)),
    rehearsed: addUp(parts.map(({ rehearsed }) => rehearsed)),
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
      const { inFlight, pausedMs } = known
      found.set(part.url, {
        ...known,
        ...part,
        inFlight: inFlight + part.inFlight,
        pausedMs: Math.max(pausedMs, part.pausedMs),
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
