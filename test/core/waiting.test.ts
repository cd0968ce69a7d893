/** What a bucket and a lane keep for those who wait: there while it is needed, gone after, and nothing of it remembered. */
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type SharedBucket, type ShareNode } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'

const NOBODY = { release() {}, expire() {}, reject() {} }

t.test('a bucket has an outlet only while somebody waits', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>({ name: 'client', rate: 0.01, capacity: 10 })
  const arrival = { route, stack: [bucket], cost: 1 }
  t.equal(shaper.admit(arrival, NOBODY), 'released')
  t.equal(bucket.waitingState, undefined, 'who goes at once needs none')
  shaper.meter(arrival)
  t.equal(bucket.waitingState, undefined, 'nor does a meter')
  shaper.admit(arrival, NOBODY)
  t.equal(bucket.waitingState?.waiting, 1)
  clock.runAll()
  t.equal(bucket.waitingState, undefined)
})

t.test('a block keeps an outlet, which is not waited for', async t => {
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
  t.equal(bucket.waitingState?.waiting, 0)
  shaper.wake()
  shaper.control.setLimits(bucket, { ...limits, rate: 0.02 })
  t.equal(bucket.waitingState?.place, -1)
  t.equal(clock.runAll(), 0, 'no wake-up is planned')
  clock.runUntil(1_000)
  t.equal(bucket.blockedFor(1_000), 0)
  t.not(bucket.waitingState, undefined, 'a question changes nothing')
  t.equal(shaper.meter(arrival), 'released')
  t.equal(bucket.waitingState, undefined, 'it goes with the block, at the next admission')
})

t.test('a block outlasts those who waited, of whom it remembers nothing', async t => {
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
  const { queued, waiting, leastCost, shareNodes, heaviest, place } = bucket.waitingState!
  t.strictSame(
    { queued, waiting, leastCost, shareNodes, heaviest, place },
    { queued: 0, waiting: 0, leastCost: Infinity, shareNodes: [], heaviest: undefined, place: -1 },
  )
  bucket.reset(clock.now())
  t.equal(bucket.waitingState, undefined, 'a reset ends the block')
})

t.test('a lane that comes again remembers nothing of its former life', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate(0) }
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>({ name: 'client', rate: 1, capacity: 10 })
  const lives = [5, 1].map(cost => {
    const ticket = shaper.admit({ route, stack: [bucket], cost, weight: cost }, NOBODY)
    if (typeof ticket === 'string' || !('lane' in ticket)) throw new Error('it does not wait')
    const { lane } = ticket
    const seen = [
      lane.queued,
      lane.weight,
      lane.deficit,
      lane.round,
      lane.parent.weight,
      bucket.waitingState?.leastCost,
    ]
    t.ok(shaper.cancel(ticket))
    t.equal(route.gate.root.childCount, 0)
    return seen
  })
  t.same(lives[1]!.slice(0, 2), [1, 1])
  t.same(lives[1]!.slice(4), [1, 1])
  t.equal(lives[1]![3], lives[0]![3])
})
