/** How long a newcomer would wait for its release if nobody else came. */
import type { Arrival } from '../queue/lane.js'
import { waitOf } from './decide.js'

/**
 * @param pause ms during which nothing leaves
 * @returns ms
 */
export function predictedWait({ stack }: Arrival, now: number, pause: number): number {
  let longest = pause
  for (const bucket of stack) longest = Math.max(longest, waitOf(bucket, bucket.level(now), pause, bucket.queued))
  return longest
}
