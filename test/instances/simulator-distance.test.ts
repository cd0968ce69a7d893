/** What the distance of a store costs a request, and what it does not cost the bound. On the virtual clock. */
import t from 'tap'
import { limits } from '../core/run.js'
import { type Simulation, type SimulationOptions, type Source, simulate } from './simulator.js'
import { allowedBurst, gaps, quantile, worstBurst } from './spacing.js'

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
