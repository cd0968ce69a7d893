import type { Socket } from 'node:net'
import type { Clock } from '../../core/clock.js'
import { Deadlines } from '../deadlines.js'

/** ms over which the rate of a client is measured. */
const WINDOW = 20_000

/** How slow a client may be while we wait for it (`limits.minBodyRate`). A reload replaces it for what begins later. */
export class LeastRate {
  readonly windows: Deadlines
  /** The least bytes in a window. */
  readonly bytes: number

  /** @param rate bytes/s */
  constructor(clock: Clock, rate: number) {
    this.windows = new Deadlines(clock, WINDOW)
    this.bytes = (rate * WINDOW) / 1_000
  }

  /** @returns undefined if clients may be as slow as they like */
  static of(clock: Clock, rate: number): LeastRate | undefined {
    return rate === 0 ? undefined : new LeastRate(clock, rate)
  }
}

/** Fields that Node does not declare. They are the same in Node 20, 22 and 24. */
interface Undeclared {
  readonly _handle?: { readonly bytesWritten?: number; readonly writeQueueSize?: number } | null
}

/** How many bytes the kernel has taken from a socket. */
export function bytesTaken(socket: Socket): number {
  const { bytesWritten = 0, writeQueueSize = 0 } = (socket as Undeclared)._handle ?? {}
  return bytesWritten - writeQueueSize
}
