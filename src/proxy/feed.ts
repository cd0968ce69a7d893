import type { IncomingMessage } from 'node:http'
import { PassThrough } from 'node:stream'

/** What a body is fed through: undici would end its reader, and with it the client's connection. */
export function createFeed(req: IncomingMessage, highWaterMark: number): PassThrough {
  const feed = new PassThrough({ highWaterMark })
  // An abort destroys it with an error that has been told elsewhere.
  feed.on('error', () => undefined)
  req.pipe(feed)
  return feed
}
