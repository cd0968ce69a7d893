import type { SharedBucket } from '../core/lane.js'
import { addressKey, clientAddress } from './address.js'
import type { Connection } from './connection.js'
import type { Line } from './line.js'
import { Refusal, type RequestFacts } from './request.js'
import type { Route } from './route.js'

/** The bucket instances that a request has to pass. None is made before every key is known. */
export function findStack(
  line: Line,
  { peer, peerKey }: Connection,
  route: Route,
  facts: RequestFacts,
): SharedBucket[] | Refusal {
  const address = facts.forwardedFor.length === 0 ? peer : clientAddress(peer, facts.forwardedFor, line.trust)
  const context = { facts, ip: address === peer ? peerKey : addressKey(address), route: route.name }
  const now = line.clock.now()
  const keys: string[] = []
  for (const bucket of route.buckets) {
    const key = bucket.key(context)
    if (key === undefined) {
      return new Refusal(400, `bucket "${bucket.limits.name}" needs a key that the request does not have`)
    }
    keys.push(key)
  }
  const stack: SharedBucket[] = []
  for (const [at, bucket] of route.buckets.entries()) {
    const instance = line.keyspace.find(bucket.limits, keys[at]!, now)
    if (instance === undefined) return new Refusal(503, 'every key that can be kept has waiters')
    stack.push(instance)
  }
  return stack
}
