import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, graceAt, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import {
  Gate,
  type Lane,
  type LaneRoute,
  type SharedBucket,
  type Source,
  Ticket,
  type Waiter,
} from '../../src/core/queue/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import {
  type Arrival,
  burst,
  bursting,
  limits,
  type Outcome,
  type Run,
  random,
  run,
  slots,
  worstExcess,
} from './run.js'

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
      const arrivals = gaps.map((_, index) => ({
        at: gaps.slice(0, index + 1).reduce<number>((sum, gap) => sum + gap, 0),
      }))
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

t.test('property: what leaves when is the definition, and admission is that of the meter', async () => {
  fc.assert(
    fc.property(one, arrivalsOf({ isSteady: true, keys: ['a'] }), (bucket, arrivals) => {
      const shaped = run([bucket], arrivals)
      const metered = run([bucket], arrivals, { mode: 'meter' })
      if (shaped.admitted.join() !== metered.admitted.join()) return false
      const wanted = model(bucket, shaped.outcomes)
      return shaped.admitted.every((place, index) => Math.abs(shaped.outcomes[place]!.slot! - wanted[index]!) < EPSILON)
    }),
    { seed: 2, numRuns: runs(2_000) },
  )
})

t.test('property: lateness within the grace changes neither verdicts nor slots', async () => {
  fc.assert(
    fc.property(anyStack, arrivalsOf({ isSteady: true }), fc.integer(), ([bucket], arrivals, seed) => {
      const next = random(seed)
      // Before another bucket lateness of both kinds counts against one grace.
      const stack = [bucket!]
      const grace = graceAt(bucket!, 0, 1)
      const onTime = run(stack, arrivals)
      const late = run(stack, arrivals, { lateness: () => next() * grace })
      if (onTime.admitted.join() !== late.admitted.join()) return false
      return onTime.outcomes.every(
        ({ slot }, index) => slot === undefined || Math.abs(slot - late.outcomes[index]!.slot!) < EPSILON,
      )
    }),
    { seed: 3, numRuns: runs(1_000) },
  )
})

t.test(
  'property: never more than r x (W + grace) + max(burst, c), with late wake-ups, bodies and hang-ups',
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
                graceAt(bucket, place, stack.length),
              ) <= EPSILON
            )
          }),
        )
      }),
      { seed: 4, numRuns: runs(3_000) },
    )
  },
)

/** Whether requests of each key and route have left in order. Those that were set aside come later. */
function isInOrder({ outcomes, released }: Run): boolean {
  const last = new Map<string, number>()
  return released.every(outcome => {
    if (outcome.asideAt !== undefined) return true
    const lane = `${outcome.arrival.keys![0]} ${outcome.arrival.route}`
    const before = last.get(lane) ?? -1
    const index = outcomes.indexOf(outcome)
    last.set(lane, index)
    return before < index
  })
}

t.test('property: first in, first out, all leave, and nothing is left behind', async () => {
  const arrivals = arrivalsOf({ routes: ['x', 'y'] })
  const limit = fc.constantFrom(Infinity, 1, 3)
  fc.assert(
    fc.property(anyStack, arrivals, lateness, limit, (stack, arrivals, late, maxInFlight) => {
      const outcome = run(stack, arrivals, { lateness: late, maxInFlight, service: 120 })
      const { shaper, bucketTable, outcomes, end } = outcome
      const buckets = stack.flatMap(({ name }) => [...bucketTable.entries(name)].map(([, bucket]) => bucket))
      const isDone = outcomes.every(
        ({ verdict, slot, cancelled }) => verdict !== 'queued' || slot !== undefined || cancelled,
      )
      const isClean = buckets.every(bucket => bucket.isPlain && bucket.level(end + 1e7) === 0)
      return shaper.queued === 0 && isDone && isClean && isInOrder(outcome)
    }),
    { seed: 5, numRuns: runs(2_000) },
  )
})

/** A shaper to drive by hand. */
function bench(...stack: BucketLimits[]) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const buckets: SharedBucket[] = stack.map(limits => new QueuedBucket<Source, Lane>(limits))
  const route = (name: string): LaneRoute => ({ name, gate: new Gate() })
  /** `name slot`, in order. */
  const left: string[] = []
  function send(name: string, to: LaneRoute, cost = 1, maxWait?: number): Verdict {
    const waiter: Waiter = {
      release: slot => left.push(`${name} ${Math.round(slot * 1e6) / 1e6}`),
      expire: now => left.push(`${name} expired ${now}`),
      reject: () => undefined,
    }
    const verdict = shaper.admit({ route: to, stack: buckets, cost }, waiter, maxWait)
    if (verdict === 'released') left.push(`${name} at once`)
    return verdict
  }
  return { clock, shaper, buckets, route, left, send }
}

t.test('one that leaves the queue makes way for a cheaper one at once', async t => {
  const { clock, shaper, left, route, send, buckets } = bench(bursting(10, 100, 10))
  const to = route('x')
  send('first', to, 10)
  const costly = send('costly', to, 9) as Ticket
  send('cheap', to, 1)
  clock.runUntil(300)
  t.same(left, ['first at once'], 'first in, first out')
  shaper.cancel(costly)
  t.same(left.slice(1), ['cheap 300'])
  t.ok(buckets[0]!.isPlain)

  send('late', to, 10)
  send('next', to, 2)
  clock.runUntil(2_000)
  t.same(left.slice(2), ['late 1100', 'next 1300'], 'the hold of the others counts')
})

t.test('one that goes back to the head of its queue counts with its own cost', async t => {
  const { clock, shaper, left, route, send, buckets } = bench(bursting(10, 100, 2))
  const to = route('x')
  send('first', to, 2)
  send('costly', to, 2)
  clock.runUntil(50)
  const waiter: Waiter = {
    release: slot => left.push(`again ${slot}`),
    expire: () => undefined,
    reject: () => undefined,
  }
  t.ok(shaper.requeue({ route: to, stack: buckets, cost: 0.5 }, waiter, Infinity, 0))
  shaper.wake()
  clock.runUntil(1_000)
  t.same(left, ['first at once', 'again 50', 'costly 250'])
})

t.test('one that gives up makes way, too', async t => {
  const { clock, shaper, left, route, send } = bench(bursting(10, 100, 10))
  const to = route('x')
  send('first', to, 10)
  send('costly', to, 10, 1_000)
  shaper.engine.pause(to.gate, 100)
  send('cheap', to, 1)
  t.equal(left.length, 1)
  // Fills the bucket behind the one that waits, which cannot leave in time then.
  clock.runUntil(1)
  shaper.engine.replan([to.gate], () => 500)
  clock.runUntil(5_000)
  t.same(left, ['first at once', 'costly expired 1', 'cheap 100'])
})

t.test('nobody overtakes because he costs less, whichever way he goes', async t => {
  const { clock, left, route, send } = bench(bursting(10, 100, 10))
  const [x, y] = [route('x'), route('y')]
  send('first', x, 10)
  send('costly', x, 10)
  for (let count = 0; count < 20; count += 1) {
    clock.runUntil(count * 60)
    send(`${count}`, count % 2 === 0 ? x : y, 0.5)
  }
  clock.runUntil(10_000)
  t.same(left.slice(0, 2), ['first at once', 'costly 1000'])
})

t.test('a burst is shared in turns', async t => {
  const everyone = bursting(10, 100, 6, 'everyone')
  const arrivals = ['a', 'b', 'c'].flatMap(key => burst(5).map(each => ({ ...each, keys: [key, 'all'] })))
  const { released } = run([limits(1_000, 100), everyone], arrivals)
  const atOnce = released.filter(({ slot }) => slot! < 5)
  t.equal(atOnce.length, 6)
  t.same(
    ['a', 'b', 'c'].map(key => released.slice(0, 9).filter(({ arrival }) => arrival.keys![0] === key).length),
    [3, 3, 3],
  )
})

t.test('other limits: a burst comes and goes', async t => {
  const { clock, shaper, left, route, send, buckets } = bench(limits(10, 100))
  const to = route('x')
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f']) send(name, to)
  clock.runUntil(150)
  shaper.engine.setLimits(buckets[0]!, bursting(10, 100, 3))
  t.same(left, ['a at once', 'b 100', 'c 150', 'd 150'], 'half of the hold of the second was left')
  clock.runUntil(250)
  t.same(left.slice(4), ['e 200'])
  shaper.engine.setLimits(buckets[0]!, limits(10, 100))
  clock.runUntil(10_000)
  t.same(left.slice(5), ['f 500'], 'what has left has to drain')
})

t.test('a bucket that is emptied lets a whole burst leave', async t => {
  const { clock, shaper, left, route, send, buckets } = bench(bursting(10, 100, 3))
  const to = route('x')
  for (let count = 0; count < 9; count += 1) send('a', to)
  clock.runUntil(50)
  shaper.engine.reset(buckets[0]!)
  t.same(left, ['a at once', 'a at once', 'a at once', 'a 50', 'a 50', 'a 50'])
})

t.test('predicted waits and retries count the burst', async t => {
  const { send, route } = bench(bursting(10, 5, 3))
  const to = route('x')
  for (let count = 0; count < 3; count += 1) t.equal(send('a', to, 1, 0), 'released')
  const early = send('b', to, 1, 99) as Rejection
  t.match(early, { reason: 'max-wait' })
  t.ok(Math.abs(early.retryAfterMs! - 1) < 1e-3, `${early.retryAfterMs}`)
  t.ok(send('b', to, 1, 100) instanceof Ticket)
  t.ok(send('b', to, 1, 200) instanceof Ticket)
  const full = send('b', to) as Rejection
  t.match(full, { reason: 'overflow', retryAfterMs: 100 })
})

t.test('metered costs take room in the level, and do not delay the next that waits', async t => {
  const { clock, shaper, left, route, send, buckets } = bench(bursting(10, 100, 3))
  const to = route('x')
  for (const name of ['a', 'b', 'c', 'd', 'e']) send(name, to)
  clock.runUntil(20)
  t.equal(shaper.meter({ route: to, stack: buckets, cost: 4 }), 'released')
  t.ok(Math.abs(buckets[0]!.level(20) - 8.8) < 1e-9)
  clock.runUntil(1_000)
  t.same(left.slice(3), ['d 100', 'e 600'], 'the second waits for it as without a burst')
})

t.test(
  'requests that wait for their connections: as many as the burst, and it counts from when they are sent',
  async t => {
    const { clock, shaper, left, route, send, buckets } = bench(bursting(10, 100, 3))
    const to = route('x')
    const held = ['a', 'b', 'c'].map(name => {
      send(name, to)
      const request = { route: to, stack: buckets, cost: 1 }
      shaper.engine.hold(request)
      return request
    })
    for (const name of ['d', 'e', 'f', 'g']) send(name, to)
    clock.runUntil(450)
    t.equal(left.length, 3, 'so many may be on their way, and no more')
    for (const request of held) shaper.engine.unhold(request, 'sent')
    clock.runUntil(2_000)
    t.same(left, ['a at once', 'b at once', 'c at once', 'd 450', 'e 550', 'f 650', 'g 750'])
  },
)

/**
 * The rule of a shop API: a bucket of 40 that leaks 2 a second, and 429 for what does not fit. It counts what arrives.
 *
 * @param tolerance ms that a request may come early
 */
function strictBucket(tolerance: number) {
  let level = 0
  let at = 0
  return (now: number): boolean => {
    level = Math.max(0, level - (now - at) * 0.002)
    at = now
    const fits = level + 1 <= 40 + tolerance * 0.002 + 1e-9
    if (fits) level += 1
    return fits
  }
}

for (const [size, tolerance] of [
  [40, 20],
  [39, 0],
] as const) {
  t.test(
    `a strict upstream of 40 at 2/s refuses nothing of a burst of ${size} with ${tolerance} ms of tolerance`,
    t => {
      const next = random(size)
      const arrivals = [...burst(150), ...burst(60, 0, 300_000), ...burst(200, 731, 400_000)]
      const { released } = run([bursting(2, 1_000, size)], arrivals, { lateness: () => next() * 15 })
      const accepts = strictBucket(tolerance)
      t.equal(released.length, 410)
      t.same(
        released.filter(({ releasedAt }) => !accepts(releasedAt!)),
        [],
      )
      t.equal(released.filter(({ releasedAt }) => releasedAt === 0).length, size, 'all of it at once')
      t.equal(released.filter(({ releasedAt }) => releasedAt === 300_000).length, size, 'and again')
      t.end()
    },
  )
}
