/**
 * All features of the core at once: priorities, bursts, stacks, two upstreams, pauses, requests that are set aside, held, sent
 * again or not sent at all, hang-ups, metered ones, other limits. What must hold in any mixture is checked.
 */

import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, graceAt, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import {
  Gate,
  type LaneRoute,
  type Rejection,
  type SharedBucket,
  Ticket,
  type Waiter,
} from '../../src/core/queue/lane.js'
import { lanesOf } from '../../src/core/queue/tree.js'
import { type Arrival, Shaper } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import { limits } from './run.js'

/** ms and cost units. What rounding may add. */
const EPSILON = 1e-5

/** `lost`: not sent at its turn, as nobody waits for it. `connects` and the following: its connection has to open. */
type Fate = 'now' | 'lost' | 'connects' | 'fails' | 'dies'

interface Arriving {
  readonly kind: 'arrive'
  readonly key: string
  readonly route: string
  readonly gate: number
  readonly cost: number
  readonly priority: number
  readonly fate: Fate
  /** ms until its connection is open, or has failed. */
  readonly connect: number
  /** ms until its body is there. */
  readonly ready: number
}

type Step = { readonly at: number } & (
  | Arriving
  | { readonly kind: 'cancel'; readonly nth: number }
  | { readonly kind: 'pause'; readonly gate: number; readonly ms: number }
  | { readonly kind: 'meter'; readonly key: string; readonly gate: number; readonly cost: number }
  | { readonly kind: 'rate'; readonly key: string; readonly which: number; readonly factor: number }
  | { readonly kind: 'reset'; readonly key: string; readonly which: number }
  | { readonly kind: 'replan' }
)

interface World {
  readonly own: BucketLimits | null
  readonly everyone: BucketLimits | null
  readonly maxInFlight: number
  /** ms from being sent to the end of the answer. */
  readonly service: number
  readonly maxWait: number
  readonly maxQueued: number
}

interface Request {
  readonly id: number
  readonly arriving: Arriving
  readonly arrival: Arrival
  readonly at: number
  fate: Fate
  ticket: Ticket | undefined
  state: 'waiting' | 'aside' | 'held' | 'over'
  /** It has been set aside or has come back: it does not leave in the order of arrival. */
  isSpecial: boolean
  end: string | undefined
  endAt: number
}

/** A request was rejected, or had to make room. `by` is the number of the step. */
interface Turned {
  readonly request: Request
  readonly rejection: Rejection
  readonly by: number
}

function must(condition: boolean, complaint: () => string): void {
  if (!condition) throw new Error(complaint())
}

function play(world: World, steps: readonly Step[]) {
  const clock = createVirtualClock()
  const now = (): number => clock.now()
  const shaper = new Shaper({ clock, maxQueued: world.maxQueued })
  const gates = [new Gate(world.maxInFlight), new Gate(world.maxInFlight)]
  const routes = new Map<string, LaneRoute>()
  const buckets = new Map<string, SharedBucket>()
  const requests: Request[] = []
  const sent: { readonly request: Request; readonly at: number }[] = []
  const turned: Turned[] = []
  let step = 0

  function routeOf(name: string, gate: number): LaneRoute {
    const key = `${name}${gate}`
    const route = routes.get(key) ?? { name: key, gate: gates[gate]! }
    routes.set(key, route)
    return route
  }

  function find(own: BucketLimits, key: string): SharedBucket {
    const bucket: SharedBucket = buckets.get(key) ?? new QueuedBucket(own)
    buckets.set(key, bucket)
    return bucket
  }

  function stackOf(key: string): SharedBucket[] {
    const own = world.own === null ? [] : [find(world.own, key)]
    return world.everyone === null ? own : [...own, find(world.everyone, 'all')]
  }

  function end(request: Request, how: string): void {
    must(request.end === undefined, () => `${request.id}: ${request.end}, then ${how}`)
    request.state = 'over'
    request.end = how
    request.endAt = now()
  }

  function leave({ arrival: { route, stack } }: Request): void {
    shaper.leave(route.gate, stack)
  }

  function send(request: Request): void {
    sent.push({ request, at: now() })
    end(request, 'sent')
    if (world.service === 0) leave(request)
    else clock.at(now() + world.service, () => leave(request))
  }

  function setAside(request: Request, waiter: Waiter): void {
    const { arrival, at, arriving } = request
    request.isSpecial = true
    const ticket = shaper.setAside(arrival, waiter, request.ticket, at)
    if (ticket instanceof Ticket) {
      request.ticket = ticket
      request.state = 'aside'
      clock.at(at + arriving.ready, () => {
        if (request.state !== 'aside') return
        request.state = 'waiting'
        shaper.comeBack(ticket, now() + world.maxWait)
        shaper.wake()
      })
    } else end(request, 'rejected')
    shaper.wake(arrival.route.gate, arrival.stack)
  }

  function connect(request: Request, waiter: Waiter): void {
    const { arrival, fate, at } = request
    request.state = 'held'
    shaper.engine.hold(arrival)
    clock.at(now() + request.arriving.connect, () => {
      shaper.engine.unhold(arrival, fate === 'connects' ? 'sent' : 'never-sent')
      if (fate === 'connects') return send(request)
      if (fate === 'fails') {
        request.fate = 'now'
        request.isSpecial = true
        request.ticket = shaper.requeue(arrival, waiter, world.maxWait, at)
        if (request.ticket === undefined) end(request, 'not sent again')
        else request.state = 'waiting'
        shaper.wake()
      } else end(request, 'died')
      leave(request)
    })
  }

  function pass(request: Request, waiter: Waiter): void {
    const { arrival, at, arriving, fate, ticket } = request
    if (at + arriving.ready > now()) return setAside(request, waiter)
    if (fate === 'connects' || fate === 'fails' || fate === 'dies') return connect(request, waiter)
    if (fate === 'now' || ticket === undefined) return send(request)
    arrival.route.gate.leave()
    for (const bucket of arrival.stack) bucket.leave()
    end(request, 'lost')
    shaper.giveBack(ticket)
  }

  function arrive(arriving: Arriving): Request {
    const { key, route, gate, cost, priority, fate } = arriving
    const weight = key === 'b' ? 2 : 1
    const arrival = { route: routeOf(route, gate), stack: stackOf(key), cost, priority, weight, client: key }
    const request: Request = {
      id: requests.length,
      arriving,
      arrival,
      at: now(),
      fate,
      ticket: undefined,
      state: 'waiting',
      isSpecial: false,
      end: undefined,
      endAt: 0,
    }
    requests.push(request)
    const waiter: Waiter = {
      longestWait: world.maxWait,
      release: () => pass(request, waiter),
      expire: () => end(request, 'expired'),
      reject(rejection) {
        end(request, 'displaced')
        turned.push({ request, rejection, by: step })
      },
    }
    const verdict = shaper.admit(arrival, waiter, world.maxWait)
    if (verdict === 'released') pass(request, waiter)
    else if (verdict instanceof Ticket) {
      must(request.end === undefined, () => `${request.id} is called before its ticket is known`)
      request.ticket = verdict
      if (verdict.slot !== undefined) shaper.wake()
    } else {
      end(request, 'rejected')
      turned.push({ request, rejection: verdict, by: step })
    }
    return request
  }

  function take(next: Step): void {
    switch (next.kind) {
      case 'arrive':
        return void arrive(next)
      case 'cancel': {
        const request = requests.filter(({ state }) => state === 'waiting' || state === 'aside').at(-next.nth)
        if (request === undefined) return
        must(shaper.cancel(request.ticket!), () => `${request.id} cannot be cancelled`)
        return end(request, 'cancelled')
      }
      case 'pause':
        return void shaper.engine.pause(gates[next.gate]!, next.ms)
      case 'meter': {
        const stack = stackOf(next.key)
        const gate = gates[next.gate]!
        if (shaper.meter({ route: routeOf('r', next.gate), stack, cost: next.cost }) === 'released')
          clock.at(now() + world.service, () => shaper.leave(gate, stack))
        return
      }
      case 'rate': {
        const stack = stackOf(next.key)
        const bucket = stack[next.which % stack.length]!
        return shaper.engine.setLimits(bucket, { ...bucket.limits, rate: bucket.limits.rate * next.factor })
      }
      case 'reset': {
        const stack = stackOf(next.key)
        return shaper.engine.reset(stack[next.which % stack.length]!)
      }
      case 'replan':
        shaper.engine.replan(gates, () => world.maxWait)
    }
  }

  /** Whether the first request of a lane has something to wait for. */
  function isKept(bucket: SharedBucket, gate: Gate, cost: number): boolean {
    const { nextCost } = bucket
    if (bucket.isHeldBefore(gate, cost) || bucket.freeFor(cost) > now() + EPSILON) return true
    // It waits for the turn of one that costs more.
    return (
      nextCost > 0 &&
      (bucket.freeFor(nextCost) > now() + EPSILON || gates.some(at => bucket.isHeldBefore(at, nextCost)))
    )
  }

  /** @param capacity whether levels are bounded: requests that are sent again may exceed it */
  function check(capacity: 'bounded' | 'unbounded'): void {
    clock.runUntil(now())
    for (const bucket of buckets.values()) {
      const waiting = requests.filter(
        ({ state, arrival }) => (state === 'waiting' || state === 'aside') && arrival.stack.includes(bucket),
      )
      const cost = waiting.reduce((sum, { arrival }) => sum + arrival.cost, 0)
      must(waiting.length === bucket.waiting && Math.abs(cost - bucket.queued) < EPSILON, () => 'miscounted')
      const isFull = bucket.level(now()) > bucket.limits.capacity + EPSILON
      must(capacity === 'unbounded' || !isFull, () => `${bucket.limits.name} holds ${bucket.level(now())} at ${now()}`)
    }
    for (const gate of gates) {
      if (!gate.open) continue
      for (const { first, stack, priority } of lanesOf(gate)) {
        const isStalled = first !== undefined && !stack.some(bucket => isKept(bucket, gate, first.cost))
        must(!isStalled, () => `nobody leaves at ${now()}, and one of class ${priority} could`)
      }
    }
  }

  function finish(): void {
    clock.runAll()
    clock.runUntil(now() + 1e7)
    must(shaper.queued === 0, () => 'some still wait')
    for (const request of requests) must(request.end !== undefined, () => `${request.id} has no outcome`)
    for (const { inFlight, armed, roots } of gates) {
      must(inFlight === 0 && armed === 0, () => 'some are still in flight')
      for (const { count, waiting } of roots) must(count === 0 && waiting === 0, () => 'lanes are left')
    }
    for (const bucket of buckets.values()) {
      const { waiting, inFlight, place, source, extras } = bucket
      const isLeft = waiting > 0 || inFlight > 0 || place >= 0 || source !== undefined || extras !== undefined
      must(!isLeft && bucket.level(now()) === 0, () => `${bucket.limits.name} is not empty`)
    }
  }

  return {
    clock,
    arrive,
    requests,
    sent,
    turned,
    buckets,
    /** Takes all steps. */
    run(capacity: 'bounded' | 'unbounded' | 'unchecked'): void {
      steps.forEach((next, index) => {
        clock.runUntil(next.at)
        step = index
        take(next)
        if (capacity !== 'unchecked') check(capacity)
      })
    },
    finish,
  }
}

type Played = ReturnType<typeof play>

/** In a lane requests leave in the order of their arrival. */
function checkOrder({ sent }: Played): void {
  const lanes = new Map<string, number>()
  for (const { request } of sent) {
    if (request.isSpecial) continue
    const { key, route, gate, priority } = request.arriving
    const lane = `${key} ${route} ${gate} ${priority}`
    must((lanes.get(lane) ?? -1) < request.id, () => `${request.id} leaves too late`)
    lanes.set(lane, request.id)
  }
}

/** In no window more leaves than docs/semantics.md allows. */
function checkBounds({ sent, buckets }: Played): void {
  for (const bucket of buckets.values()) {
    const { rate, burst = 0, name } = bucket.limits
    const own = sent.filter(({ request }) => request.arrival.stack.includes(bucket))
    const most = Math.max(burst, ...own.map(({ request }) => request.arrival.cost))
    for (const [place, first] of own.entries()) {
      let sum = 0
      for (const { request, at } of own.slice(place)) {
        sum += request.arrival.cost
        const { stack } = request.arrival
        const allowed = rate * (at - first.at + graceAt(bucket.limits, stack.indexOf(bucket), stack.length)) + most
        must(sum <= allowed + EPSILON, () => `${name}: ${sum} from ${first.at} to ${at}`)
      }
    }
  }
}

const gap = fc.constantFrom(0, 0, 0, 0.5, 1, 9.9, 10, 10.1, 25, 50, 100, 333.25)
const cost = fc.constantFrom(1, 1, 1, 1, 2, 0.5, 0.1, 1.7, 3)
const which = fc.constantFrom(0, 1)
const key = fc.constantFrom('a', 'b', 'c')

interface Kinds {
  readonly fates?: Fate[]
  readonly ready?: number[]
  readonly gates?: number[]
  readonly others: readonly ('cancel' | 'pause' | 'meter' | 'rate' | 'reset' | 'replan')[]
  readonly most?: number
}

const OTHERS = {
  cancel: fc.record({ kind: fc.constant('cancel' as const), nth: fc.integer({ min: 1, max: 8 }) }),
  pause: fc.record({ kind: fc.constant('pause' as const), gate: which, ms: fc.constantFrom(3, 30, 250) }),
  meter: fc.record({ kind: fc.constant('meter' as const), key, gate: which, cost }),
  rate: fc.record({ kind: fc.constant('rate' as const), key, which, factor: fc.constantFrom(0.5, 2) }),
  reset: fc.record({ kind: fc.constant('reset' as const), key, which }),
  replan: fc.record({ kind: fc.constant('replan' as const) }),
}

function stepsOf({ fates = ['now'], ready = [0], gates = [0, 0, 1], others, most = 60 }: Kinds): fc.Arbitrary<Step[]> {
  const arriving = fc.record({
    kind: fc.constant('arrive' as const),
    key,
    route: fc.constantFrom('r', 'r', 's'),
    gate: fc.constantFrom(...gates),
    cost,
    priority: fc.constantFrom(0, 0, 3, 3, 6, 7, 7),
    fate: fc.constantFrom(...fates),
    connect: fc.constantFrom(0, 0.5, 5, 30, 400),
    ready: fc.constantFrom(...ready),
  })
  const other = fc.oneof(...others.map(kind => OTHERS[kind] as fc.Arbitrary<Step>))
  const one = fc.oneof({ weight: 6, arbitrary: arriving as fc.Arbitrary<unknown> }, { weight: 1, arbitrary: other })
  return fc.array(fc.tuple(gap, one), { minLength: 2, maxLength: most, size: 'max' }).map(all => {
    let at = 0
    return all.map(([after, step]) => {
      at += after
      return { ...(step as Step), at }
    })
  })
}

function sizeOf(name: string, capacities: number[]): fc.Arbitrary<BucketLimits> {
  return fc
    .record({
      perSecond: fc.constantFrom(1, 3, 10, 100),
      capacity: fc.constantFrom(...capacities),
      burst: fc.constantFrom(undefined, undefined, 1, 2, 4.5),
      minShare: fc.constantFrom(0, 0.05, 0.5),
      overflow: fc.constantFrom('reject' as const, 'fair' as const),
    })
    .map(({ perSecond, capacity, burst, minShare, overflow }) => ({
      ...limits(perSecond, capacity, name),
      minShare,
      overflow,
      ...(burst !== undefined && { burst }),
    }))
}

function worldOf(capacities = [2, 5, 10, 1e9]): fc.Arbitrary<World> {
  return fc.record({
    own: fc.option(sizeOf('client', capacities), { freq: 5 }),
    everyone: sizeOf('everyone', capacities),
    maxInFlight: fc.constantFrom(Infinity, Infinity, 1, 2),
    service: fc.constantFrom(0, 0, 7, 120),
    maxWait: fc.constantFrom(Infinity, Infinity, 1_000, 100),
    maxQueued: fc.constantFrom(Infinity, Infinity, 4),
  })
}

const ALL_FATES: Fate[] = ['now', 'now', 'now', 'now', 'lost', 'connects', 'fails', 'dies']

t.test(
  'property: bodies, hang-ups, pauses, two upstreams: order, bounds, capacity, and nobody stands still',
  async () => {
    const steps = stepsOf({ fates: ['now', 'now', 'lost'], ready: [0, 0, 0, 5, 60, 400], others: ['cancel', 'pause'] })
    fc.assert(
      fc.property(worldOf(), steps, (world, sequence) => {
        const played = play(world, sequence)
        played.run('bounded')
        played.finish()
        checkOrder(played)
        checkBounds(played)
      }),
      { seed: 71, numRuns: runs(500) },
    )
  },
)

t.test('property: with connections that open late or fail, too, the bound is that of what is sent', async () => {
  const steps = stepsOf({ fates: ALL_FATES, ready: [0, 0, 0, 5, 60], gates: [0], others: ['cancel', 'pause'] })
  fc.assert(
    fc.property(worldOf(), steps, (world, sequence) => {
      const played = play(world, sequence)
      played.run('unbounded')
      played.finish()
      checkBounds(played)
    }),
    { seed: 72, numRuns: runs(500) },
  )
})

t.test('property: whatever else happens, each has one outcome, nobody stands still, and nothing is left', async () => {
  const others = ['cancel', 'pause', 'meter', 'rate', 'reset', 'replan'] as const
  const steps = stepsOf({ fates: ALL_FATES, ready: [0, 0, 0, 5, 60], others })
  fc.assert(
    fc.property(worldOf(), steps, (world, sequence) => {
      const played = play(world, sequence)
      played.run('unbounded')
      played.finish()
    }),
    { seed: 73, numRuns: runs(500) },
  )
})

/** Who comes again when it was told to is admitted, if nobody else comes. */
function checkPromises(world: World, steps: readonly Step[]): void {
  for (const [index, { kind }] of steps.entries()) {
    if (kind !== 'arrive') continue
    const first = play(world, steps.slice(0, index + 1))
    first.run('unchecked')
    for (const { request, rejection, by } of first.turned) {
      if (by !== index || rejection.retryAfterMs === undefined) continue
      const second = play(world, steps.slice(0, index + 1))
      second.run('unchecked')
      second.clock.runUntil(second.clock.now() + rejection.retryAfterMs + 1e-3)
      const again = second.arrive(request.arriving)
      must(again.end !== 'rejected', () => `${request.id} was told ${rejection.retryAfterMs}`)
    }
  }
}

const PLAIN: World = {
  own: null,
  everyone: limits(1, 10, 'everyone'),
  maxInFlight: Infinity,
  service: 0,
  maxWait: Infinity,
  maxQueued: Infinity,
}

function arriveAt(at: number, more: Partial<Arriving> = {}): Step {
  const usual = { key: 'a', route: 'r', gate: 0, cost: 1, priority: 3, fate: 'now', connect: 0, ready: 0 } as const
  return { kind: 'arrive', at, ...usual, ...more }
}

function endsOf({ requests }: Played): unknown[] {
  return requests.map(({ end, endAt }) => [end, Math.round(endAt)])
}

/** Where a class behind leaves first, and where a client's own bucket drains only from its first release on. */
const TOLD_TOO_LITTLE: [World, Step[]][] = [
  [
    { ...PLAIN, own: limits(1, 5), everyone: { ...limits(3, 1e9, 'everyone'), minShare: 0 } },
    [
      arriveAt(0, { key: 'b', priority: 0 }),
      arriveAt(0, { cost: 3 }),
      ...[1, 1, 1, 3].map(cost => arriveAt(0, { key: 'b', priority: 0, cost })),
      arriveAt(0, { priority: 0 }),
      arriveAt(0, { priority: 0 }),
    ],
  ],
  [
    { ...PLAIN, own: limits(1, 2), everyone: { ...limits(3, 2, 'everyone'), minShare: 0 } },
    [
      arriveAt(0, { key: 'b' }),
      arriveAt(0, { cost: 0.1 }),
      arriveAt(0, { cost: 0.1 }),
      arriveAt(0, { key: 'c', cost: 2 }),
      { kind: 'pause', gate: 0, ms: 3, at: 0 },
      arriveAt(0),
    ],
  ],
]

t.test('property: Retry-After is enough with priorities, bursts, pauses, and metered requests', async () => {
  const steps = stepsOf({ others: ['cancel', 'pause', 'meter'], most: 25 })
  const world = worldOf([2, 5, 10, 1e9]).map(each => ({
    ...each,
    maxInFlight: Infinity,
    service: 0,
    maxQueued: Infinity,
  }))
  fc.assert(fc.property(world, steps, checkPromises), { seed: 74, numRuns: runs(1_000), examples: TOLD_TOO_LITTLE })
})

t.test('one that makes room with a burst lets nobody overtake a lower number', async t => {
  const world = { ...PLAIN, everyone: { ...limits(3, 2, 'everyone'), burst: 1 } }
  const played = play(world, [
    arriveAt(0, { priority: 0 }),
    // It waits for what the first has left, of which a cheaper one need not wait for all.
    arriveAt(333, { priority: 0 }),
    arriveAt(333, { priority: 7, cost: 0.5 }),
    arriveAt(333, { priority: 3, cost: 0.5 }),
  ])
  played.run('bounded')
  played.finish()
  t.same(endsOf(played), [
    ['sent', 0],
    ['sent', 333],
    ['displaced', 333],
    ['sent', 500],
  ])
  t.same(
    played.sent.map(({ request }) => request.id),
    [0, 1, 3],
  )
})

t.test('one that is not sent at its turn leaves its place in flight to those with other keys', async t => {
  const world = { ...PLAIN, own: limits(1, 10), everyone: null, maxInFlight: 1, service: 100 }
  const played = play(world, [
    arriveAt(0, { key: 'a' }),
    arriveAt(10, { key: 'b', fate: 'lost' }),
    arriveAt(20, { key: 'c' }),
  ])
  played.run('bounded')
  played.finish()
  t.same(endsOf(played), [
    ['sent', 0],
    ['lost', 100],
    ['sent', 100],
  ])
})

t.test('a metered request drains nothing of a burst while a connection opens', async () => {
  const world = { ...PLAIN, everyone: { ...limits(100, 20, 'everyone'), burst: 4 } }
  const played = play(world, [
    arriveAt(0, { cost: 4, fate: 'connects', connect: 50 }),
    { kind: 'meter', at: 40, key: 'a', gate: 1, cost: 0.1 },
    arriveAt(41, { cost: 3.9 }),
  ])
  played.run('unbounded')
  played.finish()
  checkBounds(played)
})

t.test('Retry-After counts that no class alone has all that has to leave', async t => {
  const world = { ...PLAIN, own: limits(1, 2), everyone: limits(100, 2, 'everyone') }
  const steps: Step[] = [
    arriveAt(0, { key: 'b', priority: 0 }),
    // It leaves at 1000 ms, and the next one of b after it.
    arriveAt(100, { key: 'b', priority: 0 }),
    { kind: 'pause', at: 100, gate: 0, ms: 3 },
    arriveAt(100, { key: 'a', priority: 7, cost: 0.5 }),
    arriveAt(100, { key: 'b', priority: 0, cost: 0.1 }),
    arriveAt(100, { key: 'a', priority: 0 }),
  ]
  const { run, turned } = play(world, steps)
  run('bounded')
  const { retryAfterMs } = turned.at(-1)!.rejection
  t.ok(retryAfterMs! >= 900, String(retryAfterMs))
  checkPromises(world, steps)
})

t.test('who makes room is told when it would wait no longer than it may', async t => {
  const world = { ...PLAIN, everyone: limits(1, 5, 'everyone'), maxWait: 3_000 }
  const steps = [0, 7, 0, 0].map(priority => arriveAt(0, { priority }))
  steps.push(arriveAt(0, { priority: 0, cost: 2 }))
  const { run, turned } = play(world, steps)
  run('bounded')
  t.same(
    turned.map(({ rejection }) => Math.round(rejection.retryAfterMs!)),
    [2_000],
  )
  checkPromises(world, steps)
})
