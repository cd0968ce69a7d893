/**
 * What a bucket instance of a store has promised to rejected clients, whichever instance rejected them: as
 * core/bucket/promises.ts, with a coarser measure of the room that is kept, as room is leased for frames ahead:
 *
 *     kept = min(all bookings, capacity / 2, rate * longest window + largest booking)
 *
 * Newcomers are admitted, and room is leased, beside that. While it is kept no room grows in leases. It is enough: after a
 * moment t0 the level rises by claims alone. What is claimed from t0 to t is at most what was booked, and at most
 *
 *     rate * (t - t0) + rate * window + cost of the first of them,
 *
 * as bookings are as far apart as the cost of the later one takes to drain. The level drains by the first part meanwhile, and
 * the rest is at most half the capacity, as windows are. The list is only looked at when a client asks or claims: `keptUntil`
 * says when it is over.
 */
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import { type Bucket, type BucketPlace, change, reservedOf, type StoredPromise } from './bucket.js'
import { FRAME, MOST_NAMED, MOST_PROMISES, SHORTEST_WINDOW } from './constants.js'
import { isCost, LONGEST_WINDOW, slackOf, windowOf } from './costs.js'
import type { AppointmentAnswer, AppointmentRequest, Redemption } from './record.js'

type Appointment = Omit<AppointmentRequest, 'bucket'>

export function appoint(place: BucketPlace, request: Appointment, now: number): AppointmentAnswer {
  const { bucket } = place
  // What is asked for is the cost in this bucket.
  place.cost = request.cost
  change(bucket, 0, now)
  forgetOver(bucket, now)
  const answer = repeat(place, request, now) ?? promiseNew(place, request, now)
  keepRoom(place)
  return answer
}

/** What its client was promised before, once more. Undefined: nothing, or it does not hold any more. */
function repeat(
  { bucket, cost }: BucketPlace,
  { client, fit }: Appointment,
  now: number,
): AppointmentAnswer | undefined {
  for (const known of listOf(bucket)) {
    if (client !== 0 && known.client === client) {
      // Those without a booking that are over are forgotten by now.
      if (known.at > now || known.until >= now + fit) {
        return answerOf(known, known.at > now ? known.at - now : fit, cost, now)
      }
      drop(bucket, known)
      return undefined
    }
  }
  return undefined
}

function promiseNew(place: BucketPlace, request: Appointment, now: number): AppointmentAnswer {
  const { bucket, capacity, cost } = place
  const { client, booking, fit } = request
  const { rate } = bucket
  const promises = listOf(bucket)
  const last = promises.length === 0 ? -Infinity : promises[promises.length - 1]!.at
  const { all, booked } = sumsOf(bucket)
  const free = capacity - all - cost
  if (promises.length >= MOST_PROMISES || !isCost(cost) || !isCost(request.more) || free < -LEVEL_TOLERANCE) {
    return { after: Math.max(fit, last - now), booking: 0, window: 0, made: false, more: 0 }
  }
  const room = Math.min(capacity, rate * request.maxWait + slackOf(place, cost) + cost)
  const window = booking === 0 ? 0 : storedWindowOf(place, room)
  // What is leased may still grow. All that is booked fits before what is booked.
  const growing = window > 0 ? bucket.leasedRate * Math.max(0, bucket.leasedUntil - now) : 0
  const kept = window > 0 ? booked : reservedOf(bucket, now)
  const ahead = Math.max(0, bucket.level + growing + kept + cost - room)
  const moment = Math.max(last + cost / rate, now + ahead / rate)
  // A client that something else delays for longer must not delay the others.
  const isDelayed = fit - (moment - now) > Math.max(cost / rate, FRAME)
  const at = isDelayed ? moment : Math.max(moment, now + fit)
  if (window > 0 && !isDelayed) {
    const made = { client, booking, cost, at, until: at + window }
    promises.push(made)
    return answerOf(made, at - now, cost, now)
  }
  const more = Math.min(request.more, Math.max(0, free))
  addPlain(bucket, { client, cost, at }, more)
  return { after: at - now, booking: 0, window: 0, made: true, more }
}

/**
 * Without a booking. The client that asks has an entry of its own, so that it is told the same in every instance, as long as there
 * are few. All others are one entry.
 */
function addPlain(bucket: Bucket, asked: Pick<StoredPromise, 'client' | 'cost' | 'at'>, more: number): void {
  const { client, cost, at } = asked
  let named = 0
  for (const each of listOf(bucket)) if (each.booking === 0 && each.client !== 0) named += 1
  const isNamed = client !== 0 && named < MOST_NAMED
  if (isNamed) listOf(bucket).push({ client, booking: 0, cost, at, until: at })
  const rest = isNamed ? more : cost + more
  if (rest > 0 || !isNamed) addOther(bucket, rest, at + more / bucket.rate)
}

function addOther(bucket: Bucket, cost: number, at: number): void {
  const added = { client: 0, booking: 0, cost, at, until: at }
  for (const each of listOf(bucket)) {
    if (each.booking === 0 && each.client === 0) {
      added.cost += each.cost
      drop(bucket, each)
      break
    }
  }
  listOf(bucket).push(added)
}

/** The promise that is claimed. Undefined: there is none, or no more. If it is due, the room of others does not count. */
export function claimed(place: BucketPlace, { client, booking }: Redemption, now: number): StoredPromise | undefined {
  for (const each of listOf(place.bucket)) {
    if (each.client === client && each.booking === booking && Math.abs(each.cost - place.cost) <= LEVEL_TOLERANCE) {
      place.isDue = each.at <= now + SAME_TIME && now <= each.until
      return each
    }
  }
  return undefined
}

/** The booking of a request that was admitted is over, also if it came early. */
export function redeem(place: BucketPlace, promise: StoredPromise): void {
  drop(place.bucket, promise)
  keepRoom(place)
}

/** The clock went back by this, in ms. It is negative. */
export function shiftPromises(promises: readonly StoredPromise[], by: number): void {
  for (const each of promises) {
    each.at += by
    each.until += by
  }
}

function answerOf(
  { booking, cost, until }: StoredPromise,
  after: number,
  asked: number,
  now: number,
): AppointmentAnswer {
  const isOther = Math.abs(cost - asked) > LEVEL_TOLERANCE
  const window = isOther ? 0 : Math.max(0, until - now - after)
  return { after, booking: isOther ? 0 : booking, window, made: true, more: 0 }
}

/** An answer of the store takes its time, so there are no short windows. */
function storedWindowOf({ bucket, fills, blockFor, cost }: BucketPlace, room: number): number {
  // An overflow is a fault there, and has to be waited out.
  if (fills || blockFor > 0) return 0
  const window = windowOf(cost, room, bucket)
  return window < SHORTEST_WINDOW ? 0 : window
}

function keepRoom({ bucket, capacity }: BucketPlace): void {
  let largest = 0
  bucket.keptUntil = -Infinity
  for (const { booking, cost, until } of listOf(bucket)) {
    if (booking !== 0) largest = Math.max(largest, cost)
    bucket.keptUntil = Math.max(bucket.keptUntil, until)
  }
  bucket.kept = Math.min(sumsOf(bucket).booked, capacity / 2, bucket.rate * LONGEST_WINDOW + largest)
}

function listOf(bucket: Bucket): StoredPromise[] {
  bucket.promises ??= []
  return bucket.promises
}

/** Forgets bookings that are over and, of the other promises, those whose moments have come. */
function forgetOver(bucket: Bucket, now: number): void {
  const left: StoredPromise[] = []
  for (const each of listOf(bucket)) {
    if (each.booking === 0) each.cost = Math.min(each.cost, bucket.rate * (each.at - now))
    if (each.booking === 0 ? each.at > now : each.until >= now) left.push(each)
  }
  bucket.promises = left
}

function drop(bucket: Bucket, promise: StoredPromise): void {
  const left: StoredPromise[] = []
  for (const each of listOf(bucket)) if (each !== promise) left.push(each)
  bucket.promises = left
}

/** The cost of all, and of those that keep room. */
function sumsOf(bucket: Bucket): { all: number; booked: number } {
  const sums = { all: 0, booked: 0 }
  for (const { booking, cost } of listOf(bucket)) {
    sums.all += cost
    if (booking !== 0) sums.booked += cost
  }
  return sums
}
