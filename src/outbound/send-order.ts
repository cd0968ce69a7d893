/**
 * One after another onto the wire. Who has passed a line's gate may be sent only later, when its connection is open: until
 * then nobody else of that key passes, and the next slot is counted from when it was sent.
 */
import type { Clock } from '../core/clock.js'
import type { SharedBucket, Waiter } from '../core/queue/lane.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import type { Shaper } from '../core/shaper.js'
import type { Holder, KeyQueue } from './key-queues.js'

/** How late, in ms, a release may be and still count for its slot. */
export const GRACE = 0.5

/** What has been let go. */
export interface Passed {
  readonly stack: readonly SharedBucket[]
  readonly cost: number
  /** When, in ms. */
  readonly passedAt: number
}

export class Wire {
  readonly #clock: Clock
  readonly #shaper: Shaper

  constructor(clock: Clock, shaper: Shaper) {
    this.#clock = clock
    this.#shaper = shaper
  }

  /** Keeps a line closed for whoever has passed it, until that is sent. */
  hold(line: KeyQueue, holder: Holder, longest: number): void {
    line.gate.closed = true
    line.holder = holder
    line.heldSince = this.#clock.now()
    if (longest < Infinity && !line.watched) this.#watch(line, longest)
  }

  #watch(line: KeyQueue, longest: number): void {
    line.watched = true
    this.#clock.at(line.heldSince + longest, () => {
      line.watched = false
      if (line.holder === undefined) return
      if (this.#clock.now() < line.heldSince + longest) this.#watch(line, longest)
      else line.holder.yieldTo()
    })
  }

  /** Opens a line whose holder is not to be sent after all. */
  letGo(line: KeyQueue, holder: Holder): void {
    if (line.holder !== holder) return
    line.holder = undefined
    line.gate.closed = false
    this.#shaper.wake(line.gate)
  }

  /**
   * What has passed a line is on the wire now.
   *
   * @param passedAt when it passed, in ms
   */
  sent(line: KeyQueue, { stack, cost, passedAt }: Passed, holder?: Holder): void {
    const now = this.#clock.now()
    if (cost > 0) {
      line.sentAt = now
      line.sentCost = cost
    }
    // Whoever holds it counts when that is sent.
    if (line.gate.closed && (holder === undefined || line.holder !== holder)) return
    if (holder === undefined && now - passedAt <= GRACE) return
    line.holder = undefined
    this.#shaper.control.sent(line.gate, stack, cost, passedAt)
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
  delay(line: KeyQueue, next: Pick<Waiter, 'release'>, ms: number): void {
    line.gate.closed = true
    this.#clock.at(this.#clock.now() + ms, () => {
      line.gate.closed = false
      const now = this.#clock.now()
      next.release(now, now)
      this.#shaper.wake(line.gate)
    })
  }
}
