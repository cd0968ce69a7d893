/**
 * One after another onto the wire. Who has passed a line's gate may be sent only later, when its connection is open: until
 * then nobody else of that key passes, and the next slot is counted from when it was sent.
 */
import type { Clock } from '../core/clock.js'
import type { SharedBucket, Waiter } from '../core/queue/lane.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import type { Shaper } from '../core/shaper.js'
import type { KeyQueue, Writer } from './key-queues.js'

/** How late, in ms, a release may be and still count for its slot. */
export const GRACE = 0.5

/** What has been let go. */
export interface ReleasedCost {
  readonly stack: readonly SharedBucket[]
  readonly cost: number
  /** When, in ms. */
  readonly releasedAt: number
}

export class SendOrder {
  readonly #clock: Clock
  readonly #shaper: Shaper

  constructor(clock: Clock, shaper: Shaper) {
    this.#clock = clock
    this.#shaper = shaper
  }

  /** Keeps a line closed for whoever has passed it, until that is sent. */
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

  /** Opens a line whose holder is not to be sent after all. */
  unblock(queue: KeyQueue, writer: Writer): void {
    if (queue.writer !== writer) return
    queue.writer = undefined
    queue.gate.closed = false
    this.#shaper.wake(queue.gate)
  }

  /**
   * What has passed a line is on the wire now.
   *
   * @param passedAt when it passed, in ms
   */
  sent(queue: KeyQueue, { stack, cost, releasedAt }: ReleasedCost, writer?: Writer): void {
    const now = this.#clock.now()
    if (cost > 0) {
      queue.sentAt = now
      queue.sentCost = cost
    }
    // Whoever holds it counts when that is sent.
    if (queue.gate.closed && (writer === undefined || queue.writer !== writer)) return
    if (writer === undefined && now - releasedAt <= GRACE) return
    queue.writer = undefined
    this.#shaper.control.sent(queue.gate, stack, cost, releasedAt)
  }

  /**
   * How much too early the next of a line would be now, in ms. A store that grants slots knows only of these: what was sent
   * late in its slot is nearer to the next.
   */
  msTooEarly({ stack, sentAt, sentCost }: KeyQueue, now: number): number {
    const limits = stack[0]?.limits
    if (limits === undefined || this.#shaper.releaseMode !== 'claimed') return 0
    const msTooEarly = sentAt + sentCost / (limits.whole ?? limits).rate - GRACE - now
    return msTooEarly > SAME_TIME ? msTooEarly : 0
  }

  /** Releases somebody so many ms later, and nobody of that line before. */
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
