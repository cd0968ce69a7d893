/**
 * Requests that have had their turn and could not be sent: their bodies are still coming. Their slots and their places in
 * the gate are free for those behind them. They count in their buckets as if they were queued, until they come back to the
 * head of their lane or are dropped.
 */

import { type Arrival, StoredTicket, Ticket, type Waiter } from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'
import type { Engine } from './release-engine.js'

/** A request that is set aside. */
export interface AsideRequest {
  readonly arrival: Arrival
  /** Its last ticket. Undefined: it had passed at once. */
  readonly ticket: Ticket | undefined
  /** A store counts it. */
  readonly counted: boolean
}

export class SetAside {
  readonly #engine: Engine

  constructor(engine: Engine) {
    this.#engine = engine
  }

  /**
   * Takes back a release.
   *
   * @param passed its released ticket, or when it passed at once, in ms
   */
  add(arrival: Arrival, passed: Ticket | number): AsideRequest {
    const engine = this.#engine
    const { stack, route } = arrival
    engine.settleBefore(armed => stack.every(bucket => armed.recallBucket(bucket)))
    const ticket = passed instanceof Ticket ? passed : undefined
    const counted = ticket instanceof StoredTicket && ticket.counted
    if (ticket instanceof StoredTicket) ticket.counted = false
    if (passed instanceof Ticket) engine.returnSlot(passed, passed.slot!)
    else engine.restore(arrival, passed, passed)
    engine.countAside(arrival, 1)
    route.gate.leave()
    route.gate.unprobe()
    const now = engine.settle()
    engine.openGate(route.gate, now)
    engine.notify()
    return { arrival, ticket, counted }
  }

  /**
   * Puts a request back at the head of its lane. Its waiter is called after the next `wake`.
   *
   * @param maxWait ms since `arrivedAt`, when it expires
   */
  comeBack({ arrival, counted }: AsideRequest, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket {
    const engine = this.#engine
    const now = engine.settleFor(arrival, 'before')
    // Also before those that came in the same moment.
    const ticket = engine.join(arrival, waiter, maxWait, arrivedAt - SAME_TIME)
    engine.countAside(arrival, -1)
    if (ticket instanceof StoredTicket) ticket.counted = counted
    engine.contend(ticket, now)
    return ticket
  }

  /** A request will not come back. */
  drop({ arrival, ticket, counted }: AsideRequest): void {
    this.#engine.countAside(arrival, -1)
    if (!(ticket instanceof StoredTicket)) return
    ticket.counted = counted
    this.#engine.uncount(ticket)
  }
}
