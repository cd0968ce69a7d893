import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { ownText } from '../../src/core/structures/own-text.js'

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
