/** A process that has a successor: who waits goes over in batches, and nobody is passed or lost meanwhile. */
import t, { type Test } from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { DepartingShaper, type Guest, type GuestOrder } from '../../src/proxy/succession/departing.js'
import { limits } from '../core/run.js'

/** More than fit into some batches. */
const WAITING = 90
const MINUTE = 60_000

function depart(t: Test) {
  const clock = createVirtualClock()
  const former = new Shaper({ clock })
  const bucket = new BucketTable(10).find(limits(10, 200), 'a', 0)!
  const route = { name: 'route', lane: { name: 'route', gate: new Gate() } }
  const released: string[] = []
  const waiter = (name: string) => ({
    release: () => void released.push(name),
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
  const link = { send: (order: GuestOrder) => orders.push(order), machine: { ours: same, theirs: same } }
  const departing = new DepartingShaper(former, [route], clock, link)
  const guests = (): Guest[] => orders.flatMap(order => (order.verb === 'guests' ? order.guests : []))
  return { ...{ clock, former, departing, arrival, waiter, tickets, released, guests, gate: route.lane.gate } }
}

const same = (ms: number): number => ms

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

async function eventuallySome(guests: () => readonly Guest[]): Promise<void> {
  while (guests().length === 0) await new Promise(resolve => setImmediate(resolve))
}
