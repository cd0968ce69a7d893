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
