import type { Socket } from 'node:net'
import type { Clock } from '../../../core/clock.js'
import { Deadlines } from '../../deadlines.js'

/** ms over which the rate of a client is measured. */
const WINDOW = 20_000

/** How slow a client may be while we wait for it (`limits.minBodyRate`). */
export class LeastRate {
  readonly windows: Deadlines
  /** The least bytes in a window. */
  readonly bytes: number

  /** @param rate bytes/s */
  constructor(clock: Clock, rate: number) {
    this.windows = new Deadlines(clock, WINDOW)
    this.bytes = (rate * WINDOW) / 1_000
  }
}

/** Fields that Node does not declare. They are the same in Node 20, 22 and 24. */
interface Handle {
  readonly bytesWritten?: number
  readonly writeQueueSize?: number
  /** The TCP connection below TLS. */
  readonly _parent?: Handle
}

/** How many bytes the kernel has taken from a socket, encrypted ones over TLS. */
export function bytesTaken(socket: Socket): number {
  const { _handle: handle } = socket as { readonly _handle?: Handle | null }
  // TLS knows only of whole writes.
  const { bytesWritten = 0, writeQueueSize = 0 } = handle?._parent ?? handle ?? {}
  return bytesWritten - writeQueueSize
}
