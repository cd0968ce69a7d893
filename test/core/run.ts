/** Runs arrivals through the core on the virtual clock and records their outcomes. */
import { type BucketLimits, graceAt } from '../../src/core/bucket/queued-bucket.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type LaneRoute, type SharedBucket, type Ticket, type Waiter } from '../../src/core/queue/lane.js'
import { type Arrival as CoreArrival, type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'

export interface Arrival {
  at: number
  /** One key for each bucket of the stack; a single key stands for all. */
  keys?: string[]
  cost?: number
  priority?: number
  /** The request hangs up at this time if it is still queued. */
  cancelAt?: number
  /** It cannot be sent before this time: at its turn it is set aside. */
  readyAt?: number
  route?: string
}

export interface Outcome {
  arrival: Arrival
  /** Undefined until it has arrived. */
  verdict: 'released' | 'queued' | 'rejected' | undefined
  rejection?: Rejection
  slot?: number
  releasedAt?: number
  cancelled?: boolean
  expired?: boolean
  /** When it was set aside. */
  asideAt?: number
  /** It was queued and had to make room. */
  displaced?: boolean
}

export interface Run {
  outcomes: Outcome[]
  /** Indices of the admitted arrivals. */
  admitted: number[]
  /** In order of release. */
  released: Outcome[]
  bucketTable: BucketTable
  shaper: Shaper
  gate: Gate
  /** The time of the last event. */
  end: number
}

export interface Moment {
  shaper: Shaper
  bucketTable: BucketTable
  outcomes: readonly Outcome[]
  now: number
}

export interface RunOptions {
  mode?: 'shape' | 'meter'
  start?: number
  lateness?: () => number
  maxWait?: number
  maxQueued?: number
  maxInFlight?: number
  /** The time of the upstream for each request, in ms. */
  service?: number
  /** Called after every event. */
  check?: (moment: Moment) => void
  /** Called before each decision with the buckets that it uses. The function that it returns is called after the decision. */
  watch?: (stack: readonly SharedBucket[], now: number) => (verdict: Verdict) => void
}

export function run(stack: BucketLimits[], arrivals: readonly Arrival[], options: RunOptions = {}): Run {
  const clock = createVirtualClock({
    ...(options.start === undefined ? {} : { start: options.start }),
    ...(options.lateness === undefined ? {} : { lateness: options.lateness }),
  })
  const bucketTable = new BucketTable(1e9)
  const outcomes: Outcome[] = arrivals.map(arrival => ({ arrival, verdict: undefined }))
  const released: Outcome[] = []
  const gate = new Gate(options.maxInFlight)
  const routes = new Map<string, LaneRoute>()
  const check = (): void => options.check?.({ shaper, bucketTable, outcomes, now: clock.now() })
  const shaper: Shaper = new Shaper({
    clock: {
      now: clock.now,
      at: (due, wake) =>
        clock.at(due, () => {
          wake()
          check()
        }),
    },
    ...(options.maxQueued === undefined ? {} : { maxQueued: options.maxQueued }),
  })

  function release(outcome: Outcome, slot: number): void {
    outcome.slot = slot
    outcome.releasedAt = clock.now()
    released.push(outcome)
    if (options.service === undefined) return
    clock.at(clock.now() + options.service, () => {
      gate.leave()
      shaper.wake(gate)
      check()
    })
  }

  /** Its ticket, once it is queued. */
  const tickets = new Map<Outcome, Ticket>()

  function arrive(outcome: Outcome): void {
    const { arrival } = outcome
    const name = arrival.route ?? 'route'
    const route = routes.get(name) ?? { name, gate }
    routes.set(name, route)
    const keys = arrival.keys ?? ['key']
    const buckets = stack.map(
      (limits, place) => bucketTable.find(limits, keys[place] ?? keys[0]!, clock.now()) as SharedBucket,
    )
    const { priority } = arrival
    const request = { route, stack: buckets, cost: arrival.cost ?? 1, ...(priority !== undefined && { priority }) }
    const waiter = {
      release: (slot: number) => pass(outcome, slot, request, waiter),
      expire: () => {
        outcome.expired = true
      },
      reject: (rejection: Rejection) => {
        outcome.rejection = rejection
        outcome.displaced = true
      },
    }
    const watched = options.watch?.(buckets, clock.now())
    const verdict = options.mode === 'meter' ? shaper.meter(request) : shaper.admit(request, waiter, options.maxWait)
    watched?.(verdict)
    if (verdict === 'released') {
      pass(outcome, clock.now(), request, waiter)
      outcome.verdict = verdictOf(outcome)
    } else if ('reason' in verdict) {
      outcome.verdict = 'rejected'
      outcome.rejection = verdict
    } else {
      outcome.verdict = 'queued'
      tickets.set(outcome, verdict)
    }
  }

  /** Its turn has come. */
  function pass(outcome: Outcome, slot: number, request: CoreArrival, waiter: Waiter): void {
    const { at, readyAt = at } = outcome.arrival
    if (readyAt <= clock.now() || options.mode === 'meter') return release(outcome, slot)
    outcome.asideAt = clock.now()
    const aside = shaper.setAside(request, waiter, tickets.get(outcome), at)
    if ('reason' in aside) outcome.rejection = aside
    else tickets.set(outcome, aside)
    shaper.wake(gate)
  }

  /** What it has waited for is there. */
  function ready(outcome: Outcome): void {
    const { asideAt, cancelled, rejection } = outcome
    if (asideAt === undefined || cancelled || rejection !== undefined) return
    const { maxWait = Infinity } = options
    shaper.comeBack(tickets.get(outcome)!, clock.now() + maxWait)
    shaper.wake()
  }

  const steps: { at: number; order: number; step: () => void }[] = []
  outcomes.forEach((outcome, index) => {
    const { at, cancelAt, readyAt } = outcome.arrival
    steps.push({ at, order: index, step: () => arrive(outcome) })
    if (cancelAt !== undefined) {
      steps.push({
        at: cancelAt,
        order: outcomes.length + index,
        step: () => {
          const ticket = tickets.get(outcome)
          if (ticket !== undefined) outcome.cancelled = shaper.cancel(ticket)
        },
      })
    }
    if (readyAt !== undefined && readyAt > at) {
      steps.push({ at: readyAt, order: 2 * outcomes.length + index, step: () => ready(outcome) })
    }
  })
  steps.sort((a, b) => a.at - b.at || a.order - b.order)
  for (const { at, step } of steps) {
    clock.runUntil(at)
    step()
    check()
  }
  const end = clock.runAll()
  const admitted = outcomes.flatMap((outcome, index) => (outcome.verdict === 'rejected' ? [] : [index]))
  return { outcomes, admitted, released, bucketTable, shaper, gate, end }
}

/** What became of a request that has passed at once: it may be set aside, or rejected instead. */
function verdictOf({ rejection, asideAt }: Outcome): 'released' | 'queued' | 'rejected' {
  if (rejection !== undefined) return 'rejected'
  return asideAt === undefined ? 'released' : 'queued'
}

export function limits(perSecond: number, capacity: number, name = 'client'): BucketLimits {
  return { name, rate: perSecond / 1000, capacity }
}

/** As `limits`, with a burst. */
export function bursting(perSecond: number, capacity: number, burst: number, name = 'client'): BucketLimits {
  return { ...limits(perSecond, capacity, name), burst }
}

export function burst(count: number, gap = 0, from = 0): Arrival[] {
  return Array.from({ length: count }, (_, index) => ({ at: from + index * gap }))
}

/** The times of releases, rounded to ns, because sums of periods are inexact. */
export function slots(run: Run): number[] {
  return run.released.map(({ slot }) => Math.round(slot! * 1e6) / 1e6)
}

/** The most that a leaky bucket of this rate would have held of what left, in cost units: no window has more beyond r times its length. */
export function mostHeld(
  { rate }: BucketLimits,
  left: readonly { readonly at: number; readonly cost: number }[],
): number {
  let most = 0
  let held = 0
  let before = 0
  for (const { at, cost } of left) {
    held = Math.max(0, held - (at - before) * rate) + cost
    before = at
    most = Math.max(most, held)
  }
  return most
}

/** The largest excess over the bound of docs/semantics.md in any window between two releases. Not above 0: the bound holds. */
export function worstExcess(limits: BucketLimits, released: readonly Outcome[], grace = graceAt(limits, 0, 1)): number {
  const { rate, burst = 0 } = limits
  const sorted = [...released].sort((a, b) => a.releasedAt! - b.releasedAt!)
  const costs = sorted.map(({ arrival }) => arrival.cost ?? 1)
  const most = Math.max(burst, ...costs)
  let worst = -Infinity
  for (let from = 0; from < sorted.length; from += 1) {
    let sum = 0
    for (let to = from; to < sorted.length; to += 1) {
      sum += costs[to]!
      const window = sorted[to]!.releasedAt! - sorted[from]!.releasedAt!
      worst = Math.max(worst, sum - rate * (window + grace) - most)
    }
  }
  return worst
}

/** Lets a generator go on to its end, and returns what it returns. */
export function finish<T>(steps: Generator<unknown, T>): T {
  let step = steps.next()
  while (!step.done) step = steps.next()
  return step.value
}

/** Reproducible random numbers for whole scenarios (mulberry32). */
export function random(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}
