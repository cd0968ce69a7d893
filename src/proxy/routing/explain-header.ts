import { findLane } from '../../core/queue/tree.js'
import type { Arrival } from '../../core/shaper.js'

/**
 * @param wait how long the request waited in the end, in ms
 * @returns the value of `Shaper-Explain`
 */
export type Explanation = (wait: number) => string

/**
 * Why a request is delayed or rejected, seen at its arrival: the bucket that takes longest to drain, how many requests
 * are ahead in its lane, its wait in ms and its cost. A structured field (RFC 9651):
 * `"client";position=3;wait=412.5;cost=1`.
 */
export function explainHeader(arrival: Arrival, now: number): Explanation {
  const { stack, cost } = arrival
  const position = findLane(arrival)?.tickets.size ?? 0
  let decides = stack[0]
  let longest = 0
  for (const bucket of stack) {
    const wait = (bucket.level(now) + cost - Math.min(cost, bucket.limits.capacity)) / bucket.limits.rate
    const full = bucket.excess(cost, now) > 0 ? Infinity : wait
    if (full <= longest) continue
    longest = full
    decides = bucket
  }
  return wait =>
    `"${decides?.limits.name ?? ''}";position=${position};wait=${wait.toFixed(1)};cost=${Number(cost.toFixed(3))}`
}
