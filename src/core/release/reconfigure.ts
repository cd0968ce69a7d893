/** Changes to buckets and gates while requests wait for them: limits, resets, pauses, late sends. */

import { type BucketLimits, slackOf, timeToPass, timeUntilDrained } from '../bucket/limits.js'
import type { MaybePromise } from '../maybe-promise.js'
import {
  type Arrival,
  costAt,
  type Demand,
  type Gate,
  type Lane,
  type LaneRoute,
  type SharedBucket,
  type Ticket,
  type Waiter,
} from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'
import { lanesOf } from '../queue/tree.js'
import type { Engine } from './release-engine.js'
import { SendLatency } from './send-latency.js'

export class Control {
  readonly #engine: Engine
  readonly #writing = new SendLatency()

  constructor(engine: Engine) {
    this.#engine = engine
  }

  /** Routes or gates are about to change: what has been sent is taken note of, and nothing is armed. */
  recall(): void {
    this.#engine.settleBefore(armed => armed.recallAll())
  }

  /** Changes what a bucket allows. Its level stays, and requests that wait for it leave at the new rate. */
  setLimits(bucket: SharedBucket, limits: BucketLimits): void {
    this.#engine.setLimits(
      bucket,
      limits,
      this.#engine.settleBefore(armed => armed.recallBucket(bucket)),
    )
    this.#engine.settle()
    this.#engine.notify()
  }

  /**
   * What has passed cost more than was reserved, or less where a difference is negative. What waits leaves accordingly later or
   * sooner.
   *
   * @param differences in cost units. Where there are `costs`, its `cost` is not 0
   * @returns what has really been added or taken out, in each bucket: a level stays between 0 and the capacity
   */
  settle(differences: Demand): MaybePromise<readonly number[]> {
    const { stack } = differences
    const now = this.#engine.settleBefore(armed => stack.every(bucket => armed.recallBucket(bucket)))
    const changes = this.#engine.settleCost(differences, now)
    this.#engine.wake()
    return changes
  }

  /** Empties a bucket of what has passed and ends its block. Requests that wait for it may leave. */
  reset(bucket: SharedBucket): void {
    this.#engine.reset(
      bucket,
      this.#engine.settleBefore(armed => armed.recallBucket(bucket)),
    )
    this.#engine.wake()
  }

  /**
   * Closes a gate for `ms` from now. A longer pause stays as it is. A request that can no longer leave within its `maxWait`
   * expires at once.
   *
   * @returns how many expired, by the name of their route
   */
  pause(gate: Gate, ms: number): Map<string, number> {
    const now = this.#engine.settleBefore(armed => armed.recallAll(gate))
    if (ms <= gate.pausedFor(now)) {
      this.#engine.notify()
      return new Map()
    }
    this.#engine.pause(gate, now + ms)
    return this.replan([gate], () => Infinity)
  }

  /** Ends a pause before its time. */
  resume(gate: Gate): void {
    const now = this.#engine.settle()
    if (!gate.paused) return
    this.#engine.resume(gate)
    this.#engine.releaseReady(now, now)
    this.#engine.notify()
  }

  /** Closes a gate until `unblock`: nothing passes but the probes. */
  block(gate: Gate): void {
    this.#engine.settleBefore(armed => armed.recallAll(gate))
    this.#engine.block(gate)
    this.#engine.notify()
  }

  /** Lets one request pass a blocked gate: the first that waits, or the next that comes. */
  allowProbe(gate: Gate): void {
    gate.probe = gate.blocked
    this.#openGate(gate)
  }

  unblock(gate: Gate): void {
    gate.blocked = false
    gate.probe = false
    gate.probing = false
    this.#openGate(gate)
  }

  #openGate(gate: Gate): void {
    const now = this.#engine.settle()
    this.#engine.open(gate, [], now)
    this.#engine.notify()
  }

  /** Rejects every request that waits at a gate. */
  refuseAll(gate: Gate, retryAfterMs: number): void {
    this.#engine.settle()
    for (const lane of lanesOf(gate)) {
      for (const ticket of [...(lane.claiming ?? []), ...lane.tickets]) {
        if (!ticket.shadow) this.#engine.reject(ticket, { reason: 'down', buckets: [], retryAfterMs })
      }
    }
    this.#engine.wake()
  }

  /**
   * The request that passed these buckets last is on the wire now, and its gate may open again.
   *
   * @param passedAt when it passed, in ms
   */
  sent(gate: Gate, demand: Demand, passedAt = Infinity): void {
    const now = this.#engine.settle()
    let sentAt = now
    if (passedAt < Infinity) {
      sentAt -= this.#writing.usual
      this.#writing.record(now - passedAt)
    }
    this.#engine.postpone(demand, passedAt, sentAt)
    gate.closed = false
    this.#engine.open(gate, [], now)
    this.#engine.notify()
  }

  /**
   * A request that has passed is not on the wire yet, because its connection has to open. Nothing else passes its buckets
   * towards its gate until `unhold`, or for a second. To be called before anything else happens.
   *
   * @returns false if they are not held, because a store grants the slots
   */
  hold(request: Arrival): boolean {
    return this.#engine.hold(request)
  }

  /**
   * What is held for a request is so no longer: it is on the wire now, and the next slots are counted from now, up to the
   * forfeit rule. Or it will never be sent.
   */
  unhold(request: Arrival, fate: 'sent' | 'never-sent'): void {
    const { stack } = request
    // What is armed towards other gates has slots of before.
    const now = this.#engine.settleBefore(armed => stack.every(bucket => armed.recallBucket(bucket)))
    if (fate === 'sent') this.#engine.postpone(request, now, now)
    this.#engine.unhold(request)
    this.#engine.wake()
  }

  /** Deadlines of requests that wait at a gate may be earlier than they were. */
  deadlinesMoved(gate: Gate): void {
    this.#engine.settle()
    for (const { claiming, tickets } of lanesOf(gate))
      for (const ticket of [...(claiming ?? []), ...tickets]) this.#engine.setDeadline(ticket, ticket.due)
    this.#engine.wake()
  }

  /**
   * Limits have changed: a request that can no longer leave within its `maxWait` expires at once.
   *
   * @param maxWaitOf ms by route, waiter and stack. A shorter one counts for requests that wait already. A longer one does not, as
   *   the shorter may be the client's own wish.
   * @returns how many expired, by the name of their route
   */
  replan(gates: Iterable<Gate>, maxWaitOf: MaxWaitOf): Map<string, number> {
    const now = this.#engine.settleBefore(armed => armed.recallAll())
    const expired = new Map<string, number>()
    for (const gate of gates) {
      const start = now + gate.pausedFor(now)
      // All plans are made before any request leaves.
      const plans = lanesOf(gate).flatMap(lane => this.#planLane(lane, maxWaitOf, { now, start }))
      for (const { ticket, due, tooLate } of plans) {
        this.#engine.setDeadline(ticket, due)
        if (!tooLate) continue
        const { name } = ticket.lane.route
        expired.set(name, (expired.get(name) ?? 0) + 1)
        this.#engine.expire(ticket, now)
      }
    }
    this.#engine.settle()
    this.#engine.notify()
    return expired
  }

  /** Every request of a lane, in order. A request that is too late delays none after it. */
  #planLane({ claiming, tickets, stack, route }: Lane, maxWaitOf: MaxWaitOf, { now, start }: Start): Plan[] {
    const ahead = stack.map(() => 0)
    return [...(claiming ?? []), ...tickets].map(ticket => {
      const { arrivedAt, waiter } = ticket
      const since = arrivedAt + (waiter.maxWaitFrom ?? 0)
      const due = Math.min(since + maxWaitOf(route, waiter, stack), ticket.due)
      const times = stack.map((bucket, place) => {
        const from = Math.max(start, now + timeUntilDrained(bucket, now))
        return from + timeToPass(bucket.limits, ahead[place]! - slackOf(bucket.limits, costAt(ticket, place)), from)
      })
      const tooLate = Math.max(start, ...times) > Math.min(due, waiter.deadline ?? Infinity) + SAME_TIME
      if (!tooLate) for (const place of ahead.keys()) ahead[place]! += costAt(ticket, place)
      return { ticket, due, tooLate }
    })
  }

  /** Nobody waits any more: nothing happens later, such as the end of a pause. */
  close(): void {
    this.#engine.close()
  }
}

type MaxWaitOf = (route: LaneRoute, waiter: Waiter, stack: readonly SharedBucket[]) => number

/** Times in ms: the present, and when the gate opens. */
interface Start {
  readonly now: number
  readonly start: number
}

interface Plan {
  readonly ticket: Ticket
  /** When its `maxWait` is over from now on, in ms. */
  readonly due: number
  /** It cannot leave by then. */
  readonly tooLate: boolean
}
