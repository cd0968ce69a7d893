/** Reading on what a client sends after its answer: closing at once could cost it the answer (RFC 9112 9.6). */
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { Deadlines, Watched } from './deadline.js'

/** How much more of an unwanted body is read before the end. */
const MOST = 1024 * 1024

/**
 * Reads the rest of a request that has been answered, for a while.
 *
 * @param last whether the connection ends with that answer
 */
export function lingerOver(req: IncomingMessage, last: boolean, deadlines: Deadlines): void {
  const { socket } = req
  let read = 0
  req.on('data', (chunk: Buffer) => {
    read += chunk.length
    if (read > MOST) socket.destroy()
  })
  req.resume()
  if (last) {
    // What Node calls when the answer is out.
    socket.destroySoon = () => closeSoftly(socket, deadlines)
    return
  }
  const unwatch = watchOver(socket, deadlines)
  req.once('end', unwatch).once('close', unwatch)
}

/** Ends a connection, but reads on until the client ends it too, for a while. */
export function closeSoftly(socket: Socket, deadlines: Deadlines): void {
  socket.once('close', watchOver(socket, deadlines))
  socket.end()
  socket.resume()
}

/** Destroys the socket when the time is over; returns what stops watching. */
export function watchOver(socket: Socket, deadlines: Deadlines): () => void {
  const watched: Watched = {
    list: undefined,
    previous: undefined,
    next: undefined,
    overAt: 0,
    overdue: () => socket.destroy(),
  }
  deadlines.watch(watched)
  return () => deadlines.unwatch(watched)
}
