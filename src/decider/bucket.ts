/** A bucket instance of a store (sharing/store.ts), and its place in an operation. Moments in ms of the store's clock, costs in cost units. */
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { PERIODS_BEHIND, QUOTA_BEHIND, QUOTA_ROOM, SAME_SLOT, SHIFTED, SHORTEST_GRACE, STALL } from './constants.js'
import { isCost } from './costs.js'
import type { BucketLeases } from './leases.js'

export interface Bucket {
  level: number
  /** When it was changed last: a clock that goes back is noticed by it. -Infinity: never. */
  at: number
  /** When what was granted has drained. */
  free: number
  /** When a block ends. Infinity: when drained. -Infinity: no block. */
  blocked: number
  /** Cost units per ms that it was used with last. */
  rate: number
  /** The part of the rate at which leased room drains, in cost units per ms. The level does not drain by it. */
  leasedRate: number
  /** All of that ends by then. */
  leasedUntil: number
  /** The room that is leased, in cost units, which counts in the level. That does not drain below. */
  leasedRoom: number
  leases: BucketLeases | undefined
  /** Room that is kept from newcomers, until `keptUntil`. */
  kept: number
  /** When all promises are over. -Infinity: there are none. */
  keptUntil: number
  promises: StoredPromise[] | undefined
}

/** A booking, a client's promise without one, or all others as one entry: of these only their last moment and cost count. */
export interface StoredPromise {
  /** 0: all others. */
  readonly client: number
  /** The number of a booking. 0: it keeps no room. */
  readonly booking: number
  cost: number
  at: number
  /** Of a booking: how long it keeps room. Else `at`. */
  until: number
}

/** A bucket of a stack, with what the operation costs in it. */
export interface BucketPlace {
  bucket: Bucket
  capacity: number
  /** 0: none. */
  burst: number
  /** Whether an overflow fills it. */
  fills: boolean
  /** ms. 0: an overflow does not block it. Infinity: until it has drained. */
  blockFor: number
  cost: number
  /** Whether a booking of it is claimed that is due. */
  isDue: boolean
  /** While it is decided: the level, the room that is kept, why the bucket refuses (0: it does not), */
  level: number
  reserved: number
  reason: number
  /** and for a claim when the slot can be, and how long it lasts. */
  free: number
  length: number
}

export function newBucket(rate: number): Bucket {
  return {
    level: 0,
    at: -Infinity,
    free: -Infinity,
    blocked: -Infinity,
    rate,
    leasedRate: 0,
    leasedUntil: -Infinity,
    leasedRoom: 0,
    leases: undefined,
    kept: 0,
    keptUntil: -Infinity,
    promises: undefined,
  }
}

/**
 * A bucket that was reset: its schedule begins now. Slots that count from before (schedule.ts) would let those who have waited leave
 * in a burst.
 */
export function emptiedBucket(rate: number, now: number): Bucket {
  const bucket = newBucket(rate)
  bucket.at = now
  bucket.free = now
  return bucket
}

/**
 * Before `openBucket`. A bucket that becomes a quota, or a rate, starts anew.
 *
 * The level of a quota does not drain, as all of its room is leased, to nobody, until its period is over. That room is larger than
 * any other, and stands for the period: instances whose clocks differ have to mean the same one. The first that is in the next
 * period begins it. Others that are still in the former one count in the new one.
 *
 * @param period stands for the period of a quota: more than `QUOTA_ROOM`, and than that of an earlier one. 0: it is none
 * @param lasts ms of the period
 */
export function openPeriod(bucket: Bucket, period: number, lasts: number, now: number): void {
  if (period === 0 ? bucket.leasedRoom <= QUOTA_ROOM : period <= bucket.leasedRoom) return
  bucket.level = 0
  bucket.at = now
  bucket.free = -Infinity
  bucket.blocked = -Infinity
  bucket.leasedRate = 0
  bucket.leasedUntil = period === 0 ? -Infinity : now + lasts + QUOTA_BEHIND
  bucket.leasedRoom = period
  bucket.leases = undefined
  bucket.kept = 0
  bucket.keptUntil = -Infinity
  bucket.promises = undefined
}

/** Before each operation. The moments of its leases and promises are not here. */
export function openBucket(bucket: Bucket, rate: number, now: number): void {
  if (now < bucket.at) shift(bucket, now)
  if (bucket.rate !== rate) {
    // The time until the next slot passes at the present rate.
    if (bucket.free > now) bucket.free = now + ((bucket.free - now) * bucket.rate) / rate
    bucket.rate = rate
    change(bucket, 0, now)
  }
  // A block until drained must not come back with the level.
  if (bucket.blocked === Infinity && levelOf(bucket, now) <= LEVEL_TOLERANCE) {
    bucket.blocked = -Infinity
    change(bucket, 0, now)
  }
}

/** The clock went back: all moments go with it, as no time has passed. */
function shift(bucket: Bucket, now: number): void {
  const by = now - bucket.at
  bucket.at = now
  bucket.free += by
  bucket.blocked += by
  bucket.leasedUntil += by
  bucket.keptUntil += by
}

export function levelOf({ level, at, rate, leasedRate, leasedUntil, leasedRoom }: Bucket, now: number): number {
  if (level === 0) return 0
  const drained = Math.max(0, now - at) * rate
  if (leasedUntil === -Infinity) return Math.max(0, level - drained)
  const grown = leasedRate * Math.max(0, Math.min(now, leasedUntil) - at)
  // What was given back may have left less than that.
  const room = Math.min(level, leasedRoom)
  return Math.max(0, level - drained + grown, room - rate * Math.max(0, now - leasedUntil))
}

/**
 * The level, or what the schedule holds before one request: a slot that was given back before the last one is nobody's, and what waits
 * behind it waits longer than the level says. While slots are leased the schedule is ahead of what waits (leases.ts). So is the first slot
 * of an idle bucket, so that its answer is in time: by `lead` ms, and for another instance by less than a request takes.
 */
export function occupiedOf({ bucket, cost }: BucketPlace, lead: number, now: number): number {
  const level = levelOf(bucket, now)
  const { free, rate, leasedUntil } = bucket
  const granted = (free - now - lead) * rate - cost
  // Comparisons with NaN are false.
  return leasedUntil <= now && granted > level ? granted : level
}

/** Each change is dated. */
export function change(bucket: Bucket, by: number, now: number): void {
  const level = bucket.at === now ? bucket.level : levelOf(bucket, now)
  bucket.level = Math.max(0, level + by)
  bucket.at = now
}

/** The room that is kept from newcomers. */
export function reservedOf({ kept, keptUntil }: Bucket, now: number): number {
  return now <= keptUntil ? kept : 0
}

interface GivenBack {
  /** ms. -Infinity: none. */
  slot: number
  slotCost: number
  /** Whether it counts from before its moment (schedule.ts). */
  isOwn: boolean
}

/** Gives back what it costs, and a slot for another cost. Of a burst, if no slot lies ahead, what has not drained yet. */
export function giveBack(
  { bucket, burst, cost }: BucketPlace,
  { slot, slotCost, isOwn }: GivenBack,
  now: number,
): void {
  change(bucket, -cost, now)
  const { free, rate } = bucket
  const length = slotCost / rate
  const slack = Math.max(0, burst - slotCost) / rate
  const behind = free - slot - slack - length
  const earliest = isOwn && burst === 0 ? -graceOf(rate) : 0
  const isLast = behind <= Math.max(SAME_SLOT, Math.min(SHIFTED, length / 8)) && behind >= earliest - SAME_SLOT
  // A slot of a burst may look like the last one though another was granted since. Then what has drained of it since stays drained. A stall
  // is shorter: all that has missed the same moment leaves together a little later.
  if (isLast && (burst === 0 || now - slot < STALL)) bucket.free = free - length
  else if (isLast || free <= now + burst / rate) bucket.free = free - Math.max(0, length - Math.max(0, now - slot))
}

/** ms. How much a bucket that is not the last of its stack may count a slot from before. */
export function graceOf(rate: number): number {
  return Math.max(PERIODS_BEHIND / rate, SHORTEST_GRACE)
}

/** Returns by how much it has changed, in its level or its schedule, whichever is more. */
export function settle({ bucket, capacity, cost }: BucketPlace, now: number): number {
  const { rate } = bucket
  const difference = isCost(Math.abs(cost)) ? cost : 0
  const free = Math.max(bucket.free, now)
  if (bucket.leasedRoom > QUOTA_ROOM) {
    const before = levelOf(bucket, now)
    change(bucket, difference, now)
    return bucket.level - before
  }
  const held = (free - now) * rate
  const moved = Math.max(-held, Math.min(difference, Math.max(0, capacity - held)))
  bucket.free = Math.max(now, free + moved / rate)
  const level = levelOf(bucket, now)
  change(bucket, difference < 0 ? difference : moved, now)
  return difference < 0 ? Math.min(moved, bucket.level - level) : moved
}
