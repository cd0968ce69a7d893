/** Armed releases change nothing: what is sent, in which slot and in which order is what the core would do by itself. */

import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import {
  type ArmedSend,
  Gate,
  type ReleasePlan,
  type SharedBucket,
  Ticket,
  type Waiter,
} from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { often, runs } from '../runs.js'
import { limits, random } from './run.js'

/** ms. Times closer than this are one. */
const EPSILON = 1e-6

/**
 * Of Alice's rate, and the rate of everyone: chosen so that two lanes hardly ever become free in the same moment. Whose turn
 * comes first then depends on the order of a heap, which arming changes.
 */
const BOBS_SHARE = 0.93
const EVERYONE = 97

type Step = { readonly at: number } & (
  | {
      readonly kind: 'arrive'
      readonly route: string
      readonly key: string
      readonly cost: number
      readonly client: string
      readonly priority?: number
    }
  | { readonly kind: 'meter'; readonly key: string }
  | { readonly kind: 'cancel'; readonly nth: number }
  | { readonly kind: 'sendAgain'; readonly nth: number }
  | { readonly kind: 'pause'; readonly ms: number }
  | { readonly kind: 'rate'; readonly key: string; readonly perSecond: number }
  | { readonly kind: 'reset'; readonly key: string }
  | { readonly kind: 'replan' }
)

interface World {
  readonly perSecond: number
  readonly everyone: number
  /** Undefined: none. */
  readonly burst: number | undefined
  readonly everyonesBurst: number | undefined
  readonly overflow: 'reject' | 'fill' | 'fair'
  readonly maxInFlight: number
  readonly maxQueued: number
  /** Most of Bob's requests in flight. 0: any number. */
  readonly bobsPlaces: number
  /** ms from a release to the end of its answer. */
  readonly service: number
  readonly maxWait: number
}

/** How the armed releases are sent. */
interface Sender {
  /** ms after the slot. */
  readonly late: () => number
  /** Whether a send comes before its revocation, which is made in the last ms before its slot. */
  readonly wins: () => boolean
  /** Whether a release can be armed at all. */
  readonly able: () => boolean
}

interface Sent {
  readonly id: number
  readonly key: string
  readonly cost: number
  readonly slot: number
  readonly at: number
}

interface Result {
  /** In the order of the wire. */
  readonly sent: Sent[]
  /** Of each arrival: what became of it. */
  readonly ends: Map<number, string>
  /** How many were sent by the sender. */
  readonly armedSends: number
  readonly faults: string[]
}

/** @param sender undefined: nothing is armed */
function play(world: World, steps: readonly Step[], lateness: () => number, sender?: Sender): Result {
  let wakesLate = true
  let jumped = 0
  let stall = { from: 0, until: 0 }
  const virtual = createVirtualClock({ lateness: () => (wakesLate ? lateness() : 0) })
  const now = (): number => virtual.now() + jumped
  const clock = { now, at: (due: number, run: () => void) => virtual.at(due - jumped, run) }
  const timer = sender && clock
  const shaper = new Shaper({ clock, maxQueued: world.maxQueued, ...(timer && { timer }) })
  const buckets = new Map<string, SharedBucket>()
  const gate = new Gate(world.maxInFlight)
  const routes = new Map(['a', 'b'].map(name => [name, { name, gate }]))
  const limitsOf = (key: string, perSecond: number): BucketLimits => ({
    ...limits(key === 'bob' ? perSecond * BOBS_SHARE : perSecond, 8),
    ...(world.burst !== undefined && { burst: world.burst }),
    overflow: world.overflow,
    ...(key === 'bob' && world.bobsPlaces > 0 && { maxInFlight: world.bobsPlaces }),
  })
  const { everyonesBurst } = world
  const bursts = everyonesBurst === undefined ? {} : { burst: everyonesBurst }
  const all = world.everyone > 0 ? [{ ...limits(world.everyone, 12, 'everyone'), ...bursts }] : []
  const result = { sent: [] as Sent[], ends: new Map<number, string>(), armedSends: 0, faults: [] as string[] }
  const tickets = new Map<number, Ticket>()
  const stackOf = (key: string): SharedBucket[] => [
    find(limitsOf(key, world.perSecond), key),
    ...all.map(each => find(each, 'all')),
  ]

  function find(bucketLimits: BucketLimits, key: string): SharedBucket {
    const bucket: SharedBucket = buckets.get(key) ?? new QueuedBucket(bucketLimits)
    buckets.set(key, bucket)
    return bucket
  }

  class FakeSend implements ArmedSend {
    sentAt: number | undefined = undefined
    revoked = false
    closed = false
    followed = false
    readonly slot: number
    readonly #plan: ReleasePlan
    readonly #write: (at: number) => void

    constructor(plan: ReleasePlan, write: (at: number) => void) {
      this.#plan = plan
      this.#write = write
      this.slot = plan.slot
      const before = plan.after as FakeSend | undefined
      if (before !== undefined) before.followed = true
      wakesLate = false
      // One thread sends them all: while it is late with one, it is late with the others.
      let at = plan.slot + sender!.late()
      if (stall.from <= plan.slot) at = Math.max(at, stall.until)
      if (at - plan.slot > 1) stall = { from: plan.slot, until: at }
      virtual.at(at - jumped, () => this.#send())
      wakesLate = true
    }

    /** As the pacing thread does it: `write` in src/pacing/pacing-thread.js. */
    #send(): void {
      const before = this.#plan.after as FakeSend | undefined
      if (this.sentAt !== undefined) return
      const isTooLate = before !== undefined && !before.closed && !(before.sentAt! <= before.#plan.latest)
      if (!this.revoked && !isTooLate) {
        this.sentAt = now()
        this.#write(this.sentAt)
        if (this.followed) return
      }
      clock.at(now(), () => shaper.wake())
    }

    revoke(): boolean {
      const left = this.slot - now()
      if (!this.revoked && this.sentAt === undefined && left > 0 && left < 1 && sender!.wins()) {
        jumped += left
        this.#send()
      }
      if (this.sentAt !== undefined) return false
      this.revoked = true
      return true
    }

    close(): void {
      if (this.closed) result.faults.push('closed twice')
      if (!this.revoked && this.sentAt === undefined) result.faults.push('closed while it is armed')
      this.closed = true
    }
  }

  function over(id: number, end: string): void {
    if (result.ends.has(id)) result.faults.push(`${id} is ${result.ends.get(id)} and ${end}`)
    result.ends.set(id, end)
  }

  function write(sent: Sent): void {
    if (result.sent.some(({ id }) => id === sent.id)) result.faults.push(`${sent.id} was sent twice`)
    result.sent.push(sent)
  }

  function enter(at: number, key: string): void {
    const stack = stackOf(key)
    if (world.service === 0) {
      gate.leave()
      return shaper.leave(undefined, stack)
    }
    wakesLate = false
    clock.at(at + world.service, () => {
      shaper.leave(gate, stack)
      shaper.wake(gate)
    })
    wakesLate = true
    if (gate.inFlight > gate.maxInFlight) result.faults.push(`${gate.inFlight} in flight`)
  }

  function waiterOf(id: number, key: string, cost: number): Waiter {
    let armed: FakeSend | undefined
    return {
      release(slot, at) {
        over(id, 'released')
        if (armed?.sentAt === undefined) write({ id, key, cost, slot, at: now() })
        else if (Math.abs(armed.slot - slot) > EPSILON)
          result.faults.push(`${id} sent in ${armed.slot}, not in ${slot}`)
        else if (at < slot - EPSILON) result.faults.push(`${id} left at ${at}, before ${slot}`)
        enter(at, key)
      },
      expire: () => over(id, 'expired'),
      reject: () => over(id, 'displaced'),
      ...(sender && {
        arm(plan: ReleasePlan) {
          if (!sender.able()) return undefined
          armed = new FakeSend(plan, at => {
            result.armedSends += 1
            write({ id, key, cost, slot: plan.slot, at })
          })
          return armed
        },
      }),
    }
  }

  function arrive(step: Extract<Step, { kind: 'arrive' }>, id: number): void {
    const { cost, client, priority = 3 } = step
    const arrival = { route: routes.get(step.route)!, stack: stackOf(step.key), cost, client, priority }
    const verdict = shaper.admit(arrival, waiterOf(id, step.key, step.cost), world.maxWait)
    if (verdict instanceof Ticket) {
      tickets.set(id, verdict)
      if (verdict.slot !== undefined) shaper.wake()
    } else if (verdict !== 'released') over(id, verdict.reason)
    else {
      over(id, 'released')
      write({ id, key: step.key, cost: step.cost, slot: now(), at: now() })
      enter(now(), step.key)
    }
  }

  function sendAgain(id: number, before: number): void {
    // Its answer has come.
    shaper.wake()
    const ticket = tickets.get(before)
    if (ticket === undefined || result.ends.get(before) !== 'released') return
    const { lane, cost, arrivedAt } = ticket
    const key = result.sent.find(each => each.id === before)!.key
    const again = shaper.requeue(
      { route: lane.route, stack: stackOf(key), cost },
      waiterOf(id, key, cost),
      60_000,
      arrivedAt,
    )
    if (again === undefined) over(id, 'not sent again')
    else shaper.wake()
  }

  function take(step: Step, id: number): void {
    switch (step.kind) {
      case 'arrive':
        return arrive(step, id)
      case 'meter': {
        const verdict = shaper.meter({ route: routes.get('a')!, stack: stackOf(step.key), cost: 1 })
        over(id, verdict === 'released' ? 'metered' : verdict.reason)
        return verdict === 'released' ? enter(now(), step.key) : undefined
      }
      case 'cancel': {
        const ticket = tickets.get(id - step.nth)
        if (ticket !== undefined && shaper.cancel(ticket)) over(id - step.nth, 'cancelled')
        return
      }
      case 'sendAgain':
        return sendAgain(id, id - step.nth)
      case 'pause':
        return void shaper.engine.pause(gate, step.ms)
      case 'rate':
        return shaper.engine.setLimits(stackOf(step.key)[0]!, limitsOf(step.key, step.perSecond))
      case 'reset':
        return shaper.engine.reset(stackOf(step.key)[0]!)
      case 'replan':
        shaper.engine.replan([gate], () => world.maxWait)
    }
  }

  steps.forEach((step, id) => {
    virtual.runUntil(step.at - jumped)
    take(step, id)
  })
  virtual.runAll()
  if (gate.armed !== 0) result.faults.push(`${gate.armed} still armed`)
  if (shaper.queued !== 0) result.faults.push(`${shaper.queued} still queued`)
  return result
}

const gap = fc.constantFrom(0, 0, 0, 0.5, 1, 3, 9.9, 10, 10.1, 25, 60, 333)
const key = fc.constantFrom('alice', 'alice', 'bob')
const arrival = fc.record({
  kind: fc.constant('arrive' as const),
  route: fc.constantFrom('a', 'a', 'a', 'b'),
  key,
  // Two only: of more, two may have the same number waiting, and either may make room.
  client: fc.constantFrom('x', 'x', 'y'),
  priority: fc.constantFrom(3, 3, 3, 3, 0, 7),
  cost: fc.constantFrom(1, 1, 1, 2, 0.5),
})
const change = fc.oneof(
  fc.record({ kind: fc.constant('cancel' as const), nth: fc.integer({ min: 1, max: 6 }) }),
  fc.record({ kind: fc.constant('cancel' as const), nth: fc.integer({ min: 1, max: 6 }) }),
  fc.record({ kind: fc.constant('sendAgain' as const), nth: fc.integer({ min: 1, max: 6 }) }),
  fc.record({ kind: fc.constant('meter' as const), key }),
  fc.record({ kind: fc.constant('pause' as const), ms: fc.constantFrom(3, 30) }),
  fc.record({ kind: fc.constant('rate' as const), key, perSecond: fc.constantFrom(50, 200) }),
  fc.record({ kind: fc.constant('reset' as const), key }),
  fc.record({ kind: fc.constant('replan' as const) }),
)
const steps: fc.Arbitrary<Step[]> = fc
  .array(fc.tuple(gap, fc.oneof({ weight: 4, arbitrary: arrival }, { weight: 1, arbitrary: change })), {
    minLength: 2,
    maxLength: 50,
    size: 'max',
  })
  .map(all => {
    let at = 0
    return all.map(([gap, step]) => {
      at += gap
      return { ...step, at } as Step
    })
  })
const world: fc.Arbitrary<World> = fc.record({
  perSecond: fc.constantFrom(10, 100, 500, 1_000),
  everyone: fc.constantFrom(0, 0, EVERYONE),
  burst: fc.constantFrom(undefined, undefined, undefined, 1.5, 4),
  everyonesBurst: fc.constantFrom(undefined, 2),
  overflow: fc.constantFrom('reject', 'fill', 'fair'),
  maxInFlight: fc.constantFrom(Infinity, Infinity, 1, 2),
  maxQueued: fc.constantFrom(Infinity, Infinity, Infinity, 1, 3),
  bobsPlaces: fc.constantFrom(0, 0, 0, 1, 2),
  service: fc.constantFrom(0, 0, 7, 40),
  maxWait: fc.constantFrom(60_000, 60_000, 35),
})

/** The last cancellation comes less than a rounding before the slot of what it cancels. */
const cancelledAtItsSlot: [World, Step[], number] = [
  {
    perSecond: 10,
    everyone: 0,
    burst: undefined,
    everyonesBurst: undefined,
    overflow: 'reject',
    maxInFlight: Infinity,
    maxQueued: Infinity,
    bobsPlaces: 0,
    service: 0,
    maxWait: 60_000,
  },
  [
    arriveAt(25),
    { kind: 'rate', key: 'alice', perSecond: 50, at: 25 },
    arriveAt(34.9),
    { kind: 'cancel', nth: 1, at: 44.8 },
    { kind: 'cancel', nth: 1, at: 47.8 },
    { kind: 'reset', key: 'alice', at: 58.8 },
    arriveAt(118.8),
    arriveAt(128.7),
    { kind: 'cancel', nth: 1, at: 138.79999999999998 },
    arriveAt(138.79999999999998),
  ],
  0,
]

/** Each place at the gate becomes free in the slot of another lane. */
const answeredInSlots: [World, Step[], number] = [
  { ...cancelledAtItsSlot[0], maxInFlight: 2, service: 40 },
  [
    { kind: 'rate', key: 'alice', perSecond: 50, at: 0 },
    ...[0, 0, 0].map(at => arriveAt(at)),
    { ...arriveAt(0), priority: 0 },
    arriveAt(0),
    arriveAt(0),
    arriveAt(25),
    { kind: 'cancel', nth: 4, at: 25 },
    { ...arriveAt(25), key: 'bob', priority: 0 },
  ],
  0,
]

/** The bucket of everyone waits for a cost that is cancelled before its slot, but after that of the next one. */
const cheaperBehind: [World, Step[], number] = [
  { ...cancelledAtItsSlot[0], perSecond: 100, everyone: EVERYONE, everyonesBurst: 2 },
  [
    arriveAt(0),
    arriveAt(0),
    { kind: 'sendAgain', nth: 1, at: 9.9 },
    { ...arriveAt(9.9), key: 'bob' },
    { ...arriveAt(9.9), cost: 2 },
    { kind: 'cancel', nth: 2, at: 12.9 },
    arriveAt(12.9),
    { kind: 'cancel', nth: 3, at: 23 },
    arriveAt(23),
    arriveAt(23),
  ],
  0,
]

function arriveAt(at: number): Extract<Step, { kind: 'arrive' }> {
  return { kind: 'arrive', route: 'a', key: 'alice', client: 'x', cost: 1, at }
}

const never = (): boolean => false
const always = (): boolean => true
const onTime = (): number => 0

t.test('property: what is armed leaves in the same slots, in the same order, and with the same fate', async t => {
  let armedSends = 0
  fc.assert(
    fc.property(world, steps, fc.integer(), (world, steps, seed) => {
      const next = random(seed)
      const plain = play(world, steps, onTime)
      const armed = play(world, steps, onTime, { late: onTime, wins: never, able: () => next() < 0.9 })
      armedSends += armed.armedSends
      same(plain, armed)
    }),
    { numRuns: runs(5_000), examples: [cancelledAtItsSlot, answeredInSlots, cheaperBehind] },
  )
  t.ok(armedSends > often(10_000), `${armedSends} were sent by the sender`)
})

t.test('property: the same with a core that wakes late, within the grace', async t => {
  let armedSends = 0
  fc.assert(
    fc.property(world, steps, fc.integer(), (world, steps, seed) => {
      const next = random(seed)
      // Without what depends on when the core wakes: a free place in flight, and whom a bucket with a burst waits for next while
      // several contend. That is chosen at a slot, among those whose own bucket is free, and lateness beyond its grace moves that.
      const calm = { maxInFlight: Infinity, bobsPlaces: 0, service: 0, maxWait: 60_000, everyonesBurst: undefined }
      const free = { ...world, ...calm }
      const quiet = steps.filter(({ kind }) => kind === 'arrive')
      const plain = play(free, quiet, onTime)
      const armed = play(free, quiet, () => next() * 2, { late: () => next() * 0.2, wins: never, able: always })
      armedSends += armed.armedSends
      const slots = ({ sent }: Result): string =>
        [...sent]
          .sort((a, b) => a.id - b.id)
          .map(described)
          .join()
      if (slots(plain) !== slots(armed)) throw new Error(`${slots(plain)}\n${slots(armed)}`)
      faultless(armed)
    }),
    { numRuns: runs(3_500) },
  )
  t.ok(armedSends > often(10_000), `${armedSends} were sent by the sender`)
})

/** ms. A stack has a second bucket where everyone has one. */
function graceOf({ perSecond, everyone }: World): number {
  return Math.max((everyone > 0 ? 4_000 : 1_000) / perSecond, 5)
}

t.test('property: whoever wins the race at the slot, each is sent once, in order, and within the bound', async () => {
  fc.assert(
    fc.property(world, steps, fc.integer(), (world, steps, seed) => {
      const next = random(seed)
      const calm = steps.filter(({ kind }) => kind !== 'rate' && kind !== 'reset' && kind !== 'meter')
      const late = (): number => (next() < 0.1 ? next() * 30 : next() * 0.5)
      const lateness = (): number => (next() < 0.1 ? next() * 50 : next() * 2)
      const result = play(world, calm, lateness, { late, wins: () => next() < 0.5, able: () => next() < 0.9 })
      faultless(result)
      const grace = graceOf(world)
      for (const key of ['alice', 'bob']) {
        const mine = result.sent.filter(sent => sent.key === key)
        const costs = mine.map(({ cost }) => cost)
        for (let from = 0; from < mine.length; from += 1) {
          let sum = 0
          for (let to = from; to < mine.length; to += 1) {
            sum += costs[to]!
            const window = mine[to]!.at - mine[from]!.at
            const allowed = (world.perSecond / 1_000) * (window + grace) + Math.max(world.burst ?? 0, ...costs)
            if (sum > allowed + EPSILON) throw new Error(`${key}: ${sum} in ${window} ms, ${allowed} allowed`)
          }
        }
      }
    }),
    { numRuns: runs(3_000) },
  )
})

t.test('a waiter that calls back in while the one behind it, armed, is too late', t => {
  const clock = createVirtualClock()
  let now = 0
  const shaper = new Shaper({ clock: { now: () => now, at: clock.at }, timer: { now: () => now, at: clock.at } })
  const bucket: SharedBucket = new QueuedBucket(limits(100, 8))
  const route = { name: 'route', gate: new Gate() }
  const ends: string[] = []
  const sends: { sentAt: number | undefined }[] = []
  function waiter(name: string): Waiter {
    return {
      release() {
        ends.push(`${name} released`)
        shaper.wake()
      },
      expire: () => ends.push(`${name} expired`),
      reject: () => ends.push(`${name} rejected`),
      arm({ slot }) {
        const send = { slot, sentAt: undefined, revoke: () => send.sentAt === undefined, close: () => undefined }
        sends.push(send)
        return send
      },
    }
  }
  for (const name of ['first', 'second', 'third']) {
    shaper.admit({ route, stack: [bucket], cost: 1 }, waiter(name), 25)
  }
  t.equal(sends.length, 2)
  // Its slot is 10 ms. It is sent so late that the slot of the third moves from 20 ms to 30 ms.
  sends[0]!.sentAt = 29
  now = 29
  shaper.wake()
  t.same(ends, ['second released', 'third expired'])
  t.same([shaper.queued, route.gate.armed], [0, 0])
  t.end()
})

t.test('a request that cannot be armed leaves in its slot behind one that is', t => {
  const virtual = createVirtualClock()
  // Nobody wakes the core where some ms do not matter.
  const timer = { now: virtual.now, at: () => () => false }
  const shaper = new Shaper({ clock: virtual, timer })
  const bucket: SharedBucket = new QueuedBucket(limits(1_000, 8))
  const route = { name: 'route', gate: new Gate() }
  const left: string[] = []
  function waiter(name: string, isAble: boolean): Waiter {
    return {
      release: (slot, now) => left.push(`${name} ${slot} ${now}`),
      expire: () => left.push(`${name} expired`),
      reject: () => left.push(`${name} rejected`),
      arm({ slot }) {
        if (!isAble) return undefined
        const sentAt = (): number | undefined => (virtual.now() >= slot ? slot : undefined)
        return {
          slot,
          get sentAt() {
            return sentAt()
          },
          revoke: () => sentAt() === undefined,
          close: () => undefined,
        }
      },
    }
  }
  shaper.admit({ route, stack: [bucket], cost: 1 }, waiter('first', true), 1_000)
  shaper.admit({ route, stack: [bucket], cost: 1 }, waiter('second', true), 1_000)
  shaper.admit({ route, stack: [bucket], cost: 1 }, waiter('third', false), 1_000)
  virtual.runUntil(10)
  t.same(left, ['second 1 1', 'third 2 2'])
  t.end()
})

t.test('what was sent just before its bucket is held is taken note of', t => {
  const virtual = createVirtualClock()
  // Nobody wakes the core where some ms do not matter.
  const timer = { now: virtual.now, at: () => () => false }
  const shaper = new Shaper({ clock: virtual, timer })
  const [everyone, bob, alice] = [5_000, 1_000, 1_000].map(rate => new QueuedBucket(limits(rate, 8)) as SharedBucket)
  const route = { name: 'route', gate: new Gate() }
  const left: string[] = []
  const sends: { slot: number; sentAt: number | undefined }[] = []
  const waiter: Waiter = {
    release: (slot, now) => left.push(`${slot.toFixed(1)} ${now.toFixed(1)}`),
    expire: () => left.push('expired'),
    reject: () => left.push('rejected'),
    arm({ slot }) {
      const send = { slot, sentAt: undefined, revoke: () => send.sentAt === undefined, close: () => undefined }
      sends.push(send)
      return send
    },
  }
  const bobs = { route, stack: [bob!, everyone!], cost: 1 }
  const alices = { route, stack: [alice!, everyone!], cost: 1 }
  t.equal(shaper.admit(bobs, waiter), 'released')
  shaper.admit(bobs, waiter)
  virtual.runUntil(0.9)
  t.equal(shaper.admit(alices, waiter), 'released')
  // Alice's finds no connection. Before that is known, Bob's second one is sent in its slot.
  virtual.runUntil(1.2)
  const { slot } = Object.assign(sends.at(-1)!, { sentAt: sends.at(-1)!.slot })
  shaper.engine.hold(alices)
  t.same(left, [`${slot.toFixed(1)} ${slot.toFixed(1)}`])
  t.equal(route.gate.armed, 0)
  shaper.admit(bobs, waiter)
  virtual.runUntil(50)
  shaper.engine.recall()
  t.equal(left.length, 1, 'nothing passes while they are held')
  shaper.engine.unhold(alices, 'sent')
  virtual.runUntil(60)
  t.equal(left.length, 2)
  t.end()
})

function described({ id, slot }: Sent): string {
  return `${id}@${slot.toFixed(5)}`
}

function faultless({ faults }: Result): void {
  if (faults.length > 0) throw new Error(faults.join('; '))
}

function same(plain: Result, armed: Result): void {
  faultless(plain)
  faultless(armed)
  const order = ({ sent }: Result): string =>
    [...sent]
      .sort((a, b) => a.slot - b.slot || a.id - b.id)
      .map(described)
      .join()
  if (order(plain) !== order(armed)) throw new Error(`${order(plain)}\n${order(armed)}`)
  const ends = ({ ends }: Result): string =>
    [...ends]
      .sort(([a], [b]) => a - b)
      .map(String)
      .join(' ')
  if (ends(plain) !== ends(armed)) throw new Error(`${ends(plain)}\n${ends(armed)}`)
}

t.test('a lower number takes back what is armed, and leaves first', t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock, timer: clock })
  const bucket: SharedBucket = new QueuedBucket(limits(100, 10))
  const route = { name: 'route', gate: new Gate() }
  const released: string[] = []
  let revoked = 0
  const send = (name: string, priority: number): void => {
    const waiter: Waiter = {
      release: slot => released.push(`${name} ${Math.round(slot)}`),
      expire() {},
      reject() {},
      arm: ({ slot }) => {
        clock.at(slot, () => shaper.wake())
        const revoke = (): boolean => {
          revoked += 1
          return true
        }
        return { slot, sentAt: undefined, revoke, close() {} }
      },
    }
    const verdict = shaper.admit({ route, stack: [bucket], cost: 1, priority }, waiter)
    if (verdict === 'released') released.push(`${name} ${Math.round(clock.now())}`)
  }
  for (const name of ['a', 'b', 'c']) send(name, 7)
  clock.runUntil(8)
  t.equal(revoked, 0)
  send('first', 0)
  t.ok(revoked > 0)
  clock.runAll()
  t.same(released, ['a 0', 'first 10', 'b 20', 'c 30'])
  t.end()
})
