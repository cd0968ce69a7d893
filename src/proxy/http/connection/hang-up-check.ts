import type { RequestFacts } from '../request.js'

/** Bytes. A longer unread body may hide a hang-up, because the kernel queues the close behind it. */
const HIDING = 64 * 1024

/** Whether the unread part of a request may hide a hang-up. */
export function mayHideHangUp({ chunked, contentLength = 0, expectContinue }: RequestFacts): boolean {
  return (chunked || contentLength > HIDING) && !expectContinue
}
