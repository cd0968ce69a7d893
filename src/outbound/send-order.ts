/**
 * Keeps the sends of one key in order and apart.
 *
 * A request may be released long before it is sent, because its connection must open first. Until it is sent, its
 * queue's gate stays closed, so no other request of that key is released. The next slot is counted from the time of the
 * send.
 */
import type { Clock } from '../core/clock.js'
import { costAt, type Demand, type Waiter } from '../core/queue/lane.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import type { Shaper } from '../core/shaper.js'
import type { KeyQueue, Writer } from './key-queues.js'

/** ms. A release that is at most this late keeps its slot. */
export const GRACE = 0.5

/** A released call. */
export interface ReleasedCost extends Demand {
  /** When it was released last, in ms. */
  readonly releasedAt: number
}

export class SendOrder {
  readonly #clock: Clock
  readonly #shaper: Shaper

  constructor(clock: Clock, shaper: Shaper) {
    this.#clock = clock
    this.#shaper = shaper
  }

  /** Closes a queue's gate until the writer is sent, or for `longest` ms. */
  block(queue: KeyQueue, writer: Writer, longest: number): void {
    queue.gate.closed = true
    queue.writer = writer
    queue.writingSince = this.#clock.now()
    if (longest < Infinity && !queue.writerWatched) this.#watch(queue, longest)
  }

  #watch(queue: KeyQueue, longest: number): void {
    queue.writerWatched = true
    this.#clock.at(queue.writingSince + longest, () => {
      queue.writerWatched = false
      if (queue.writer === undefined) return
      if (this.#clock.now() < queue.writingSince + longest) this.#watch(queue, longest)
      else queue.writer.yieldTo()
    })
  }

  /** Opens a queue whose writer will not be sent. */
  unblock(queue: KeyQueue, writer: Writer): void {
    if (queue.writer !== writer) return
    queue.writer = undefined
    queue.gate.closed = false
    this.#shaper.wake(queue.gate)
  }

  /** A released call has been sent. */
  sent(queue: KeyQueue, call: ReleasedCost, writer?: Writer): void {
    const { releasedAt } = call
    const now = this.#clock.now()
    if (call.costs !== undefined || call.cost > 0) {
      queue.sentAt = now
      queue.sent = { cost: call.cost, costs: call.costs }
    }
    // The gate belongs to another call. The slot is counted when that one is sent.
    if (queue.gate.closed && (writer === undefined || queue.writer !== writer)) return
    if (writer === undefined && now - releasedAt <= GRACE) return
    queue.writer = undefined
    this.#shaper.control.sent(queue.gate, call, releasedAt)
  }

  /**
   * How many ms too early the next call would be sent now. A store grants slots and does not know when calls are really
   * sent: after a late send the next slot is too close.
   */
  msTooEarly({ stack, sentAt, sent }: KeyQueue, now: number): number {
    if (sent === undefined || this.#shaper.releaseModeOf(stack) !== 'claimed') return 0
    const times = stack.map(({ limits }, place) => costAt(sent, place) / (limits.whole ?? limits).rate)
    const msTooEarly = sentAt + Math.max(...times) - GRACE - now
    return msTooEarly > SAME_TIME ? msTooEarly : 0
  }

  /** Releases a call `ms` later. Until then no call of its queue is released. */
  delay(queue: KeyQueue, next: Pick<Waiter, 'release'>, ms: number): void {
    queue.gate.closed = true
    this.#clock.at(this.#clock.now() + ms, () => {
      queue.gate.closed = false
      const now = this.#clock.now()
      next.release(now, now)
      this.#shaper.wake(queue.gate)
    })
  }
}
