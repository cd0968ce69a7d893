/** Asking the buckets: for real, or as a rehearsal. */
import { type SharedBucket, Ticket, type Waiter } from '../core/lane.js'
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
  const slowest = longestWait(arrival.stack, line.clock.now())
  const verdict = admit(line, route, arrival, shadow, settings.maxWait)
  if (verdict === 'released') leaveGate(line, gate)
  else if (verdict instanceof Ticket) line.observer.rehearsed?.(route.name, 'would_delay', ...slowest)
  else line.observer.rehearsed?.(route.name, 'would_reject', verdict.buckets[0]?.limits.name ?? '', 0)
}

/** The bucket that takes longest to drain, and how long, in ms. */
function longestWait(stack: readonly SharedBucket[], now: number): [bucket: string, wait: number] {
  let slowest: [string, number] = ['', 0]
  for (const bucket of stack) {
    const wait = bucket.level(now) / bucket.limits.rate
    if (wait > slowest[1]) slowest = [bucket.limits.name, wait]
  }
  return slowest
}

function ignore(): void {}
