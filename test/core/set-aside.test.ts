/** Requests that cannot be sent at their turn: they are passed over until they can. */

import fc from 'fast-check'
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { Gate, type Lane, type Source } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { often, runs } from '../runs.js'
import { type Arrival, limits, type Outcome, type Run, random, run, slots } from './run.js'

const EPSILON = 1e-6

/** One client's requests at these times, ready at those. */
function requests(...times: readonly (readonly [at: number, readyAt?: number])[]): Arrival[] {
  return times.map(([at, readyAt]) => ({ at, ...(readyAt !== undefined && { readyAt }) }))
}

/** Which requests left, in order. */
function order({ released, outcomes }: Run): number[] {
  return released.map(outcome => outcomes.indexOf(outcome))
}

t.test('one that is not ready at its turn is passed over: those behind it leave in its slot', async t => {
  const shaped = run([limits(1, 10)], requests([0], [1, 5_500], [2], [3], [4]))
  t.same(order(shaped), [0, 2, 3, 4, 1])
  t.same(slots(shaped), [0, 1_000, 2_000, 3_000, 5_500], 'no slot is lost, and it leaves as soon as it is ready')
})

t.test('it leaves before those that wait when it is ready', async t => {
  const shaped = run([limits(1, 10)], requests([0], [1, 2_500], [2], [3], [4], [5]))
  t.same(order(shaped), [0, 2, 3, 1, 4, 5])
  t.same(slots(shaped), [0, 1_000, 2_000, 3_000, 4_000, 5_000])
})

t.test('one that has passed at once gives its slot back, too', async t => {
  const shaped = run([limits(1, 10)], requests([0.5, 2_250], [1]))
  t.same(order(shaped), [1, 0])
  t.same(slots(shaped), [1, 2_250])
})

t.test('its slot is free again however long the decision took', async t => {
  let now = 0
  const shaper = new Shaper({ clock: { now: () => (now += 0.001), at: () => () => false } })
  const route = { name: 'route', gate: new Gate() }
  const bucket = new QueuedBucket<Source, Lane>(limits(1, 10))
  const request = { route, stack: [bucket], cost: 1 }
  const waiter = { release: () => undefined, expire: () => undefined, reject: () => undefined }
  t.equal(shaper.admit(request, waiter), 'released')
  shaper.setAside(request, waiter, undefined, 0)
  t.equal(shaper.admit(request, waiter), 'released', 'the next one passes at once')
})

t.test('several leave in the order of their arrival, whichever is ready first', async t => {
  const shaped = run([limits(1, 10)], requests([0], [1, 5_100], [2, 5_050], [3, 5_070], [4.5], [5_000]))
  t.same(order(shaped), [0, 4, 5, 1, 2, 3])
  t.same(slots(shaped), [0, 1_000, 5_000, 6_000, 7_000, 8_000])
})

t.test('it goes on counting: the capacity holds, and the Retry-After is finite and enough', async t => {
  const arrivals = requests([0], [1, 9_500], [2, 9_500], [3, 9_500], [5_000])
  const shaped = run([limits(1, 3)], arrivals)
  t.same(
    shaped.outcomes.map(({ verdict }) => verdict),
    ['released', 'queued', 'queued', 'rejected', 'released'],
    'at 3 there is one in the bucket that has passed, and two that wait',
  )
  const full = run([limits(1, 3)], [...requests([0, 9_500], [1, 9_500], [2, 9_500]), ...requests([5_000], [5_001])])
  const [, , , first, second] = full.outcomes
  t.same([first!.verdict, second!.verdict], ['rejected', 'rejected'], 'three are set aside')
  t.equal(first!.rejection!.retryAfterMs, 1_000)
  t.equal(first!.rejection!.reason, 'overflow')
})

t.test('Retry-After is exact if they become ready at once', async t => {
  for (const later of [999, 1_000]) {
    const arrivals = requests([0, 5_000], [1, 5_000], [2, 5_000], [5_000], [5_000 + later])
    const { outcomes } = run([limits(1, 3)], arrivals)
    t.equal(outcomes[3]!.rejection!.retryAfterMs, 1_000)
    t.equal(outcomes[4]!.verdict, later === 1_000 ? 'queued' : 'rejected')
  }
})

t.test('it holds no place in flight', async t => {
  const shaped = run([limits(100, 10)], requests([0, 4_000], [0, 4_000], [0, 4_000], [1], [2], [3]), {
    maxInFlight: 1,
    service: 100,
  })
  t.same(order(shaped).slice(0, 3), [3, 4, 5])
  t.same(slots(shaped).slice(0, 3), [1, 101, 201])
})

t.test('a hang-up while it is aside: its cost leaves the buckets', async t => {
  const arrivals: Arrival[] = [{ at: 0 }, { at: 1, readyAt: 9_000, cancelAt: 3_000 }, { at: 2_999 }, { at: 3_001 }]
  const { outcomes, shaper, bucketTable } = run([limits(1, 1), limits(1, 1, 'everyone')], arrivals)
  t.same(
    outcomes.map(({ verdict, cancelled }) => (cancelled ? 'cancelled' : verdict)),
    ['released', 'rejected', 'released', 'rejected'],
  )
  const wider = run([limits(1, 2), limits(1, 2, 'everyone')], arrivals)
  t.equal(wider.outcomes[1]!.cancelled, true)
  t.ok([...wider.bucketTable.all()].every(bucket => bucket.isPlain && bucket.aside === 0))
  t.same([shaper.queued, wider.shaper.queued], [0, 0])
  t.ok([...bucketTable.all()].every(bucket => bucket.isPlain))
})

t.test('its maxWait counts anew when it comes back', async t => {
  const late = run([limits(1, 10)], requests([0], [0, 60_000], [59_500]), { maxWait: 2_000 })
  t.same(slots(late), [0, 59_500, 60_500], 'its turn came in time')
  // The place in flight is taken for long.
  const busy = run([limits(1, 10)], requests([0, 5_000], [4_999]), { maxWait: 2_000, maxInFlight: 1, service: 60_000 })
  t.same(
    busy.outcomes.map(({ expired }) => expired),
    [true, undefined],
  )
  t.equal(busy.end, 4_999 + 60_000)
})

t.test('those that have passed at once count for maxQueued as others do', async t => {
  const arrivals = Array.from({ length: 6 }, (_, index) => ({ at: index * 10, keys: [`${index}`], readyAt: 5_000 }))
  const { outcomes, shaper, gate, bucketTable, released } = run([limits(1, 10)], arrivals, { maxQueued: 4 })
  t.same(
    outcomes.map(({ verdict, rejection }) => rejection?.reason ?? verdict),
    ['queued', 'queued', 'queued', 'queued', 'crowded', 'crowded'],
  )
  t.equal(released.length, 4)
  t.equal(shaper.queued, 0)
  t.equal(gate.inFlight, 4, 'those that were released, and no other')
  t.ok([...bucketTable.all()].every(bucket => bucket.waiting === 0 && bucket.level(1e6) === 0))
  t.equal(bucketTable.find(limits(1, 10), '5', 60)!.level(60), 0, 'one that is rejected takes nothing of its bucket')
})

t.test('overflow "fair" takes from it as from those that are queued', async t => {
  const everyone = { ...limits(1, 6, 'everyone'), overflow: 'fair' as const }
  const stack = [limits(100, 100), everyone]
  const by = (key: string, at: number, readyAt?: number): Arrival => ({
    at,
    keys: [key, 'all'],
    ...(readyAt !== undefined && { readyAt }),
  })
  const flood = Array.from({ length: 6 }, (_, index) => by('flood', index, 90_000))
  const { outcomes } = run(stack, [...flood, by('b', 10), by('b', 11), by('c', 12), by('flood', 13, 90_000)])
  t.same(
    outcomes.map(({ displaced, verdict }) => (displaced ? 'displaced' : verdict)),
    ['queued', 'queued', 'queued', 'displaced', 'displaced', 'displaced', 'released', 'queued', 'queued', 'rejected'],
    'the newest ones make room for newcomers, and their key gets no more of it',
  )
})

/** What one lane with one bucket does: the first that is ready leaves when the bucket is free. */
function model(
  { rate, capacity }: { rate: number; capacity: number },
  arrivals: readonly Arrival[],
): (number | null)[] {
  const left: (number | null | undefined)[] = arrivals.map(() => undefined)
  let free = 0
  let held = 0
  let heldAt = 0
  const waiting: number[] = []
  const hold = (now: number): number => Math.max(0, held - (now - heldAt) * rate)
  /** Lets leave who can, up to a time. */
  const advance = (until: number): void => {
    for (;;) {
      let best: { at: number; index: number } | undefined
      for (const index of waiting) {
        const { at, readyAt = at } = arrivals[index]!
        const possible = Math.max(free, readyAt, at)
        // Of those that can leave at the same time the oldest does.
        if (best === undefined || possible < best.at - EPSILON) best = { at: possible, index }
      }
      if (best === undefined || best.at > until + EPSILON) return
      const cost = arrivals[best.index]!.cost!
      waiting.splice(waiting.indexOf(best.index), 1)
      left[best.index] = best.at
      held = cost
      heldAt = best.at
      free = best.at + cost / rate
    }
  }
  for (const [index, { at, cost }] of arrivals.entries()) {
    advance(at)
    const queued = waiting.reduce((sum, each) => sum + arrivals[each]!.cost!, 0)
    if (hold(at) + queued + cost! > capacity + 1e-9) left[index] = null
    else waiting.push(index)
  }
  advance(Infinity)
  return left as (number | null)[]
}

t.test('property: one lane does what a simple model does', async t => {
  const one = fc.record({
    gap: fc.constantFrom(0.5, 1, 10.25, 50, 333.25, 1_000),
    cost: fc.constantFrom(1, 1, 2, 0.5, 1.7),
    body: fc.option(fc.constantFrom(0.125, 5.125, 100.125, 1_000.125, 5_000.125), { freq: 2 }),
  })
  let aside = 0
  fc.assert(
    fc.property(
      fc.constantFrom(1, 5, 20, 100),
      fc.constantFrom(2, 5, 10),
      fc.array(one, { minLength: 1, maxLength: 40, size: 'max' }),
      (rate, capacity, gaps) => {
        let at = 0
        const arrivals = gaps.map(({ gap, cost, body }, index) => {
          at += gap
          // Never in the moment of a slot.
          return { at, cost, ...(body !== null && { readyAt: at + body + index / 1_024 }) }
        })
        const bucket = limits(rate, capacity)
        const { outcomes } = run([bucket], arrivals)
        aside += outcomes.filter(({ asideAt }) => asideAt !== undefined).length
        const found = outcomes.map(({ releasedAt }) => releasedAt ?? null)
        const wanted = model(bucket, arrivals)
        return found.every((time, index) => {
          const other = wanted[index]!
          return time === null || other === null ? time === other : Math.abs(time - other) < 1e-3
        })
      },
    ),
    { seed: 21, numRuns: runs(2_000) },
  )
  t.ok(aside > often(5_000), `${aside} were set aside`)
})

t.test('property: in every lane those that are ready leave first in, first out; nobody is forgotten', async t => {
  const one = fc.record({
    gap: fc.constantFrom(0.5, 1, 25, 100, 333.25),
    key: fc.constantFrom('a', 'b', 'c'),
    cost: fc.constantFrom(1, 1, 2, 0.5),
    body: fc.option(fc.constantFrom(10, 300, 2_000), { freq: 2 }),
    hangsUpAfter: fc.option(fc.constantFrom(5, 500, 2_500), { freq: 1 }),
  })
  let overtaken = 0
  fc.assert(
    fc.property(
      fc.array(one, { minLength: 1, maxLength: 60, size: 'max' }),
      fc.integer(),
      fc.constantFrom(Infinity, 1, 3),
      (gaps, seed, maxInFlight) => {
        const next = random(seed)
        let at = 0
        const arrivals = gaps.map(({ gap, key, cost, body, hangsUpAfter }) => {
          at += gap
          return {
            at,
            keys: [key, 'all'],
            cost,
            ...(body !== null && { readyAt: at + body }),
            ...(hangsUpAfter !== null && { cancelAt: at + hangsUpAfter }),
          }
        })
        const stack = [limits(10, 10), limits(20, 20, 'everyone')]
        const shaped = run(stack, arrivals, { lateness: () => next() * 5, maxInFlight, service: 40 })
        const pairs = overtakings(shaped)
        overtaken += pairs.length
        // What was overtaken was not ready, or has hung up since.
        const justified = pairs.every(
          ([{ arrival, cancelled }, { releasedAt }]) => cancelled || arrival.readyAt! > releasedAt! - EPSILON,
        )
        return justified && isOver(shaped)
      },
    ),
    { seed: 22, numRuns: runs(1_000) },
  )
  t.ok(overtaken > often(5_000), `${overtaken} were overtaken`)
})

/** Each request that was overtaken in its lane, and by which. */
function overtakings({ outcomes, released }: Run): [Outcome, Outcome][] {
  return released.flatMap(later => {
    const earlier = outcomes.slice(0, outcomes.indexOf(later))
    return earlier
      .filter(({ arrival, verdict }) => arrival.keys![0] === later.arrival.keys![0] && verdict !== 'rejected')
      .filter(({ releasedAt = Infinity }) => releasedAt > later.releasedAt! + EPSILON)
      .map((one): [Outcome, Outcome] => [one, later])
  })
}

/** Whether each request has ended, and nothing of it is left. */
function isOver({ outcomes, shaper, gate, bucketTable }: Run): boolean {
  const buckets = [...bucketTable.all()]
  return (
    outcomes.every(
      ({ verdict, releasedAt, cancelled }) => verdict === 'rejected' || releasedAt !== undefined || cancelled,
    ) &&
    buckets.every(bucket => bucket.isPlain && bucket.aside === 0) &&
    shaper.queued === 0 &&
    gate.inFlight === 0
  )
}
