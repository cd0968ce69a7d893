/** A process that has a successor: who waits goes over in batches, and nobody is passed or lost meanwhile. */
import t, { type Test } from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import type { ProxyContext } from '../../src/proxy/context.js'
import { DepartingShaper, type Guest, type GuestOrder } from '../../src/proxy/succession/departing.js'
import { Houses } from '../../src/proxy/succession/guests.js'
import { limits } from '../core/run.js'

/** More than fit into some batches. */
const WAITING = 90
const MINUTE = 60_000
/** ms */
const PERIOD = 100

function depart(t: Test, send?: (order: GuestOrder) => void, clock = createVirtualClock()) {
  const former = new Shaper({ clock })
  const bucket = new BucketTable(10).find(limits(10, 200), 'a', 0)!
  const route = { name: 'route', lane: { name: 'route', gate: new Gate() } }
  const released: string[] = []
  const sentAt: number[] = []
  const waiter = (name: string) => ({
    release: () => {
      released.push(name)
      sentAt.push(clock.now())
    },
    expire: () => t.fail(`${name} expired`),
    reject: () => t.fail(`${name} was rejected`),
    decided: () => undefined,
  })
  const arrival = { route: route.lane, stack: [bucket], cost: 1 }
  const tickets = new Map<string, Ticket>()
  // The first passes at once.
  for (let at = 0; at <= WAITING; at += 1) {
    const verdict = former.admit(arrival, waiter(`${at}`), MINUTE)
    if (verdict instanceof Ticket) tickets.set(`${at}`, verdict)
  }
  const orders: GuestOrder[] = []
  const link = { send: send ?? ((order: GuestOrder) => void orders.push(order)), machine: MACHINE }
  const departing = new DepartingShaper(former, [route], clock, link)
  const guests = (): Guest[] => orders.flatMap(order => (order.verb === 'guests' ? order.guests : []))
  const gate = route.lane.gate
  return { ...{ clock, former, departing, arrival, waiter, tickets, released, sentAt, orders, guests, gate } }
}

/** A process and its successor, with 1 ms from one to the other. */
function succeed(t: Test) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const bucketTable = new BucketTable(10)
  const settings = { name: limits(10, 200).name, limits: limits(10, 200), tiers: [] }
  const route = { name: 'route', lane: { name: 'route', gate: new Gate() }, buckets: [{ settings }] }
  const context = {
    ...{ clock, shaper, bucketTable, routes: [route], inProgress: 0, idle: () => undefined },
    keyLimits: { ownerOf: () => undefined },
    learned: { limitsOf: same },
    overrides: { limitsOf: same },
  } as unknown as ProxyContext
  let until = 0
  const later = (run: () => void): void => void clock.at(Math.max(clock.now() + 1, until), run)
  const houses = new Houses(context, MACHINE, news => later(() => departed.departing.told(news)))
  const departed = depart(t, order => later(() => houses.obey(order)), clock)
  const newcomer = (): void => {
    const bucket = bucketTable.find(settings.limits, 'a', clock.now())!
    shaper.admit({ route: route.lane, stack: [bucket], cost: 1 }, departed.waiter('newcomer'), MINUTE)
  }
  /** What is on its way comes in `ms`. */
  const stall = (ms: number): void => {
    until = clock.now() + ms
  }
  return { ...departed, newcomer, stall }
}

const same = <Value>(value: Value): Value => value
const MACHINE = { ours: same<number>, theirs: same<number> }

t.test('who waits goes over in the order of arrival, without those that hang up, and newcomers behind', async t => {
  const { clock, departing, arrival, waiter, tickets, released, guests } = depart(t)
  await eventuallySome(guests)
  const first = guests().length
  t.ok(first < WAITING, 'in more than one batch')
  clock.runUntil(5_000)
  t.same(released, [], 'nothing passes here any more')
  departing.arrive(arrival, waiter('new'), 'shape', MINUTE)
  t.ok(departing.cancel(tickets.get(`${WAITING}`)!), 'it has not gone over yet')
  t.notOk(departing.cancel(tickets.get(`${WAITING}`)!))
  await departing.complete
  t.equal(guests().length, WAITING)
  t.equal(guests().at(-1)!.arrivedAt, 5_000, 'who came last is last')
  t.same([...new Set(guests().map(({ arrivedAt }) => arrivedAt))], [0, 5_000])
  for (const { id } of guests().slice(0, 3)) departing.told({ verb: 'released', id, slot: clock.now() })
  t.same(released, ['1', '2', '3'])
})

t.test('a successor that ends in the middle leaves all in their order', async t => {
  const { clock, departing, arrival, waiter, former, released, guests, gate } = depart(t)
  await eventuallySome(guests)
  departing.arrive(arrival, waiter('new'), 'shape', MINUTE)
  t.ok(guests().length < WAITING)
  t.equal(departing.end(), former)
  const sent = guests().length
  for (let at = 0; at < 100; at += 1) {
    clock.runUntil(clock.now() + 100)
    while (gate.inFlight > 0) former.leave(gate, [])
  }
  t.same(released, [...Array.from({ length: WAITING }, (_, at) => `${at + 1}`), 'new'])
  await new Promise(resolve => setImmediate(resolve))
  t.equal(guests().length, sent, 'nobody goes over any more')
})

t.test('a process that sends late lets nobody pass, and nothing leaves above the rate', async t => {
  const { clock, departing, released, newcomer, sentAt, stall } = succeed(t)
  await departing.complete
  clock.runUntil(1_000)
  newcomer()
  t.equal(released.length, 10)
  stall(900)
  clock.runUntil(WAITING * PERIOD + 3_000)
  t.same(released, [...Array.from({ length: WAITING }, (_, at) => `${at + 1}`), 'newcomer'])
  const gaps = sentAt.slice(1).map((at, place) => at - sentAt[place]!)
  // The grace of a bucket is one period: the first after a stall may leave at once, as in one process.
  t.same(
    gaps.filter(gap => gap < PERIOD - 3).length,
    1,
    `the closest are ${gaps.toSorted((a, b) => a - b).slice(0, 3)} ms apart`,
  )
  const rest = gaps.filter(gap => gap > 2 * PERIOD)
  t.equal(rest.length, 1, `nothing leaves while it stands still: ${rest} ms`)
})

t.test('a request that waits for its connection is told as sent when it is on the wire', async t => {
  const { departing, arrival, waiter, orders, guests } = depart(t)
  await departing.complete
  const [first, second] = guests().map(({ id }) => id)
  const sent = () => orders.flatMap(order => (order.verb === 'sent' ? order.id : []))
  departing.told({ verb: 'released', id: first!, slot: 0 })
  t.same(sent(), [first])
  const connecting = { ...waiter('connecting'), release: () => void departing.hold(arrival, connecting) }
  departing.arrive(arrival, connecting, 'shape', MINUTE)
  const { id } = guests().at(-1)!
  departing.told({ verb: 'queued', id })
  departing.told({ verb: 'released', id, slot: 0 })
  t.same(sent(), [first])
  departing.told({ verb: 'released', id: second!, slot: 0 })
  t.same(sent(), [first, second])
  departing.unhold(arrival, 'sent', connecting)
  t.same(sent(), [first, second, id])
})

async function eventuallySome(guests: () => readonly Guest[]): Promise<void> {
  while (guests().length === 0) await new Promise(resolve => setImmediate(resolve))
}
