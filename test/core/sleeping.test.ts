/** Instances that sleep between requests decide as those that stay awake, and are found wherever their row has moved. */

import fc from 'fast-check'
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type SharedBucket, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { hashOf, randomSeed } from '../../src/core/structures/text.js'
import { runs } from '../runs.js'
import { limits } from './run.js'

const LIMITS = limits(1, 10)
const NOBODY = { release() {}, expire() {}, reject() {} }

/** A table shows a copy of an instance that sleeps, a new one each time. */
function sleeps(table: BucketTable, key: string): boolean {
  const [one, other] = [1, 2].map(() => table.look('client', key))
  return one !== other
}

t.test('an instance sleeps while nobody holds it, nobody waits and no block lasts', async t => {
  const table = new BucketTable(10)
  const bucket = table.find(LIMITS, 'a', 0)!
  t.notOk(sleeps(table, 'a'), 'it is not put to sleep by itself')
  table.hold(bucket)
  table.hold(bucket)
  bucket.fill(3, 0)
  table.rest(bucket)
  t.equal(table.find(LIMITS, 'a', 0), bucket, 'somebody still holds it')
  bucket.enqueue(1)
  table.rest(bucket)
  t.equal(table.peek('client', 'a'), bucket, 'somebody waits')
  bucket.dequeue(1)
  table.hold(bucket)
  table.rest(bucket)
  t.ok(sleeps(table, 'a'))
  t.equal(table.look('client', 'a')!.level(1_000), 2)
  t.same(
    [...table.entries('client')].map(([key, bucket]) => [key, bucket.level(0)]),
    [['a', 3]],
  )
  t.ok(sleeps(table, 'a'), 'after a walk, too')
  const woken = table.find(LIMITS, 'a', 0)!
  t.not(woken, bucket)
  t.equal(table.find(LIMITS, 'a', 0), woken, 'there is one object while it is awake')
  t.equal(woken.level(1_000), 2)
})

t.test('a block keeps an instance awake', async t => {
  const table = new BucketTable(10)
  const bucket = table.find({ ...LIMITS, blockFor: 1_000 }, 'a', 0)!
  table.hold(bucket)
  bucket.applyOverflowPolicy(0)
  table.rest(bucket)
  t.equal(table.find(LIMITS, 'a', 0), bucket)
  t.equal(bucket.blockedFor(400), 600)
})

t.test('a late rest of an instance that was dropped does nothing to the next one of its key', async t => {
  const table = new BucketTable(1)
  const bucket = table.find(LIMITS, 'a', 0)!
  table.hold(bucket)
  bucket.fill(5, 0)
  table.find(LIMITS, 'b', 0)
  t.equal(table.peek('client', 'a'), undefined)
  const next = table.find(LIMITS, 'a', 20_000)!
  table.hold(next)
  next.fill(1, 20_000)
  table.rest(bucket)
  t.equal(table.find(LIMITS, 'a', 20_000), next)
  t.equal(next.level(20_000), 1)
})

t.test('limits that change while an instance is awake are those it sleeps with', async t => {
  const table = new BucketTable(10)
  {
    const bucket = table.find(LIMITS, 'a', 0)!
    table.hold(bucket)
    bucket.fill(10, 0)
    table.rest(bucket)
  }
  for (const [, bucket] of table.entries('client')) bucket.setLimits(limits(5, 10), 1_000)
  t.ok(sleeps(table, 'a'))
  t.equal(table.look('client', 'a')!.level(2_000), 4)
})

interface Side {
  readonly table: BucketTable
  readonly shaper: Shaper
  readonly advance: (until: number) => void
  readonly gate: Gate
  /** What was decided, and what has left. */
  readonly told: string[]
}

function side(): Side {
  const clock = createVirtualClock()
  return {
    table: new BucketTable(5),
    shaper: new Shaper({ clock }),
    advance: until => clock.runUntil(until),
    gate: new Gate(),
    told: [],
  }
}

const step = fc.record({
  verb: fc.constantFrom('shape', 'shape', 'meter', 'meter', 'later', 'limits'),
  key: fc.integer({ min: 0, max: 8 }),
  cost: fc.constantFrom(0, 0.3, 1, 4),
  time: fc.constantFrom(1, 333, 2_000),
})

t.test('property: with sleep and without, all decisions are the same', async () => {
  fc.assert(
    fc.property(
      fc.array(step, { maxLength: 60, size: 'max' }),
      fc.constantFrom<Partial<BucketLimits>>({}, { overflow: 'fill' }, { blockFor: 700 }, { blockFor: 'drain' }),
      (steps, policy) => {
        const [awake, asleep] = [false, true].map(resting => tell(side(), steps, policy, { resting }))
        if (`${awake}` !== `${asleep}`) throw new Error(`${awake}\nbut with sleep\n${asleep}`)
      },
    ),
    { seed: 15, numRuns: runs(500) },
  )
})

type Step = typeof step extends fc.Arbitrary<infer S> ? S : never

/** Carries out the steps. Returns all that is told, and the state of all instances after each step. */
function tell(
  { table, shaper, advance, gate, told }: Side,
  steps: readonly Step[],
  policy: Partial<BucketLimits>,
  { resting }: { resting: boolean },
): string[] {
  let now = 0
  let own: BucketLimits = { ...LIMITS, capacity: 3, ...policy }
  for (const { verb, key, cost, time } of steps) {
    if (verb === 'later') now += time
    else if (verb === 'limits') own = { ...own, rate: own.rate === 0.001 ? 0.002 : 0.001 }
    advance(now)
    if (verb === 'shape' || verb === 'meter') {
      decide({ table, shaper, gate, told }, verb, { limits: own, key: `${key}`, cost, now, resting })
    }
    for (const [known, bucket] of table.entries('client')) told.push(`${known}: ${bucketText(bucket, now)}`)
  }
  return told
}

interface Request {
  readonly resting: boolean
  readonly limits: BucketLimits
  readonly key: string
  readonly cost: number
  readonly now: number
}

function decide(
  { table, shaper, gate, told }: Omit<Side, 'advance'>,
  verb: 'shape' | 'meter',
  { limits: own, key, cost, now, resting }: Request,
): void {
  const bucket = table.find(own, key, now)
  if (bucket === undefined) return void told.push('no place')
  if (resting) table.hold(bucket)
  if (bucket.limits !== own) shaper.engine.setLimits(bucket, own)
  const arrival = { route: { name: key, gate }, stack: [bucket], cost }
  const end = (): void => {
    if (resting) table.rest(bucket)
  }
  const waiter = {
    ...NOBODY,
    release(slot: number) {
      told.push(`${key} leaves at ${slot}`)
      end()
    },
  }
  const verdict = verb === 'meter' ? shaper.meter(arrival) : shaper.admit(arrival, waiter)
  if (verdict instanceof Ticket) return void told.push('waits')
  told.push(verdict === 'released' ? verdict : `${verdict.reason} ${verdict.retryAfterMs}`)
  end()
}

function bucketText(bucket: SharedBucket, now: number): string {
  return [bucket.level(now), bucket.freeAt, bucket.blockedFor(now), bucket.waiting, bucket.limits.rate].join(' ')
}

t.test('rows that move and grow keep their keys and levels', async t => {
  const table = new BucketTable(1e9)
  const own = { ...limits(0.001, 1e6), name: 'client' }
  const count = 20_000
  // One in three holds something for a long time. The others are swept away.
  const held: SharedBucket[] = []
  for (let key = 0; key < count; key += 1) {
    const bucket = table.find(own, `key ${key}`, key)!
    table.hold(bucket)
    bucket.fill(key % 3 === 0 ? key + 1e5 : 0, key)
    if (key % 2 === 0) table.rest(bucket)
    else held.push(bucket)
  }
  for (const bucket of held) table.rest(bucket)
  t.ok(table.size() < count / 2, `${table.size()} are left`)
  let wrong = 0
  for (let key = 0; key < count; key += 3) {
    if (!sleeps(table, `key ${key}`)) wrong += 1
    if (Math.abs(table.look('client', `key ${key}`)!.level(count) - (key + 1e5)) > 1) wrong += 1
  }
  t.equal(wrong, 0)
  const keys = [...table.entries('client')].map(([key]) => key)
  t.equal(new Set(keys).size, table.size())
  t.equal(keys.length, table.size())
  t.ok(keys.every(key => table.peek('client', key) !== undefined))
})

t.test('a walk leaves out no instance that stays, also when others are removed on the way', async t => {
  const table = new BucketTable(1e9)
  for (let key = 0; key < 100; key += 1) {
    const bucket = table.find(LIMITS, `key ${key}`, 0)!
    table.hold(bucket)
    bucket.fill(key < 50 ? 1 : 9, 0)
    table.rest(bucket)
  }
  const seen = new Set<string>()
  for (const [key] of table.entries('client')) {
    seen.add(key)
    // From the middle on newcomers sweep those away that have drained. They were the first to come.
    if (seen.size >= 50) table.find(LIMITS, `new ${key}`, 2_000)
    if (table.size() > 500) break
  }
  const busy = Array.from({ length: 50 }, (_, at) => `key ${50 + at}`)
  t.same(
    busy.filter(key => !seen.has(key)),
    [],
  )
})

t.test('a walk that is broken off leaves no instance awake', async t => {
  const table = new BucketTable(10)
  for (const key of ['a', 'b', 'c']) {
    const bucket = table.find(LIMITS, key, 0)!
    table.hold(bucket)
    bucket.fill(1, 0)
    table.rest(bucket)
  }
  for (const [key] of table.entries('client')) if (key === 'b') break
  t.throws(() => {
    for (const bucket of table.all()) if (bucket.level(0) === 1) throw new Error('broken off')
  })
  t.ok(['a', 'b', 'c'].every(key => sleeps(table, key)))
})

t.test('two keys of one hash have an instance each', async t => {
  t.intercept(Math, 'random', { value: () => 0.25 })
  const table = new BucketTable(1e6)
  const seed = randomSeed()
  const byHash = new Map<number, string>()
  const pairs: [string, string][] = []
  for (let at = 0; at < 300_000; at += 1) {
    const key = ((at * 48_271) % 2_147_483_647).toString(36) + at
    const hash = hashOf(key, seed)
    const other = byHash.get(hash)
    if (other === undefined) byHash.set(hash, key)
    else pairs.push([other, key])
  }
  t.ok(pairs.length > 0, `${pairs.length} pairs`)
  for (const [one, other] of pairs) {
    table.find(LIMITS, one, 0)!.fill(1, 0)
    t.equal(table.peek('client', other), undefined)
    table.find(LIMITS, other, 0)!.fill(2, 0)
  }
  t.ok(
    pairs.every(
      ([one, other]) => table.look('client', one)!.level(0) === 1 && table.look('client', other)!.level(0) === 2,
    ),
  )
})
