/** What a request of a key would ask for on each route of its bucket, if one came now. */
import type { BucketSettings } from '../../config/settings.js'
import { QueuedBucket } from '../../core/bucket/queued-bucket.js'
import { allSources } from '../../core/bucket/waiting.js'
import type { SharedBucket, ShareNode, Source } from '../../core/queue/lane.js'
import { Lane } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import type { ProxyContext } from '../../proxy/context.js'
import { type BucketOwner, turnOf } from '../../proxy/exchange/find-stack.js'
import { limitsOf } from '../../proxy/live-limits.js'
import { NO_BODY } from '../../proxy/routing/bucket-costs.js'
import { usualPriorityOf } from '../../proxy/routing/priority.js'
import { type Route, type RouteBucket, usualCost } from '../../proxy/routing/route.js'
import { newInstance } from './instance.js'
import { KnownParts } from './known-parts.js'

export interface RouteNewcomer {
  readonly route: Route
  readonly arrival: Arrival
  /** Names of buckets whose key does not follow. */
  readonly assumed: readonly string[]
}

/** A bucket instance, as far as it is known, and whose limits it has. */
interface Found {
  readonly bucket: SharedBucket
  readonly owner: BucketOwner
}

/**
 * The newcomers of a key, one for each route of its bucket. A bucket whose key does not follow is taken as idle. If it
 * comes after this one in the stack, and requests of this key wait, the bucket of most of these requests is taken instead.
 *
 * @param own its instance. Undefined: nothing is known of it
 */
export function newcomersOf(
  context: ProxyContext,
  { name, key: settings }: BucketSettings,
  key: string,
  own: SharedBucket | undefined,
): RouteNewcomer[] {
  const known = new KnownParts(settings, key)
  const routes = context.routes.filter(
    ({ buckets, settings: { mode } }) => mode !== 'off' && buckets.some(each => each.settings.name === name),
  )
  return routes.flatMap(route => newcomerOn(context, route, known, { name, key, bucket: own }) ?? [])
}

/** The newcomer of an unknown client: only its route is known. */
export function strangerOn(context: ProxyContext, route: Route): RouteNewcomer | undefined {
  return newcomerOn(context, route, new KnownParts({ parts: [], missing: 'ip', duplicates: 'first', ipv6: 64 }, ''))
}

interface KnownKey {
  readonly name: string
  readonly key: string
  readonly bucket: SharedBucket | undefined
}

/** Undefined: the route refuses such requests. */
function newcomerOn(
  context: ProxyContext,
  route: Route,
  parts: KnownParts,
  given?: KnownKey,
): RouteNewcomer | undefined {
  const used: RouteBucket[] = []
  const found: Found[] = []
  const assumed: string[] = []
  const onTheirWay = given?.bucket && bucketsAfter(given.bucket, route)
  for (const bucket of route.buckets) {
    const { settings } = bucket
    const { name } = settings
    const own = name === given?.name ? given : undefined
    const derived = own ?? parts.keyIn(settings.key, route)
    if (derived === 'none') {
      if (settings.key.missing === 'skip') continue
      return undefined
    }
    used.push(bucket)
    if (derived === undefined) assumed.push(name)
    found.push(find(context, settings, derived?.key, own?.bucket ?? (derived ? undefined : onTheirWay?.get(name))))
  }
  return { route, assumed, arrival: arrivalOf(route, used, found) }
}

function arrivalOf(route: Route, used: readonly RouteBucket[], found: readonly Found[]): Arrival {
  const { settings, bucketCosts, lane } = route
  const stack = found.map(({ bucket }) => bucket)
  const { method } = settings.match
  const costs = bucketCosts?.reserve(
    used.map(each => each.settings.name),
    NO_BODY,
  )
  const cost = costs?.at(-1) ?? usualCost(settings.cost, method?.length === 1 ? method[0] : undefined)
  const { weight, priority } = turnOf(
    used,
    found.map(({ owner }) => owner),
  )
  return {
    ...{ route: lane, stack, cost, weight, priority: usualPriorityOf(route, priority) },
    costs: costs?.some(each => each !== cost) ? costs : undefined,
  }
}

/** @param key undefined: not known */
function find(
  context: ProxyContext,
  settings: BucketSettings,
  key: string | undefined,
  known: SharedBucket | undefined,
): Found {
  const bucket =
    known ??
    (key === undefined
      ? new QueuedBucket(limitsOf(context, settings.limits, ''))
      : (context.bucketTable.look(settings.name, key) ?? newInstance(context, settings, key)))
  return { bucket, owner: settings.tiers.find(({ name }) => name === bucket.limits.tier) ?? settings }
}

/** The buckets that most requests waiting for this one go through after it, by name. */
function bucketsAfter(bucket: SharedBucket, { lane: { gate } }: Route): Map<string, SharedBucket> {
  let most: Source | undefined
  for (const source of allSources(bucket)) {
    if (source.gate === gate && (most === undefined || source.queued > most.queued)) most = source
  }
  if (most instanceof Lane) return byName(most.stack.slice(most.stack.indexOf(bucket) + 1))
  const after: SharedBucket[] = []
  for (let at: ShareNode | undefined = most?.parent; at?.bucket !== undefined; at = at.parent) after.push(at.bucket)
  return byName(after)
}

function byName(buckets: readonly SharedBucket[]): Map<string, SharedBucket> {
  return new Map(buckets.map(bucket => [bucket.limits.name, bucket]))
}
