/**
 * The connections that have no request while the server drains, and may get one.
 *
 * A client that had an answer just now, or has just connected, may have sent a request that is not here yet. If its connection closed at
 * once, that request would be lost. So it is waited for, for a short time. Its answer says that the connection closes.
 *
 * That is also why a connection that has been idle for longer is closed at once: its next request may come at any time, so waiting would
 * not help.
 */
import type { Clock } from '../../core/clock.js'
import type { ProxyContext } from '../context.js'
import { Deadlines, type Watched } from '../deadlines.js'

/** ms: a round trip to a far client, and its time to think. */
const WAIT = 500

export class LastCalls {
  readonly deadlines: Deadlines
  readonly #clock: Clock
  readonly #context: ProxyContext
  readonly #open = new Set<Watched>()

  /** @param clock for timeouts */
  constructor(clock: Clock, context: ProxyContext) {
    this.#clock = clock
    this.#context = context
    this.deadlines = new Deadlines(clock, WAIT)
  }

  /** ms */
  now(): number {
    return this.#clock.now()
  }

  /** Whether a connection has been idle for so short a time that a request may be on its way. @param since ms */
  isRecent(since: number): boolean {
    return this.now() - since < WAIT
  }

  /** The server does not end before this connection gets its request or gives up. The connection watches the deadline itself. */
  begin(connection: Watched): void {
    if (this.#open.has(connection)) return
    this.#open.add(connection)
    this.#context.inProgress += 1
  }

  /** Its request is in progress, or it is waited for no longer. */
  end(connection: Watched): void {
    if (!this.#open.delete(connection)) return
    this.#context.inProgress -= 1
    if (this.#context.inProgress === 0) this.#context.idle()
  }
}
