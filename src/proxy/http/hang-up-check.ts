import type { RequestFacts } from './request.js'

/** A longer unread body may hide from us that the client has hung up (the kernel holds what it sent after it). */
const HIDING = 64 * 1024

/** Whether a hang-up may hide behind what has not been read of a request. */
export function mayHideHangUp({ chunked, contentLength = 0, expectContinue }: RequestFacts): boolean {
  return (chunked || contentLength > HIDING) && !expectContinue
}
