/** Which requests share a bucket instance, as far as the keys tell. */
import type { BucketLimits } from '../../core/bucket/queued-bucket.js'
import type { Finding } from '../problems.js'
import type { BucketSettings, KeyPart, RouteSettings, Settings } from '../settings.js'

export type Warning = Finding
const CLIENTS: readonly KeyPart['kind'][] = ['ip', 'cert', 'header', 'cookie', 'query', 'path', 'jwt', 'body']

/** Whether the key tells clients apart. If not, one instance serves many clients. */
export function isPerClient({ key }: BucketSettings): boolean {
  return key.parts.some(({ kind }) => CLIENTS.includes(kind))
}

/** Whether all requests of one `narrow` instance pass the same `wide` instance, together with those of others. */
export function isInside(narrow: BucketSettings, wide: BucketSettings): boolean {
  return partsOf(wide).size < partsOf(narrow).size && passesOne(narrow, wide)
}

/** Whether all requests of one instance of `bucket` pass the same instance of `other`. */
export function passesOne(bucket: BucketSettings, other: BucketSettings): boolean {
  const parts = partsOf(bucket)
  return [...partsOf(other)].every(part => parts.has(part))
}

/** The parts of a key without `all`, which tells nothing apart. */
function partsOf({ key }: BucketSettings): Set<string> {
  return new Set(key.parts.filter(({ kind }) => kind !== 'all').map(part => JSON.stringify(part)))
}

export function usersOf(bucket: BucketSettings, { routes }: Settings): RouteSettings[] {
  return routes.filter(({ mode, buckets }) => mode !== 'off' && buckets.includes(bucket))
}

/** Limits, and their place in the file. */
export interface Place {
  readonly path: readonly PropertyKey[]
  /** `bucket "client"`, `tier "gold" of bucket "client"` */
  readonly title: string
  readonly limits: BucketLimits
}

/** The limits of a bucket, then those of its tiers. */
export function placesOf({ name, limits, tiers }: BucketSettings): [Place, ...Place[]] {
  const path = ['buckets', name]
  const title = `bucket "${name}"`
  return [
    { path, title, limits },
    ...tiers.map((tier, index) => {
      return { path: [...path, 'tiers', index], title: `tier "${tier.name}" of ${title}`, limits: tier.limits }
    }),
  ]
}
