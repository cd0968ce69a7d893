/** Limits that are known to change at a moment, as when an override ends: what is told holds across that moment. */

import fc from 'fast-check'
import t from 'tap'
import { timeUntilFit } from '../../src/core/admission/decide.js'
import { predictedWait } from '../../src/core/admission/predicted-wait.js'
import { type BucketLimits, passedIn, timeToPass } from '../../src/core/bucket/limits.js'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { type Arrival, Gate, type Rejection, type SharedBucket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { often, runs } from '../runs.js'
import { finish, limits } from './run.js'

/** ms. What rounding may add, and what the prediction leaves out for it. */
const EPSILON = 1e-3
const IGNORE = { release: () => undefined, expire: () => undefined, reject: () => undefined }

const rejectionOf = (verdict: unknown): Rejection | undefined =>
  typeof verdict === 'object' && verdict !== null && 'reason' in verdict ? (verdict as Rejection) : undefined

/** A bucket whose limits change at `at`, by the clock and as it knows. */
function world(before: BucketLimits, after: BucketLimits, at: number) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const { rate, capacity } = after
  const bucket: SharedBucket = new QueuedBucket({ ...before, next: { at, rate, capacity } })
  clock.at(at, () => shaper.engine.setLimits(bucket, after))
  return { clock, shaper, bucket }
}

t.test('the time to pass, and what passes in a time', t => {
  const own = { ...limits(10, 100), next: { at: 1_000, rate: 0.002, capacity: 100 } }
  t.equal(timeToPass(own, 10, 0), 1_000)
  t.equal(timeToPass(own, 12, 0), 2_000)
  t.equal(timeToPass(own, 1, 1_500), 500)
  t.equal(passedIn(own, 0, 1_000), 10)
  t.equal(passedIn(own, 500, 2_000), 7)
  t.equal(passedIn(own, 2_000, 3_000), 2)
  t.end()
})

t.test('a newcomer whose turn comes after the end of an override is told its wait exactly', t => {
  // 60 requests at 50/s, for 0.5 s; then at 5/s. 25 have left by then, and 35 are before it.
  const { clock, shaper, bucket } = world(limits(50, 1_000), limits(5, 1_000), 500)
  const arrival: Arrival = { route: { name: 'api', gate: new Gate() }, stack: [bucket], cost: 1 }
  for (let nth = 0; nth < 60; nth += 1) shaper.admit(arrival, IGNORE)
  const told = predictedWait(arrival, 0, 0)
  let slot = 0
  shaper.admit(arrival, { ...IGNORE, release: at => (slot = at) })
  clock.runAll()
  t.equal(slot, 7_500)
  t.ok(Math.abs(told - slot) < EPSILON, `told ${told}`)
  t.end()
})

const change = fc.record({
  before: fc.constantFrom(5, 20, 100),
  after: fc.constantFrom(2, 20, 250),
  at: fc.integer({ min: 1, max: 2_000 }),
  waiting: fc.array(fc.nat({ max: 12 }), { minLength: 1, maxLength: 5 }),
  later: fc.constantFrom(0, 10, 333),
  pause: fc.constantFrom(0, 0, 150, 1_500),
})

interface Change {
  before: number
  after: number
  at: number
  waiting: number[]
  later: number
  pause: number
}

/** What a newcomer is told in three ways, and how long it waits then. `isCrossing`: across the change. */
function foretell({ before, after, at, waiting, later, pause }: Change) {
  const { clock, shaper, bucket } = world(limits(before, 1e9), limits(after, 1e9), at)
  const gate = new Gate()
  const arrivalOf = (place: number): Arrival => ({ route: { name: `${place}`, gate }, stack: [bucket], cost: 1 })
  const arrivals = waiting.map((_, place) => arrivalOf(place))
  for (let turn = 0; turn < Math.max(...waiting); turn += 1)
    for (const [place, count] of waiting.entries()) if (turn < count) shaper.admit(arrivals[place]!, IGNORE)
  clock.runUntil(later)
  if (pause > 0) shaper.engine.pause(gate, pause)
  const arrival = arrivalOf(waiting.length)
  const left = gate.pausedFor(later)
  const told = Math.max(0, predictedWait(arrival, later, left))
  const looked = Math.max(0, predictedWait(arrival, later, left, Infinity))
  const [exact] = finish(shaper.exactWaits([{ arrival, pause: left }]))
  let slot = later
  shaper.admit(arrival, { ...IGNORE, release: released => (slot = released) })
  clock.runAll()
  return { told: [told, looked, exact!], waited: slot - later, isCrossing: later < at && slot > at }
}

t.test('property: predicted waits across a change are those of the simulation, alone, shared, and in a pause', t => {
  let crossing = 0
  fc.assert(
    fc.property(change, change => {
      const { told, waited, isCrossing } = foretell(change)
      if (told.some(wait => Math.abs(wait - waited) > EPSILON)) throw new Error(`told ${told}, waited ${waited}`)
      if (isCrossing) crossing += 1
    }),
    { numRuns: runs(3_000) },
  )
  t.ok(crossing > often(500), `${crossing} waited across the change`)
  t.end()
})

t.test('property: Retry-After is never too short, whatever the limits become', t => {
  let rejected = 0
  fc.assert(
    fc.property(
      change,
      fc.integer({ min: 2, max: 30 }),
      fc.integer({ min: 1, max: 30 }),
      fc.constantFrom(0, 200, 1_000, Infinity),
      (change, capacity, capacityAfter, maxWait) => {
        const { before, after, at, waiting, later } = change
        const { clock, shaper, bucket } = world(limits(before, capacity), limits(after, capacityAfter), at)
        const gate = new Gate()
        const arrivalOf = (place: number): Arrival => ({ route: { name: `${place}`, gate }, stack: [bucket], cost: 1 })
        for (const [place, count] of waiting.entries())
          for (let turn = 0; turn < count * 2; turn += 1) shaper.admit(arrivalOf(place), IGNORE)
        clock.runUntil(later)
        const arrival = arrivalOf(0)
        const waiter = { ...IGNORE, longestWait: maxWait }
        const first = rejectionOf(shaper.admit(arrival, waiter))
        if (first === undefined) return
        rejected += 1
        const fit = timeUntilFit(arrival, maxWait, later)
        // As it is told: in whole seconds.
        clock.runUntil(later + Math.ceil(fit / 1_000) * 1_000)
        const again = rejectionOf(shaper.admit(arrival, waiter))
        if (again !== undefined) throw new Error(`told ${fit}, ${again.reason} then`)
      },
    ),
    { numRuns: runs(3_000) },
  )
  t.ok(rejected > often(500), `${rejected} were rejected`)
  t.end()
})
