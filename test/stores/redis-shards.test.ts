/** The shards of a cluster, as its slots move. */
import t from 'tap'
import { Shards } from '../../src/stores/redis/cluster.js'
import { hashSlot, SLOTS } from '../../src/stores/redis/keys.js'

/** Slots in equal parts, in order. */
function dealt(...masters: string[]): string[] {
  return Array.from({ length: SLOTS }, (_, slot) => masters[Math.floor((slot * masters.length) / SLOTS)]!)
}

t.test('a shard keeps its name when a replica takes over, and its names when nothing has moved', async t => {
  const shards = new Shards()
  t.same(shards.names, [])
  t.equal(shards.nameOf(0), '')
  shards.learn(dealt('a', 'b', 'c'))
  const { names } = shards
  t.same(names, ['a', 'b', 'c'])
  shards.learn(dealt('a', 'replica of b', 'c'))
  t.equal(shards.names, names, 'the same array')
  t.equal(shards.nameOf(SLOTS / 2), 'b')
  shards.learn(dealt('a', 'b', 'c'))
  t.equal(shards.names, names)
})

t.test('a master with slots of several is a shard of its own, and so is one that comes back elsewhere', async t => {
  const shards = new Shards()
  shards.learn(dealt('a', 'b'))
  shards.learn(dealt('a', 'c', 'b', 'd'))
  t.same(shards.names, ['a', 'c', 'b', 'd'])
  shards.learn(dealt('a', 'e', 'b', 'd'))
  t.same(shards.names, ['a', 'c', 'b', 'd'])
  shards.learn(dealt('a', 'e', 'c', 'd'))
  t.same(shards.names, ['a', 'c', 'b', 'd'], 'each name is there once')
})

t.test('each shard has a registry, and all instances find the same one', async t => {
  const [shards, others] = [new Shards(), new Shards()]
  shards.learn(dealt('a', 'x', 'c'))
  shards.learn(dealt('a', 'b', 'c'))
  others.learn(dealt('a', 'b', 'c'))
  for (const [at, name] of shards.names.entries()) {
    const registry = shards.registryOf(name)!
    t.equal(shards.nameOf(hashSlot(registry)), name)
    t.equal(others.registryOf(others.names[at]!), registry)
  }
})
