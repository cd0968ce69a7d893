/**
 * Waiting and release in time: a discrete-event simulation that the clock merely gates.
 *
 * Its events are the moments at which buckets become free (one timeline), at which waiters give up (another), at which
 * claimed slots are due (a third) and at which pauses end (a fourth); `settle` runs all that are due, in the order of their
 * times and not of the wake-up.
 * Whoever decides something settles first, so a decision at `now` never sees a slot that is past but not yet used: what
 * was admitted, and in which slots it left, is the same whether the wake-ups came on time or late, up to the forfeit rule
 * of bucket.ts.
 *
 * A request is released in the first moment at which it heads its lane, every bucket of its stack is free, the gate
 * of its upstream is open and the rings (fair.ts) have its turn. That moment is its slot: an event's time, or `now`
 * when it is an arrival or the opening of a gate that makes it possible. Where slots are a store's, it is then that one is
 * claimed (claims.ts).
 *
 * Whatever happens to a request happens once: it is in a lane from admission until exactly one of release, cancel or
 * expire takes it out, and only who takes it out tells its waiter.
 */

import { Claims } from './claims.js'
import type { Cancel, Clock } from './clock.js'
import { Lag } from './lag.js'
import { type Arrival, type Gate, type Junction, type Lane, openLane, Ticket, type Waiter } from './lane.js'
import { Notices } from './notices.js'
import { SAME_TIME, Schedule } from './schedule.js'
import { dropStanding, updateStanding } from './standing.js'
import type { Store } from './store.js'
import { Timeline } from './timeline.js'

/**
 * How those who are next pass: at once; when they have claimed a slot from the store; or not at all, as nobody knows
 * whether the store grants any.
 */
export type Passage = 'direct' | 'claimed' | 'none'

export interface EngineOptions {
  readonly clock: Clock
  /** Grants slots while `passage` is `claimed`. */
  readonly store?: Store
  /** A claim for this lane, made at this time in ms, was not answered. */
  readonly unanswered?: (lane: Lane, askedAt: number) => void
}

export class Engine {
  readonly clock: Clock
  readonly schedule = new Schedule()
  readonly deadlines = new Timeline<Ticket>()
  readonly pauses = new Timeline<Gate>()
  readonly notices = new Notices()
  readonly claims: Claims | undefined
  passage: Passage = 'direct'
  /** How many requests wait. */
  queued = 0
  readonly #sending = new Lag()
  #armedFor = Infinity
  #disarm: Cancel = () => false

  constructor({ clock, store, unanswered }: EngineOptions) {
    this.clock = clock
    if (store === undefined) return
    this.claims = new Claims(store, this.schedule, {
      now: () => clock.now(),
      wake: () => this.wake(),
      leave: (ticket, slot, now) => {
        this.#left(ticket)
        this.#release(ticket, slot.at, now)
      },
      failed: (lane, askedAt) => unanswered?.(lane, askedAt),
    })
  }

  /** Something may have become possible. */
  wake(): void {
    const now = this.settle()
    this.serve(now, now)
    this.tell()
  }

  /**
   * Puts a request into its lane, behind those that came before it; it contends once the lane is opened (schedule.ts).
   *
   * @param maxWait ms since `arrivedAt`, when it expires
   */
  join({ route, stack, cost, weight }: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket {
    const lane = openLane(route, stack, weight ?? 1)
    const ticket = new Ticket(lane, cost, arrivedAt, waiter)
    this.queued += 1
    for (const bucket of stack) {
      bucket.enqueue(cost)
      bucket.outlet!.leastCost = Math.min(bucket.outlet!.leastCost, cost)
    }
    for (let at: Junction | undefined = lane.parent; at !== undefined; at = at.parent) at.ring.learn(cost, lane.weight)
    // Those of one client that a store was asked about may be answered in another order.
    const { tickets } = lane
    let before: Ticket | undefined
    if (tickets.first !== undefined && tickets.first.arrivedAt > arrivedAt) before = tickets.first
    else for (let at = tickets.last; at !== undefined && at.arrivedAt > arrivedAt; at = at.previous) before = at
    if (before === undefined) tickets.push(ticket)
    else tickets.insert(ticket, before)
    lane.queued += cost
    updateStanding(lane)
    if (maxWait < Infinity) {
      ticket.due = arrivedAt + maxWait
      this.deadlines.add(ticket)
    }
    return ticket
  }

  /** Lets happen what is due, one moment at a time: what is sent late moves the slots after it. Returns the time. */
  settle(): number {
    let now = this.clock.now()
    while (this.#due <= now + SAME_TIME) {
      this.#advance(now)
      this.notices.tell(this.#onReleased)
      now = this.clock.now()
    }
    return now
  }

  #advance(now: number): void {
    const free = this.schedule.due
    const deadline = this.deadlines.next?.due ?? Infinity
    const claimed = this.claims?.due ?? Infinity
    const resumed = this.pauses.next?.due ?? Infinity
    if (claimed <= Math.min(free, deadline, resumed)) {
      this.claims!.advance(now)
      // Whose slot has passed contends again, and so does everyone else before that gate.
      this.serve(now, now)
    } else if (resumed <= Math.min(free, deadline + SAME_TIME)) {
      this.resume(this.pauses.next!)
      this.serve(resumed, now)
    } else if (free <= deadline + SAME_TIME) this.serve(this.schedule.free(free), now)
    else this.#expire(deadline, now)
  }

  #expire(due: number, now: number): void {
    for (let ticket = this.deadlines.next; ticket !== undefined && ticket.due <= due; ticket = this.deadlines.next) {
      this.drop(ticket, now)
    }
  }

  /** Lets a waiter expire. */
  drop(ticket: Ticket, now: number): void {
    this.withdraw(ticket)
    this.claims?.giveBack(ticket)
    ticket.leftAt = now
    this.notices.push(ticket)
  }

  /** Lets go whoever can go: the slot is the moment, in ms, that made it possible. */
  serve(slot: number, now: number): void {
    if (this.passage === 'none') return
    for (let ticket = this.schedule.next(); ticket !== undefined; ticket = this.schedule.next()) {
      if (this.passage === 'claimed') {
        this.claims!.ask(ticket, now)
        continue
      }
      this.withdraw(ticket)
      for (const bucket of ticket.lane.stack) {
        bucket.pass(ticket.cost, slot, now)
        this.schedule.occupied(bucket)
      }
      ticket.lane.route.gate.enter()
      this.#release(ticket, slot, now)
    }
  }

  #release(ticket: Ticket, slot: number, now: number): void {
    ticket.slot = slot
    ticket.leftAt = now
    this.notices.push(ticket)
  }

  /** Lets nobody pass a gate until then, in ms. */
  pause(gate: Gate, until: number): void {
    if (gate.paused) return this.pauses.move(gate, until)
    gate.due = until
    this.pauses.add(gate)
    this.claims?.recall(gate)
  }

  /** Ends a pause: those behind may go at the next `serve`. */
  resume(gate: Gate): void {
    this.pauses.remove(gate)
    this.schedule.gateOpened(gate)
  }

  /** Takes a waiter out of its lane without telling it. False: it has left already. */
  withdraw(ticket: Ticket): boolean {
    const { lane } = ticket
    if (!lane.tickets.remove(ticket) && !this.claims?.remove(ticket)) return false
    this.#left(ticket)
    return true
  }

  /** A ticket is no more in its lane. */
  #left(ticket: Ticket): void {
    const { lane, cost } = ticket
    this.queued -= 1
    this.deadlines.remove(ticket)
    lane.queued -= cost
    for (const bucket of lane.stack) bucket.dequeue(cost)
    if (lane.tickets.size > 0) updateStanding(lane)
    else if (this.claims !== undefined) this.claims.close(lane)
    else {
      dropStanding(lane)
      this.schedule.closed(lane)
    }
  }

  /** Tells those who have left. Sending goes first: what else there is to do can wait. */
  tell(): void {
    this.notices.tell(this.#onReleased)
    this.#arm()
  }

  /** What sending itself was late by counts against the slots that follow. */
  readonly #onReleased = (ticket: Ticket): void => {
    if (ticket.slot === undefined) return
    const sentAt = this.clock.now()
    const usual = this.#sending.usual(sentAt - ticket.leftAt)
    for (const bucket of ticket.lane.stack) {
      const countedAt = bucket.limits.grace === undefined ? sentAt : sentAt - usual
      if (bucket.delay(ticket.cost, ticket.slot, ticket.leftAt, countedAt)) this.schedule.plan(bucket)
    }
    ticket.leftAt = sentAt
  }

  /** Nothing happens by itself any more. */
  close(): void {
    this.#disarm()
    this.#armedFor = -Infinity
  }

  #arm(): void {
    const due = this.#due
    if (due >= this.#armedFor) return
    this.#disarm()
    this.#armedFor = due
    this.#disarm = this.clock.at(due, this.#onWake)
  }

  readonly #onWake = (): void => {
    this.#armedFor = Infinity
    this.settle()
    this.#arm()
  }

  /** When the next thing happens by itself. */
  get #due(): number {
    const { schedule, deadlines, claims, pauses } = this
    return Math.min(
      schedule.due,
      deadlines.next?.due ?? Infinity,
      claims?.due ?? Infinity,
      pauses.next?.due ?? Infinity,
    )
  }
}
