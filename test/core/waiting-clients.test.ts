/** Which client has most requests waiting, and who makes room for whom at `maxQueued`. */

import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, Lane, type SharedBucket, Ticket, type Waiter } from '../../src/core/queue/lane.js'
import { WaitingClients } from '../../src/core/queue/waiting-clients.js'
import { type Arrival, Shaper } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import { limits } from './run.js'

const WAITER: Waiter = { release() {}, expire() {}, reject() {} }

t.test('property: of any requests that come and go, it knows the newest of the client with most', async () => {
  const route = { name: 'route', gate: new Gate() }
  const lane = new Lane(route, [], route.gate.root)
  const clients = ['a', 'b', 'c', '2001:db8:0:0::/64', undefined]
  const step = fc.record({ client: fc.constantFrom(...clients), leaves: fc.option(fc.nat(30), { nil: undefined }) })
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), steps => {
      const waiting = new WaitingClients<Ticket>()
      const all: { ticket: Ticket; client: string | undefined }[] = []
      const of = (client: string | undefined) => all.filter(each => each.client === client)
      const drop = (at: number): void => waiting.remove(all.splice(at, 1)[0]!.ticket)
      for (const [at, { client, leaves }] of steps.entries()) {
        const ticket = new Ticket(lane, 1, at, WAITER)
        if (leaves !== undefined && all.length > 0) drop(leaves % all.length)
        else {
          waiting.add(ticket, client)
          all.push({ ticket, client })
        }
        const named = clients.slice(0, -1)
        const most = Math.max(...named.map(client => of(client).length))
        must(waiting.size === all.length)
        must(waiting.clients === named.filter(client => of(client).length > 0).length)
        must(waiting.newestOfHeavier(undefined) === undefined)
        for (const client of named) {
          const newest = waiting.newestOfHeavier(client)
          must((newest !== undefined) === most > of(client).length)
          if (newest === undefined) continue
          const heaviest = of(all.find(({ ticket }) => ticket === newest)!.client)
          must(heaviest.length === most && heaviest.at(-1)!.ticket === newest)
        }
      }
      while (all.length > 0) drop(0)
      must(waiting.size === 0 && waiting.clients === 0)
    }),
    { numRuns: runs(2_000) },
  )
})

t.test('a request that comes back is not the newest of its client', async t => {
  const route = { name: 'route', gate: new Gate() }
  const lane = new Lane(route, [], route.gate.root)
  const waiting = new WaitingClients<Ticket>()
  const [first, second, third] = [1, 2, 0].map(arrivedAt => new Ticket(lane, 1, arrivedAt, WAITER))
  for (const ticket of [first, second, third]) waiting.add(ticket!, 'a')
  t.equal(waiting.newestOfHeavier('b'), second)
  waiting.remove(second!)
  t.equal(waiting.newestOfHeavier('b'), first)
})

const ONE: BucketLimits = limits(1, 100)
const EVERYONE: BucketLimits = limits(1, 4, 'everyone')

/** Sends named requests. `log` says what became of each, in order. */
function bench(maxQueued: number, everyone = EVERYONE) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock, maxQueued })
  const route = { name: 'route', gate: new Gate() }
  const buckets = new Map<string, SharedBucket>()
  const log: string[] = []
  const bucket = (limits: BucketLimits, key: string): SharedBucket => {
    const found: SharedBucket = buckets.get(key) ?? new QueuedBucket(limits)
    buckets.set(key, found)
    return found
  }
  const send = (
    name: string,
    { shared, ...more }: Partial<Arrival> & { shared?: 'by name' | 'by client' } = {},
  ): void => {
    const [client] = name
    const own = bucket(ONE, shared === 'by name' ? name : client!)
    const stack = shared === undefined ? [own] : [own, bucket(everyone, 'everyone')]
    const waiter: Waiter = {
      release: (_, now) => log.push(`${name} released ${now}`),
      expire: () => log.push(`${name} expired`),
      reject: ({ reason, retryAfterMs }) => log.push(`${name} displaced: ${reason} ${retryAfterMs}`),
    }
    const verdict = shaper.admit({ route, stack, cost: 1, client: client!, ...more }, waiter)
    log.push(`${name} ${verdict instanceof Ticket ? 'waits' : verdict === 'released' ? verdict : verdict.reason}`)
  }
  return { clock, shaper, log, send, bucket }
}

t.test('at maxQueued a newcomer takes the place of the newest request of the client that has most', async t => {
  const { clock, shaper, log, send } = bench(4)
  for (const name of ['a0', 'a1', 'a2', 'a3', 'b0', 'b1']) send(name)
  t.equal(shaper.queued, 4)
  log.length = 0
  send('b2')
  t.same(log.splice(0), ['a3 displaced: crowded undefined', 'b2 waits'], 'three of a against one of b')
  send('b3')
  send('a4')
  t.same(log.splice(0), ['b3 crowded', 'a4 crowded'], 'two against two')
  send('c0')
  t.same(log.splice(0), ['c0 released'], 'one that need not wait takes no place')
  send('c1')
  const [displaced, waits] = log.splice(0)
  t.match(displaced, /^(a2|b2) displaced: crowded/)
  t.equal(waits, 'c1 waits')
  t.equal(shaper.queued, 4)
  clock.runAll()
  t.equal(log.filter(line => / released /.test(line)).length, 4, 'all that wait are released')
  t.equal(shaper.queued, 0)
})

t.test('one that waits alone makes room for a client without any', async t => {
  const { log, send } = bench(2)
  for (const name of ['a0', 'a1', 'b0', 'b1', 'c0']) send(name)
  log.length = 0
  send('c1')
  t.same(log, ['b1 displaced: crowded undefined', 'c1 waits'], 'the newest of those')
})

t.test('whose bucket rejects it displaces nobody', async t => {
  const { log, send, bucket } = bench(2)
  for (const name of ['a0', 'a1', 'a2']) send(name)
  bucket({ ...ONE, capacity: 1 }, 'b')
  send('b0')
  log.length = 0
  send('b1')
  send('c0', { cost: 101 })
  t.same(log, ['b1 overflow', 'c0 too-costly'])
})

t.test('the place of the displaced one in a full bucket counts', async t => {
  const { log, send } = bench(3)
  for (const name of ['a0', 'a1', 'a2', 'a3']) send(name, { shared: 'by name' })
  log.length = 0
  send('b0', { shared: 'by name' })
  t.same(log.splice(0), ['a3 displaced: crowded undefined', 'b0 waits'])
  send('a4', { shared: 'by name' })
  t.same(log, ['a4 overflow'])
})

t.test('"fair" and maxQueued: one request makes room for both', async t => {
  const { log, send } = bench(3, { ...EVERYONE, overflow: 'fair' })
  for (const name of ['a0', 'a1', 'a2', 'a3']) send(name, { shared: 'by client' })
  log.length = 0
  send('b0', { shared: 'by client' })
  t.same(log, ['a3 displaced: overflow 1000', 'b0 waits'], 'the bucket lets it in, as ever')
})

t.test('"fair" and maxQueued: a client with many keys does not keep others out', async t => {
  const { log, send } = bench(3, { ...EVERYONE, overflow: 'fair' })
  for (const name of ['a0', 'a1', 'a2', 'a3']) send(name, { shared: 'by name' })
  log.length = 0
  send('b0', { shared: 'by name' })
  t.same(log.splice(0), ['a3 displaced: crowded undefined', 'b0 waits'], 'no lane has more than its share')
  send('a4', { shared: 'by name' })
  t.same(log, ['a4 overflow'], 'the client with most displaces nobody')
})

t.test('requests without a client, as those of the library, displace nobody and stay', async t => {
  const { log, send } = bench(2)
  for (const name of ['a0', 'a1', 'a2']) send(name, { client: undefined as never })
  log.length = 0
  send('b0', { client: undefined as never })
  send('b1', { client: undefined as never })
  send('c0')
  send('c1')
  t.same(log, ['b0 released', 'b1 crowded', 'c0 released', 'c1 crowded'])
})

t.test('shadows of dry runs displace shadows only', async t => {
  const { shaper, log, send } = bench(2)
  for (const name of ['a0', 'a1', 'a2']) send(name)
  for (const name of ['d0', 'd1', 'd2', 'd3']) send(name, { shadow: true })
  log.length = 0
  send('e0', { shadow: true })
  send('e1', { shadow: true })
  t.same(log, ['e0 released', 'd2 displaced: crowded undefined', 'e1 waits'])
  t.equal(shaper.queued, 2)
})

function must(condition: boolean): void {
  if (!condition) throw new Error('not so')
}
