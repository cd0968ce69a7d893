/** Runs arrivals through the core on the virtual clock and writes down what became of them. */
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type LaneRoute, type Ticket } from '../../src/core/lane.js'
import { Keyspace } from '../../src/core/keyspace.js'
import type { BucketLimits } from '../../src/core/bucket.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'

export interface Arrival {
  at: number
  /** One key per bucket of the stack; a single one stands for all. */
  keys?: string[]
  cost?: number
  /** Hangs up at this time if still queued. */
  cancelAt?: number
  route?: string
}

export interface Outcome {
  arrival: Arrival
  verdict: 'released' | 'queued' | 'rejected'
  rejection?: Rejection
  slot?: number
  releasedAt?: number
  cancelled?: boolean
  expired?: boolean
}

export interface Run {
  outcomes: Outcome[]
  admitted: number[]
  /** In order of release. */
  released: Outcome[]
}

export function run(
  stack: BucketLimits[],
  arrivals: Arrival[],
  options: { mode?: 'shape' | 'meter'; lateness?: () => number; maxWait?: number; check?: (shaper: Shaper) => void } = {},
): Run {
  const clock = createVirtualClock(options.lateness ? { lateness: options.lateness } : {})
  const shaper = new Shaper({ clock })
  const keyspace = new Keyspace(1e9)
  const gate = new Gate()
  const routes = new Map<string, LaneRoute>()
  const outcomes: Outcome[] = arrivals.map(arrival => ({ arrival, verdict: 'rejected' }))
  const released: Outcome[] = []

  const steps: { at: number; order: number; step: () => void }[] = []
  arrivals.forEach((arrival, index) => {
    const outcome = outcomes[index]!
    let ticket: Ticket | undefined
    const release = (slot: number, now: number): void => {
      outcome.slot = slot
      outcome.releasedAt = now
      released.push(outcome)
    }
    steps.push({
      at: arrival.at,
      order: index,
      step: () => {
        const name = arrival.route ?? 'route'
        const route = routes.get(name) ?? { name, gate }
        routes.set(name, route)
        const keys = arrival.keys ?? ['key']
        const buckets = stack.map((limits, place) => keyspace.find(limits, keys[place] ?? keys[0]!, clock.now())!)
        const request = { route, stack: buckets, cost: arrival.cost ?? 1 }
        const verdict: Verdict =
          options.mode === 'meter'
            ? shaper.meter(request)
            : shaper.admit(request, { release, expire: () => { outcome.expired = true } }, options.maxWait)
        if (verdict === 'released') {
          outcome.verdict = 'released'
          release(clock.now(), clock.now())
        } else if ('reason' in verdict) {
          outcome.rejection = verdict
        } else {
          outcome.verdict = 'queued'
          ticket = verdict
        }
      },
    })
    if (arrival.cancelAt !== undefined) {
      steps.push({
        at: arrival.cancelAt,
        order: arrivals.length + index,
        step: () => {
          if (ticket !== undefined) outcome.cancelled = shaper.cancel(ticket)
        },
      })
    }
  })
  steps.sort((a, b) => a.at - b.at || a.order - b.order)
  for (const { at, step } of steps) {
    clock.runUntil(at)
    step()
    options.check?.(shaper)
  }
  clock.runAll()
  options.check?.(shaper)
  const admitted = outcomes.flatMap((outcome, index) => (outcome.verdict === 'rejected' ? [] : [index]))
  return { outcomes, admitted, released }
}

export function limits(rate: number, capacity: number, name = 'client'): BucketLimits {
  return { name, rate: rate / 1000, capacity }
}

export function burst(count: number, gap = 0, from = 0): Arrival[] {
  return Array.from({ length: count }, (_, index) => ({ at: from + index * gap }))
}
