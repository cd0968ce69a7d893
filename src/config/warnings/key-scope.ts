/** Who shares a bucket instance with whom, as far as the keys tell. */
import type { BucketLimits } from '../../core/bucket/bucket.js'
import type { Finding } from '../problems.js'
import type { BucketSettings, KeyPart, RouteSettings, Settings } from '../settings.js'

/** A warning before its path is written out. */
export type Warning = Finding

const CLIENTS: readonly KeyPart['kind'][] = ['ip', 'header', 'cookie', 'query']

/** Whether the key tells clients apart; else one instance serves many of them. */
export function isPerClient({ key }: BucketSettings): boolean {
  return key.parts.some(({ kind }) => CLIENTS.includes(kind))
}

/** Whether every request of one instance of `narrow` passes the same instance of `wide`, and others do, too. */
export function isInside(narrow: BucketSettings, wide: BucketSettings): boolean {
  const [inner, outer] = [partsOf(narrow), partsOf(wide)]
  return outer.size < inner.size && [...outer].every(part => inner.has(part))
}

/** `all` tells nothing apart. */
function partsOf({ key }: BucketSettings): Set<string> {
  return new Set(key.parts.filter(({ kind }) => kind !== 'all').map(part => JSON.stringify(part)))
}

/** The routes that ask a bucket. */
export function usersOf(bucket: BucketSettings, { routes }: Settings): RouteSettings[] {
  return routes.filter(({ mode, buckets }) => mode !== 'off' && buckets.includes(bucket))
}

/** Limits where the file has them. */
export interface Place {
  readonly path: readonly PropertyKey[]
  /** `bucket "client"`, `tier "gold" of bucket "client"` */
  readonly title: string
  readonly limits: BucketLimits
}

/** A bucket's limits and those of its tiers, the bucket's own first. */
export function placesOf({ name, limits, tiers }: BucketSettings): [Place, ...Place[]] {
  const path = ['buckets', name]
  const title = `bucket "${name}"`
  return [
    { path, title, limits },
    ...tiers.map((tier, index) => ({
      path: [...path, 'tiers', index],
      title: `tier "${tier.name}" of ${title}`,
      limits: tier.limits,
    })),
  ]
}
