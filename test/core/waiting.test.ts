/** The state that a bucket and a lane keep for waiting requests exists only while it is needed, and leaves nothing behind. */
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type SharedBucket, type ShareNode, type Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'

const NOBODY = { release() {}, expire() {}, reject() {} }

t.test('a bucket is more than a meter only while requests wait', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>({ name: 'client', rate: 0.01, capacity: 10 })
  const arrival = { route, stack: [bucket], cost: 1 }
  t.equal(shaper.admit(arrival, NOBODY), 'released')
  t.ok(bucket.isPlain, 'also after a request that leaves at once')
  shaper.meter(arrival)
  t.ok(bucket.isPlain, 'and after one that is metered')
  shaper.admit(arrival, NOBODY)
  t.notOk(bucket.isPlain)
  t.equal(bucket.extras, undefined, 'the rare part is not made')
  clock.runAll()
  t.ok(bucket.isPlain)
})

t.test('a block is kept without waiting requests', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const limits = { name: 'client', rate: 0.01, capacity: 2, blockFor: 1_000 } as const
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>(limits)
  const arrival = { route, stack: [bucket], cost: 1 }
  shaper.meter(arrival)
  shaper.meter(arrival)
  t.not(shaper.meter(arrival), 'released')
  t.equal(bucket.blockedFor(0), 1_000)
  t.same([bucket.isPlain, bucket.waiting], [false, 0])
  shaper.wake()
  shaper.engine.setLimits(bucket, { ...limits, rate: 0.02 })
  t.equal(clock.runAll(), 0, 'no wake-up is planned')
  clock.runUntil(1_000)
  t.equal(bucket.blockedFor(1_000), 0)
  t.notOk(bucket.isPlain, 'a question changes nothing')
  t.equal(shaper.meter(arrival), 'released')
  t.ok(bucket.isPlain, 'it goes with the block, at the next admission')
})

t.test('a block outlasts waiting requests and keeps nothing of them', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>({
    name: 'client',
    rate: 0.01,
    capacity: 3,
    blockFor: 5_000,
  })
  const arrival = { route, stack: [bucket], cost: 1 }
  for (let at = 0; at < 4; at += 1) shaper.admit(arrival, NOBODY)
  t.equal(bucket.waiting, 2)
  clock.runAll()
  t.equal(bucket.waiting, 0)
  bucket.reset(clock.now())
  t.ok(bucket.isPlain, 'a reset ends the block')
})

t.test('a client that comes again has its new weight, and nothing of the old one', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const table = new BucketTable(10)
  const everyone = table.find({ name: 'everyone', rate: 0.01, capacity: 100 }, '', 0)!
  const sent: string[] = []
  const send = (client: string, weight: number) => {
    const own = table.find({ name: 'client', rate: 1_000, capacity: 1_000 }, client, 0)!
    const waiter = { ...NOBODY, release: () => void sent.push(client) }
    return shaper.admit({ route, stack: [own, everyone], cost: 1, weight }, waiter)
  }
  send('first', 1)
  for (const verdict of Array.from({ length: 10 }, () => send('a', 5))) t.ok(shaper.cancel(verdict as Ticket))
  for (let at = 0; at < 10; at += 1) for (const client of ['a', 'b']) send(client, 1)
  clock.runAll()
  t.equal(sent.length, 20)
  for (let at = 2; at <= 20; at += 2) {
    t.equal(sent.slice(0, at).filter(client => client === 'a').length, at / 2, `of the first ${at}`)
  }
})
