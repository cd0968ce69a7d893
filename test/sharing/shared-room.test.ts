/** Admission by a store: who makes room for whom. On the virtual clock, with the store in memory. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type LaneRoute, type SharedBucket, Ticket } from '../../src/core/queue/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { shareBy } from '../../src/sharing/shared-room.js'
import type { Admission } from '../../src/sharing/store.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { limits } from '../core/run.js'
import { shardIn } from './shard.js'

interface Request {
  name: string
  route: LaneRoute
  stack: SharedBucket[]
  cost?: number
  maxWait?: number
  client?: string
  priority?: number
}

/** One instance on a store. `log` says what became of each request, in order. */
function instance(maxQueued = Infinity, lateness = () => 0) {
  const clock = createVirtualClock({ lateness })
  const store = createMemoryStore({ clock })
  const shaper = new Shaper({ clock, maxQueued, share: shareBy({ store, clock }) })
  const log: string[] = []
  const tickets = new Map<string, Ticket>()
  const callbacks = (name: string) => ({
    decided(verdict: Verdict) {
      if (verdict instanceof Ticket) tickets.set(name, verdict)
      log.push(`${name} ${describe(verdict)}`)
    },
    release: () => log.push(`${name} released`),
    expire: () => log.push(`${name} expired`),
    reject: ({ reason }: Rejection) => log.push(`${name} displaced${reason === 'overflow' ? '' : `: ${reason}`}`),
  })
  return {
    clock,
    store,
    shaper,
    log,
    tickets,
    bucket: (limits: BucketLimits, key: string) =>
      new StoredBucket(limits, key, (name, key) => `${name}:${key}`, shardIn('claimed')),
    admit({ name, route, stack, cost = 1, maxWait = Infinity, ...client }: Request) {
      shaper.arrive({ route, stack, cost, ...client }, callbacks(name), 'shape', maxWait)
    },
    meter({ name, route, stack, cost = 1 }: Request) {
      shaper.arrive({ route, stack, cost }, callbacks(name), 'meter', Infinity)
    },
  }
}

function describe(verdict: Verdict): string {
  if (verdict === 'released') return 'released'
  return 'reason' in verdict ? `${verdict.reason} of ${verdict.buckets.map(({ limits }) => limits.name)}` : 'queued'
}

const EVERYONE: BucketLimits = { ...limits(1_000, 4, 'everyone'), overflow: 'fair' }

/** Four requests of `a` wait here before a slow upstream. The store's level of `everyone` has leaked away since. */
function slowUpstream() {
  const one = instance()
  const { clock, log, admit, bucket } = one
  const everyone = bucket(EVERYONE, 'all')
  const api: LaneRoute = { name: 'api', gate: new Gate(1) }
  const send = (name: string, own: SharedBucket, more: Partial<Request> = {}): void =>
    admit({ name, route: api, stack: [own, everyone], ...more })
  const spent = bucket({ name: 'client', rate: 1e-6, capacity: 1 }, 'b')
  const a = bucket(limits(1_000, 100), 'a')
  send('b0', spent)
  clock.runUntil(5)
  for (const name of ['a0', 'a1', 'a2', 'a3']) {
    send(name, a)
    clock.runUntil(clock.now() + 5)
  }
  t.same(log, ['b0 queued', 'b0 released', 'a0 queued', 'a1 queued', 'a2 queued', 'a3 queued'])
  log.length = 0
  return { ...one, everyone, api, send, spent, a }
}

t.test('fair: a request that the store rejects displaces no other', async t => {
  const { clock, log, send, spent, a, shaper } = slowUpstream()
  for (const again of [1, 2]) {
    send(`b${again}`, spent)
    clock.runUntil(clock.now() + 5)
    send(`a+${again}`, a)
    clock.runUntil(clock.now() + 5)
  }
  t.same(log, [
    'b1 overflow of client',
    'a+1 overflow of everyone',
    'b2 overflow of client',
    'a+2 overflow of everyone',
  ])
  t.equal(shaper.queued, 4)
})

t.test('fair: a request that the store admits displaces one here, and both levels stay true', async t => {
  const { clock, log, send, bucket, store, everyone, api, a, shaper } = slowUpstream()
  send('c', bucket(limits(1_000, 100), 'c'))
  t.same(log, ['a3 displaced', 'c queued'])
  t.equal(shaper.queued, 4)
  clock.runUntil(clock.now() + 100)
  const probe = () => store.admit({ stack: [everyone.ref], cost: 4, maxWait: Infinity, claim: false }).admitted
  t.equal(probe(), true, 'nothing is left in the store')
  log.length = 0
  for (let done = 0; done < 5; done += 1) {
    api.gate.leave()
    shaper.wake(api.gate)
    clock.runUntil(clock.now() + 100)
  }
  t.same([...log].sort(), ['a0 released', 'a1 released', 'a2 released', 'c released'])
  t.equal(a.waiting + everyone.waiting, 0)
})

t.test('fair: no more is displaced here than the newcomer needs', async t => {
  const { clock, log, admit, bucket } = instance()
  const everyone = bucket({ ...EVERYONE, rate: 0.001 }, 'all')
  const api: LaneRoute = { name: 'api', gate: new Gate(1) }
  api.gate.enter()
  const a = [bucket(limits(1_000, 100), 'a'), everyone]
  for (const cost of [1, 1, 1, 0.5]) admit({ name: `a/${cost}`, route: api, stack: a, cost })
  clock.runUntil(500)
  log.length = 0
  admit({ name: 'b', route: api, stack: [bucket(limits(1_000, 100), 'b'), everyone] })
  t.same(log, ['a/0.5 displaced', 'b queued'])
})

t.test('fair: a metered request displaces none that waits, with a store as without one', async t => {
  const { clock, log, admit, meter, bucket, shaper } = instance()
  const everyone = bucket({ ...EVERYONE, rate: 1e-6 }, 'all')
  const api: LaneRoute = { name: 'api', gate: new Gate() }
  const a = bucket(limits(1_000, 100), 'a')
  for (const name of ['a0', 'a1', 'a2', 'a3']) admit({ name, route: api, stack: [a, everyone] })
  clock.runUntil(10)
  t.equal(shaper.queued, 3)
  log.length = 0
  const web: LaneRoute = { name: 'web', gate: new Gate() }
  meter({ name: 'b', route: web, stack: [bucket(limits(1_000, 100), 'b'), everyone] })
  t.same(log, ['b overflow of everyone'])
  t.equal(shaper.queued, 3)
})

t.test('fair: with a store too, the pause counts in the wait of a newcomer before others make room', async t => {
  for (const [maxWait, wanted] of [
    [1_000, ['b overflow of everyone']],
    [1_001, ['a3 displaced', 'b queued']],
  ] as const) {
    const { clock, shaper, log, admit, bucket } = instance()
    const everyone = bucket(EVERYONE, 'all')
    const api: LaneRoute = { name: 'api', gate: new Gate() }
    const a = bucket(limits(1_000, 100), 'a')
    shaper.engine.pause(api.gate, 1_100)
    for (const name of ['a0', 'a1', 'a2', 'a3']) admit({ name, route: api, stack: [a, everyone] })
    clock.runUntil(100)
    log.length = 0
    admit({ name: 'b', route: api, stack: [bucket(limits(1_000, 100), 'b'), everyone], maxWait })
    t.same(log, wanted)
  }
})

/** An instance on a bucket with a slot each 0.2 ms. The store grants those of the next 2 ms. */
function manySlots() {
  const one = instance()
  const everyone = one.bucket({ ...limits(5_000, 20, 'everyone'), overflow: 'fair' }, 'all')
  const api: LaneRoute = { name: 'api', gate: new Gate() }
  const send = (name: string, count: number, perSecond = 1e-6): string[] => {
    const stack = [one.bucket(limits(perSecond, 100), name), everyone]
    one.log.length = 0
    for (let sent = 0; sent < count; sent += 1) one.admit({ name, route: api, stack })
    return one.log
  }
  return { ...one, send }
}

t.test('fair: a lane whose requests all claim slots is passed over', async t => {
  const { send } = manySlots()
  send('claiming', 11, 1e9)
  send('one', 9)
  t.same(send('newcomer', 1), ['one displaced', 'newcomer queued'])
})

t.test('fair: a lane is as heavy as it is, not as it was before its slots came', async t => {
  const { clock, send } = manySlots()
  send('claiming', 12, 1e9)
  send('one', 8)
  t.same(send('first', 1), ['claiming displaced', 'first queued'], 'one did not claim yet')
  clock.runUntil(1)
  send('two', 5)
  t.same(send('second', 1), ['one displaced', 'second queued'])
})

t.test('a changed share or capacity sends nothing to the store, a changed rate ends the old one there', async t => {
  const { admit, bucket, shaper, store } = instance()
  const slow = limits(0.001, 10)
  const own = bucket(slow, 'a')
  const api: LaneRoute = { name: 'api', gate: new Gate() }
  for (const name of ['a0', 'a1']) admit({ name, route: api, stack: [own] })
  t.equal(own.waiting, 1)
  const sent: number[] = []
  store.giveBack = ({ stack }) => sent.push(stack[0]!.limits.rate)
  const faster = { ...slow, rate: 2 * slow.rate }
  const steps: [limits: BucketLimits, wanted: number[]][] = [
    [{ ...slow, rate: slow.rate / 2, whole: slow }, []],
    [slow, []],
    [{ ...slow, capacity: 20 }, []],
    [{ ...slow, whole: faster }, [slow.rate, faster.rate]],
  ]
  for (const [changed, wanted] of steps) {
    shaper.engine.setLimits(own, changed)
    t.same(sent, wanted)
  }
})

t.test('at maxQueued the displaced request leaves the store, too', async t => {
  const { clock, log, admit, bucket, store } = instance(2)
  const everyone = bucket(limits(1, 10, 'everyone'), 'all')
  const route: LaneRoute = { name: 'api', gate: new Gate() }
  const send = (name: string) =>
    admit({ name, route, stack: [bucket(limits(100, 100), name), everyone], client: name[0]! })
  for (const name of ['a0', 'a1', 'a2']) send(name)
  clock.runUntil(1)
  t.same(log.splice(0), ['a0 queued', 'a0 released', 'a1 queued', 'a2 queued'])
  send('b0')
  t.same(log.splice(0), ['b0 queued', 'a2 displaced: crowded'])
  send('a3')
  t.same(log.splice(0), ['a3 crowded of '])
  const one = { stack: [everyone.ref], cost: 1, maxWait: Infinity, claim: false }
  t.ok(Math.abs((await store.admit(one)).levels[0]! - 3.999) < 1e-6, 'a0, a1, b0 and this one')
  clock.runAll()
  t.same(log, ['a1 released', 'b0 released'])
})

t.test('at maxQueued the slot of a displaced request is used by another', async t => {
  const { clock, log, admit, bucket } = instance(1)
  const everyone = bucket(limits(1, 10, 'everyone'), 'all')
  const route: LaneRoute = { name: 'api', gate: new Gate() }
  const send = (name: string) =>
    admit({ name, route, stack: [bucket(limits(100, 100), name), everyone], client: name[0]! })
  for (const name of ['a0', 'a1']) send(name)
  clock.runUntil(999)
  t.equal(route.gate.inFlight, 2, 'a1 has claimed its slot')
  log.length = 0
  send('b0')
  clock.runUntil(1_010)
  t.same(log, ['b0 queued', 'a1 displaced: crowded', 'b0 released'])
})

t.test('a request that hangs up with its slot granted leaves others of its client where they wait', async t => {
  const { clock, shaper, log, admit, bucket, tickets } = instance()
  const everyone = bucket(limits(1_000, 100, 'everyone'), 'all')
  const a = bucket(limits(5, 20), 'a')
  const gate = new Gate()
  const [api, web] = ['api', 'web'].map(name => ({ name, gate }))
  // Its slot is granted at the same moment as it is asked for.
  admit({ name: 'b0', route: api!, stack: [bucket(limits(5, 20), 'b'), everyone] })
  admit({ name: 'a0', route: api!, stack: [a, everyone] })
  admit({ name: 'a1', route: web!, stack: [a, everyone] })
  t.ok(shaper.cancel(tickets.get('a0')!))
  clock.runAll()
  t.same(log, ['b0 queued', 'b0 released', 'a0 queued', 'a1 queued', 'a1 released'])
})

/** An instance with a request that passed and was set aside. Nothing else waits. */
function oneAside() {
  const one = instance()
  const own = one.bucket(limits(1, 3), 'a')
  const api: LaneRoute = { name: 'api', gate: new Gate() }
  const arrival = { route: api, stack: [own], cost: 1 }
  let ticket: Ticket | undefined
  const waiter = {
    decided(verdict: Verdict) {
      if (verdict instanceof Ticket) ticket = verdict
    },
    release() {
      ticket = one.shaper.setAside(arrival, waiter, ticket, 0) as Ticket
      one.shaper.wake(api.gate)
    },
    expire: () => undefined,
    reject: () => undefined,
  }
  one.shaper.arrive(arrival, waiter, 'shape', Infinity)
  one.clock.runUntil(1)
  return { ...one, own, api, ticket: ticket! }
}

t.test('the slot of a request that is set aside goes back to the store, and its cost stays there', async t => {
  const { admit, api, own, log, store, clock, shaper, ticket } = oneAside()
  t.same([own.aside, api.gate.inFlight], [1, 0])
  const given: number[] = []
  const { giveBack } = store
  store.giveBack = request => {
    given.push(request.cost)
    giveBack(request)
  }
  admit({ name: 'next', route: api, stack: [own] })
  clock.runUntil(2)
  t.same(log, ['next queued', 'next released'], 'in the slot that was free again')
  for (const name of ['third', 'fourth']) admit({ name, route: api, stack: [own] })
  t.same(log.slice(2), ['third queued', 'fourth overflow of client'])
  t.same(given, [])
  shaper.cancel(ticket)
  t.same(given, [1], 'room of a slow bucket is never leased')
  admit({ name: 'fifth', route: api, stack: [own] })
  t.equal(log.at(-1), 'fifth queued')
})

t.test('what is set aside is not waited for: a request claims its slot as it is admitted', async t => {
  const { admit, api, own, log, store, clock, ticket, shaper } = oneAside()
  let claims = 0
  const { claim } = store
  store.claim = request => {
    claims += 1
    return claim(request)
  }
  clock.runUntil(5_000)
  admit({ name: 'next', route: api, stack: [own] })
  clock.runUntil(5_002)
  t.same([log, claims], [['next queued', 'next released'], 0])
  clock.runUntil(10_000)
  shaper.comeBack(ticket, Infinity)
  shaper.wake()
  t.equal(claims, 1)
  admit({ name: 'behind', route: api, stack: [own] })
  clock.runUntil(10_010)
  t.same(log.slice(2), ['behind queued', 'behind released'], 'it is not ready this time either, and its slot is free')
})

t.test('a costly request whose slot was missed claims by its own cost, and nobody starves', async t => {
  let late = 12
  const { clock, log, admit, bucket } = instance(Infinity, () => late)
  const own = bucket(limits(100, 100), 'a')
  const api: LaneRoute = { name: 'api', gate: new Gate() }
  const costs = { first: 1, costly: 2, third: 1, fourth: 1, last: 1 }
  for (const [name, cost] of Object.entries(costs)) admit({ name, route: api, stack: [own], cost })
  clock.runUntil(25)
  late = 0
  clock.runUntil(1_000)
  const left = log.filter(entry => entry.endsWith(' released'))
  t.same(
    left,
    Object.keys(costs).map(name => `${name} released`),
  )
})

/** A bucket of 100,000/s whose slots and room are leased: 101 requests have come at once. */
function leasedAtSpeed() {
  const one = instance()
  const { clock, log, admit, bucket } = one
  const own = bucket(limits(100_000, 1_000), 'a')
  const api: LaneRoute = { name: 'api', gate: new Gate() }
  for (let count = 0; count < 101; count += 1) admit({ name: 'first', route: api, stack: [own] })
  clock.runUntil(20)
  t.ok(own.hasRoom)
  t.equal(log.filter(entry => entry === 'first released').length, 101)
  for (let count = 0; count < 101; count += 1) one.shaper.leave(api.gate, [own])
  log.length = 0
  return { ...one, own, api }
}

t.test('at high rates leased room and a leased slot let a request pass at once, and both are used', async t => {
  const { clock, log, admit, own, api, shaper, tickets } = leasedAtSpeed()
  tickets.clear()
  const [room, level] = [own.lease!.roomAt(clock.now()), own.level(clock.now())]
  for (let count = 0; count < 30; count += 1) admit({ name: 'next', route: api, stack: [own] })
  t.same(new Set(log), new Set(['next released']))
  t.equal(tickets.size, 0)
  t.same([shaper.queued, api.gate.inFlight, own.inFlight], [0, 30, 30])
  t.ok(Math.abs(room - own.lease!.roomAt(clock.now()) - 30) < 1e-6)
  t.ok(Math.abs(own.level(clock.now()) - level - 30) < 1e-6)
  log.length = 0
  for (let count = 0; count < 500; count += 1) admit({ name: 'more', route: api, stack: [own] })
  const passed = log.filter(entry => entry === 'more released').length
  // A slot is for 94 requests, and none is used that is older.
  t.ok(passed > 0 && passed <= 94, `${passed}`)
  t.equal(shaper.queued, 500 - passed)
})

t.test('a request that passed at once by a lease does not pass before those that wait, nor a shut gate', async t => {
  const { clock, log, admit, own, api, shaper, tickets } = leasedAtSpeed()
  api.gate.maxInFlight = 1
  admit({ name: 'one', route: api, stack: [own] })
  admit({ name: 'two', route: api, stack: [own] })
  admit({ name: 'three', route: api, stack: [own] })
  t.same(log, ['one released', 'two queued', 'three queued'])
  shaper.leave(api.gate, [own])
  clock.runUntil(clock.now() + 5)
  t.same(log.slice(3), ['two released'])
  t.equal(tickets.get('three')?.slot, undefined)
})

t.test('a request that passed at once by a lease and is set aside goes on counting until it hangs up', async t => {
  const { clock, own, api, shaper } = leasedAtSpeed()
  const arrival = { route: api, stack: [own], cost: 5 }
  const waiter = { release: () => undefined, expire: () => undefined, reject: () => undefined }
  const level = own.level(clock.now())
  let verdict: Verdict | undefined
  const decided = (made: Verdict): void => {
    verdict = made
  }
  shaper.arrive(arrival, { ...waiter, decided }, 'shape', Infinity)
  t.equal(verdict, 'released')
  const ticket = shaper.setAside(arrival, waiter, undefined, clock.now())
  if (!(ticket instanceof Ticket)) throw new Error('it is set aside')
  t.same([own.aside, api.gate.inFlight, own.inFlight], [1, 0, 0])
  t.equal(own.level(clock.now()), level + 5)
  shaper.cancel(ticket)
  t.ok(Math.abs(own.level(clock.now()) - level) < 1e-6)
})

t.test('with a store, too, a full bucket makes room for a lower number, and both levels stay true', t => {
  const { clock, log, admit, bucket, store } = instance()
  const everyone = bucket({ ...limits(1_000, 4, 'everyone'), rate: 1e-6 }, 'all')
  const api: LaneRoute = { name: 'api', gate: new Gate(1) }
  api.gate.enter()
  for (const [name, priority] of [
    ['late', 7],
    ['later', 7],
    ['usual', 3],
    ['latest', 7],
  ] as const) {
    admit({ name, route: api, stack: [everyone], priority })
    clock.runUntil(clock.now() + 5)
  }
  log.length = 0
  admit({ name: 'alike', route: api, stack: [everyone], priority: 7 })
  admit({ name: 'first', route: api, stack: [everyone], cost: 2, priority: 0 })
  t.same(log, ['alike overflow of everyone', 'latest displaced', 'later displaced', 'first queued'])
  const { levels } = store.admit({ stack: [everyone.ref], cost: 1, maxWait: Infinity, claim: false }) as Admission
  t.ok(Math.abs(levels[0]! - 4) < 0.001, `the store counts ${levels[0]}`)
  t.end()
})

t.test('with a store, too, lower numbers leave first', t => {
  const { clock, log, admit, bucket } = instance()
  const everyone = bucket(limits(100, 100, 'everyone'), 'all')
  const api: LaneRoute = { name: 'api', gate: new Gate() }
  for (const [name, priority] of [
    ['first', 7],
    ['late', 7],
    ['later', 7],
    ['usual', 3],
    ['soon', 0],
  ] as const) {
    admit({ name, route: api, stack: [everyone], priority })
  }
  clock.runAll()
  const released = log.filter(line => line.endsWith('released'))
  t.same(
    released,
    ['first', 'soon', 'usual', 'late', 'later'].map(name => `${name} released`),
  )
  t.end()
})
