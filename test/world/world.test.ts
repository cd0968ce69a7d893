/** Worlds under a seed: of core and sharing alone, which are quick, and of whole proxies. checker.ts says what is looked for. */
import t from 'tap'
import { CoreInstance } from './core-instance.js'
import type { Open } from './instance.js'
import { fitProxies, openProxies } from './proxy-world.js'
import { scenarioOf } from './scenario.js'
import { seedsOf, testWorlds } from './seeds.js'
import { runWorld } from './world.js'

const openCore = (): Open => (world, number) => new CoreInstance(world, number)

const seeds = seedsOf(2_000)
t.test(`property: ${seeds.length} worlds of core and sharing, from seed ${seeds[0]}`, async t => {
  const { entries, faults } = await testWorlds(t, seeds, { open: openCore })
  if (seeds.length > 1) t.ok(entries.get('release')! > 10 * seeds.length && faults.size >= 10, 'something comes about')
})

const proxySeeds = seedsOf(300)
t.test(`property: ${proxySeeds.length} worlds of whole proxies, from seed ${proxySeeds[0]}`, async t => {
  const { entries, faults } = await testWorlds(t, proxySeeds, { open: openProxies, fit: fitProxies })
  if (proxySeeds.length > 1)
    t.ok(entries.get('release')! > 10 * proxySeeds.length && faults.size >= 10, 'something comes about')
})

t.test('a seed has one history', async t => {
  for (const seed of [4, 6, 23]) {
    const scenario = fitProxies(scenarioOf(seed))
    t.same(await runWorld(scenario, openCore()), await runWorld(scenario, openCore()), `core, seed ${seed}`)
    t.same(await runWorld(scenario, openProxies()), await runWorld(scenario, openProxies()), `proxies, seed ${seed}`)
  }
})
