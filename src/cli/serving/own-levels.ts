import { bucketsOf } from '../../admin/keys/instance.js'
import type { BucketSettings } from '../../config/settings.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import type { ProxyContext } from '../../proxy/context.js'
import { limitsOf, ownerOf } from '../../proxy/live-limits.js'
import type { Levels, SavedLevel } from '../../stores/memory/levels-file.js'

/** Undefined: it is idle. */
function levelOf(instance: SharedBucket, at: number): Omit<SavedLevel, 'bucket' | 'key'> | undefined {
  const { rate, tier, quota } = instance.limits
  const level = instance.hold(at)
  const blocked = instance.blockedFor(at) > 0 ? instance.extras?.blockedUntil : undefined
  if (level === 0 && blocked === undefined) return undefined
  return {
    ...{ level, at, rate },
    ...(tier !== undefined && { tier }),
    ...(blocked !== undefined && { blocked }),
    ...(quota !== undefined && { quota: quota.end }),
  }
}

/** The levels of the buckets of a proxy without a store. What waits is not in them: it is answered before the end, or lost. */
export function ownLevels(context: ProxyContext): Levels {
  const { bucketTable, clock } = context
  const byName = new Map<string, BucketSettings>(bucketsOf(context).map(bucket => [bucket.name, bucket]))

  function* saved(): Generator<SavedLevel | undefined> {
    for (const bucket of bucketTable.names()) {
      for (const [key, instance] of bucketTable.entries(bucket)) {
        const level = levelOf(instance, clock.now())
        yield level && { bucket, key, ...level }
      }
    }
  }

  function restore({ bucket, key, level, at, rate, tier, blocked = 0, quota }: SavedLevel): boolean {
    const now = clock.now()
    const held = quota === undefined ? Math.max(0, level - (now - at) * rate) : level
    // Nothing is left of it.
    if (held === 0 && (blocked <= now || blocked === Infinity)) return true
    const settings = byName.get(bucket)
    if (settings === undefined || bucketTable.size() >= bucketTable.maxKeys) return false
    const { limits } = ownerOf(context, settings, { key, tier })
    // Of a former period, or of a rate.
    if (limits.quota?.end !== quota) return true
    const instance = bucketTable.find(limitsOf(context, limits, key), key, now)!
    bucketTable.hold(instance)
    instance.set(held, now)
    if (blocked > now) instance.openExtras().blockedUntil = blocked
    bucketTable.rest(instance)
    return true
  }

  return { now: () => clock.now(), saved, restore }
}
