/**
 * Writes the profiles of upstreams out, as if the file had all of it: buckets, the routes that pass them, `learn` and `pauseOn`.
 * So whatever reads a configuration knows nothing of profiles. What the file says itself is left as it is.
 */
import { parseRate } from '../../core/units.js'
import { isObject } from '../checks/partial-config.js'
import { type Profile, type ProfileName, profileBuckets, profiles } from '../profiles.js'

/** How long a queue of a profile's bucket may get, in ms. It is ours, not the provider's. */
const LONGEST_QUEUE = 30_000
type FileObject = Record<string, unknown>

/** @param file as written, with variables replaced and flags merged; not changed */
export function expandProfiles(file: unknown): unknown {
  if (!isObject(file)) return file
  const { upstream, buckets = {}, routes } = file
  const list: unknown[] = Array.isArray(routes) ? routes : []
  const used = [upstream, ...list.map(route => isObject(route) && route.upstream)].flatMap(
    each => profileOf(each) ?? [],
  )
  // Where the buckets are no object the schema says so.
  if (used.length === 0 || !isObject(buckets)) return file
  const brought = new Map(used.map(name => [name, bucketsFor(name, buckets)]))
  const stackOf = (of: unknown) => {
    const name = profileOf(of)
    return [...Object.keys(buckets), ...Object.keys((name && brought.get(name)) ?? {})]
  }
  const expandRoute = (route: unknown) => {
    if (!isObject(route)) return route
    const own = 'upstream' in route ? route.upstream : upstream
    return {
      ...route,
      ...('upstream' in route && { upstream: expandUpstream(own) }),
      ...(!('buckets' in route) && route.mode !== 'off' && { buckets: stackOf(own) }),
    }
  }
  return {
    ...file,
    ...('upstream' in file && { upstream: expandUpstream(upstream) }),
    buckets: Object.assign({}, buckets, ...brought.values()),
    ...(Array.isArray(routes) && { routes: list.map(expandRoute) }),
  }
}

/** The name of a profile's bucket in the proxy. Two upstreams may have different profiles. */
export function bucketName(profile: ProfileName, bucket: string): string {
  return `${profile}.${bucket}`
}

/** The buckets that a profile brings: those that the file does not name itself. */
function bucketsFor(profile: ProfileName, own: FileObject): FileObject {
  const missing = Object.entries(profileBuckets(profile)).filter(
    ([bucket]) => !Object.hasOwn(own, bucket) && !Object.hasOwn(own, bucketName(profile, bucket)),
  )
  return Object.fromEntries(
    missing.map(([bucket, limits]) => {
      const { rate, burst = 0 } = limits
      const capacity = Math.floor(burst + parseRate(rate) * LONGEST_QUEUE)
      return [bucketName(profile, bucket), { key: 'all', ...limits, capacity }]
    }),
  )
}

function expandUpstream(upstream: unknown): unknown {
  const name = profileOf(upstream)
  if (name === undefined) return upstream
  const { learn, pauseOn }: Profile = profiles[name]
  return { learn, pauseOn, ...(upstream as FileObject) }
}

function profileOf(upstream: unknown): ProfileName | undefined {
  const name = isObject(upstream) ? upstream.profile : undefined
  return typeof name === 'string' && Object.hasOwn(profiles, name) ? (name as ProfileName) : undefined
}
