/** Turns a valid file into the effective configuration: names become objects, and defaults are filled in. */
import type * as z from 'zod'
import type { BucketLimits } from '../../core/bucket/queued-bucket.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { ANY_RATE, capacityOf } from '../derived/default-capacity.js'
import { EGRESS } from '../derived/egress-routes.js'
import { GATE } from '../schema/address.js'
import { slowest } from '../schema/rates.js'
import type { file } from '../schema/schema.js'
import type { BucketSettings, ConfigMode, MatchSettings, RouteSettings, Settings } from '../settings.js'

type File = z.output<typeof file>
type Bucket = File['buckets'][string]
type Tier = NonNullable<Bucket['tiers']>[number]
type Route = NonNullable<File['routes']>[number]

type PageOfRoute = Pick<RouteSettings, 'waitingPage'>

const LONGEST_NAME = 64

/**
 * @param valid a file that passed the schema and every cross check
 * @param mode where requests go: to upstreams, or where they say
 */
export function resolve(valid: File, mode: ConfigMode = 'proxy'): Settings {
  const buckets = Object.entries(valid.buckets).map(([name, bucket]) => resolveBucket(name, bucket))
  const routes: readonly Route[] = valid.routes ?? [
    {
      name: 'default',
      match: {},
      mode: 'shape',
      cost: { kind: 'fixed', cost: 1 },
      patience: 'auto',
      priority: DEFAULT_PRIORITY,
      dryRun: false,
      refuse: false,
      explain: false,
      coalesce: false,
      appointments: false,
    },
  ]
  const names = routeNames(routes)
  const { listen, store, trustProxy, limits, admin, ticketKeys, accessLog, dryRun, headers, pacing } = valid
  const { upstream, ...egress } = (mode === 'egress' && valid.egress) || { upstream: undefined }
  return {
    listen,
    store,
    trustProxy,
    buckets,
    routes: routes.map((route, index) =>
      resolveRoute(upstream === undefined ? route : { ...route, upstream }, names[index]!, buckets, valid),
    ),
    limits,
    dryRun,
    headers,
    pacing,
    ...(admin && { admin }),
    ...(ticketKeys && { ticketKeys }),
    ...('allow' in egress && { egress }),
    accessLog,
  }
}

function resolveBucket(name: string, bucket: Bucket): BucketSettings {
  const { key, status, overflow, blockFor, weight, maxDelay, timeZone, minShare, grace, tiers = [] } = bucket
  const limitsOf = (tier?: Tier): BucketLimits => {
    const rates = tier?.rate ?? bucket.rate
    const rate = slowest(rates ?? ANY_RATE)
    const burst = tier?.burst ?? bucket.burst
    const maxInFlight = tier?.maxInFlight ?? bucket.maxInFlight
    return {
      name,
      ...(tier && { tier: tier.name }),
      rate,
      capacity:
        rates === undefined
          ? Infinity
          : capacityOf({ rate, capacity: tier?.capacity ?? bucket.capacity, maxDelay, burst }),
      ...(burst !== undefined && { burst }),
      overflow,
      minShare,
      ...(maxInFlight !== undefined && { maxInFlight }),
      ...(blockFor !== undefined && { blockFor }),
      ...(grace !== undefined && { lateness: grace }),
    }
  }
  const scheduleOf = (entries: Bucket['rate']) =>
    entries === undefined || typeof entries === 'number' ? {} : { schedule: { timeZone: timeZone ?? 'UTC', entries } }
  const weightOf = (own: number | undefined) => (own === undefined ? {} : { weight: own })
  const limits = limitsOf()
  return {
    name,
    key,
    status,
    ...weightOf(weight),
    limits,
    ...scheduleOf(bucket.rate),
    ...(timeZone !== undefined && { timeZone }),
    rate: limits.rate,
    capacity: limits.capacity,
    tiers: tiers.map(tier => ({
      name: tier.name,
      ...(tier.keys && { keys: tier.keys }),
      ...(tier.header && { header: tier.header }),
      limits: limitsOf(tier),
      ...scheduleOf(tier.rate ?? bucket.rate),
      ...weightOf(tier.weight ?? weight),
      ...(tier.priority !== undefined && { priority: tier.priority }),
    })),
  }
}

function resolveRoute(route: Route, name: string, buckets: readonly BucketSettings[], valid: File): RouteSettings {
  const { match, mode, cost, maxWait = Infinity, patience, priority } = route
  const all = mode === 'off' ? [] : buckets
  const upstream = (route.upstream ?? valid.upstream)!
  return {
    name,
    match,
    mode,
    buckets: route.buckets?.map(each => buckets.find(bucket => bucket.name === each)!) ?? all,
    cost,
    maxWait,
    patience,
    priority,
    dryRun: valid.dryRun || route.dryRun,
    refuse: route.refuse,
    explain: route.explain,
    coalesce: route.coalesce,
    appointments: route.appointments,
    ...pageOf(route, valid, upstream.url),
    headers: valid.headers,
    ...(upstream.url === GATE && { gate: route.gate ?? {} }),
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
