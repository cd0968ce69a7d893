/**
 * Verbs of a store that has the records of the decider at hand: the memory store, and one that has locked them on a server. All are
 * at one moment, and moments are by the clock of the records.
 */

import { decideAdmission, timeUntilAdmitted } from '../decider/admission.js'
import { claimed, redeem } from '../decider/appointments.js'
import { type Bucket, type BucketPlace, change, openBucket, openPeriod, reservedOf } from '../decider/bucket.js'
import { TOO_COSTLY } from '../decider/constants.js'
import { costOfRef } from '../decider/costs.js'
import { type LeaseReport, lease } from '../decider/leases.js'
import type { BucketRef, LeaseAnswer, LeaseRequest } from '../decider/record.js'
import { type Claim, claim } from '../decider/schedule.js'
import type { Admission, AdmitRequest, ClaimAnswer, ClaimRequest } from '../sharing/store.js'
import { REASONS } from './constants.js'
import { periodOf } from './doubles.js'

/** Where the slots of a claim may lie, in ms from now: as far ahead as the horizon, and `longestBackDate` back. */
export interface Reach {
  horizon: number
  back: number
}

/** Opens a bucket for an operation. @param whole what the operation costs, in buckets without a cost of their own */
export function placeOf(bucket: Bucket, ref: BucketRef, whole: number, now: number): BucketPlace {
  const { rate, capacity, burst = 0, overflow, blockFor = 0, quota } = ref.limits
  const [period, lasts] = periodOf(quota)
  openPeriod(bucket, period, lasts, now)
  openBucket(bucket, rate, now)
  // In one piece: it is made for each request.
  return {
    bucket,
    capacity,
    burst,
    fills: overflow === 'fill',
    blockFor: blockFor === 'drain' ? Infinity : blockFor,
    cost: costOfRef(ref, whole),
    isDue: false,
    level: 0,
    reserved: 0,
    reason: 0,
    free: 0,
    length: 0,
  }
}

type Claiming = Omit<ClaimRequest, 'stack' | 'cost'>

export function claimIn(places: readonly BucketPlace[], request: Claiming, reach: Reach, now: number): ClaimAnswer {
  const { since, ahead = 0, notBefore = -Infinity, within = Infinity, own = 0 } = request
  const { horizon, back } = reach
  const asked: Claim = { since, ahead, notBefore, within, horizon, back, own, at: now, from: now }
  if (!claim(places, asked, now)) return { granted: false, freeAt: places.map(({ free }) => free) }
  return { granted: true, slot: { at: asked.at, from: asked.from, token: asked.at } }
}

export function admitIn(places: readonly BucketPlace[], request: AdmitRequest, reach: Reach, now: number): Admission {
  const { maxWait, booked, ahead = 0 } = request
  const place = booked && places[booked.place]
  const booking = place && claimed(place, booked!, now)
  const reason = decideAdmission(places, { maxWait, lead: Math.max(0, -reach.back) }, now)
  const levels = places.map(({ level }) => level)
  if (reason !== 0) {
    const retryAfterMs = reason === TOO_COSTLY ? undefined : timeUntilAdmitted(places, maxWait, now)
    const refusing = places.flatMap((place, index) => (place.reason === reason ? [index] : []))
    return { admitted: false, levels, reason: REASONS[reason - 1]!, refusing, retryAfterMs }
  }
  if (booking !== undefined) redeem(place!, booking)
  if (!request.claim || booked !== undefined) return { admitted: true, levels }
  return { admitted: true, levels, claim: claimIn(places, { since: 0, ahead, own: places.length - 1 }, reach, now) }
}

export function leaseIn({ bucket }: BucketPlace, request: LeaseRequest, now: number): LeaseAnswer {
  change(bucket, 0, now)
  const answer = lease(bucket, known(request, reservedOf(bucket, now)), now)
  return { ...answer, slots: answer.slots.map(({ at, cost }) => ({ at, cost, token: at })) }
}

/** What is no number in a report counts as 0. */
function known(report: LeaseRequest, reserved: number): LeaseReport {
  const { largest, held, drained, kept, want, ahead, lacks, pace, demand, returned } = report
  return {
    ...{ ...report, reserved, largest: largest || 0, held: held || 0, want: want || 0 },
    ...{ ahead: ahead || 0, lacks: lacks || 0, pace: pace || 0, drained: drained || 0, kept: kept || 0 },
    demand: demand.map(each => ({ ...each, cost: each.cost || 0 })),
    returned: returned.map(({ token, cost }) => ({ at: token as number, cost: cost || 0 })),
  }
}
