/** Instances that lease slots of a shared bucket, on one virtual clock: turns, spacing, calls, waits (slot-leases.md). */
import t from 'tap'
import { limits } from '../core/run.js'
import { createWorld, type Request, type World } from '../proxy/instances.js'
import { type Source, simulate } from './simulator.js'

const NEAR = 0.1

interface Load {
  /** ms each way, by instance. */
  readonly latencies: readonly number[]
  readonly perSecond: number
  readonly capacity: number
  /** Requests per second at each instance. */
  readonly offered: number
  readonly seconds: number
}

/** Cost beyond `rate * W` in the worst window: 1 for one schedule. */
function worstExcess(times: readonly number[], rate: number): number {
  let least = Infinity
  let worst = -Infinity
  for (const [index, at] of times.entries()) {
    least = Math.min(least, index - rate * at)
    worst = Math.max(worst, index + 1 - rate * at - least)
  }
  return worst
}

/** Before this, in ms, the bucket is not leased with its room, and each request asks. */
const WARM = 1_000

interface Saturated extends World {
  /** Calls of all instances per second, once all is leased. */
  readonly calls: number
}

async function saturate({ latencies, perSecond, capacity, offered, seconds }: Load): Promise<Saturated> {
  const stack = [{ name: 'all', rate: perSecond / 1_000, capacity }]
  const world = createWorld(stack, latencies.length, instance => latencies[instance]!)
  const calls = (): number => world.admits + world.claims + world.leases
  let before = 0
  for (let sent = 0; sent < offered * seconds; sent += 1) {
    await world.run((sent * 1_000) / offered)
    if (before === 0 && world.clock.now() >= WARM) before = calls()
    for (const instance of world.instances) instance.request(['*'])
  }
  return Object.assign(world, { calls: (calls() - before) / (seconds - WARM / 1_000) })
}

for (const [name, latencies, perSecond, capacity, most] of [
  ['near', [NEAR, NEAR, NEAR, NEAR], 200, 100, 4],
  ['one 15 ms away', [15, NEAR, NEAR, NEAR], 200, 100, 4],
  ['a bucket for less than a frame', [NEAR, NEAR, NEAR, NEAR], 200, 20, 4],
  ['a slow one', [15, NEAR, NEAR, NEAR], 20, 20, 4],
] as const) {
  t.test(`equal turns: ${name}`, async t => {
    const seconds = 10
    const world = await saturate({ latencies, perSecond, capacity, offered: perSecond / 2, seconds })
    const late = world.sent.filter(({ at }) => at >= 2_000 && at < seconds * 1_000)
    const shares = latencies.map((_, index) => late.filter(({ instance }) => instance === index).length)
    const equal = late.length / latencies.length
    for (const share of shares) t.ok(Math.abs(share - equal) <= equal / 10, `${shares}`)
    // One of each may be at the other side of an end.
    const wanted = perSecond * (seconds - 2)
    t.ok(Math.abs(late.length - wanted) <= latencies.length, `${late.length} of ${wanted}`)
    const times = world.sent.map(({ at }) => at).sort((x, y) => x - y)
    const excess = worstExcess(times, perSecond / 1_000)
    t.ok(excess <= most + perSecond * 0.01, `${excess} beyond the rate`)
    const calls = world.calls / latencies.length
    t.ok(calls <= 10, `${calls} calls per second and instance`)
  })
}

t.test('without contention a request takes one round trip and one call', async t => {
  const world = createWorld([{ name: 'all', rate: 0.2, capacity: 100 }], 2, () => NEAR)
  const requests: [sent: number, request: Request][] = []
  for (let sent = 0; sent < 20; sent += 1) {
    await world.run(sent * 100)
    requests.push([world.clock.now(), world.instances[sent % 2]!.request(['*'])])
  }
  await world.run(4_000)
  for (const [at, { sentAt }] of requests) t.ok(sentAt! - at <= 2 * NEAR + 0.5, `${sentAt! - at} ms`)
  t.equal(world.admits + world.claims + world.leases, 20)
})

t.test('never more than the capacity waits in all, and all of it is used', async t => {
  const capacity = 40
  const world = createWorld([{ name: 'all', rate: 0.01, capacity }], 4, () => NEAR)
  const requests: Request[] = []
  for (let sent = 0; sent < 100; sent += 1) requests.push(world.instances[sent % 4]!.request(['*']))
  await world.run(50)
  const waiting = () =>
    requests.filter(
      ({ verdict, sentAt }) => typeof verdict === 'object' && !('reason' in verdict) && sentAt === undefined,
    )
  t.equal(waiting().length + world.sent.length, capacity, 'a burst: exactly b')
  for (let at = 100; at <= 10_000; at += 10) {
    await world.run(at)
    requests.push(world.instances[(at / 10) % 4]!.request(['*']))
    // One has left, and its cost drains for a period.
    if (waiting().length > capacity) t.fail(`${waiting().length} wait`)
  }
  await world.run(10_050)
  t.ok(waiting().length >= capacity - 4, `${waiting().length} wait`)
})

t.test('a wide bucket that was leased for a burst costs a stack behind a narrow one nothing for long', async t => {
  // In % of the narrow rate: what left at least, and before.
  for (const { narrow, wide: perSecond, seed, least, before } of [
    { narrow: 100, wide: 200, seed: 1, least: 98, before: 75.0 },
    { narrow: 100, wide: 200, seed: 2, least: 98, before: 88.5 },
    { narrow: 100, wide: 200, seed: 4, least: 98, before: 81.5 },
    { narrow: 100, wide: 120, seed: 1, least: 94, before: 86.2 },
    { narrow: 1_000, wide: 1_300, seed: 1, least: 98, before: 67.1 },
  ]) {
    const wide = limits(perSecond, 0.4 * perSecond, 'everyone')
    const client: Source[] = [0, 1].map(instance => ({
      ...{ instance, keys: ['ann', 'all'], load: { kind: 'poisson', ms: 1_250 / narrow } },
    }))
    const bursts: Source[] = [3_000, 9_000, 15_000].map(from => ({
      ...{ instance: 0, keys: ['bob', 'all'], stack: [limits(20 * narrow, 4 * narrow, 'other'), wide], from },
      load: { kind: 'at-once', count: narrow / 4 },
    }))
    const simulation = await simulate({
      ...{ stack: [limits(narrow, 0.4 * narrow, 'client'), wide], count: 2, sources: [...client, ...bursts], seed },
      ...{ distance: () => 0.1, jitter: 0.9 },
    })
    await simulation.run(20_000)
    const left = simulation.releases.filter(({ at, source }) => at > 10_000 && source.keys[0] === 'ann')
    const part = (10 * left.length) / narrow
    t.ok(part >= least && part <= 101, `${part} % of ${narrow}/s behind ${perSecond}/s, ${before} before`)
  }
})

/** Stacks of one client at several instances, which are all as busy: what leaves in % of the narrow rate. */
async function partOf(stack: readonly number[], ways: readonly number[], seed: number): Promise<number> {
  const narrow = Math.min(...stack)
  const simulation = await simulate({
    stack: stack.map((perSecond, place) => limits(perSecond, 10 + 0.4 * perSecond, `bucket ${place}`)),
    ...{ count: ways.length, seed, distance: instance => ways[instance]!, jitter: 0.9 },
    sources: ways.map((_, instance) => ({
      ...{ instance, keys: stack.map(() => 'ann') },
      load: { kind: 'poisson', ms: (1_000 * ways.length) / (1.6 * narrow) },
    })),
  })
  await simulation.run(15_000)
  return (10 * simulation.releases.filter(({ at }) => at > 5_000).length) / narrow
}

t.test('a stack has the rate of its narrowest bucket, in any order, near and far', async t => {
  // `before`: what left for the same seed.
  for (const { stack, ways, least = 98.5, before } of [
    { stack: [100, 100], ways: [0.1, 0.1, 0.1], before: 77.5 },
    { stack: [100, 200], ways: [15, 15], before: 71.2 },
    { stack: [200, 100], ways: [0.1, 0.1, 0.1, 0.1], before: 63.7 },
    { stack: [130, 100], ways: [4, 4, 4], before: 67.4 },
    { stack: [100, 100], ways: [15, 15, 15, 15], before: 61.7 },
    { stack: [200, 100, 150], ways: [10, 10], before: 9.2 },
    { stack: [100, 200], ways: [15, 0.1], before: 68.2 },
    { stack: [200, 100], ways: [15, 0.1], before: 75.2 },
    { stack: [100, 100], ways: [15, 0.1], least: 84, before: 88 },
    { stack: [5, 8], ways: [10, 10], before: 100 },
  ]) {
    const part = await partOf(stack, ways, 2)
    t.ok(part >= least && part <= 101, `${part} % of ${stack}/s, ${ways} ms away, ${before} before`)
  }
})

/** Which clients send at each instance, as a part of the rate of their own buckets. */
const SHARED = [
  [0.8, 0.8],
  [0.8, 0.8],
]
const UNEQUAL = [
  [1.6, 0, 0, 0],
  [0, 1.6, 0, 0],
  [0, 0, 0.3, 0],
  [0, 0, 0, 0.3],
]

t.test('clients behind one bucket use all of it, as evenly as their own buckets let them', async t => {
  // `before`: what left for the same seed, in % of the wide rate.
  for (const { narrow, wide, way, jitter = 0, clients, least = 98.5, before } of [
    { narrow: 100, wide: 120, way: 15, jitter: 0.5, clients: SHARED, before: 96.6 },
    { narrow: 100, wide: 150, way: 0.1, jitter: 0.5, clients: SHARED, before: 94.7 },
    { narrow: 100, wide: 180, way: 0.1, clients: SHARED, least: 88, before: 78 },
    { narrow: 100, wide: 200, way: 40, clients: UNEQUAL, before: 88.1 },
    { narrow: 500, wide: 1_200, way: 15, clients: UNEQUAL, least: 93, before: 78.1 },
  ]) {
    const sources = clients.flatMap((parts, client) =>
      parts.flatMap((part, instance): Source[] => {
        const load = { kind: 'poisson', ms: 1_000 / (part * narrow) } as const
        return part === 0 ? [] : [{ instance, keys: [`client ${client}`, 'all'], load }]
      }),
    )
    const simulation = await simulate({
      stack: [limits(narrow, narrow, 'client'), limits(wide, 2 * wide, 'everyone')],
      ...{ count: clients[0]!.length, seed: 2, sources, distance: () => way, jitter },
    })
    await simulation.run(12_000)
    const part = (100 * simulation.releases.filter(({ at }) => at > 4_000).length) / (8 * wide)
    t.ok(
      part >= least && part <= 101,
      `${part} % of ${wide}/s with clients of ${narrow}/s, ${way} ms away, ${before} before`,
    )
  }
})

t.test('time between claims of one client is for others, a few ms from the store', async t => {
  // Each client at its own instance, at 1.6 times the rate of its bucket. `before`: what left in % of the wide rate.
  for (const { narrow, wide, way, count, before } of [
    { narrow: 300, wide: 1_000, way: 4, count: 4, before: 81.8 },
    { narrow: 300, wide: 1_000, way: 6, count: 4, before: 69.6 },
  ]) {
    const sources = Array.from({ length: count }, (_, instance): Source => {
      const load = { kind: 'poisson', ms: 625 / narrow } as const
      return { instance, keys: [`client ${instance}`, 'all'], load }
    })
    const simulation = await simulate({
      stack: [limits(narrow, 2 * narrow, 'client'), limits(wide, 2 * wide, 'everyone')],
      ...{ count, sources, distance: () => way },
    })
    await simulation.run(8_000)
    const part = (100 * simulation.releases.filter(({ at }) => at > 3_000).length) / (5 * wide)
    t.ok(
      part >= 98 && part <= 101,
      `${part} % of ${wide}/s with clients of ${narrow}/s, ${way} ms away, ${before} before`,
    )
  }
})

t.test('many clients whose own buckets are idle do not wait for seconds beside a flood', async t => {
  const everyone = limits(100, 200, 'everyone')
  const few = Array.from(
    { length: 400 },
    (_, place): Source => ({ instance: 0, keys: [`client ${place}`, 'all'], load: { kind: 'poisson', ms: 20_000 } }),
  )
  const flood: Source = { instance: 1, keys: ['all'], stack: [everyone], load: { kind: 'saturated', depth: 60 } }
  const simulation = await simulate({
    ...{ stack: [limits(1 / 6, 10, 'client'), everyone], count: 2, sources: [...few, flood] },
    distance: () => 0.25,
  })
  await simulation.run(20_000)
  const waits = simulation.releases
    .filter(({ at, source }) => at > 3_000 && source.keys.length === 2)
    .map(({ at, arrivedAt }) => at - arrivedAt)
    .sort((one, other) => one - other)
  const middle = waits[Math.floor(waits.length / 2)]!
  t.ok(waits.length > 150 && middle < 400, `${waits.length} requests, ${middle} ms in the middle`)
})
