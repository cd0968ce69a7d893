/** Bursts of buckets that instances share, on the virtual clock. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { createWorld, type World } from '../proxy/instances.js'

const EVERYONE: BucketLimits = { name: 'everyone', rate: 0.02, capacity: 200, burst: 10 }

/** The largest excess of any window over r x (W + 10 ms) + burst, as the store's bound allows. */
function worstExcess({ sent }: World, { rate, burst = 1 }: BucketLimits): number {
  let worst = -Infinity
  for (let from = 0; from < sent.length; from += 1) {
    for (let to = from; to < sent.length; to += 1) {
      const window = sent[to]!.at - sent[from]!.at
      worst = Math.max(worst, to - from + 1 - rate * (window + 10) - burst)
    }
  }
  return worst
}

t.test('one instance: the burst leaves after a round trip, then r', async t => {
  const world = createWorld([EVERYONE], 1, () => 1)
  await world.run(10)
  for (let count = 0; count < 30; count += 1) world.instances[0]!.request(['all'])
  await world.run(2_000)
  const times = world.sent.map(({ at }) => at)
  t.equal(times.length, 30)
  t.ok(times[9]! - times[0]! <= 2, `${times.slice(0, 10)}`)
  t.ok(times[10]! - times[0]! >= 50 - 3 && times[10]! - times[0]! <= 50 + 3, `${times[10]! - times[0]!}`)
  const gaps = times.slice(11).map((at, index) => at - times[index + 10]!)
  t.ok(
    gaps.every(gap => Math.abs(gap - 50) < 4),
    `${gaps}`,
  )
  t.ok(worstExcess(world, EVERYONE) <= 1e-6)
})

t.test('several instances share one burst and one rate', async t => {
  const world = createWorld([EVERYONE], 4, instance => 0.5 + instance * 0.3)
  await world.run(10)
  for (let count = 0; count < 60; count += 1) world.instances[count % 4]!.request(['all'])
  await world.run(3_000)
  t.equal(world.sent.length, 60)
  const [first] = world.sent
  t.equal(world.sent.filter(({ at }) => at < first!.at + 20).length, 10, 'the burst')
  const last = world.sent.at(-1)!.at - first!.at
  t.ok(Math.abs(last - 50 * 50) < 15, `the last after ${last} ms`)
  t.ok(worstExcess(world, EVERYONE) <= 1e-6, `${worstExcess(world, EVERYONE)}`)
})

t.test('a slow stream of arrivals builds the burst up again', async t => {
  const world = createWorld([EVERYONE], 2, () => 1)
  await world.run(10)
  for (let count = 0; count < 14; count += 1) world.instances[count % 2]!.request(['all'])
  await world.run(1_000)
  t.equal(world.sent.length, 14)
  for (let count = 0; count < 14; count += 1) world.instances[count % 2]!.request(['all'])
  await world.run(1_010)
  t.equal(world.sent.length, 24)
  t.ok(worstExcess(world, EVERYONE) <= 1e-6)
})

t.test('what each instance has of a burst alone adds up to the burst', async t => {
  const world = createWorld([EVERYONE], 4, () => 1)
  await world.run(5_000)
  world.down = true
  for (const instance of world.instances) instance.request(['all'])
  await world.run(12_000)
  world.sent.length = 0
  const requests = Array.from({ length: 80 }, (_, at) => world.instances[at % 4]!.request(['all']))
  t.equal(requests.filter(({ verdict }) => verdict === 'released').length, 8, 'of 2.5 each two whole requests')
  await world.run(14_000)
  t.equal(world.sent.length, 40, 'a quarter of the rate each, the first sooner by the half that was left')
})
