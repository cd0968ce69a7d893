/** Worlds of core and sharing: no proxy around them, so they are quick. What the checker looks for is in checker.ts. */
import t from 'tap'
import { CoreInstance } from './core-instance.js'
import { seedsOf, testWorlds } from './seeds.js'

const seeds = seedsOf(2_000)

t.test(`property: ${seeds.length} worlds of core and sharing, from seed ${seeds[0]}`, async t => {
  const { entries, faults } = await testWorlds(t, seeds, {
    open: () => (world, number) => new CoreInstance(world, number),
  })
  if (seeds.length > 1) t.ok(entries.get('release')! > 10 * seeds.length && faults.size >= 10, 'something comes about')
})
