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
 * of its upstream is open and the rings (fair-queue.ts) have its turn. That moment is its slot: an event's time, or `now`
 * when it is an arrival or the opening of a gate that makes it possible. Where slots are a store's, it is then that one is
 * claimed (slot-claims.ts).
 *
 * Whatever happens to a request happens once: it is in a lane from admission until exactly one of release, cancel or
 * expire takes it out, and only who takes it out tells its waiter.
 */

import { dropRank, updateRank } from '../admission/fair-drop.js'
import type { Cancel, Clock } from '../clock.js'
import { type Arrival, type Gate, type Lane, openLane, type ShareNode, Ticket, type Waiter } from '../queue/lane.js'
import { ReadyLanes, SAME_TIME } from '../queue/ready-lanes.js'
import { Claims } from '../shared/slot-claims.js'
import type { Store } from '../store.js'
import { DueHeap } from '../structures/due-heap.js'
import { SendLatency } from './send-latency.js'
import { CallbackQueue } from './waiter-callbacks.js'

/**
 * How those who are next pass: at once; when they have claimed a slot from the store; or not at all, as nobody knows
 * whether the store grants any.
 */
export type ReleaseMode = 'direct' | 'claimed' | 'none'

export interface EngineOptions {
  readonly clock: Clock
  /** Grants slots while `passage` is `claimed`. */
  readonly store?: Store
  /** A claim for this lane, made at this time in ms, was not answered. */
  readonly unanswered?: (lane: Lane, askedAt: number) => void
}

export class Engine {
  readonly clock: Clock
  readonly readyLanes = new ReadyLanes()
  readonly deadlines = new DueHeap<Ticket>()
  readonly pauses = new DueHeap<Gate>()
  readonly callbacks = new CallbackQueue()
  readonly claims: Claims | undefined
  releaseMode: ReleaseMode = 'direct'
  /** How many requests wait. */
  queued = 0
  readonly #sending = new SendLatency()
  #armedFor = Infinity
  #disarm: Cancel = () => false

  constructor({ clock, store, unanswered }: EngineOptions) {
    this.clock = clock
    if (store === undefined) return
    this.claims = new Claims(store, this.readyLanes, {
      now: () => clock.now(),
      wake: () => this.wake(),
      leave: (ticket, slot, now) => {
        this.#left(ticket)
        this.#release(ticket, slot.at, now)
      },
      failed: (lane, askedAt) => unanswered?.(lane, askedAt),
    })
  }

  /** Nobody passes at once before those who have claimed a slot: they came first. */
  get direct(): boolean {
    return this.releaseMode === 'direct' && !this.claims?.busy
  }

  /** Something may have become possible. */
  wake(): void {
    const now = this.settle()
    this.serve(now, now)
    this.tell()
  }

  /**
   * Puts a request into its lane, behind those that came before it; it contends once the lane is opened (ready-lanes.ts).
   *
   * @param maxWait ms since `arrivedAt`, when it expires
   */
  join({ route, stack, cost, weight }: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket {
    const lane = openLane(route, stack, weight ?? 1)
    const ticket = new Ticket(lane, cost, arrivedAt, waiter)
    this.queued += 1
    for (const bucket of stack) {
      bucket.enqueue(cost)
      bucket.waitingState!.leastCost = Math.min(bucket.waitingState!.leastCost, cost)
    }
    for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) at.ring.learn(cost, lane.weight)
    // Those of one client that a store was asked about may be answered in another order.
    const { tickets } = lane
    let before: Ticket | undefined
    if (tickets.first !== undefined && tickets.first.arrivedAt > arrivedAt) before = tickets.first
    else for (let at = tickets.last; at !== undefined && at.arrivedAt > arrivedAt; at = at.previous) before = at
    if (before === undefined) tickets.push(ticket)
    else tickets.insert(ticket, before)
    lane.queued += cost
    updateRank(lane)
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
      this.callbacks.tell(this.#onReleased)
      now = this.clock.now()
    }
    return now
  }

  #advance(now: number): void {
    const free = this.readyLanes.due
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
    } else if (free <= deadline + SAME_TIME) this.serve(this.readyLanes.free(free), now)
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
    this.callbacks.push(ticket)
  }

  /** Lets go whoever can go: the slot is the moment, in ms, that made it possible. */
  serve(slot: number, now: number): void {
    if (this.releaseMode !== 'claimed' && !this.direct) return
    for (let ticket = this.readyLanes.next(); ticket !== undefined; ticket = this.readyLanes.next()) {
      // A store grants slots of buckets.
      if (this.releaseMode === 'claimed' && ticket.lane.stack.length > 0) {
        this.claims!.ask(ticket, now)
        continue
      }
      this.withdraw(ticket)
      for (const bucket of ticket.lane.stack) {
        bucket.pass(ticket.cost, slot, now)
        this.readyLanes.occupied(bucket)
      }
      ticket.lane.route.gate.enter()
      this.#release(ticket, slot, now)
    }
  }

  #release(ticket: Ticket, slot: number, now: number): void {
    ticket.slot = slot
    ticket.leftAt = now
    this.callbacks.push(ticket)
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
    this.readyLanes.gateOpened(gate)
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
    if (lane.tickets.size > 0) updateRank(lane)
    else if (this.claims !== undefined) this.claims.close(lane)
    else {
      dropRank(lane)
      this.readyLanes.closed(lane)
    }
  }

  /** Tells those who have left. Sending goes first: what else there is to do can wait. */
  tell(): void {
    this.callbacks.tell(this.#onReleased)
    this.#arm()
  }

  /** What sending itself was late by counts against the slots that follow. */
  readonly #onReleased = (ticket: Ticket): void => {
    if (ticket.slot === undefined) return
    const sentAt = this.clock.now()
    const usual = this.#sending.usual(sentAt - ticket.leftAt)
    for (const bucket of ticket.lane.stack) {
      const countedAt = bucket.limits.grace === undefined ? sentAt : sentAt - usual
      if (bucket.delay(ticket.cost, ticket.slot, ticket.leftAt, countedAt)) this.readyLanes.plan(bucket)
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
    const { readyLanes: schedule, deadlines, claims, pauses } = this
    return Math.min(
      schedule.due,
      deadlines.next?.due ?? Infinity,
      claims?.due ?? Infinity,
      pauses.next?.due ?? Infinity,
    )
  }
}
