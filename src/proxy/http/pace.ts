import type { ServerLimits } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import { Deadlines, type Watched } from '../deadlines.js'

/** ms over which the rate of a client is measured. */
const WINDOW = 20_000

/** How slow a client may be while we wait for it (`limits.minBodyRate`). */
export class LeastRate {
  readonly windows: Deadlines
  /** The least bytes in a window. */
  readonly bytes: number

  constructor(clock: Clock, rate: number) {
    this.windows = new Deadlines(clock, WINDOW)
    this.bytes = (rate * WINDOW) / 1_000
  }
}

/**
 * How long a client is read after its answer, in ms: since its last byte, and in total. Closing at once could cost it the answer
 * (RFC 9112 9.6).
 */
export const LINGER = { silence: 5_000, total: 300_000 }

export interface LingerDeadlines {
  readonly silence: Deadlines
  readonly total: Deadlines
}

/** Destroys a socket or a stream when the time is over. @returns stops watching */
export function watchOver(socket: { destroy(): unknown }, deadlines: Deadlines): () => void {
  const watched: Watched = {
    list: undefined,
    previous: undefined,
    next: undefined,
    dueAt: 0,
    expired: () => void socket.destroy(),
  }
  deadlines.watch(watched)
  return () => deadlines.unwatch(watched)
}

/** Collects entries, and runs them once the sockets of this turn of the event loop have been read. */
export function afterReads<E>(run: (entry: E) => void): (entry: E) => void {
  let waiting: E[] = []
  const runAll = (): void => {
    const entries = waiting
    waiting = []
    for (const entry of entries) run(entry)
  }
  return entry => {
    if (waiting.length === 0) setImmediate(runAll)
    waiting.push(entry)
  }
}

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

  are({ bodyTimeout, minBodyRate }: Limits): boolean {
    return bodyTimeout === this.#limits.bodyTimeout && minBodyRate === this.#limits.minBodyRate
  }

  get size(): number {
    return this.whole.size + this.unended.size + (this.leastRate?.windows.size ?? 0)
  }

  close(): void {
    for (const deadlines of [this.whole, this.unended, this.leastRate?.windows]) deadlines?.close()
  }
}
