/** Takes snapshots of a running proxy, and resets instances of its buckets. */
import { formatKeyPart } from '../config/schema/key.js'
import type { BucketSettings, Settings } from '../config/settings.js'
import { slackOf } from '../core/bucket/limits.js'
import type { SharedBucket } from '../core/queue/lane.js'
import type { StoredBucket } from '../core/shared/stored-bucket.js'
import type { ProxyContext } from '../proxy/context.js'
import type { RejectionCause } from '../proxy/observe/observer.js'
import type { Route } from '../proxy/routing/route.js'
import type { Upstream } from '../proxy/upstream/upstream.js'
import type { Instance } from './counters/fullest.js'
import type { RouteTally, StatusCounts, TrafficTally } from './counters/traffic-tally.js'
import type { Reset } from './http/server.js'
import type {
  BucketSnapshot,
  InstanceSnapshot,
  PatienceSnapshot,
  RouteSnapshot,
  Snapshot,
  UpstreamSnapshot,
} from './snapshot/snapshot.js'

export interface SnapshotOptions {
  readonly context: ProxyContext
  readonly tally: TrafficTally
  readonly storeType: 'memory' | 'redis' | 'postgres'
  /** ms since 1970, as fine as the clock of the proxy. */
  wallNow(): number
}

export function takeSnapshot({ context, tally, storeType, wallNow }: SnapshotOptions): Snapshot {
  const { clock, routes, sharing, shaper, draining } = context
  const now = clock.now()
  const hasDryRun = routes.some(({ settings }) => settings.dryRun && settings.mode !== 'off')
  return {
    at: wallNow(),
    uptime: process.uptime(),
    processes: 1,
    draining,
    store: { type: storeType, ready: sharing?.ready ?? true, instances: sharing?.instances ?? 1 },
    queued: shaper.queued,
    inFlight: tally.inFlight,
    buckets: bucketsOf(context).map(settings => bucketSnapshot(settings, context, tally, now)),
    routes: routeSnapshots(context, tally, now),
    upstreams: [...new Set(routes.map(({ upstream }) => upstream))].map(upstream => upstreamSnapshot(upstream, now)),
    wait: tally.waits.quantiles(now),
    lateness: tally.lateness.quantiles(now),
    ...(hasDryRun && { dryRun: tally.dryRuns.snapshot() }),
  }
}

/**
 * Forgets what has passed one instance of a bucket, and ends its block. Waiting requests stay.
 *
 * @returns the effect, as far as this process knows it; undefined: there is no such bucket, or, without a shared store, no
 *   such instance
 */
export async function resetInstance(context: ProxyContext, name: string, key: string): Promise<Reset | undefined> {
  const settings = bucketsOf(context).find(bucket => bucket.name === name)
  if (settings === undefined) return undefined
  const { bucketTable, sharing, shaper, clock } = context
  const known = bucketTable.peek(name, key)
  const forgotten = known === undefined ? 0 : Math.max(0, known.level(clock.now()) - known.queued)
  if (sharing === undefined) {
    if (known === undefined) return undefined
    bucketTable.hold(known)
    shaper.control.reset(known)
    const reset = afterReset(known, forgotten, clock.now())
    bucketTable.rest(known)
    return reset
  }
  const bucket = (known ?? sharing.createBucket(settings.limits, key)) as StoredBucket
  await sharing.store.reset(bucket.ref)
  if (known === undefined) return { forgotten, waiting: 0, level: 0, lastWaitMs: 0 }
  bucket.levelReported(0, clock.now())
  shaper.control.reset(known)
  return afterReset(known, forgotten, clock.now())
}

function afterReset(bucket: SharedBucket, forgotten: number, now: number): Reset {
  const { waiting, queued } = bucket
  // The store has forgotten the cost of waiting requests, too, but they still count here.
  const level = Math.max(queued, bucket.level(now))
  // The last request leaves when everything but its own cost has drained, down to its slack. Its cost is assumed to be the mean.
  const cost = waiting === 0 ? level : queued / waiting
  const ahead = Math.max(0, level - cost - slackOf(bucket.limits, cost))
  return { forgotten, waiting, level, lastWaitMs: Math.ceil(ahead / bucket.limits.rate) }
}

/** The buckets that routes use, in the order of the routes. */
export function bucketsOf({ routes }: ProxyContext): BucketSettings[] {
  const asked = routes.filter(({ settings }) => settings.mode !== 'off')
  const adaptive = routes.flatMap(({ upstream }) => upstream.adaptive?.bucket ?? [])
  return [...new Set([...asked.flatMap(({ settings }) => settings.buckets), ...adaptive])]
}

export function storeTypeOf({ store }: Settings): SnapshotOptions['storeType'] {
  return store === 'memory' ? store : store.type
}

function bucketSnapshot(
  settings: BucketSettings,
  context: ProxyContext,
  all: TrafficTally,
  now: number,
): BucketSnapshot {
  const { name, key, limits } = settings
  const tally = all.bucket(name)
  let fullest = tally.fullest.list(now)
  const [first] = fullest
  if (first !== undefined && !isBusy(tally.focus, now)) all.focus(tally, ...first)
  const watched = tally.focus
  // The watched instance stays in the list when others have become fuller.
  if (watched !== undefined && isBusy(watched, now) && !fullest.some(([, bucket]) => bucket === watched.bucket)) {
    fullest = [...fullest.slice(0, -1), [watched.key, watched.bucket]]
  }
  const { focus } = tally
  return {
    name,
    key: key.parts.map(formatKeyPart).join(' + '),
    rate: context.learned.limitsOf(limits).rate * 1_000,
    configured: limits.rate * 1_000,
    capacity: finite(limits.capacity),
    ...(limits.burst !== undefined && { burst: limits.burst }),
    routes: byName(context.routes.filter(route => route.settings.buckets.includes(settings))).map(({ name }) => name),
    keys: context.bucketTable.size(name),
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

/** JSON has no other numbers. */
function finite(capacity: number): number | null {
  return capacity === Infinity ? null : capacity
}

/** A watched instance stays watched until it has drained, so that the picture does not jump. */
function isBusy(focus: { readonly bucket: SharedBucket } | undefined, now: number): boolean {
  return focus !== undefined && focus.bucket.level(now) > 0
}

function instanceSnapshot([key, bucket]: Instance, now: number): InstanceSnapshot {
  const { tier, rate, capacity, burst } = bucket.limits.whole ?? bucket.limits
  const blocked = bucket.blockedFor(now)
  return {
    key,
    ...(tier !== undefined && { tier }),
    rate: rate * 1_000,
    capacity: finite(capacity),
    ...(burst !== undefined && { burst }),
    level: bucket.level(now),
    waiting: bucket.waiting,
    nextReleaseMs: Math.max(0, bucket.freeFor(bucket.nextCost || 1) - now),
    ...(blocked > 0 && { blockedMs: blocked === Infinity ? -1 : blocked }),
  }
}

function routeSnapshots({ routes }: ProxyContext, all: TrafficTally, now: number): RouteSnapshot[] {
  const countsOf = (name: string): Omit<RouteSnapshot, 'name' | 'mode' | 'dryRun' | 'patience'> => {
    const { queued, outcomes, upstreamResponses, rejections, rehearsed } = all.route(name)
    const responses = byClass(upstreamResponses)
    return { queued, outcomes, responses, rejections: byReason(rejections), rehearsed }
  }
  const known = byName(routes).map((route): RouteSnapshot => {
    const { name, settings } = route
    const patience = patienceSnapshot(route, all.route(name), now)
    const { mode, dryRun } = settings
    return { name, mode, dryRun, ...countsOf(name), ...(patience && { patience }) }
  })
  // Requests without a route are listed, too.
  return all.routes.has('') ? [...known, { name: '', mode: 'off', dryRun: false, ...countsOf('') }] : known
}

/** The first route of each name. With egress there is one for each origin, and they share what is shown. */
function byName(routes: readonly Route[]): Route[] {
  return routes.filter(({ name }, index) => routes.findIndex(route => route.name === name) === index)
}

/** An answer that switches protocols has no class. */
function byClass([, , ok, moved, wrong, failed]: StatusCounts): RouteSnapshot['responses'] {
  return { '2xx': ok, '3xx': moved, '4xx': wrong, '5xx': failed }
}

/** The sums of all buckets. */
function byReason(rejections: RouteTally['rejections']): RouteSnapshot['rejections'] {
  const sums: Partial<Record<RejectionCause['reason'], number>> = {}
  for (const reasons of rejections.values())
    for (const [reason, count] of reasons) sums[reason] = (sums[reason] ?? 0) + count
  return sums
}

function patienceSnapshot({ waits }: Route, tally: RouteTally, now: number): PatienceSnapshot | undefined {
  const learntMs = waits.patience.usual(now)
  const serviceMs = waits.service.usual
  const { arrival, release } = tally.givenUp
  const givenUp = arrival.known + arrival.learnt + release.known + release.learnt
  if (learntMs === undefined && serviceMs === undefined && givenUp === 0) return undefined
  return {
    ...(learntMs !== undefined && { learntMs }),
    ...(serviceMs !== undefined && { serviceMs }),
    givenUp,
    lastMinute: tally.givenUpLately.count(now),
  }
}

function upstreamSnapshot({ settings, gate, quota, breaker }: Upstream, now: number): UpstreamSnapshot {
  const allows = (quota?.rateOf('requests') ?? Infinity) * 1_000
  return {
    url: settings.url,
    inFlight: gate.inFlight,
    pausedMs: gate.pausedFor(now),
    ...(breaker?.isOpen && { probeMs: breaker.retryAfter }),
    ...(Number.isFinite(allows) && { allows }),
  }
}
