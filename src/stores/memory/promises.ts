/**
 * What a bucket instance of a store has promised to clients that were rejected, whichever instance rejected them. It is what
 * core/bucket/promises.ts is in one process, with a coarser measure of the room that is kept, as room is leased for frames ahead:
 *
 *     kept = min(all bookings, capacity / 2, rate * longest window + largest booking)
 *
 * Newcomers are admitted, and room is leased, beside that. While it is kept no room grows in leases. It is enough: after a moment t0
 * the level rises by claims alone. What is claimed from t0 to t is at most what was booked, and at most
 *
 *     rate * (t - t0) + rate * window + cost of the first of them,
 *
 * as bookings are as far apart as the cost of the later one takes to drain. The level drains by the first part meanwhile, and the
 * rest is at most half the capacity, as windows are.
 *
 * It has to be known when all of it is over, as the list is only looked at when a client asks or claims: `keptUntil`.
 */
import { type BucketLimits, slackOf } from '../../core/bucket/limits.js'
import { isCost, LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import { LONGEST_WINDOW, windowOf } from '../../core/bucket/promises.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import { type BookingClaim, FRAME, type PromiseAnswer, type PromiseRequest } from '../../core/store.js'
import { MOST_PROMISES, SHORTEST_WINDOW } from '../constants.js'

/**
 * A moment that was told to a client, with a booking; or all promises of the bucket without one. Those are one entry: nobody claims
 * them, so only the last moment and their cost count. Times in ms.
 */
interface StoredPromise {
  /** 0: all that have not booked. */
  readonly client: number
  /** The number of a booking. 0: it keeps no room. */
  readonly booking: number
  readonly cost: number
  readonly at: number
  /** Of a booking: how long it keeps room. Else `at`. */
  readonly until: number
}

/** The part of a bucket's state that promises touch. */
export interface PromisingState {
  rate: number
  leasedRate: number
  leasedUntil: number
  /** In the order of their moments. */
  promises: StoredPromise[]
  /** Cost units that are kept from newcomers, until `keptUntil`. */
  kept: number
  /** When all promises are over, in ms. -Infinity: there are none. */
  keptUntil: number
}

/** The room that is kept from newcomers. */
export function reservedOf({ kept, keptUntil }: PromisingState, now: number): number {
  return now <= keptUntil ? kept : 0
}

/** @param level of the bucket, at `now` */
export function promise(state: PromisingState, level: number, request: PromiseRequest, now: number): PromiseAnswer {
  const { limits } = request.bucket
  state.promises = state.promises.flatMap(each => remaining(each, state.rate, now))
  const answer = repeat(state, request, now) ?? promiseNew(state, level, request, now)
  keepRoom(state, limits)
  return answer
}

/** What its client was promised before, once more. Undefined: nothing, or it does not hold any more. */
function repeat(state: PromisingState, { client, cost, fit }: PromiseRequest, now: number): PromiseAnswer | undefined {
  const known = state.promises.find(each => isBooked(each) && each.client === client)
  if (known === undefined) return undefined
  if (known.at > now || known.until >= now + fit) {
    return answerOf(known, known.at > now ? known.at - now : fit, cost, now)
  }
  state.promises = state.promises.filter(each => each !== known)
  return undefined
}

function promiseNew(state: PromisingState, level: number, request: PromiseRequest, now: number): PromiseAnswer {
  const { bucket, cost, client, booking, fit } = request
  const { limits } = bucket
  const { rate } = state
  const last = state.promises.at(-1)?.at ?? -Infinity
  const free = limits.capacity - sumOf(state.promises) - cost
  if (state.promises.length >= MOST_PROMISES || !isCost(cost + request.more) || free < -LEVEL_TOLERANCE) {
    return { after: Math.max(fit, last - now), booking: 0, window: 0, made: false, more: 0 }
  }
  const room = Math.min(limits.capacity, rate * request.maxWait + slackOf(limits, cost) + cost)
  const window = booking === 0 ? 0 : storedWindowOf(cost, room, limits)
  // What is leased may still grow. All that is booked fits before what is booked.
  const growing = window > 0 ? state.leasedRate * Math.max(0, state.leasedUntil - now) : 0
  const kept = window > 0 ? sumOf(state.promises.filter(isBooked)) : reservedOf(state, now)
  const ahead = Math.max(0, level + growing + kept + cost - room)
  const moment = Math.max(last + cost / rate, now + ahead / rate)
  // A client that something else delays for longer must not delay the others.
  const isDelayed = fit - (moment - now) > Math.max(cost / rate, FRAME)
  const at = isDelayed ? moment : Math.max(moment, now + fit)
  if (window > 0 && !isDelayed) {
    const made = { client, booking, cost, at, until: at + window }
    state.promises.push(made)
    return answerOf(made, at - now, cost, now)
  }
  const more = Math.min(request.more, Math.max(0, free))
  const plain = state.promises.find(each => !isBooked(each))
  const end = at + more / rate
  state.promises = state.promises.filter(isBooked)
  state.promises.push({ client: 0, booking: 0, cost: (plain?.cost ?? 0) + cost + more, at: end, until: end })
  return { after: at - now, booking: 0, window: 0, made: true, more }
}

/** The promise that is claimed. Undefined: there is none, or no more. */
export function claimed(
  state: PromisingState,
  { client, booking }: BookingClaim,
  cost: number,
): StoredPromise | undefined {
  const found = state.promises.find(each => each.client === client && each.booking === booking)
  return found !== undefined && Math.abs(found.cost - cost) <= LEVEL_TOLERANCE ? found : undefined
}

/** Whether its moment has come, and is not over. */
export function isDue({ at, until }: StoredPromise, now: number): boolean {
  return at <= now + SAME_TIME && now <= until
}

/** It has been admitted. */
export function redeem(state: PromisingState, promise: StoredPromise, limits: BucketLimits): void {
  state.promises = state.promises.filter(each => each !== promise)
  keepRoom(state, limits)
}

/** The clock went back by this, in ms. It is negative. */
export function shiftPromises(state: PromisingState, by: number): void {
  state.keptUntil += by
  state.promises = state.promises.map(each => ({ ...each, at: each.at + by, until: each.until + by }))
}

function answerOf({ booking, cost, until }: StoredPromise, after: number, asked: number, now: number): PromiseAnswer {
  const isOther = Math.abs(cost - asked) > LEVEL_TOLERANCE
  const window = isOther ? 0 : Math.max(0, until - now - after)
  return { after, booking: isOther ? 0 : booking, window, made: true, more: 0 }
}

/** An answer of the store takes its time, so there are no short windows. */
function storedWindowOf(cost: number, room: number, limits: BucketLimits): number {
  // An overflow is a fault there, and has to be waited out.
  if (limits.blockFor !== undefined || limits.overflow === 'fill') return 0
  const window = windowOf(cost, room, limits)
  return window < SHORTEST_WINDOW ? 0 : window
}

function keepRoom(state: PromisingState, { capacity }: BucketLimits): void {
  let largest = 0
  state.keptUntil = -Infinity
  for (const { booking, cost, until } of state.promises) {
    if (booking !== 0) largest = Math.max(largest, cost)
    state.keptUntil = Math.max(state.keptUntil, until)
  }
  const booked = sumOf(state.promises.filter(isBooked))
  state.kept = Math.min(booked, capacity / 2, state.rate * LONGEST_WINDOW + largest)
}

/** What is left of it: nothing once it is over. Of the promises without bookings those are over whose moments have come. */
function remaining(promise: StoredPromise, rate: number, now: number): StoredPromise[] {
  const { cost, at, until } = promise
  if (isBooked(promise)) return until >= now ? [promise] : []
  return at > now ? [{ ...promise, cost: Math.min(cost, rate * (at - now)) }] : []
}

function isBooked({ booking }: StoredPromise): boolean {
  return booking !== 0
}

function sumOf(promises: readonly StoredPromise[]): number {
  return promises.reduce((sum, { cost }) => sum + cost, 0)
}
