/** The key that an operator means, as requests have it, and its bucket instance, also where this process knows none. */
import { formatKeyPart } from '../../config/schema/key.js'
import type { BucketSettings } from '../../config/settings.js'
import { QueuedBucket } from '../../core/bucket/queued-bucket.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import type { ProxyContext } from '../../proxy/context.js'
import { faultOfKey, meantKey } from '../../proxy/http/meant-key.js'
import type { BucketOwner } from '../../proxy/limits/key-limits.js'
import { limitsOf } from '../../proxy/live-limits.js'
import { IDLE_REPORT } from '../../sharing/store.js'
import { StoredBucket } from '../../sharing/stored-bucket.js'
import type { Instance } from '../counters/fullest.js'
import type { WatchedSnapshot } from '../snapshot/snapshot.js'
import { endOfOverride, instanceState } from './key-state.js'

export function newInstance(context: ProxyContext, settings: BucketSettings, key: string): SharedBucket {
  const { limits } = ownerOfKey(context, settings, key) ?? settings
  const own = limitsOf(context, limits, key)
  return context.sharing?.createBucket(own, key) ?? new QueuedBucket(own)
}

/** Whose limits requests with a key have, as far as no header is needed to know it. Undefined: those of the bucket. */
function ownerOfKey({ routes }: ProxyContext, { name }: BucketSettings, key: string): BucketOwner | undefined {
  const used = routes.flatMap(({ buckets }) => buckets).find(({ settings }) => settings.name === name)
  return used?.owner(key, { rawHeaders: [] })
}

/** With the level that the store has now. One that is not known here is in no table. */
export async function presentInstance(
  context: ProxyContext,
  settings: BucketSettings,
  key: string,
): Promise<SharedBucket> {
  const { bucketTable, clock } = context
  const { name } = settings
  const bucket = bucketTable.peek(name, key) ?? newInstance(context, settings, key)
  if (!(bucket instanceof StoredBucket) || bucket.lease !== undefined) return bucket
  const level = await storedLevel(context, bucket)
  // It may have come meanwhile.
  const present = (bucketTable.peek(name, key) ?? bucket) as StoredBucket
  if (level !== undefined && present.lease === undefined) present.levelReported(level, clock.now())
  return present
}

const NOBODY = -1

/** The level of a bucket in its store, in cost units. Undefined: the store does not answer. */
async function storedLevel({ sharing }: ProxyContext, { ref, shard }: StoredBucket): Promise<number | undefined> {
  if (shard.mode !== 'claimed') return undefined
  try {
    // It leases nothing, and leaves nothing behind: only its answer tells a level without the room that others have leased.
    const answer = await sharing!.store.lease?.({ ...IDLE_REPORT, instance: NOBODY, bucket: ref })
    return answer?.level
  } catch {
    return undefined
  }
}

/** What lists tell of an instance of a bucket, but for the waits of newcomers. */
export function listedState(
  { clock, overrides, wallNow }: ProxyContext,
  name: string,
  [key, bucket]: Instance,
): WatchedSnapshot['instance'] {
  const override = overrides.find(name, key)
  return {
    ...instanceState(key, bucket, clock.now()),
    ...(override && { overriddenUntil: endOfOverride(override, wallNow()) }),
  }
}

export function bucketsOf({ routes }: Pick<ProxyContext, 'routes'>): BucketSettings[] {
  const asked = routes.filter(({ settings }) => settings.mode !== 'off')
  const adaptive = routes.flatMap(({ upstream }) => upstream.adaptive?.bucket ?? [])
  return [...new Set([...asked.flatMap(({ settings }) => settings.buckets), ...adaptive])]
}

/** The key that is meant. One that is known is meant as it is written. */
export function knownOrMeant(
  { bucketTable }: Pick<ProxyContext, 'bucketTable'>,
  { name, key }: BucketSettings,
  text: string,
): string {
  return bucketTable.look(name, text) === undefined ? meantKey(key, text) : text
}

/** Why no request can have a key, and what to do. Undefined: one can. */
export function whyNoKey({ name, key: settings }: BucketSettings, key: string): string | undefined {
  const { parts, ipv6 } = settings
  const wrong = faultOfKey(settings, key)
  if (wrong === undefined) return undefined
  if (wrong === 'count') {
    const names = parts.map(formatKeyPart)
    const few = `a key of ${name} has one part (${names[0]}); quote it if it has spaces`
    const typed = `shaper key ${name} ${names.map(part => part.replace(/^\w+:/, '').toUpperCase()).join(' ')}`
    return parts.length === 1
      ? few
      : `a key of ${name} has ${parts.length} parts (${names.join(', ')}); write them one after another, as in "${typed}", or in a URL with %0A between them`
  }
  const given = `${JSON.stringify(key.split('\n')[wrong])} is no key of ${name}`
  if (parts[wrong]!.kind === 'all') return `${given}: it has one key, "all"`
  if (parts[wrong]!.kind === 'ip') return `${given}: use an address or an IPv6 network of ${ipv6} bits`
  return `${given}: no value is empty`
}
