/** Finds out whether a request uses a connection that has served another before. undici does not tell its handlers. */
import { subscribe } from 'node:diagnostics_channel'
import type { Socket } from 'node:net'

export interface Reusing {
  /** The connection has served a request before. Then its end may be a race with an idle close and not a failure. */
  reused: boolean
}

let starting: Reusing | undefined
const served = new WeakSet<Socket>()

/** Call it in `onRequestStart`: undici writes the headers before it returns to anyone else. */
export function announce(request: Reusing): void {
  starting = request
}

subscribe('undici:client:sendHeaders', message => {
  const { socket } = message as { socket: Socket }
  if (starting !== undefined) starting.reused = served.has(socket)
  starting = undefined
  served.add(socket)
})
