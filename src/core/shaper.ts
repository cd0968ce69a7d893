/**
 * What is decided on requests: whether they are admitted, and what follows for those who wait from their coming and
 * going. When they leave is the engine's (release-engine.ts); what is done to buckets and gates besides is control's (control.ts).
 */

import { decide, timeUntilFit } from './admission/decide.js'
import { makeRoom } from './admission/fair-drop.js'
import {
  type Arrival,
  findLane,
  type Gate,
  type Lane,
  type Rejection,
  type SharedBucket,
  type Ticket,
  type Waiter,
} from './queue/lane.js'
import { isFree, SAME_TIME } from './queue/ready-lanes.js'
import { Control } from './release/control.js'
import { Engine, type EngineOptions, type ReleaseMode } from './release/release-engine.js'
import type { Claim } from './store.js'

export type { Arrival, Rejection } from './queue/lane.js'
export type { ReleaseMode } from './release/release-engine.js'

/** `released`: send it now, nobody will be told. A ticket: it is queued, its waiter will be told. */
export type Verdict = 'released' | Ticket | Rejection

const CROWDED: Rejection = { reason: 'crowded', buckets: [], retryAfterMs: undefined }

export class Shaper {
  /** How many may wait. */
  maxQueued: number
  readonly control: Control
  readonly #engine: Engine

  constructor(options: EngineOptions & { readonly maxQueued?: number }) {
    this.maxQueued = options.maxQueued ?? Infinity
    this.#engine = new Engine(options)
    this.control = new Control(this.#engine)
  }

  /** How those who are next pass. */
  get releaseMode(): ReleaseMode {
    return this.#engine.releaseMode
  }

  set releaseMode(releaseMode: ReleaseMode) {
    this.#engine.releaseMode = releaseMode
    this.#engine.wake()
  }

  /** How many requests wait. */
  get queued(): number {
    return this.#engine.queued
  }

  /**
   * Decides on an arrival in a `shape` route: all buckets admit it or none changes.
   *
   * @param maxWait ms; a longer predicted wait is rejected, and a ticket still queued after it expires
   * @param arrivedAt ms; before now where it has been asked for elsewhere
   */
  admit(arrival: Arrival, waiter: Waiter, maxWait = Infinity, arrivedAt?: number): Verdict {
    const now = this.#engine.settle()
    const rejection = decide(arrival.stack, arrival.cost, maxWait, now, arrival.route.gate.pausedFor(now))
    const verdict =
      rejection?.reason === 'overflow'
        ? this.#overflow(arrival, waiter, rejection, maxWait, now, arrivedAt)
        : (rejection ?? this.#accept(arrival, waiter, maxWait, now, arrivedAt))
    this.#engine.tell()
    return verdict
  }

  /**
   * Queues what a store has admitted. Its waiter is told after the next `wake`.
   *
   * @param claim the store's answer where a slot was claimed with the admission
   */
  enqueue(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number, claim?: Claim): Ticket | Rejection {
    const now = this.#engine.settle()
    if (this.#engine.queued >= this.maxQueued) return CROWDED
    for (const bucket of arrival.stack) bucket.endBlock(now)
    // From now on: what asking took is not the client's to wait for less.
    const patience = now - arrivedAt + maxWait + (this.#engine.claims?.patience(arrival.stack) ?? 0)
    const ticket = this.#engine.join(arrival, waiter, patience, arrivedAt)
    const { lane } = ticket
    ticket.counted = true
    const first = lane.tickets.first === ticket
    if (claim !== undefined) this.#engine.claims!.offer(lane, arrival.cost, claim, arrivedAt)
    if (first && lane.tickets.first === ticket) {
      this.#engine.readyLanes.opened(lane, now)
      this.#engine.serve(now, now)
    }
    return ticket
  }

  /**
   * Puts back a request that has been sent and is to be sent again: before those that came after it, and whatever the
   * levels, for it was admitted. Its waiter is told after the next `wake`. Undefined: it would have to wait too long.
   */
  requeue(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket | undefined {
    const now = this.#engine.settle()
    const { route, stack } = arrival
    const start = now + route.gate.pausedFor(now)
    const ahead = costBefore(findLane(route, stack), arrivedAt)
    const leaves = start + Math.max(...stack.map(bucket => (bucket.hold(start) + ahead) / bucket.limits.rate))
    if (leaves > arrivedAt + maxWait || this.#engine.queued >= this.maxQueued) return undefined
    // Before those that came in the same moment, too.
    const ticket = this.#engine.join(arrival, waiter, maxWait, arrivedAt - SAME_TIME)
    this.#engine.readyLanes.opened(ticket.lane, now)
    this.#engine.serve(now, now)
    return ticket
  }

  /** Lets others' requests make room for a newcomer in buckets that are full, where these want it so. */
  makeRoom(arrival: Arrival, full: readonly SharedBucket[], maxWait: number): boolean {
    const now = this.#engine.settle()
    const victims = makeRoom(arrival, full, maxWait, now)
    if (victims !== undefined) this.#displace(victims, full, now)
    this.#engine.tell()
    return victims !== undefined
  }

  /** Decides on an arrival in a `meter` route: the same arithmetic, no waiting. */
  meter(arrival: Arrival): 'released' | Rejection {
    const now = this.#engine.settle()
    let rejection = decide(arrival.stack, arrival.cost, Infinity, now)
    if (rejection?.reason === 'overflow') rejection = this.#punish(arrival, rejection, Infinity, now)
    if (rejection === undefined) {
      for (const bucket of arrival.stack) bucket.fill(arrival.cost, now)
    }
    this.#engine.tell()
    return rejection ?? 'released'
  }

  /** Takes a waiter out of its lane; those behind move up. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    if (!this.#engine.withdraw(ticket)) return false
    this.#engine.claims?.giveBack(ticket)
    this.#engine.wake()
    return true
  }

  /** Returns the slot of a released ticket that was not sent after all; where it was a bucket's last, it is used again. */
  giveBack(ticket: Ticket): void {
    if (ticket.slot === undefined) throw new TypeError('only a released ticket can be given back, and once')
    this.#engine.claims?.giveBack(ticket)
    for (const bucket of ticket.lane.stack) {
      bucket.restore(ticket.cost, ticket.slot, ticket.leftAt)
      this.#engine.readyLanes.plan(bucket)
    }
    ticket.slot = undefined
    this.wake()
  }

  /** Releases what has become possible: to be called when a gate opens. */
  wake(gate?: Gate): void {
    const now = this.#engine.settle()
    if (gate !== undefined) {
      this.#engine.readyLanes.gateOpened(gate)
      this.#engine.serve(now, now)
    }
    this.#engine.tell()
  }

  /** Makes room for a newcomer with less than its share; else the overflow has its consequences. */
  #overflow(
    arrival: Arrival,
    waiter: Waiter,
    rejection: Rejection,
    maxWait: number,
    now: number,
    arrivedAt?: number,
  ): Verdict {
    const { buckets } = rejection
    const crowded = this.#engine.queued >= this.maxQueued
    const victims = crowded ? undefined : makeRoom(arrival, buckets, maxWait, now)
    if (victims === undefined) return this.#punish(arrival, rejection, maxWait, now)
    for (const ticket of victims) this.#engine.withdraw(ticket)
    const verdict = this.#accept(arrival, waiter, maxWait, now, arrivedAt)
    this.#displace(victims, buckets, now)
    return verdict
  }

  #displace(victims: readonly Ticket[], buckets: readonly SharedBucket[], now: number): void {
    for (const ticket of victims) {
      this.#engine.withdraw(ticket)
      this.#engine.claims?.giveBack(ticket)
      const { stack, route } = ticket.lane
      const retryAfterMs = timeUntilFit(stack, ticket.cost, Infinity, now, route.gate.pausedFor(now))
      ticket.rejection = { reason: 'overflow', buckets, retryAfterMs }
      this.#engine.callbacks.push(ticket)
    }
  }

  /** Fills and blocks what overflowed, where its limits say so. */
  #punish({ route, stack, cost }: Arrival, { reason, buckets }: Rejection, maxWait: number, now: number): Rejection {
    for (const bucket of buckets) bucket.applyOverflowPolicy(now)
    return { reason, buckets, retryAfterMs: timeUntilFit(stack, cost, maxWait, now, route.gate.pausedFor(now)) }
  }

  #accept(arrival: Arrival, waiter: Waiter, maxWait: number, now: number, arrivedAt = now): Verdict {
    const { route, stack, cost } = arrival
    for (const bucket of stack) bucket.endBlock(now)
    if (route.gate.open && this.#isNext(arrival, now)) {
      for (const bucket of stack) {
        bucket.pass(cost, now, now)
        this.#engine.readyLanes.occupied(bucket)
      }
      route.gate.enter()
      return 'released'
    }
    if (this.#engine.queued >= this.maxQueued) return CROWDED
    const ticket = this.#engine.join(arrival, waiter, maxWait, arrivedAt)
    const { lane } = ticket
    if (lane.tickets.size === 1) {
      this.#engine.readyLanes.opened(lane, now)
      this.#engine.serve(now, now)
    }
    return ticket
  }

  /** Whether it need not wait for anyone: without buckets only for those before it in its lane. */
  #isNext({ route, stack }: Arrival, now: number): boolean {
    if (stack.length === 0) return findLane(route, stack) === undefined
    return this.#engine.direct && stack.every(bucket => isFree(bucket, now))
  }
}

/** What is queued in a lane by those who came earlier. */
function costBefore(lane: Lane | undefined, arrivedAt: number): number {
  let cost = 0
  for (const ticket of lane?.claiming ?? []) cost += ticket.cost
  for (let ticket = lane?.tickets.first; ticket !== undefined && ticket.arrivedAt < arrivedAt; ticket = ticket.next) {
    cost += ticket.cost
  }
  return cost
}
