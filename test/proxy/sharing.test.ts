/** One rate across instances: what is sent by all of them together, on the virtual clock. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { Ticket } from '../../src/core/queue/lane.js'
import { random } from '../core/run.js'
import { createWorld, type Sent, type World } from './instances.js'

const client: BucketLimits = { name: 'client', rate: 0.02, capacity: 40 }
const everyone: BucketLimits = { name: 'everyone', rate: 0.2, capacity: 200 }

function worstExcess(sent: readonly Sent[], rate: number): number {
  let worst = -Infinity
  for (const [from, { at: begin }] of sent.entries()) {
    for (let to = from; to < sent.length; to += 1) {
      const allowed = rate * (sent[to]!.at - begin + Math.max(1 / rate, 10)) + 4
      worst = Math.max(worst, to - from + 1 - allowed)
    }
  }
  return worst
}

/** Keeps `depth` requests of each key in flight or queued at each instance, until `until`. */
function saturate(world: World, keys: readonly string[], depth: number, until: number): void {
  for (const [place, instance] of world.instances.entries()) {
    for (const key of keys) {
      for (let at = 0; at < depth; at += 1) {
        const again = (): void => {
          if (world.clock.now() >= until) return
          const request = instance.request([key, 'all'])
          const look = (): void => {
            const over =
              request.sentAt !== undefined || (request.verdict !== undefined && !(request.verdict instanceof Ticket))
            world.clock.at(world.clock.now() + (over && request.sentAt === undefined ? 20 : 2), over ? again : look)
          }
          look()
        }
        world.clock.at(place * 0.3 + at * 0.1, again)
      }
    }
  }
}

const seeded = (seed: number, least: number, most: number): (() => number) => {
  const next = random(seed)
  return () => least + next() * (most - least)
}

t.test('four instances, one bucket: the rate, the bound, and a fair share each', async t => {
  const world = createWorld([everyone], 4, seeded(1, 0.05, 0.4))
  saturate(world, ['all'], 20, 10_000)
  await world.run(10_000)
  const { sent } = world
  const rate = (sent.length - 1) / (sent.at(-1)!.at - sent[0]!.at)
  t.ok(Math.abs(rate / 0.2 - 1) < 0.002, `the rate is ${rate * 1000}/s`)
  t.ok(worstExcess(sent, 0.2) <= 0, `the worst window is ${worstExcess(sent, 0.2)} above the bound`)
  for (const place of [0, 1, 2, 3]) {
    const part = sent.filter(({ instance }) => instance === place).length / sent.length
    t.ok(part > 0.2 && part < 0.3, `instance ${place} has ${part}`)
  }
})

t.test('an instance that is further from the store has its share, too', async t => {
  const next = random(5)
  const world = createWorld([everyone], 4, instance => (instance === 3 ? 1 : 0.1) + next() * 0.2)
  saturate(world, ['all'], 20, 8_000)
  await world.run(8_000)
  const { sent } = world
  t.ok(worstExcess(sent, 0.2) <= 0, `the worst window is ${worstExcess(sent, 0.2)} above the bound`)
  for (const place of [0, 1, 2, 3]) {
    const part = sent.filter(({ instance }) => instance === place).length / sent.length
    t.ok(place === 3 ? part > 0.16 : part < 0.28, `instance ${place} has ${part}`)
  }
})

t.test('long: stacks: each client at its rate, all of them at theirs', async t => {
  const world = createWorld([client, everyone], 4, seeded(2, 0.05, 0.4))
  const keys = Array.from({ length: 12 }, (_, at) => `client ${at}`)
  saturate(world, keys, 6, 10_000)
  await world.run(10_000)
  const { sent } = world
  const late = sent.filter(({ at }) => at > 1_000)
  const rate = (late.length - 1) / (late.at(-1)!.at - late[0]!.at)
  t.ok(Math.abs(rate / 0.2 - 1) < 0.005, `the rate is ${rate * 1000}/s`)
  t.ok(worstExcess(sent, 0.2) <= 0, `everyone: ${worstExcess(sent, 0.2)} above the bound`)
  for (const key of keys) {
    const mine = sent.filter(one => one.key === key)
    t.ok(worstExcess(mine, 0.02) <= 0, `${key}: ${worstExcess(mine, 0.02)} above the bound`)
    t.ok(mine.length > 120, `${key} has ${mine.length}`)
  }
})

t.test('one instance: exactly b at once are admitted, in order and at the rate', async t => {
  const world = createWorld([{ ...everyone, capacity: 10 }], 1, () => 0.2)
  const requests = Array.from({ length: 11 }, () => world.instances[0]!.request(['all']))
  await world.run(1_000)
  t.equal(requests.filter(({ verdict }) => verdict instanceof Ticket).length, 10)
  t.same(
    world.sent.map(({ id }) => id),
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
  )
  const gaps = world.sent.slice(1).map(({ at }, before) => at - world.sent[before]!.at)
  t.ok(
    gaps.every(gap => Math.abs(gap - 5) < 0.5),
    `gaps of ${gaps}`,
  )
})

t.test('hang-ups give their slots and their level back', async t => {
  const world = createWorld([everyone], 3, seeded(3, 0.05, 0.4))
  const next = random(7)
  saturate(world, ['all'], 15, 8_000)
  const storm = (): void => {
    const instance = world.instances[Math.floor(next() * 3)]!
    const request = instance.request(['all'])
    world.clock.at(world.clock.now() + next() * 60, () => request.hangUp())
    if (world.clock.now() < 8_000) world.clock.at(world.clock.now() + next() * 20, storm)
  }
  storm()
  await world.run(8_000)
  const rate = (world.sent.length - 1) / (world.sent.at(-1)!.at - world.sent[0]!.at)
  t.ok(rate / 0.2 > 0.97, `the rate is ${rate * 1000}/s`)
  t.ok(worstExcess(world.sent, 0.2) <= 0)
})

t.test('repeated outages: never above the bound, nothing lost, recovery within 2 s', async t => {
  const world = createWorld([everyone], 4, seeded(4, 0.05, 0.4))
  saturate(world, ['all'], 20, 20_000)
  await world.run(3_000)
  t.same(
    world.instances.map(({ sharing }) => sharing.state),
    ['shared', 'shared', 'shared', 'shared'],
  )
  const downs: [from: number, to: number][] = [
    [3_000, 6_000],
    [9_000, 9_100],
    [9_300, 9_900],
    [11_000, 11_400],
  ]
  for (const [from, to] of downs) {
    await world.run(from)
    world.down = true
    await world.run(to)
    world.down = false
  }
  await world.run(11_400 + 2_000)
  t.same(
    world.instances.map(({ sharing }) => sharing.state),
    ['shared', 'shared', 'shared', 'shared'],
  )
  await world.run(20_000)
  t.ok(worstExcess(world.sent, 0.2) <= 0, `the worst window is ${worstExcess(world.sent, 0.2)} above the bound`)
  const alone = world.sent.filter(({ at }) => at > 4_000 && at < 6_000).length
  t.ok(alone > 0.9 * 400 && alone <= 401, `${alone} in the two seconds of the outage that all were alone`)
  const after = world.sent.filter(({ at }) => at > 14_000).length
  t.ok(after > 0.995 * 1_200, `${after} in the six seconds after`)
})

t.test(
  'closed: nothing is sent while the store is away; new requests are rejected at once, queued ones after 2 s',
  async t => {
    const world = createWorld([everyone], 2, () => 0.2, { onOutage: 'closed' })
    const early = Array.from({ length: 100 }, () => world.instances[0]!.request(['all']))
    await world.run(100)
    world.down = true
    await world.run(1_000)
    const sent = world.sent.length
    const late = world.instances[0]!.request(['all'])
    await world.run(1_100)
    t.match(late.verdict, { reason: 'unavailable' })
    await world.run(4_000)
    t.equal(world.sent.length, sent)
    t.equal(early.filter(({ expired }) => expired).length, 100 - sent)
    world.down = false
    await world.run(5_000)
    const back = world.instances[0]!.request(['all'])
    await world.run(5_010)
    t.not(back.sentAt, undefined)
  },
)

t.test(
  'a request with maxWait 0 at the head of its queue is sent: a call to the store does not count as waiting',
  async t => {
    const world = createWorld([everyone], 1, () => 5)
    await world.run(50)
    const request = world.instances[0]!.request(['all'], { maxWait: 0 })
    const second = world.instances[0]!.request(['all'], { maxWait: 0 })
    await world.run(200)
    t.ok(request.sentAt! < 70, `sent at ${request.sentAt}`)
    t.match(second.verdict, { reason: 'max-wait' })
  },
)

t.test('a released request that is not sent gives its slot back to the store', async t => {
  const world = createWorld([{ ...everyone, rate: 0.001 }], 1, () => 0.2)
  await world.run(10)
  const [instance] = world.instances
  const gone = instance!.request(['all'])
  await world.run(20)
  t.not(gone.sentAt, undefined)
  instance!.shaper.giveBack(gone.verdict as Ticket)
  const next = instance!.request(['all'])
  await world.run(100)
  t.ok(next.sentAt! < 50, `sent at ${next.sentAt}, not after a second`)
})

t.test('a store that hears heartbeats but cannot write is away', async t => {
  const world = createWorld([everyone], 2, () => 0.2)
  await world.run(10)
  world.full = true
  for (let at = 0; at < 100; at += 1) world.instances[at % 2]!.request(['all'])
  await world.run(2_000)
  t.same(
    world.instances.map(({ sharing }) => sharing.state),
    ['alone', 'alone'],
  )
  t.equal(world.sent.length, 100)
  world.full = false
  await world.run(5_000)
  t.same(
    world.instances.map(({ sharing }) => sharing.state),
    ['shared', 'shared'],
  )
})

t.test('a pause for one instance holds for all; after it they share one rate again', async t => {
  const world = createWorld([everyone], 3, seeded(5, 0.05, 0.4))
  saturate(world, ['all'], 20, 12_000)
  await world.run(4_000)
  world.instances[0]!.hear(429, { 'retry-after': '4' })
  await world.run(12_000)
  const { sent } = world
  t.same(
    sent.filter(({ at, instance }) => instance === 0 && at > 4_000 && at < 8_000),
    [],
    'nothing from the instance that got the answer',
  )
  t.same(
    sent.filter(({ at }) => at > 5_010 && at < 8_000),
    [],
    'nothing from the others after their next exchange',
  )
  const after = sent.filter(({ at }) => at >= 8_000)
  const rate = (after.length - 1) / (after.at(-1)!.at - after[0]!.at)
  t.ok(after[0]!.at < 8_020, `going on at ${after[0]!.at}`)
  t.ok(Math.abs(rate / 0.2 - 1) < 0.01, `the rate is ${rate * 1_000}/s`)
  t.ok(worstExcess(after, 0.2) <= 0, `the worst window is ${worstExcess(after, 0.2)} above the bound`)
})

t.test('a pause reaches the others in one round trip', async t => {
  const latencies = [10, 10, 12]
  const world = createWorld([everyone], 3, instance => latencies[instance]!)
  saturate(world, ['all'], 20, 9_000)
  await world.run(4_100)
  world.instances[0]!.hear(429, { 'retry-after': '4' })
  await world.run(9_000)
  const { sent } = world
  for (const [instance, latency] of latencies.entries()) {
    // From the instance that heard of it to the store, and from there to this one.
    const heard = 4_100 + (instance === 0 ? 0 : 10 + latency)
    const [last] = sent.filter(one => one.instance === instance && one.at < 8_000).slice(-1)
    t.ok(last!.at <= heard, `instance ${instance} sends until ${last!.at}, and has heard of it at ${heard}`)
  }
  const [first] = sent.filter(({ at }) => at > 4_200)
  t.ok(first!.at >= 8_100 && first!.at < 8_300, `going on at ${first!.at}`)
})

t.test('without news a pause reaches the others when they ask', async t => {
  const world = createWorld([everyone], 2, () => 1)
  world.hears = false
  saturate(world, ['all'], 20, 6_000)
  await world.run(4_100)
  world.instances[0]!.hear(429, { 'retry-after': '4' })
  await world.run(6_000)
  const [last] = world.sent.filter(({ instance }) => instance === 1).slice(-1)
  t.ok(last!.at > 4_500 && last!.at < 5_110, `the other one sends until ${last!.at}`)
})

t.test('a reset by one instance reaches those that wait at the others', async t => {
  const slow: BucketLimits = { name: 'client', rate: 0.0001, capacity: 5 }
  const world = createWorld([slow], 2, () => 1)
  await world.run(50)
  const [one, other] = world.instances
  one!.request(['k'])
  await world.run(100)
  const waiting = other!.request(['k'])
  await world.run(1_000)
  t.equal(waiting.sentAt, undefined, 'its slot is in 10 s')
  void one!.sharing.store.reset({ limits: slow, key: 'k', group: 'client:k' })
  await world.run(1_100)
  t.ok(waiting.sentAt! < 1_020, `sent at ${waiting.sentAt}`)
})

t.test('the quota of an upstream is shared by all instances', async t => {
  const world = createWorld([everyone], 3, seeded(6, 0.05, 0.4))
  saturate(world, ['all'], 20, 12_000)
  await world.run(2_000)
  // 50 a second, as each of them hears in turn.
  for (let at = 2_000; at < 12_000; at += 500) {
    world.instances[(at / 500) % 3]!.hear(200, { 'ratelimit-policy': '"a";q=3000;w=60', ratelimit: '"a";r=2900;t=58' })
    await world.run(at + 500)
  }
  const settled = world.sent.filter(({ at }) => at > 4_000)
  const rate = (settled.length - 1) / (settled.at(-1)!.at - settled[0]!.at)
  t.ok(Math.abs(rate / 0.05 - 1) < 0.02, `the rate is ${rate * 1_000}/s`)
  t.ok(worstExcess(settled, 0.05) <= 0)
})

t.test('requests of one client keep their order through outages of the store', async t => {
  for (const [seed, stack, keys] of [
    [7, [everyone], ['all']],
    [8, [client, everyone], ['one', 'two', 'three', 'four', 'five', 'six']],
  ] as const) {
    const next = random(seed)
    const world = createWorld([...stack], 2, () => 0.1 + next() * 5)
    // More than may leave: some request always waits.
    const arrive = (): void => {
      const instance = world.instances[Math.floor(next() * 2)]!
      instance.request(stack.length === 1 ? ['all'] : [keys[Math.floor(next() * keys.length)]!, 'all'])
      if (world.clock.now() < 12_000) world.clock.at(world.clock.now() + next() * 8, arrive)
    }
    arrive()
    await world.run(500)
    while (world.clock.now() < 12_000) {
      world.down = true
      await world.run(world.clock.now() + 20 + next() * 700)
      world.down = false
      await world.run(world.clock.now() + 20 + next() * 700)
    }
    await world.run(20_000)
    let inversions = 0
    for (const place of [0, 1]) {
      for (const key of keys) {
        const ids = world.sent.filter(one => one.instance === place && one.key === key).map(({ id }) => id)
        inversions += ids.slice(1).filter((id, before) => id < ids[before]!).length
      }
    }
    t.ok(world.sent.length > 1_000, `${world.sent.length} were sent`)
    t.equal(inversions, 0, `of ${world.sent.length} sent`)
    // An instance that alone has lost the store adds its share to what the other gets from it.
    const excess = worstExcess(world.sent, 0.2 + 0.2 / 2)
    t.ok(excess <= 0, `the worst window is ${excess} above the bound`)
  }
})

t.test('one instance keeps the rate through outages of its store, even if slots are given back', async t => {
  const next = random(12)
  const world = createWorld(
    [
      { ...everyone, name: 'client', rate: 0.1 },
      { ...everyone, capacity: 400 },
    ],
    1,
    () => {
      return 0.1 + next() * 8
    },
  )
  const arrive = (): void => {
    const request = world.instances[0]!.request([['a', 'b', 'c'][Math.floor(next() * 3)]!, 'all'])
    if (next() < 0.2) world.clock.at(world.clock.now() + next() * 500, () => request.hangUp())
    if (world.clock.now() < 8_000) world.clock.at(world.clock.now() + next() * 8, arrive)
  }
  arrive()
  await world.run(400)
  while (world.clock.now() < 8_000) {
    world.down = true
    await world.run(world.clock.now() + 10 + next() * 900)
    world.down = false
    await world.run(world.clock.now() + 10 + next() * 1_400)
  }
  await world.run(14_000)
  const excess = worstExcess(world.sent, 0.2)
  t.ok(excess <= 0, `the worst window is ${excess} above the bound`)
  t.equal(world.instances[0]!.shaper.queued, 0, 'no request is left')
})
