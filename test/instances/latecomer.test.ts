/** An instance whose requests come while others keep the buckets full gets its turns. On the virtual clock. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { limits } from '../core/run.js'
import { type Source, simulate } from './simulator.js'

const everyone = limits(50, 100, 'everyone')

interface World {
  readonly title: string
  readonly stack: readonly BucketLimits[]
  readonly keys: (instance: number) => readonly string[]
}

const worlds: World[] = [
  { title: 'one bucket', stack: [everyone], keys: () => ['all'] },
  {
    title: 'clients with less than the half each and more than it together',
    stack: [limits(30, 60, 'client'), everyone],
    keys: instance => [`client ${instance}`, 'all'],
  },
  {
    title: 'clients that could have more than all',
    stack: [limits(60, 120, 'client'), everyone],
    keys: instance => [`client ${instance}`, 'all'],
  },
]

for (const { title, stack, keys } of worlds) {
  for (const from of [0, 2_000]) {
    t.test(`${title}: the second instance comes after ${from} ms, and both have 25/s`, async t => {
      const sources = [0, 1].map((instance): Source => {
        return { instance, keys: keys(instance), load: { kind: 'saturated', depth: 100 }, from: instance * from }
      })
      const simulation = await simulate({ stack, count: 2, sources, isReal: true })
      await simulation.run(12_000)
      for (let second = 5; second < 12; second += 1) {
        const counts = [0, 1].map(
          of =>
            simulation.releases.filter(
              ({ at, source: { instance } }) => instance === of && at >= second * 1_000 && at < (second + 1) * 1_000,
            ).length,
        )
        t.ok(Math.min(...counts) >= 22 && Math.max(...counts) <= 28, `in second ${second}: ${counts}`)
      }
    })
  }
}

t.test('requests that wait for their own slow bucket cost other instances no turns', async t => {
  const all = limits(200, 40_000, 'everyone')
  const slow = Array.from({ length: 100 }, (_, place): Source => {
    const keys = [`slow ${place}`, 'all']
    return { instance: 0, stack: [limits(0.02, 20, 'slow'), all], keys, load: { kind: 'saturated', depth: 4 } }
  })
  const fast = [0, 1, 2, 3].map((instance): Source => {
    return { instance, keys: [`fast ${instance}`, 'all'], load: { kind: 'saturated', depth: 20 } }
  })
  const stack = [limits(1_000, 4_000, 'client'), all]
  const simulation = await simulate({ stack, count: 4, sources: [...slow, ...fast] })
  await simulation.run(10_000)
  const counts = fast.map(
    source => simulation.releases.filter(({ at, source: by }) => by === source && at >= 5_000).length,
  )
  t.ok(Math.min(...counts) >= 240 && Math.max(...counts) <= 260, `${counts} of 250 each`)
})

for (const [own, tenant, rate, least] of [
  [7, 5, 10, 0.97],
  [5, 6, 5, 0.9],
  [70, 50, 100, 0.97],
] as const) {
  t.test(`stacks of three buckets, ${own}, ${tenant} and ${rate}/s: four instances have their turns`, async t => {
    const stack = [limits(own, 100, 'client'), limits(tenant, 100, 'tenant'), limits(rate, 100, 'everyone')]
    const sources = Array.from({ length: 4 }, (_, instance): Source => {
      return { instance, keys: [`client ${instance % 2}`, 't', 'all'], load: { kind: 'saturated', depth: 10 } }
    })
    const simulation = await simulate({ stack, count: 4, sources, isReal: true })
    await simulation.run(30_000)
    const { releases } = simulation
    const possible = Math.min(tenant, rate) * 30
    t.ok(releases.length >= least * possible, `${releases.length} of ${possible}`)
    const counts = sources.map(source => releases.filter(({ source: by }) => by === source).length)
    t.ok(Math.max(...counts) <= 1.25 * Math.min(...counts), `${counts}`)
  })
}
