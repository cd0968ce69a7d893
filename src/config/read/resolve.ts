/** Turns a valid file into the effective configuration: names become objects, and defaults are filled in. */
import type { BucketLimits } from '../../core/bucket/queued-bucket.js'
import { defined } from '../../core/structures/defined.js'
import { ANY_RATE, capacityOf, QUOTA_RATE } from '../derived/default-capacity.js'
import { DEFAULT_SPREAD, LENGTHS, PACE } from '../periods.js'
import { EGRESS, GATE } from '../schema/address.js'
import { slowest } from '../schema/rates.js'
import { route as routeSchema } from '../schema/routes.js'
import type { File } from '../schema/schema.js'
import type { BucketSettings, ConfigMode, LimitsSource, MatchSettings, RouteSettings, Settings } from '../settings.js'

type Bucket = File['buckets'][string]
type Tier = NonNullable<Bucket['tiers']>[number]
type Route = NonNullable<File['routes']>[number]
type PageOfRoute = Pick<RouteSettings, 'waitingPage'>
const LONGEST_NAME = 64

/** @param valid a file that passed the schema and every cross check */
export function resolve(valid: File, mode: ConfigMode = 'proxy'): Settings {
  const buckets = Object.entries(valid.buckets).flatMap(([name, bucket]) => {
    const resolved = resolveBucket(name, bucket)
    return bucket.quota?.spread ? [resolved, pacerOf(resolved, bucket.capacity ?? DEFAULT_SPREAD)] : [resolved]
  })
  const routes: readonly Route[] = valid.routes ?? [routeSchema.parse({ name: 'default' })]
  const names = routeNames(routes)
  const { $schema: _schema, upstream: _upstream, egress: ofFile, waitingPage: _waitingPage, store, ...rest } = valid
  const { upstream, ...egress } = (mode === 'egress' && ofFile) || { upstream: undefined }
  return {
    ...rest,
    ...(typeof store === 'object' && store.type === 'memory'
      ? { store: 'memory', ...(store.file !== undefined && { levelsFile: store.file }) }
      : { store }),
    buckets,
    routes: routes.map((route, index) =>
      resolveRoute(upstream === undefined ? route : { ...route, upstream }, names[index]!, buckets, valid),
    ),
    ...('allow' in egress && { egress }),
  }
}

function resolveBucket(name: string, bucket: Bucket): BucketSettings {
  const { key, status, overflow, blockFor, weight, maxDelay, timeZone, minShare, grace, quota, tiers = [] } = bucket
  const limitsOf = (tier?: Tier): BucketLimits => {
    const burst = tier?.burst ?? bucket.burst
    const maxInFlight = tier?.maxInFlight ?? bucket.maxInFlight
    return {
      ...{ name, overflow, minShare },
      ...(quota === undefined
        ? rateAndCapacity(tier?.rate ?? bucket.rate, { capacity: tier?.capacity ?? bucket.capacity, maxDelay, burst })
        : { rate: QUOTA_RATE, capacity: tier?.quota ?? quota.limit }),
      ...defined({ tier: tier?.name, burst, maxInFlight, blockFor, lateness: grace }),
    }
  }
  const scheduleOf = (entries: Bucket['rate']) =>
    entries === undefined || typeof entries === 'number' ? undefined : { timeZone: timeZone ?? 'UTC', entries }
  const limits = limitsOf()
  const outside = bucket.limits && {
    source: sourceOf(bucket.limits),
    ...defined({ capacity: bucket.capacity, maxDelay }),
  }
  return {
    ...{ name, key, status, limits, rate: limits.rate, capacity: limits.capacity },
    ...defined({ weight, schedule: scheduleOf(bucket.rate), timeZone, outside }),
    ...(quota && { quota: { per: quota.per, timeZone: quota.timeZone, spread: quota.spread } }),
    tiers: tiers.map(tier => ({
      ...{ name: tier.name, limits: limitsOf(tier) },
      ...defined({ keys: tier.keys, header: tier.header, weight: tier.weight ?? weight, priority: tier.priority }),
      ...defined({ schedule: scheduleOf(tier.rate ?? bucket.rate) }),
    })),
  }
}

/** The bucket that paces a quota. What single keys have of their own is in the quota. */
function pacerOf(
  { quota, limits, tiers, outside: _outside, ...bucket }: BucketSettings,
  capacity: number,
): BucketSettings {
  const name = bucket.name + PACE
  const paced = (own: BucketLimits): BucketLimits => {
    return { ...own, name, rate: own.capacity / LENGTHS[quota!.per], capacity, paces: true }
  }
  const own = paced(limits)
  const ofTiers = tiers.map(tier => ({ ...tier, limits: paced(tier.limits) }))
  return { ...bucket, name, limits: own, rate: own.rate, capacity, tiers: ofTiers, paces: true }
}

function rateAndCapacity(
  rates: Bucket['rate'] | undefined,
  others: Omit<Parameters<typeof capacityOf>[0], 'rate'>,
): Pick<BucketLimits, 'rate' | 'capacity'> {
  if (rates === undefined) return { rate: ANY_RATE, capacity: Infinity }
  const rate = slowest(rates)
  return { rate, capacity: capacityOf({ rate, ...others }) }
}

/** ms */
const REFRESH = 30_000

function sourceOf({ file, postgres, refresh = REFRESH, channel }: NonNullable<Bucket['limits']>): LimitsSource {
  if (file !== undefined) return { file }
  return { postgres: postgres!, refresh, ...defined({ channel }) }
}

function resolveRoute(route: Route, name: string, buckets: readonly BucketSettings[], valid: File): RouteSettings {
  const { maxWait = Infinity, waitingPage: _waitingPage, gate = {}, ...rest } = route
  const upstream = (route.upstream ?? valid.upstream)!
  return {
    ...rest,
    name,
    buckets:
      route.buckets?.flatMap(each => buckets.filter(({ name }) => name === each || name === each + PACE)) ??
      (route.mode === 'off' ? [] : buckets),
    maxWait,
    dryRun: valid.dryRun || route.dryRun,
    ...pageOf(route, valid, upstream.url),
    headers: valid.headers,
    ...(upstream.url === GATE && { gate }),
    upstream,
  }
}

/** Only browsers that ask for pages themselves are shown one. */
function pageOf({ mode, waitingPage }: Route, { waitingPage: common }: File, url: string): PageOfRoute {
  const page = waitingPage ?? common
  if (page === false || mode === 'off' || url === GATE || url === EGRESS) return {}
  return { waitingPage: page === true ? {} : page }
}

/** The names of the routes. A route without a name gets one from its match or its place. All names are unique. */
function routeNames(routes: readonly Route[]): string[] {
  const taken = new Set(routes.flatMap(({ name }) => name ?? []))
  return routes.map(({ name, match }, index) => {
    if (name !== undefined) return name
    const base = nameOf(match) || `route-${index + 1}`
    let unique = base
    for (let count = 2; taken.has(unique); count++) unique = `${base.slice(0, LONGEST_NAME - 8)}-${count}`
    taken.add(unique)
    return unique
  })
}

/** `{ method: ["POST"], path: "/v1/login" }` -> `post-v1-login` */
function nameOf({ method = [], host = '', path = '', header = {}, ip = [] }: MatchSettings): string {
  return [...method.map(each => each.toLowerCase()), host, path, ...Object.keys(header), ...ip]
    .join('-')
    .replace(/[^A-Za-z0-9_.-]+/g, '-')
    .replace(/-{2,}/g, '-')
    .slice(0, LONGEST_NAME)
    .replace(/^-|-$/g, '')
}
