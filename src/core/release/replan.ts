/** What a change of limits, or a pause, means for those who wait already. */

import type { Gate, Lane, LaneRoute, ShareNode, Ticket } from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'
import { childrenOf } from '../queue/share-tree.js'

/** A waiter and how long it may wait from now on, in ms since its arrival. */
export interface Replanned {
  readonly ticket: Ticket
  readonly maxWait: number
  /** What is queued before it in its lane cannot leave by then. */
  readonly tooLate: boolean
}

/**
 * Everyone who waits before a gate, in order, with the `maxWait` of their routes: a shorter one counts, a longer one
 * does not, for it may be the client's own wish.
 */
export function* replan(gate: Gate, maxWaitOf: (route: LaneRoute) => number, now: number): Generator<Replanned> {
  for (const lane of lanesOf(gate.junction)) {
    const maxWait = maxWaitOf(lane.route)
    const start = now + gate.pausedFor(now)
    let ahead = 0
    for (const ticket of [...(lane.claiming ?? []), ...lane.tickets]) {
      const longest = Math.min(maxWait, ticket.due - ticket.arrivedAt)
      const times = lane.stack.map(({ freeAt, limits }) => Math.max(start, freeAt) + ahead / limits.rate)
      const leaves = Math.max(start, ...times)
      const tooLate = leaves > ticket.arrivedAt + longest + SAME_TIME
      if (!tooLate) ahead += ticket.cost
      yield { ticket, maxWait: longest, tooLate }
    }
  }
}

function lanesOf(junction: ShareNode): Lane[] {
  return [...junction.lanes, ...[...childrenOf(junction)].flatMap(lanesOf)]
}
