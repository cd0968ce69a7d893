import type { IncomingMessage } from 'node:http'
import { fieldLines } from '../http1/fields.js'
import { clientHeaders } from './headers.js'

/** Most early hints for one request. */
export const MAX_HINTS = 16

/**
 * Passes a 103 on, unless the client has unread data: hints are optional and must not pile up. Node's `writeEarlyHints`
 * passes only Link and throws on some valid headers.
 */
export function passEarlyHints({ socket }: IncomingMessage, fields: readonly string[]): void {
  if (socket.writableNeedDrain) return
  socket.write(`HTTP/1.1 103 Early Hints\r\n${fieldLines(clientHeaders(fields, 'unchunked'))}\r\n`, 'latin1')
}
