/** Instances that are alone take turns, so that the gaps stay even. On the virtual clock. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { random } from '../core/run.js'
import { createWorld, type Sent, type World } from '../proxy/instances.js'

/** Four instances that lose the store after two seconds, and what is sent once they are alone, until the eighth second. */
async function lose(
  limits: BucketLimits,
  keys: readonly string[],
  every: number,
  seed = keys.length,
): Promise<readonly Sent[]> {
  const next = random(seed)
  // The way back from the store is what the clocks of instances differ by.
  const world: World = createWorld([limits], 4, () => 0.1 + next() * 0.4)
  const arrive = (): void => {
    const key = keys[Math.floor(next() * keys.length)]!
    world.instances[Math.floor(next() * 4)]!.request([key])
    if (world.clock.now() < 8_000) world.clock.at(world.clock.now() + next() * 2 * every, arrive)
  }
  arrive()
  await world.run(2_000)
  world.down = true
  await world.run(8_000)
  return world.sent.filter(({ at }) => at > 3_200)
}

function gapsOf(sent: readonly Sent[]): readonly number[] {
  return sent.slice(1).map(({ at }, before) => at - sent[before]!.at)
}

t.test('four instances without the store leave a period between any two requests', async t => {
  for (const rate of [0.2, 0.05]) {
    const sent = await lose({ name: 'everyone', rate, capacity: 4_000 }, ['all'], 0.6 / rate)
    const gaps = gapsOf(sent)
    t.ok(Math.abs(sent.length / 4_800 - rate) < rate * 0.01, `${sent.length} in 4.8 s`)
    t.ok(Math.min(...gaps) >= 1 / rate - 1, `the smallest gap is ${Math.min(...gaps)} ms at ${rate * 1_000}/s`)
    t.ok(Math.max(...gaps) <= 1 / rate + 1, `the longest gap is ${Math.max(...gaps)} ms`)
  }
})

t.test('they lose nothing by it where fewer wait, and two requests are never closer than that', async t => {
  const sent = await lose({ name: 'everyone', rate: 0.2, capacity: 4_000 }, ['all'], 5.2)
  const gaps = gapsOf(sent)
  t.ok(sent.length > 4_800 * 0.19, `${sent.length} in 4.8 s`)
  t.ok(Math.min(...gaps) >= 4, `the smallest gap is ${Math.min(...gaps)} ms`)
})

const KEYS = Array.from({ length: 20 }, (_, at) => `client ${at}`)
const CLIENT = { name: 'client', rate: 0.005, capacity: 100 }

t.test('slots that the store has granted still do not keep an instance out of its turn', async t => {
  // One of four was 20, 50 and 76 ms before the turn of another, for good.
  for (const seed of [32, 33, 65]) {
    const sent = await lose(CLIENT, KEYS, 4, seed)
    for (const key of KEYS) {
      const gaps = gapsOf(sent.filter(one => one.key === key))
      t.ok(Math.min(...gaps) >= 199, `seed ${seed}, ${key}: ${Math.min(...gaps)} ms`)
    }
  }
})

t.test('the clients of an instance do not leave in step', async t => {
  const sent = await lose(CLIENT, KEYS, 4)
  // 100 a second in all. In step 20 would leave at once.
  const most = sent.map(({ at }) => sent.filter(other => other.at >= at && other.at < at + 5).length)
  t.ok(Math.max(...most) <= 5, `${Math.max(...most)} within 5 ms`)
  for (const key of KEYS) {
    const gaps = gapsOf(sent.filter(one => one.key === key))
    t.ok(Math.min(...gaps) >= 199, `${key}: ${Math.min(...gaps)} ms`)
  }
})

t.test('instances that lose the store in their first second know of each other', async t => {
  for (const lostAt of [150, 300, 900]) {
    const next = random(lostAt)
    const world = createWorld([{ name: 'everyone', rate: 0.03, capacity: 4_000 }], 3, () => 0.1 + next() * 0.4)
    for (let count = 0; count < 1_200; count += 1) world.instances[count % 3]!.request(['all'])
    await world.run(lostAt)
    world.down = true
    await world.run(10_000)
    const sent = world.sent.filter(({ at }) => at > lostAt)
    t.ok(sent.length < (10_000 - lostAt) * 0.03 + 4, `lost after ${lostAt} ms: ${sent.length}`)
    t.ok(sent.length > 9_000 * 0.03 * 0.95, `${sent.length} are enough`)
  }
})
