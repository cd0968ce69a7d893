import type { ServerLimits } from '../../../config/settings.js'
import type { Clock } from '../../../core/clock.js'
import { Deadlines } from '../../deadlines.js'
import { LeastRate } from '../../http/connection/least-rate.js'

/** ms from its turn after which a body of unknown length is sent as it comes. */
const UNENDED = 1_000

type Limits = Pick<ServerLimits, 'bodyTimeout' | 'minBodyRate'>

/** How slowly clients may send bodies and take answers. A reload makes new ones for what begins later. */
export class BodyLimits {
  /** From the turn of a request until its body has to be there. */
  readonly whole: Deadlines
  /** From the turn of a request until its body of unknown length is sent as it comes. */
  readonly unended: Deadlines
  /** Undefined: clients may be as slow as they like. */
  readonly leastRate: LeastRate | undefined
  readonly #limits: Limits

  constructor(clock: Clock, limits: Limits) {
    const { bodyTimeout, minBodyRate } = limits
    this.whole = new Deadlines(clock, bodyTimeout)
    this.unended = new Deadlines(clock, UNENDED)
    this.leastRate = minBodyRate === 0 ? undefined : new LeastRate(clock, minBodyRate)
    this.#limits = limits
  }

  /** Whether these limits are the same. */
  are({ bodyTimeout, minBodyRate }: Limits): boolean {
    return bodyTimeout === this.#limits.bodyTimeout && minBodyRate === this.#limits.minBodyRate
  }

  /** How many bodies and answers are watched. */
  get size(): number {
    return this.whole.size + this.unended.size + (this.leastRate?.windows.size ?? 0)
  }

  close(): void {
    for (const deadlines of [this.whole, this.unended, this.leastRate?.windows]) deadlines?.close()
  }
}
