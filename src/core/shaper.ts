/**
 * Admission, waiting and release, for all lanes and buckets together.
 *
 * The shaper is a discrete-event simulation that the clock merely gates. Its events are the moments at which buckets
 * become free (one timeline) and at which waiters give up (another); `settle` runs all that are due, in the order of
 * their times and not of the wake-up. Every entry point settles first, so a decision at `now` never sees a slot that
 * is past but not yet used: what was admitted, and in which slots it left, is the same whether the wake-ups came on
 * time or late, up to the forfeit rule of bucket.ts.
 *
 * A request is released in the first moment at which it heads its lane, every bucket of its stack is free, the gate
 * of its upstream is open and the rings (fair.ts) have its turn. That moment is its slot: an event's time, or `now`
 * when it is an arrival or the opening of a gate that makes it possible.
 *
 * Whatever happens to a request happens once: it is in a lane from admission until exactly one of release, cancel or
 * expire takes it out, and only who takes it out tells its waiter.
 */

import { judge, timeUntilFit } from './admission.js'
import type { BucketLimits } from './bucket.js'
import { Claims } from './claims.js'
import type { Cancel, Clock } from './clock.js'
import {
  type Arrival,
  type Gate,
  type Junction,
  type Lane,
  type LaneRoute,
  openLane,
  type Rejection,
  type SharedBucket,
  Ticket,
  type Waiter,
} from './lane.js'
import { Notices } from './notices.js'
import { replan } from './replan.js'
import { isFree, SAME_TIME, Schedule } from './schedule.js'
import { dropStanding, makeRoom, updateStanding } from './standing.js'
import type { Claim, Store } from './store.js'
import { Timeline } from './timeline.js'

export type { Arrival, Rejection } from './lane.js'

/** `released`: send it now, nobody will be told. A ticket: it is queued, its waiter will be told. */
export type Verdict = 'released' | Ticket | Rejection

/**
 * How those who are next pass: at once; when they have claimed a slot from the store; or not at all, as nobody knows
 * whether the store grants any.
 */
export type Passage = 'direct' | 'claimed' | 'none'

const CROWDED: Rejection = { reason: 'crowded', buckets: [], retryAfterMs: undefined }

export class Shaper {
  readonly #clock: Clock
  /** How many may wait. */
  maxQueued: number
  readonly #schedule = new Schedule()
  readonly #deadlines = new Timeline<Ticket>()
  readonly #notices = new Notices()
  readonly #claims: Claims | undefined
  #passage: Passage = 'direct'
  #queued = 0
  #armedFor = Infinity
  #disarm: Cancel = () => false

  /** @param options.store grants slots while `passage` is `claimed` */
  constructor(options: { clock: Clock; maxQueued?: number; store?: Store; unanswered?: (lane: Lane, askedAt: number) => void }) {
    this.#clock = options.clock
    this.maxQueued = options.maxQueued ?? Infinity
    if (options.store === undefined) return
    this.#claims = new Claims(options.store, this.#schedule, {
      now: () => this.#clock.now(),
      wake: () => {
        const now = this.#settle()
        this.#serve(now, now)
        this.#tell()
      },
      leave: (ticket, slot, now) => {
        this.#left(ticket)
        this.#release(ticket, slot.at, now)
      },
      failed: (lane, askedAt) => options.unanswered?.(lane, askedAt),
    })
  }

  /** How those who are next pass. */
  get passage(): Passage {
    return this.#passage
  }

  set passage(passage: Passage) {
    this.#passage = passage
    const now = this.#settle()
    this.#serve(now, now)
    this.#tell()
  }

  /** How many requests wait. */
  get queued(): number {
    return this.#queued
  }

  /**
   * Decides on an arrival in a `shape` route: all buckets admit it or none changes.
   *
   * @param maxWait ms; a longer predicted wait is rejected, and a ticket still queued after it expires
   */
  admit(arrival: Arrival, waiter: Waiter, maxWait = Infinity): Verdict {
    const now = this.#settle()
    const rejection = judge(arrival.stack, arrival.cost, maxWait, now)
    const verdict =
      rejection?.reason === 'overflow'
        ? this.#overflow(arrival, waiter, rejection, maxWait, now)
        : (rejection ?? this.#accept(arrival, waiter, maxWait, now))
    this.#tell()
    return verdict
  }

  /**
   * Queues what a store has admitted. Its waiter is told after the next `wake`.
   *
   * @param claim the store's answer where a slot was claimed with the admission
   */
  enqueue(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number, claim?: Claim): Ticket | Rejection {
    const now = this.#settle()
    if (this.#queued >= this.maxQueued) return CROWDED
    const ticket = this.#join(arrival, waiter, maxWait, arrivedAt)
    const { lane } = ticket
    ticket.counted = true
    const first = lane.tickets.first === ticket
    if (claim !== undefined) this.#claims!.offer(lane, arrival.cost, claim)
    if (first && lane.tickets.first === ticket) {
      this.#schedule.opened(lane, now)
      this.#serve(now, now)
    }
    return ticket
  }

  /** Lets others' requests make room for a newcomer in buckets that are full, where these want it so. */
  makeRoom(arrival: Arrival, full: readonly SharedBucket[], maxWait: number): boolean {
    const now = this.#settle()
    const victims = makeRoom(arrival, full, maxWait, now)
    if (victims !== undefined) this.#displace(victims, full, now)
    this.#tell()
    return victims !== undefined
  }

  /** Decides on an arrival in a `meter` route: the same arithmetic, no waiting. */
  meter(arrival: Arrival): 'released' | Rejection {
    const now = this.#settle()
    let rejection = judge(arrival.stack, arrival.cost, Infinity, now)
    if (rejection?.reason === 'overflow') rejection = this.#punish(arrival, rejection, Infinity, now)
    if (rejection === undefined) {
      for (const bucket of arrival.stack) bucket.fill(arrival.cost, now)
    }
    this.#tell()
    return rejection ?? 'released'
  }

  /** Takes a waiter out of its lane; those behind move up. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    if (!this.#withdraw(ticket)) return false
    this.#claims?.giveBack(ticket)
    this.#settle()
    this.#tell()
    return true
  }

  /** Returns the slot of a released ticket that was not sent after all; where it was a bucket's last, it is used again. */
  giveBack(ticket: Ticket): void {
    if (ticket.slot === undefined) throw new TypeError('only a released ticket can be given back, and once')
    this.#claims?.giveBack(ticket)
    for (const bucket of ticket.lane.stack) {
      bucket.restore(ticket.cost, ticket.slot, ticket.leftAt)
      this.#schedule.plan(bucket)
    }
    ticket.slot = undefined
    this.wake()
  }

  /** Releases what has become possible: to be called when a gate opens. */
  wake(gate?: Gate): void {
    const now = this.#settle()
    if (gate !== undefined) {
      this.#schedule.gateOpened(gate)
      this.#serve(now, now)
    }
    this.#tell()
  }

  /** Changes what a bucket allows; its level stays, and those who wait for it leave at the new rate. */
  retune(bucket: SharedBucket, limits: BucketLimits): void {
    const now = this.#settle()
    bucket.retune(limits, now)
    this.#schedule.plan(bucket)
    this.#settle()
    this.#tell()
  }

  /**
   * After limits have changed: waiters that will now exceed their `maxWait` expire at once.
   *
   * @param maxWaitOf ms by route; what it shortens is shortened for those who wait, too
   * @returns how many expired, by the name of their route
   */
  replan(gates: Iterable<Gate>, maxWaitOf: (route: LaneRoute) => number): Map<string, number> {
    const now = this.#settle()
    const expired = new Map<string, number>()
    for (const gate of gates) {
      for (const { ticket, maxWait, tooLate } of [...replan(gate, maxWaitOf, now)]) {
        this.#deadlines.remove(ticket)
        ticket.due = ticket.arrivedAt + maxWait
        if (tooLate) {
          const { name } = ticket.lane.route
          expired.set(name, (expired.get(name) ?? 0) + 1)
          this.#drop(ticket, now)
        } else if (ticket.due < Infinity) {
          this.#deadlines.add(ticket)
        }
      }
    }
    this.#settle()
    this.#tell()
    return expired
  }

  /** Empties a bucket of what has passed and ends its block: those who wait for it may go. */
  reset(bucket: SharedBucket): void {
    bucket.reset()
    this.#schedule.plan(bucket)
    this.wake()
  }

  /** Makes room for a newcomer with less than its share; else the overflow has its consequences. */
  #overflow(arrival: Arrival, waiter: Waiter, rejection: Rejection, maxWait: number, now: number): Verdict {
    const { buckets } = rejection
    const crowded = this.#queued >= this.maxQueued
    const victims = crowded ? undefined : makeRoom(arrival, buckets, maxWait, now)
    if (victims === undefined) return this.#punish(arrival, rejection, maxWait, now)
    for (const ticket of victims) this.#withdraw(ticket)
    const verdict = this.#accept(arrival, waiter, maxWait, now)
    this.#displace(victims, buckets, now)
    return verdict
  }

  #displace(victims: readonly Ticket[], buckets: readonly SharedBucket[], now: number): void {
    for (const ticket of victims) {
      this.#withdraw(ticket)
      this.#claims?.giveBack(ticket)
      const retryAfterMs = timeUntilFit(ticket.lane.stack, ticket.cost, Infinity, now)
      ticket.rejection = { reason: 'overflow', buckets, retryAfterMs }
      this.#notices.push(ticket)
    }
  }

  /** Fills and blocks what overflowed, where its limits say so. */
  #punish({ stack, cost }: Arrival, { reason, buckets }: Rejection, maxWait: number, now: number): Rejection {
    for (const bucket of buckets) bucket.punish(now)
    return { reason, buckets, retryAfterMs: timeUntilFit(stack, cost, maxWait, now) }
  }

  #accept(arrival: Arrival, waiter: Waiter, maxWait: number, now: number): Verdict {
    const { route, stack, cost } = arrival
    if (this.#passage === 'direct' && route.gate.open && stack.every(bucket => isFree(bucket, now))) {
      for (const bucket of stack) {
        bucket.pass(cost, now, now)
        this.#schedule.occupied(bucket)
      }
      route.gate.enter()
      return 'released'
    }
    if (this.#queued >= this.maxQueued) return CROWDED
    const ticket = this.#join(arrival, waiter, maxWait, now)
    const { lane } = ticket
    if (lane.tickets.size === 1) {
      this.#schedule.opened(lane, now)
      this.#serve(now, now)
    }
    return ticket
  }

  #join({ route, stack, cost, weight }: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket {
    const lane = openLane(route, stack, weight ?? 1)
    const ticket = new Ticket(lane, cost, arrivedAt, waiter)
    this.#queued += 1
    for (const bucket of stack) {
      bucket.enqueue(cost)
      bucket.outlet!.leastCost = Math.min(bucket.outlet!.leastCost, cost)
    }
    for (let at: Junction | undefined = lane.parent; at !== undefined; at = at.parent) at.ring.learn(cost, lane.weight)
    lane.tickets.push(ticket)
    lane.queued += cost
    updateStanding(lane)
    if (maxWait < Infinity) {
      ticket.due = arrivedAt + maxWait
      this.#deadlines.add(ticket)
    }
    return ticket
  }

  /** Lets happen what is due, one moment at a time: what is sent late moves the slots after it. Returns the time. */
  #settle(): number {
    let now = this.#clock.now()
    while (this.#due <= now + SAME_TIME) {
      this.#advance(now)
      this.#notices.tell(this.#onReleased)
      now = this.#clock.now()
    }
    return now
  }

  #advance(now: number): void {
    const free = this.#schedule.due
    const deadline = this.#deadlines.next?.due ?? Infinity
    const claimed = this.#claims?.due ?? Infinity
    if (claimed <= Math.min(free, deadline)) this.#claims!.advance(now)
    else if (free <= deadline + SAME_TIME) this.#serve(this.#schedule.free(free), now)
    else this.#expire(deadline, now)
  }

  #expire(due: number, now: number): void {
    for (let ticket = this.#deadlines.next; ticket !== undefined && ticket.due <= due; ticket = this.#deadlines.next) {
      this.#drop(ticket, now)
    }
  }

  #drop(ticket: Ticket, now: number): void {
    this.#withdraw(ticket)
    this.#claims?.giveBack(ticket)
    ticket.leftAt = now
    this.#notices.push(ticket)
  }

  #serve(slot: number, now: number): void {
    if (this.#passage === 'none') return
    for (let ticket = this.#schedule.next(); ticket !== undefined; ticket = this.#schedule.next()) {
      if (this.#passage === 'claimed') {
        this.#claims!.ask(ticket, now)
        continue
      }
      this.#withdraw(ticket)
      for (const bucket of ticket.lane.stack) {
        bucket.pass(ticket.cost, slot, now)
        this.#schedule.occupied(bucket)
      }
      ticket.lane.route.gate.enter()
      this.#release(ticket, slot, now)
    }
  }

  #release(ticket: Ticket, slot: number, now: number): void {
    ticket.slot = slot
    ticket.leftAt = now
    this.#notices.push(ticket)
  }

  #withdraw(ticket: Ticket): boolean {
    const { lane } = ticket
    if (!lane.tickets.remove(ticket) && !this.#claims?.remove(ticket)) return false
    this.#left(ticket)
    return true
  }

  /** A ticket is no more in its lane. */
  #left(ticket: Ticket): void {
    const { lane, cost } = ticket
    this.#queued -= 1
    this.#deadlines.remove(ticket)
    lane.queued -= cost
    for (const bucket of lane.stack) bucket.dequeue(cost)
    if (lane.tickets.size > 0) updateStanding(lane)
    else if (this.#claims !== undefined) this.#claims.close(lane)
    else {
      dropStanding(lane)
      this.#schedule.closed(lane)
    }
  }

  /** Sending goes first: what else there is to do can wait. */
  #tell(): void {
    this.#notices.tell(this.#onReleased)
    this.#arm()
  }

  /** What sending itself was late by counts against the slots that follow. */
  readonly #onReleased = (ticket: Ticket): void => {
    if (ticket.slot === undefined) return
    const sentAt = this.#clock.now()
    for (const bucket of ticket.lane.stack) {
      if (bucket.delay(ticket.cost, ticket.slot, ticket.leftAt, sentAt)) this.#schedule.plan(bucket)
    }
    ticket.leftAt = sentAt
  }

  #arm(): void {
    const due = this.#due
    if (due >= this.#armedFor) return
    this.#disarm()
    this.#armedFor = due
    this.#disarm = this.#clock.at(due, this.#onWake)
  }

  readonly #onWake = (): void => {
    this.#armedFor = Infinity
    this.#settle()
    this.#arm()
  }

  /** When the next thing happens by itself. */
  get #due(): number {
    return Math.min(this.#schedule.due, this.#deadlines.next?.due ?? Infinity, this.#claims?.due ?? Infinity)
  }
}
