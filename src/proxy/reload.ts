import type { BucketSettings, Settings } from '../config/settings.js'
import type { BucketLimits } from '../core/bucket.js'
import type { Line } from './line.js'
import type { Upstream } from './upstream.js'

/**
 * Gives every bucket instance the limits of a new configuration, and those who wait what follows from it. An instance
 * stays in its tier where that still exists.
 *
 * @returns how many waiters expired because they would now exceed their `maxWait`, by route
 */
export function applyLimits(line: Line, settings: Settings, upstreams: Iterable<Upstream>): Map<string, number> {
  const share = (limits: BucketLimits): BucketLimits => line.sharing?.limitsOf(limits) ?? limits
  for (const bucket of settings.buckets) {
    for (const [, instance] of line.keyspace.entries(bucket.name)) {
      line.shaper.control.retune(instance, share(limitsLike(instance.limits, bucket)))
    }
  }
  const maxWaits = new Map(settings.routes.map(route => [route.name, route.maxWait]))
  const gates = [...upstreams].map(upstream => upstream.gate)
  return line.shaper.control.replan(gates, route => maxWaits.get(route.name) ?? Infinity)
}

function limitsLike(old: BucketLimits, { limits, tiers }: BucketSettings): BucketLimits {
  return tiers.find(tier => tier.name === old.tier)?.limits ?? limits
}
