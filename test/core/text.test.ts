/** Keys that clients choose: not so that many of them collide, and not with the head that they came in. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { hashOf, ownText } from '../../src/core/structures/text.js'
import { limits } from './run.js'

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

t.test('the key of an instance does not keep the head that it came in', async t => {
  const count = 5_000
  const table = new BucketTable(count)
  collect()
  const before = process.memoryUsage().heapUsed
  for (let client = 0; client < count; client += 1) {
    const head = Buffer.from(`X-Api-Key: the-key-of-${client}\r\n`.padEnd(10_000, 'x')).toString('latin1')
    table.find({ name: 'client', rate: 1, capacity: 1 }, head.slice(11, head.indexOf('\r')), 0)!.fill(1, 0)
  }
  collect()
  const each = (process.memoryUsage().heapUsed - before) / count
  t.equal(table.size(), count)
  t.ok(each < 1_000, `${each.toFixed(0)} bytes for each key`)
})

t.test('a copy is equal', async t => {
  for (const text of ['', 'short', 'x'.repeat(200), 'caf\u00e9 \u{1F600} and a lone \ud83d half'])
    t.equal(ownText(text), text)
})

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
