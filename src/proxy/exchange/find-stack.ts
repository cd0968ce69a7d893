import type { TierSettings } from '../../config/settings.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import type { ProxyContext } from '../context.js'
import { addressKey, clientAddress } from '../http/client-address.js'
import type { ClientConnection } from '../http/connection/client-connection.js'
import { Refusal, type RequestFacts } from '../http/request.js'
import { limitsOf } from '../live-limits.js'
import type { Route, RouteBucket, RoutedRequest } from '../routing/route.js'

/** The bucket instances of a request, and what its tiers say of its turn. */
export interface Stack {
  readonly buckets: SharedBucket[]
  readonly keys: readonly string[]
  readonly weight: number
  /** Undefined: it is in no tier with a priority. */
  readonly priority: number | undefined
}

/** A request whose buckets are to be found. */
export interface Applicant extends RoutedRequest {
  /** The client's address as its share of our own resources is counted: IPv6 by /64. */
  readonly client: string
}

/** The client's address: the peer's, or behind trusted hops the forwarded one. */
export function addressOfClient(
  { trust }: Pick<ProxyContext, 'trust'>,
  { peer }: ClientConnection,
  { forwardedFor }: RequestFacts,
): string {
  return forwardedFor.length === 0 ? peer : clientAddress(peer, forwardedFor, trust)
}

/** An address of a client as its share of our own resources is counted: IPv6 by /64. */
export function clientKey(address: string, { peer, peerKey }: ClientConnection): string {
  return address === peer ? peerKey : addressKey(address)
}

/** Finds the bucket instances of a request and holds them. Creates none before every key is known. */
export function findStack(context: ProxyContext, route: Route, applicant: Applicant): Stack | Refusal {
  const used: RouteBucket[] = []
  const keys: string[] = []
  for (const bucket of route.buckets) {
    const key = findKey(context, route, bucket, applicant)
    if (key instanceof Refusal) return key
    if (key === undefined) continue
    used.push(bucket)
    keys.push(key)
  }
  const buckets: SharedBucket[] = []
  const owners: BucketOwner[] = []
  for (const { settings, tier } of used) {
    const key = keys[buckets.length]!
    const owner = tier(key, applicant.facts) ?? settings
    if (!addInstance(context, owner.limits, key, buckets)) {
      return new Refusal(503, 'too many keys have waiting requests')
    }
    owners.push(owner)
  }
  // An array that has grown has room for 17, and a request that waits keeps it. A copy has the room that it needs.
  return { buckets: buckets.slice(), keys: keys.slice(), ...turnOf(used, owners) }
}

/** Whose limits a bucket instance has: those of its tier, or of its bucket. */
export type BucketOwner = Pick<TierSettings, 'limits' | 'weight' | 'priority'>

/** What the tiers of the buckets say of the turn of a request. The first in the file that says something counts. */
export function turnOf(
  used: readonly RouteBucket[],
  owners: readonly BucketOwner[],
): Pick<Stack, 'weight' | 'priority'> {
  let weight: number | undefined
  let weightFrom = Infinity
  let priority: number | undefined
  let priorityFrom = Infinity
  for (let at = 0; at < used.length; at += 1) {
    const { place } = used[at]!
    const owner = owners[at]!
    if (owner.weight !== undefined && place < weightFrom) {
      weight = owner.weight
      weightFrom = place
    }
    if (owner.priority !== undefined && place < priorityFrom) {
      priority = owner.priority
      priorityFrom = place
    }
  }
  return { weight: weight ?? 1, priority }
}

/** The key of a request in a bucket. Undefined: it has none, and the bucket does not apply to it. */
function findKey(
  { observer }: ProxyContext,
  { name }: Route,
  { key, duplicate, settings }: RouteBucket,
  { facts, address, client }: Applicant,
): string | undefined | Refusal {
  const header = duplicate?.(facts)
  if (header !== undefined) {
    if (settings.key.duplicates === 'reject') {
      return new Refusal(400, `bucket "${settings.name}" needs one ${header} header, and the request has several`)
    }
    observer.duplicated?.(name, header)
  }
  const value = key({ facts, address, ip: client, route: name })
  if (value !== undefined || settings.key.missing === 'skip') return value
  return new Refusal(400, `bucket "${settings.name}" needs a key that the request does not have`)
}

/** Adds the instance of a key, held. False: there is no room for it, and those before it are held no more. */
function addInstance(context: ProxyContext, configured: BucketLimits, key: string, to: SharedBucket[]): boolean {
  const { bucketTable, shaper, clock } = context
  const limits = limitsOf(context, configured, key)
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
