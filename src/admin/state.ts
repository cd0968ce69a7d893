/** What a running proxy tells of itself. */
import { formatKeyPart } from '../config/key-schema.js'
import type { BucketSettings, Settings } from '../config/settings.js'
import type { SharedBucket } from '../core/lane.js'
import type { StoredBucket } from '../core/stored-bucket.js'
import type { Line } from '../proxy/line.js'
import type { Upstream } from '../proxy/upstream.js'
import type { Instance } from './fullest.js'
import type { BucketSnapshot, InstanceSnapshot, RouteSnapshot, Snapshot, UpstreamSnapshot } from './snapshot.js'
import type { Tally } from './tally.js'

export interface StateOptions {
  readonly line: Line
  readonly tally: Tally
  readonly storeType: 'memory' | 'redis' | 'postgres'
  /** ms since 1970, as fine as the line's clock. */
  wallNow(): number
}

export function takeSnapshot({ line, tally, storeType, wallNow }: StateOptions): Snapshot {
  const { clock, routes, sharing, shaper, draining } = line
  const now = clock.now()
  const isRehearsing = routes.some(({ settings }) => settings.dryRun && settings.mode !== 'off')
  return {
    at: wallNow(),
    uptime: process.uptime(),
    processes: 1,
    draining,
    store: { type: storeType, ready: sharing?.ready ?? true, instances: sharing?.instances ?? 1 },
    queued: shaper.queued,
    inFlight: tally.inFlight,
    buckets: bucketsOf(line).map(settings => bucketSnapshot(settings, line, tally, now)),
    routes: routeSnapshots(line, tally),
    upstreams: [...new Set(routes.map(({ upstream }) => upstream))].map(upstream => upstreamSnapshot(upstream, now)),
    wait: tally.waits.quantiles(now),
    lateness: tally.lateness.quantiles(now),
    ...(isRehearsing && { dryRun: tally.rehearsals.snapshot() }),
  }
}

/**
 * Empties one instance of a bucket.
 *
 * @returns whether there was one; with a store it may be known to other instances only
 */
export async function resetInstance(line: Line, name: string, key: string): Promise<boolean> {
  const settings = bucketsOf(line).find(bucket => bucket.name === name)
  if (settings === undefined) return false
  const { keyspace, sharing, shaper, clock } = line
  const known = keyspace.peek(name, key)
  if (sharing === undefined) {
    if (known !== undefined) shaper.control.reset(known)
    return known !== undefined
  }
  const bucket = (known ?? sharing.createBucket(settings.limits, key)) as StoredBucket
  await sharing.store.reset(bucket.ref)
  if (known === undefined) return true
  bucket.tell(0, clock.now())
  shaper.control.reset(known)
  return true
}

/** Those that routes ask, in the order of the routes. */
export function bucketsOf({ routes }: Line): BucketSettings[] {
  const asked = routes.filter(({ settings }) => settings.mode !== 'off')
  return [...new Set(asked.flatMap(({ settings }) => settings.buckets))]
}

export function storeTypeOf({ store }: Settings): StateOptions['storeType'] {
  return store === 'memory' ? store : store.type
}

function bucketSnapshot(settings: BucketSettings, line: Line, all: Tally, now: number): BucketSnapshot {
  const { name, key, limits } = settings
  const tally = all.bucket(name)
  let fullest = tally.fullest.list(now)
  const [first] = fullest
  if (first !== undefined && !isBusy(tally.focus, now)) all.focus(tally, ...first)
  const watched = tally.focus
  // What is watched is told, too, where others have become fuller.
  if (watched !== undefined && isBusy(watched, now) && !fullest.some(([, bucket]) => bucket === watched.bucket)) {
    fullest = [...fullest.slice(0, -1), [watched.key, watched.bucket]]
  }
  const { focus } = tally
  return {
    name,
    key: key.parts.map(formatKeyPart).join(' + '),
    rate: line.learned.limitsOf(limits).rate * 1_000,
    configured: limits.rate * 1_000,
    capacity: limits.capacity,
    routes: line.routes.filter(route => route.settings.buckets.includes(settings)).map(route => route.name),
    keys: line.keyspace.size(name),
    offered: tally.offered,
    released: tally.released,
    rejected: tally.rejected,
    queued: tally.queued,
    waiting: tally.waiting,
    fullest: fullest.map(instance => instanceSnapshot(instance, now)),
    ...(focus && {
      focus: {
        key: focus.key,
        arrivals: tally.arrivals.list(),
        releases: tally.releases.list(),
        rejections: tally.rejections.list(),
      },
    }),
  }
}

/** The one that is watched stays watched until it has drained: a picture that jumps shows nothing. */
function isBusy(focus: { readonly bucket: SharedBucket } | undefined, now: number): boolean {
  return focus !== undefined && focus.bucket.level(now) > 0
}

function instanceSnapshot([key, bucket]: Instance, now: number): InstanceSnapshot {
  const { tier, rate, capacity } = bucket.limits.whole ?? bucket.limits
  const blocked = bucket.blockedFor(now)
  return {
    key,
    ...(tier !== undefined && { tier }),
    rate: rate * 1_000,
    capacity,
    level: bucket.level(now),
    waiting: bucket.waiting,
    nextReleaseMs: Math.max(0, bucket.freeAt - now),
    ...(blocked > 0 && { blockedMs: blocked === Infinity ? -1 : blocked }),
  }
}

function routeSnapshots({ routes }: Line, tally: Tally): RouteSnapshot[] {
  const known = routes.map(({ name, settings: { mode, dryRun } }) => ({ name, mode, dryRun, ...tally.route(name) }))
  // What no route has taken is told, too.
  return tally.routes.has('') ? [...known, { name: '', mode: 'off', dryRun: false, ...tally.route('') }] : known
}

function upstreamSnapshot({ settings, gate, quota }: Upstream, now: number): UpstreamSnapshot {
  const allows = (quota?.rate ?? Infinity) * 1_000
  return {
    url: settings.url,
    inFlight: gate.inFlight,
    pausedMs: gate.pausedFor(now),
    ...(Number.isFinite(allows) && { allows }),
  }
}
