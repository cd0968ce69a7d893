/**
 * Decides on requests: whether they are admitted, and what their coming and going means for those that wait. The engine
 * decides when they leave (release-engine.ts). It also changes buckets and gates.
 *
 * There is one way in (`arrive`): a newcomer gets room in all of its buckets, and then it passes or lines up. The buckets here
 * say at once whether there is room. What instances share is asked for (admission/room-source.ts).
 */
import { isCost, slackOf } from '../decider/costs.js'
import { bookingOf, promiseAhead, promiseKept, redeeming, withPromise } from './admission/appointments.js'
import { decide, placeless, shutOut, timeUntilFit } from './admission/decide.js'
import { makeRoom } from './admission/fair-drop.js'
import type { Newcomer } from './admission/look-ahead.js'
import { exactWaits } from './admission/predicted-wait.js'
import type { Mode, RejectedArrival, Reserved, ReservedRoom, RoomRequest, RoomSource } from './admission/room-source.js'
import {
  type Arrival,
  costAt,
  type Demand,
  type Gate,
  type Lane,
  type Rejection,
  type SharedBucket,
  Ticket,
  type Waiter,
} from './queue/lane.js'
import { isFreeFor, type ReadyLanes, SAME_TIME } from './queue/ready-lanes.js'
import { findLane } from './queue/tree.js'
import { Engine, type EngineOptions } from './release/release-engine.js'
import type { SlotSource } from './release/slot-source.js'
import { NONE } from './structures/compact-list.js'

export type { Arrival, Rejection } from './queue/lane.js'

/** `released`: send it now, its waiter is not called. A ticket: it is queued, its waiter will be called. */
export type Verdict = 'released' | Ticket | Rejection

export interface AdmissionCallbacks extends Waiter {
  /** Called once, at once or later. The waiter of a ticket is called after it. */
  decided(verdict: Verdict): void
}

/** Where room and slots come from that are not the buckets' own. */
export interface Shared {
  readonly room: RoomSource
  readonly slots: SlotSource
}

export interface AdmissionOptions extends EngineOptions {
  readonly maxQueued?: number
  /** Absent: all buckets are here. */
  readonly share?: (shaper: Shaper, lanes: ReadyLanes) => Shared
}

export interface Mover {
  /** The room of a newcomer is known that was asked for before. Undefined: it does not wait. */
  entered(ticket: Ticket | undefined): void
}

const TOO_MANY_WAITING: Rejection = { reason: 'crowded', buckets: [], retryAfterMs: undefined }

export class Shaper {
  /** The most that may wait. A newcomer takes the place of the newest of the client that has most, if that has more than its own. */
  maxQueued: number
  readonly engine: Engine
  /** Who moves what waits here to another process (proxy/succession/departing.ts). */
  mover: Mover | undefined
  /** Newcomers whose room is being asked for. */
  asking = 0
  #room: RoomSource | undefined
  #bookings = 0

  constructor({ maxQueued = Infinity, share, ...options }: AdmissionOptions) {
    this.maxQueued = maxQueued
    const open = (lanes: ReadyLanes): SlotSource => {
      const { room, slots } = share!(this, lanes)
      this.#room = room
      return slots
    }
    this.engine = new Engine(options, share && open)
  }

  /** As predicted-wait.ts. It yields after each few releases, so that others can go on. @returns ms for each */
  exactWaits(newcomers: readonly Newcomer[]): Generator<void, number[]> {
    return exactWaits(newcomers, this.engine)
  }

  /** Without the shadows of dry runs. */
  get queued(): number {
    return this.engine.queued
  }

  /** Decides on an arrival in the mode of its route, at once or once its room is known. After `released` it has a place in its gate. */
  arrive(arrival: Arrival, callbacks: AdmissionCallbacks, mode: Mode, maxWait: number): void {
    const room = this.#room
    if (room === undefined || arrival.stack.length === 0) {
      this.#decided(callbacks, mode === 'shape' ? this.admit(arrival, callbacks, maxWait) : this.meter(arrival))
      return
    }
    const newcomer = { arrival, mode, maxWait, arrivedAt: this.engine.now }
    this.asking += 1
    room.reserve(newcomer, reserved => {
      this.asking -= 1
      const verdict = this.#enter(newcomer, callbacks, reserved)
      this.mover?.entered(verdict instanceof Ticket ? verdict : undefined)
    })
  }

  #decided(callbacks: AdmissionCallbacks, verdict: Verdict): Verdict {
    callbacks.decided(verdict)
    // It has left already, and is called now that it knows its ticket.
    if (verdict instanceof Ticket && verdict.slot !== undefined) this.wake()
    return verdict
  }

  #enter(newcomer: RoomRequest, callbacks: AdmissionCallbacks, reserved: Reserved): Verdict {
    const { arrival, mode, maxWait, arrivedAt } = newcomer
    if (reserved === 'here')
      return this.#decided(
        callbacks,
        mode === 'shape' ? this.admit(arrival, callbacks, maxWait, arrivedAt) : this.meter(arrival),
      )
    if (reserved === 'past') return this.#decided(callbacks, this.#passBuckets(newcomer, callbacks))
    if (reserved === 'released' || 'reason' in reserved) return this.#decided(callbacks, reserved)
    const verdict = mode === 'shape' ? this.lineUpIn(reserved, newcomer, callbacks) : this.#passMetered(arrival)
    if (verdict === 'released' || verdict instanceof Ticket) promiseKept(arrival, this.engine.now)
    else reserved.giveBack()
    callbacks.decided(verdict)
    if (mode === 'shape') this.wake()
    return verdict
  }

  /**
   * Decides on an arrival in a `shape` route: all buckets admit it or none changes. The waiter of a ticket that has left
   * already is called after the next `wake`.
   *
   * @param maxWait ms. A longer predicted wait is rejected, and a ticket that is still queued after it expires.
   * @param arrivedAt ms. Earlier than now where a store was asked first.
   */
  admit(arrival: Arrival, waiter: Waiter, maxWait = Infinity, arrivedAt?: number): Verdict {
    // One that redeems a booking goes before those that came after its moment.
    const place = arrival.appointment?.redeems === undefined ? 'behind' : 'before'
    const now = this.#isCrowded(arrival) ? this.#settleForPlace(arrival, place) : this.engine.settleFor(arrival, place)
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const asks = redeeming(arrival, now)
    const rejection = decide(asks, longest, now, arrival.route.gate.pausedFor(now))
    const victims = rejection && this.#withdrawHeavier(asks, rejection, longest, now)
    let verdict: Verdict
    if (rejection !== undefined && victims === undefined) verdict = this.#rejectOverflow(asks, rejection, longest, now)
    else if (this.#passAtOnce(arrival, now)) verdict = 'released'
    else verdict = this.#lineUp(asks, waiter, maxWait, { arrivedAt: arrivedAt ?? now, now })
    if (verdict === 'released' || verdict instanceof Ticket) promiseKept(arrival, now)
    if (rejection !== undefined && victims !== undefined) this.#displace(victims, rejection.buckets, now)
    this.engine.notify(verdict instanceof Ticket ? verdict : undefined)
    return verdict
  }

  /** Queues a request that has to be sent again, before later ones, whatever the levels. Undefined: it would have to wait too long. */
  requeue(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket | undefined {
    const { route, stack } = arrival
    const now = this.engine.settleFor(arrival, 'before')
    const start = now + route.gate.pausedFor(now)
    const lane = findLane(arrival)
    const times = stack.map((bucket, place) => {
      const { limits } = bucket
      const before = bucket.hold(start) + costBefore(lane, place, arrivedAt) - slackOf(limits, costAt(arrival, place))
      return Math.max(0, before) / limits.rate
    })
    const leaves = start + Math.max(...times)
    if (leaves > arrivedAt + maxWait || this.#isCrowded(arrival)) {
      this.engine.notify()
      return undefined
    }
    const ticket = this.engine.join(arrival, waiter, maxWait, arrivedAt - SAME_TIME)
    this.engine.contend(ticket, now)
    return ticket
  }

  /** Lets others make room in full buckets whose limits say so. `maxWait` in ms, less what is left of a pause. */
  makeRoomFor(arrival: Arrival, full: readonly SharedBucket[], maxWait: number): boolean {
    const now = this.engine.settle()
    const victims = makeRoom(arrival, full, { maxWait, pause: 0 }, now)
    if (victims !== undefined) this.#displace(victims, full, now)
    this.engine.notify()
    return victims !== undefined
  }

  couldMakeRoomFor(arrival: Arrival, full: readonly SharedBucket[], maxWait: number): boolean {
    const couldMake = makeRoom(arrival, full, { maxWait, pause: 0 }, this.engine.settle()) !== undefined
    this.engine.notify()
    return couldMake
  }

  /** Decides on an arrival in a `meter` route, which does not wait. After `released` it is in flight. */
  meter(arrival: Arrival): 'released' | Rejection {
    const now = this.engine.settleFor(arrival, 'before')
    const { gate } = arrival.route
    const asks = redeeming(arrival, now)
    const rejection = shutOut(gate, now) ?? decide(asks, Infinity, now) ?? placeless(arrival)
    if (rejection === undefined) {
      promiseKept(arrival, now)
      for (const [place, bucket] of arrival.stack.entries()) bucket.fill(costAt(arrival, place), now)
      this.engine.enter(gate, arrival.stack)
    }
    const verdict = rejection === undefined ? 'released' : this.#rejectOverflow(asks, rejection, Infinity, now)
    this.engine.notify()
    return verdict
  }

  /** Tells the client of a request that was rejected just now when to come back, at once or once that is known. */
  tell(rejected: RejectedArrival): void {
    const { arrival, rejection, maxWait, tell } = rejected
    if (this.#room === undefined) tell(this.promise(arrival, rejection, maxWait))
    else this.#room.promise(rejected, instances => tell(this.promise(arrival, rejection, maxWait, instances)))
  }

  /**
   * What that client is told by this instance alone: not the same moment as others (admission/appointments.ts).
   *
   * @param maxWait ms
   * @param instances how many promise like this one
   */
  promise(arrival: Arrival, rejection: Rejection, maxWait = Infinity, instances = 1): Rejection {
    const now = this.engine.settle()
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const number = (): number => {
      this.#bookings += 1
      return this.#bookings
    }
    const promised = withPromise(arrival, rejection, { now, maxWait: longest, instances, number })
    this.engine.notify()
    return promised
  }

  bookingOf(demand: Demand, client: string): number | undefined {
    const now = this.engine.settle()
    const booking = bookingOf(demand, client, now)
    this.engine.notify()
    return booking
  }

  /**
   * What would become of a rejected request if it came again now. Nothing changes. Undefined: it would be admitted. Until the
   * moment that its client was promised it would not, though there were room: that is for who was promised an earlier one.
   *
   * @param maxWait ms
   */
  askAgain(arrival: Arrival, mode: 'shape' | 'meter', maxWait: number): Rejection | undefined {
    const now = this.engine.settle()
    const { gate } = arrival.route
    const asks = redeeming(arrival, now)
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const rejection =
      mode === 'shape'
        ? decide(asks, longest, now, gate.pausedFor(now))
        : (shutOut(gate, now) ?? decide(asks, Infinity, now) ?? placeless(arrival))
    const promise = rejection === undefined ? promiseAhead(arrival, now) : undefined
    this.engine.notify()
    if (promise === undefined) return rejection
    return { reason: 'overflow', buckets: [promise.bucket], retryAfterMs: promise.at - now }
  }

  /** Takes a waiter out of its lane. Those behind it move up. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    if (!this.engine.cancel(ticket)) return false
    this.engine.wake()
    return true
  }

  /** As `cancel`. `wake` is to be called after the last of many. */
  cancelOneOfMany(ticket: Ticket): boolean {
    return this.engine.cancel(ticket)
  }

  /** Gives back the slot of a released ticket that was not sent. Its places in the gate and in its buckets are free already. */
  giveBack(ticket: Ticket): void {
    if (ticket.slot === undefined) throw new TypeError('only a released ticket can be given back, and once')
    this.engine.settleBefore(armed => ticket.lane.stack.every(bucket => armed.recallBucket(bucket)))
    this.engine.returnSlot(ticket, ticket.slot)
    this.wake(ticket.lane.gate)
  }

  /** A released ticket was not sent: gives back its slot and queues it again, as `requeue`. A store goes on counting its cost. */
  putBack(ticket: Ticket, arrival: Arrival, maxWait: number, arrivedAt: number): Ticket | undefined {
    const { counted } = ticket
    if (counted) ticket.counted = false
    this.giveBack(ticket)
    const again = this.requeue(arrival, ticket.waiter, maxWait, arrivedAt)
    if (counted) (again ?? ticket).counted = true
    if (again === undefined) this.engine.source?.giveBack(ticket)
    return again
  }

  /**
   * Takes back a release: the request could not be sent, as its body is still coming. Its slot and its place in the gate are
   * free for those behind it. It goes on counting in its lane and buckets until it comes back (`comeBack`) or is cancelled.
   *
   * To be called from `Waiter.release`, or as soon as an arrival was `released`, and followed by `wake` with its gate and its
   * stack.
   *
   * @param passed its released ticket. Undefined: it has passed at once
   * @param arrivedAt ms
   * @returns its ticket from now on. A rejection: too many wait, and it is not one of them
   */
  setAside(arrival: Arrival, waiter: Waiter, passed: Ticket | undefined, arrivedAt: number): Ticket | Rejection {
    const engine = this.engine
    // What has become due since its slot comes after it.
    engine.recallFor(arrival)
    // One that has passed at once has not counted among those that wait.
    const rejection = passed === undefined ? this.#makePlace(arrival) : undefined
    const ticket = rejection ?? engine.setAside(engine.countIn(arrival, waiter, arrivedAt - SAME_TIME))
    if (passed === undefined) {
      // Where its slots come from elsewhere its room does as well.
      if (ticket instanceof Ticket && engine.releaseModeOf(arrival.stack) === 'claimed') ticket.counted = true
      engine.restore(arrival)
    } else {
      if (ticket instanceof Ticket && passed.counted) {
        ticket.counted = true
        passed.counted = false
      }
      engine.returnSlot(passed, passed.slot!)
    }
    arrival.route.gate.leave()
    arrival.route.gate.unprobe()
    for (const bucket of arrival.stack) bucket.leave()
    return ticket
  }

  /** Puts a request that was set aside back at the head of its lane, until `due` in ms. Its waiter is called after the next `wake`. */
  comeBack(ticket: Ticket, due: number): void {
    const engine = this.engine
    const { lane, stack, cost } = ticket
    const now = engine.settleFor({ route: lane.route, stack, cost }, 'before')
    engine.leaveAside(ticket)
    engine.lineUp(ticket, due)
    engine.contend(ticket, now)
  }

  /** An armed release will not be made. Others are armed for it as far as possible. */
  recall({ lane }: Ticket): void {
    this.engine.settleBefore(armed => armed.recall(lane))
    this.engine.notify()
  }

  /** A cost passes a bucket without being decided on. What waits leaves later. */
  count(bucket: SharedBucket, cost: number): void {
    if (!isCost(cost)) return
    bucket.fill(
      cost,
      this.engine.settleBefore(armed => armed.recallBucket(bucket)),
    )
    this.engine.notify()
  }

  /** Releases what has become possible. To be called with a gate that opens, and with buckets that requests have left. */
  wake(gate?: Gate, stack: readonly SharedBucket[] = NONE): void {
    const now = this.engine.settle()
    if (gate !== undefined || stack.length > 0) this.engine.open(gate, stack, now)
    this.engine.notify()
  }

  /** A request has ended: its places in the gate and in its buckets are free. `_waiter`: its own, if it passed the gate. */
  leave(gate: Gate | undefined, stack: readonly SharedBucket[], _waiter?: Waiter): void {
    const isAwaited = gate?.awaited || stack.some(bucket => !bucket.hasPlace && bucket.waiting > 0)
    const now = isAwaited ? this.engine.settle() : 0
    gate?.leave()
    for (const bucket of stack) bucket.leave()
    if (!isAwaited) return
    this.engine.open(gate, stack, now)
    this.engine.notify()
  }

  /** As `leave`, and nothing is released yet: a slot is given back, too, or another is asked for. */
  leaveQuietly(gate: Gate, stack: readonly SharedBucket[], _waiter: Waiter): void {
    gate.leave()
    for (const bucket of stack) bucket.leave()
  }

  /** As `Engine.hold`. `waiter` is the one that has passed. */
  hold(request: Arrival, _waiter: Waiter): void {
    this.engine.hold(request)
  }

  unhold(request: Arrival, fate: 'sent' | 'never-sent', _waiter: Waiter): void {
    this.engine.unhold(request, fate)
  }

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
      if (victims !== undefined) this.engine.reject(newest, TOO_MANY_WAITING)
    }
    for (const ticket of victims ?? []) this.engine.withdraw(ticket)
    return victims
  }

  #displace(victims: readonly Ticket[], buckets: readonly SharedBucket[], now: number): void {
    for (const ticket of victims) {
      this.engine.withdraw(ticket)
      const { lane, waiter } = ticket
      const pause = lane.route.gate.pausedFor(now)
      const retryAfterMs = timeUntilFit(ticket, waiter.longestWait ?? Infinity, now, pause)
      this.engine.reject(ticket, { reason: 'overflow', buckets, retryAfterMs, evicted: true })
    }
  }

  #rejectOverflow(arrival: Arrival, rejection: Rejection, maxWait: number, now: number): Rejection {
    const { reason, buckets } = rejection
    if (reason !== 'overflow') return rejection
    for (const bucket of buckets) bucket.applyOverflowPolicy(now)
    return { reason, buckets, retryAfterMs: timeUntilFit(arrival, maxWait, now, arrival.route.gate.pausedFor(now)) }
  }

  #passAtOnce(arrival: Arrival, now: number): boolean {
    for (const bucket of arrival.stack) bucket.endBlock(now)
    const { gate } = arrival.route
    if (!gate.open || !this.#isNext(arrival, now) || !gate.fits(arrival.cost)) return false
    this.engine.passAtOnce(arrival, now)
    return true
  }

  /** Lines a request up in the room that it has. Its waiter is called after `wake`. */
  lineUpIn(room: ReservedRoom, { arrival, maxWait, arrivedAt }: RoomRequest, waiter: Waiter): Ticket | Rejection {
    const now = this.engine.settle()
    for (const bucket of arrival.stack) bucket.endBlock(now)
    const ticket = this.#join(arrival, waiter, now - arrivedAt + maxWait + room.patience, arrivedAt)
    if (!(ticket instanceof Ticket)) return ticket
    const { tickets } = ticket.lane
    ticket.counted = true
    const isFirst = tickets.first === ticket
    room.offer(ticket)
    if (isFirst && tickets.first === ticket) this.engine.contend(ticket, now)
    room.linedUp()
    return ticket
  }

  #passMetered(arrival: Arrival): 'released' | Rejection {
    const { gate } = arrival.route
    // Its mover has shut it for those that wait.
    const shut = (this.mover === undefined ? shutOut(gate, this.engine.now) : undefined) ?? placeless(arrival)
    if (shut === undefined) this.engine.enter(gate, arrival.stack)
    return shut ?? 'released'
  }

  /** A request without buckets waits only for the gate: for the end of a pause, or for a place. Its buckets count it. */
  #passBuckets({ arrival, mode, maxWait, arrivedAt }: RoomRequest, waiter: Waiter): Verdict {
    const { route, stack } = arrival
    const { now } = this.engine
    if (mode !== 'shape') {
      const shut = shutOut(route.gate, now)
      if (shut === undefined) this.engine.enter(route.gate, stack)
      return shut ?? 'released'
    }
    const pause = route.gate.pausedFor(now)
    if (pause > maxWait) return { reason: 'max-wait', buckets: stack, retryAfterMs: pause - maxWait }
    const enter = (): void => this.engine.enter(undefined, stack)
    const entering: Waiter = {
      ...(waiter.hasOwnMaxWait && { hasOwnMaxWait: true }),
      release(slot, now) {
        enter()
        waiter.release(slot, now)
      },
      expire: now => waiter.expire(now),
      reject: rejection => waiter.reject(rejection),
    }
    const verdict = this.admit({ ...arrival, stack: [], costs: undefined, weight: 1 }, entering, maxWait, arrivedAt)
    if (verdict === 'released') enter()
    return verdict
  }

  /** One that redeems a booking stands where it would if it had come in time. */
  #lineUp(
    arrival: Arrival,
    waiter: Waiter,
    maxWait: number,
    { arrivedAt, now }: { readonly arrivedAt: number; readonly now: number },
  ): Ticket | Rejection {
    const since = arrival.redeems?.at ?? arrivedAt
    const verdict = this.#join(arrival, waiter, arrivedAt - since + maxWait, since)
    if (!(verdict instanceof Ticket)) return verdict
    const { lane } = verdict
    if (lane.size === 1 || (since < arrivedAt && lane.first === verdict)) this.engine.contend(verdict, now)
    return verdict
  }

  #join(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket | Rejection {
    return this.#makePlace(arrival) ?? this.engine.join(arrival, waiter, maxWait, arrivedAt)
  }

  /** Makes place for one more waiting request. A rejection: there is none. */
  #makePlace(arrival: Arrival): Rejection | undefined {
    if (!this.#isCrowded(arrival)) return undefined
    const newest = this.#newestOfHeavier(arrival)
    if (newest === undefined) return TOO_MANY_WAITING
    if (newest.armed !== undefined) {
      this.engine.settleBefore(armed => armed.recall(newest.lane))
      return this.#makePlace(arrival)
    }
    this.engine.reject(newest, TOO_MANY_WAITING)
    return undefined
  }

  #isCrowded(arrival: Arrival): boolean {
    return this.engine.waitingLike(arrival).size >= this.maxQueued
  }

  #newestOfHeavier(arrival: Arrival): Ticket | undefined {
    return this.engine.waitingLike(arrival).newestOfHeavier(arrival.client)
  }

  /** As `settleFor`, where that request may be armed. */
  #settleForPlace(arrival: Arrival, place: 'behind' | 'before'): number {
    return this.engine.settleBefore(armed => {
      if (!armed.recallFor(arrival, place)) return false
      const newest = this.#newestOfHeavier(arrival)
      return newest?.armed === undefined || armed.recall(newest.lane)
    })
  }

  /** Without buckets it waits only for those before it in its lane. */
  #isNext(arrival: Arrival, now: number): boolean {
    const { route, stack } = arrival
    if (stack.length === 0) return findLane(arrival)?.awaited !== true
    if (this.engine.releaseModeOf(stack) !== 'direct') return false
    for (let place = 0; place < stack.length; place += 1) {
      const bucket = stack[place]!
      const cost = costAt(arrival, place)
      if (!isFreeFor(bucket, cost, now) || bucket.isHeldBefore(route.gate, cost)) return false
    }
    return true
  }
}

/** Cost, in the bucket at this place, of the requests in a lane that came earlier. */
function costBefore(lane: Lane | undefined, place: number, arrivedAt: number): number {
  let cost = 0
  for (const ticket of lane?.claiming ?? []) cost += costAt(ticket, place)
  for (let ticket = lane?.tickets.first; ticket !== undefined && ticket.arrivedAt < arrivedAt; ticket = ticket.next) {
    cost += costAt(ticket, place)
  }
  return cost
}
