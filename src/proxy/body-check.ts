import type { PassThrough } from 'node:stream'
import type { RequestFacts } from './request.js'

/** A longer unread body may hide from us that the client has hung up (the kernel holds what it sent after it). */
const HIDING = 64 * 1024

/**
 * How much of such a body is read before its slot is spent: about as much as the kernels hold of what was sent. An RST is
 * seen at once, a FIN behind no more than this.
 */
export const CHECKED = 4 * 1024 * 1024

/** Whether a hang-up may hide behind what has not been read of a request. */
export function mayHideHangUp({ chunked, contentLength = 0, expectContinue }: RequestFacts): boolean {
  return (chunked || contentLength > HIDING) && !expectContinue
}

/**
 * Reads on where a hang-up may hide: until the body ends, enough has come, or nothing more comes at once.
 *
 * @param done also called after a hang-up, which has been told elsewhere by then
 */
export function readAhead(feed: PassThrough, done: () => void, held = 0, idle = 0): void {
  setImmediate(() => {
    const now = feed.readableLength + feed.writableLength
    const quiet = now === held ? idle + 1 : 0
    if (feed.destroyed || now >= CHECKED || quiet > 2) done()
    else readAhead(feed, done, now, quiet)
  })
}
