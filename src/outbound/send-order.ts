/**
 * Keeps the sends of one key in order and apart. A request may be released long before it is sent, because its connection
 * must open first. Until then its queue's gate stays closed. The next slot is counted from the time of the send.
 */

import type { BucketLimits } from '../core/bucket/limits.js'
import { Meter } from '../core/bucket/meter.js'
import type { Clock } from '../core/clock.js'
import { type Cost, costAt, type SharedBucket, type Waiter } from '../core/queue/lane.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import type { Shaper } from '../core/shaper.js'
import { slackOf } from '../decider/costs.js'
import { StoredBucket } from '../sharing/stored-bucket.js'
import type { KeyQueue, ReleasedCost, Writer } from './key-queues.js'

/** ms. A release that is at most this late keeps its slot. */
export const GRACE = 0.5
/** Turns of the loop in which a burst may be sent. */
const BURST_TURNS = 5

export class SendOrder {
  readonly #clock: Clock
  readonly #shaper: Shaper
  /** When a call was told last when to come again, in ms. */
  #rejectedAt = -Infinity

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

  unblock(queue: KeyQueue, writer: Writer): void {
    if (queue.writer !== writer) return
    queue.writer = undefined
    queue.gate.closed = false
    this.#shaper.wake(queue.gate)
  }

  written(queue: KeyQueue, writer: Writer & ReleasedCost): void {
    this.count(queue, writer)
    this.sent(queue, writer, writer)
  }

  /** The queue need not wait for this released call any longer: it has been sent, or its writer takes too long. */
  sent(queue: KeyQueue, call: ReleasedCost, writer?: Writer): void {
    const { releasedAt } = call
    const now = this.#clock.now()
    // The gate belongs to another call. The slot is counted when that one is sent.
    if (queue.gate.closed && (writer === undefined || queue.writer !== writer)) return
    if (writer === undefined && now - releasedAt <= GRACE) return
    queue.writer = undefined
    this.#shaper.engine.sent(queue.gate, call, releasedAt)
  }

  /**
   * A call was released as it came. Its caller goes on, maybe for long, and what the call sends leaves after the present tick. What a
   * burst of calls sends keeps the process busy for some turns of its loop. The burst leaves as late as the last of it. Where somebody
   * was rejected meanwhile nothing moves: what was told then has to be enough.
   */
  releasedAtOnce(queue: KeyQueue, call: ReleasedCost): void {
    this.sent(queue, call)
    queue.lastAtOnce = call
    queue.atOnce += 1
    if (queue.atOnce === 1) this.#afterTurn(queue, BURST_TURNS)
  }

  /** A call is being told when to come again. */
  rejected(): void {
    this.#rejectedAt = this.#clock.now()
  }

  #afterTurn(queue: KeyQueue, turns: number): void {
    const from = this.#clock.now()
    this.#clock.at(from, () => {
      if (this.#rejectedAt < queue.lastAtOnce!.releasedAt) this.sent(queue, queue.lastAtOnce!)
      const isBusy = queue.atOnce > 1 && this.#clock.now() - from > GRACE
      if (isBusy && turns > 1) return this.#afterTurn(queue, turns - 1)
      queue.lastAtOnce = undefined
      queue.atOnce = 0
    })
  }

  /** A call is sent now. Does nothing unless a store grants the slots. */
  count({ stack, sent }: KeyQueue, call: Cost): void {
    if (this.#shaper.engine.releaseModeOf(stack) !== 'claimed') return
    const now = this.#clock.now()
    for (const [place, bucket] of stack.entries()) {
      const cost = costAt(call, place)
      if (cost === 0) continue
      sent[place] ??= new Meter(wholeOf(bucket))
      adoptLimits(sent[place], bucket, now)
      // A call that is early by the grace delays none after it.
      sent[place].set(Math.max(0, sent[place].hold(now) - GRACE * sent[place].limits.rate) + cost, now)
    }
  }

  /** By how many ms a call would be sent too early: after a late send the next slot of a store is too close. */
  msTooEarly({ stack, sent }: KeyQueue, call: Cost, now: number): number {
    if (sent.length === 0 || this.#shaper.engine.releaseModeOf(stack) !== 'claimed') return 0
    let until = now
    for (const [place, meter] of sent.entries()) {
      adoptLimits(meter, stack[place]!, now)
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

function wholeOf({ limits }: SharedBucket): BucketLimits {
  return limits.whole ?? limits
}

/** What has been sent drains at the bucket's rate, from the time on at which that has changed. */
function adoptLimits(meter: Meter, bucket: SharedBucket, now: number): void {
  const since = bucket instanceof StoredBucket ? Math.min(now, bucket.changedAt) : now
  meter.setLimits(wholeOf(bucket), since)
}
