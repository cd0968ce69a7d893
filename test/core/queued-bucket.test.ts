import t from 'tap'
import { LEVEL_TOLERANCE } from '../../src/core/bucket/meter.js'
import { countedFrom, graceAt, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { limits } from './run.js'

const near = (a: number, b: number): boolean => Math.abs(a - b) < 1e-9

t.test('a meter, step by step', async t => {
  const bucket = new QueuedBucket(limits(5, 10))
  // The time, the level before, the cost, and how much of it does not fit. A cost that fits is added.
  const steps: [at: number, level: number, cost: number, excess: number][] = [
    [0, 0, 4, 0],
    [0, 4, 6, 0],
    [0, 10, 1, 1],
    [100, 9.5, 1, 0.5],
    [200, 9, 1, 0],
    [200, 10, 0.001, 0.001],
    [1_000, 6, 4, 0],
    [1_000, 10, 3, 3],
    [1_600, 7, 3, 0],
    [3_600, 0, 10, 0],
    [3_600, 10, 10, 10],
    [9_999, 0, 10.5, 0.5],
    [9_999, 0, 2.5, 0],
    [10_199, 1.5, 0, 0],
    [10_499, 0, 0, 0],
    [99_999, 0, 0, 0],
  ]
  for (const [at, level, cost, excess] of steps) {
    t.ok(near(bucket.level(at), level), `at ${at}: level ${bucket.level(at)}`)
    t.ok(near(bucket.excess(cost, at), excess), `at ${at}: ${cost} more exceeds by ${bucket.excess(cost, at)}`)
    if (excess === 0) bucket.fill(cost, at)
  }
})

t.test('b simultaneous requests fit exactly, at any uptime', async t => {
  for (const start of [0, 1, 86_400_000 * 10 + 0.1, 86_400_000 * 1_000 + 0.7]) {
    for (const [rate, cost, fit] of [
      [5, 1, 10],
      [3, 0.1, 100],
      [7, 1 / 3, 30],
    ] as const) {
      const bucket = new QueuedBucket(limits(rate, 10))
      let admitted = 0
      while (bucket.excess(cost, start) === 0 && admitted < 1_000) {
        bucket.fill(cost, start)
        admitted += 1
      }
      t.equal(admitted, fit, `${cost} each at ${start}`)
    }
  }
})

t.test('decisions have a tolerance of a billionth of a unit', async t => {
  const bucket = new QueuedBucket(limits(5, 10))
  bucket.fill(9, 0)
  t.equal(LEVEL_TOLERANCE, 1e-9)
  t.equal(bucket.excess(1 + 0.9e-9, 0), 0)
  t.ok(bucket.excess(1 + 1.1e-9, 0) > 0)
  t.equal(bucket.canEverFit(10), true)
  t.equal(bucket.canEverFit(10 + 0.9e-9), true)
  t.equal(bucket.canEverFit(10 + 1.1e-9), false)
})

t.test('the level includes waiting requests, and their cost does not leak', async t => {
  const bucket = new QueuedBucket(limits(5, 10))
  bucket.pass(2, 0)
  bucket.enqueue(3)
  bucket.enqueue(0.5)
  t.same([bucket.queued, bucket.waiting, bucket.level(0), bucket.freeAt], [3.5, 2, 5.5, 400])
  t.same([bucket.hold(200), bucket.level(200)], [1, 4.5])
  t.same([bucket.hold(400), bucket.level(400)], [0, 3.5])
  t.same([bucket.hold(9_000), bucket.level(9_000)], [0, 3.5])
  bucket.dequeue(3)
  bucket.pass(3, 400)
  t.same([bucket.queued, bucket.waiting, bucket.level(400), bucket.freeAt], [0.5, 1, 3.5, 1_000])
  bucket.dequeue(0.5)
  t.same([bucket.queued, bucket.waiting, bucket.level(900)], [0, 0, 0.5])
})

t.test('the queued cost is exactly 0 when the last request has left', async t => {
  const bucket = new QueuedBucket(limits(5, 10))
  const costs = [0.1, 0.2, 0.3, 0.7]
  for (const cost of costs) bucket.enqueue(cost)
  for (const cost of costs) bucket.dequeue(cost)
  t.equal(bucket.queued, 0)
  t.equal(bucket.level(0), 0)
})

t.test('a clock that goes back does not raise the level', async t => {
  const bucket = new QueuedBucket(limits(5, 10))
  bucket.fill(5, 1_000)
  t.equal(bucket.level(0), 5)
})

t.test('a release may be a period late, or 5 ms, and four periods where it waits for another bucket', t => {
  t.same(
    [5, 1_000].map(rate => graceAt(limits(rate, 10), 0, 1)),
    [200, 5],
  )
  t.same(
    [5, 1_000, 2_000].map(rate => graceAt(limits(rate, 10), 0, 2)),
    [800, 5, 5],
  )
  t.same(
    [5, 100].map(rate => graceAt(limits(rate, 10), 1, 2)),
    [200, 10],
    'the last of the stack',
  )
  t.equal(graceAt({ ...limits(5, 10), grace: 1 }, 0, 2), 1)
  const own = { ...limits(100, 10), lateness: 30 }
  t.same(
    [0, 1].map(place => graceAt(own, place, 2)),
    [30, 30],
  )
  t.same(
    [1_030, 1_031].map(now => countedFrom(1_000, now, own, 30)),
    [1_000, 1_001],
    'what is beyond is lost',
  )
  t.end()
})

t.test('the last slot can be given back', async t => {
  const bucket = new QueuedBucket(limits(5, 10))
  bucket.pass(1, 1_000)
  bucket.restore(1, 1_000)
  t.same([bucket.freeAt, bucket.level(1_000)], [1_000, 0])

  bucket.pass(1, 1_000)
  bucket.pass(1, 1_200)
  bucket.restore(1, 1_000)
  t.equal(bucket.freeAt, 1_400, 'another has passed since')
  bucket.restore(1, 1_200)
  t.same([bucket.freeAt, bucket.level(1_200)], [1_200, 0])

  bucket.pass(1, 1_400)
  bucket.fill(1, 1_400)
  bucket.restore(1, 1_400)
  t.equal(bucket.level(1_400), 1, 'what was metered with it stays')

  bucket.fill(1, 1_800)
  bucket.pass(1, 2_000)
  bucket.fill(1, 2_100)
  bucket.restore(1, 2_000)
  t.equal(bucket.level(2_100), 1 + 0.5, 'what was metered since has mixed with it')

  const awaited = new QueuedBucket(limits(5, 10))
  awaited.fill(1, 2_900)
  awaited.enqueue(1)
  awaited.enqueue(1)
  awaited.dequeue(1)
  awaited.pass(1, 3_000)
  t.equal(awaited.freeAt, 3_300)
  awaited.restore(1, 3_000)
  t.same([awaited.level(3_000), awaited.freeAt], [1 + 0.5, 3_000], 'what was metered before delays nobody that waits')

  bucket.pass(4, 3_800)
  t.equal(bucket.freeAt, 4_600)
  bucket.restore(4, 3_800)
  t.equal(bucket.level(3_900), 0)
})

t.test('a metered cost is added to what the last release holds', async t => {
  const bucket = new QueuedBucket(limits(5, 10))
  bucket.fill(2, 0)
  t.equal(bucket.freeAt, 400)
  bucket.fill(1, 100)
  t.same([bucket.freeAt, bucket.level(100)], [600, 2.5])
  bucket.fill(0.5, 10_000)
  t.same([bucket.freeAt, bucket.level(10_000)], [10_100, 0.5])
})

t.test('changed limits keep the level, and the last release can still be moved to a later time', async t => {
  for (const [rate, freeAt, sentLate] of [
    [10, 100, 250],
    [5, 150, 350],
    [20, 75, 200],
  ] as const) {
    const bucket = new QueuedBucket({ ...limits(10, 10), grace: 0.5 })
    bucket.pass(1, 0)
    bucket.setLimits({ ...limits(rate, 10), grace: 0.5 }, 50)
    t.ok(near(bucket.level(50), 0.5), `${rate}/s: level ${bucket.level(50)}`)
    t.ok(near(bucket.freeAt, freeAt), `${rate}/s: free at ${bucket.freeAt}`)
    t.equal(bucket.postpone(1, 150, 0.5), true)
    t.ok(near(bucket.freeAt, sentLate), `${rate}/s, sent at 150: free at ${bucket.freeAt}`)
  }
  const drained = new QueuedBucket({ ...limits(10, 10), grace: 0.5 })
  drained.pass(1, 0)
  drained.setLimits({ ...limits(1, 10), grace: 0.5 }, 300)
  t.equal(drained.level(300), 0, 'what has leaked does not come back at a slower rate')
  t.equal(drained.postpone(1, 400, 0.5), true)
  t.equal(drained.freeAt, 1_400)
})
