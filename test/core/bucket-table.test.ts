import fc from 'fast-check'
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import type { Lane, ShareNode } from '../../src/core/queue/lane.js'
import { runs } from '../runs.js'
import { limits } from './run.js'

const CLIENT = limits(1, 10)
const TENANT = limits(1, 10, 'tenant')

function keys(keyspace: BucketTable, name = 'client'): string[] {
  return [...keyspace.entries(name)].map(([key]) => key)
}

t.test('one instance per key and bucket', async t => {
  const keyspace = new BucketTable(10)
  const a = keyspace.find(CLIENT, 'a', 0)!
  a.fill(1, 0)
  t.equal(keyspace.find(CLIENT, 'a', 0), a)
  t.not(keyspace.find(CLIENT, 'b', 0), a)
  t.not(keyspace.find(TENANT, 'a', 0), a)
  t.same([keyspace.size('client'), keyspace.size('tenant'), keyspace.size('other'), keyspace.size()], [2, 1, 0, 3])
  t.same(keys(keyspace), ['a', 'b'])
  t.same(keys(keyspace, 'other'), [])
})

t.test('a full table drops an idle instance', async t => {
  const keyspace = new BucketTable(3)
  for (const [key, cost] of [
    ['a', 5],
    ['b', 0],
    ['c', 3],
  ] as const)
    keyspace.find(CLIENT, key, 0)!.fill(cost, 0)
  keyspace.find(CLIENT, 'd', 0)!.fill(9, 0)
  t.same(keys(keyspace), ['a', 'c', 'd'])
  t.equal(keyspace.size(), 3)
})

t.test('without an idle instance the emptiest one is dropped', async t => {
  const keyspace = new BucketTable(3)
  for (const [key, cost] of [
    ['a', 5],
    ['b', 4],
    ['c', 3],
  ] as const)
    keyspace.find(CLIENT, key, 0)!.fill(cost, 0)
  keyspace.find(CLIENT, 'd', 0)!.fill(9, 0)
  t.same(keys(keyspace), ['a', 'b', 'd'])
})

t.test('an instance is not dropped while what has passed it is not on the wire', async t => {
  const table = new BucketTable(2)
  const bucket = table.find(CLIENT, 'a', 0)!
  const request = { route: { gate: {} } }
  bucket.addHeld(request)
  for (const key of ['b', 'c', 'd', 'e']) table.find(CLIENT, key, 60_000)
  t.equal(table.find(CLIENT, 'a', 60_000), bucket)
  bucket.dropHeld(request)
  for (const key of ['b', 'c', 'd', 'e']) table.find(CLIENT, key, 60_000)
  t.notOk(keys(table).includes('a'))
})

t.test('an instance with waiters is never dropped', async t => {
  const keyspace = new BucketTable(2)
  keyspace.find(CLIENT, 'a', 0)!.enqueue(0.1)
  keyspace.find(CLIENT, 'b', 0)!.fill(9, 0)
  t.ok(keyspace.find(CLIENT, 'c', 0))
  t.same(keys(keyspace), ['a', 'c'])
  keyspace.find(CLIENT, 'c', 0)!.enqueue(1)
  for (let again = 0; again < 5; again += 1) t.equal(keyspace.find(CLIENT, 'd', 0), undefined)
  t.same(keys(keyspace), ['a', 'c'])
  keyspace.find(CLIENT, 'c', 0)!.dequeue(1)
  t.ok(keyspace.find(CLIENT, 'd', 0))
})

t.test('instances of other buckets are dropped, too', async t => {
  const keyspace = new BucketTable(2)
  keyspace.find(CLIENT, 'a', 0)!.fill(5, 0)
  keyspace.find(CLIENT, 'b', 0)!.fill(3, 0)
  t.ok(keyspace.find(TENANT, 't', 0))
  t.same(keys(keyspace), ['a'])
  t.equal(keyspace.size(), 2)
})

t.test('an idle instance is always found: undefined only when all have waiters', async t => {
  for (const count of [1, 2, 3, 63, 64, 65, 100, 200]) {
    for (let idle = 0; idle < count; idle += Math.ceil(count / 7)) {
      const keyspace = new BucketTable(count)
      for (let key = 0; key < count; key += 1) keyspace.find(CLIENT, `${key}`, 0)!.enqueue(1)
      keyspace.find(CLIENT, `${idle}`, 0)!.dequeue(1)
      // Twice: the second time the search starts elsewhere.
      for (const newcomer of ['new', 'newer']) {
        if (keyspace.find(CLIENT, newcomer, 0) === undefined) {
          t.fail(`${count - 1} with waiters and number ${idle} without: no place for ${newcomer}`)
          return
        }
      }
    }
  }
})

t.test('buckets of one request do not drop each other', async t => {
  const keyspace = new BucketTable(3)
  for (const key of ['t1', 't2']) keyspace.find(TENANT, key, 0)!.enqueue(1)
  const client = keyspace.find(CLIENT, 'a', 0)
  t.ok(client)
  t.equal(keyspace.find(TENANT, 't3', 0, [client!]), undefined, 'the only place is that of its client')
  t.equal(keyspace.find(CLIENT, 'a', 0), client, 'else its next request finds an empty bucket')
  t.ok(keyspace.find(TENANT, 't3', 0), 'another request may take the place')
})

t.test('a lowered maxKeys drops the emptier instances, and lets newcomers in soon', async t => {
  const table = new BucketTable(100)
  const slow = limits(1e-6, 10)
  for (let key = 0; key < 100; key += 1) table.find(slow, `${key}`, 0)!.fill(key / 10, 0)
  table.find(slow, '0', 0)!.enqueue(1)
  table.maxKeys = 10
  let tries = 1
  for (; table.find(slow, `new ${tries}`, 0) === undefined; tries += 1) if (tries > 10) break
  t.ok(tries <= 10, `let in after ${tries}`)
  t.equal(table.size(), 10)
  t.ok(table.peek('client', '0'), 'it has a waiter')
  for (let key = 0; key < 1_000; key += 1) table.find(slow, `newer ${key}`, 0)?.fill(9, 0)
  t.equal(table.size(), 10)
})

t.test('property: there are at most maxKeys instances, and only allowed ones are dropped', async () => {
  const step = fc.record({
    verb: fc.constantFrom('find', 'find', 'find', 'enqueue', 'dequeue', 'later', 'lower'),
    key: fc.integer({ min: 0, max: 30 }),
    cost: fc.constantFrom(0, 1, 5),
    bucket: fc.constantFrom(CLIENT, TENANT),
  })
  fc.assert(
    fc.property(fc.array(step, { maxLength: 120, size: 'max' }), fc.integer({ min: 1, max: 12 }), (steps, maxKeys) => {
      const keyspace = new BucketTable(maxKeys)
      let now = 0
      const entries = () =>
        [CLIENT, TENANT].flatMap(({ name }) =>
          [...keyspace.entries(name)].map(([key, bucket]) => ({ id: `${name} ${key}`, bucket })),
        )
      for (const { verb, key, cost, bucket: limits } of steps) {
        const before = entries()
        if (verb === 'later') now += 2_000
        else if (verb === 'lower') keyspace.maxKeys = Math.max(1, keyspace.maxKeys - cost)
        else {
          const { maxKeys } = keyspace
          const known = before.find(({ id }) => id === `${limits.name} ${key}`)
          const bucket = keyspace.find(limits, `${key}`, now)
          const after = new Set(entries().map(({ id }) => id))
          if (known !== undefined && bucket !== known.bucket) return false
          if (keyspace.size() !== after.size) return false
          // Nobody is let in above the bound.
          if (known === undefined && bucket !== undefined && after.size > maxKeys) return false
          if (after.size > Math.max(maxKeys, before.length)) return false
          const gone = before.filter(({ id }) => !after.has(id))
          if (gone.some(({ bucket }) => bucket.waiting > 0)) return false
          if (known !== undefined && gone.length > 0) return false
          const busy = gone.filter(({ bucket }) => bucket.level(now) > 0)
          // Instances with a level are dropped only when the table is full, and no more than there are too many.
          if (busy.length > Math.max(0, before.length - maxKeys + 1)) return false
          if (verb === 'enqueue') bucket?.enqueue(cost)
          else if (verb === 'find') bucket?.fill(cost, now)
          else if (bucket !== undefined && bucket.waiting > 0) bucket.dequeue(cost)
        }
      }
      return true
    }),
    { seed: 41, numRuns: runs(500) },
  )
})

t.test('instances of keys in use stay, also after they have drained', async t => {
  const used = new Set(['a', 'b'])
  const keyspace = new BucketTable(3, undefined, key => used.has(key))
  const a = keyspace.find(limits(1, 10), 'a', 0)!
  const b = keyspace.find(limits(1, 10), 'b', 0)!
  b.fill(1, 0)
  for (let at = 0; at < 100; at += 1) keyspace.find(limits(1, 10), `${at}`, at)!.fill(10, at)
  t.equal(keyspace.find(limits(1, 10), 'a', 100), a)
  t.equal(keyspace.find(limits(1, 10), 'b', 100), b)
  used.add('99')
  t.equal(keyspace.find(limits(1, 10), 'c', 100), undefined, 'all places are taken')
  used.delete('a')
  t.ok(keyspace.find(limits(1, 10), 'c', 100))
})

t.test('a flood of new keys while all instances have waiters costs a bounded number of looks', async t => {
  let looks = 0
  class Counted extends QueuedBucket<ShareNode, Lane> {
    override get engaged(): boolean {
      looks += 1
      return super.engaged
    }
  }
  const count = 10_000
  const table = new BucketTable(count, limits => new Counted(limits))
  const names = [CLIENT, TENANT]
  for (let key = 0; key < count; key += 1) table.find(names[key % 2]!, `${key}`, 0)!.enqueue(1)
  looks = 0
  const newcomers = 5_000
  for (let key = 0; key < newcomers; key += 1) table.find(CLIENT, `new ${key}`, 0)
  // Of all instances each time it would be fifty million.
  t.ok(looks <= 64 * names.length * newcomers + 4 * count, `${looks} looks`)
  t.equal(table.size(), count)
  // One place: it is found after a few newcomers, whichever bucket it belongs to.
  for (const [index, limits] of names.entries()) {
    const place = 7_000 + index
    table.find(limits, `${place}`, 0)!.dequeue(1)
    let tries = 1
    for (; table.find(CLIENT, `late ${tries}`, 0) === undefined; tries += 1) if (tries > count) break
    t.ok(tries <= count / 64, `found by newcomer ${tries}`)
    table.find(CLIENT, `late ${tries}`, 0)?.enqueue(1)
    t.equal(table.size(), count)
  }
})

t.test('of keys that come once each hardly more are kept than hold something', async t => {
  // Each drains in 10 ms, and 10 come in each ms: 100 hold something at any moment.
  const table = new BucketTable(1e9)
  const fast = limits(100, 10)
  let most = 0
  for (let key = 0; key < 100_000; key += 1) {
    table.find(fast, `${key}`, key / 10)!.fill(1, key / 10)
    most = Math.max(most, table.size())
  }
  t.ok(most <= 3 * 100, `${most} at most`)
})
