/**
 * Decides on requests: whether they are admitted, and what their coming and going means for those that wait. The engine
 * decides when they leave (release-engine.ts). Changes of limits and pauses are in reconfigure.ts.
 */

import { bookingOf, claiming, promiseAhead, promiseKept, withPromise } from './admission/appointments.js'
import { decide, placeless, shutOut, timeUntilFit } from './admission/decide.js'
import { makeRoom } from './admission/fair-drop.js'
import type { Newcomer } from './admission/look-ahead.js'
import { exactWaits } from './admission/predicted-wait.js'
import { slackOf } from './bucket/limits.js'
import { isCost } from './bucket/meter.js'
import {
  type Arrival,
  costAt,
  type Demand,
  type Gate,
  type Lane,
  type Rejection,
  type SharedBucket,
  StoredTicket,
  Ticket,
  type Waiter,
} from './queue/lane.js'
import { isFreeFor, SAME_TIME } from './queue/ready-lanes.js'
import { findLane } from './queue/tree.js'
import { Control } from './release/reconfigure.js'
import { Engine, type EngineOptions } from './release/release-engine.js'
import { SetAside } from './release/set-aside.js'
import type { ReleaseMode } from './shared/stored-bucket.js'
import type { ClaimAnswer } from './store.js'
import { NONE } from './structures/compact-list.js'

export type { Arrival, Rejection } from './queue/lane.js'

/** `released`: send it now, its waiter is not called. A ticket: it is queued, its waiter will be called. */
export type Verdict = 'released' | Ticket | Rejection

/** A request that a store has admitted. */
export interface AdmittedArrival {
  readonly arrival: Arrival
  readonly waiter: Waiter
  /** ms since the store has answered. */
  readonly maxWait: number
  /** When the store was asked, in ms. */
  readonly arrivedAt: number
}

const TOO_MANY_WAITING: Rejection = { reason: 'crowded', buckets: [], retryAfterMs: undefined }

export class Shaper {
  /**
   * The most requests that may wait. A newcomer takes the place of the newest one of the client that has most, if that has
   * more than its own. As many shadows of dry runs may be in lanes besides.
   */
  maxQueued: number
  readonly control: Control
  readonly aside: SetAside
  readonly #engine: Engine
  /** Bookings that have been made. */
  #bookings = 0

  constructor(options: EngineOptions & { readonly maxQueued?: number }) {
    this.maxQueued = options.maxQueued ?? Infinity
    this.#engine = new Engine(options)
    this.control = new Control(this.#engine)
    this.aside = new SetAside(this.#engine, arrival => this.#makePlace(arrival))
  }

  /** How requests of a stack pass whose turn it is. */
  releaseModeOf(stack: readonly SharedBucket[]): ReleaseMode {
    return this.#engine.releaseModeOf(stack)
  }

  /** The shards of these buckets have changed how requests pass. */
  releaseModeChanged(buckets: Iterable<SharedBucket>): void {
    this.#engine.releaseModeChanged(buckets)
  }

  /**
   * How long newcomers would wait, each as if it came alone (predicted-wait.ts). It takes a break after each few releases, so that
   * others can go on meanwhile, and looks at things as they are then.
   *
   * @returns ms for each
   */
  exactWaits(newcomers: readonly Newcomer[]): Generator<void, number[]> {
    return exactWaits(newcomers, this.#engine)
  }

  /** How many requests wait. Shadows of dry runs do not count. */
  get queued(): number {
    return this.#engine.queued
  }

  /**
   * Decides on an arrival in a `shape` route: all buckets admit it or none changes. A ticket that has a slot already has left:
   * its waiter is called after the next `wake`.
   *
   * @param maxWait ms. A longer predicted wait is rejected, and a ticket that is still queued after it expires.
   * @param arrivedAt ms. Earlier than now where a store was asked first.
   */
  admit(arrival: Arrival, waiter: Waiter, maxWait = Infinity, arrivedAt?: number): Verdict {
    // What is claimed goes before those that came after its moment.
    const place = arrival.appointment?.claim === undefined ? 'behind' : 'before'
    const now = this.#isCrowded(arrival) ? this.#settleForPlace(arrival, place) : this.#engine.settleFor(arrival, place)
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const asks = claiming(arrival, now)
    const rejection = decide(asks, longest, now, arrival.route.gate.pausedFor(now))
    const victims = rejection && this.#withdrawHeavier(asks, rejection, longest, now)
    let verdict: Verdict
    if (rejection !== undefined && victims === undefined) verdict = this.#rejectOverflow(asks, rejection, longest, now)
    else if (this.#passAtOnce(arrival, now)) verdict = 'released'
    else verdict = this.#lineUp(asks, waiter, maxWait, { arrivedAt: arrivedAt ?? now, now })
    if (verdict === 'released' || verdict instanceof Ticket) promiseKept(arrival, now)
    if (rejection !== undefined && victims !== undefined) this.#displace(victims, rejection.buckets, now)
    this.#engine.notify(verdict instanceof Ticket ? verdict : undefined)
    return verdict
  }

  /**
   * Queues a request that a store has admitted. Its waiter is called after the next `wake`.
   *
   * @param claim the store's answer, if a slot was claimed with the admission
   */
  enqueue({ arrival, waiter, maxWait, arrivedAt }: AdmittedArrival, claim?: ClaimAnswer): Ticket | Rejection {
    const now = this.#engine.settle()
    for (const bucket of arrival.stack) bucket.endBlock(now)
    // The time that asking took does not count against the client's wait.
    const patience = now - arrivedAt + maxWait + this.#engine.patience(arrival.stack)
    const ticket = this.#join(arrival, waiter, patience, arrivedAt)
    if (!(ticket instanceof Ticket)) return ticket
    const { lane } = ticket
    if (ticket instanceof StoredTicket) ticket.counted = true
    const first = lane.tickets.first === ticket
    if (claim !== undefined) this.#engine.offer(ticket, claim, arrivedAt)
    if (first && lane.tickets.first === ticket) this.#engine.contend(ticket, now)
    this.#engine.arrivedAt(arrival.stack)
    return ticket
  }

  /**
   * Puts back a request that has to be sent again, before those that came after it. It was admitted, so levels do not
   * matter. Its waiter is called after the next `wake`. Undefined: it would have to wait too long.
   */
  requeue(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket | undefined {
    const { route, stack } = arrival
    const now = this.#engine.settleFor(arrival, 'before')
    const start = now + route.gate.pausedFor(now)
    const lane = findLane(arrival)
    const times = stack.map((bucket, place) => {
      const { limits } = bucket
      const before = bucket.hold(start) + costBefore(lane, place, arrivedAt) - slackOf(limits, costAt(arrival, place))
      return Math.max(0, before) / limits.rate
    })
    const leaves = start + Math.max(...times)
    if (leaves > arrivedAt + maxWait || this.#isCrowded(arrival)) {
      this.#engine.notify()
      return undefined
    }
    // Also before those that came in the same moment.
    const ticket = this.#engine.join(arrival, waiter, maxWait, arrivedAt - SAME_TIME)
    this.#engine.contend(ticket, now)
    return ticket
  }

  /**
   * Lets requests of others make room for a newcomer in full buckets whose limits say so.
   *
   * @param maxWait ms, less what is left of a pause
   */
  makeRoomFor(arrival: Arrival, full: readonly SharedBucket[], maxWait: number): boolean {
    const now = this.#engine.settle()
    const victims = makeRoom(arrival, full, { maxWait, pause: 0 }, now)
    if (victims !== undefined) this.#displace(victims, full, now)
    this.#engine.notify()
    return victims !== undefined
  }

  /** Whether `makeRoomFor` would make room now. */
  couldMakeRoomFor(arrival: Arrival, full: readonly SharedBucket[], maxWait: number): boolean {
    const now = this.#engine.settle()
    const victims = makeRoom(arrival, full, { maxWait, pause: 0 }, now)
    this.#engine.notify()
    return victims !== undefined
  }

  /**
   * Decides on an arrival in a `meter` route: the same arithmetic, no waiting. After `released` it is in flight: it takes its
   * place in the gate before more is armed.
   */
  meter(arrival: Arrival): 'released' | Rejection {
    const now = this.#engine.settleFor(arrival, 'before')
    const { gate } = arrival.route
    const asks = claiming(arrival, now)
    const rejection = shutOut(gate, now) ?? decide(asks, Infinity, now) ?? placeless(arrival)
    if (rejection === undefined) {
      promiseKept(arrival, now)
      for (const [place, bucket] of arrival.stack.entries()) bucket.fill(costAt(arrival, place), now)
      this.#engine.enter(gate, arrival.stack)
    }
    const verdict = rejection === undefined ? 'released' : this.#rejectOverflow(asks, rejection, Infinity, now)
    this.#engine.notify()
    return verdict
  }

  /**
   * What the client of a request that was rejected just now is told: not the same moment as others (admission/appointments.ts).
   *
   * @param maxWait ms
   * @param instances how many promise like this one
   */
  promise(arrival: Arrival, rejection: Rejection, maxWait = Infinity, instances = 1): Rejection {
    const now = this.#engine.settle()
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const number = (): number => {
      this.#bookings += 1
      return this.#bookings
    }
    const promised = withPromise(arrival, rejection, { now, maxWait: longest, instances, number })
    this.#engine.notify()
    return promised
  }

  /** The number of what a client has booked in the buckets of a request, if its moment has come. */
  bookingOf(demand: Demand, client: string): number | undefined {
    const now = this.#engine.settle()
    const booking = bookingOf(demand, client, now)
    this.#engine.notify()
    return booking
  }

  /**
   * What would become of a request that was rejected, if it came again now. Nothing changes. Undefined: it would be admitted. Until the
   * moment that was promised to its client it would not, though there were room: that is for who was promised an earlier one.
   *
   * @param maxWait ms
   */
  askAgain(arrival: Arrival, mode: 'shape' | 'meter', maxWait: number): Rejection | undefined {
    const now = this.#engine.settle()
    const { gate } = arrival.route
    const asks = claiming(arrival, now)
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const rejection =
      mode === 'shape'
        ? decide(asks, longest, now, gate.pausedFor(now))
        : (shutOut(gate, now) ?? decide(asks, Infinity, now) ?? placeless(arrival))
    const promise = rejection === undefined ? promiseAhead(arrival, now) : undefined
    this.#engine.notify()
    if (promise === undefined) return rejection
    return { reason: 'overflow', buckets: [promise.bucket], retryAfterMs: promise.at - now }
  }

  /** Takes a waiter out of its lane. Those behind it move up. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    if (!this.#engine.cancel(ticket)) return false
    this.#engine.wake()
    return true
  }

  /** As `cancel`, of one of many. `wake` is to be called after the last one. */
  cancelOneOfMany(ticket: Ticket): boolean {
    return this.#engine.cancel(ticket)
  }

  /**
   * Returns the slot of a released ticket that was not sent after all. If it was a bucket's last one, it is used again. Its
   * places in the gate and in its buckets are free already.
   */
  giveBack(ticket: Ticket): void {
    if (ticket.slot === undefined) throw new TypeError('only a released ticket can be given back, and once')
    this.#engine.settleBefore(armed => ticket.lane.stack.every(bucket => armed.recallBucket(bucket)))
    this.#engine.returnSlot(ticket, ticket.slot)
    this.wake(ticket.lane.gate)
  }

  /**
   * Puts back a released ticket that was not sent. Its slot is free again. A store goes on counting its cost. As `requeue`.
   *
   * @param arrivedAt ms. When the request came first.
   */
  putBack(ticket: Ticket, arrival: Arrival, maxWait: number, arrivedAt: number): Ticket | undefined {
    const counted = ticket instanceof StoredTicket && ticket.counted
    if (counted) ticket.counted = false
    this.giveBack(ticket)
    const again = this.requeue(arrival, ticket.waiter, maxWait, arrivedAt)
    const counts = again ?? ticket
    if (counts instanceof StoredTicket) counts.counted = counted
    if (again === undefined) this.#engine.uncount(ticket)
    return again
  }

  /** The release of a ticket is armed and will not be made. Others are armed for it as far as possible. */
  recall({ lane }: Ticket): void {
    this.#engine.settleBefore(armed => armed.recall(lane))
    this.#engine.notify()
  }

  /** A cost passes a bucket without being asked for. What waits leaves accordingly later. */
  count(bucket: SharedBucket, cost: number): void {
    if (!isCost(cost)) return
    bucket.fill(
      cost,
      this.#engine.settleBefore(armed => armed.recallBucket(bucket)),
    )
    this.#engine.notify()
  }

  /** Releases what has become possible. To be called with a gate that opens, and with buckets that requests have left. */
  wake(gate?: Gate, stack: readonly SharedBucket[] = NONE): void {
    const now = this.#engine.settle()
    if (gate !== undefined || stack.length > 0) this.#engine.open(gate, stack, now)
    this.#engine.notify()
  }

  /** ms by which slots of a stack may be ahead of the horizon when they are claimed with an admission. */
  claimAhead(stack: readonly SharedBucket[]): number {
    return this.#engine.claimAhead(stack)
  }

  /** A bucket of a store, which has no room for this cost, is leased from now on. */
  lease(bucket: SharedBucket, cost: number): void {
    this.#engine.lease(bucket, cost)
  }

  /** Asks what waits for a bucket in other instances, before a request of this cost is decided on. `then` is called after the answer. */
  look(bucket: SharedBucket, cost: number, then: () => void): void {
    this.#engine.look(bucket, cost, then)
  }

  /**
   * Lets a request that has its leased room pass by slots that are leased and there. It is in flight from now on. False: it has to line up.
   */
  passByLease(arrival: Arrival): boolean {
    return this.#engine.passByLease(arrival)
  }

  /** Asks for more room of a leased bucket. `then` is called after the answer. */
  refill(bucket: SharedBucket, then: () => void): void {
    this.#engine.refill(bucket, then)
  }

  /** A cost that a store has admitted, or that leased room has, leaves the levels. */
  uncount(demand: Demand): void {
    this.#engine.uncountCost(demand)
  }

  /** A request passes that was decided on elsewhere. It is in flight from now on. */
  enter(gate: Gate | undefined, stack: readonly SharedBucket[]): void {
    this.#engine.enter(gate, stack)
  }

  /** A request that has passed is over: its places in the gate and in its buckets are free. */
  leave(gate: Gate | undefined, stack: readonly SharedBucket[]): void {
    const isAwaited = gate?.awaited || stack.some(bucket => !bucket.hasPlace && bucket.waiting > 0)
    // What became possible before has no use of its places: they go to who waits for them.
    const now = isAwaited ? this.#engine.settle() : 0
    gate?.leave()
    for (const bucket of stack) bucket.leave()
    if (!isAwaited) return
    this.#engine.open(gate, stack, now)
    this.#engine.notify()
  }

  /** Takes out the requests that make room for a newcomer. Undefined: it stays rejected. */
  #withdrawHeavier(
    arrival: Arrival,
    { reason, buckets }: Rejection,
    maxWait: number,
    now: number,
  ): readonly Ticket[] | undefined {
    if (reason !== 'overflow') return undefined
    const patience = { maxWait, pause: arrival.route.gate.pausedFor(now) }
    const newest = this.#isCrowded(arrival) ? this.#newestOfHeavier(arrival) : undefined
    if (newest === undefined && this.#isCrowded(arrival)) return undefined
    let victims = makeRoom(arrival, buckets, patience, now)
    if (victims === undefined && newest !== undefined) {
      victims = makeRoom(arrival, buckets, { ...patience, leaving: newest }, now)
      if (victims !== undefined) this.#engine.reject(newest, TOO_MANY_WAITING)
    }
    for (const ticket of victims ?? []) this.#engine.withdraw(ticket)
    return victims
  }

  #displace(victims: readonly Ticket[], buckets: readonly SharedBucket[], now: number): void {
    for (const ticket of victims) {
      // Its own cost does not count in the forecast.
      this.#engine.withdraw(ticket)
      const { lane, waiter } = ticket
      const pause = lane.route.gate.pausedFor(now)
      const retryAfterMs = timeUntilFit(ticket, waiter.longestWait ?? Infinity, now, pause)
      this.#engine.reject(ticket, { reason: 'overflow', buckets, retryAfterMs, evicted: true })
    }
  }

  /** Fills and blocks the buckets that overflowed, as their limits say. */
  #rejectOverflow(arrival: Arrival, rejection: Rejection, maxWait: number, now: number): Rejection {
    const { reason, buckets } = rejection
    if (reason !== 'overflow') return rejection
    for (const bucket of buckets) bucket.applyOverflowPolicy(now)
    return { reason, buckets, retryAfterMs: timeUntilFit(arrival, maxWait, now, arrival.route.gate.pausedFor(now)) }
  }

  /** False: it has to wait. */
  #passAtOnce(arrival: Arrival, now: number): boolean {
    for (const bucket of arrival.stack) bucket.endBlock(now)
    const { gate } = arrival.route
    if (!gate.open || !this.#isNext(arrival, now) || !gate.fits(arrival.cost)) return false
    this.#engine.passAtOnce(arrival, now)
    return true
  }

  /** What is claimed stands where it would if it had come in time. */
  #lineUp(
    arrival: Arrival,
    waiter: Waiter,
    maxWait: number,
    { arrivedAt, now }: { readonly arrivedAt: number; readonly now: number },
  ): Ticket | Rejection {
    const since = arrival.claims?.at ?? arrivedAt
    const verdict = this.#join(arrival, waiter, arrivedAt - since + maxWait, since)
    if (!(verdict instanceof Ticket)) return verdict
    const { lane } = verdict
    if (lane.size === 1 || (since < arrivedAt && lane.first === verdict)) this.#engine.contend(verdict, now)
    return verdict
  }

  /** It takes part once it contends. */
  #join(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket | Rejection {
    return this.#makePlace(arrival) ?? this.#engine.join(arrival, waiter, maxWait, arrivedAt)
  }

  /** Lets one more request wait, if need be in the place of another. A rejection: there is no place. */
  #makePlace(arrival: Arrival): Rejection | undefined {
    if (!this.#isCrowded(arrival)) return undefined
    const newest = this.#newestOfHeavier(arrival)
    if (newest === undefined) return TOO_MANY_WAITING
    if (newest.armed !== undefined) {
      // It may leave meanwhile.
      this.#engine.settleBefore(armed => armed.recall(newest.lane))
      return this.#makePlace(arrival)
    }
    this.#engine.reject(newest, TOO_MANY_WAITING)
    return undefined
  }

  #isCrowded(arrival: Arrival): boolean {
    return this.#engine.waitingLike(arrival).size >= this.maxQueued
  }

  /** The request that gives up its place to a newcomer if too many wait. */
  #newestOfHeavier(arrival: Arrival): Ticket | undefined {
    return this.#engine.waitingLike(arrival).newestOfHeavier(arrival.client)
  }

  /** As `settleFor`, where that request may be armed. */
  #settleForPlace(arrival: Arrival, place: 'behind' | 'before'): number {
    return this.#engine.settleBefore(armed => {
      if (!armed.recallFor(arrival, place)) return false
      const newest = this.#newestOfHeavier(arrival)
      return newest?.armed === undefined || armed.recall(newest.lane)
    })
  }

  /** Whether it can pass at once. Without buckets it waits only for those before it in its lane. */
  #isNext(arrival: Arrival, now: number): boolean {
    const { route, stack } = arrival
    if (stack.length === 0) return findLane(arrival)?.awaited !== true
    if (this.#engine.releaseModeOf(stack) !== 'direct') return false
    for (let place = 0; place < stack.length; place += 1) {
      const bucket = stack[place]!
      const cost = costAt(arrival, place)
      if (!isFreeFor(bucket, cost, now) || bucket.isHeldBefore(route.gate, cost)) return false
    }
    return true
  }
}

/** Cost of the requests in a lane that came earlier, in the bucket at this place of the stack. */
function costBefore(lane: Lane | undefined, place: number, arrivedAt: number): number {
  let cost = 0
  for (const ticket of lane?.claiming ?? []) cost += costAt(ticket, place)
  for (let ticket = lane?.tickets.first; ticket !== undefined && ticket.arrivedAt < arrivedAt; ticket = ticket.next) {
    cost += costAt(ticket, place)
  }
  return cost
}
