import { isAnyRate } from '../config/derived/default-capacity.js'
import { formatKeyPart } from '../config/schema/key.js'
import type { BucketSettings, Settings } from '../config/settings.js'
import { defined } from '../core/structures/defined.js'
import type { FollowedLimits } from '../proxy/limits/key-limits.js'
import type { RejectionCause } from '../proxy/observe/observer.js'
import type { Route } from '../proxy/routing/route.js'
import type { Upstream } from '../proxy/upstream/upstream.js'
import { fullness, type Instance } from './counters/fullest.js'
import type { BucketTally, RouteTally, StatusCounts } from './counters/traffic-tally.js'
import { bucketsOf } from './keys/instance.js'
import type { KeySourceOptions } from './keys/key-source.js'
import { finiteOrNull, quotaEnds } from './keys/key-state.js'
import type { WaitList } from './keys/listed-waits.js'
import type {
  BucketSnapshot,
  PatienceSnapshot,
  RouteSnapshot,
  Snapshot,
  UpstreamSnapshot,
} from './snapshot/snapshot.js'
import { upstreamSnapshot } from './snapshot/troubles.js'

interface SnapshotOptions extends Omit<KeySourceOptions, 'recent'> {
  readonly storeType: Snapshot['store']['type']
}

export async function takeSnapshot(options: SnapshotOptions): Promise<Snapshot> {
  const { context, tally, wallNow, waits } = options
  const { clock, routes, shaper, leaving } = context
  const now = clock.now()
  const listed = waits.list()
  const buckets = bucketsOf(context).map(settings => ({ settings, instances: instancesToShow(settings, options, now) }))
  const oldest = tally.oldestWaits(buckets.flatMap(({ instances }) => instances.map(([, bucket]) => bucket)))
  const hasDryRun = routes.some(({ settings }) => settings.dryRun && settings.mode !== 'off')
  const snapshot: Snapshot = {
    at: wallNow(),
    uptime: process.uptime(),
    processes: 1,
    draining: leaving,
    store: storeSnapshot(options),
    queued: shaper.queued,
    inFlight: tally.inFlight,
    ...oldest.of(),
    buckets: buckets.map(({ settings, instances }) => {
      const fullest = instances.map(([key, bucket]) => listed.add(settings, [key, bucket], oldest.of(bucket)))
      return { ...bucketSnapshot(settings, options, now), ...oldest.of(settings.name), fullest }
    }),
    routes: routeSnapshots(options, listed, now),
    upstreams: upstreamSnapshots(routes, now),
    wait: tally.waits.quantiles(now),
    lateness: tally.lateness.quantiles(now),
    ...(hasDryRun && { dryRun: tally.dryRuns.snapshot() }),
  }
  await listed.fill()
  return snapshot
}

export function storeTypeOf({ store }: Settings): SnapshotOptions['storeType'] {
  return store === 'memory' ? store : store.type
}

/** Several upstreams of one URL have settings of their own. */
function upstreamSnapshots(routes: readonly Route[], now: number): UpstreamSnapshot[] {
  const usual = new Map<Upstream, number>()
  for (const { upstream, waits } of routes)
    usual.set(upstream, Math.max(usual.get(upstream) ?? 0, waits.service.usual ?? 0))
  return Array.from(usual, ([upstream, ms]) => upstreamSnapshot(upstream, now, ms))
}

function storeSnapshot({ context: { sharing }, storeType: type }: SnapshotOptions): Snapshot['store'] {
  if (sharing === undefined) return { type, ready: true, instances: 1 }
  const { ready, instances, reason, onOutage } = sharing
  return { type, ready, instances, onOutage, ...defined({ reason }) }
}

/** The fullest instances, and the one that is watched. */
function instancesToShow({ name }: BucketSettings, { tally: all }: SnapshotOptions, now: number): readonly Instance[] {
  const tally = all.bucket(name)
  const fullest = tally.fullest.list(now)
  const [first] = fullest
  if (first !== undefined && isToWatch(first, tally.focus, now)) all.focus(tally, ...first)
  const watched = tally.focus
  // The watched instance stays in the list when others have become fuller.
  if (watched !== undefined && isBusy(watched, now) && !fullest.some(([key]) => key === watched.key))
    return [...fullest.slice(0, -1), [watched.key, watched.bucket]]
  return fullest
}

function bucketSnapshot(
  settings: BucketSettings,
  { context, tally: all }: SnapshotOptions,
  now: number,
): Omit<BucketSnapshot, 'fullest'> {
  const { name, key, limits } = settings
  const tally = all.bucket(name)
  const { focus, offered, released, rejected, queued, waiting } = tally
  return {
    name,
    key: key.parts.map(formatKeyPart).join(' + '),
    rate: told(context.learned.limitsOf(limits)),
    configured: told(limits),
    capacity: finiteOrNull(limits.capacity),
    ...defined({ burst: limits.burst }),
    ...quotaEnds(limits.quota),
    routes: byName(context.routes.filter(route => route.settings.buckets.includes(settings))).map(({ name }) => name),
    keys: context.bucketTable.size(name),
    ...outsideOf(context.keyLimits.of(name)),
    ...{ offered, released, rejected, queued, waiting },
    perSecond: tally.lately.rates(now),
    ...(focus && { focus: focus.events.focus(focus.key) }),
  }
}

function outsideOf(limits: FollowedLimits | undefined): Pick<BucketSnapshot, 'outside'> {
  if (limits === undefined) return {}
  const { size: keys, readAt, last } = limits
  return { outside: { keys, readAt, ...defined({ failure: last?.failure }) } }
}

/** Cost units per second, or any rate. */
function told(limits: BucketSettings['limits']): number | null {
  return isAnyRate(limits) ? null : limits.rate * 1_000
}

type Focus = BucketTally['focus']

function isBusy(focus: Focus, now: number): boolean {
  return focus !== undefined && focus.bucket.occupancy(now) > 0
}

/** ms. So the picture does not jump while two instances are about as full. */
const WATCHED = 10_000

/** Whether to watch the fullest instance instead of that in focus, which is empty, or has long been much less full. */
function isToWatch([, fullest]: Instance, focus: Focus, now: number): boolean {
  if (focus === undefined || !isBusy(focus, now)) return true
  return now - focus.since >= WATCHED && fullness(fullest, now) - fullness(focus.bucket, now) > 0.5
}

function routeSnapshots(
  { context: { routes }, tally: all }: SnapshotOptions,
  listed: WaitList,
  now: number,
): RouteSnapshot[] {
  const countsOf = (name: string): Omit<RouteSnapshot, 'name' | 'mode' | 'dryRun' | 'patience'> => {
    const { queued, outcomes, coalesced, upstreamResponses, rejections, rehearsed } = all.route(name)
    return {
      queued,
      outcomes: { ...outcomes },
      ...(coalesced > 0 && { coalesced }),
      upstreamResponses: byClass(upstreamResponses),
      rejections: byReason(rejections),
      rehearsed: { ...rehearsed },
    }
  }
  const known = byName(routes).map((route): RouteSnapshot => {
    const { name, settings } = route
    const patience = patienceSnapshot(route, all.route(name), now)
    const { mode, dryRun, deliver } = settings
    const more = { ...(deliver && { delivers: true as const }), ...(patience && { patience }) }
    return listed.addRoute(route, { name, mode, dryRun, ...countsOf(name), ...more })
  })
  // Requests without a route are listed, too.
  return all.routes.has('') ? [...known, { name: '', mode: 'off', dryRun: false, ...countsOf('') }] : known
}

/** The first route of each name. With egress there is one for each origin, and they share what is shown. */
function byName(routes: readonly Route[]): Route[] {
  return routes.filter(({ name }, index) => routes.findIndex(route => route.name === name) === index)
}

/** An answer that switches protocols has no class. */
function byClass([, , ok, moved, wrong, failed]: StatusCounts): RouteSnapshot['upstreamResponses'] {
  return { '2xx': ok, '3xx': moved, '4xx': wrong, '5xx': failed }
}

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
  return { ...defined({ learntMs, serviceMs }), givenUp, lastMinute: tally.givenUpLately.sum(now) }
}
