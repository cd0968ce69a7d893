/** When the requests of a lane came, in short: for a store that gives its slots to the oldest of all instances. */

import type { LaneName } from '../bucket/elsewhere.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { costIn, type Lane, type SharedBucket, type Ticket } from '../queue/lane.js'
import type { LaneArrivals } from '../store.js'

/** From one point to the next the cost before them grows by this part, or by a request. So the first ones are told exactly. */
const GROWTH = 0.125

/** ms. Requests that come so much after the one before are told exactly as well. */
const GAP = 10

/** So few points take some microseconds to send and to read. */
const MOST_POINTS = 64

/** Requests of a lane that are looked at for a report. */
const MOST_SEEN = 1_000

/** The requests of a lane that have no slot of a bucket yet. Costs are in cost units. */
export interface LaneRest {
  readonly bucket: SharedBucket
  /** Of the requests that have one. Negative: requests that have left used more than their slots. */
  readonly covered: number
  /** Of all that wait. */
  readonly queued: number
  /** Those behind this much are told only as a whole. */
  readonly span: number
}

interface Point {
  /** Cost units of those without a slot that are before it. */
  readonly cost: number
  /** ms */
  readonly at: number
}

export function arrivalsOf(lane: Lane, rest: LaneRest): LaneArrivals {
  const points: Point[] = []
  const add = (point: Point): void => {
    if (point.cost !== points.at(-1)?.cost) points.push(point)
  }
  let mark = -Infinity
  let previous: Point | undefined
  for (const point of pointsOf(lane, rest)) {
    if (points.length >= MOST_POINTS) break
    const isLate = previous !== undefined && point.at - previous.at > GAP
    if (isLate) add(previous!)
    if (isLate || point.cost + LEVEL_TOLERANCE >= mark) {
      add(point)
      mark = point.cost * (1 + GROWTH)
    }
    previous = point
  }
  const { last } = lane.tickets
  const end = last && { cost: Math.max(0, rest.queued - rest.covered - costIn(last, rest.bucket)), at: last.arrivedAt }
  const known = points.at(-1)
  if (end !== undefined && (known === undefined || (end.cost > known.cost && end.at > known.at))) points.push(end)
  return { lane: laneNameOf(lane), costs: points.map(({ cost }) => cost), times: points.map(({ at }) => at) }
}

/**
 * The requests without a slot, or the last one that was looked at if all of these have one. A request with a part of a slot leaves at the
 * start of that part, so it counts as one with a slot. The rest of its cost counts behind all others.
 */
function* pointsOf({ claiming, tickets }: Lane, { bucket, covered, span }: LaneRest): Generator<Point> {
  let left = covered
  let before = 0
  let seen = 0
  let at: Ticket | undefined = claiming?.first ?? tickets.first
  for (; at !== undefined && before <= span && seen < MOST_SEEN; seen += 1) {
    const cost = costIn(at, bucket)
    const hasSlot = left > LEVEL_TOLERANCE || before + cost <= LEVEL_TOLERANCE
    if (!hasSlot || seen === MOST_SEEN - 1) yield { cost: before, at: at.arrivedAt }
    if (hasSlot) left -= cost
    else before += cost
    at = at.next ?? (at.list === claiming ? tickets.first : undefined)
  }
}

/** The same in all instances. */
export function laneNameOf({ route, stack }: LaneName): string {
  return [route.name, ...(stack as readonly { readonly key: string }[]).map(({ key }) => key)].join('\0')
}
