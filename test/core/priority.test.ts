import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, graceAt, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { allSources } from '../../src/core/bucket/waiting.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type SharedBucket, type Source, Ticket } from '../../src/core/queue/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import { type Arrival, limits, type Outcome, random, run, worstExcess } from './run.js'

const EPSILON = 1e-6
const AMPLE = limits(1e9, 1e9)

function many(count: number, arrival: Arrival): Arrival[] {
  return Array.from({ length: count }, () => arrival)
}

function prioritiesOf(released: readonly Outcome[]): (number | undefined)[] {
  return released.map(({ arrival }) => arrival.priority)
}

t.test('lower numbers leave first, and within one number in the order of arrival', async t => {
  const arrivals = [7, 3, 0, undefined, 7, 0].map((priority, cost) => ({
    at: 0,
    cost: 1 + cost / 100,
    ...(priority !== undefined && { priority }),
  }))
  const { released } = run([{ ...limits(10, 100), minShare: 0 }], [{ at: 0, cost: 1 }, ...arrivals])
  t.same(
    released.slice(1).map(({ arrival }) => [arrival.priority, arrival.cost]),
    [
      [0, 1.02],
      [0, 1.05],
      [3, 1.01],
      [undefined, 1.03],
      [7, 1],
      [7, 1.04],
    ],
    'no priority is 3',
  )
})

t.test('class 0 waits at most a period under a tenfold flood of class 7', async t => {
  const next = random(7)
  const flood = Array.from(
    { length: 20_000 },
    (_, index): Arrival => ({ at: index, keys: ['flood', 'all'], priority: 7 }),
  )
  const paid: Arrival[] = []
  for (let at = 5; at < 20_000; at += 20 + next() * 50)
    paid.push({ at, keys: [`paid${paid.length % 7}`, 'all'], priority: 0 })
  for (const capacity of [10, 1e6]) {
    const { outcomes } = run([AMPLE, limits(100, capacity, 'everyone')], [...flood, ...paid])
    const waits = outcomes.flatMap(({ arrival, slot }) => (arrival.priority === 0 ? [slot! - arrival.at] : []))
    t.equal(waits.length, paid.length)
    t.ok(
      waits.every(wait => wait <= 10 + EPSILON),
      `capacity ${capacity}: ${Math.max(...waits)} ms`,
    )
    t.ok(
      waits.some(wait => wait > 9),
      'some come just after a release',
    )
  }
})

t.test('the classes behind get minShare of the rate, within 2 %', async t => {
  for (const minShare of [0.01, 0.03, 0.05, 0.3, 0.5]) {
    const all = [...many(10_000, { at: 0, priority: 0 }), ...many(6_000, { at: 0, priority: 7 })]
    const { released } = run([{ ...limits(100, 1e9), minShare }], all)
    const behind = released.slice(0, 10_000).filter(({ arrival }) => arrival.priority === 7).length
    t.ok(Math.abs(behind / 10_000 / minShare - 1) <= 0.02, `${minShare}: ${behind / 10_000}`)
  }
})

t.test('minShare is 0.05 unless the limits say so', async t => {
  const { released } = run(
    [limits(100, 1e9)],
    [...many(100, { at: 0, priority: 0 }), ...many(100, { at: 0, priority: 7 })],
  )
  // The first passes before anybody waits.
  const places = prioritiesOf(released.slice(1, 100)).flatMap((priority, place) => (priority === 7 ? [place + 1] : []))
  t.same(places, [21, 41, 61, 81])
})

t.test('minShare holds for costs that differ', async t => {
  const next = random(3)
  const one = (priority: number, most: number): Arrival => ({ at: 0, priority, cost: 0.1 + next() * most })
  const all = [...Array.from({ length: 8_000 }, () => one(0, 2)), ...Array.from({ length: 2_000 }, () => one(6, 10))]
  const { released } = run([{ ...limits(100, 1e9), minShare: 0.1 }], all)
  const first = released.slice(0, 5_000)
  const sum = (outcomes: Outcome[]): number => outcomes.reduce((cost, { arrival }) => cost + arrival.cost!, 0)
  const share = sum(first.filter(({ arrival }) => arrival.priority === 6)) / sum(first)
  t.ok(Math.abs(share / 0.1 - 1) <= 0.02, `${share}`)
})

t.test(
  'the classes behind share minShare: of them, too, the lower number goes first and owes the rest its part',
  async t => {
    const all = [0, 3, 7].flatMap(priority => many(9_000, { at: 0, priority }))
    const { released } = run([{ ...limits(100, 1e9), minShare: 0.1 }], all)
    const first = prioritiesOf(released.slice(0, 9_000))
    const of = (priority: number): number => first.filter(each => each === priority).length / 9_000
    t.ok(Math.abs(of(0) - 0.9) < 0.001, `${of(0)}`)
    t.ok(Math.abs(of(3) - 0.09) < 0.001, `${of(3)}`)
    t.ok(Math.abs(of(7) - 0.01) < 0.001, `${of(7)}`)
  },
)

t.test('a class that does not wait earns nothing', async t => {
  const { released } = run(
    [limits(100, 1e9)],
    [
      ...many(100, { at: 0, priority: 0 }),
      { at: 505, priority: 7 },
      // It is owed nothing of what the one before had earned.
      { at: 705, priority: 7, cancelAt: 850 },
      { at: 900, priority: 7 },
    ],
  )
  const slots = released.filter(({ arrival }) => arrival.priority === 7).map(({ slot }) => Math.round(slot!))
  t.same(slots, [710, 1010])
})

t.test('minShare counts for each key where a key has requests of two classes', async t => {
  const both = (key: string): Arrival[] =>
    [0, 7].flatMap(priority => many(200, { at: 0, keys: [key, 'all'], priority }))
  const { released } = run(
    [{ ...limits(10, 1e9), minShare: 0.1 }, limits(1_000, 1e9, 'everyone')],
    [...both('a'), ...both('b')],
  )
  for (const key of ['a', 'b']) {
    const own = released.filter(({ arrival }) => arrival.keys![0] === key).slice(0, 102)
    t.equal(own.filter(({ arrival }) => arrival.priority === 7).length, 10, key)
  }
})

t.test('the share of the classes behind is shared by their lanes as before', async t => {
  const all = [
    ...many(3_000, { at: 0, keys: ['a', 'all'], priority: 0 }),
    ...many(100, { at: 0, keys: ['b', 'all'], priority: 7 }),
    ...many(100, { at: 0, keys: ['c', 'all'], priority: 7 }),
  ]
  const { released } = run([AMPLE, limits(100, 1e9, 'everyone')], all)
  const of = (key: string): number => released.slice(0, 2_002).filter(({ arrival }) => arrival.keys![0] === key).length
  t.same([of('b'), of('c')], [50, 50])
})

t.test('a class whose own bucket has to drain holds nobody up', async t => {
  const all = [
    ...many(3, { at: 0, keys: ['a', 'all'], priority: 0 }),
    ...many(20, { at: 0, keys: ['b', 'all'], priority: 7 }),
  ]
  const slow = limits(10, 1e9)
  const { released } = run([slow, limits(100, 1e9, 'everyone')], all)
  const slots = released.map(({ arrival, slot }) => [arrival.keys![0], Math.round(slot!)])
  t.same(slots.slice(0, 5), [
    ['a', 0],
    ['b', 10],
    ['a', 100],
    ['b', 110],
    ['a', 200],
  ])
})

t.test('a bucket with a burst that waits for a costly request lets a lower number go first', async t => {
  const { released } = run(
    [{ ...limits(10, 1e9), burst: 4 }],
    [
      { at: 0, cost: 4, priority: 7 },
      { at: 1, cost: 4, priority: 7 },
      { at: 250, cost: 1, priority: 0 },
      { at: 260, cost: 1, priority: 0 },
    ],
  )
  t.same(
    released.map(({ arrival, slot }) => [arrival.at, Math.round(slot!)]),
    [
      [0, 0],
      [250, 250],
      [260, 260],
      [1, 600],
    ],
  )
})

t.test('with a burst, too, a class behind gets its share, also for costly requests', async t => {
  const busy = Array.from({ length: 4_000 }, (_, index): Arrival => ({ at: index * 10, priority: 0 }))
  const behind = many(100, { at: 0, cost: 3, priority: 7 })
  const { released } = run([{ ...limits(100, 1e9), burst: 4, minShare: 0.05 }], [...busy, ...behind])
  const first = released.filter(({ slot }) => slot! <= 40_000)
  const share = (3 * first.filter(({ arrival }) => arrival.priority === 7).length) / 4_000
  t.ok(Math.abs(share / 0.05 - 1) <= 0.04, `${share}`)
})

interface Sent {
  readonly verdict: Verdict
  readonly releasedAt: number | undefined
  readonly drops: readonly Rejection[]
}

/** A shaper, and what becomes of what is sent through it. */
function bench() {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gate = new Gate()
  const route = { name: 'route', gate }
  const bucket = (own: BucketLimits): SharedBucket => new QueuedBucket<Source, Lane>(own)
  const send = (priority: number, stack: readonly SharedBucket[], options: { cost?: number; to?: Gate } = {}): Sent => {
    const { cost = 1, to } = options
    const drops: Rejection[] = []
    let releasedAt: number | undefined
    const waiter = {
      release: (slot: number) => {
        releasedAt = slot
      },
      expire() {},
      reject: (rejection: Rejection) => drops.push(rejection),
    }
    const via = to === undefined || to === gate ? route : { name: 'other', gate: to }
    const verdict = shaper.admit({ route: via, stack, cost, priority }, waiter)
    if (verdict === 'released') releasedAt = clock.now()
    return {
      verdict,
      drops,
      get releasedAt() {
        return releasedAt
      },
    }
  }
  return { clock, shaper, gate, route, bucket, send }
}

function reasonOf({ verdict }: Sent): string | undefined {
  return verdict === 'released' || verdict instanceof Ticket ? undefined : verdict.reason
}

t.test('a bucket before two upstreams serves the lower number first, whichever its upstream', async t => {
  const { clock, bucket, send } = bench()
  const everyone = bucket(limits(100, 100))
  const other = new Gate()
  send(3, [everyone])
  const late = send(7, [everyone])
  const middle = send(3, [everyone], { to: other })
  const first = send(0, [everyone])
  clock.runAll()
  t.same(
    [first, middle, late].map(({ releasedAt }) => Math.round(releasedAt!)),
    [10, 20, 30],
  )
})

t.test('at a full gate the lower number goes first', async t => {
  const { clock, shaper, gate, bucket, send } = bench()
  gate.maxInFlight = 1
  const [a, b] = [bucket(AMPLE), bucket(AMPLE)]
  send(3, [a!])
  const last = send(7, [a!])
  const first = send(0, [b!])
  shaper.leave(gate, [a!])
  clock.runAll()
  t.ok(first.releasedAt !== undefined && last.releasedAt === undefined)
  shaper.leave(gate, [b!])
  clock.runAll()
  t.ok(last.releasedAt !== undefined)
})

t.test('a request that comes back is the first of its class, not of all', async t => {
  const { clock, shaper, route, bucket, send } = bench()
  const everyone = bucket(limits(100, 100))
  const waiter = { release() {}, expire() {}, reject() {} }
  const arrival = { route, stack: [everyone], cost: 1, priority: 7 }
  send(7, [everyone])
  const first = send(0, [everyone])
  const behind = send(7, [everyone])
  const back = shaper.requeue(arrival, waiter, Infinity, -1)
  clock.runAll()
  t.same(
    [first.releasedAt, back?.slot, behind.releasedAt].map(slot => Math.round(slot!)),
    [10, 20, 30],
  )
})

t.test('a full bucket makes room with the newest requests of the last class', async t => {
  const { clock, bucket, send } = bench()
  const everyone = bucket(limits(100, 6))
  const own = [0, 1, 2].map(() => bucket(AMPLE))
  const stacks = own.map(each => [each, everyone])
  send(3, stacks[0]!)
  const sent = [7, 5, 7, 7, 3].map((priority, index) => {
    clock.runUntil(index / 10)
    return send(priority, stacks[index % 3]!)
  })
  const newcomer = send(3, stacks[1]!, { cost: 2 })
  t.equal(reasonOf(newcomer), undefined)
  t.same(
    sent.map(({ drops }) => drops.length),
    [0, 0, 1, 1, 0],
  )
  for (const { drops } of sent) for (const { reason } of drops) t.equal(reason, 'overflow')
  t.ok(sent[3]!.drops[0]!.retryAfterMs! > 0)
  clock.runAll()
  t.ok(newcomer.releasedAt !== undefined)
})

t.test('a full bucket makes room only for a lower number', async t => {
  const { bucket, send } = bench()
  const everyone = bucket(limits(100, 2))
  const waits = [send(3, [everyone]), send(3, [everyone])]
  t.equal(reasonOf(send(3, [everyone])), 'overflow')
  t.equal(reasonOf(send(7, [everyone])), 'overflow')
  t.ok(waits.every(({ drops }) => drops.length === 0))
})

t.test('requests make room in every full bucket, or in none', async t => {
  const { bucket, send } = bench()
  const tenant = bucket(limits(100, 3, 'tenant'))
  const everyone = bucket(limits(100, 3, 'everyone'))
  const behind = [send(7, [everyone]), send(7, [everyone]), send(7, [everyone])]
  const alike = [send(0, [tenant]), send(0, [tenant]), send(0, [tenant])]
  t.equal(reasonOf(send(0, [tenant, everyone])), 'overflow', 'nobody makes room in the tenant')
  t.ok([...behind, ...alike].every(({ drops }) => drops.length === 0))
})

t.test('after the classes behind a bucket with overflow "fair" goes on with its heaviest lane', async t => {
  const { bucket, send } = bench()
  const everyone = bucket({ ...limits(100, 6), overflow: 'fair' })
  const stacks = [0, 1].map(() => [bucket(AMPLE), everyone])
  send(3, stacks[0]!)
  const sent = [...many(4, { at: 0 }).map(() => send(3, stacks[0]!)), send(7, stacks[0]!)]
  t.equal(reasonOf(send(3, stacks[1]!, { cost: 2 })), undefined)
  t.same(
    sent.map(({ drops }) => drops.length),
    [0, 0, 0, 1, 1],
  )
})

t.test('a predicted wait counts the classes before, and of those behind their share', async t => {
  for (const [priority, expected] of [
    [0, 10],
    [3, 110],
    [7, 210],
  ] as const) {
    for (const [maxWait, admitted] of [
      [expected - 1, false],
      [expected + 1, true],
    ] as const) {
      const { shaper, gate, bucket, send } = bench()
      const stack = [bucket({ ...limits(100, 1e9), minShare: 0 })]
      for (let count = 0; count < 11; count += 1) send(2, stack)
      for (let count = 0; count < 10; count += 1) send(6, stack)
      const waiter = { release() {}, expire() {}, reject() {} }
      const verdict = shaper.admit({ route: { name: 'route', gate }, stack, cost: 1, priority }, waiter, maxWait)
      t.equal(verdict instanceof Ticket, admitted, `class ${priority} and ${maxWait} ms`)
    }
  }
})

t.test('cost and number of the requests that wait are known by class', async t => {
  const { clock, bucket, send } = bench()
  const everyone = bucket(limits(100, 100))
  const stacks = [0, 1].map(() => [bucket(AMPLE), everyone])
  send(3, stacks[0]!)
  for (const stack of stacks) for (const priority of [0, 7]) send(priority, stack, { cost: 1 + priority })
  const sources = (): unknown[] =>
    allSources(everyone)
      .map(({ priority, queued, waiting }) => [priority, queued, waiting])
      .sort()
  t.same(sources(), [
    [0, 2, 2],
    [7, 16, 2],
  ])
  clock.runUntil(15)
  t.same(sources(), [
    [0, 1, 1],
    [7, 16, 2],
  ])
  clock.runAll()
  t.equal(everyone.source, undefined)
})

const gap = fc.constantFrom(0, 0, 0, 1, 10, 25, 50, 100, 333.25)
const anArrival = fc.record({
  gap,
  key: fc.constantFrom('a', 'b', 'c'),
  cost: fc.constantFrom(1, 1, 1, 2, 0.5, 0.1, 1.7),
  priority: fc.constantFrom(0, 0, 3, 6, 7, undefined),
  route: fc.constantFrom('r', 's'),
  hangsUpAfter: fc.option(gap, { freq: 2 }),
  readyAfter: fc.option(gap, { freq: 1 }),
})
const arrivals = fc.array(anArrival, { minLength: 1, maxLength: 60, size: 'max' }).map(gaps => {
  let at = 0
  return gaps.map(({ gap, key, cost, priority, route, hangsUpAfter, readyAfter }): Arrival => {
    at += gap
    return {
      at,
      keys: [key, 'all'],
      cost,
      route,
      ...(priority !== undefined && { priority }),
      ...(hangsUpAfter !== null && { cancelAt: at + hangsUpAfter }),
      ...(readyAfter !== null && { readyAt: at + readyAfter }),
    }
  })
})
const rate = fc.constantFrom(1, 3, 10, 100)
const capacity = fc.constantFrom(2, 5, 10, 1e9)
const minShare = fc.constantFrom(0, 0.05, 0.5)
const overflow = fc.constantFrom('reject' as const, 'fair' as const)
const size = fc.record({ rate, capacity, burst: fc.constantFrom(undefined, undefined, 1, 2, 4.5) })
const stackOfTwo = fc
  .tuple(size, size, fc.record({ minShare, overflow }))
  .map(([own, all, { minShare, overflow }]): [BucketLimits, BucketLimits] => [
    { ...limits(own.rate, own.capacity), minShare, ...burstOf(own) },
    { ...limits(all.rate, all.capacity, 'everyone'), minShare, overflow, ...burstOf(all) },
  ])

function burstOf({ burst }: { burst: number | undefined }): { burst?: number } {
  return burst === undefined ? {} : { burst }
}

function must(condition: boolean, complaint: () => string): void {
  if (!condition) throw new Error(complaint())
}

function classOf({ arrival }: Outcome): number {
  return arrival.priority ?? 3
}

t.test('property: nothing is lost, a class is first in, first out, and buckets keep their bounds', async () => {
  fc.assert(
    fc.property(stackOfTwo, arrivals, (stack, sent) => {
      const { outcomes, released, shaper, gate } = run(stack, sent, {
        check: ({ bucketTable, now }) => {
          for (const name of ['client', 'everyone']) {
            for (const [, bucket] of bucketTable.entries(name)) {
              must(bucket.level(now) <= bucket.limits.capacity + 1e-8, () => `${name}: above its brim`)
            }
          }
        },
      })
      must(
        shaper.queued === 0 && gate.roots.every(({ count, queued, waiting }) => count + queued + waiting === 0),
        () => 'left',
      )
      for (const { slot, cancelled, displaced, verdict } of outcomes) {
        const ends = [slot !== undefined, cancelled === true, displaced === true, verdict === 'rejected' && !displaced]
        must(ends.filter(Boolean).length === 1, () => `ended as ${ends}`)
      }
      const lanes = new Map<string, Outcome>()
      for (const outcome of released) {
        const { arrival, asideAt } = outcome
        if (asideAt !== undefined) continue
        const lane = `${arrival.route} ${arrival.keys![0]} ${classOf(outcome)}`
        const before = lanes.get(lane)
        must(before === undefined || outcomes.indexOf(before) < outcomes.indexOf(outcome), () => 'out of order')
        lanes.set(lane, outcome)
      }
      must(worstExcess(stack[1], released) <= EPSILON, () => 'the bound of everyone')
      for (const key of ['a', 'b', 'c']) {
        const own = released.filter(({ arrival }) => arrival.keys![0] === key)
        must(
          own.length === 0 || worstExcess(stack[0], own, graceAt(stack[0], 0, 2)) <= EPSILON,
          () => `the bound of ${key}`,
        )
      }
    }),
    { seed: 51, numRuns: runs(500) },
  )
})

t.test('property: with a minShare of 0 nothing leaves a bucket before a lower number that waits', async () => {
  fc.assert(
    fc.property(rate, capacity, arrivals, (r, b, sent) => {
      const { outcomes, released } = run(
        [{ ...limits(r, b, 'everyone'), minShare: 0 }],
        sent.map(({ readyAt: _, ...arrival }) => ({ ...arrival, keys: ['all'] })),
      )
      for (const outcome of released) {
        const slot = outcome.slot!
        const passed = outcomes.find(
          other =>
            classOf(other) < classOf(outcome) &&
            other.verdict !== 'rejected' &&
            !other.displaced &&
            other.arrival.at < slot - EPSILON &&
            (other.slot ?? other.arrival.cancelAt ?? -Infinity) > slot + EPSILON,
        )
        must(passed === undefined, () => `class ${classOf(passed!)} was passed at ${slot}`)
      }
    }),
    { seed: 52, numRuns: runs(500) },
  )
})

t.test('property: requests make room only for a lower number, and only if that is admitted', async () => {
  fc.assert(
    fc.property(stackOfTwo, arrivals, (stack, sent) => {
      let before = new Set<Outcome>()
      const plain = stack.map(bucket => ({ ...bucket, overflow: 'reject' as const }))
      run(plain, sent, {
        check: ({ outcomes }) => {
          const displaced = new Set(outcomes.filter(outcome => outcome.displaced))
          const fresh = [...displaced].filter(outcome => !before.has(outcome))
          before = displaced
          if (fresh.length === 0) return
          const newcomer = outcomes.filter(({ verdict }) => verdict !== undefined).at(-1)!
          must(newcomer.verdict !== 'rejected', () => 'in vain')
          must(
            fresh.every(outcome => classOf(outcome) > classOf(newcomer)),
            () => 'for a higher number',
          )
          const waits = outcomes.filter(
            outcome =>
              outcome.verdict === 'queued' &&
              outcome.slot === undefined &&
              !outcome.cancelled &&
              !outcome.displaced &&
              outcome !== newcomer,
          )
          const least = Math.min(...fresh.map(classOf))
          must(
            waits.every(outcome => classOf(outcome) <= least || outcome.arrival.keys![0] !== newcomer.arrival.keys![0]),
            () => 'a class behind it waits on in the same buckets',
          )
        },
      })
    }),
    { seed: 53, numRuns: runs(500) },
  )
})
