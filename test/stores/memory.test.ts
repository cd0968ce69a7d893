import fc from 'fast-check'
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import type { Bucket } from '../../src/decider/bucket.js'
import { BEAT_LIFE, FORECAST, FRAME, LEASE_LIFE, SLOT_GRACE } from '../../src/decider/constants.js'
import type { BucketRef, ClassDemand } from '../../src/decider/record.js'
import { VIEW_LIFE } from '../../src/sharing/board.js'
import { type ClaimAnswer, HORIZON, longestBackDate, type Store } from '../../src/sharing/store.js'
import { createMemoryStore, MemoryUpstreams, PARTS_FORM } from '../../src/stores/memory/store.js'
import { runs } from '../runs.js'
import { boardConformance } from './board-conformance.js'
import { clock, conformance, IDLE } from './conformance.js'
import { exchangeConformance } from './exchange-conformance.js'

conformance('memory', async () => {
  const store: Store = createMemoryStore({ clock })
  return { store, other: store, close: () => store.close() }
})

boardConformance('memory', async () => {
  const store: Store = createMemoryStore({ clock })
  return { store, other: store, close: () => store.close() }
})

t.test('parts of another form have another number', async t => {
  const store = createMemoryStore({ clock: { now: () => 1_000 } })
  const bucket = client(10, 10)
  store.lease({ ...lessee, bucket, demand: [{ priority: 3, weight: 1, cost: 5 }] })
  const [part] = store.parts()
  const { state } = part as { state: Bucket }
  const names = (each: object): string => Object.keys(each).join(' ')
  t.equal(PARTS_FORM, 1)
  t.same([state, state.leases!, state.leases!.lessees[0]!, state.leases!.lessees[0]!.demand[0]!].map(names), [
    'level at free blocked rate leasedRate leasedUntil leasedRoom leases kept keptUntil promises',
    'lessees spare turns owed lateBy beyond gone lead largest',
    'instance seenAt nextAt lead late largest pace pacedAt demand slots room filled roomRate roomUntil lacks readyAt latest forecast',
    'priority weight part cost turn arrivals passed point lessee place key',
  ])
})

t.test('what instances have shown is forgotten when another one shows something', async t => {
  let now = 0
  const { board } = createMemoryStore({ clock: { now: () => now } })
  board.show('present', 'gone', 'a')
  now = VIEW_LIFE.present
  board.show('present', 'here', 'b')
  // By this clock it would be there again, had it been kept.
  now = 0
  t.same(await board.views('present'), [{ id: 'here', text: 'b', age: -VIEW_LIFE.present }])
})

exchangeConformance('memory', async () => {
  let now = 0
  const store: Store = createMemoryStore({ clock: { ...clock, now: () => now } })
  const setTime = (ms: number): void => {
    now = ms
  }
  return { stores: [store], setTime, close: () => store.close() }
})

function client(rate: number, capacity: number, more: Partial<BucketRef['limits']> = {}, key = 'k'): BucketRef {
  return { limits: { name: 'client', rate: rate / 1_000, capacity, ...more }, key, group: '' }
}

function setUp(start = 0) {
  const time = createVirtualClock({ start })
  return { time, store: createMemoryStore({ clock: time }) }
}

/** As an instance sees it whose calls take 30 ms. */
const FAR = { horizon: 75, back: longestBackDate(30) }

t.test('a contract of five a second and ten, to the millisecond', async t => {
  const { time, store } = setUp(1_000)
  const stack = [client(5, 10)]
  const ask = () => store.admit({ stack, cost: 1, maxWait: Infinity, claim: false })
  for (let count = 1; count <= 10; count += 1) t.same(ask(), { admitted: true, levels: [count] })
  const full = { admitted: false, levels: [10], reason: 'overflow', refusing: [0], retryAfterMs: 200 }
  t.same(ask(), full)
  time.runUntil(1_199)
  t.equal(ask().admitted, false)
  time.runUntil(1_200)
  t.same(ask(), { admitted: true, levels: [10] })
})

t.test('slots, to the millisecond', async t => {
  const { time, store } = setUp(1_000)
  const [a, b] = [client(100, 10), client(10, 10, { name: 'everyone' })]
  const steps: [at: number, stack: BucketRef[], cost: number, since: number, wanted: number | number[]][] = [
    [1_000, [a], 1, 0, 1_000],
    [1_000, [a], 1, 0, [1_010]],
    [1_007.9, [a], 1, 5, [1_010]],
    [1_008, [a], 1, 5, 1_010],
    [1_019, [a, b], 1, 0, 1_020],
    [1_019, [a, b], 1, 0, [1_030, 1_120]],
    [1_029, [a], 0.5, 1, 1_030],
    [1_033, [a], 0.5, 0, 1_035],
    [1_121, [b], 1, 1, 1_120],
    [1_240, [b], 1, 60_000, 1_240 - longestBackDate(0)],
    [1_400, [b, a], 1, 3, 1_397],
  ]
  for (const [at, stack, cost, since, wanted] of steps) {
    time.runUntil(at)
    const answer = store.claim({ stack, cost, since })
    if (typeof wanted === 'number') t.equal(answer.granted && answer.slot.at, wanted, `at ${at}`)
    else t.same(answer, { granted: false, freeAt: wanted }, `at ${at}`)
  }
})

t.test('slots of a burst, to the millisecond', async t => {
  const { time, store } = setUp(1_000)
  const [a, b] = [client(10, 100, { burst: 3 }), client(20, 100, { name: 'everyone' })]
  const steps: [at: number, stack: BucketRef[], cost: number, since: number, wanted: number | number[]][] = [
    [1_000, [a], 1, 0, 1_000],
    [1_000, [a], 1, 0, 1_000],
    [1_000, [a], 2, 0, [1_100]],
    [1_000, [a], 0.5, 0, 1_000],
    [1_049, [a], 1, 0, 1_050],
    [1_100, [a, b], 1, 0, [1_150, 1_100]],
    [1_149, [a, b], 1, 0, 1_150],
    [1_150, [a, b], 4, 0, [1_450, 1_200]],
    [1_450, [a, b], 4, 0, 1_450],
    [1_750, [a], 1, 0, 1_750],
    [9_000, [a], 1, 60_000, 9_000 - longestBackDate(0)],
    [9_000, [a], 1, 0, 9_000],
    [9_000, [a], 1, 0, 9_000],
  ]
  for (const [at, stack, cost, since, wanted] of steps) {
    time.runUntil(at)
    const answer = store.claim({ stack, cost, since })
    if (typeof wanted === 'number') t.equal(answer.granted && answer.slot.at, wanted, `at ${at}`)
    else t.same(answer, { granted: false, freeAt: wanted }, `at ${at}`)
  }
})

t.test('from when slots may be used if answers take 30 ms, to the millisecond', async t => {
  const time = createVirtualClock({ start: 1_000 })
  const store = createMemoryStore({ clock: time, reach: FAR })
  const [a, b] = [client(20, 10), client(20, 10, { name: 'burst', burst: 2 })]
  const steps: [now: number, stack: BucketRef[], notBefore: number, from: number, at: number][] = [
    [1_000, [a], 0, 1_000, 1_026],
    // The slots of a busy bucket follow each other.
    [1_010, [a], 0, 1_076, 1_076],
    [1_110, [a], 0, 1_126, 1_136],
    [2_000, [a], 2_010, 2_010, 2_026],
    [3_000, [a], 3_050, 3_050, 3_050],
    // A burst may leave together.
    [4_000, [b], 0, 4_000, 4_026],
    [4_000, [b], 0, 4_026, 4_026],
    [5_000, [b], 0, 5_000, 5_026],
    [5_040, [b, a], 0, 5_040, 5_066],
  ]
  for (const [now, stack, notBefore, from, at] of steps) {
    time.runUntil(now)
    const answer = store.claim({ stack, cost: 1, since: 0, notBefore })
    t.same(answer, { granted: true, slot: { at, from, token: at } }, `at ${now}`)
  }
})

/** The claims that were not given back never exceed the bound, in whatever order and however late they are given back. */
t.test('property: slots that are given back late never let more pass than the burst', async () => {
  const step = fc.record({
    gap: fc.constantFrom(0, 0, 1, 30, 100, 250),
    cost: fc.constantFrom(0.5, 1, 2, 4),
    since: fc.constantFrom(0, 50),
    lives: fc.constantFrom(Infinity, Infinity, 0, 1, 120, 400),
  })
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40, size: 'max' }), steps => {
      const { time, store } = setUp(1_000)
      const stack = [client(10, 100, { burst: 3 })]
      const sent: { at: number; cost: number }[] = []
      for (const { gap, cost, since, lives } of steps) {
        time.runUntil(time.now() + gap)
        const answer = store.claim({ stack, cost, since })
        if (!answer.granted) continue
        const { slot } = answer
        if (lives === Infinity) sent.push({ at: slot.at, cost })
        else time.at(time.now() + lives, () => store.giveBack({ stack, cost: 0, slot, slotCost: cost }))
      }
      sent.sort((one, other) => one.at - other.at)
      for (let from = 0; from < sent.length; from += 1) {
        let sum = 0
        for (const { at, cost } of sent.slice(from)) {
          sum += cost
          if (sum > 0.01 * (at - sent[from]!.at) + 4 + 1e-6) return false
        }
      }
      return true
    }),
    {
      seed: 20,
      numRuns: runs(2_000),
      // The first slot looks like the last one once it is given back.
      examples: [
        [
          [
            { gap: 0, cost: 2, since: 0, lives: 120 },
            { gap: 100, cost: 1, since: 0, lives: Infinity },
            { gap: 30, cost: 4, since: 0, lives: Infinity },
          ],
        ],
      ],
    },
  )
})

const lessee = { ...IDLE, instance: 1 }

t.test('an instance that reports late has slots until its next report', async t => {
  const { time, store } = setUp(1_000)
  const bucket = client(100, 1_000)
  const report = () => store.lease({ ...lessee, bucket, demand: [{ priority: 3, weight: 1, cost: 100 }] })
  report()
  time.runUntil(1_000 + FRAME + 200)
  t.same(
    report().slots.map(({ at }) => at - time.now()),
    Array.from({ length: FRAME / 10 }, (_, place) => 10 * place),
  )
})

t.test('what is set apart for an instance that is gone stays in the level and drains', async t => {
  const { time, store } = setUp(0)
  const bucket = client(100, 1_000)
  const level = () => store.admit({ stack: [bucket], cost: 0, maxWait: Infinity, claim: false }).levels[0]!
  store.admit({ stack: [bucket], cost: 500, maxWait: Infinity, claim: false })
  t.match(store.lease({ ...lessee, bucket, want: 100 }), { room: 100, roomRate: 0.1 })
  // It may admit as much as drains, so long as it is not gone. The other is there for longer.
  const end = FRAME + LEASE_LIFE
  time.runUntil(end - 100)
  t.equal(level(), 600)
  const demand = [{ priority: 3, weight: 1, cost: 1 }]
  store.lease({ ...lessee, instance: 2, bucket, want: -1, lead: 1_000, demand })
  time.runUntil(end + 1_000)
  t.match(store.lease({ ...lessee, instance: 2, bucket, want: -1, demand }), { instances: 1, level: 600 })
  time.runUntil(end + 2_000)
  t.equal(level(), 500, 'it drains at the whole rate from then on')
  // It was only late: what it has admitted counts once more, none of it is forgotten.
  store.lease({ ...lessee, bucket, held: 100 })
  t.equal(level(), 600)
})

t.test('what waits in an instance that is gone counts until it comes back, or is known to be gone', async t => {
  for (const returns of [true, false]) {
    const { time, store } = setUp(0)
    const bucket = client(100, 1_000)
    const report = (instance: number, lacks: number, want = -1): void => {
      const demand = [{ priority: 3, weight: 1, cost: 1 }]
      store.lease({ ...lessee, instance, bucket, want, demand, lacks })
    }
    const counts = (wanted: number, what: string): void => {
      const [level] = store.admit({ stack: [bucket], cost: 0, maxWait: Infinity, claim: false }).levels as [number]
      // A slot or two are dealt, and waited for.
      t.ok(Math.abs(level - wanted) <= 3, `${level}: ${what}`)
    }
    const pass = (until: number): void => {
      for (let at = time.now() + FRAME; at < until; at += FRAME) {
        time.runUntil(at)
        report(2, 300)
      }
      time.runUntil(until)
      report(2, 300)
    }
    store.admit({ stack: [bucket], cost: 500, maxWait: Infinity, claim: false })
    report(1, 200, 100)
    report(2, 300)
    counts(600, 'what waits, and room')
    pass(FRAME + LEASE_LIFE)
    counts(600, 'its room has grown by what has drained')
    pass(FRAME + LEASE_LIFE + 20)
    counts(500, "the room is nobody's")
    if (returns) {
      report(1, 250)
      counts(550, 'it tells what waits')
      continue
    }
    pass(FRAME + LEASE_LIFE + BEAT_LIFE)
    counts(500, 'it may come back')
    pass(FRAME + LEASE_LIFE + BEAT_LIFE + 50)
    counts(300, 'it is gone')
  }
})

t.test('the rest of a frame is dealt to what instances expect', async t => {
  const { time, store } = setUp(1_000)
  const bucket = client(100, 1_000)
  const report = (instance: number, expected: number, waiting = 0) => {
    const demand = [{ priority: FORECAST, weight: 1, cost: expected }]
    if (waiting > 0) demand.push({ priority: 3, weight: 1, cost: waiting })
    return store.lease({ ...lessee, instance, bucket, want: 1, demand }).slots.map(({ at }) => at - 1_000)
  }
  const times = (...numbers: number[]) => numbers.map(number => 10 * number)
  t.same(report(1, 6), times(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), 'all that there is, to one')
  t.same(report(2, 2), [], 'the frame is dealt')
  time.runUntil(1_000 + FRAME)
  t.same(report(1, 6), times(12, 14, 16, 17, 18, 20, 21, 23))
  t.same(report(2, 2), times(13, 15, 19, 22))
  time.runUntil(1_000 + 2 * FRAME)
  t.same(report(1, 6, 4).slice(0, 4), times(24, 25, 26, 27), 'what waits goes first')
})

t.test('instances have what they expect, then some more by its root, then as much each', async t => {
  const frames = 40
  const shares = (perSecond: number, expected: readonly number[]): number[] => {
    const { time, store } = setUp(1_000)
    const bucket = client(perSecond, 1_000)
    const got = expected.map(() => 0)
    for (let frame = 0; frame <= frames; frame += 1) {
      for (const [instance, cost] of expected.entries()) {
        const demand = [{ priority: FORECAST, weight: 1, cost }]
        const { slots } = store.lease({ ...lessee, instance, bucket, want: 1, demand })
        for (const slot of slots) if (frame > 0) got[instance]! += slot.cost / frames
      }
      time.runUntil(1_000 + (frame + 1) * FRAME)
    }
    return got
  }
  const cases = [
    {
      what: 'a frame has 12: 4 roots are more than what is left',
      perSecond: 100,
      expected: [6, 1],
      wanted: [9.5, 2.5],
    },
    { what: 'all is in use', perSecond: 100, expected: [16, 1], wanted: [9.6, 2.4] },
    {
      what: 'a frame has 120: 83 are left, and 15 kept for others',
      perSecond: 1_000,
      expected: [16, 1],
      wanted: [64.3, 40.7],
    },
    { what: 'who expects nothing has its part of them', perSecond: 1_000, expected: [16, 0], wanted: [66.5, 38.5] },
    { what: 'a slow bucket', perSecond: 20, expected: [2, 0.1, 0.1], wanted: [2.14, 0.13, 0.13] },
  ]
  for (const { what, perSecond, expected, wanted } of cases) {
    const got = shares(perSecond, expected)
    const isRight = got.every((cost, place) => Math.abs(cost - wanted[place]!) < 0.05 * wanted[0]!)
    t.ok(isRight, `${what}: ${got.map(cost => cost.toFixed(2))}, wanted ${wanted}`)
  }
})

t.test('while half of a frame is left, some slots are kept for an instance that comes', async t => {
  const { time, store } = setUp(1_000)
  const bucket = client(1_000, 1_000)
  const report = (instance: number, demand: ClassDemand[]) =>
    store.lease({ ...lessee, instance, bucket, want: 1, demand }).slots
  const expects = (cost: number) => ({ priority: FORECAST, weight: 1, cost })
  t.equal(report(1, [expects(16)]).length, 105, 'each eighth of 120 is kept')
  time.runUntil(1_050)
  const comes = report(2, [{ priority: 3, weight: 1, cost: 1 }, expects(1)]).map(({ at }) => at - 1_050)
  t.ok(comes[0]! <= 8, `what waits has its slot after ${comes[0]} ms, not after the frame`)
  const within = comes.filter(at => at < 70)
  t.ok(within.length >= 2 && within.length <= 4, `and what it expects the slots at ${within}: others may come`)
  const next = report(3, [expects(1)]).map(({ at }) => at - 1_050)
  t.ok(next.length >= 2, `as one does: ${next}`)
})

t.test('slots that are kept for others shorten the schedule, once nobody leases it', async t => {
  const { time, store } = setUp(1_000)
  const bucket = client(1_000, 1_000)
  const expects = { priority: FORECAST, weight: 1, cost: 16 }
  const { slots } = store.lease({ ...lessee, bucket, want: 1, demand: [expects] })
  time.runUntil(1_010.5)
  store.lease({ ...lessee, bucket, want: 0, demand: [], returned: slots.filter(({ at }) => at > 1_010.5) })
  t.match(store.claim({ stack: [bucket], cost: 1, since: 0 }), { granted: true, slot: { at: 1_011 } })
})

t.test('slots are small where little of a frame is kept for each instance', async t => {
  const { time, store } = setUp(1_000)
  const bucket = client(100_000, 1_000)
  const report = (instance: number) => {
    const demand = [{ priority: FORECAST, weight: 1, cost: instance === 0 ? 9_000 : 20 }]
    return store.lease({ ...lessee, instance, bucket, want: 1, demand }).slots
  }
  for (let instance = 0; instance < 50; instance += 1) report(instance)
  time.runUntil(1_000 + FRAME)
  for (let instance = 0; instance < 50; instance += 1) report(instance)
  time.runUntil(1_000 + 2 * FRAME)
  const [busy, ...others] = Array.from({ length: 50 }, (_, instance) => report(instance))
  t.ok(Math.max(...busy!.map(({ cost }) => cost)) > 90, 'a frame has 128 of the others')
  for (const slots of others) t.ok(slots.length >= 3, `${slots.length} in a frame`)
})

t.test('what is expected gets no slots if all instances can do without', async t => {
  const { time, store } = setUp(1_000)
  const bucket = client(100, 1_000)
  const report = (instance: number, weight: number, cost = 1) =>
    store.lease({ ...lessee, instance, bucket, want: 1, demand: [{ priority: FORECAST, weight, cost }] }).slots.length
  t.equal(report(1, 0), 0)
  t.equal(report(2, 0), 0)
  t.equal(store.claim({ stack: [bucket], cost: 1, since: 0 }).granted, true, 'so claims are granted')
  time.runUntil(1_000 + FRAME)
  t.equal(report(1, 1), 6, 'one cannot')
  t.equal(report(2, 0), 6, 'so the other has its part')
  time.runUntil(1_000 + 2 * FRAME)
  t.equal(report(1, 1, 0), 0, 'nor are there any if it expects nothing')
  t.equal(report(2, 0), 0)
})

t.test('an instance keeps the room that it has not used', async t => {
  const { time, store } = setUp(0)
  const bucket = client(0.000_001, 100)
  const filled = [0, 0, 0]
  const room = (instance: number, want: number, used = 0) => {
    const answer = store.lease({ ...lessee, instance, bucket, want, held: filled[instance]! + used })
    filled[instance] = answer.filled
    return Math.round(answer.room * 100) / 100
  }
  t.equal(room(1, 60), 50, 'half of what is left')
  t.equal(room(2, 100), 25)
  time.runUntil(FRAME)
  t.equal(room(1, 60), 50, 'as before, though half of what is left is less')
  t.equal(room(1, 60, 20), 30, 'less what it has used')
  t.equal(room(1, 10), 10, 'no more than it wants')
  t.equal(room(2, 100, 25), 22.5)
  const alone = { limits: { ...bucket.limits, name: 'alone' }, key: '', group: '' }
  store.admit({ stack: [alone], cost: 99, maxWait: Infinity, claim: false })
  t.equal(store.lease({ ...lessee, bucket: alone, want: 5 }).room, 1, 'one that is alone gets what one request needs')
})

t.test('where somebody leases a claim is granted only if the bucket is free', async t => {
  const { time, store } = setUp(1_000)
  const [leased, other] = [client(100, 10, { name: 'leased' }), client(100, 10)]
  const claim = (stack: BucketRef[], more: object = {}) =>
    store.claim({ stack, cost: 1, since: 0, ahead: 500, ...more })
  const at = (moment: number) => ({ granted: true, slot: { at: moment } })
  const report = () =>
    store.lease({ ...lessee, bucket: leased, demand: [{ priority: 3, weight: 1, cost: 1 }], want: 1 })
  t.equal(report().slots.length, 1)
  t.same(claim([leased]), { granted: false, freeAt: [1_010] }, 'not ahead')
  t.same(claim([leased, other]), { granted: false, freeAt: [1_010, 1_000] }, 'nor in a stack')
  t.same(claim([other, leased]), { granted: false, freeAt: [1_000, 1_010] })
  t.match(claim([other]), at(1_000), 'others are not concerned')
  t.match(claim([other]), at(1_010))
  t.match(claim([leased, other], { notBefore: 1_010 }), at(1_020), 'it is free by then')
  time.runUntil(1_030)
  t.match(claim([leased], { since: 5 }), at(1_030), 'idle')
  t.same(claim([leased]), { granted: false, freeAt: [1_040] })
  time.runUntil(1_000 + FRAME)
  t.match(report(), { slots: [{ at: 1_000 + FRAME }] })
  time.runUntil(1_000 + 2 * FRAME + LEASE_LIFE)
  t.match(claim([leased]), at(time.now()), 'nobody leases it any more')
  t.match(claim([leased]), at(time.now() + 10))
})

t.test('a claim that is refused as its slot would be too late takes nothing', async t => {
  const { store } = setUp(1_000)
  const [one, other] = [client(100, 10), client(100, 10, { name: 'other' })]
  const claim = (notBefore: number, within: number) =>
    store.claim({ stack: [one, other], cost: 1, since: 0, ahead: 500, notBefore, within })
  t.match(claim(1_001, 0), { granted: true, slot: { at: 1_001, from: 1_001 } })
  t.same(claim(1_005, 5), { granted: false, freeAt: [1_011, 1_011] })
  t.match(store.claim({ stack: [other], cost: 1, since: 0, ahead: 500 }), { granted: true, slot: { at: 1_011 } })
  t.same(claim(1_005, 15.5), { granted: false, freeAt: [1_011, 1_021] }, 'the latest of all buckets counts')
  t.match(claim(1_005, 16), { granted: true, slot: { at: 1_021 } })
})

t.test('others are told of an upstream only what is new to them', async t => {
  const { time, store } = setUp(0)
  const heard: unknown[] = []
  store.listen(news => void heard.push(news.about === 'upstream' && news.state))
  const tell = (pausedFor: number, rate?: number, rateFor = 0) => store.exchange('a', { pausedFor, rate, rateFor })
  tell(5_000)
  // Another instance has heard of the same pause from the upstream.
  time.runUntil(3)
  tell(5_000)
  store.exchange('a')
  t.same(heard, [{ pausedFor: 5_000, rate: undefined, rateFor: 0 }])
  tell(6_000)
  tell(0, 0.1, 1_000)
  tell(0, 0.1, 900)
  t.equal(heard.length, 3, 'a longer pause, and a rate')
})

t.test('blocks end to the millisecond', async t => {
  for (const [blockFor, end] of [
    [300, 300],
    ['drain', 2_000],
  ] as const) {
    const { time, store } = setUp()
    const stack = [client(5, 10, { blockFor })]
    const ask = (cost: number) => store.admit({ stack, cost, maxWait: Infinity, claim: false })
    ask(10)
    t.same(ask(1), { admitted: false, levels: [10], reason: 'overflow', refusing: [0], retryAfterMs: end })
    time.runUntil(end - 1)
    t.match(ask(0), { admitted: false, reason: 'blocked' })
    time.runUntil(end)
    t.equal(ask(1).admitted, true)
  }
})

t.test('drained instances are forgotten', async t => {
  const { time, store } = setUp()
  for (let key = 0; key < 100_000; key += 1) {
    store.admit({ stack: [client(5, 10, {}, `${key}`)], cost: 1, maxWait: Infinity, claim: true })
    time.runUntil(key + 1)
  }
  t.ok(store.size < 1_000, `${store.size} left`)
  const one = setUp()
  for (let key = 0; key < 1_000; key += 1)
    one.store.claim({ stack: [client(0.001, 10, {}, `${key}`)], cost: 1, since: 0 })
  t.equal(one.store.size, 1_000, 'a slot is kept')
  const blocking = setUp()
  for (let key = 0; key < 1_000; key += 1) {
    const stack = [client(1_000, 10, { blockFor: 60_000 }, `${key}`)]
    for (let count = 0; count < 11; count += 1)
      blocking.store.admit({ stack, cost: 1, maxWait: Infinity, claim: false })
    blocking.time.runUntil(key * 20)
  }
  t.equal(blocking.store.size, 1_000, 'a block is kept')
})

t.test('upstreams without a current state are forgotten', async t => {
  const upstreams = new MemoryUpstreams()
  for (let now = 0; now < 10_000; now += 1) {
    upstreams.exchange(`asked ${now}`, undefined, now)
    upstreams.exchange(`paused ${now}`, { pausedFor: 50, rate: undefined, rateFor: 0 }, now)
  }
  t.ok(upstreams.size < 200, `${upstreams.size} left`)
  const kept = new MemoryUpstreams()
  for (let now = 0; now < 1_000; now += 1) kept.exchange(`${now}`, { pausedFor: 0, rate: 1, rateFor: 5_000 }, now)
  t.equal(kept.size, 1_000, 'what holds is kept')
})

t.test('a clock that goes back counts as if no time had passed', async t => {
  let now = 10_000_000
  const store = createMemoryStore({ clock: { ...createVirtualClock(), now: () => now } })
  const stack = [client(1, 10, { blockFor: 500 })]
  store.admit({ stack, cost: 10, maxWait: Infinity, claim: true })
  t.match(store.admit({ stack, cost: 1, maxWait: Infinity, claim: false }), { reason: 'overflow' })
  now -= 3_600_000
  const back = store.admit({ stack, cost: 0, maxWait: Infinity, claim: false })
  t.match(back, { admitted: false, reason: 'blocked', levels: [10], retryAfterMs: 500 })
  t.same(store.claim({ stack, cost: 1, since: 0 }), { granted: false, freeAt: [now + 10_000] })
  now += 500
  t.match(store.admit({ stack, cost: 0, maxWait: Infinity, claim: false }), { admitted: true, levels: [9.5] })
})

t.test('a heartbeat counts for three seconds', async t => {
  const { time, store } = setUp()
  t.equal(store.beat('a').count, 1)
  time.runUntil(1_000)
  t.equal(store.beat('b').count, 2)
  time.runUntil(3_000)
  t.equal(store.beat('b').count, 2)
  time.runUntil(3_001)
  t.equal(store.beat('b').count, 1)
  store.beat('c')
  store.leave('b')
  store.leave('b')
  t.equal(store.beat('c').count, 1)
  t.equal(store.beat('c').left, 1)
})

const gap = fc.constantFrom(0, 0, 0, 1, 5, 10, 33.25, 200, 5_000)
const cost = fc.constantFrom(1, 1, 1, 2, 0.5, 0.1, 1.7, 1 / 3)
const rate = fc.constantFrom(1, 3, 7, 20, 100, 1_000)

t.test('property: the level is that of a bucket of the core, or what was granted before one request', async () => {
  const steps = fc.array(fc.tuple(gap, cost, fc.constantFrom('admit', 'admit', 'admit', 'claim', 'back')), {
    maxLength: 80,
  })
  const capacity = fc.constantFrom(1, 2, 3.5, 10)
  const property = fc.property(rate, capacity, fc.constantFrom('reject', 'fill'), steps, (r, b, overflow, steps) => {
    const { time, store } = setUp()
    const ref = client(r, b, { overflow: overflow as 'reject' | 'fill' })
    const bucket = new QueuedBucket(ref.limits)
    let now = 0
    let free = -Infinity
    for (const [gap, cost, verb] of steps) {
      now += gap
      time.runUntil(now)
      if (verb === 'claim') {
        const answer = store.claim({ stack: [ref], cost, since: 0 }) as ClaimAnswer
        if (answer.granted) free = Math.max(free, answer.slot.at) + cost / ref.limits.rate
      } else if (verb === 'back') {
        store.giveBack({ stack: [ref], cost })
        const left = Math.max(0, bucket.level(now) - cost)
        bucket.reset(now)
        bucket.fill(left, now)
      } else {
        const answer = store.admit({ stack: [ref], cost, maxWait: Infinity, claim: false })
        const level = bucket.level(now)
        const granted = Math.max(level, (free - now) * ref.limits.rate - cost)
        const fits = granted + cost - b <= 1e-9
        if (fits) bucket.fill(granted - level + cost, now)
        else if (bucket.canEverFit(cost)) {
          if (overflow === 'fill') bucket.fill(granted - level, now)
          bucket.applyOverflowPolicy(now)
        }
        if (answer.admitted !== fits) throw new Error(`at ${now}: ${answer.admitted}, not ${fits}`)
        const wanted = fits ? bucket.level(now) : Math.max(granted, bucket.level(now))
        if (Math.abs(answer.levels[0]! - wanted) > 1e-9)
          throw new Error(`at ${now}: level ${answer.levels[0]}, not ${wanted}`)
      }
    }
  })
  fc.assert(property, { numRuns: runs(500) })
})

t.test('property: no window has more requests than slots', async () => {
  const steps = fc.array(fc.tuple(gap, cost, fc.constantFrom(0, 0, 2, 7, 100), fc.nat(9)), { maxLength: 120 })
  const property = fc.property(rate, rate, steps, (r, all, steps) => {
    const { time, store } = setUp()
    const stack = [client(r, 10), client(all, 10, { name: 'everyone' })]
    const taken: { at: number; cost: number }[] = []
    let now = 0
    for (const [gap, cost, since, back] of steps) {
      now += gap
      time.runUntil(now)
      const answer = store.claim({ stack, cost, since })
      if (!answer.granted) continue
      const { at } = answer.slot
      if (at < now - SLOT_GRACE || at > now + HORIZON.least) throw new Error(`a slot ${at - now} ms ahead`)
      if (back === 0) store.giveBack({ stack, cost: 0, slot: answer.slot, slotCost: cost })
      else taken.push({ at: Math.max(at, now), cost })
    }
    // A request is sent in its slot, or when it learns of it: later by at most the grace.
    for (const { limits } of stack) {
      for (const [first, { at: start }] of taken.entries()) {
        let sum = 0
        let most = 0
        for (const { at, cost } of taken.slice(first)) {
          sum += cost
          most = Math.max(most, cost)
          const bound = limits.rate * (at - start + SLOT_GRACE) + most
          if (sum > bound + 1e-6) throw new Error(`${sum} within ${at - start} ms, ${bound} allowed`)
        }
      }
    }
  })
  fc.assert(property, { numRuns: runs(500) })
})

/**
 * Each claim is of an instance at its own distance. Each slot is used at any moment that is allowed, or given back where there
 * is no burst.
 */
t.test('property: slots that are used before their time never let more pass than the bound', async () => {
  const step = fc.record({
    gap: fc.constantFrom(0, 0, 1, 5, 20, 60),
    cost: fc.constantFrom(0.5, 1, 1, 2),
    since: fc.constantFrom(0, 0, 3, 100),
    roundTrip: fc.constantFrom(0, 8, 30, 100),
    use: fc.constantFrom(0, 0, 0.5, 1),
    late: fc.constantFrom(0, 0, 0, 4, SLOT_GRACE),
    givenBack: fc.nat(7),
  })
  const property = fc.property(fc.constantFrom(undefined, 2, 4), fc.array(step, { maxLength: 80 }), (burst, steps) => {
    const time = createVirtualClock()
    const reach = { ...FAR }
    const store = createMemoryStore({ clock: time, reach })
    const stack = [client(50, 100, burst === undefined ? {} : { burst }), client(100, 100, { name: 'everyone' })]
    const sent: { at: number; cost: number }[] = []
    for (const { gap, cost, since, roundTrip, use, late, givenBack } of steps) {
      time.runUntil(time.now() + gap)
      reach.horizon = Math.max(HORIZON.least, 2.5 * roundTrip)
      reach.back = longestBackDate(roundTrip)
      const answer = store.claim({ stack, cost, since })
      if (!answer.granted) continue
      const { slot } = answer
      if (givenBack === 0 && burst === undefined)
        time.at(time.now() + roundTrip, () => store.giveBack({ stack, cost: 0, slot, slotCost: cost }))
      else sent.push({ at: slot.from + use * (slot.at - slot.from) + late, cost })
    }
    sent.sort((one, other) => one.at - other.at)
    for (const { limits } of stack) {
      for (const [first, { at: start }] of sent.entries()) {
        let sum = 0
        for (const { at, cost } of sent.slice(first)) {
          sum += cost
          const bound = limits.rate * (at - start + SLOT_GRACE) + Math.max(limits.burst ?? 0, 2)
          if (sum > bound + 1e-6) throw new Error(`${sum} within ${at - start} ms, ${bound} allowed`)
        }
      }
    }
  })
  fc.assert(property, { seed: 9, numRuns: runs(2_000) })
})
