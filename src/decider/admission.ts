/** Whether every bucket of a stack takes the cost of a request (sharing/store.ts). */
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import { type BucketPlace, occupiedOf } from './bucket.js'
import { BLOCKED, MAX_WAIT, OVERFLOW, TOO_COSTLY } from './constants.js'

/** ms: how long it may wait, and how far ahead its slot lies at least. */
export interface AdmissionTerms {
  maxWait: number
  lead: number
}

/** Admits it, or does what its buckets do if they overflow. Returns the reason against it; 0: it is admitted. */
export function decideAdmission(places: readonly BucketPlace[], terms: AdmissionTerms, now: number): number {
  const reason = judge(places, terms, now)
  for (const place of places) {
    if (reason === 0) raise(place, place.level + place.cost, now)
    else if (reason === OVERFLOW && place.reason === OVERFLOW) applyOverflowPolicy(place, now)
  }
  return reason
}

function raise(place: BucketPlace, level: number, now: number): void {
  place.level = level
  place.bucket.level = level
  place.bucket.at = now
}

function applyOverflowPolicy(place: BucketPlace, now: number): void {
  const { bucket, level, capacity, fills, blockFor } = place
  if (fills || blockFor > 0) raise(place, fills ? Math.max(level, capacity) : level, now)
  if (blockFor > 0) bucket.blocked = now + blockFor
}

/** The first of the reasons, in their order, for which any bucket refuses; 0: none does. */
export function judge(places: readonly BucketPlace[], { maxWait, lead }: AdmissionTerms, now: number): number {
  let first = 0
  for (const place of places) {
    const { bucket } = place
    place.level = occupiedOf(place, lead, now)
    place.reserved = now <= bucket.keptUntil && !place.isDue ? bucket.kept : 0
    const reason = reasonOf(place, maxWait, now)
    place.reason = reason
    if (reason > 0 && (first === 0 || reason < first)) first = reason
  }
  return first
}

function reasonOf(
  { bucket, level, reserved, cost, capacity, burst }: BucketPlace,
  maxWait: number,
  now: number,
): number {
  // Comparisons with NaN are false.
  if (!(cost >= 0 && cost - capacity <= LEVEL_TOLERANCE)) return TOO_COSTLY
  if (bucket.blocked > now) return BLOCKED
  if (level + reserved + cost - capacity > LEVEL_TOLERANCE) return OVERFLOW
  if ((level + reserved - Math.max(0, burst - cost)) / bucket.rate - SAME_TIME > maxWait) return MAX_WAIT
  return 0
}

/** ms until what was just judged would be admitted if nobody else came. */
export function timeUntilAdmitted(places: readonly BucketPlace[], maxWait: number, now: number): number {
  let time = 0
  for (const { bucket, level, reserved, cost, capacity, burst } of places) {
    const { rate, blocked } = bucket
    const target = blocked === Infinity ? 0 : Math.min(capacity - cost, rate * maxWait + Math.max(0, burst - cost))
    time = Math.max(time, (level + reserved - target) / rate)
    if (blocked < Infinity) time = Math.max(time, blocked - now)
  }
  return time
}
