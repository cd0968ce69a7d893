/**
 * The part of a worker in what bounds the machine. Each part is at least 1. If the bound is at least the number of workers,
 * all parts together are the whole. config/checks/workers.ts refuses smaller ones that the file sets.
 * Rates and capacities are no such bounds: the workers have them in common.
 */
import type { Settings } from '../settings.js'

/** The bounds that are divided, by where they stand. */
export const DIVIDED = {
  limits: ['maxQueued', 'maxConnections', 'connectionsPerClient', 'bufferMemory'],
  upstream: ['maxInFlight', 'connections'],
  bucket: ['maxInFlight'],
} as const

/**
 * The settings of one worker.
 *
 * @param number counts from 1. The first workers have one more where the parts are not equal.
 * @param count how many workers there are
 */
export function workerShare(settings: Settings, number: number, count: number): Settings {
  // Routes share their upstreams and buckets, and go on to do so.
  const share = structuredClone(settings)
  const divided = new Set<object>()
  function divide<Name extends string>(bounds: { [name in Name]?: number }, names: readonly Name[]): void {
    if (divided.has(bounds)) return
    divided.add(bounds)
    for (const name of names) {
      const bound = bounds[name]
      if (bound === undefined || bound === Infinity) continue
      bounds[name] = Math.max(1, Math.floor(bound / count) + (number <= bound % count ? 1 : 0))
    }
  }
  divide(share.limits, DIVIDED.limits)
  for (const { upstream } of share.routes) divide(upstream, DIVIDED.upstream)
  for (const { limits, tiers } of share.buckets)
    for (const each of [limits, ...tiers.map(tier => tier.limits)]) divide(each, DIVIDED.bucket)
  return share
}
