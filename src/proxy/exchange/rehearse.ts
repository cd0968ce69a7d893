import { costAt, type Demand, Ticket } from '../../core/queue/lane.js'
import type { AdmissionCallbacks, Arrival } from '../../core/shaper.js'
import { NONE } from '../../core/structures/compact-list.js'
import { slackOf } from '../../decider/costs.js'
import type { ProxyContext } from '../context.js'
import type { RequestRecord } from '../observe/observer.js'
import type { Route } from '../routing/route.js'

export interface Rehearsal {
  /** It has turned out what the request cost. A shadow that still waits passes with what was reserved, and is settled then. */
  settle(differences: Demand): void
  end(): void
}

/**
 * A dry run. A shadow of the request goes through the buckets and lanes. The request itself is forwarded at once. The shadow
 * takes no place in the gate. In its buckets it is in flight until the request is over.
 */
export function rehearse(context: ProxyContext, route: Route, arrival: Arrival, request: RequestRecord): Rehearsal {
  const { shaper } = context
  const { settings } = route
  const { gate } = route.lane
  const slowest = longestWait(arrival, context.clock.now())
  let isOver = false
  let isInFlight = false
  let state: 'waiting' | 'passed' | 'rejected' = 'waiting'
  let differences: Demand | undefined
  const pass = (): void => {
    gate.unprobe()
    isInFlight = !isOver
    shaper.leave(gate, isOver ? arrival.stack : NONE)
    state = 'passed'
    if (differences !== undefined) shaper.engine.settleCost(differences)
  }
  const reject = (): void => {
    state = 'rejected'
  }
  const shadow: AdmissionCallbacks = {
    release: pass,
    expire: reject,
    reject,
    decided(verdict) {
      if (verdict === 'released') pass()
      else if (verdict instanceof Ticket) {
        // On an idle bucket of a store it waits for the answer of the store only.
        if (slowest[0] !== '') context.observer.rehearsed?.(request, 'would_delay', ...slowest)
      } else {
        reject()
        context.observer.rehearsed?.(request, 'would_reject', verdict.buckets[0]?.limits.name ?? '', 0)
      }
    },
  }
  shaper.arrive({ ...arrival, shadow: true }, shadow, settings.mode, settings.maxWait)
  return {
    settle(found) {
      if (state === 'passed') shaper.engine.settleCost(found)
      else if (state === 'waiting') differences = found
    },
    end() {
      isOver = true
      if (isInFlight) shaper.leave(undefined, arrival.stack)
    },
  }
}

/** The bucket that a request waits for longest, and that time in ms. If all have drained: one that has too many in flight. */
function longestWait(arrival: Arrival, now: number): [bucket: string, wait: number] {
  const { stack } = arrival
  let slowest: [string, number] = [stack.find(bucket => !bucket.hasPlace)?.limits.name ?? '', 0]
  for (const [place, bucket] of stack.entries()) {
    const wait = (bucket.level(now) - slackOf(bucket.limits, costAt(arrival, place))) / bucket.limits.rate
    if (wait > slowest[1]) slowest = [bucket.limits.name, wait]
  }
  return slowest
}
