/** Bounds on reading what a client still sends after its answer. Closing at once could cost it the answer (RFC 9112 9.6). */
import type { Deadlines, Watched } from '../../deadlines.js'

/** How long a client is read after its answer, in ms: since its last byte, and in total. */
export const LINGER = { silence: 5_000, total: 300_000 }

export interface LingerDeadlines {
  readonly silence: Deadlines
  readonly total: Deadlines
}

/**
 * Destroys a socket or a stream when the time is over.
 *
 * @returns stops watching
 */
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
