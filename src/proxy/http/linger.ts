/** Reading on what a client sends after its answer: closing at once could cost it the answer (RFC 9112 9.6). */
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { Deadlines, Watched } from '../deadlines.js'

/** How long a client that still sends is read on, in ms: since its last byte, and in all. */
export const LINGER = { silence: 5_000, total: 300_000 }

export interface LingerDeadlines {
  readonly silence: Deadlines
  readonly total: Deadlines
}

/**
 * Reads the rest of a request that has been answered. The bound is time and not bytes: closing with unread bytes sends an
 * RST, and that takes the answer from a client that reads only after it has sent everything.
 *
 * @param last whether the connection ends with that answer
 */
export function lingerOver(req: IncomingMessage, last: boolean, { silence, total }: LingerDeadlines): void {
  const { socket } = req
  const quiet = destroying(socket)
  const unwatchTotal = watchOver(socket, total)
  const stop = (): void => {
    silence.unwatch(quiet)
    unwatchTotal()
  }
  silence.watch(quiet)
  req.on('data', () => silence.watch(quiet))
  req.resume()
  if (last) {
    socket.once('close', stop)
    // What Node calls when the answer is out.
    socket.destroySoon = () => {
      socket.end()
      socket.resume()
    }
    return
  }
  req.once('end', stop).once('close', stop)
}

/** Ends a connection, but reads on until the client ends it too, for a while. */
export function closeSoftly(socket: Socket, deadlines: Deadlines): void {
  socket.once('close', watchOver(socket, deadlines))
  socket.end()
  socket.resume()
}

/** Destroys the socket when the time is over; returns what stops watching. */
export function watchOver(socket: Socket, deadlines: Deadlines): () => void {
  const watched = destroying(socket)
  deadlines.watch(watched)
  return () => deadlines.unwatch(watched)
}

function destroying(socket: Socket): Watched {
  return { list: undefined, previous: undefined, next: undefined, dueAt: 0, expired: () => socket.destroy() }
}
