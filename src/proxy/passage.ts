/**
 * A request's way through the buckets of its route to the gate of its upstream.
 *
 * It is `deciding` where a store is asked, `waiting` in a lane, `through`, or `over`. Whatever it holds on the way, a place
 * in a lane or one in the gate, it gives back exactly once.
 */
import { type Rejection, type SharedBucket, Ticket } from '../core/lane.js'
import type { Arrival, Verdict } from '../core/shaper.js'
import type { Applicant } from '../core/shared-shaper.js'
import { admit } from './admission.js'
import type { RequestRecord } from './events.js'
import { type Line, leaveGate } from './line.js'
import { rejectionReply } from './rejection.js'
import { heldBack, type Reply, tooLate } from './reply.js'
import type { Route } from './route.js'

/** Whose way it is. */
export interface Passenger extends RequestRecord {
  /** It may be sent; `queued`: after it has waited. */
  passed(queued: boolean): void
  stack: readonly SharedBucket[]
  /** It may not, and this is what to answer. */
  turnedAway(outcome: 'rejected' | 'expired', reply: Reply): void
}

export class Passage implements Applicant {
  arrival: Arrival
  /** How long it has been queued, in ms. */
  wait = 0
  /** How often it has been put back. */
  retries = 0
  readonly #line: Line
  readonly #route: Route
  readonly #passenger: Passenger
  readonly #maxWait: number
  readonly #arrivedAt: number
  #state: 'deciding' | 'waiting' | 'through' | 'over' = 'deciding'
  #ticket: Ticket | undefined

  /** @param maxWait ms */
  constructor(line: Line, route: Route, passenger: Passenger, arrival: Arrival, maxWait: number) {
    this.#line = line
    this.#route = route
    this.#passenger = passenger
    this.arrival = arrival
    this.#maxWait = maxWait
    this.#arrivedAt = line.clock.now()
  }

  start(): void {
    admit(this.#line, this.#route, this.arrival, this, this.#maxWait)
  }

  decided(verdict: Verdict): void {
    const { observer } = this.#line
    if (this.#state === 'over') this.#undo(verdict)
    else if (verdict === 'released') {
      this.#state = 'through'
      if (this.#route.settings.mode === 'shape') observer.released?.(this.#passenger, 0)
      this.#passenger.passed(false)
    } else if (verdict instanceof Ticket) this.#wait(verdict)
    else this.reject(verdict)
  }

  /** It has ended before it was decided on. */
  #undo(verdict: Verdict): void {
    if (verdict instanceof Ticket) this.#line.shaper.cancel(verdict)
    else if (verdict === 'released') leaveGate(this.#line, this.#route.lane.gate)
  }

  #wait(ticket: Ticket): void {
    this.#ticket = ticket
    this.#state = 'waiting'
    this.#line.observer.queued?.(this.#passenger)
    this.#keepReady()
  }

  release(slot: number, now: number): void {
    if (this.#state === 'over') {
      // It ended while its release was on the way: the gate first, so that the slot finds it open.
      this.#route.lane.gate.leave()
      return this.#line.shaper.giveBack(this.#ticket!)
    }
    this.#state = 'through'
    this.#line.observer.unqueued?.(this.#passenger)
    this.wait = now - this.#arrivedAt
    this.#line.observer.released?.(this.#passenger, now - slot)
    this.#keepReady()
    this.#passenger.passed(true)
  }

  expire(now: number): void {
    this.#state = 'over'
    this.#line.observer.unqueued?.(this.#passenger)
    const pause = this.#route.lane.gate.pausedFor(now)
    this.#passenger.turnedAway('expired', pause > 0 ? heldBack(pause) : tooLate(now - this.#arrivedAt))
  }

  reject(rejection: Rejection): void {
    if (this.#state === 'waiting') this.#line.observer.unqueued?.(this.#passenger)
    this.#state = 'over'
    const { stack, cost } = this.arrival
    const reply = rejectionReply(rejection, this.#route, stack, cost, this.#line.clock.now())
    this.#passenger.turnedAway('rejected', reply)
  }

  /**
   * Puts it back at the head of its lane after it has been sent and refused with this status. Undefined: it has no lane,
   * or could not be sent again in time.
   *
   * @returns to be called when the answer that refused it is over: so long it has its place in the gate
   */
  goBack(status: number): (() => void) | undefined {
    const { shaper, observer } = this.#line
    const stack = this.#route.settings.mode === 'shape' ? this.#presentStack() : undefined
    if (stack === undefined) return undefined
    const arrival = { ...this.arrival, stack }
    const ticket = shaper.requeue(arrival, this, this.#maxWait, this.#arrivedAt)
    if (ticket === undefined) return undefined
    this.arrival = arrival
    this.#passenger.stack = stack
    observer.retried?.(this.#passenger, status)
    this.retries += 1
    this.#wait(ticket)
    shaper.wake()
    return () => leaveGate(this.#line, arrival.route.gate)
  }

  /** Instances that nobody waited for may have been replaced since. Undefined: there is no room for them. */
  #presentStack(): SharedBucket[] | undefined {
    const { keyspace, clock } = this.#line
    const { keys } = this.#passenger
    const now = clock.now()
    const found: SharedBucket[] = []
    for (const [place, { limits }] of this.arrival.stack.entries()) {
      const bucket = keyspace.find(limits, keys[place]!, now, found)
      if (bucket === undefined) return undefined
      found.push(bucket)
    }
    return found
  }

  /** Ends it wherever it is; its place goes to whoever is next. */
  end(): void {
    const state = this.#state
    this.#state = 'over'
    if (state === 'waiting') {
      this.#line.observer.unqueued?.(this.#passenger)
      this.#line.shaper.cancel(this.#ticket!)
    } else if (state === 'through') leaveGate(this.#line, this.#route.lane.gate)
  }

  /** Ends one that has not been sent after all: its slot is given back. */
  endUnsent(): void {
    this.end()
    this.#line.shaper.giveBack(this.#ticket!)
  }

  #keepReady(): void {
    const { connector, gate } = this.#route.upstream
    connector.keepReady(gate.inFlight)
  }
}
