import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { LeakyBucket } from '../../src/index.js'

t.test('the worked example', async t => {
  const clock = createVirtualClock()
  const bucket = new LeakyBucket({ rate: '1/s', capacity: 10, clock })
  t.same(bucket.fillup(2), { level: 2, full: false })
  t.equal(bucket.ableToAccept(9), false)
  t.equal(bucket.ableToAccept(8), true)
  t.equal(bucket.level, 2, 'asking changes nothing')
  t.same(bucket.tryAdd(3), { admitted: true, level: 5, remaining: 5, retryAfterMs: 0, waitMs: 2_000 })
  t.same(bucket.tryAdd(6), { admitted: false, level: 5, remaining: 5, retryAfterMs: 1_001, waitMs: 5_000 })
  clock.runUntil(999)
  t.equal(bucket.ableToAccept(6), false, 'not before')
  clock.runUntil(1_000)
  t.equal(bucket.tryAdd(6).admitted, true, 'and 1 ms is for timers that fire early')
  t.equal(bucket.timeToEmpty(), 10_000)
  clock.runUntil(11_000)
  t.equal(bucket.level, 0)
  clock.runUntil(20_000)
  t.equal(bucket.level, 0, 'never below')
})

t.test('fillup clamps at the capacity, and is full for the instant', async t => {
  const clock = createVirtualClock()
  const bucket = new LeakyBucket({ rate: 5, capacity: 10, clock })
  t.same(bucket.fillup(11), { level: 10, full: true })
  t.equal(bucket.tryAdd().admitted, false)
  clock.runUntil(100)
  t.same(bucket.fillup(0), { level: 9.5, full: false })
})

t.test('a cost above the capacity never fits', async t => {
  const bucket = new LeakyBucket({ rate: 5, capacity: 10, clock: createVirtualClock() })
  t.match(bucket.tryAdd(11), { admitted: false, retryAfterMs: Infinity })
})

t.test('costs may be fractional, and exactly b fit at once at any time', async t => {
  const bucket = new LeakyBucket({ rate: '5000/s', capacity: 10, clock: createVirtualClock({ start: 1e9 + 0.1 }) })
  for (let added = 0; added < 100; added += 1) t.equal(bucket.tryAdd(0.1).admitted, true)
  t.equal(bucket.tryAdd(0.1).admitted, false)
})

t.test("on the process's own clock it leaks", async t => {
  const bucket = new LeakyBucket({ rate: 1_000_000, capacity: 1 })
  t.equal(bucket.tryAdd().admitted, true)
  const until = performance.now() + 1
  while (performance.now() < until);
  t.equal(bucket.level, 0)
})

t.test('retryAfterMs is enough: a timer of that length, and nothing else, and the cost is admitted', async t => {
  const bucket = new LeakyBucket({ rate: '130/s', capacity: 1 })
  let again = 0
  const told: number[] = []
  for (let tries = 0; tries < 200 && told.length < 40; tries += 1) {
    if (!bucket.tryAdd().admitted) again += 1
    const { admitted, retryAfterMs } = bucket.tryAdd()
    // After a stall of 8 ms there is room for the second one. Then there is nothing to wait for.
    if (!admitted) told.push(retryAfterMs)
    await sleep(admitted ? 20 : retryAfterMs)
  }
  t.equal(told.length, 40)
  t.equal(again, 0, `${again} of 40 were refused again`)
  t.ok(told.every(Number.isInteger), `whole: ${told}`)
  t.ok(Math.max(...told) <= 9, `not more than needed: ${told}`)
})

t.test('bad arguments', async t => {
  t.throws(() => new LeakyBucket({ rate: '5/w', capacity: 10 }), /"5\/w" is not a rate/)
  for (const capacity of [0, -1, Number.NaN, Infinity]) {
    t.throws(() => new LeakyBucket({ rate: 5, capacity }), RangeError)
  }
  const bucket = new LeakyBucket({ rate: 5, capacity: 10 })
  t.throws(() => new LeakyBucket({ rate: 5, capacity: '10' as never }), RangeError)
  for (const cost of [-1, Number.NaN, Infinity, '3' as never]) {
    for (const verb of ['fillup', 'ableToAccept', 'tryAdd'] as const) t.throws(() => bucket[verb](cost), RangeError)
  }
})

t.test('a burst shortens the wait, and changes nothing else', async t => {
  let now = 0
  const clock = { now: () => now }
  const [plain, bursting] = [
    new LeakyBucket({ rate: '1/s', capacity: 10, clock }),
    new LeakyBucket({ rate: '1/s', capacity: 10, burst: 4, clock }),
  ]
  const waits = [1, 1, 2, 1, 3].map(cost => {
    const { waitMs, ...same } = bursting.tryAdd(cost)
    const { waitMs: plainly, ...others } = plain.tryAdd(cost)
    t.same(same, others)
    return [plainly, waitMs]
  })
  t.same(waits, [
    [0, 0],
    [1_000, 0],
    [2_000, 0],
    [4_000, 1_000],
    [5_000, 4_000],
  ])
  now = 8_000
  t.equal(bursting.tryAdd(5).waitMs, 0)
  for (const burst of [0, -1, Number.NaN, Infinity, '3'])
    t.throws(() => new LeakyBucket({ rate: '1/s', capacity: 10, burst: burst as number }), { message: /^burst: / })
})
