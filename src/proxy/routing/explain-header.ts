import { slackOf } from '../../core/bucket/limits.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { costAt } from '../../core/queue/lane.js'
import { findLane } from '../../core/queue/tree.js'
import type { Arrival } from '../../core/shaper.js'
import type { GivenUp, Outlook } from '../observe/observer.js'

/**
 * @param wait how long the request waited in the end, in ms
 * @param givenUp why it was given up
 * @returns the value of `Shaper-Explain`
 */
export type Explanation = (wait: number, givenUp?: GivenUp) => string

/** What was expected of a request on arrival. */
export interface Expectation {
  /** How long it would wait, in ms. */
  readonly predicted: number
  /** Undefined: no request of its route is given up. */
  readonly outlook: Outlook | undefined
}

/**
 * Why a request is delayed or rejected, seen at its arrival: the bucket that takes longest to drain, how many requests
 * are ahead in its lane, its wait in ms and its cost in that bucket. A structured field (RFC 9651):
 * `"client";position=3;wait=412.5;cost=1`. Where it may wait: the predicted wait, the upstream's time to answer, and how long
 * its client waits for the answer: `;predicted=400.0;service=80.0;patience=2000.0;source=learnt`. What is not known is left out,
 * and so is the usual priority.
 *
 * @param expected undefined: it may not wait
 */
export function explainHeader(arrival: Arrival, now: number, expected?: Expectation): Explanation {
  const { stack, priority } = arrival
  const position = findLane(arrival)?.tickets.size ?? 0
  let decides = stack[0]
  let decisive = costAt(arrival, 0)
  let longest = 0
  for (const [place, bucket] of stack.entries()) {
    const { limits } = bucket
    const cost = costAt(arrival, place)
    const before = bucket.level(now) + cost - Math.min(cost, limits.capacity) - slackOf(limits, cost)
    const wait = before / limits.rate
    const full = bucket.excess(cost, now) > 0 ? Infinity : wait
    if (full <= longest) continue
    longest = full
    decides = bucket
    decisive = cost
  }
  const predicted = expected === undefined ? '' : `;predicted=${expected.predicted.toFixed(1)}`
  return (wait, givenUp) =>
    `"${decides?.limits.name ?? ''}";position=${position};wait=${wait.toFixed(1)};cost=${Number(decisive.toFixed(3))}` +
    (priority === undefined || priority === DEFAULT_PRIORITY ? '' : `;priority=${priority}`) +
    predicted +
    textOf(givenUp ?? expected?.outlook) +
    (givenUp === undefined ? '' : `;given-up=${givenUp.at}`)
}

function textOf(outlook: Outlook | undefined): string {
  if (outlook === undefined) return ''
  const { patience, source, service } = outlook
  return (
    (service > 0 ? `;service=${service.toFixed(1)}` : '') +
    (Number.isFinite(patience) ? `;patience=${patience.toFixed(1)};source=${source}` : '')
  )
}
