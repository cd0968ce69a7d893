/**
 * When a claim can have its slot, in the schedules of the buckets of a stack (sharing/store.ts). It is at one moment in all of them.
 *
 * A request that waits for a bucket behind is late in those before it, and not idle (core/bucket/queued-bucket.ts). These, the
 * first `own` of them, date it by when it was there and they were free, at most some periods before its slot.
 */
import { type BucketPlace, change, graceOf } from './bucket.js'
import { MOST_AHEAD, QUOTA_ROOM, SAME_SLOT } from './constants.js'
import { isCost } from './costs.js'

/** Durations in ms, moments in ms of the store's clock. */
export interface Claim {
  since: number
  /** -Infinity: at any time. */
  notBefore: number
  /** Infinity: any. */
  within: number
  /** How far ahead the slot may be, and how much further because of the last bucket. How far back. */
  horizon: number
  ahead: number
  back: number
  own: number
  /** Its slot, and from when it may be used: nobody else has the time between. */
  at: number
  from: number
}

/** Whether it is granted. */
export function claim(places: readonly BucketPlace[], asked: Claim, now: number): boolean {
  const { notBefore, within } = asked
  const earliest = Math.max(now - Math.min(asked.since, asked.back), notBefore)
  const inTurn = Math.max(now, earliest) + SAME_SLOT
  let isRefused = false
  let at = earliest
  let before = earliest
  let last = -Infinity
  let free = Math.max(now, notBefore)
  for (const place of places) {
    isRefused = !setUp(place) || isRefused
    // Those who lease are in turn.
    const { leasedUntil, leasedRoom } = place.bucket
    if (place.free > inTurn && leasedUntil > now && leasedRoom < QUOTA_ROOM) isRefused = true
    before = at
    last = place.free
    at = Math.max(at, place.free)
    free = Math.max(free, place.free)
  }
  const wanted = Math.min(notBefore + (within < Infinity ? within : 0), now + MOST_AHEAD)
  const furthest = Math.max(now + asked.horizon, wanted)
  // The last bucket would be idle meanwhile.
  if (before > furthest && last < before) isRefused = true
  if (isRefused || at > furthest + asked.ahead || at - notBefore > within) {
    for (const place of places) place.free = Math.max(now, place.free)
    return false
  }
  asked.at = at
  asked.from = Math.min(at, free)
  takeSlot(places, asked, now)
  return true
}

function takeSlot(places: readonly BucketPlace[], { at, since, own }: Claim, now: number): void {
  for (let index = 0; index < places.length; index += 1) {
    const place = places[index]!
    const { bucket, length } = place
    if (bucket.at !== now) change(bucket, 0, now)
    // A quota has no schedule: what waits for another bucket of its stack must not delay other stacks.
    if (bucket.leasedRoom >= QUOTA_ROOM) continue
    bucket.free = Math.max(bucket.free, index < own ? dateOf(place, at, now - since) : at) + length
  }
}

/** Whether it has a cost that the bucket can count. */
function setUp(place: BucketPlace): boolean {
  const { bucket, burst } = place
  const isCounted = isCost(place.cost)
  const cost = isCounted ? place.cost : 0
  place.free = bucket.free - Math.max(0, burst - cost) / bucket.rate
  place.length = cost / bucket.rate
  return isCounted
}

/** From when a slot counts in a bucket that is not the last of its stack. */
function dateOf({ bucket, burst, free }: BucketPlace, at: number, arrivedAt: number): number {
  return burst > 0 ? at : Math.min(at, Math.max(free, at - graceOf(bucket.rate), arrivedAt))
}
