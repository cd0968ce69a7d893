import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, graceAt } from '../../src/core/bucket/queued-bucket.js'
import { often, runs } from '../runs.js'
import { type Arrival, limits, type Moment, type Outcome, type Run, random, run, slots, worstExcess } from './run.js'

const EPSILON = 1e-6

const KEYS = ['a', 'b', 'c']

/** Coarse gaps, so that many arrivals fall exactly on a slot or find exactly enough room. */
const gap = fc.constantFrom(0, 0, 0, 1, 10, 25, 50, 100, 200, 333.25, 1_000)
const cost = fc.constantFrom(1, 1, 1, 2, 0.5, 0.25, 0.1, 1.7, 1 / 3)
const rate = fc.constantFrom(1, 2, 3, 5, 7, 10, 20, 100, 1_000)
const capacity = fc.constantFrom(1, 2, 3, 5, 10, 3.5)

const oneBucket = fc.tuple(rate, capacity).map(([r, b]) => [limits(r, b)])
const stackOfTwo = fc
  .tuple(rate, capacity, rate, capacity)
  .map(([r, b, all, most]) => [limits(r, b), limits(all, most, 'everyone')])
const anyStack = fc.oneof(oneBucket, stackOfTwo)

function arrivalsOf(
  options: {
    costs?: fc.Arbitrary<number>
    cancels?: boolean
    bodies?: boolean
    routes?: string[]
    keys?: string[]
  } = {},
): fc.Arbitrary<Arrival[]> {
  const one = fc.record({
    gap,
    key: fc.constantFrom(...(options.keys ?? KEYS)),
    cost: options.costs ?? cost,
    route: fc.constantFrom(...(options.routes ?? ['route'])),
    hangsUpAfter: options.cancels ? fc.option(gap, { freq: 2 }) : fc.constant(null),
    readyAfter: options.bodies ? fc.option(gap, { freq: 1 }) : fc.constant(null),
  })
  return fc.array(one, { minLength: 1, maxLength: 60, size: 'max' }).map(gaps => {
    let at = 0
    return gaps.map(({ gap, key, cost, route, hangsUpAfter, readyAfter }) => {
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

/** The releases of each instance of each bucket, in order. */
function* throughBuckets(stack: BucketLimits[], { released }: Run): Generator<[BucketLimits, Outcome[], number]> {
  for (const [place, bucket] of stack.entries()) {
    const grace = graceAt(bucket, place, stack.length)
    for (const key of [...KEYS, 'all']) {
      yield [bucket, released.filter(({ arrival }) => arrival.keys![place] === key), grace]
    }
  }
}

function must(condition: boolean, complaint: () => string): void {
  if (!condition) throw new Error(complaint())
}

/** Checks that hold at any moment. */
function balanced({ shaper, bucketTable, outcomes, now }: Moment): void {
  const arrived = outcomes.filter(({ verdict }) => verdict !== undefined)
  const waiting = arrived.filter(
    outcome =>
      outcome.verdict === 'queued' && outcome.slot === undefined && !outcome.cancelled && outcome.expired === undefined,
  )
  for (const { slot, cancelled, expired, verdict } of arrived) {
    const ends = [slot !== undefined, cancelled === true, expired === true, verdict === 'rejected']
    must(ends.filter(Boolean).length <= 1, () => `one request ended twice: ${ends}`)
  }
  must(shaper.queued === waiting.length, () => `${shaper.queued} queued, ${waiting.length} wait at ${now}`)
  for (const [place, name] of ['client', 'everyone'].entries()) {
    for (const [key, bucket] of bucketTable.entries(name)) {
      const mine = waiting.filter(({ arrival }) => arrival.keys![place] === key)
      const sum = mine.reduce((total, { arrival }) => total + arrival.cost!, 0)
      must(bucket.waiting === mine.length, () => `${name} ${key}: ${bucket.waiting} waiting, ${mine.length} wait`)
      must(Math.abs(bucket.queued - sum) < 1e-9, () => `${name} ${key}: ${bucket.queued} queued, not ${sum}`)
      must(mine.length > 0 || bucket.queued === 0, () => `${name} ${key}: ${bucket.queued} queued without a request`)
      must(bucket.hold(now) >= 0 && bucket.queued > -1e-12, () => `${name} ${key}: below 0`)
      must(bucket.level(now) <= bucket.limits.capacity + 1e-8, () => `${name} ${key}: above its brim`)
    }
  }
}

t.test('property: shape and meter admit the same requests', async () => {
  fc.assert(
    fc.property(oneBucket, arrivalsOf(), (stack, arrivals) => {
      const shaped = run(stack, arrivals)
      const metered = run(stack, arrivals, { mode: 'meter' })
      return shaped.admitted.join() === metered.admitted.join()
    }),
    { seed: 11, numRuns: runs(1000) },
  )
})

t.test('property: shape and meter admit the same requests, also when wake-ups are late within the grace', async () => {
  fc.assert(
    fc.property(oneBucket, arrivalsOf(), fc.integer(), (stack, arrivals, seed) => {
      const next = random(seed)
      const grace = graceAt(stack[0]!, 0, 1)
      const shaped = run(stack, arrivals, { lateness: () => next() * grace })
      const metered = run(stack, arrivals, { mode: 'meter' })
      return shaped.admitted.join() === metered.admitted.join()
    }),
    { seed: 12, numRuns: runs(1000) },
  )
})

t.test('property: lateness within the grace changes neither verdicts nor slots', async () => {
  fc.assert(
    fc.property(oneBucket, arrivalsOf(), fc.integer(), (stack, arrivals, seed) => {
      const next = random(seed)
      // Before another bucket lateness of both kinds counts against one grace.
      const grace = graceAt(stack[0]!, 0, 1)
      const onTime = run(stack, arrivals)
      const late = run(stack, arrivals, { lateness: () => next() * grace })
      if (onTime.admitted.join() !== late.admitted.join()) return false
      return onTime.outcomes.every(
        ({ slot }, index) => slot === undefined || Math.abs(slot - late.outcomes[index]!.slot!) < EPSILON,
      )
    }),
    { seed: 13, numRuns: runs(1000) },
  )
})

t.test(
  'property: never more than r x (W + grace) + c through a bucket, with late wake-ups, bodies and hang-ups',
  async () => {
    fc.assert(
      fc.property(anyStack, arrivalsOf({ cancels: true, bodies: true }), lateness, (stack, arrivals, late) => {
        const outcome = run(stack, arrivals, { lateness: late })
        for (const [bucket, released, grace] of throughBuckets(stack, outcome)) {
          if (worstExcess(bucket, released, grace) > EPSILON) return false
        }
        return true
      }),
      { seed: 14, numRuns: runs(2000) },
    )
  },
)

t.test('property: on time: never more than r x W + c, and the grace where a bucket is not the last', async () => {
  fc.assert(
    fc.property(anyStack, arrivalsOf({ cancels: true, bodies: true }), (stack, arrivals) => {
      const outcome = run(stack, arrivals)
      for (const [bucket, released, grace] of throughBuckets(stack, outcome)) {
        const late = bucket === stack.at(-1) ? 0 : grace
        // In any window the costs before the last are at least their periods apart.
        const sums = [0]
        for (const { arrival } of released) sums.push(sums.at(-1)! + arrival.cost!)
        for (let to = 0; to < released.length; to += 1) {
          for (let from = 0; from < to; from += 1) {
            const window = released[to]!.releasedAt! - released[from]!.releasedAt!
            if (sums[to]! - sums[from]! > bucket.rate * (window + late) + EPSILON) return false
          }
        }
      }
      return true
    }),
    { seed: 15, numRuns: runs(1000) },
  )
})

t.test('property: no release before its slot, no slot before the arrival or before the bucket is free', async () => {
  fc.assert(
    fc.property(anyStack, arrivalsOf({ cancels: true, bodies: true }), lateness, (stack, arrivals, late) => {
      const outcome = run(stack, arrivals, { lateness: late })
      for (const { slot, releasedAt, arrival } of outcome.released) {
        if (releasedAt! < slot! - EPSILON || slot! < arrival.at - EPSILON) return false
      }
      for (const [bucket, released, grace] of throughBuckets(stack, outcome)) {
        const late = bucket === stack.at(-1) ? 0 : grace
        for (const [index, { slot }] of released.entries()) {
          const before = released[index - 1]
          if (before !== undefined && slot! + late < before.slot! + before.arrival.cost! / bucket.rate - EPSILON)
            return false
        }
      }
      return true
    }),
    { seed: 16, numRuns: runs(1000) },
  )
})

t.test('property: every request is in exactly one place at any moment, and the levels match', async () => {
  const options = fc.record({
    maxWait: fc.constantFrom(Infinity, Infinity, 100, 1_000),
    maxQueued: fc.constantFrom(Infinity, 3, 10),
    maxInFlight: fc.constantFrom(Infinity, 1, 3),
    service: fc.constantFrom(0, 50, 700),
  })
  const arrivals = arrivalsOf({ cancels: true, bodies: true, routes: ['x', 'y'] })
  fc.assert(
    fc.property(anyStack, arrivals, lateness, options, (stack, arrivals, late, options) => {
      const { shaper, bucketTable, outcomes, end } = run(stack, arrivals, {
        ...options,
        lateness: late,
        check: balanced,
      })
      balanced({ shaper, bucketTable, outcomes, now: end + 1e7 })
      must(shaper.queued === 0, () => 'a request waits for ever')
      for (const name of ['client', 'everyone']) {
        for (const [, bucket] of bucketTable.entries(name)) {
          must(bucket.level(end + 1e7) === 0, () => 'a bucket does not run dry')
          must(bucket.isPlain, () => 'a waiting state is left')
        }
      }
      return true
    }),
    { seed: 17, numRuns: runs(1000) },
  )
})

t.test('property: first in, first out in every lane', async () => {
  const arrivals = arrivalsOf({ cancels: true, routes: ['x', 'y'] })
  fc.assert(
    fc.property(anyStack, arrivals, lateness, fc.constantFrom(Infinity, 2), (stack, arrivals, late, maxInFlight) => {
      const outcome = run(stack, arrivals, { lateness: late, maxInFlight, service: 120 })
      const last = new Map<string, number>()
      for (const released of outcome.released) {
        const lane = `${released.arrival.keys![0]} ${released.arrival.route}`
        const index = outcome.outcomes.indexOf(released)
        if (index < (last.get(lane) ?? -1)) return false
        last.set(lane, index)
      }
      return true
    }),
    { seed: 18, numRuns: runs(1000) },
  )
})

t.test('a saturated bucket releases 99.9 % of r and never more than the bound, with timers late', async t => {
  for (const [perSecond, most] of [
    [1, 999],
    [5, 199],
    [100, 9.9],
    [500, 1.99],
    [1_000, 1.99],
    [5_000, 1.99],
  ] as const) {
    for (const costs of [[1], [0.3, 2, 1, 0.7]]) {
      const next = random(perSecond)
      const bucket = limits(perSecond, 1e9)
      const arrivals = Array.from({ length: 3_000 }, (_, index) => ({ at: 0, cost: costs[index % costs.length]! }))
      const { released } = run([bucket], arrivals, { lateness: () => next() * most })
      const seconds = released.at(-1)!.releasedAt! / 1_000
      const units = released.reduce((sum, { arrival }) => sum + arrival.cost!, 0) - released.at(-1)!.arrival.cost!
      t.equal(released.length, 3_000)
      t.ok(units / seconds >= 0.999 * perSecond, `${units / seconds} of ${perSecond}/s`)
      t.ok(worstExcess(bucket, released) <= EPSILON)
    }
  }
})

t.test('a saturated shared bucket releases 99.9 % of r with any set of lanes', async t => {
  const next = random(7)
  const stack = [limits(40, 1e9), limits(100, 1e9, 'everyone')]
  const arrivals = Array.from({ length: 4_000 }, (_, index) => ({ at: 0, keys: [KEYS[index % 3]!, 'all'] }))
  const { released } = run(stack, arrivals, { lateness: () => next() * 9.9 })
  t.ok(3_999 / (released.at(-1)!.releasedAt! / 1_000) >= 99.9)
  t.ok(worstExcess(stack[1]!, released) <= EPSILON)
})

t.test('property: a rejected request changes no level', async () => {
  let rejections = 0
  fc.assert(
    fc.property(anyStack, arrivalsOf(), fc.constantFrom(Infinity, 150), (stack, arrivals, maxWait) => {
      let kept = true
      run(stack, arrivals, {
        maxWait,
        maxQueued: 8,
        watch: (buckets, now) => {
          // A release of another request at the same moment does not change a level: its cost is held.
          const before = buckets.map(bucket => bucket.level(now))
          return verdict => {
            if (verdict === 'released' || !('reason' in verdict)) return
            rejections += 1
            if (buckets.some((bucket, place) => Math.abs(bucket.level(now) - before[place]!) > 1e-9)) kept = false
          }
        },
      })
      return kept
    }),
    { seed: 19, numRuns: runs(500) },
  )
  must(rejections > often(1_000), () => `only ${rejections} rejections`)
})

t.test('property: all or none: an admitted request is added to every bucket of its stack', async () => {
  fc.assert(
    fc.property(stackOfTwo, arrivalsOf(), (stack, arrivals) => {
      let kept = true
      let index = 0
      run(stack, arrivals, {
        watch: (buckets, now) => {
          const before = buckets.map(bucket => bucket.level(now))
          const cost = arrivals[index++]!.cost!
          return verdict => {
            const added = buckets.map((bucket, place) => bucket.level(now) - before[place]!)
            const expected = verdict !== 'released' && 'reason' in verdict ? 0 : cost
            if (added.some(amount => Math.abs(amount - expected) > EPSILON)) kept = false
          }
        },
      })
      return kept
    }),
    { seed: 20, numRuns: runs(500) },
  )
})

/**
 * The meaning of cancelling: all other requests get the slots that they would have if the cancelled and the rejected
 * requests had never come.
 */
function worldWithout({ outcomes }: Run): { others: Outcome[]; world: Arrival[] } {
  const others = outcomes.filter(({ verdict, cancelled }) => verdict !== 'rejected' && cancelled !== true)
  return { others, world: others.map(({ arrival: { cancelAt: _, ...arrival } }) => arrival) }
}

t.test('property: cancel: later requests move up, exactly', async () => {
  let cancelled = 0
  fc.assert(
    fc.property(oneBucket, arrivalsOf({ cancels: true }), (stack, arrivals) => {
      const real = run(stack, arrivals)
      const { others, world } = worldWithout(real)
      cancelled += real.outcomes.filter(outcome => outcome.cancelled).length
      const ideal = run(stack, world)
      if (ideal.admitted.length !== world.length) return false
      return others.every(({ slot }, index) => Math.abs(slot! - ideal.outcomes[index]!.slot!) < EPSILON)
    }),
    { seed: 21, numRuns: runs(1000) },
  )
  must(cancelled > often(500), () => `only ${cancelled} cancelled`)
})

t.test(
  'property: cancel: a bucket with several lanes has the slots that it has without the cancelled requests',
  async () => {
    const arrivals = arrivalsOf({ cancels: true, routes: ['x', 'y', 'z'], keys: ['a'], costs: fc.constant(1) })
    fc.assert(
      fc.property(oneBucket, arrivals, (stack, arrivals) => {
        const real = run(stack, arrivals)
        const ideal = run(stack, worldWithout(real).world)
        return slots(real).join() === slots(ideal).join()
      }),
      { seed: 22, numRuns: runs(1000) },
    )
  },
)

t.test('cancel: ten thousand at once do not affect others', async t => {
  const stack = [limits(5, 20_000)]
  const others = Array.from({ length: 60 }, (_, index) => ({ at: index * 70, keys: [KEYS[index % 3]!] }))
  const flood = Array.from({ length: 10_000 }, (_, index) => ({ at: index / 100, keys: ['flood'], cancelAt: 2_010 }))
  const alone = run(stack, others)
  const together = run(stack, [...others, ...flood])
  t.same(
    together.outcomes.slice(0, 60).map(({ slot }) => slot),
    alone.outcomes.map(({ slot }) => slot),
  )
  const floods = together.outcomes.slice(60)
  t.equal(floods.filter(({ slot }) => slot !== undefined).length, 11, 'those in the slots at 0, 200, ..., 2000')
  t.equal(floods.filter(({ cancelled }) => cancelled === true).length, 9_989)
  t.equal(floods.filter(({ cancelled }) => cancelled === false).length, 10)
})

t.test('cancel: ten thousand at once leave a shared bucket to the others', async t => {
  const stack = [limits(100, 20_000), limits(10, 20_000, 'everyone')]
  const flood = Array.from({ length: 10_000 }, () => ({ at: 0, keys: ['flood', 'all'], cancelAt: 1_001 }))
  const others = Array.from({ length: 40 }, (_, index) => ({ at: 0, keys: [KEYS[index % 2]!, 'all'] }))
  const { released, shaper } = run(stack, [...flood, ...others])
  const times = released.map(({ slot }) => slot!)
  t.ok(
    times.every((slot, index) => Math.abs(slot - 100 * index) < EPSILON),
    'a release in each slot of 100 ms',
  )
  const after = released.filter(({ slot }) => slot! > 1_001).map(({ arrival }) => arrival.keys![0])
  t.match(after.join(''), /^(?:ab)+a?$|^(?:ba)+b?$/)
  t.equal(shaper.queued, 0)
})

t.test('drained instances are removed', async t => {
  const stack = [limits(5, 10), limits(1_000, 1e5, 'everyone')]
  const crowd = Array.from({ length: 1_000 }, (_, index) => ({ at: 0, keys: [`old ${index}`, 'all'] }))
  const later = Array.from({ length: 1_000 }, (_, index) => ({ at: 5_000, keys: [`new ${index}`, 'all'] }))
  t.equal(run(stack, crowd).bucketTable.size('client'), 1_000)
  const { bucketTable } = run(stack, [...crowd, ...later])
  t.equal([...bucketTable.entries('client')].filter(([key]) => key.startsWith('old')).length, 0)
  t.equal(bucketTable.size('client'), 1_000)
  t.equal(bucketTable.size(), 1_001)
})
