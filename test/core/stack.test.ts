import fc from 'fast-check'
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import {
  Gate,
  type Lane,
  type LaneRoute,
  type SharedBucket,
  type ShareNode,
  Ticket,
} from '../../src/core/queue/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import { type Arrival, burst, limits, random, run, slots } from './run.js'

const CLIENT = limits(100, 1_000)
const EVERYONE = limits(10, 1_000, 'everyone')

function of(client: string, arrivals: Arrival[], cost = 1): Arrival[] {
  return arrivals.map(arrival => ({ ...arrival, keys: [client, 'all'], cost }))
}

function clients(released: { arrival: Arrival }[]): string {
  return released.map(({ arrival }) => arrival.keys![0]).join('')
}

/** A shaper to drive by hand. */
interface Bench {
  clock: VirtualClock
  shaper: Shaper
  log: string[]
  route(name: string, gate?: Gate): LaneRoute
  bucket(perSecond: number, capacity?: number, name?: string): SharedBucket
  send(name: string, route: LaneRoute, stack: SharedBucket[], options?: { cost?: number; maxWait?: number }): Verdict
}

function bench(): Bench {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const log: string[] = []
  return {
    clock,
    shaper,
    log,
    route: (name, gate = new Gate()) => ({ name, gate }),
    bucket: (perSecond, capacity = 1_000, name = 'client') =>
      new QueuedBucket<ShareNode, Lane>(limits(perSecond, capacity, name)),
    send(name, route, stack, { cost = 1, maxWait } = {}) {
      const release = (slot: number, now: number): void => {
        log.push(slot === now ? `${name}@${now}` : `${name}@${now} for ${slot}`)
      }
      const expire = (now: number): void => {
        log.push(`${name} expired@${now}`)
      }
      const verdict = shaper.admit({ route, stack, cost }, { release, expire, reject() {} }, maxWait)
      if (verdict === 'released') release(clock.now(), clock.now())
      return verdict
    },
  }
}

t.test('two clients that saturate a shared bucket alternate, exactly 1 / r apart', async t => {
  const outcome = run([CLIENT, EVERYONE], [...of('a', burst(20)), ...of('b', burst(20))])
  t.same(
    slots(outcome),
    Array.from({ length: 40 }, (_, index) => 100 * index),
  )
  t.match(clients(outcome.released), /^a?(?:ab){19}b?|^a?(?:ba){19}b?/)
})

t.test('a flood delays another client by at most one request', async t => {
  const flood = of('a', burst(500))
  const { outcomes } = run([CLIENT, EVERYONE], [...flood, ...of('b', burst(10, 1_000, 1_050))])
  const waits = outcomes.slice(500).map(({ slot, arrival }) => Math.round(slot! - arrival.at))
  t.ok(Math.max(...waits) <= 150, `${waits}`)
})

t.test('shares are by cost, not by number of requests', async t => {
  const { released } = run([limits(1e4, 1e4), EVERYONE], [...of('a', burst(30), 4), ...of('b', burst(300), 1)])
  const sum = { a: 0, b: 0 } as Record<string, number>
  for (const { arrival } of released) {
    sum[arrival.keys![0]!]! += arrival.cost!
    if (sum.a! + sum.b! > 200) break
  }
  t.ok(Math.abs(sum.a! - sum.b!) <= 8, JSON.stringify(sum))
})

t.test('property: the shared bucket is never idle while a request could leave', async () => {
  const cost = fc.constantFrom(1, 2, 0.5, 0.1)
  const sent = fc.record({ gap: fc.constantFrom(0, 0, 10, 30, 100), key: fc.constantFrom('a', 'b', 'c', 'd'), cost })
  fc.assert(
    fc.property(fc.array(sent, { minLength: 1, maxLength: 60, size: 'max' }), gaps => {
      let at = 0
      const arrivals = gaps.map(({ gap, key, cost }) => {
        at += gap
        return { at, keys: [key, 'all'], cost }
      })
      // The clients' own buckets are so fast that only the shared one delays requests.
      const { released, outcomes } = run([limits(1e6, 1e6), limits(10, 1e6, 'everyone')], arrivals)
      if (released.length !== arrivals.length) return false
      for (const [index, { slot, arrival }] of released.entries()) {
        const next = released[index + 1]
        if (next === undefined) continue
        const free = slot! + arrival.cost! / 0.01
        const waiting = outcomes.filter(other => other.arrival.at <= free && other.slot! > slot!)
        const earliest = waiting.length > 0 ? free : next.arrival.at
        if (Math.abs(next.slot! - earliest) > 1e-6 + 2e-3) return false
      }
      return true
    }),
    { seed: 31, numRuns: runs(300) },
  )
})

t.test('a request that waits on its own bucket counts in the shared one', async t => {
  const stack = [limits(1, 10), limits(100, 10, 'everyone')]
  const { outcomes } = run(stack, [...of('a', burst(10)), ...of('b', burst(2, 0, 500))])
  t.same(
    outcomes.slice(10).map(({ verdict, rejection }) => [verdict, rejection?.buckets[0]?.limits.name]),
    [
      ['released', undefined],
      ['rejected', 'everyone'],
    ],
    'nine of a are still there: one of b fits',
  )
})

t.test('a cost above the capacity of one bucket names that bucket, and leaves the others alone', async t => {
  const { clock, shaper, send, route, bucket } = bench()
  const [own, all] = [bucket(5, 3), bucket(100, 10, 'everyone')]
  const api = route('api')
  send('a', api, [own, all], { cost: 3 })
  const verdict = send('b', api, [own, all], { cost: 4 }) as Rejection
  t.match(verdict, { reason: 'too-costly', retryAfterMs: undefined })
  t.same(verdict.buckets, [own])
  t.same([own.level(0), all.level(0), shaper.queued, clock.now()], [3, 3, 0, 0])
})

t.test('a gate lets requests through up to its limit, and in order', async t => {
  const { clock, shaper, log, send, route, bucket } = bench()
  const gate = new Gate(2)
  const own = bucket(100)
  const api = route('api', gate)
  for (const name of ['a', 'b', 'c', 'd', 'e']) send(name, api, [own])
  clock.runUntil(500)
  t.same(log, ['a@0', 'b@10'])
  t.same([gate.open, gate.inFlight, gate.awaited, shaper.queued], [false, 2, true, 3])
  gate.leave()
  shaper.wake(gate)
  t.same(log.slice(2), ['c@500'], 'the slot is the opening')
  gate.leave()
  gate.leave()
  shaper.wake(gate)
  t.same(log.slice(3), [], 'the bucket is not free yet')
  clock.runAll()
  t.same(log.slice(3), ['d@510', 'e@520'])
  t.equal(gate.awaited, false)
})

t.test('property: a gate never exceeds its limit, and stays busy', async () => {
  const options = fc.record({
    maxInFlight: fc.integer({ min: 1, max: 4 }),
    service: fc.constantFrom(1, 30, 100, 250),
    seed: fc.integer(),
  })
  fc.assert(
    fc.property(options, ({ maxInFlight, service, seed }) => {
      const next = random(seed)
      const arrivals = Array.from({ length: 60 }, () => ({
        at: Math.floor(next() * 20) * 50,
        keys: ['abc'[Math.floor(next() * 3)]!, 'all'],
        cost: next() < 0.5 ? 1 : 2,
      })).sort((x, y) => x.at - y.at)
      const { released } = run([limits(50, 1e3), limits(80, 1e3, 'everyone')], arrivals, { maxInFlight, service })
      if (released.length !== 60) return false
      return released.every(({ releasedAt }) => {
        const inFlight = released.filter(
          other => other.releasedAt! <= releasedAt! && other.releasedAt! + service > releasedAt! + 1e-9,
        )
        return inFlight.length <= maxInFlight
      })
    }),
    { seed: 32, numRuns: runs(300) },
  )
})

t.test('maxWait ends behind a closed gate', async t => {
  const { clock, shaper, log, send, route, bucket } = bench()
  const api = route('api', new Gate(1))
  const own = bucket(10)
  send('a', api, [own], { maxWait: 1_000 })
  const b = send('b', api, [own], { maxWait: 1_000 }) as Ticket
  clock.runUntil(300)
  send('c', api, [own], { maxWait: 1_000 })
  send('d', api, [own])
  clock.runUntil(999.9)
  t.equal(shaper.queued, 3)
  clock.runUntil(1_000)
  t.same([shaper.queued, own.level(1_000), own.waiting], [2, 2, 2])
  t.equal(shaper.cancel(b), false, 'it is over')
  t.throws(() => shaper.giveBack(b))
  clock.runUntil(1_300)
  api.gate.leave()
  shaper.wake(api.gate)
  clock.runAll()
  t.same(log, ['a@0', 'b expired@1000', 'c expired@1300', 'd@1300'])
  t.equal(shaper.queued, 0)
})

t.test('a request that has left does not expire', async t => {
  const { clock, shaper, log, send, route, bucket } = bench()
  const [api, own] = [route('api'), bucket(10)]
  send('a', api, [own], { maxWait: 150 })
  send('b', api, [own], { maxWait: 150 })
  const c = send('c', api, [bucket(1)], { maxWait: 100 })
  t.equal(c, 'released')
  clock.runUntil(50)
  const d = send('d', api, [own], { maxWait: 170 }) as Ticket
  shaper.cancel(d)
  clock.runAll()
  t.same(log, ['a@0', 'c@0', 'b@100'])
})

t.test('the predicted wait is the longest of the stack', async t => {
  const { send, route, bucket } = bench()
  const [api, own, all] = [route('api'), bucket(10), bucket(4, 1_000, 'everyone')]
  send('a', api, [own, all])
  send('b', api, [own, all])
  const verdict = send('c', api, [own, all], { maxWait: 499 }) as Rejection
  t.equal(verdict.reason, 'max-wait')
  t.ok(Math.abs(verdict.retryAfterMs! - 1) < 1e-5)
  t.same(verdict.buckets, [all])
  t.ok(send('d', api, [own, all], { maxWait: 500 }) instanceof Ticket)
})

t.test('giveBack: the slot is free again in every bucket in which it was the last', async t => {
  const { clock, shaper, log, send, route, bucket } = bench()
  const [api, a, b, all] = [route('api'), bucket(5), bucket(5), bucket(10, 1_000, 'everyone')]
  for (const name of ['a1', 'a2', 'a3']) send(name, api, [a, all])
  const b1 = send('b1', api, [b, all]) as Ticket
  send('b2', api, [b, all])
  clock.runUntil(120)
  t.same(log, ['a1@0', 'b1@100'])
  shaper.giveBack(b1)
  t.same(log.slice(2), ['b2@120 for 100'])
  clock.runAll()
  t.same(log.slice(3), ['a2@200', 'a3@400'])
})

t.test('giveBack: behind a gate', async t => {
  const { clock, shaper, log, send, route, bucket } = bench()
  const api = route('api', new Gate(2))
  const own = bucket(10)
  const [, b] = ['a', 'b', 'c', 'd'].map(name => send(name, api, [own]))
  clock.runUntil(130)
  api.gate.leave()
  shaper.wake(api.gate)
  shaper.giveBack(b as Ticket)
  clock.runAll()
  t.same(log, ['a@0', 'b@100', 'c@130 for 100'])
})

t.test('meter and shape on one bucket', async t => {
  const { clock, shaper, log, send, route, bucket } = bench()
  const [api, own] = [route('api'), bucket(10, 5)]
  const meter = (): 'released' | Rejection => shaper.meter({ route: api, stack: [own], cost: 1 })
  t.equal(meter(), 'released')
  t.equal(own.level(0), 1)
  t.ok(send('a', api, [own]) instanceof Ticket, 'a metered request holds the bucket too')
  t.equal(meter(), 'released')
  t.equal(meter(), 'released')
  t.ok(send('b', api, [own]) instanceof Ticket)
  t.equal(own.level(0), 5)
  t.match(meter(), { reason: 'overflow', retryAfterMs: 100 })
  t.match(send('c', api, [own]), { reason: 'overflow', retryAfterMs: 100 })
  clock.runUntil(100)
  t.equal(meter(), 'released')
  clock.runAll()
  t.same(log, ['a@100', 'b@400'], 'the first request waits for earlier metered requests, not for later ones')
})

t.test('a metered stack fills all of its buckets or none', async t => {
  const { shaper, route, bucket } = bench()
  const [api, own, all] = [route('api'), bucket(10, 2), bucket(10, 3, 'everyone')]
  const meter = (stack: SharedBucket[], cost = 1): 'released' | Rejection => shaper.meter({ route: api, stack, cost })
  t.equal(meter([own, all]), 'released')
  t.equal(meter([all]), 'released')
  t.match(meter([own, all], 2), { reason: 'overflow', buckets: [own, all] })
  t.same([own.level(0), all.level(0)], [1, 2])
  t.equal(meter([own, all]), 'released')
  t.same([own.level(0), all.level(0)], [2, 3])
})

t.test('routes with the same buckets have separate lanes and share', async t => {
  const outcome = run(
    [limits(10, 100)],
    [
      ...burst(20).map(arrival => ({ ...arrival, route: 'x' })),
      ...burst(5).map(arrival => ({ ...arrival, route: 'y' })),
    ],
  )
  const order = outcome.released.map(({ arrival }) => arrival.route).join('')
  t.match(order, /^x(?:(?:xy){5}|(?:yx){5})x{14}$/)
})

t.test('a client has the weight of its waiting lanes, not of those that have left', async t => {
  const arrivals = [
    ...of('a', burst(30)).map(arrival => ({ ...arrival, route: 'x' })),
    ...of('a', burst(3)).map(arrival => ({ ...arrival, route: 'y' })),
    ...of('b', burst(20)).map(arrival => ({ ...arrival, route: 'x' })),
  ]
  const order = clients(run([CLIENT, EVERYONE], arrivals).released)
  t.match(order, /^a?(?:aab|aba|baa){3}/, 'two of three while a has two lanes')
  t.match(order.slice(14, 34), /^(?:(?:ab)+|(?:ba)+)$/, 'then one of two')
})

t.test('a metered decision sees past slots, although their wake-up is late', async t => {
  const clock = createVirtualClock({ lateness: () => 100 })
  const shaper = new Shaper({ clock })
  const stack: SharedBucket[] = [new QueuedBucket<ShareNode, Lane>(limits(5, 2))]
  const route = { name: 'api', gate: new Gate() }
  const released: number[] = []
  const waiter = { release: (slot: number) => released.push(slot), expire() {}, reject() {} }
  shaper.admit({ route, stack, cost: 1 }, waiter)
  shaper.admit({ route, stack, cost: 1 }, waiter)
  clock.runUntil(250)
  t.same(released, [])
  t.equal(shaper.meter({ route, stack, cost: 1.2 }), 'released', 'the level is 0.75, not 1')
  t.same(released, [200])
})

t.test('a bucket that is shared by routes to two upstreams is fair', async t => {
  const { clock, log, send, route, bucket } = bench()
  const [x, y, own] = [route('x'), route('y'), bucket(10)]
  for (let sent = 0; sent < 20; sent += 1) {
    send('x', x, [own])
    send('y', y, [own])
  }
  clock.runAll()
  const first = log.slice(0, 20).map(line => line[0])
  t.ok(first.filter(name => name === 'x').length >= 8, first.join(''))
  t.ok(first.filter(name => name === 'y').length >= 8, first.join(''))
})

t.test('clients of two upstreams share a bucket fairly', async t => {
  for (const floodFirst of [true, false]) {
    const { clock, log, send, route, bucket } = bench()
    const [x, y, all] = [route('x'), route('y'), bucket(10, 1_000, 'everyone')]
    const [alice, bob] = [bucket(100), bucket(100)]
    const flood = (): void => {
      for (let sent = 0; sent < 100; sent += 1) send('flood', x, [alice, all])
    }
    if (floodFirst) flood()
    for (let sent = 0; sent < 5; sent += 1) send('bob', y, [bob, all])
    if (!floodFirst) flood()
    clock.runAll()
    const last = log.map(line => line.slice(0, 3)).lastIndexOf('bob')
    t.ok(last <= 12, `${floodFirst ? 'after' : 'before'} the flood: the last of five leaves as number ${last}`)
  }
})

t.test('later metered requests do not delay a shaped one', async t => {
  const { clock, shaper, log, send, route, bucket } = bench()
  const [api, own] = [route('api'), bucket(10, 5)]
  t.equal(shaper.meter({ route: api, stack: [own], cost: 1 }), 'released')
  send('a', api, [own])
  for (let at = 50; at <= 5_000; at += 100) {
    clock.runUntil(at)
    shaper.meter({ route: api, stack: [own], cost: 1 })
  }
  clock.runAll()
  t.same(log, ['a@100'])
})

t.test('a lane that comes again and again has its turn after those that wait before another gate', async t => {
  const { clock, log, route, bucket, send } = bench()
  const stack = [bucket(10)]
  const [x, y] = [route('x'), route('y')]
  for (let count = 0; count < 4; count += 1) send('x', x, stack)
  for (let count = 0; count < 6; count += 1) {
    clock.runUntil(50 + 100 * count)
    send('y', y, stack)
  }
  clock.runUntil(10_000)
  t.same(
    log.map(line => line.charAt(0)),
    ['x', 'x', 'y', 'x', 'y', 'x', 'y', 'y', 'y', 'y'],
  )
})
