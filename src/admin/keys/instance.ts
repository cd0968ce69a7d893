/** The bucket instance of a key, also where this process knows none. */
import type { BucketSettings, TierSettings } from '../../config/settings.js'
import { QueuedBucket } from '../../core/bucket/queued-bucket.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import { StoredBucket } from '../../core/shared/stored-bucket.js'
import { IDLE_REPORT } from '../../core/store.js'
import type { ProxyContext } from '../../proxy/context.js'
import { limitsOf } from '../../proxy/live-limits.js'
import type { Instance } from '../counters/fullest.js'
import type { WatchedSnapshot } from '../snapshot/snapshot.js'
import { endOfOverride, instanceState } from './key-state.js'

/** A new one, which is in no table. */
export function newInstance(context: ProxyContext, settings: BucketSettings, key: string): SharedBucket {
  const { limits } = tierOfKey(context, settings, key) ?? settings
  const own = limitsOf(context, limits, key)
  return context.sharing?.createBucket(own, key) ?? new QueuedBucket(own)
}

/** The tier of requests with a key, as far as no header is needed to know it. Undefined: none. */
function tierOfKey({ routes }: ProxyContext, { name }: BucketSettings, key: string): TierSettings | undefined {
  const used = routes.flatMap(({ buckets }) => buckets).find(({ settings }) => settings.name === name)
  return used?.tier(key, { rawHeaders: [] })
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

/** No instance has this name: those are not below 0. */
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
