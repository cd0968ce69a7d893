import type { SharedBucket } from '../../core/queue/lane.js'
import type { ProxyContext } from '../context.js'
import { addressKey, clientAddress } from '../http/client-address.js'
import type { ClientConnection } from '../http/connection.js'
import { Refusal, type RequestFacts } from '../http/request.js'
import { limitsOf } from '../live-limits.js'
import type { Route } from '../routing/route.js'

/** The bucket instances of a request, and the weight of its lane. */
export interface Stack {
  readonly buckets: SharedBucket[]
  readonly keys: readonly string[]
  readonly weight: number
}

/** Finds the bucket instances of a request. Creates none before every key is known. */
export function findStack(
  context: ProxyContext,
  { peer, peerKey }: ClientConnection,
  route: Route,
  facts: RequestFacts,
): Stack | Refusal {
  const address = facts.forwardedFor.length === 0 ? peer : clientAddress(peer, facts.forwardedFor, context.trust)
  const keyContext = { facts, ip: address === peer ? peerKey : addressKey(address), route: route.name }
  const keys: string[] = []
  for (const { key, settings } of route.buckets) {
    const value = key(keyContext)
    if (value === undefined) {
      return new Refusal(400, `bucket "${settings.name}" needs a key that the request does not have`)
    }
    keys.push(value)
  }
  const now = context.clock.now()
  const buckets: SharedBucket[] = []
  let weight = 1
  let decides = Infinity
  for (const [at, { settings, tier, place }] of route.buckets.entries()) {
    const key = keys[at]!
    const { limits: configured, weight: own } = tier(key, facts) ?? settings
    const limits = limitsOf(context, configured)
    const bucket = context.bucketTable.find(limits, key, now, buckets)
    if (bucket === undefined) return new Refusal(503, 'too many keys have waiting requests')
    if (bucket.limits !== limits) context.shaper.control.setLimits(bucket, limits)
    buckets.push(bucket)
    if (own !== undefined && place < decides) {
      weight = own
      decides = place
    }
  }
  return { buckets, keys, weight }
}
