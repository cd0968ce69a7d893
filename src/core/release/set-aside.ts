/**
 * Requests that have had their turn and could not be sent: their bodies are still coming. Their slots and their places in
 * the gate are free for those behind them. They go on counting in their lanes and buckets, until they come back to the head
 * of their lane or are cancelled.
 */

import { type Arrival, type Rejection, StoredTicket, type Ticket, type Waiter } from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'
import type { Engine } from './release-engine.js'

export class SetAside {
  readonly #engine: Engine
  readonly #makePlace: (arrival: Arrival) => Rejection | undefined

  /** @param makePlace lets one more request wait, if need be in the place of another. A rejection: there is no place */
  constructor(engine: Engine, makePlace: (arrival: Arrival) => Rejection | undefined) {
    this.#engine = engine
    this.#makePlace = makePlace
  }

  /**
   * Takes back a release. To be called from `Waiter.release`, or as soon as an arrival was `released`, and followed by `wake`
   * with its gate and its stack.
   *
   * @param passed its released ticket. Undefined: it has passed at once
   * @param arrivedAt ms
   * @returns its ticket from now on. A rejection: too many wait, and it is not one of them
   */
  add(arrival: Arrival, waiter: Waiter, passed: Ticket | undefined, arrivedAt: number): Ticket | Rejection {
    const engine = this.#engine
    // What has become due since its slot comes after it.
    engine.recallFor(arrival)
    // One that has passed at once has not counted among those that wait.
    const rejection = passed === undefined ? this.#makePlace(arrival) : undefined
    const ticket = rejection ?? this.#standAside(arrival, waiter, arrivedAt)
    if (passed === undefined) {
      // With a store it has passed by a lease.
      if (ticket instanceof StoredTicket) ticket.counted = engine.releaseModeOf(arrival.stack) === 'claimed'
      engine.restore(arrival)
    } else {
      if (ticket instanceof StoredTicket) keepCounted(passed, ticket)
      engine.returnSlot(passed, passed.slot!)
    }
    arrival.route.gate.leave()
    arrival.route.gate.unprobe()
    for (const bucket of arrival.stack) bucket.leave()
    return ticket
  }

  #standAside(arrival: Arrival, waiter: Waiter, arrivedAt: number): Ticket {
    // It will leave before those that came in the same moment.
    const ticket = this.#engine.countIn(arrival, waiter, arrivedAt - SAME_TIME)
    this.#engine.setAside(ticket)
    return ticket
  }

  /**
   * Puts a request back at the head of its lane. Its waiter is called after the next `wake`.
   *
   * @param due ms. It expires then
   */
  comeBack(ticket: Ticket, due: number): void {
    const engine = this.#engine
    const { lane, stack, cost } = ticket
    const now = engine.settleFor({ route: lane.route, stack, cost }, 'before')
    engine.leaveAside(ticket)
    engine.lineUp(ticket, due)
    engine.contend(ticket, now)
  }
}

/** A store goes on counting the request. */
function keepCounted(passed: Ticket, ticket: StoredTicket): void {
  if (!(passed instanceof StoredTicket)) return
  ticket.counted = passed.counted
  passed.counted = false
}
