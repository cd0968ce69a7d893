import type { IncomingMessage } from 'node:http'
import type { Deadlines, Watched } from './deadline.js'

/** How much more of an unwanted body is read, so that the client gets to read our answer, before its end. */
const MOST = 1024 * 1024

/** Reads on what a client sends after its answer, for a while: closing at once could cost it the answer. */
export function lingerOver(req: IncomingMessage, deadlines: Deadlines): void {
  const { socket } = req
  let read = 0
  const watched: Watched = {
    list: undefined,
    previous: undefined,
    next: undefined,
    overAt: 0,
    overdue: () => socket.destroy(),
  }
  deadlines.watch(watched)
  req.on('data', (chunk: Buffer) => {
    read += chunk.length
    if (read > MOST) socket.destroy()
  })
  req.once('close', () => deadlines.unwatch(watched))
}
