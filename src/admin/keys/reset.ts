/** DELETE of a key: empties its bucket except for the requests that wait. */

import { ANY_RATE, isAnyRate } from '../../config/derived/default-capacity.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import { slackOf } from '../../decider/costs.js'
import type { ProxyContext } from '../../proxy/context.js'
import { StoredBucket } from '../../sharing/stored-bucket.js'
import type { InstanceSnapshot } from '../snapshot/snapshot.js'
import { bucketsOf, presentInstance } from './instance.js'

export interface Reset {
  /** What had passed and is forgotten. */
  readonly forgotten: number
  readonly waiting: number
  readonly level: number
  /** How long the last of them waits for this bucket alone, in ms, if all cost the same. Absent: the bucket has no rate. */
  readonly lastWaitMs?: number
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
  else shaper.engine.reset(bucket)
  const { waiting, queued, limits } = bucket
  const level = bucket.occupancy(clock.now())
  bucketTable.rest(bucket)
  return { forgotten, waiting, level, ...lastWait(limits, { waiting, queued, level }) }
}

/** Adds the requests that wait for the key in other programs on the store. This program counted them as released. */
export function withWaitingElsewhere(reset: Reset, others: readonly InstanceSnapshot[]): Reset {
  const [one] = others
  if (one === undefined) return reset
  const elsewhere = others.reduce((sum, { queued }) => sum + queued, 0)
  const waitingElsewhere = others.reduce((sum, other) => sum + other.waiting, 0)
  if (waitingElsewhere === 0) return reset
  const waiting = reset.waiting + waitingElsewhere
  const level = reset.level + elsewhere
  // A request that has just left here is in the level, but does not wait. So the mean cost is taken from the requests elsewhere.
  const queued = (elsewhere / waitingElsewhere) * waiting
  return {
    forgotten: Math.max(0, reset.forgotten - elsewhere),
    ...{ waiting, level, ...lastWait(shownLimits(one), { waiting, queued, level }) },
  }
}

export function shownLimits({
  rate,
  capacity,
  burst,
}: Pick<InstanceSnapshot, 'rate' | 'capacity' | 'burst'>): BucketLimits {
  return {
    name: '',
    rate: rate === null ? ANY_RATE : rate / 1_000,
    capacity: capacity ?? Infinity,
    ...(burst !== undefined && { burst }),
  }
}

/** The last request leaves when everything but its own cost has drained, down to its slack. Its cost is assumed to be the mean. */
export function lastWait(
  limits: SharedBucket['limits'],
  { waiting, queued, level }: { readonly waiting: number; readonly queued: number; readonly level: number },
): Pick<Reset, 'lastWaitMs'> {
  const { rate, capacity } = limits.whole ?? limits
  if (isAnyRate({ rate, capacity })) return {}
  const cost = waiting === 0 ? level : queued / waiting
  return { lastWaitMs: Math.ceil(Math.max(0, level - cost - slackOf(limits, cost)) / rate) }
}
