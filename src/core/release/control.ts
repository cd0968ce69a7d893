/** What is done to buckets and gates while requests wait for them: limits change, an upstream pauses. */

import type { BucketLimits } from '../bucket/bucket.js'
import type { Gate, LaneRoute, SharedBucket } from '../queue/lane.js'
import type { Engine } from './release-engine.js'
import { replan } from './replan.js'
import { SendLatency } from './send-latency.js'

export class Control {
  readonly #engine: Engine
  readonly #writing = new SendLatency()

  constructor(engine: Engine) {
    this.#engine = engine
  }

  /** Changes what a bucket allows; its level stays, and those who wait for it leave at the new rate. */
  setLimits(bucket: SharedBucket, limits: BucketLimits): void {
    const now = this.#engine.settle()
    bucket.setLimits(limits, now)
    if (this.#engine.releaseMode === 'claimed') this.#engine.claims!.retuned(bucket)
    this.#engine.readyLanes.plan(bucket)
    this.#engine.settle()
    this.#engine.tell()
  }

  /**
   * Lets nobody pass a gate for so many ms from now; a longer pause that lasts already stays. Waiters that will now exceed
   * their `maxWait` expire at once.
   *
   * @returns how many expired, by the name of their route
   */
  pause(gate: Gate, ms: number): Map<string, number> {
    const now = this.#engine.settle()
    if (ms <= gate.pausedFor(now)) return new Map()
    this.#engine.pause(gate, now + ms)
    return this.replan([gate], () => Infinity)
  }

  /**
   * What passed these buckets last is on the wire now, and its gate may open again.
   *
   * @param passedAt when it passed, in ms
   */
  sent(gate: Gate, stack: readonly SharedBucket[], cost: number, passedAt = Infinity): void {
    const now = this.#engine.settle()
    const sentAt = passedAt === Infinity ? now : now - this.#writing.usual(now - passedAt)
    const claimed = this.#engine.releaseMode === 'claimed'
    for (const bucket of stack) {
      // A store knows only of the slot: the next one is not asked for before this instance has kept its distance.
      const postponed = claimed
        ? this.#engine.claims!.postpone(bucket, cost, passedAt, sentAt)
        : bucket.postpone(cost, sentAt)
      if (postponed) this.#engine.readyLanes.occupied(bucket)
    }
    gate.closed = false
    this.#engine.readyLanes.gateOpened(gate)
    this.#engine.serve(now, now)
    this.#engine.tell()
  }

  /** Ends a pause before its time. */
  resume(gate: Gate): void {
    const now = this.#engine.settle()
    if (!gate.paused) return
    this.#engine.resume(gate)
    this.#engine.serve(now, now)
    this.#engine.tell()
  }

  /**
   * After limits have changed: waiters that will now exceed their `maxWait` expire at once.
   *
   * @param maxWaitOf ms by route; what it shortens is shortened for those who wait, too
   * @returns how many expired, by the name of their route
   */
  replan(gates: Iterable<Gate>, maxWaitOf: (route: LaneRoute) => number): Map<string, number> {
    const now = this.#engine.settle()
    const expired = new Map<string, number>()
    for (const gate of gates) {
      for (const { ticket, maxWait, tooLate } of [...replan(gate, maxWaitOf, now)]) {
        this.#engine.deadlines.remove(ticket)
        ticket.due = ticket.arrivedAt + maxWait
        if (tooLate) {
          const { name } = ticket.lane.route
          expired.set(name, (expired.get(name) ?? 0) + 1)
          this.#engine.drop(ticket, now)
        } else if (ticket.due < Infinity) {
          this.#engine.deadlines.add(ticket)
        }
      }
    }
    this.#engine.settle()
    this.#engine.tell()
    return expired
  }

  /** Nobody waits any more: what would happen later, like the end of a pause, does not. */
  close(): void {
    this.#engine.close()
  }

  /** Empties a bucket of what has passed and ends its block: those who wait for it may go. */
  reset(bucket: SharedBucket): void {
    const now = this.#engine.settle()
    bucket.reset(now)
    this.#engine.claims?.reset(bucket)
    this.#engine.readyLanes.plan(bucket)
    this.#engine.settle()
    this.#engine.serve(now, now)
    this.#engine.tell()
  }
}
