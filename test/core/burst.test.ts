import fc from 'fast-check'
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { type Arrival, burst, bursting, limits, type Outcome, random, run, slots, worstExcess } from './run.js'

const EPSILON = 1e-6

t.test('after idling so much leaves without spacing, then r', async t => {
  const first = run([bursting(5, 20, 10)], burst(21))
  t.same(slots(first), [...Array(10).fill(0), ...Array.from({ length: 10 }, (_, index) => 200 * (index + 1))])
  t.equal(first.admitted.length, 20, 'admission is that of a bucket without a burst')

  const again = run([bursting(5, 20, 3)], [...burst(4), ...burst(6, 0, 1_000)])
  t.same(slots(again), [0, 0, 0, 200, 1_000, 1_000, 1_000, 1_200, 1_400, 1_600], 'idle for four periods: all of it')

  const half = run([bursting(5, 20, 3)], [...burst(4), ...burst(4, 0, 500)])
  t.same(slots(half), [0, 0, 0, 200, 500, 600, 800, 1_000], 'idle for one and a half: one and a half of it')
})

t.test('a burst of one request is no burst, and one below it neither', async () => {
  const gap = fc.constantFrom(0, 0, 10, 100, 200, 333.25)
  fc.assert(
    fc.property(fc.array(gap, { maxLength: 40 }), fc.constantFrom(0.3, 1), (gaps, burst) => {
      let at = 0
      const arrivals = gaps.map(gap => ({ at: (at += gap) }))
      const [one, none] = [bursting(5, 10, burst), limits(5, 10)].map(bucket => run([bucket], arrivals))
      return slots(one!).join() === slots(none!).join() && one!.admitted.join() === none!.admitted.join()
    }),
    { seed: 1 },
  )
})

t.test('costs: a request leaves when the burst has room for its cost, or the bucket is empty', async t => {
  const costs = (...all: number[]): Arrival[] => all.map(cost => ({ at: 0, cost }))
  t.same(slots(run([bursting(10, 100, 10)], costs(4, 4, 4, 1))), [0, 0, 200, 300])
  t.same(slots(run([bursting(10, 100, 10)], costs(10, 1, 9))), [0, 100, 1_000])
  t.same(slots(run([bursting(10, 100, 10)], costs(1, 25, 1))), [0, 100, 1_700], 'more than the burst: alone')
  t.same(slots(run([bursting(10, 100, 10)], costs(0.5, 9.5, 0.1))), [0, 0, 10])
})

/** What leaves when, by the definition: one bucket, first in, first out, nobody hangs up. */
function model({ rate, burst = 0 }: BucketLimits, outcomes: readonly Outcome[]): number[] {
  let drained = -Infinity
  let last = -Infinity
  return outcomes
    .filter(({ verdict }) => verdict !== 'rejected')
    .map(({ arrival: { at, cost = 1 } }) => {
      const slack = Math.max(0, burst - cost)
      last = Math.max(at, last, drained - slack / rate)
      drained = Math.max(drained, last) + cost / rate
      return last
    })
}

const gap = fc.constantFrom(0, 0, 0, 0, 1, 10, 25, 50, 100, 200, 333.25, 1_000)
const cost = fc.constantFrom(1, 1, 1, 2, 0.5, 0.25, 0.1, 1.7, 1 / 3)
const rate = fc.constantFrom(1, 2, 3, 5, 7, 10, 20, 100, 1_000)
const capacity = fc.constantFrom(1, 2, 3, 5, 10, 20, 3.5)
const anyBurst = fc.constantFrom(0.5, 1, 2, 2.5, 4, 10)
const one = fc.tuple(rate, capacity, anyBurst).map(([r, b, n]) => bursting(r, b, n))
const stackOfTwo = fc
  .tuple(one, rate, capacity, anyBurst, fc.constantFrom('both', 'own', 'everyone'))
  .map(([own, r, b, n, which]) => [
    which === 'everyone' ? limits(own.rate * 1_000, own.capacity) : own,
    which === 'own' ? limits(r, b, 'everyone') : bursting(r, b, n, 'everyone'),
  ])
const anyStack = fc.oneof(
  one.map(bucket => [bucket]),
  stackOfTwo,
)

const KEYS = ['a', 'b', 'c']

function arrivalsOf({ isSteady = false, keys = KEYS, routes = ['x'] } = {}): fc.Arbitrary<Arrival[]> {
  const request = fc.record({
    gap,
    cost,
    key: fc.constantFrom(...keys),
    route: fc.constantFrom(...routes),
    hangsUpAfter: isSteady ? fc.constant(null) : fc.option(gap, { freq: 2 }),
    readyAfter: isSteady ? fc.constant(null) : fc.option(gap, { freq: 1 }),
  })
  return fc.array(request, { minLength: 1, maxLength: 60, size: 'max' }).map(requests => {
    let at = 0
    return requests.map(({ gap, key, cost, route, hangsUpAfter, readyAfter }) => {
      at += gap
      const cancel = hangsUpAfter === null ? {} : { cancelAt: at + hangsUpAfter }
      const ready = readyAfter === null ? {} : { readyAt: at + readyAfter }
      return { at, keys: [key, 'all'], cost, route, ...cancel, ...ready }
    })
  })
}

/** Mostly up to 20 ms, sometimes a stall of seconds. */
const lateness = fc.integer().map(seed => {
  const next = random(seed)
  return (): number => (next() < 0.07 ? next() * 4_000 : next() < 0.3 ? 0 : next() * 20)
})

t.test('what leaves when is the definition, and admission is that of the meter', async () => {
  fc.assert(
    fc.property(one, arrivalsOf({ isSteady: true, keys: ['a'] }), (bucket, arrivals) => {
      const shaped = run([bucket], arrivals)
      const metered = run([bucket], arrivals, { mode: 'meter' })
      if (shaped.admitted.join() !== metered.admitted.join()) return false
      const wanted = model(bucket, shaped.outcomes)
      return shaped.admitted.every((place, index) => Math.abs(shaped.outcomes[place]!.slot! - wanted[index]!) < EPSILON)
    }),
    { seed: 2, numRuns: 2_000 },
  )
})

t.test('lateness within the grace changes neither verdicts nor slots', async () => {
  fc.assert(
    fc.property(anyStack, arrivalsOf({ isSteady: true }), fc.integer(), (stack, arrivals, seed) => {
      const next = random(seed)
      const grace = Math.min(...stack.map(bucket => Math.max(2, 1 / bucket.rate)))
      const onTime = run(stack, arrivals)
      const late = run(stack, arrivals, { lateness: () => next() * grace })
      if (onTime.admitted.join() !== late.admitted.join()) return false
      return onTime.outcomes.every(
        ({ slot }, index) => slot === undefined || Math.abs(slot - late.outcomes[index]!.slot!) < EPSILON,
      )
    }),
    { seed: 3, numRuns: 1_000 },
  )
})

t.test(
  'never more than r x (W + max(1/r, 2 ms)) + max(burst, c), with late wake-ups, bodies and hang-ups',
  async () => {
    fc.assert(
      fc.property(anyStack, arrivalsOf(), lateness, (stack, arrivals, late) => {
        const { released } = run(stack, arrivals, { lateness: late })
        return stack.every((bucket, place) =>
          [...KEYS, 'all'].every(key => {
            return (
              worstExcess(
                bucket,
                released.filter(({ arrival }) => arrival.keys![place] === key),
              ) <= EPSILON
            )
          }),
        )
      }),
      { seed: 4, numRuns: 3_000 },
    )
  },
)

t.test('first in, first out, all leave, and nothing is left behind', async () => {
  const arrivals = arrivalsOf({ routes: ['x', 'y'] })
  const limit = fc.constantFrom(Infinity, 1, 3)
  fc.assert(
    fc.property(anyStack, arrivals, lateness, limit, (stack, arrivals, late, maxInFlight) => {
      const outcome = run(stack, arrivals, { lateness: late, maxInFlight, service: 120 })
      const { shaper, bucketTable, outcomes, end } = outcome
      if (shaper.queued > 0) return false
      if (outcomes.some(({ verdict, slot, cancelled }) => verdict === 'queued' && slot === undefined && !cancelled))
        return false
      for (const { name } of stack) {
        for (const [, bucket] of bucketTable.entries(name)) {
          if (!bucket.isPlain || Math.abs(bucket.level(end + 1e7)) > 0) return false
        }
      }
      const last = new Map<string, number>()
      for (const released of outcome.released) {
        if (released.asideAt !== undefined) continue
        const lane = `${released.arrival.keys![0]} ${released.arrival.route}`
        const index = outcomes.indexOf(released)
        if (index < (last.get(lane) ?? -1)) return false
        last.set(lane, index)
      }
      return true
    }),
    { seed: 5, numRuns: 2_000 },
  )
})
