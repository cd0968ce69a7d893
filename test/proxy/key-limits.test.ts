/** Limits of single keys from outside, in a proxy on a virtual clock: who gets which, and what becomes of those who wait. */
import { mkdtempSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { changedKeys, LimitTable, LimitTableBuilder, OWN } from '../../src/core/structures/limit-table.js'
import type { FollowedLimits } from '../../src/proxy/limits/key-limits.js'
import { type LoadLimits, loadHere } from '../../src/proxy/limits/load.js'
import { LimitsError } from '../../src/proxy/limits/rows.js'
import type { WatchSource } from '../../src/proxy/limits/watch-source.js'
import type { LimitsNews } from '../../src/proxy/observe/observer.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, connect, eventually, get, httpUpstream, passBoth, type Rig, startRig, turns } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]
type Own = Partial<Record<(typeof OWN)[number], number>>

/** Stands for a file: its keys can be changed. Rates are per second. */
class Source {
  keys: Record<string, Own>
  failure: string | undefined
  reads = 0
  /** Reading waits for it. */
  held: Promise<void> | undefined
  #changed: () => void = () => undefined

  constructor(keys: Record<string, Own>) {
    this.keys = keys
  }

  readonly loadLimits: LoadLimits = async ({ before }) => {
    this.reads += 1
    if (this.failure !== undefined) throw new LimitsError(this.failure)
    const builder = new LimitTableBuilder()
    for (const [key, { rate, ...own }] of Object.entries(this.keys)) {
      const numbers: Own = { ...own, ...(rate !== undefined && { rate: rate / 1_000 }) }
      builder.set(key, builder.setOf(OWN.map(name => numbers[name] ?? Number.NaN)))
    }
    const table = builder.build()
    await this.held
    const report = { keys: table.size, told: [], more: 0, bad: 0 }
    return { memory: table.memory, report, changed: before && changedKeys(new LimitTable(before), table, 50) }
  }

  readonly watchLimits: WatchSource = (_source, { changed }) => {
    this.#changed = changed
    return () => undefined
  }

  change(keys: Record<string, Own>): void {
    this.keys = keys
    this.#changed()
  }
}

const KEY = 'header:x-api-key'
const from = (key: string, path = '/') => get(path, `X-Api-Key: ${key}`)
const config = (url: string, more: object = {}, route: object = {}) => ({
  upstream: url,
  buckets: {
    client: { key: KEY, rate: '1/s', capacity: 10, limits: { file: 'customers.csv' }, ...more },
  },
  routes: [{ name: 'api', ...route }],
})

async function send(t: Teardown, rig: Rig, ...keys: string[]): Promise<Promise<number>[]> {
  const answers: Promise<number>[] = []
  for (const key of keys) {
    const before = rig.queued.length + rig.released.length
    const client = await connect(t, rig)
    client.send(from(key))
    answers.push(client.answer().then(({ status }) => status))
    await rig.until(({ queued, released }) => queued.length + released.length > before)
  }
  return answers
}

async function rigOf(t: Teardown, keys: Record<string, Own>, { more = {}, route = {}, shared = false } = {}) {
  const upstream = await httpUpstream(t)
  const source = new Source(keys)
  const news: LimitsNews[] = []
  const rig = await startRig(t, config(upstream.url, more, route), {
    virtualClock: true,
    limits: source,
    limitsRead: each => news.push(each),
    ...(shared && { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' as const }) }),
  })
  const policy = async (key: string) =>
    (await askOnce(t, rig, get('/', `X-Api-Key: ${key}`, 'Prefer: wait=0'))).header('ratelimit-policy')
  return { rig, source, news, upstream, policy }
}

const limitsOf = (rig: Rig): FollowedLimits => rig.proxy.context.keyLimits.of('client')!

t.test('each key has its own limits, and what it leaves out is as the bucket says', async t => {
  const { policy } = await rigOf(t, { gold: { rate: 50, capacity: 100 }, rated: { rate: 5 }, held: { capacity: 30 } })
  t.equal(await policy('gold'), '"client";q=100;w=2')
  t.equal(await policy('rated'), '"client";q=10;w=2')
  t.equal(await policy('held'), '"client";q=30;w=30')
  t.equal(await policy('other'), '"client";q=10;w=10')
  t.equal(await policy('constructor'), '"client";q=10;w=10')
})

t.test('without a capacity anywhere it follows from the rate', async t => {
  const { policy } = await rigOf(t, { gold: { rate: 50 } }, { more: { capacity: undefined } })
  t.equal(await policy('gold'), '"client";q=50;w=1')
})

t.test('they go before tiers', async t => {
  const tiers = [
    { name: 'silver', keys: ['a', 'b'], rate: '2/s', capacity: 20 },
    { name: 'gold', header: { 'x-plan': 'gold' }, rate: '4/s', capacity: 40 },
  ]
  const { rig, policy } = await rigOf(t, { a: { rate: 50, capacity: 100 } }, { more: { tiers } })
  t.equal(await policy('a'), '"client";q=100;w=2')
  t.equal(await policy('b'), '"client";q=20;w=10')
  const asGold = get('/', 'X-Api-Key: c', 'X-Plan: gold', 'Prefer: wait=0')
  t.equal((await askOnce(t, rig, asGold)).header('ratelimit-policy'), '"client";q=40;w=10')
})

t.test('an override goes before them', async t => {
  const { rig, policy } = await rigOf(t, { a: { rate: 50, capacity: 100 } })
  await rig.proxy.context.overrides.set({ bucket: 'client', key: 'a', rate: 0.2, endsIn: 60_000 })
  t.equal(await policy('a'), '"client";q=100;w=1')
})

for (const shared of [false, true]) {
  t.test(`those who wait follow a change, and others are not touched${shared ? ', with a store' : ''}`, async t => {
    const { rig, source, policy } = await rigOf(t, { a: { rate: 1 }, b: { rate: 1 } }, { shared })
    await send(t, rig, 'a', 'a', 'a', 'b', 'b', 'b', 'c', 'c', 'c')
    const set: string[] = []
    const { engine } = rig.proxy.context.shaper
    const setLimits = engine.setLimits.bind(engine)
    engine.setLimits = (bucket, limits) => {
      set.push(`${limits.rate * 1_000}/s`)
      setLimits(bucket, limits)
    }
    source.change({ a: { rate: 10 }, b: { rate: 1 } })
    await passBoth(rig, 500, 10)
    t.same(set, ['10/s'])
    t.equal(rig.released.length, 5, 'a has left')
    await passBoth(rig, 3_000, 10)
    t.equal(rig.released.length, 9)
    const waits = rig.released.map(({ wait }) => Math.round(wait)).sort((a, b) => a - b)
    // The change is read 100 ms later. What waits from then on leaves at its rate.
    t.same(waits.slice(0, 3), [0, 0, 0])
    t.ok(waits[4]! <= 420, `${waits}`)
    for (const [place, wanted] of [1_000, 1_000, 2_000, 2_000].entries())
      t.ok(Math.abs(waits[place + 5]! - wanted) <= 30, `${waits}`)
    t.equal(await policy('a'), '"client";q=10;w=1')
    source.change({ b: { rate: 1 } })
    await passBoth(rig, 200, 10)
    t.equal(await policy('a'), '"client";q=10;w=10', 'a key that is gone has those of its bucket')
  })
}

t.test('a slower rate: who would now exceed maxWait expires, and nobody else', async t => {
  const { rig, source } = await rigOf(t, { a: { rate: 5 }, b: { rate: 5 } }, { route: { maxWait: '2s' } })
  const answers = await send(t, rig, 'a', 'a', 'a', 'b', 'b', 'b')
  source.change({ a: { rate: 0.1 }, b: { rate: 5 } })
  await passBoth(rig, 120, 10)
  await rig.finished(4)
  await passBoth(rig, 1_000, 10)
  t.same((await Promise.all(answers)).sort(), [200, 200, 200, 200, 503, 503])
})

t.test('many changes at once are all put into effect', async t => {
  const keys = Array.from({ length: 120 }, (_, at) => `k${at}`)
  const all = (rate: number) => Object.fromEntries(keys.map(key => [key, { rate }]))
  const { rig, source } = await rigOf(t, all(1))
  await send(t, rig, ...keys.slice(0, 60), ...keys.slice(0, 60))
  source.change(all(20))
  await passBoth(rig, 400, 10)
  t.equal(rig.released.length, 120)
})

t.test('100,000 keys are live: a change of one touches one, and of all of them stops nothing for long', async t => {
  const count = 100_000
  const keys = Array.from({ length: count }, (_, at) => `customer-${at}`)
  const plan = (rate: number) => Object.fromEntries(keys.map(key => [key, { rate }]))
  const { rig, source } = await rigOf(t, plan(1))
  const { bucketTable, routes } = rig.proxy.context
  const settings = routes[0]!.settings.buckets[0]!
  const ownerOf = (key: string) => limitsOf(rig).ownerOf(settings, key)!
  for (const key of keys) {
    const instance = bucketTable.find(ownerOf(key).limits, key, 0)!
    bucketTable.hold(instance)
    instance.set(5, 0)
    bucketTable.rest(instance)
  }
  t.equal(bucketTable.size('client'), count)
  const { engine } = rig.proxy.context.shaper
  const setLimits = engine.setLimits.bind(engine)
  let set = 0
  engine.setLimits = (bucket, limits) => {
    set += 1
    setLimits(bucket, limits)
  }
  const before = ownerOf('customer-7').limits
  source.change({ ...plan(1), 'customer-5': { rate: 9 } })
  await passBoth(rig, 200, 50)
  t.equal(set, 1)
  t.equal(bucketTable.look('client', 'customer-5')!.limits.rate, 0.009)
  t.equal(ownerOf('customer-7').limits, before, 'the same object, so its next request sets nothing')
  source.change({ ...plan(1), ...Object.fromEntries(keys.slice(0, 1_000).map(key => [key, { rate: 3 }])) })
  await passBoth(rig, 200, 50)
  await eventually(() => set === 1_001)
  source.change(plan(2))
  await passBoth(rig, 200, 50)
  await eventually(() => set === count + 1_001)
  for (const key of ['customer-0', 'customer-77777', 'customer-99999'])
    t.equal(bucketTable.look('client', key)!.limits.rate, 0.002)
})

t.test('in meter, too', async t => {
  const { rig, source, policy } = await rigOf(t, { a: { rate: 1, capacity: 2 } }, { route: { mode: 'meter' } })
  const statuses = async (count: number) => {
    const found: number[] = []
    for (let sent = 0; sent < count; sent += 1) found.push((await askOnce(t, rig, from('a'))).status)
    return found
  }
  t.same(await statuses(3), [200, 200, 429])
  source.change({ a: { rate: 1, capacity: 4 } })
  await passBoth(rig, 120, 10)
  t.same(await statuses(3), [200, 200, 429])
  t.equal(await policy('a'), '"client";q=4;w=4')
})

t.test('a weight, a priority and a bound in flight of one key', async t => {
  const { rig } = await rigOf(t, { a: { weight: 3, priority: 6, maxInFlight: 2 } })
  const { routes } = rig.proxy.context
  const owner = routes[0]!.buckets[0]!.owner('a', { rawHeaders: [] })
  t.match(owner, { weight: 3, priority: 6, limits: { maxInFlight: 2, rate: 0.001 } })
  t.notOk(routes[0]!.buckets[0]!.owner('b', { rawHeaders: [] }))
})

t.test('a source that fails changes nothing, is told, and is read again later', async t => {
  const { rig, source, news, policy } = await rigOf(t, { a: { rate: 5, capacity: 5 } })
  source.failure = 'the file cannot be read (EACCES)'
  source.change({})
  await passBoth(rig, 200, 10)
  t.match(news, [{ keys: 1 }, { bucket: 'client', failure: /EACCES/ }])
  t.equal(limitsOf(rig).last, news[1])
  t.equal(await policy('a'), '"client";q=5;w=1')
  source.failure = undefined
  source.change({ a: { rate: 1, capacity: 7 } })
  await passBoth(rig, 200, 10)
  t.match(news.at(-1), { keys: 1, failure: undefined })
  t.equal(await policy('a'), '"client";q=7;w=7')
})

t.test('changes that come while it is read are read, too; many at a time are read once', async t => {
  const { rig, source, policy } = await rigOf(t, {})
  t.equal(source.reads, 1)
  for (let rate = 1; rate <= 5; rate += 1) source.change({ a: { rate, capacity: 1 } })
  await passBoth(rig, 90, 10)
  t.equal(source.reads, 1, 'a file may be written in several steps')
  await passBoth(rig, 30, 10)
  t.equal(source.reads, 2)
  t.equal(await policy('a'), '"client";q=1;w=1')
  for (let at = 0; at < 60; at += 1) {
    source.change({ a: { rate: 1, capacity: at } })
    await passBoth(rig, 50, 10)
  }
  t.ok(source.reads > 5, 'one that never settles is read all the same')
})

t.test('a change while it is read is read afterwards', async t => {
  const { rig, source, policy } = await rigOf(t, {})
  let go = (): void => undefined
  source.held = new Promise(resolve => {
    go = resolve
  })
  source.change({ a: { rate: 1, capacity: 2 } })
  await passBoth(rig, 120, 10)
  t.equal(source.reads, 2)
  source.change({ a: { rate: 1, capacity: 3 } })
  await passBoth(rig, 500, 10)
  t.equal(source.reads, 2, 'one at a time')
  go()
  await passBoth(rig, 200, 10)
  t.equal(source.reads, 3)
  t.equal(await policy('a'), '"client";q=3;w=3')
})

t.test('a reload keeps what was read, reads another source, and ends with the limits', async t => {
  const { rig, source, upstream, policy } = await rigOf(t, { a: { rate: 5, capacity: 5 } })
  const reload = async (more: object) => {
    const text = JSON.stringify({ listen: '127.0.0.1:0', ...config(upstream.url, more) })
    await rig.proxy.reload(parseConfig(text))
  }
  await reload({ rate: '2/s' })
  t.equal(source.reads, 1)
  t.equal(await policy('a'), '"client";q=5;w=1')
  t.equal(await policy('b'), '"client";q=10;w=5')
  source.failure = 'the file does not exist'
  await t.rejects(reload({ limits: { file: 'other.csv' } }), {
    message: 'buckets.client.limits.file: "other.csv": the file does not exist',
  })
  t.equal(await policy('a'), '"client";q=5;w=1', 'and nothing has changed')
  source.failure = undefined
  source.keys = { a: { rate: 6, capacity: 6 } }
  await reload({ limits: { file: 'other.csv' } })
  t.equal(await policy('a'), '"client";q=6;w=1')
  await reload({ limits: undefined })
  t.equal(await policy('a'), '"client";q=10;w=10')
  t.equal(rig.proxy.context.keyLimits.of('client'), undefined)
})

t.test('a rate by the time of day holds for keys without a rate of their own', async t => {
  const rate = [{ from: '00:00', to: '12:00', rate: '1/s' }, { rate: '10/s' }]
  const upstream = await httpUpstream(t)
  const limits = new Source({ a: { capacity: 20 }, b: { rate: 2, capacity: 20 } })
  const wallNow = () => Date.parse('2026-11-23T15:00:00Z')
  const rig = await startRig(t, config(upstream.url, { rate }), { virtualClock: true, limits, wallNow })
  const settings = rig.proxy.context.routes[0]!.settings.buckets[0]!
  t.match(limitsOf(rig).ownerOf(settings, 'a')!.limits, {
    rate: 0.01,
    capacity: 20,
    next: { rate: 0.001, capacity: 20 },
  })
  t.match(limitsOf(rig).ownerOf(settings, 'b')!.limits, { rate: 0.002, capacity: 20, next: undefined })
})

t.test('a quota: the capacity of a key is its limit', async t => {
  const upstream = await httpUpstream(t)
  const limits = new Source({ a: { capacity: 3 } })
  const buckets = { client: { key: KEY, quota: { limit: 2, per: 'day' }, limits: { file: 'customers.csv' } } }
  const wallNow = () => Date.parse('2026-11-23T15:00:00Z')
  const more = { buckets, routes: [{ name: 'api', mode: 'meter' }] }
  const rig = await startRig(t, { upstream: upstream.url, ...more }, { virtualClock: true, limits, wallNow })
  const statuses = async (key: string) => {
    const found: number[] = []
    for (let sent = 0; sent < 4; sent += 1) found.push((await askOnce(t, rig, from(key))).status)
    return found
  }
  t.same(await statuses('a'), [200, 200, 200, 429])
  t.same(await statuses('b'), [200, 200, 429, 429])
})

t.test('a quota that is spread: each key at the pace of its own limit', async t => {
  const upstream = await httpUpstream(t)
  const limits = new Source({ a: { capacity: 3_600 } })
  const buckets = { client: { key: KEY, quota: { limit: 360, per: 'hour', spread: true }, limits: { file: 'c.csv' } } }
  const start = Date.parse('2026-11-23T15:00:00Z')
  let rig: Rig | undefined
  const wallNow = () => start + (rig?.clock.now() ?? 0)
  const config = { upstream: upstream.url, buckets, routes: [{ name: 'api' }] }
  rig = await startRig(t, config, { virtualClock: true, limits, wallNow })
  await send(t, rig, 'a', 'a', 'a', 'b', 'b', 'b')
  await passBoth(rig, 21_000, 100)
  const waits = rig.released.map(({ wait }) => Math.round(wait / 100) / 10).sort((a, b) => a - b)
  t.same(waits, [0, 0, 1, 2, 10, 20])
  t.same(
    Array.from(rig.proxy.context.keyLimits.all(), ([bucket]) => bucket),
    ['client'],
  )
})

t.test('a real file: replaced, shortened, appended to, gone and back', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'shaper-limits-'))
  t.teardown(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'customers.csv')
  const upstream = await httpUpstream(t)
  const news: LimitsNews[] = []
  writeFileSync(file, 'key,capacity\na,1\nb,2\n')
  const rig = await startRig(t, config(upstream.url, { limits: { file } }), {
    limits: { loadLimits: loadHere },
    limitsRead: each => news.push(each),
  })
  const settings = rig.proxy.context.routes[0]!.settings.buckets[0]!
  const capacities = () => ['a', 'b', 'c'].map(key => limitsOf(rig).ownerOf(settings, key)?.limits.capacity).join()
  const read = async (wanted: string) => {
    await eventually(() => capacities() === wanted)
    await turns()
  }
  t.equal(capacities(), '1,2,')
  writeFileSync(`${file}.new`, 'key,capacity\na,10\nb,2\n')
  renameSync(`${file}.new`, file)
  await read('10,2,')
  writeFileSync(file, 'c,3\n', { flag: 'a' })
  await read('10,2,3')
  truncateSync(file, 'key,capacity\na,10\n'.length)
  await read('10,,')
  rmSync(file)
  await eventually(() => news.at(-1)?.failure !== undefined)
  t.match(news.at(-1)!.failure, /gone/)
  t.equal(capacities(), '10,,')
  writeFileSync(file, 'key,capacity\na,x\nb,7\n')
  await read('10,7,')
  t.match(news.at(-1), { keys: 2, bad: 1, told: ['line 2: capacity is wrong; use a number above 0, e.g. 10'] })
  truncateSync(file)
  await eventually(() => /is empty/.test(news.at(-1)?.failure ?? ''))
  t.equal(capacities(), '10,7,', 'an empty file is one that is being written')
})
