import type { IncomingMessage } from 'node:http'
import { destroying, type LingerDeadlines, watchOver } from '../http/linger.js'

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
