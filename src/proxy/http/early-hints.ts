import { fieldLines } from '../http1/fields.js'
import { clientHeaders } from './headers.js'

/** Most early hints for one request. */
export const MAX_HINTS = 16

/** @returns a 103 for the client. Node's `writeEarlyHints` passes only Link and throws on some valid headers */
export function earlyHints(fields: readonly string[]): string {
  return `HTTP/1.1 103 Early Hints\r\n${fieldLines(clientHeaders(fields, 'unchunked'))}\r\n`
}
