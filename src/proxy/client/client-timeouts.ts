import type { Clock } from '../../core/clock.js'
import { Deadlines } from '../deadlines.js'

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

  /**
   * @param headers ms
   * @param idle ms; 0: for ever
   */
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
