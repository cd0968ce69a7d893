/** DELETE of a key: empties its bucket except for the requests that wait. */

import { isAnyRate } from '../../config/derived/default-capacity.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import { slackOf } from '../../decider/costs.js'
import type { ProxyContext } from '../../proxy/context.js'
import type { Emptied } from '../../sharing/sharing.js'
import { StoredBucket } from '../../sharing/stored-bucket.js'
import { bucketsOf, presentInstance } from './instance.js'

export interface Reset {
  /** What had passed and is forgotten. */
  readonly forgotten: number
  readonly waiting: number
  readonly level: number
  /** How long the last of them waits for this bucket alone, in ms, if all cost the same. Absent: the bucket has no rate. */
  readonly lastWaitMs?: number
}

/** @returns the effect, in all instances of a store. Undefined: there is no such bucket */
export async function resetKey(context: ProxyContext, name: string, key: string): Promise<Reset | undefined> {
  const { bucketTable, clock } = context
  const settings = bucketsOf(context).find(bucket => bucket.name === name)
  if (settings === undefined) return undefined
  const bucket = await presentInstance(context, settings, key)
  const before = bucket.level(clock.now())
  bucketTable.hold(bucket)
  try {
    const { kept, unreported, waiting, queued, level } = await emptied(context, bucket)
    const forgotten = Math.max(0, before + unreported - kept)
    return { forgotten, waiting, level, ...lastWait(bucket.limits, { waiting, queued, level }) }
  } finally {
    bucketTable.rest(bucket)
  }
}

async function emptied({ sharing, shaper, clock }: ProxyContext, bucket: SharedBucket): Promise<Emptied> {
  if (bucket instanceof StoredBucket) return sharing!.reset(bucket)
  shaper.engine.settle()
  const { queued: kept } = bucket
  shaper.engine.reset(bucket)
  const { waiting, queued } = bucket
  return { kept, unreported: 0, waiting, queued, level: bucket.occupancy(clock.now()) }
}

/** The last request leaves when everything but its own cost has drained, down to its slack. Its cost is assumed to be the mean. */
function lastWait(
  limits: SharedBucket['limits'],
  { waiting, queued, level }: { readonly waiting: number; readonly queued: number; readonly level: number },
): Pick<Reset, 'lastWaitMs'> {
  const { rate, capacity } = limits.whole ?? limits
  if (isAnyRate({ rate, capacity })) return {}
  const cost = waiting === 0 ? level : queued / waiting
  return { lastWaitMs: Math.ceil(Math.max(0, level - cost - slackOf(limits, cost)) / rate) }
}
