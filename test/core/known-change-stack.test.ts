/** Limits that are known to change, in stacks of several buckets, with bursts, mixed costs and priorities. */

import fc from 'fast-check'
import t from 'tap'
import { timeUntilFit } from '../../src/core/admission/decide.js'
import { predictedWait } from '../../src/core/admission/predicted-wait.js'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { type Arrival, Gate, type LaneRoute, type Rejection, type SharedBucket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { often, runs } from '../runs.js'
import { finish } from './run.js'

const IGNORE = { release: () => undefined, expire: () => undefined, reject: () => undefined }

const rejectionOf = (verdict: unknown): Rejection | undefined =>
  typeof verdict === 'object' && verdict !== null && 'reason' in verdict ? (verdict as Rejection) : undefined

const definition = fc.record({
  rate: fc.constantFrom(2, 10, 50),
  capacity: fc.constantFrom(4, 10, 30),
  burst: fc.constantFrom(undefined, undefined, 1, 3),
  /** Undefined: they do not change. */
  next: fc.option(
    fc.record({
      at: fc.integer({ min: 1, max: 3_000 }),
      rate: fc.constantFrom(1, 10, 100),
      capacity: fc.constantFrom(4, 12, 40),
    }),
    { nil: undefined },
  ),
})

const world = fc.record({
  /** Two of clients, and one that they share. */
  definitions: fc.tuple(definition, definition, definition),
  /** Which client comes, what it costs in its own bucket and in all, its priority, and ms since the one before. */
  arrivals: fc.array(
    fc.tuple(
      fc.nat({ max: 1 }),
      fc.constantFrom(1, 1, 2, 0.5),
      fc.constantFrom(undefined, undefined, 1, 3),
      fc.constantFrom(3, 3, 0, 5),
      fc.constantFrom(0, 0, 0, 20, 150),
    ),
    { minLength: 4, maxLength: 40 },
  ),
  maxWait: fc.constantFrom(0, 200, 1_000, Infinity, Infinity),
})

type World = typeof world extends fc.Arbitrary<infer Value> ? Value : never

/** Plays it up to one of its arrivals. `answer` is that one's, and `ask` asks for it again. Nothing that is predicted is NaN. */
function play({ definitions, arrivals, maxWait }: World, upTo: number) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gate = new Gate()
  const buckets = definitions.map(({ rate, capacity, burst, next }, place): SharedBucket => {
    const limits: BucketLimits = {
      ...{ name: `${place}`, rate: rate / 1_000, capacity },
      ...(burst !== undefined && { burst }),
    }
    if (next === undefined) return new QueuedBucket(limits)
    const later = { ...limits, rate: next.rate / 1_000, capacity: next.capacity }
    const bucket: SharedBucket = new QueuedBucket({
      ...limits,
      next: { at: next.at, rate: later.rate, capacity: later.capacity },
    })
    clock.at(next.at, () => shaper.engine.setLimits(bucket, later))
    return bucket
  })
  const routes: LaneRoute[] = [0, 1].map(place => ({ name: `${place}`, gate }))
  const all = buckets[2]!
  let answer: Rejection | undefined
  const arrivalOf = ([who, cost, inAll, priority]: World['arrivals'][number]): Arrival => ({
    ...{ route: routes[who]!, stack: [buckets[who]!, all], priority },
    ...(inAll === undefined || inAll === cost ? { cost } : { cost: inAll, costs: [cost, inAll] }),
  })
  const ask = (one: World['arrivals'][number]): Rejection | undefined => {
    const arrival = arrivalOf(one)
    return rejectionOf(shaper.admit(arrival, { ...IGNORE, longestWait: maxWait }, maxWait))
  }
  for (const [index, one] of arrivals.slice(0, upTo + 1).entries()) {
    clock.runUntil(clock.now() + one[4])
    const arrival = arrivalOf(one)
    const now = clock.now()
    for (const most of [undefined, Infinity]) {
      const wait = predictedWait(arrival, now, 0, most)
      if (Number.isNaN(wait)) throw new Error(`NaN at ${index}`)
    }
    const [exact] = finish(shaper.exactWaits([{ arrival, pause: 0 }]))
    if (!Number.isFinite(exact)) throw new Error(`${exact} at ${index}`)
    answer = ask(one)
    if (Number.isNaN(timeUntilFit(arrival, maxWait, now))) throw new Error(`NaN until ${index} fits`)
  }
  return { clock, ask, answer }
}

t.test('property: stacks, bursts, mixed costs, priorities: Retry-After is not too short across a change', t => {
  let rejected = 0
  let crossing = 0
  fc.assert(
    fc.property(world, world => {
      for (let upTo = 3; upTo < world.arrivals.length; upTo += 4) {
        const { clock, ask, answer } = play(world, upTo)
        if (answer?.retryAfterMs === undefined) continue
        const since = clock.now()
        // As it is told: in whole seconds.
        const until = since + Math.ceil(Math.max(answer.retryAfterMs, 1) / 1_000) * 1_000
        clock.runUntil(until)
        rejected += 1
        if (world.definitions.some(({ next }) => next !== undefined && next.at > since && next.at <= until))
          crossing += 1
        const again = ask(world.arrivals[upTo]!)
        if (again !== undefined) throw new Error(`${upTo}: ${answer.retryAfterMs} ms told, ${again.reason} then`)
      }
    }),
    { numRuns: runs(1_500), seed: 1 },
  )
  t.ok(crossing > often(300) && rejected > crossing, `${rejected} were rejected, ${crossing} came back after a change`)
  t.end()
})
