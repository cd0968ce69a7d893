import type { IncomingMessage } from 'node:http'
import { clientHeaders } from './headers.js'

/** How many of them a request may get. */
export const MAX_HINTS = 16

/**
 * Passes a 103 on, unless the client has not read what it has: hints are optional, and must not pile up.
 * Not through Node's `writeEarlyHints`, which passes Link alone and throws on some that are good.
 */
export function passEarlyHints({ socket }: IncomingMessage, rawHeaders: readonly Buffer[]): void {
  if (socket.writableNeedDrain) return
  const headers = clientHeaders(rawHeaders, false)
  let head = 'HTTP/1.1 103 Early Hints\r\n'
  for (let at = 0; at < headers.length; at += 2) head += `${headers[at]}: ${headers[at + 1]}\r\n`
  socket.write(`${head}\r\n`, 'latin1')
}
