/** Asking the buckets: for real, or as a rehearsal. */
import { type SharedBucket, Ticket } from '../core/lane.js'
import type { Arrival, Verdict } from '../core/shaper.js'
import type { Applicant } from '../core/shared-shaper.js'
import type { RequestRecord } from './events.js'
import { type Line, leaveGate } from './line.js'
import { SOON } from './reply.js'
import type { Route } from './route.js'

/** Decides in the route's mode, at once or when a store has answered. After `released` the request is in the gate. */
export function admit(line: Line, route: Route, arrival: Arrival, applicant: Applicant, maxWait: number): void {
  const { shaper, sharing } = line
  if (route.settings.mode === 'shape') {
    if (sharing !== undefined) sharing.shaper.admit(arrival, applicant, maxWait)
    else applicant.decided(shaper.admit(arrival, applicant, maxWait))
    return
  }
  const { gate } = route.lane
  if (gate.paused) {
    const retryAfterMs = gate.pausedFor(line.clock.now())
    return applicant.decided({ reason: 'paused', buckets: [], retryAfterMs })
  }
  if (!gate.open) return applicant.decided({ reason: 'crowded', buckets: [], retryAfterMs: SOON })
  if (sharing === undefined) return applicant.decided(entered(shaper.meter(arrival)))
  sharing.shaper.meter(arrival, { ...NOBODY, decided: verdict => applicant.decided(entered(verdict)) })

  function entered(verdict: Verdict): Verdict {
    if (verdict === 'released') gate.enter()
    return verdict
  }
}

/** A dry run: a shadow takes the request's way through the lanes, the request itself is forwarded at once. */
export function rehearse(line: Line, route: Route, arrival: Arrival, request: RequestRecord): void {
  const { settings } = route
  const { gate } = route.lane
  const slowest = longestWait(arrival.stack, line.clock.now())
  const shadow: Applicant = {
    ...NOBODY,
    release: () => leaveGate(line, gate),
    decided(verdict) {
      if (verdict === 'released') leaveGate(line, gate)
      else if (verdict instanceof Ticket) line.observer.rehearsed?.(request, 'would_delay', ...slowest)
      else line.observer.rehearsed?.(request, 'would_reject', verdict.buckets[0]?.limits.name ?? '', 0)
    },
  }
  admit(line, route, arrival, shadow, settings.maxWait)
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

const NOBODY: Applicant = { release: ignore, expire: ignore, reject: ignore, decided: ignore }
