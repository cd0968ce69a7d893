import type { BucketLimits } from '../../core/bucket/limits.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import type { ProxyContext } from '../context.js'
import { addressKey, clientAddress } from '../http/client-address.js'
import type { ClientConnection } from '../http/client-connection.js'
import { Refusal, type RequestFacts } from '../http/request.js'
import { limitsOf } from '../live-limits.js'
import type { Route } from '../routing/route.js'

/** The bucket instances of a request, and the weight of its lane. */
export interface Stack {
  readonly buckets: SharedBucket[]
  readonly keys: readonly string[]
  readonly weight: number
  /** The client's address as its share of our own resources is counted: IPv6 by /64. */
  readonly client: string
}

/** The address of a request's client as its share of our own resources is counted: IPv6 by /64. */
export function clientKey(
  context: Pick<ProxyContext, 'trust'>,
  connection: ClientConnection,
  facts: RequestFacts,
): string {
  return keyOf(addressOfClient(context, connection, facts), connection)
}

/** The peer's address, or behind trusted hops the forwarded one. */
function addressOfClient(
  { trust }: Pick<ProxyContext, 'trust'>,
  { peer }: ClientConnection,
  { forwardedFor }: RequestFacts,
): string {
  return forwardedFor.length === 0 ? peer : clientAddress(peer, forwardedFor, trust)
}

function keyOf(address: string, { peer, peerKey }: ClientConnection): string {
  return address === peer ? peerKey : addressKey(address)
}

/** Finds the bucket instances of a request and holds them. Creates none before every key is known. */
export function findStack(
  context: ProxyContext,
  connection: ClientConnection,
  route: Route,
  facts: RequestFacts,
): Stack | Refusal {
  const address = addressOfClient(context, connection, facts)
  const client = keyOf(address, connection)
  const keyContext = { facts, address, ip: client, route: route.name }
  const keys: string[] = []
  for (const { key, duplicate, settings } of route.buckets) {
    const header = duplicate?.(facts)
    if (header !== undefined) {
      if (settings.key.duplicates === 'reject') {
        return new Refusal(400, `bucket "${settings.name}" needs one ${header} header, and the request has several`)
      }
      context.observer.duplicated?.(route.name, header)
    }
    const value = key(keyContext)
    if (value === undefined) {
      return new Refusal(400, `bucket "${settings.name}" needs a key that the request does not have`)
    }
    keys.push(value)
  }
  const buckets: SharedBucket[] = []
  let weight = 1
  let decides = Infinity
  for (const { settings, tier, place } of route.buckets) {
    const key = keys[buckets.length]!
    const { limits, weight: own } = tier(key, facts) ?? settings
    if (!addInstance(context, limits, key, buckets)) {
      return new Refusal(503, 'too many keys have waiting requests')
    }
    if (own !== undefined && place < decides) {
      weight = own
      decides = place
    }
  }
  // An array that has grown has room for 17, and a request that waits keeps it. A copy has the room that it needs.
  return { buckets: buckets.slice(), keys: keys.slice(), weight, client }
}

/** Adds the instance of a key, held. False: there is no room for it, and those before it are held no more. */
function addInstance(context: ProxyContext, configured: BucketLimits, key: string, to: SharedBucket[]): boolean {
  const { bucketTable, shaper, clock } = context
  const limits = limitsOf(context, configured)
  // Of a key that is known no time is needed. Reading the clock costs as much as finding it.
  const bucket = bucketTable.peek(limits.name, key) ?? bucketTable.find(limits, key, clock.now(), to)
  if (bucket === undefined) {
    for (const found of to) bucketTable.rest(found)
    return false
  }
  bucketTable.hold(bucket)
  to.push(bucket)
  if (bucket.limits !== limits) shaper.control.setLimits(bucket, limits)
  return true
}
