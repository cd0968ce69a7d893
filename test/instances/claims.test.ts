/** Former bugs between real instances, each in its smallest form. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, Ticket, type Waiter } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { shareBy } from '../../src/sharing/shared-room.js'
import type { ClaimAnswer, ClaimRequest, Store } from '../../src/sharing/store.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { random } from '../core/run.js'
import { createWorld } from '../proxy/instances.js'
import { enqueue, shardIn } from '../sharing/shard.js'
import { simulate } from './simulator.js'

const limits: BucketLimits = { name: 'all', rate: 0.2, capacity: 10 }
const NOBODY: Waiter = { release: () => undefined, expire: () => undefined, reject: () => undefined }

/** A store that answers at once. */
function createStore(claim: (request: ClaimRequest) => ClaimAnswer): Store {
  return {
    horizon: 8,
    admit: () => ({ admitted: true, levels: [1] }),
    claim,
    giveBack: () => undefined,
    reset: () => undefined,
    beat: () => ({ count: 1, left: 0, rank: 0, epoch: 0 }),
    exchange: () => ({ pausedFor: 0, rate: undefined, rateFor: 0 }),
    close: async () => undefined,
  }
}

function bucketOf(key: string): StoredBucket {
  return new StoredBucket(limits, key, () => key, shardIn('claimed'))
}

t.test('a request that has missed its slot claims another one without any other event', async t => {
  // By the time of the slot the bucket has long been free, because claims may be ahead by more than a period.
  const lateness = [10]
  const clock = createVirtualClock({ lateness: () => lateness.shift() ?? 0 })
  const claimed: number[] = []
  const store = createStore(() => {
    claimed.push(clock.now())
    return { granted: true, slot: { at: clock.now() + 2, from: clock.now() + 2, token: 0 } }
  })
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const released: number[] = []
  const route = { name: 'route', gate: new Gate() }
  const waiter = { ...NOBODY, release: () => void released.push(clock.now()) }
  enqueue(shaper, {
    arrival: { route, stack: [bucketOf('one')], cost: 1 },
    waiter: waiter,
    maxWait: Infinity,
    arrivedAt: 0,
  })
  shaper.wake()
  clock.runUntil(1_000)
  t.same(claimed, [0, 12], 'it has come 10 ms after its first slot')
  t.same(released, [14])
})

t.test('a missed slot is claimed again at a slow rate, too', async t => {
  const lateness = [10]
  const clock = createVirtualClock({ lateness: () => lateness.shift() ?? 0 })
  const claimed: number[] = []
  const store = createStore(() => {
    claimed.push(clock.now())
    return { granted: true, slot: { at: clock.now() + 2, from: clock.now() + 2, token: 0 } }
  })
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const hourly = new StoredBucket({ ...limits, rate: 1 / 3_600_000 }, 'all', () => 'all', shardIn('claimed'))
  const route = { name: 'route', gate: new Gate() }
  const released: number[] = []
  const waiter = { ...NOBODY, release: () => void released.push(clock.now()) }
  enqueue(shaper, { arrival: { route, stack: [hourly], cost: 1 }, waiter: waiter, maxWait: Infinity, arrivedAt: 0 })
  shaper.wake()
  clock.runUntil(1_000)
  t.same(claimed, [0, 12])
  t.same(released, [14])
})

t.test('a slot of before a reset goes back to the other buckets of its stack only', async t => {
  const clock = createVirtualClock()
  const given: unknown[] = []
  const store: Store = {
    ...createStore(() => ({ granted: true, slot: { at: clock.now() + 20, from: clock.now() + 20, token: 0 } })),
    giveBack({ stack, slot, own }) {
      if (slot !== undefined) given.push([stack.map(({ key }) => key), own])
    },
  }
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const stack = [bucketOf('mine'), bucketOf('all')]
  const arrival = { route: { name: 'route', gate: new Gate() }, stack, cost: 1 }
  const ticket = enqueue(shaper, { arrival, waiter: NOBODY, maxWait: Infinity, arrivedAt: 0 })
  shaper.wake()
  clock.runUntil(5)
  shaper.engine.reset(stack[0]!)
  t.same(given, [[['all'], 0]], 'it would shorten the schedule that has just begun')
  clock.runUntil(10)
  shaper.cancel(ticket as Ticket)
  t.same(given[1], [['mine', 'all'], 1], 'one of after it goes back to all')
})

t.test('a hang-up in front of a full upstream lets another lane go', async t => {
  const clock = createVirtualClock()
  const claimed: string[] = []
  const store = createStore(({ stack }) => {
    claimed.push(stack[0]!.key)
    return { granted: true, slot: { at: clock.now() + 20, from: clock.now() + 20, token: 0 } }
  })
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const route = { name: 'route', gate: new Gate(1) }
  const one = enqueue(shaper, {
    arrival: { route, stack: [bucketOf('one')], cost: 1 },
    waiter: NOBODY,
    maxWait: Infinity,
    arrivedAt: 0,
  })
  enqueue(shaper, {
    arrival: { route, stack: [bucketOf('another')], cost: 1 },
    waiter: NOBODY,
    maxWait: Infinity,
    arrivedAt: 0,
  })
  shaper.wake()
  t.same(claimed, ['one'])
  shaper.cancel(one as Ticket)
  clock.runUntil(1_000)
  t.same(claimed, ['one', 'another'])
})

t.test('requests of a client keep their order while new keys are added', async t => {
  const world = createWorld([{ ...limits, rate: 0.1 }], 1, () => 2)
  await world.run(100)
  const [instance] = world.instances
  const mine = [instance!.request(['mine'])]
  for (let at = 0; at < 4; at += 1) {
    instance!.request([`another ${at}`])
    mine.push(instance!.request(['mine']))
  }
  await world.run(200)
  t.ok(mine.every(({ verdict }) => verdict instanceof Ticket))
  const lanes = new Set(mine.map(({ verdict }) => (verdict as Ticket).lane.stack[0]))
  t.equal(lanes.size, 1, 'in one lane')
})

t.test('requests keep their order when the store answers the second one first', async t => {
  const world = createWorld([{ ...limits, rate: 0.02 }], 1, () => 1)
  await world.run(100)
  const [instance] = world.instances
  instance!.request(['all'])
  await world.run(105)
  world.latency = () => 10
  const first = instance!.request(['all'])
  world.latency = () => 1
  const second = instance!.request(['all'])
  await world.run(400)
  t.ok(first.sentAt! < second.sentAt!, `sent at ${first.sentAt} and ${second.sentAt}`)
})

t.test('the first request goes first, also when answers come in another order', async t => {
  const delays = [8, 1, 3, 2]
  const clock = createVirtualClock()
  const store = createStore(() => ({ granted: false, freeAt: [Infinity] }))
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const released: number[] = []
  const shard = shardIn('none')
  const bucket = new StoredBucket({ ...limits, rate: 0.1 }, 'all', () => 'all', shard)
  const route = { name: 'route', gate: new Gate() }
  const join = (arrivedAt: number) =>
    enqueue(shaper, {
      arrival: { route, stack: [bucket], cost: 1 },
      waiter: { ...NOBODY, release: () => void released.push(arrivedAt) },
      maxWait: Infinity,
      arrivedAt,
    })
  for (const [arrivedAt, delay] of delays.entries()) clock.at(arrivedAt + delay, () => void join(arrivedAt))
  clock.runUntil(20)
  shard.mode = 'direct'
  shaper.engine.releaseModeChanged([bucket])
  clock.runUntil(1_000)
  t.same(released, [0, 1, 2, 3])
})

t.test('an instance with the last slot does not ask again and again while another leases the bucket', async t => {
  const world = createWorld([{ name: 'all', rate: 0.005, capacity: 100 }], 2, () => 0.25)
  const [one, other] = world.instances
  for (let sent = 0; sent < 7; sent += 1) one!.request(['*'])
  for (let sent = 0; sent < 13; sent += 1) other!.request(['*'])
  await world.run(5_000)
  t.equal(world.sent.length, 20)
  t.ok(world.claims <= 8, `${world.claims} claims`)
})

for (const seed of [181, 388, 440, 503, 536]) {
  t.test(`a slot that was missed while the bucket became leased is asked for again, stalls ${seed}`, async t => {
    const chance = random(seed)
    const instances = [0, 1, 2, 3]
    const stalls = instances.map(() => [0, 1].map(() => ({ from: chance() * 20, lasts: chance() * 20 })))
    const stillUntil = (instance: number, at: number): number => {
      const stall = stalls[instance]!.find(({ from, lasts }) => at >= from && at < from + lasts)
      return stall === undefined ? -Infinity : stall.from + stall.lasts
    }
    const simulation = await simulate({
      ...{ stack: [{ name: 'all', rate: 1 / 3_600_000, capacity: 40 }], count: 4, jitter: 2, isReal: true, seed },
      sources: instances.map(instance => ({ instance, keys: ['all'], load: { kind: 'at-once', count: 15 } })),
      stillUntil,
    })
    await simulation.run(1_000)
    t.equal(simulation.rejected, 20)
    t.equal(simulation.releases.length, 1, 'and not only after an hour')
  })
}
