import type { Clock } from '../../core/clock.js'
import type { ProxyContext } from '../context.js'
import { Deadlines, type Watched } from '../deadlines.js'
import type { OpenConnection } from '../http/client.js'
import type { HeadLimits } from './request-parser.js'

export interface ConnectionHome {
  readonly context: ProxyContext
  readonly timeouts: ClientTimeouts
  readonly looks: Deadlines
  readonly lastCalls: LastCalls
  readonly headLimits: HeadLimits
  /** It goes on as another one, on the same socket. */
  replaced(connection: OpenConnection, by: OpenConnection): void
  closed(connection: OpenConnection): void
}

/** How long connections may take. A reload replaces it for what begins later. */
export class ClientTimeouts {
  /** From the opening of a connection to its first byte. */
  readonly opening: Deadlines
  /** For the head of a request, from its first byte. */
  readonly headers: Deadlines
  /** From an answer to the first byte of the next request. Undefined: as long as it likes. */
  readonly idle: Deadlines | undefined
  /** The header lines of an answer after which the connection stays open. */
  readonly keepAlive: string

  /** Durations in ms. @param idle 0: for ever */
  constructor(clock: Clock, headers: number, idle: number) {
    this.opening = new Deadlines(clock, headers)
    this.headers = new Deadlines(clock, headers)
    this.idle = idle === 0 ? undefined : new Deadlines(clock, idle)
    const lines = 'Connection: keep-alive\r\n'
    this.keepAlive = idle === 0 ? lines : `${lines}Keep-Alive: timeout=${Math.floor(idle / 1_000)}\r\n`
  }

  close(): void {
    this.opening.close()
    this.headers.close()
    this.idle?.close()
  }
}

/** ms: a round trip to a far client, and its time to think. */
const WAIT = 500

/**
 * The connections that have no request while the server drains, and may get one.
 *
 * A client that had an answer just now, or has just connected, may have sent a request that is not here yet. If its connection closed at
 * once, that request would be lost. So it is waited for, for a short time. Its answer says that the connection closes.
 *
 * That is also why a connection that has been idle for longer is closed at once: its next request may come at any time, so waiting would
 * not help.
 */
export class LastCalls {
  readonly deadlines: Deadlines
  readonly #clock: Clock
  readonly #context: ProxyContext
  readonly #open = new Set<Watched>()

  constructor(clock: Clock, context: ProxyContext) {
    this.#clock = clock
    this.#context = context
    this.deadlines = new Deadlines(clock, WAIT)
  }

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

  end(connection: Watched): void {
    if (!this.#open.delete(connection)) return
    this.#context.inProgress -= 1
    if (this.#context.inProgress === 0) this.#context.idle()
  }
}
