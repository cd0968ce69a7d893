/** Worlds that have failed, each as small as it was shrunk, by what was wrong. */
import t from 'tap'
import { check } from './checker.js'
import { CoreInstance } from './core-instance.js'
import type { ClientPlan, Scenario } from './scenario.js'
import { runWorld } from './world.js'

const PLAIN: Scenario = {
  ...{ seed: 1, instances: 1, hasStore: true, mode: 'shape', books: false, maxInFlight: Infinity, service: 0 },
  ...{ far: 0.25, jitter: 0, keepsOrder: false, isReal: false, load: 3_500, buckets: [], clients: [], events: [] },
}

function greedy(name: string, more: Partial<ClientPlan> = {}): ClientPlan {
  return {
    ...{ name, kind: 'greedy', instance: -1, route: 'route', cost: 1, priority: 3, weight: 1, maxWait: Infinity },
    ...{ every: 100, depth: 1, patience: 100, from: 0, to: PLAIN.load },
    ...more,
  }
}

// Its slots of the shared bucket lay where its own ones lapsed, by less than the error of the store's clock: each was given back.
t.test('a client whose slots meet those of the shared bucket at their very end is not starved, seed 33', async t => {
  for (let seed = 1; seed <= 12; seed += 1) {
    const history = await runWorld(
      {
        ...{ ...PLAIN, seed, jitter: 4 },
        buckets: [
          { name: 'client', perSecond: 38.49764390848577, capacity: 2, isOwn: true },
          { name: 'everyone', perSecond: 50, capacity: 12, isOwn: false },
        ],
        clients: [greedy('one'), greedy('other', { depth: 5 })],
      },
      (world, number) => new CoreInstance(world, number),
    )
    t.same(check(history).problems, [], `seed ${seed}`)
  }
})
