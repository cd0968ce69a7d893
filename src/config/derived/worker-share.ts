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

/** @param number counts from 1. The first workers have one more where the parts are not equal. @param count of workers */
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
      bounds[name] = partOf(bound, { number, count })
    }
  }
  divide(share.limits, DIVIDED.limits)
  for (const { upstream } of share.routes)
    for (const each of [upstream, ...(upstream.servers ?? [])]) divide(each, DIVIDED.upstream)
  for (const { limits, tiers, outside } of share.buckets) {
    for (const each of [limits, ...tiers.map(tier => tier.limits)]) divide(each, DIVIDED.bucket)
    if (outside !== undefined) outside.worker = { number, count }
  }
  return share
}

export function partOf(bound: number, { number, count }: { readonly number: number; readonly count: number }): number {
  return Math.max(1, Math.floor(bound / count) + (number <= bound % count ? 1 : 0))
}
