import type { BucketSettings, Settings } from '../config/settings.js'
import type { BucketLimits } from '../core/bucket/bucket.js'
import type { SharedBucket } from '../core/queue/lane.js'
import type { ProxyContext } from './context.js'
import type { Upstream } from './upstream/upstream.js'
import type { UpstreamQuota } from './upstream/upstream-quota.js'

/**
 * Gives every bucket instance the limits of a new configuration, and those who wait what follows from it. An instance
 * stays in its tier where that still exists.
 *
 * @returns how many waiters expired because they would now exceed their `maxWait`, by route
 */
export function applyLimits(
  context: ProxyContext,
  settings: Settings,
  upstreams: Iterable<Upstream>,
): Map<string, number> {
  context.learned.adjust(context.routes)
  for (const bucket of settings.buckets) {
    for (const [, instance] of context.bucketTable.entries(bucket.name)) setInstanceLimits(context, instance, bucket)
  }
  const maxWaits = new Map(settings.routes.map(route => [route.name, route.maxWait]))
  const gates = [...upstreams].map(upstream => upstream.gate)
  return context.shaper.control.replan(gates, route => maxWaits.get(route.name) ?? Infinity)
}

/** Lets the buckets before an upstream follow what it says that it allows. */
export function applyLearned(context: ProxyContext, quota: UpstreamQuota): void {
  context.learned.adjust(context.routes)
  const routes = context.routes.filter(({ upstream }) => upstream.quota === quota)
  for (const bucket of new Set(routes.flatMap(({ settings }) => settings.buckets))) {
    for (const [, instance] of context.bucketTable.entries(bucket.name)) {
      // The others follow when somebody asks for them.
      if (instance.waiting > 0) setInstanceLimits(context, instance, bucket)
    }
  }
}

/** Gives a bucket instance what its settings allow it now. */
function setInstanceLimits(context: ProxyContext, instance: SharedBucket, settings: BucketSettings): void {
  context.shaper.control.setLimits(instance, limitsOf(context, limitsLike(instance.limits, settings)))
}

/** What is left of limits by what the upstream says of its own, and for this instance where others share them. */
export function limitsOf({ learned, sharing }: ProxyContext, limits: BucketLimits): BucketLimits {
  const lowered = learned.limitsOf(limits)
  return sharing === undefined ? lowered : sharing.limitsOf(lowered)
}

function limitsLike(old: BucketLimits, { limits, tiers }: BucketSettings): BucketLimits {
  return tiers.find(tier => tier.name === old.tier)?.limits ?? limits
}
