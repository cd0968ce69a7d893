/**
 * Clients that all wait equally long for their answers and then leave. A log does not say who would have left.
 *
 * One that leaves while its request is queued takes the request with it, as with the proxy. One that leaves after its request
 * was sent is not noticed: the upstream works for nobody. Requests may be given up before that, by the rules of the proxy for a
 * known patience: on arrival if the predicted wait is too long, and while they wait once their answers would come too late.
 */
import type { Clock } from '../../core/clock.js'
import type { Ticket } from '../../core/queue/lane.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import type { Shaper } from '../../core/shaper.js'

/** Times are in ms. */
export interface LeavingOptions {
  /** How long a client waits for its answer. */
  readonly patience: number
  /** From the release to the answer. */
  readonly service: number
  /** What is done with requests whose answers would come too late. */
  readonly policy: 'keep' | 'give up'
}

/** Requests by what became of them. */
export interface LeavingCounts {
  inTime: number
  /** Sent, and answered after its client had left. */
  late: number
  /** Its client left while it was queued. */
  left: number
  givenUp: number
}

interface Waiting {
  readonly ticket: Ticket
  readonly leavesAt: number
}

export class LeavingClients {
  readonly counts: LeavingCounts = { inTime: 0, late: 0, left: 0, givenUp: 0 }
  readonly #options: LeavingOptions
  /** In the order in which their clients leave: all wait equally long. Those before `#first` are over. */
  #waiting: Waiting[] = []
  #first = 0
  #planned = false

  constructor(options: LeavingOptions) {
    this.#options = options
  }

  /** The longest predicted wait to which a request is admitted, in ms. Undefined: any. */
  get longestWait(): number | undefined {
    const { patience, service, policy } = this.#options
    return policy === 'give up' ? patience - service : undefined
  }

  /** A request is queued. Its client leaves in time. */
  wait(ticket: Ticket, clock: Clock, shaper: Shaper): void {
    // One that is released in the same moment goes first.
    this.#waiting.push({ ticket, leavesAt: clock.now() + this.#options.patience + SAME_TIME })
    if (!this.#planned) this.#plan(clock, shaper)
  }

  /** A request is not admitted, or waits no longer, because its answer would come too late. */
  giveUp(): void {
    this.counts.givenUp += 1
  }

  /** A request is sent. `waited` in ms. */
  turn(waited: number): void {
    const { patience, service } = this.#options
    this.counts[waited + service > patience + SAME_TIME ? 'late' : 'inTime'] += 1
  }

  /** Plans for the next client that leaves. */
  #plan(clock: Clock, shaper: Shaper): void {
    const next = this.#waiting[this.#first]
    this.#planned = next !== undefined
    if (next !== undefined) clock.at(next.leavesAt, () => this.#leave(clock, shaper))
  }

  #leave(clock: Clock, shaper: Shaper): void {
    const now = clock.now()
    for (; (this.#waiting[this.#first]?.leavesAt ?? Infinity) <= now; this.#first += 1) {
      if (shaper.cancel(this.#waiting[this.#first]!.ticket)) this.counts.left += 1
    }
    if (2 * this.#first >= this.#waiting.length) {
      this.#waiting = this.#waiting.slice(this.#first)
      this.#first = 0
    }
    this.#plan(clock, shaper)
  }
}
