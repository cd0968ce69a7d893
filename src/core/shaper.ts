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
import { timeUntilRoom } from './forecast.js'
import {
  closeLane,
  type Gate,
  Junction,
  type Lane,
  type LaneRoute,
  type Outlet,
  openLane,
  type SharedBucket,
  Ticket,
  type Waiter,
} from './lane.js'
import { Timeline } from './timeline.js'

/** Times closer than this, in ms, are one: the rounding of sums of periods. */
const SAME_TIME = 1e-6

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
  /** The buckets that refused; for `max-wait` the one with the longest wait. */
  readonly buckets: readonly SharedBucket[]
  /** A request of the same cost sent this much later is admitted if nobody else comes; undefined: never. */
  readonly retryAfterMs: number | undefined
}

/** `released`: send it now, nobody will be told. A ticket: it is queued, its waiter will be told. */
export type Verdict = 'released' | Ticket | Rejection

export class Shaper {
  readonly #clock: Clock
  readonly #maxQueued: number
  readonly #frees = new Timeline<Outlet>()
  readonly #deadlines = new Timeline<Ticket>()
  /** Roots whose rings may have someone to release. */
  readonly #ready: Junction[] = []
  /** Taken out of their lanes, their waiters still to be told. */
  #released: Ticket[] = []
  #expired: Ticket[] = []
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
    this.#tell(now)
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
        this.#occupied(bucket)
      }
    }
    this.#tell(now)
    return rejection ?? 'released'
  }

  /** Takes a waiter out of its lane; those behind move up. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    if (!this.#withdraw(ticket)) return false
    const now = this.#clock.now()
    this.#advance(now)
    this.#tell(now)
    return true
  }

  /** Returns the slot of a released ticket that was not sent after all; where it was a bucket's last, it is used again. */
  giveBack(ticket: Ticket): void {
    if (ticket.slot === undefined) throw new TypeError('only a released ticket can be given back')
    for (const bucket of ticket.lane.stack) {
      bucket.restore(ticket.cost, ticket.slot)
      this.#plan(bucket)
    }
    this.wake()
  }

  /** Releases what has become possible: to be called when a gate opens. */
  wake(gate?: Gate): void {
    const now = this.#clock.now()
    this.#advance(now)
    if (gate !== undefined) {
      this.#ready.push(gate.junction)
      this.#serve(now, now)
    }
    this.#tell(now)
  }

  #judge({ stack, cost }: Arrival, now: number, maxWait: number): Rejection | undefined {
    let fits = true
    let wait = 0
    let slowest: SharedBucket | undefined
    for (const bucket of stack) {
      fits = fits && bucket.excess(cost, now) === 0
      const drained = bucket.level(now) / bucket.limits.rate
      if (drained > wait) {
        wait = drained
        slowest = bucket
      }
    }
    if (!fits) return overflow(stack, cost, now)
    if (wait <= maxWait || slowest === undefined) return undefined
    return { reason: 'max-wait', buckets: [slowest], retryAfterMs: wait - maxWait }
  }

  #accept(arrival: Arrival, waiter: Waiter, maxWait: number, now: number): Verdict {
    const { route, stack, cost } = arrival
    if (route.gate.open && stack.every(bucket => isFree(bucket, now))) {
      for (const bucket of stack) {
        bucket.pass(cost, now, now)
        this.#occupied(bucket)
      }
      route.gate.enter()
      return 'released'
    }
    if (this.#queued >= this.#maxQueued) return { reason: 'crowded', buckets: [], retryAfterMs: undefined }
    const lane = openLane(route, stack)
    const ticket = new Ticket(lane, cost, now, waiter)
    this.#queued += 1
    for (const bucket of stack) bucket.enqueue(cost)
    for (let at: Junction | undefined = lane.parent; at !== undefined; at = at.parent) at.ring.learn(cost, lane.weight)
    lane.tickets.push(ticket)
    if (maxWait < Infinity) {
      ticket.due = now + maxWait
      this.#deadlines.add(ticket)
    }
    if (lane.tickets.size === 1) {
      this.#activate(lane, now)
      this.#serve(now, now)
    }
    return ticket
  }

  #advance(now: number): void {
    for (;;) {
      const free = this.#frees.next?.due ?? Infinity
      const deadline = this.#deadlines.next?.due ?? Infinity
      if (Math.min(free, deadline) > now + SAME_TIME) return
      if (free <= deadline + SAME_TIME) this.#serve(this.#free(free), now)
      else this.#expire(deadline)
    }
  }

  /** Opens every bucket that becomes free at `due`; returns that time. */
  #free(due: number): number {
    let slot = due
    for (
      let outlet = this.#frees.next;
      outlet !== undefined && outlet.due <= due + SAME_TIME;
      outlet = this.#frees.next
    ) {
      this.#frees.remove(outlet)
      slot = outlet.due
      for (const junction of outlet.junctions) if (junction.ring.size > 0) this.#activate(junction, slot)
    }
    return slot
  }

  #expire(due: number): void {
    for (let ticket = this.#deadlines.next; ticket !== undefined && ticket.due <= due; ticket = this.#deadlines.next) {
      this.#withdraw(ticket)
      this.#expired.push(ticket)
    }
  }

  #serve(slot: number, now: number): void {
    for (let root = this.#ready.pop(); root !== undefined; root = this.#ready.pop()) {
      while (root.ring.size > 0 && root.gate.open) this.#release(root, slot, now)
    }
  }

  #release(root: Junction, slot: number, now: number): void {
    let next: Lane | Junction = root
    while (next instanceof Junction) next = next.ring.pick() as Lane | Junction
    const ticket = next.tickets.first!
    for (let at: Lane | Junction = next; at.parent !== undefined; at = at.parent) at.deficit -= ticket.cost
    ticket.slot = slot
    this.#withdraw(ticket)
    for (const bucket of ticket.lane.stack) {
      bucket.pass(ticket.cost, slot, now)
      this.#occupied(bucket)
    }
    root.gate.enter()
    this.#released.push(ticket)
  }

  #withdraw(ticket: Ticket): boolean {
    const { lane, cost } = ticket
    const { stack } = lane
    if (!lane.tickets.remove(ticket)) return false
    this.#queued -= 1
    this.#deadlines.remove(ticket)
    for (const bucket of stack) bucket.dequeue(cost)
    if (lane.tickets.size === 0) {
      this.#deactivate(lane)
      closeLane(lane)
      for (const bucket of stack) this.#forget(bucket)
    }
    return true
  }

  /** A bucket for which nobody waits any more needs no place on the timeline. */
  #forget(bucket: SharedBucket): void {
    if (bucket.outlet === undefined || bucket.outlet.junctions.length > 0) return
    this.#frees.remove(bucket.outlet)
    bucket.outlet = undefined
  }

  /** A bucket has become busy: who waits for it leaves the rings until it is free. */
  #occupied(bucket: SharedBucket): void {
    if (bucket.outlet === undefined) return
    if (bucket.outlet.place < 0) for (const junction of bucket.outlet.junctions) this.#deactivate(junction)
    this.#plan(bucket)
  }

  /** Puts the moment at which a bucket becomes free on the timeline. */
  #plan({ outlet, freeAt }: SharedBucket): void {
    if (outlet === undefined) return
    if (outlet.place >= 0) {
      this.#frees.move(outlet, freeAt)
    } else {
      outlet.due = freeAt
      this.#frees.add(outlet)
    }
  }

  /** Lets a contender that can use a slot into the rings, as far up as buckets are free. */
  #activate(contender: Lane | Junction, now: number): void {
    for (let at = contender; ; ) {
      const { parent } = at
      if (parent === undefined) {
        this.#ready.push(at as Junction)
        return
      }
      if (at.list !== undefined) return
      parent.ring.enter(at)
      if (parent.bucket !== undefined && !isFree(parent.bucket, now)) {
        this.#plan(parent.bucket)
        return
      }
      at = parent
    }
  }

  /** Puts a contender that can no longer use a slot out of the rings, and whoever was there for its sake only. */
  #deactivate(contender: Lane | Junction): void {
    for (let at = contender; at.parent !== undefined && at.list !== undefined; at = at.parent) {
      at.parent.ring.leave(at)
      if (at.parent.ring.size > 0) return
    }
  }

  #tell(now: number): void {
    this.#arm()
    // Waiters may call back in: what is told is taken off first.
    if (this.#released.length > 0) {
      const released = this.#released
      this.#released = []
      for (const ticket of released) ticket.waiter.release(ticket.slot!, now)
    }
    if (this.#expired.length > 0) {
      const expired = this.#expired
      this.#expired = []
      for (const ticket of expired) ticket.waiter.expire(now)
    }
  }

  #arm(): void {
    const due = Math.min(this.#frees.next?.due ?? Infinity, this.#deadlines.next?.due ?? Infinity)
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

function isFree(bucket: SharedBucket, now: number): boolean {
  return bucket.freeAt <= now + SAME_TIME
}

function overflow(stack: readonly SharedBucket[], cost: number, now: number): Rejection {
  const tooSmall = stack.filter(bucket => !bucket.canEverFit(cost))
  if (tooSmall.length > 0) return { reason: 'too-costly', buckets: tooSmall, retryAfterMs: undefined }
  const full = stack.filter(bucket => bucket.excess(cost, now) > 0)
  const retryAfterMs = Math.max(...full.map(bucket => timeUntilRoom(bucket, cost, now)))
  return { reason: 'overflow', buckets: full, retryAfterMs }
}
