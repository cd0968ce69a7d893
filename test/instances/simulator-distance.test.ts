/** What the distance of a store costs a request, and what it does not cost the bound. On the virtual clock. */
import t from 'tap'
import { limits } from '../core/run.js'
import { type Simulation, type SimulationOptions, type Source, simulate } from './simulator.js'
import { allowedBurst, gaps, quantile, ratePerSecond, worstBurst } from './spacing.js'

const stack = [limits(200, 400, 'everyone')]

/** Requests of each instance at random moments, `perSecond` in all. */
function random(count: number, perSecond: number): Source[] {
  return Array.from({ length: count }, (_, instance) => ({
    ...{ instance, keys: ['all'] },
    load: { kind: 'poisson', ms: (count * 1_000) / perSecond },
  }))
}

async function run(options: Omit<SimulationOptions, 'stack'>, until: number): Promise<Simulation> {
  const simulation = await simulate({ stack, ...options })
  await simulation.run(until)
  return simulation
}

function waits({ releases }: Simulation): number[] {
  return releases.map(({ at, arrivedAt }) => at - arrivedAt)
}

function forfeits({ connections }: Simulation): number {
  return connections.reduce((sum, { calls }) => sum + (calls.verbs.get('giveBack') ?? 0), 0)
}

for (const far of [4, 15, 50]) {
  t.test(`an idle system adds one round trip of ${2 * far} ms, not two`, async t => {
    const every: Source = { instance: 0, keys: ['all'], load: { kind: 'every', ms: 400 } }
    const simulation = await run({ count: 1, sources: [every], distance: () => far }, 20_000)
    const all = waits(simulation)
    t.ok(all.length > 45)
    t.ok(Math.min(...all) >= 2 * far - 1e-6, `${Math.min(...all)} ms`)
    t.ok(Math.max(...all) <= 2 * far + 0.5, `${Math.max(...all)} ms`)
  })
}

t.test('with answers that are up to 20 ms late, too, and without a slot that is missed', async t => {
  const every = [0, 1].map(
    (instance): Source => ({ instance, keys: ['all'], load: { kind: 'every', ms: 400 + 37 * instance } }),
  )
  const simulation = await run({ count: 2, sources: every, distance: () => 15, jitter: 10 }, 30_000)
  const all = waits(simulation)
  t.ok(quantile(all, 0.5) < 42, `${quantile(all, 0.5)} ms, half of them`)
  t.ok(Math.max(...all) < 62, `${Math.max(...all)} ms`)
  t.equal(forfeits(simulation), 0)
})

/** Random arrivals of a part of the rate at instances at these distances in ms: the bound, and the least gaps in ms. */
for (const [what, distances, jitter, part, gap] of [
  ['near and far', [0.25, 2, 8, 15], 0, 0.3, undefined],
  ['near and far', [0.25, 2, 8, 15], 0, 0.9, undefined],
  ['near and far, late answers', [0.25, 2, 8, 15], 10, 0.5, undefined],
  ['all far', [15, 15, 15, 15], 0, 0.3, 5],
  ['all far', [50, 50, 50, 50], 0, 0.5, 5],
  ['all far, late answers', [15, 15, 15, 15], 10, 0.5, 4],
] as const) {
  t.test(`${what}, at ${part} of the rate: the bound and the gaps`, async t => {
    const sources = random(distances.length, 200 * part)
    const simulation = await run({ count: 4, sources, distance: at => distances[at]!, jitter }, 60_000)
    const times = simulation.releases.map(({ at }) => at)
    const wanted = 0.2 * part * 60_000
    t.ok(times.length > 0.95 * wanted, `${times.length} of ${wanted}`)
    const burst = worstBurst(times, 0.2)
    t.ok(burst <= allowedBurst(0.2, 4), `${burst} in one go, ${allowedBurst(0.2, 4)} allowed`)
    if (gap === undefined) return
    const least = quantile(gaps(times), jitter === 0 ? 0 : 0.01)
    t.ok(least >= gap - 1e-6, `${least} ms between two`)
  })
}

t.test('an instance far from the store does not keep it from the others', async t => {
  const sources = [0, 1, 2, 3].map(
    (instance): Source => ({ instance, keys: ['all'], load: { kind: 'saturated', depth: 24 } }),
  )
  for (const far of [50, 100]) {
    const { releases } = await run({ count: 4, sources, distance: at => (at === 0 ? far : 0.25) }, 10_000)
    const used = releases.filter(({ at }) => at > 2_000).length / 1_600
    t.ok(used > 0.99, `${used} of the slots are used`)
  }
})

t.test('a stack of which the shared bucket alone is leased admits more than one request in a round trip', async t => {
  for (const [rate, far] of [
    [100, 12],
    [500, 5],
    [1_000, 1],
  ] as const) {
    const keys = ['own', 'all']
    const simulation = await simulate({
      stack: [limits(4 * rate, 16 * rate, 'client'), limits(rate, 4 * rate, 'everyone')],
      count: 1,
      distance: () => far,
      sources: [
        { instance: 0, keys, load: { kind: 'at-once', count: rate } },
        { instance: 0, keys, load: { kind: 'every', ms: 1_000 / (0.6 * rate) } },
      ],
    })
    await simulation.run(15_000)
    t.equal(simulation.rejected, 0, `${rate}/s, ${far} ms away: nothing is rejected at 0.6 of the rate`)
    const seen = ratePerSecond(
      simulation.releases.map(({ at }) => at),
      10_000,
      15_000,
    )
    t.ok(Math.abs(seen - 0.6 * rate) <= 0.01 * rate, `${seen}/s of ${0.6 * rate}/s`)
  }
})

t.test('the shared bucket of a stack is used up where only it is leased, 12 ms away', async t => {
  for (const depth of [30, 120]) {
    const simulation = await simulate({
      stack: [limits(400, 1_600, 'client'), limits(100, 400, 'everyone')],
      count: 1,
      distance: () => 12,
      sources: [{ instance: 0, keys: ['own', 'all'], load: { kind: 'saturated', depth } }],
    })
    await simulation.run(8_000)
    const late = simulation.releases.filter(({ at }) => at > 3_000).length
    t.ok(late >= 490, `${late} of 500 releases in 5 s with ${depth} waiting`)
  }
})

t.test('a client bucket that lets little through does not end the lease of a busy shared one, 40 ms away', async t => {
  const depths = [60, 20, 20]
  const simulation = await simulate({
    stack: [limits(140, 280, 'client'), limits(200, 400, 'everyone')],
    count: 3,
    distance: () => 40,
    sources: depths.map((depth, instance) => ({
      instance,
      keys: [`client-${instance}`, 'all'],
      load: { kind: 'saturated', depth },
    })),
  })
  await simulation.run(15_000)
  // Slots of the shared bucket that came closer than those of the client were lost, 17 % of them.
  const { length } = simulation.releases
  t.ok(length >= 0.94 * 3_000, `${length} of 3,000 releases`)
  for (const instance of [0, 1, 2]) {
    const times = simulation.releases.filter(({ source }) => source.instance === instance).map(({ at }) => at)
    t.ok(times.length >= 0.2 * 3_000, `${times.length} of instance ${instance}`)
  }
})

t.test('of keys with buckets of their own none starves, whether those are leased or claimed', async t => {
  const sources = Array.from(
    { length: 80 },
    (_, place): Source => ({
      ...{ instance: place % 4, keys: [`key ${Math.floor(place / 4)}`, 'all'] },
      load: { kind: 'saturated', depth: 4 },
    }),
  )
  const both = [limits(20, 100, 'client'), limits(200, 2_000, 'everyone')]
  const simulation = await simulate({ stack: both, count: 4, sources, distance: () => 15 })
  await simulation.run(12_000)
  const counts = new Map<string, number>()
  for (const { source, at } of simulation.releases) {
    if (at > 2_000) counts.set(source.keys[0]!, (counts.get(source.keys[0]!) ?? 0) + 1)
  }
  const fair = (200 * 10) / 20
  t.equal(counts.size, 20)
  t.ok(Math.min(...counts.values()) >= 0.97 * fair, `of ${fair}: ${[...counts.values()]}`)
  const all = waits(simulation)
  t.ok(quantile(all, 0.99) < 2_200, `${quantile(all, 0.99)} ms, 1 % of them`)
})

// A slot of its own bucket may be as late as in one process. Light clients left it slots of the shared bucket that were too soon for them.
for (const { far, least, before } of [
  { far: 0.25, least: 97, before: 95 },
  { far: 5, least: 97, before: 95 },
  { far: 15, least: 95, before: 47 },
  { far: 60, least: 90, before: 32 },
]) {
  t.test(
    `a client at its own limit beside light ones, the shared bucket 90 % used, two instances ${far} ms away`,
    async t => {
      const heavy = [0, 1].map((instance): Source => {
        return { instance, keys: ['heavy', 'all'], load: { kind: 'poisson', ms: 10 } }
      })
      const light = Array.from({ length: 8 }, (_, place): Source => {
        return { instance: place % 2, keys: [`light ${place}`, 'all'], load: { kind: 'poisson', ms: 100 } }
      })
      const simulation = await simulate({
        ...{ stack: [limits(100, 50), limits(200, 200, 'everyone')], count: 2, sources: [...heavy, ...light] },
        ...{ distance: () => far, jitter: 0.5, isReal: true },
      })
      await simulation.run(12_000)
      const sent = simulation.releases.filter(({ at, source }) => at > 2_000 && source.keys[0] === 'heavy').length
      t.ok(sent / 10 >= least, `${sent / 10} % of its rate, ${before} % before`)
    },
  )
}
