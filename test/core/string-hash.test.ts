/** A client may choose its keys, but not so that many of them collide. */
import t from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { hashOf } from '../../src/core/structures/string-hash.js'
import { limits } from './run.js'

/** Places of a table. */
const PLACES = 4096

function place(key: string, seed: number): number {
  return hashOf(key, seed) & (PLACES - 1)
}

t.test('keys that collide under one seed are spread under another', async t => {
  const chosen: string[] = []
  for (let at = 0; chosen.length < 300; at += 1) if (place(`key ${at}`, 0) === 0) chosen.push(`key ${at}`)
  for (const seed of [1, 2, 0x10000, 0x12345678, -1, -0x40000000]) {
    const counts = new Map<number, number>()
    for (const key of chosen) counts.set(place(key, seed), (counts.get(place(key, seed)) ?? 0) + 1)
    const most = Math.max(...counts.values())
    t.ok(most <= 5, `seed ${seed}: at most ${most} in one place`)
  }
})

t.test('each bucket has a random seed', async t => {
  let asked = 0
  t.intercept(Math, 'random', {
    value: () => {
      asked += 1
      return 0.5
    },
  })
  const table = new BucketTable(10)
  table.find({ ...limits(1, 1), name: 'one' }, 'key', 0)
  table.find({ ...limits(1, 1), name: 'one' }, 'other key', 0)
  t.equal(asked, 1)
  table.find({ ...limits(1, 1), name: 'other' }, 'key', 0)
  t.equal(asked, 2)
})
