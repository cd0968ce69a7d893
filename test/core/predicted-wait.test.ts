import fc from 'fast-check'
import t from 'tap'
import { predictedWait } from '../../src/core/admission/predicted-wait.js'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { type Arrival, Gate, type LaneRoute, type SharedBucket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { often, runs } from '../runs.js'
import { finish, limits } from './run.js'

/** ms. What rounding may add, and what the prediction leaves out for it. */
const EPSILON = 1e-4

interface Client {
  /** Requests per second of its own bucket. 0: it has none. */
  own: number
  weight: number
  costs: number[]
  /** Its requests go to the second upstream. */
  other: boolean
}

interface World {
  /** Requests per second of the bucket that all share. */
  shared: number
  /** Cost units. Undefined: one request. */
  burst?: number
  clients: Client[]
  /** Which of them the newcomer is. One more than there are: another one. */
  newcomer: number
  cost: number
  /** ms from the arrival of all others, in which some of them leave. */
  later: number
}

function isRejection(verdict: unknown): boolean {
  return typeof verdict === 'object' && verdict !== null && 'reason' in verdict
}

/** What a newcomer is told, and how long it waits then. Times are in ms. */
function foretell({ shared, burst, clients, newcomer, cost, later }: World) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gates = [new Gate(), new Gate()] as const
  const everyone: SharedBucket = new QueuedBucket({ ...limits(shared, 1e9), ...(burst && { burst }) })
  const arrivals = [...clients, { own: 0, weight: 1, costs: [], other: false }].map(
    ({ own, weight, other }, place): Arrival => {
      const route: LaneRoute = { name: String(place), gate: gates[other ? 1 : 0] }
      const mine: SharedBucket[] = own > 0 ? [new QueuedBucket(limits(own, 1e9))] : []
      return { route, stack: [...mine, everyone], cost: 1, weight }
    },
  )
  const ignore = { release: () => undefined, expire: () => undefined, reject: () => undefined }
  const most = Math.max(0, ...clients.map(({ costs }) => costs.length))
  for (let turn = 0; turn < most; turn += 1) {
    for (const [place, { costs }] of clients.entries()) {
      if (turn < costs.length) shaper.admit({ ...arrivals[place]!, cost: costs[turn]! }, ignore)
    }
  }
  clock.runUntil(later)
  const arrival = { ...arrivals[newcomer]!, cost }
  const arrivedAt = clock.now()
  const pause = arrival.route.gate.pausedFor(arrivedAt)
  const told = Math.max(0, predictedWait(arrival, arrivedAt, pause))
  const exact = Math.max(0, predictedWait(arrival, arrivedAt, pause, Infinity))
  const [inOrder] = finish(shaper.exactWaits([{ arrival, pause }]))
  let slot = arrivedAt
  const verdict = shaper.admit(arrival, { ...ignore, release: at => (slot = at) })
  if (isRejection(verdict)) throw new Error('rejected')
  clock.runAll()
  return { told, exact, inOrder: inOrder!, waited: slot - arrivedAt }
}

const weight = fc.constant(1)
const client = fc.record({
  own: fc.constant(0),
  weight,
  costs: fc.array(fc.constant(1), { maxLength: 12 }),
  other: fc.constant(false),
})
const simple = fc
  .record({
    shared: fc.constantFrom(10, 100, 300),
    clients: fc.array(client, { minLength: 1, maxLength: 8 }),
    cost: fc.constant(1),
    later: fc.constantFrom(0, 1, 10, 25, 333),
    place: fc.nat(),
  })
  .map(({ place, ...world }) => ({ ...world, newcomer: place % (world.clients.length + 1) }))

t.test('property: clients that share a bucket: exact, whoever comes', async t => {
  let turned = 0
  fc.assert(
    fc.property(simple, world => {
      const { told, waited } = foretell(world)
      if (Math.abs(told - waited) > EPSILON) throw new Error(`told ${told}, waited ${waited}`)
      const all = (world.clients.reduce((sum, { costs }) => sum + costs.length, 0) * 1_000) / world.shared
      if (waited > 0 && waited < all / 2) turned += 1
    }),
    { numRuns: runs(3_000) },
  )
  t.ok(turned > often(500), `${turned} had their turn long before the level had left`)
})

t.test('property: with a burst: exact', async () => {
  fc.assert(
    fc.property(simple, fc.integer({ min: 1, max: 20 }), (world, burst) => {
      const { told, waited } = foretell({ ...world, burst })
      if (Math.abs(told - waited) > EPSILON) throw new Error(`told ${told}, waited ${waited}`)
    }),
    { numRuns: runs(2_000) },
  )
})

t.test('property: with whole weights: exact', async () => {
  const weighted = fc.array(fc.constantFrom(1, 2, 3), { minLength: 8, maxLength: 8 })
  fc.assert(
    fc.property(simple, weighted, (world, weights) => {
      // The least weight is known from the beginning.
      const clients = world.clients.map((client, place) =>
        place === 0 ? { ...client, costs: [...client.costs, 1] } : { ...client, weight: weights[place]! },
      )
      const { told, waited } = foretell({ ...world, clients })
      if (Math.abs(told - waited) > EPSILON) throw new Error(`told ${told}, waited ${waited}`)
    }),
    { numRuns: runs(2_000) },
  )
})

t.test('property: alone on its buckets: the longest level', async () => {
  fc.assert(
    fc.property(
      fc.constantFrom(10, 100),
      fc.constantFrom(20, 300),
      fc.nat(20),
      fc.nat(300),
      (own, shared, waits, later) => {
        const costs = Array.from({ length: waits }, () => 1)
        const { told, waited } = foretell({
          shared,
          clients: [{ own, weight: 1, costs, other: false }],
          newcomer: 0,
          cost: 1,
          later,
        })
        if (Math.abs(told - waited) > EPSILON) throw new Error(`told ${told}, waited ${waited}`)
      },
    ),
    { numRuns: runs(1_000) },
  )
})

t.test(
  'property: with buckets of their own, other upstreams and costs: exact ahead, estimated within a turn, nearly always',
  async t => {
    const mixed = fc.record({
      own: fc.constantFrom(0, 0, 5, 50, 1_000),
      weight: fc.constantFrom(1, 1, 2, 0.5),
      costs: fc.array(fc.constantFrom(1, 1, 1, 2, 0.5), { maxLength: 12 }),
      other: fc.constantFrom(false, false, false, true),
    })
    const offs: number[] = []
    let exactly = 0
    fc.assert(
      fc.property(simple, fc.array(mixed, { minLength: 1, maxLength: 8 }), (world, clients) => {
        const newcomer = world.newcomer % (clients.length + 1)
        const { told, exact, inOrder, waited } = foretell({ ...world, clients, newcomer })
        if (Math.abs(inOrder - waited) > EPSILON) throw new Error(`looked ahead to ${inOrder}, waited ${waited}`)
        if (Math.abs(exact - waited) <= EPSILON) exactly += 1
        const weights = clients.map(({ weight }) => weight)
        const others = weights.reduce((sum, weight) => sum + weight, 0) / Math.min(...weights, 1)
        // The largest cost is 2.
        const turn = (2 * (others + 1) * 1_000) / world.shared
        offs.push((told - waited) / turn)
      }),
      { numRuns: runs(3_000) },
    )
    // Of buckets that are free at one moment it does not know which is the first.
    const share = exactly / runs(3_000)
    t.ok(share > 0.993, `by looking ahead without the shaper ${share} are exact`)
    offs.sort((a, b) => a - b)
    const at = (part: number): string => offs[Math.floor(part * (offs.length - 1))]!.toFixed(2)
    t.comment(`told less waited, in turns: ${[0, 0.01, 0.1, 0.5, 0.9, 0.99, 1].map(at).join(' ')}`)
    t.ok(offs[0]! >= -3 && offs.at(-1)! <= 3)
    const within = offs.filter(off => Math.abs(off) <= 1).length / offs.length
    t.ok(within > 0.98, `${within} within a turn`)
  },
)

t.test('property: of many contenders each counts with its turns, so nobody is told too little', async () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 1, max: 4 }), { minLength: 80, maxLength: 120 }),
      fc.nat(),
      (counts, place) => {
        const clients = counts.map(count => ({
          own: 0,
          weight: 1,
          costs: Array.from({ length: count }, () => 1),
          other: false,
        }))
        const newcomer = place % (clients.length + 1)
        const { told, waited } = foretell({ shared: 1_000, clients, newcomer, cost: 1, later: 0 })
        const level = counts.reduce((sum, count) => sum + count, 0)
        if (told < waited - EPSILON || told > level) throw new Error(`told ${told}, waited ${waited}, level ${level}`)
      },
    ),
    { numRuns: runs(200) },
  )
})

t.test('a client that finds only the queue of others is admitted to its turn, and waits no longer', t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const everyone: SharedBucket = new QueuedBucket(limits(10, 1_000))
  const gate = new Gate()
  const arrival = (name: string): Arrival => ({ route: { name, gate }, stack: [everyone], cost: 1 })
  const flood = arrival('flood')
  let waited = -1
  const waiter = { release: () => undefined, expire: () => undefined, reject: () => undefined }
  for (let sent = 0; sent < 500; sent += 1) shaper.admit(flood, waiter)
  t.ok(isRejection(shaper.admit(arrival('quick'), waiter, 150)), 'its turn comes after 200 ms')
  const again = { ...waiter, release: (slot: number) => (waited = slot) }
  t.notOk(isRejection(shaper.admit(arrival('patient'), again, 250)), 'all of the level takes 50 s')
  t.ok(isRejection(shaper.admit(flood, waiter, 40_000)), 'the one who floods waits for its own')
  clock.runUntil(1_000)
  t.equal(waited, 200)
  t.end()
})

t.test('a pause comes first', t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const everyone: SharedBucket = new QueuedBucket(limits(10, 1_000))
  const gate = new Gate()
  const waiter = { release: () => undefined, expire: () => undefined, reject: () => undefined }
  const one: Arrival = { route: { name: 'one', gate }, stack: [everyone], cost: 1 }
  const other: Arrival = { ...one, route: { name: 'other', gate } }
  for (let sent = 0; sent < 50; sent += 1) shaper.admit(one, waiter)
  shaper.engine.pause(gate, 5_000)
  let slot = 0
  const told = predictedWait(other, 0, gate.pausedFor(0))
  shaper.admit(other, { ...waiter, release: at => (slot = at) })
  clock.runAll()
  t.ok(Math.abs(told - slot) <= EPSILON, `told ${told}, waited ${slot}`)
  t.end()
})
