/**
 * Admission, waiting and release, for all lanes and buckets together.
 *
 * The shaper is a discrete-event simulation that the clock merely gates. Its events are the moments at which buckets
 * become free (one timeline) and at which waiters give up (another); `advance` runs all that are due, in the order of
 * their times and not of the wake-up. Every entry point advances first, so a decision at `now` never sees a slot that
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

import type { Cancel, Clock } from './clock.js'
import { Fifo } from './fifo.js'
import { timeUntilLevel } from './forecast.js'
import { type Gate, type Junction, type LaneRoute, openLane, type SharedBucket, Ticket, type Waiter } from './lane.js'
import { isFree, SAME_TIME, Schedule } from './schedule.js'
import { Timeline } from './timeline.js'

/** A request as the core sees it. `stack` is ordered from the client's own bucket to everyone's. */
export interface Arrival {
  readonly route: LaneRoute
  readonly stack: readonly SharedBucket[]
  readonly cost: number
}

export interface Rejection {
  /**
   * `overflow`: a bucket is full. `too-costly`: the cost is above a bucket's capacity, it can never pass.
   * `max-wait`: the predicted wait is too long. `crowded`: `maxQueued` requests wait already.
   */
  readonly reason: 'overflow' | 'too-costly' | 'max-wait' | 'crowded'
  /** The buckets that refused. */
  readonly buckets: readonly SharedBucket[]
  /** A request of the same cost sent this much later is admitted if nobody else comes; undefined: never. */
  readonly retryAfterMs: number | undefined
}

/** `released`: send it now, nobody will be told. A ticket: it is queued, its waiter will be told. */
export type Verdict = 'released' | Ticket | Rejection

export class Shaper {
  readonly #clock: Clock
  readonly #maxQueued: number
  readonly #schedule = new Schedule()
  readonly #deadlines = new Timeline<Ticket>()
  /** Released or expired, their waiters still to be told. */
  readonly #ended = new Fifo<Ticket>()
  #telling = false
  #queued = 0
  #armedFor = Infinity
  #disarm: Cancel = () => false

  constructor(options: { clock: Clock; maxQueued?: number }) {
    this.#clock = options.clock
    this.#maxQueued = options.maxQueued ?? Infinity
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
    const now = this.#clock.now()
    this.#advance(now)
    const verdict = this.#judge(arrival, now, maxWait) ?? this.#accept(arrival, waiter, maxWait, now)
    this.#tell()
    return verdict
  }

  /** Decides on an arrival in a `meter` route: the same arithmetic, no waiting. */
  meter(arrival: Arrival): 'released' | Rejection {
    const now = this.#clock.now()
    this.#advance(now)
    const rejection = this.#judge(arrival, now, Infinity)
    if (rejection === undefined) {
      for (const bucket of arrival.stack) {
        bucket.fill(arrival.cost, now)
        this.#schedule.occupied(bucket)
      }
    }
    this.#tell()
    return rejection ?? 'released'
  }

  /** Takes a waiter out of its lane; those behind move up. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    if (!this.#withdraw(ticket)) return false
    const now = this.#clock.now()
    this.#advance(now)
    this.#tell()
    return true
  }

  /** Returns the slot of a released ticket that was not sent after all; where it was a bucket's last, it is used again. */
  giveBack(ticket: Ticket): void {
    if (ticket.slot === undefined) throw new TypeError('only a released ticket can be given back, and once')
    for (const bucket of ticket.lane.stack) {
      bucket.restore(ticket.cost, ticket.slot, ticket.leftAt)
      this.#schedule.plan(bucket)
    }
    ticket.slot = undefined
    this.wake()
  }

  /** Releases what has become possible: to be called when a gate opens. */
  wake(gate?: Gate): void {
    const now = this.#clock.now()
    this.#advance(now)
    if (gate !== undefined) {
      this.#schedule.gateOpened(gate)
      this.#serve(now, now)
    }
    this.#tell()
  }

  #judge({ stack, cost }: Arrival, now: number, maxWait: number): Rejection | undefined {
    for (const bucket of stack) {
      if (bucket.excess(cost, now) > 0 || waitOf(bucket, now) > maxWait) return reject(stack, cost, maxWait, now)
    }
    return undefined
  }

  #accept(arrival: Arrival, waiter: Waiter, maxWait: number, now: number): Verdict {
    const { route, stack, cost } = arrival
    if (route.gate.open && stack.every(bucket => isFree(bucket, now))) {
      for (const bucket of stack) {
        bucket.pass(cost, now, now)
        this.#schedule.occupied(bucket)
      }
      route.gate.enter()
      return 'released'
    }
    if (this.#queued >= this.#maxQueued) return { reason: 'crowded', buckets: [], retryAfterMs: undefined }
    const lane = openLane(route, stack)
    const ticket = new Ticket(lane, cost, now, waiter)
    this.#queued += 1
    for (const bucket of stack) {
      bucket.enqueue(cost)
      bucket.outlet!.leastCost = Math.min(bucket.outlet!.leastCost, cost)
    }
    for (let at: Junction | undefined = lane.parent; at !== undefined; at = at.parent) at.ring.learn(cost, lane.weight)
    lane.tickets.push(ticket)
    if (maxWait < Infinity) {
      ticket.due = now + maxWait
      this.#deadlines.add(ticket)
    }
    if (lane.tickets.size === 1) {
      this.#schedule.opened(lane, now)
      this.#serve(now, now)
    }
    return ticket
  }

  #advance(now: number): void {
    for (;;) {
      const free = this.#schedule.due
      const deadline = this.#deadlines.next?.due ?? Infinity
      if (Math.min(free, deadline) > now + SAME_TIME) return
      if (free <= deadline + SAME_TIME) this.#serve(this.#schedule.free(free), now)
      else this.#expire(deadline, now)
    }
  }

  #expire(due: number, now: number): void {
    for (let ticket = this.#deadlines.next; ticket !== undefined && ticket.due <= due; ticket = this.#deadlines.next) {
      this.#withdraw(ticket)
      ticket.leftAt = now
      this.#ended.push(ticket)
    }
  }

  #serve(slot: number, now: number): void {
    for (let ticket = this.#schedule.next(); ticket !== undefined; ticket = this.#schedule.next()) {
      ticket.slot = slot
      ticket.leftAt = now
      this.#withdraw(ticket)
      for (const bucket of ticket.lane.stack) {
        bucket.pass(ticket.cost, slot, now)
        this.#schedule.occupied(bucket)
      }
      ticket.lane.route.gate.enter()
      this.#ended.push(ticket)
    }
  }

  #withdraw(ticket: Ticket): boolean {
    const { lane, cost } = ticket
    if (!lane.tickets.remove(ticket)) return false
    this.#queued -= 1
    this.#deadlines.remove(ticket)
    for (const bucket of lane.stack) bucket.dequeue(cost)
    if (lane.tickets.size === 0) this.#schedule.closed(lane)
    return true
  }

  /** Tells the waiters what has become of them, in order; they may call back in. */
  #tell(): void {
    this.#arm()
    if (this.#telling) return
    this.#telling = true
    try {
      for (let ticket = this.#ended.shift(); ticket !== undefined; ticket = this.#ended.shift()) {
        if (ticket.slot === undefined) ticket.waiter.expire(ticket.leftAt)
        else ticket.waiter.release(ticket.slot, ticket.leftAt)
      }
    } finally {
      this.#telling = false
    }
  }

  #arm(): void {
    const due = Math.min(this.#schedule.due, this.#deadlines.next?.due ?? Infinity)
    if (due >= this.#armedFor) return
    this.#disarm()
    this.#armedFor = due
    this.#disarm = this.#clock.at(due, this.#onWake)
  }

  readonly #onWake = (): void => {
    this.#armedFor = Infinity
    this.wake()
  }
}

/** How long what `bucket` holds and what is queued for it takes to leave, less what rounding may add. */
function waitOf(bucket: SharedBucket, now: number): number {
  return bucket.level(now) / bucket.limits.rate - SAME_TIME
}

function reject(stack: readonly SharedBucket[], cost: number, maxWait: number, now: number): Rejection {
  const tooSmall = stack.filter(bucket => !bucket.canEverFit(cost))
  if (tooSmall.length > 0) return { reason: 'too-costly', buckets: tooSmall, retryAfterMs: undefined }
  let retryAfterMs = 0
  for (const bucket of stack) {
    const { rate, capacity } = bucket.limits
    const target = Math.min(capacity - cost, rate * maxWait)
    if (bucket.level(now) > target) retryAfterMs = Math.max(retryAfterMs, timeUntilLevel(bucket, target, now))
  }
  const full = stack.filter(bucket => bucket.excess(cost, now) > 0)
  if (full.length > 0) return { reason: 'overflow', buckets: full, retryAfterMs }
  return { reason: 'max-wait', buckets: stack.filter(bucket => waitOf(bucket, now) > maxWait), retryAfterMs }
}
