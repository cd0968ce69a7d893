/** DELETE of a key: makes its bucket as new but for who waits. */
import { slackOf } from '../../core/bucket/limits.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import { StoredBucket } from '../../core/shared/stored-bucket.js'
import type { ProxyContext } from '../../proxy/context.js'
import { bucketsOf } from '../buckets-in-use.js'
import { presentInstance } from './instance.js'

/** The effect of a reset. Costs are in cost units. */
export interface Reset {
  /** What had passed and is forgotten. */
  readonly forgotten: number
  /** Requests that still wait. */
  readonly waiting: number
  /** What the bucket holds now. */
  readonly level: number
  /** How long the last of them waits for this bucket alone, in ms, if all cost the same. */
  readonly lastWaitMs: number
}

/** @returns the effect, as far as this process knows it. Undefined: there is no such bucket */
export async function resetKey(context: ProxyContext, name: string, key: string): Promise<Reset | undefined> {
  const { bucketTable, sharing, shaper, clock } = context
  const settings = bucketsOf(context).find(bucket => bucket.name === name)
  if (settings === undefined) return undefined
  const bucket = await presentInstance(context, settings, key)
  const now = clock.now()
  const forgotten = Math.max(0, bucket.level(now) - bucket.queued)
  bucketTable.hold(bucket)
  if (bucket instanceof StoredBucket) await sharing!.reset(bucket)
  else shaper.control.reset(bucket)
  const { waiting, queued, limits } = bucket
  const level = bucket.occupancy(clock.now())
  bucketTable.rest(bucket)
  return { forgotten, waiting, level, lastWaitMs: lastWait(limits, { waiting, queued, level }) }
}

/** The last request leaves when everything but its own cost has drained, down to its slack. Its cost is assumed to be the mean. */
export function lastWait(
  limits: SharedBucket['limits'],
  { waiting, queued, level }: { readonly waiting: number; readonly queued: number; readonly level: number },
): number {
  const { rate } = limits.whole ?? limits
  const cost = waiting === 0 ? level : queued / waiting
  return Math.ceil(Math.max(0, level - cost - slackOf(limits, cost)) / rate)
}
