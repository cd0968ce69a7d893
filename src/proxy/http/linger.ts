/**
 * Reads what a client still sends after its answer. Closing at once could cost the client that answer (RFC 9112 9.6).
 */
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { Deadlines, Watched } from '../deadlines.js'

/** How long a client is read after its answer, in ms: since its last byte, and in total. */
export const LINGER = { silence: 5_000, total: 300_000 }

export interface LingerDeadlines {
  readonly silence: Deadlines
  readonly total: Deadlines
}

/**
 * Reads the rest of a request that has been answered. The bound is time and not bytes: closing with unread bytes sends
 * a reset, and a client that first sends everything would lose the answer.
 */
export function lingerOver(req: IncomingMessage, deadlines: LingerDeadlines): void {
  const stop = readRest(req, deadlines)
  req.once('end', stop).once('close', stop)
}

/** As `lingerOver`, for the last request of a connection. Reads on until the client ends the connection too. */
export function lingerAndClose(req: IncomingMessage, deadlines: LingerDeadlines): void {
  const { socket } = req
  socket.once('close', readRest(req, deadlines))
  // Node calls this when the answer is written.
  socket.destroySoon = () => {
    socket.end()
    socket.resume()
  }
}

/** @returns stops watching the deadlines */
function readRest(req: IncomingMessage, { silence, total }: LingerDeadlines): () => void {
  const quiet = destroying(req.socket)
  const unwatchTotal = watchOver(req.socket, total)
  silence.watch(quiet)
  req.on('data', () => silence.watch(quiet))
  req.resume()
  return () => {
    silence.unwatch(quiet)
    unwatchTotal()
  }
}

/** Ends a connection, but reads until the client ends it too, for a limited time. */
export function closeSoftly(socket: Socket, deadlines: Deadlines): void {
  socket.once('close', watchOver(socket, deadlines))
  socket.end()
  socket.resume()
}

/**
 * Destroys the socket when the time is over.
 *
 * @returns stops watching
 */
export function watchOver(socket: Socket, deadlines: Deadlines): () => void {
  const watched = destroying(socket)
  deadlines.watch(watched)
  return () => deadlines.unwatch(watched)
}

function destroying(socket: Socket): Watched {
  return { list: undefined, previous: undefined, next: undefined, dueAt: 0, expired: () => socket.destroy() }
}
