/** What the client of a rejected request is told that waits to come again, as in a page of a browser. */
import { type Arrival, costIn, type Rejection } from '../queue/lane.js'
import { timeUntilFit } from './decide.js'
import { predictedWait } from './predicted-wait.js'

/** Times are in ms. */
export interface Comeback {
  /** Until it should come. */
  readonly until: number
  /** Until its request leaves. If it is queued then, that is later. */
  readonly wait: number
  /** Its place in the line of requests like it; 1 leaves next. Undefined: it is not others that it waits for. */
  readonly position: number | undefined
}

/** Where a request is rejected. Times are in ms. */
interface Place {
  readonly now: number
  readonly mode: 'shape' | 'meter'
  readonly maxWait: number
}

/** Sums of periods are this much too long, in requests. */
const ROUNDING = 1e-6

/** @param until when it should come, in ms from now */
export function comebackOf(arrival: Arrival, rejection: Rejection, until: number, place: Place): Comeback {
  const wait = until + queuedThen(arrival, place)
  const { reason, buckets } = rejection
  const [bucket] = buckets
  if (bucket === undefined || bucket.limits.quota !== undefined || (reason !== 'overflow' && reason !== 'max-wait'))
    return { until, wait, position: undefined }
  const cost = costIn(arrival, bucket)
  return { until, wait, position: Math.max(1, Math.ceil((wait * bucket.limits.rate) / cost - ROUNDING)) }
}

/** How long it will be queued. What leaves before it comes is not in its way any more. */
function queuedThen(arrival: Arrival, { now, mode, maxWait }: Place): number {
  if (mode === 'meter') return 0
  const pause = arrival.route.gate.pausedFor(now)
  return Math.max(0, predictedWait(arrival, now, pause) - timeUntilFit(arrival, maxWait, now, pause))
}
