/**
 * Keeps the sends of one key in order and apart.
 *
 * A request may be released long before it is sent, because its connection must open first. Until it is sent, its
 * queue's gate stays closed, so no other request of that key is released. The next slot is counted from the time of the
 * send.
 */

import { slackOf } from '../core/bucket/limits.js'
import { Meter } from '../core/bucket/meter.js'
import type { Clock } from '../core/clock.js'
import { type Cost, costAt, type Demand, type Waiter } from '../core/queue/lane.js'
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
    if (this.#shaper.releaseModeOf(queue.stack) === 'claimed') this.#count(queue, call, now)
    // The gate belongs to another call. The slot is counted when that one is sent.
    if (queue.gate.closed && (writer === undefined || queue.writer !== writer)) return
    if (writer === undefined && now - releasedAt <= GRACE) return
    queue.writer = undefined
    this.#shaper.control.sent(queue.gate, call, releasedAt)
  }

  #count({ stack, sent }: KeyQueue, call: ReleasedCost, now: number): void {
    for (const [place, bucket] of stack.entries()) {
      const limits = bucket.limits.whole ?? bucket.limits
      const cost = costAt(call, place)
      if (cost === 0) continue
      sent[place] ??= new Meter(limits)
      sent[place].setLimits(limits, now)
      // A call that is early by the grace delays none after it.
      sent[place].set(Math.max(0, sent[place].hold(now) - GRACE * limits.rate) + cost, now)
    }
  }

  /**
   * How many ms too early a call would be sent now. A store grants slots and does not know when calls are really sent: after a late
   * send the next slot is too close.
   */
  msTooEarly({ stack, sent }: KeyQueue, call: Cost, now: number): number {
    if (sent.length === 0 || this.#shaper.releaseModeOf(stack) !== 'claimed') return 0
    let until = now
    for (const [place, meter] of sent.entries()) {
      const { limits } = stack[place]!
      meter.setLimits(limits.whole ?? limits, now)
      until = Math.max(until, meter.drainedAt - slackOf(meter.limits, costAt(call, place)) / meter.limits.rate)
    }
    const msTooEarly = until - GRACE - now
    return msTooEarly > SAME_TIME ? msTooEarly : 0
  }

  /** A call that was sent has cost less, where a difference is negative. Where it has cost more the store's next slots are later. */
  settle({ sent }: KeyQueue, differences: readonly number[]): void {
    const now = this.#clock.now()
    for (const [place, meter] of sent.entries()) {
      if (differences[place]! < 0) meter.set(Math.max(0, meter.hold(now) + differences[place]!), now)
    }
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
