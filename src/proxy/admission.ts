/** Asking the buckets: for real, or as a rehearsal. */
import { Ticket, type Waiter } from '../core/lane.js'
import type { Arrival, Verdict } from '../core/shaper.js'
import { type Line, leaveGate } from './line.js'
import { SOON } from './reply.js'
import type { Route } from './route.js'

/** Decides in the route's mode. After `released` the request is in the gate. */
export function admit({ shaper }: Line, route: Route, arrival: Arrival, waiter: Waiter, maxWait: number): Verdict {
  if (route.settings.mode === 'shape') return shaper.admit(arrival, waiter, maxWait)
  const { gate } = route.lane
  if (!gate.open) return { reason: 'crowded', buckets: [], retryAfterMs: SOON }
  const verdict = shaper.meter(arrival)
  if (verdict === 'released') gate.enter()
  return verdict
}

/** A dry run: a shadow takes the request's way through the lanes, the request itself is forwarded at once. */
export function rehearse(line: Line, route: Route, arrival: Arrival): void {
  const { settings } = route
  const { gate } = route.lane
  const shadow: Waiter = { release: () => leaveGate(line, gate), expire: ignore, reject: ignore }
  const verdict = admit(line, route, arrival, shadow, settings.maxWait)
  if (verdict === 'released') leaveGate(line, gate)
  else line.observer.rehearsed?.(route.name, verdict instanceof Ticket ? 'would_delay' : 'would_reject')
}

function ignore(): void {}
