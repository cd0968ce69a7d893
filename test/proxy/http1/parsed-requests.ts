import { RequestParser } from '../../../src/proxy/client/request-parser.js'
import { ProtocolError } from '../../../src/proxy/http/fields.js'
import type { ReadRequests } from './llhttp.js'

const LIMITS = { maxHeaderSize: 16 * 1024, maxHeaders: 2_000 }

/** Lets our parser read requests, in pieces of the given sizes, up to one that ends the connection. */
export function parsedRequests(
  bytes: Buffer,
  sizes: readonly number[] = [],
): ReadRequests & { status: number | undefined } {
  const events: string[] = []
  const kept: boolean[] = []
  let body = ''
  let open = false
  let persistent = true
  let error: string | undefined
  let status: number | undefined
  const end = (): void => {
    events.push(`body ${JSON.stringify(body)}`)
    kept.push(persistent)
    body = ''
    open = false
    if (!persistent) parser.stop()
  }
  const parser = new RequestParser(
    {
      head({ method, url, httpVersionMinor, rawHeaders, framing }) {
        if (framing.length === undefined && !framing.chunked) error = 'an unknown coding'
        else {
          events.push(`head ${method} ${url} 1.${httpVersionMinor} ${JSON.stringify(rawHeaders)}`)
          persistent = framing.persistent
          open = true
          if (framing.length === 0) end()
        }
      },
      body(buffer, from, to) {
        body += buffer.toString('latin1', from, to)
      },
      end,
    },
    LIMITS,
  )
  try {
    for (let at = 0, place = 0; at < bytes.length; place += 1) {
      const size = sizes.length === 0 ? bytes.length : sizes[place % sizes.length]!
      // As in the product: the buffer is longer than what was read, and holds remains of earlier reads.
      const input = Buffer.alloc(size + 8, '\r\n')
      const stop = bytes.copy(input, 0, at, at + size)
      for (let from = 0; from < stop; ) from = parser.read(input, from, stop)
      at += size
    }
    if (error === undefined && (open || (persistent && !parser.isBetween))) error = 'incomplete'
  } catch (thrown) {
    if (!(thrown instanceof ProtocolError)) throw thrown
    error = thrown.message
    status = thrown.status
  }
  return { events, error, kept, status }
}
