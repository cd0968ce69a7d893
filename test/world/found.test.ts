/** Worlds that have failed, each as small as it was shrunk, by what was wrong. */
import t from 'tap'
import { check } from './checker.js'
import { CoreInstance } from './core-instance.js'
import { openProxies } from './proxy-world.js'
import type { ClientPlan, Scenario } from './scenario.js'
import { runWorld } from './world.js'

const PLAIN: Scenario = {
  ...{ seed: 1, instances: 1, hasStore: true, mode: 'shape', books: false, maxInFlight: Infinity, service: 0 },
  ...{
    far: 0.25,
    jitter: 0,
    keepsOrder: false,
    isReal: false,
    turns: 1,
    load: 3_500,
    buckets: [],
    clients: [],
    events: [],
  },
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

// Its room and its slot came together, so it had left when it was told of its ticket: the process ended with a TypeError.
t.test('a hang-up while the store is asked, and the slot comes with the room, seed 1396', async t => {
  const buckets = [{ name: 'everyone', perSecond: 50, capacity: 5, burst: 4, isOwn: false }]
  const clients = [
    greedy('one', { cost: 4, depth: 3 }),
    greedy('other', { kind: 'impatient', every: 8, patience: 17, instance: 1 }),
  ]
  for (let seed = 1; seed <= 4; seed += 1) {
    const scenario = { ...PLAIN, seed, instances: 2, far: 2, buckets, clients, turns: 6 }
    t.same(check(await runWorld(scenario, openProxies())).problems, [], `seed ${seed}`)
  }
})

// A slot was claimed for the one behind it meanwhile, and that one left first.
t.test('a request that finds no connection leaves before those behind it, over a store, seed 186', async t => {
  for (let seed = 1; seed <= 6; seed += 1) {
    const scenario: Scenario = {
      ...{ ...PLAIN, seed, far: 15, jitter: 4, turns: 6, load: 1_500 },
      buckets: [{ name: 'everyone', perSecond: 5, capacity: 5, isOwn: false }],
      clients: [greedy('one', { kind: 'slow', every: 110, to: 600 })],
      events: [{ kind: 'upstream', at: 0, lasts: 420, instance: -1, by: 3, client: '' }],
    }
    t.same(check(await runWorld(scenario, openProxies())).problems, [], `seed ${seed}`)
  }
})
