/** `maxInFlight` of a bucket: so many requests of one key between their release and the end of their answer. */

import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type LaneRoute, type SharedBucket, Ticket, type Waiter } from '../../src/core/queue/lane.js'
import { Shaper, type Verdict } from '../../src/core/shaper.js'
import type { OnOutage } from '../../src/sharing/shard.js'
import { shareBy } from '../../src/sharing/shared-room.js'
import type { AdmitRequest } from '../../src/sharing/store.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { often, runs } from '../runs.js'
import { shardIn } from '../sharing/shard.js'
import { limits, random } from './run.js'

const EPSILON = 1e-6

interface Arrival {
  readonly at: number
  readonly key: string
  readonly cost: number
  /** ms from its release to the end of its answer. */
  readonly service: number
  readonly mode: 'shape' | 'meter'
  readonly route: 'a' | 'b'
  /** When it hangs up, if it waits still. */
  readonly cancelAt?: number | undefined
  /** It goes back into its queue once, after its answer. */
  readonly isSentAgain: boolean
}

interface World {
  readonly perSecond: number
  /** Of each key. */
  readonly own: number | undefined
  /** Of all keys together. 0: there is no such bucket. */
  readonly everyone: number | undefined
  readonly gate: number
  readonly maxWait: number
  readonly onOutage?: OnOutage
}

interface Result {
  /** By number. */
  readonly ends: Map<number, string>
  /** Numbers and times, in order. */
  readonly released: { id: number; at: number }[]
}

/** Plays arrivals, and checks at each moment what must hold. */
function play(world: World, arrivals: readonly Arrival[], where: 'memory' | 'store', lateness = () => 0): Result {
  const clock = createVirtualClock({ lateness })
  const store = where === 'store' ? createMemoryStore({ clock }) : undefined
  const { onOutage = 'local' } = world
  const shaper = new Shaper({ clock, ...(store && { share: shareBy({ store, clock, onOutage }) }) })
  const shard = shardIn(world.onOutage === undefined ? 'claimed' : 'direct')
  const gate = new Gate(world.gate)
  const routes = { a: { name: 'a', gate }, b: { name: 'b', gate } }
  const buckets = new Map<string, SharedBucket>()
  const find = (limits: BucketLimits, key: string): SharedBucket => {
    const found =
      buckets.get(key) ??
      (store === undefined
        ? new QueuedBucket(limits)
        : new StoredBucket(limits, key, (name, key) => `${name}:${key}`, shard))
    buckets.set(key, found as SharedBucket)
    return found as SharedBucket
  }
  const own = bounded(limits(world.perSecond, 20), world.own)
  const all = bounded(limits(1_000, 100, 'everyone'), world.everyone)
  const stackOf = (key: string): SharedBucket[] => [
    find(own, key),
    ...(world.everyone === 0 ? [] : [find(all, 'everyone')]),
  ]
  const result: Result = { ends: new Map(), released: [] }
  const inFlight = new Map<SharedBucket, number>()
  const tickets = new Map<number, Ticket>()

  function check(): void {
    for (const bucket of buckets.values()) {
      const count = inFlight.get(bucket) ?? 0
      if (world.onOutage !== 'open' && count > (bucket.limits.maxInFlight ?? Infinity))
        throw new Error(`${count} in flight`)
      // It also counts those whose waiters are still to be called, and with a store those that have claimed a slot.
      if (bucket.inFlight < count) throw new Error(`${count} in flight, and the bucket counts ${bucket.inFlight}`)
    }
  }

  function over(id: number, end: string): void {
    if (result.ends.has(id)) throw new Error(`${id} is ${result.ends.get(id)} and ${end}`)
    result.ends.set(id, end)
  }

  function pass(id: number, arrival: Arrival, stack: SharedBucket[], isRepeated: boolean): void {
    result.released.push({ id, at: clock.now() })
    for (const bucket of stack) inFlight.set(bucket, (inFlight.get(bucket) ?? 0) + 1)
    check()
    clock.at(clock.now() + arrival.service, () => {
      const again = arrival.isSentAgain && !isRepeated && arrival.mode === 'shape'
      const { at } = arrival
      const waiter = again ? waiterOf(id, arrival, stack, true) : undefined
      // As a request that goes back: it waits while it is still in flight.
      const ticket = waiter && shaper.requeue(arrivalOf(arrival, stack), waiter, world.maxWait, at)
      if (ticket === undefined) over(id, 'answered')
      else tickets.set(id, ticket)
      for (const bucket of stack) inFlight.set(bucket, inFlight.get(bucket)! - 1)
      shaper.leave(gate, stack)
      if (ticket !== undefined) shaper.wake()
      check()
    })
  }

  function arrivalOf({ route, cost }: Arrival, stack: SharedBucket[]) {
    return { route: routes[route] as LaneRoute, stack, cost }
  }

  function waiterOf(id: number, arrival: Arrival, stack: SharedBucket[], isRepeated: boolean): Waiter {
    return {
      release: () => pass(id, arrival, stack, isRepeated),
      expire: () => over(id, 'expired'),
      reject: () => over(id, 'displaced'),
    }
  }

  function arrive(arrival: Arrival, id: number): void {
    const stack = stackOf(arrival.key)
    const decided = (verdict: Verdict): void => {
      if (verdict instanceof Ticket) tickets.set(id, verdict)
      else if (verdict === 'released') pass(id, arrival, stack, false)
      else {
        if (verdict.reason === 'in-flight' && verdict.buckets.some(bucket => bucket.hasPlace))
          throw new Error('there is room')
        over(id, verdict.reason)
      }
    }
    const waiter = waiterOf(id, arrival, stack, false)
    const asked = arrivalOf(arrival, stack)
    const callbacks = { ...waiter, decided }
    shaper.arrive(asked, callbacks, arrival.mode, world.maxWait)
    check()
  }

  const cancels = arrivals.flatMap(({ cancelAt }, id) => (cancelAt === undefined ? [] : [{ at: cancelAt, id }]))
  const steps = [
    ...arrivals.map((arrival, id) => ({ at: arrival.at, run: () => arrive(arrival, id) })),
    ...cancels.map(({ at, id }) => ({
      at,
      run: () => {
        const ticket = tickets.get(id)
        if (ticket !== undefined && shaper.cancel(ticket)) over(id, 'cancelled')
      },
    })),
  ].sort((one, other) => one.at - other.at)
  for (const { at, run } of steps) {
    clock.runUntil(at)
    run()
  }
  clock.runAll()
  // Nobody is forgotten, and nobody stays.
  const missing = arrivals.flatMap((_, id) => (result.ends.has(id) ? [] : [id]))
  if (missing.length > 0) throw new Error(`${missing} have not ended, ${shaper.queued} wait`)
  if (shaper.queued !== 0 || gate.inFlight !== 0) throw new Error(`${shaper.queued} wait, ${gate.inFlight} in flight`)
  for (const bucket of buckets.values()) {
    if (bucket.inFlight !== 0 || bucket.waiting !== 0) throw new Error(`${bucket.inFlight} in flight for ever`)
  }
  return result
}

function bounded(limits: BucketLimits, maxInFlight: number | undefined): BucketLimits {
  return maxInFlight === undefined || maxInFlight === 0 ? limits : { ...limits, maxInFlight }
}

/** When each request of one key leaves, by number: one bucket, in order, with at most `most` in flight. */
function modelled(arrivals: readonly Arrival[], key: string, { perSecond, own: most }: World): Map<number, number> {
  const slots = new Map<number, number>()
  const ends: number[] = []
  let free = -Infinity
  for (const [id, arrival] of arrivals.entries()) {
    if (arrival.key !== key) continue
    ends.sort((a, b) => b - a)
    // Then fewer than `most` are in flight.
    const slot = Math.max(arrival.at, free, ends[most! - 1] ?? -Infinity)
    slots.set(id, slot)
    free = slot + arrival.cost / (perSecond / 1_000)
    ends.push(slot + arrival.service)
  }
  return slots
}

/** First in, first out in each lane. A request that comes back is before those that came later. */
function inOrder({ released }: Result, arrivals: readonly Arrival[]): void {
  const last = new Map<string, number>()
  for (const { id } of released) {
    const { key, route, isSentAgain, mode } = arrivals[id]!
    if (isSentAgain || mode === 'meter') continue
    const lane = `${key} ${route}`
    if (id < (last.get(lane) ?? -1)) throw new Error(`${id} left after ${last.get(lane)}`)
    last.set(lane, id)
  }
}

const arrivalsOf = (plain: boolean): fc.Arbitrary<Arrival[]> =>
  fc
    .array(
      fc.record({
        gap: fc.constantFrom(0, 0, 1, 10, 40, 100, 333),
        key: fc.constantFrom('alice', 'alice', 'bob'),
        cost: fc.constantFrom(1, 1, 2, 0.5),
        service: fc.constantFrom(0, 1, 20, 100, 250, 1_000),
        mode: plain ? fc.constant('shape' as const) : fc.constantFrom('shape', 'shape', 'shape', 'meter'),
        route: plain ? fc.constant('a' as const) : fc.constantFrom('a', 'a', 'b'),
        stays: fc.option(fc.constantFrom(0, 30, 300), { nil: undefined, freq: plain ? 1e9 : 4 }),
        isSentAgain: plain ? fc.constant(false) : fc.constantFrom(false, false, false, true),
      }),
      { maxLength: 40, size: 'max' },
    )
    .map(all => {
      let at = 0
      return all.map(({ gap, stays, ...rest }) => {
        at += gap
        return { ...rest, at, ...(stays !== undefined && !plain && { cancelAt: at + stays }) } as Arrival
      })
    })

const world: fc.Arbitrary<World> = fc.record({
  perSecond: fc.constantFrom(5, 100, 1_000),
  own: fc.constantFrom(undefined, 1, 1, 2, 3),
  everyone: fc.constantFrom(0, undefined, 1, 2, 4),
  gate: fc.constantFrom(Infinity, Infinity, 1, 3),
  maxWait: fc.constantFrom(Infinity, Infinity, 150),
})

/** Compares with the model. Returns how many waited for others to end. */
function compare(only: World, arrivals: readonly Arrival[]): number {
  const { released, ends } = play(only, arrivals, 'memory')
  const left = new Map(released.map(({ id, at }) => [id, at]))
  const admitted = arrivals.map((arrival, id) => (ends.get(id) === 'answered' ? arrival : { ...arrival, key: '' }))
  let waits = 0
  for (const key of ['alice', 'bob']) {
    const unbounded = modelled(admitted, key, { ...only, own: 1_000 })
    for (const [id, slot] of modelled(admitted, key, only)) {
      if (slot > unbounded.get(id)!) waits += 1
      if (Math.abs(left.get(id)! - slot) > EPSILON) throw new Error(`${id} left at ${left.get(id)}, not at ${slot}`)
    }
  }
  return waits
}

t.test('property: one bucket: each request leaves exactly when the model says', async t => {
  let waits = 0
  fc.assert(
    fc.property(arrivalsOf(true), fc.constantFrom(1, 2, 3), fc.constantFrom(5, 100), (arrivals, own, perSecond) => {
      waits += compare({ perSecond, own, everyone: 0, gate: Infinity, maxWait: Infinity }, arrivals)
    }),
    { seed: 31, numRuns: runs(1_500) },
  )
  t.ok(waits > often(1_000), `${waits} waited for others to end`)
})

for (const where of ['memory', 'store'] as const) {
  t.test(`property: ${where}: never too many in flight, in order, and all end`, async () => {
    fc.assert(
      fc.property(world, arrivalsOf(false), fc.integer(), (world, arrivals, seed) => {
        const next = random(seed)
        for (const lateness of [() => 0, () => (next() < 0.2 ? next() * 40 : next())]) {
          inOrder(play(world, arrivals, where, lateness), arrivals)
        }
      }),
      { numRuns: runs(1_000) },
    )
  })
}

t.test('property: while the store is away and everything is forwarded, what is in flight is counted, too', async () => {
  fc.assert(
    fc.property(world, arrivalsOf(false), (world, arrivals) => {
      play(
        { ...world, onOutage: 'open' },
        arrivals.map(each => ({ ...each, isSentAgain: false })),
        'store',
      )
    }),
    { numRuns: runs(300) },
  )
})

/** One bucket of one request at a time, at 1000/s. */
function bench(maxInFlight = 1) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gate = new Gate()
  const route = { name: 'route', gate }
  const fast = limits(1_000, 10)
  const bucket: SharedBucket = new QueuedBucket(bounded(fast, maxInFlight))
  const log: string[] = []
  const waiter = (name: string): Waiter => ({
    release: (slot, now) => log.push(`${name} ${slot} ${now}`),
    expire() {},
    reject() {},
  })
  const send = (name: string, stack = [bucket]): Verdict => shaper.admit({ route, stack, cost: 1 }, waiter(name))
  return { clock, shaper, gate, route, fast, bucket, log, waiter, send, leave: () => shaper.leave(gate, [bucket]) }
}

t.test('its slot is when the place became free, and the next is counted from it', async t => {
  const { clock, log, send, leave } = bench()
  for (const name of ['a', 'b', 'c']) send(name)
  clock.runUntil(500)
  t.same(log, [])
  leave()
  t.same(log, ['b 500 500'])
  leave()
  t.same(log, ['b 500 500'])
  clock.runUntil(501)
  t.same(log, ['b 500 500', 'c 501 501'])
})

t.test('other keys are not held up by one that waits for a place', async t => {
  const { log, send, clock } = bench()
  const everyone: SharedBucket = new QueuedBucket(limits(1_000, 10, 'everyone'))
  const [alice, bob] = [1, 2].map(() => new QueuedBucket(bounded(limits(1_000, 10), 1)) as SharedBucket)
  for (const name of ['a0', 'a1', 'a2']) send(name, [alice!, everyone])
  for (const name of ['b0', 'b1']) send(name, [bob!, everyone])
  clock.runAll()
  t.same(log, ['b0 1 1'])
})

t.test('meter: the next is rejected, and nothing moves; a full bucket says so first', async t => {
  const { shaper, route, bucket, leave, clock } = bench()
  const meter = (cost = 1) => shaper.meter({ route, stack: [bucket], cost })
  t.equal(meter(), 'released')
  const level = bucket.level(clock.now())
  t.match(meter(), { reason: 'in-flight', buckets: [bucket], retryAfterMs: undefined })
  t.match(meter(10), { reason: 'overflow' })
  t.equal(bucket.level(clock.now()), level)
  leave()
  t.equal(meter(), 'released')
})

t.test('a metered request takes the place of shaped ones', async t => {
  const { shaper, route, bucket, log, send, leave, clock } = bench(2)
  send('a')
  t.equal(shaper.meter({ route, stack: [bucket], cost: 1 }), 'released')
  send('b')
  clock.runUntil(100)
  t.same(log, [])
  leave()
  t.same(log, ['b 100 100'])
})

t.test(
  'a reload: more places are used at once, fewer as soon as they are free, and what was in flight counts',
  async t => {
    const { shaper, bucket, fast, log, send, leave, clock } = bench(0)
    const limit = (maxInFlight: number | undefined) => shaper.engine.setLimits(bucket, bounded(fast, maxInFlight))
    for (const name of ['a', 'b', 'c', 'd', 'e', 'f']) send(name)
    clock.runUntil(2)
    t.same(log.splice(0), ['b 1 1', 'c 2 2'])
    limit(2)
    clock.runUntil(50)
    leave()
    t.same(log.splice(0), [], 'three were in flight')
    leave()
    t.same(log.splice(0), ['d 50 50'])
    clock.runUntil(60)
    limit(3)
    t.same(log.splice(0), ['e 60 60'])
    clock.runUntil(70)
    limit(undefined)
    t.same(log.splice(0), ['f 70 70'])
  },
)

t.test('a released request that is not sent gives back its place and its slot', async t => {
  const { shaper, gate, bucket, log, send, clock, leave } = bench()
  send('a')
  const ticket = send('b') as Ticket
  send('c')
  clock.runUntil(10)
  leave()
  t.same(log.splice(0), ['b 10 10'])
  gate.leave()
  bucket.leave()
  shaper.giveBack(ticket)
  t.same(log, ['c 10 10'])
  t.equal(bucket.inFlight, 1)
})

t.test('an instance with requests in flight is not dropped for another key, where it bounds them', async t => {
  for (const maxInFlight of [undefined, 1]) {
    const table = new BucketTable(1)
    const shaper = new Shaper({ clock: createVirtualClock() })
    const bucket = table.find(bounded(limits(1_000, 10), maxInFlight), 'alice', 0)!
    table.hold(bucket)
    t.equal(shaper.meter({ route: { name: 'r', gate: new Gate() }, stack: [bucket], cost: 1 }), 'released')
    const isDropped = table.find(limits(1_000, 10), 'bob', 1_000) !== undefined
    t.equal(isDropped, maxInFlight === undefined)
    if (isDropped) continue
    table.rest(bucket)
    t.equal(table.peek('client', 'alice'), bucket, 'nor does it sleep')
    bucket.leave()
    t.ok(table.find(limits(1_000, 10), 'bob', 1_000))
  }
})

t.test('two slots that the store grants at once, where there is one place: one is given back', async t => {
  const clock = createVirtualClock()
  const memory = createMemoryStore({ clock })
  const store = Object.create(memory, { admit: { value: async (request: AdmitRequest) => memory.admit(request) } })
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const stored = (limits: BucketLimits, key: string) =>
    new StoredBucket(limits, key, (name, key) => `${name}:${key}`, shardIn('claimed')) as SharedBucket
  const everyone = stored(bounded(limits(1_000, 10, 'everyone'), 1), 'all')
  const route = { name: 'route', gate: new Gate() }
  const log: string[] = []
  for (const name of ['a', 'b']) {
    const release = () => log.push(`${name} released ${clock.now()}`)
    const callbacks = { decided() {}, release, expire() {}, reject() {} }
    shaper.arrive({ route, stack: [stored(limits(5, 10), name), everyone], cost: 1 }, callbacks, 'shape', Infinity)
  }
  await new Promise(resolve => setImmediate(resolve))
  clock.runUntil(100)
  t.same(log, ['a released 0'])
  t.equal(everyone.inFlight, 1)
  shaper.leave(route.gate, [everyone])
  clock.runUntil(200)
  t.match(log, ['a released 0', /^b released 100/])
})
