import type { BucketSettings, Settings } from '../config/settings.js'
import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import type { SharedBucket } from '../core/queue/lane.js'
import type { ProxyContext } from './context.js'
import type { BucketOwner } from './limits/key-limits.js'
import { ADAPTIVE_KEY, type AdaptiveLimit } from './upstream/adaptive-limit.js'
import type { Upstream } from './upstream/upstream.js'

/** Costs of a request. A bucket with a level above it has a queue. */
const HELD = 1.5

/**
 * Gives every bucket instance the limits of a new configuration, and plans the waiting requests anew. An instance stays
 * in its tier if that still exists.
 *
 * @returns how many waiting requests expired because they would now exceed their `maxWait`, by route
 */
export function applyLimits(
  context: ProxyContext,
  settings: Settings,
  upstreams: Iterable<Upstream>,
): Map<string, number> {
  context.learned.adjust(context.routes)
  for (const bucket of settings.buckets) {
    for (const [key, instance] of context.bucketTable.entries(bucket.name))
      setInstanceLimits(context, instance, key, bucket)
  }
  for (const { adaptive } of upstreams) if (adaptive !== undefined) applyAdapted(context, adaptive)
  const maxWaits = new Map(settings.routes.map(route => [route.name, route.maxWait]))
  const gates = new Set([...upstreams].map(upstream => upstream.gate))
  const expired = context.shaper.engine.replan(gates, route => maxWaits.get(route.name) ?? Infinity)
  // `maxInFlight` may have been raised.
  for (const gate of gates) if (gate.awaited) context.shaper.wake(gate)
  context.deliveries?.limitsChanged()
  return expired
}

/** Adapts the buckets of routes, by their upstreams, to the rates that these allow. */
export function applyLearned(context: ProxyContext, isOf: (upstream: Upstream) => boolean): void {
  context.learned.adjust(context.routes)
  const routes = context.routes.filter(({ upstream }) => isOf(upstream))
  for (const bucket of new Set(routes.flatMap(({ settings }) => settings.buckets))) {
    for (const [key, instance] of context.bucketTable.entries(bucket.name)) {
      // The others get the new limits with their next request.
      if (instance.waiting > 0) setInstanceLimits(context, instance, key, bucket)
    }
  }
}

/**
 * Gives a key its limits, after an override was set or has ended. Without an instance the next request does. As after a reload,
 * requests that would now exceed their `maxWait` expire.
 */
export function applyOverride(context: ProxyContext, name: string, key: string): void {
  const bucket = bucketOf(context, name)
  if (bucket !== undefined) applyToKey(context, bucket, key)
  context.deliveries?.limitsChanged()
}

function bucketOf({ routes }: ProxyContext, name: string): BucketSettings | undefined {
  return routes.flatMap(({ settings }) => settings.buckets).find(each => each.name === name)
}

/** Who waits for other buckets, or for this one with another key, is not touched. */
function applyToKey(context: ProxyContext, bucket: BucketSettings, key: string): void {
  const { bucketTable, routes, shaper } = context
  const instance = bucketTable.peek(bucket.name, key)
  if (instance === undefined) return
  bucketTable.hold(instance)
  setInstanceLimits(context, instance, key, bucket)
  if (instance.waiting > 0) {
    const maxWaits = new Map(routes.map(({ name, settings }) => [name, settings.maxWait]))
    shaper.engine.replanBucket(instance, route => maxWaits.get(route.name) ?? Infinity)
  }
  bucketTable.rest(instance)
}

/** Keys that get other limits at a time, and ms for which nothing else is done meanwhile. */
const SLICE = { keys: 64, ms: 4 }

/**
 * Gives keys of a bucket their own limits, after these were read again.
 *
 * @param keys undefined: many have changed, so all are looked at
 */
export async function applyKeyLimits(
  context: ProxyContext,
  name: string,
  keys: Iterable<string> = context.bucketTable.keys(name),
): Promise<void> {
  // A key gets its limits with its next request, and these are its next ones.
  context.deliveries?.limitsChanged()
  let count = 0
  let until = performance.now() + SLICE.ms
  for (const key of keys) {
    const bucket = bucketOf(context, name)
    if (bucket === undefined) return
    const instance = context.bucketTable.look(name, key)
    if (instance === undefined) continue
    const { limits } = ownerOf(context, bucket, { key, tier: instance.limits.tier })
    if (limitsOf(context, limits, key) !== instance.limits) applyToKey(context, bucket, key)
    count += 1
    if (count % SLICE.keys !== 0 || performance.now() < until) continue
    await new Promise(resolve => setImmediate(resolve))
    until = performance.now() + SLICE.ms
  }
}

/** Gives the bucket of an upstream the rate that the upstream can take. */
export function applyAdapted(context: ProxyContext, { bucket }: AdaptiveLimit): void {
  const instance = context.bucketTable.peek(bucket.name, ADAPTIVE_KEY)
  // If nobody waits it gets the new limits with its next request.
  if (instance !== undefined && instance.waiting > 0) setInstanceLimits(context, instance, ADAPTIVE_KEY, bucket)
}

/** Whether a request of this cost, which is being sent, was held by the bucket of its upstream: it holds others, too. */
export function isHeldBy({ bucketTable, clock }: ProxyContext, { bucket }: AdaptiveLimit, cost: number): boolean {
  const instance = bucketTable.peek(bucket.name, ADAPTIVE_KEY)
  // What was released just now is in the level for a period.
  return instance !== undefined && (instance.waiting > 0 || instance.level(clock.now()) > HELD * cost)
}

/** A request that waits for no bucket is sent. It counts in the adaptive rate of its upstream. */
export function countUnqueued(context: ProxyContext, { bucket }: AdaptiveLimit, cost: number): void {
  const { bucketTable, clock } = context
  const now = clock.now()
  const instance = bucketTable.find(limitsOf(context, bucket.limits, ADAPTIVE_KEY), ADAPTIVE_KEY, now)
  if (instance === undefined) return
  bucketTable.hold(instance)
  context.shaper.count(instance, cost)
  bucketTable.rest(instance)
}

function setInstanceLimits(context: ProxyContext, instance: SharedBucket, key: string, settings: BucketSettings): void {
  const { limits } = ownerOf(context, settings, { key, tier: instance.limits.tier })
  context.shaper.engine.setLimits(instance, limitsOf(context, limits, key))
}

/** Whose limits an instance has: a key its own, else those of the tier that it was in last, else those of its bucket. */
export function ownerOf(
  { keyLimits }: Pick<ProxyContext, 'keyLimits'>,
  settings: BucketSettings,
  { key, tier }: { readonly key: string | undefined; readonly tier: string | undefined },
): BucketOwner {
  const own = key === undefined ? undefined : keyLimits.ownerOf(settings, key)
  return own ?? settings.tiers.find(({ name }) => name === tier) ?? settings
}

/** The limits of a key: its override, reduced to what the upstream allows and to this instance's share of the bucket. */
export function limitsOf(
  { learned, sharing, overrides }: ProxyContext,
  limits: BucketLimits,
  key: string,
): BucketLimits {
  const lowered = learned.limitsOf(overrides.limitsOf(limits, key))
  return sharing === undefined ? lowered : sharing.limitsOf(lowered, key)
}
