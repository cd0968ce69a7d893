/** Requests that wait while buckets are kept in a store: what a reload, a reset and an outage mean for them. */
import t from 'tap'
import { resetKey } from '../../src/admin/keys/reset.js'
import { parseConfig } from '../../src/config/load.js'
import type { News } from '../../src/sharing/board.js'
import { type Store, StoreError } from '../../src/sharing/store.js'
import { createMemoryStore, type MemoryStore } from '../../src/stores/memory/store.js'
import { through } from '../stores/through.js'
import { askOnce, get, httpUpstream, type Rig, type RigOptions, startRig, turns } from './harness.js'

type Test = Parameters<typeof httpUpstream>[0]

const KINDS: [name: string, options: RigOptions][] = [
  ['without a store', {}],
  ['with a store', { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' }) }],
]

function config(url: string, rate: string, route: object = {}) {
  return { upstream: url, buckets: { all: { key: 'all', rate, capacity: 20 } }, routes: [{ name: 'api', ...route }] }
}

/** Lets time pass on the clocks of releases, and what follows from it happen. */
async function pass(rigs: readonly Rig[], until: number): Promise<void> {
  while (rigs[0]!.pacer.now() < until) {
    const next = Math.min(until, rigs[0]!.pacer.now() + 5)
    for (const rig of rigs) rig.pacer.runUntil(next)
    await turns(2)
  }
}

/** Sends `count` requests at 0 ms, of which all but one wait. */
async function queue(t: Test, rig: Rig, count: number): Promise<void> {
  for (let at = 0; at < count; at += 1) void askOnce(t, rig, get()).catch(() => undefined)
  await rig.until(({ queued, released }) => queued.length + released.length >= count)
  await turns()
}

/** When the requests that came at 0 ms were released. */
const times = (rig: Rig): number[] => rig.released.map(({ wait }) => wait).sort((one, other) => one - other)

function isNear(t: { ok(value: boolean, message: string): unknown }, found: number[], wanted: number[]): void {
  const near = wanted.every((time, place) => Math.abs((found[place] ?? Infinity) - time) <= 12)
  t.ok(found.length === wanted.length && near, `released at ${found}, wanted ${wanted}`)
}

for (const [kind, options] of KINDS) {
  for (const { from, to, at, wanted } of [
    { from: '3/m', to: '10/s', at: 500, wanted: [0, 597.5, 697.5, 797.5] },
    { from: '10/s', to: '1/s', at: 50, wanted: [0, 550, 1_550, 2_550] },
  ]) {
    t.test(`${kind}: a reload from ${from} to ${to} reaches the requests that wait`, async t => {
      const upstream = await httpUpstream(t, (_req, res) => res.end())
      const rig = await startRig(t, config(upstream.url, from), options)
      await queue(t, rig, 4)
      await pass([rig], at)
      await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config(upstream.url, to) })))
      await pass([rig], 4_000)
      isNear(t, times(rig), wanted)
    })
  }

  t.test(`${kind}: after a reload requests that would now wait too long are answered at once`, async t => {
    const upstream = await httpUpstream(t, (_req, res) => res.end())
    const rig = await startRig(t, config(upstream.url, '10/s', { maxWait: '5s' }), options)
    await queue(t, rig, 3)
    await pass([rig], 50)
    const next = { listen: '127.0.0.1:0', ...config(upstream.url, '2/m', { maxWait: '5s' }) }
    t.same([...(await rig.proxy.reload(parseConfig(JSON.stringify(next))))], [['api', 2]])
  })

  t.test(`${kind}: a reset releases the first queued request, and the others follow at the rate`, async t => {
    const upstream = await httpUpstream(t, (_req, res) => res.end())
    const rig = await startRig(t, config(upstream.url, '3/m'), options)
    await queue(t, rig, 4)
    await pass([rig], 500)
    t.equal(await resetKey(rig.proxy.context, 'all', 'all').then(Boolean), true)
    await pass([rig], 30_000)
    isNear(t, times(rig), [0, 500, 20_500])
    await pass([rig], 41_000)
    isNear(t, times(rig), [0, 500, 20_500, 40_500])
  })
}

for (const [kind, options] of KINDS) {
  t.test(`${kind}: a reset reports how long the queued requests still take`, async t => {
    const upstream = await httpUpstream(t, (_req, res) => res.end())
    const rig = await startRig(t, config(upstream.url, '3/m'), options)
    await queue(t, rig, 3)
    await pass([rig], 500)
    const { forgotten, ...rest } = (await resetKey(rig.proxy.context, 'all', 'all'))!
    // The first of them has left by then.
    t.ok(Math.abs(forgotten - 0.975) < 0.01, `${forgotten} of the first is forgotten`)
    t.match(rest, { waiting: 1, lastWaitMs: 20_000 })
    t.ok(rest.level >= 1, `a level of ${rest.level}, with one request queued`)
  })
}

/** Stores of instances on one clock, in memory. Who resets a bucket does not hear of it, as with all other stores. */
function instancesOn(memory: MemoryStore): () => Store {
  const listeners: { readonly of: Store; readonly listener: (news: News) => void }[] = []
  return () => {
    const own: Store = {
      ...memory,
      reset(ref) {
        memory.reset(ref)
        const news: News = { about: 'reset', bucket: ref.limits.name, key: ref.key }
        for (const { of, listener } of listeners) if (of !== own) listener(news)
      },
      listen(listener) {
        listeners.push({ of: own, listener })
        return memory.listen(news => {
          if (news.about !== 'reset') listener(news)
        })
      },
    }
    return own
  }
}

for (const [about, counts] of [
  ['elsewhere', [3, 0]],
  ['here', [0, 3]],
  ['in both', [2, 1]],
] as const) {
  t.test(`two instances: a reset tells what one process would, where requests wait ${about}`, async t => {
    const upstream = await httpUpstream(t, (_req, res) => res.end())
    let open: (() => Store) | undefined
    const shared: RigOptions['shared'] = clock => {
      open ??= instancesOn(createMemoryStore({ clock }))
      return { store: open(), onOutage: 'local' }
    }
    const rigs: Rig[] = []
    for (const _ of counts) rigs.push(await startRig(t, config(upstream.url, '3/m'), { shared }))
    // Each knows of the other.
    await pass(rigs, 300)
    for (const [place, rig] of rigs.entries()) await queue(t, rig, counts[place]!)
    await pass(rigs, 800)
    const { forgotten, level, ...rest } = (await resetKey(rigs[1]!.proxy.context, 'all', 'all'))!
    t.same(rest, { waiting: 1, lastWaitMs: 20_000 }, 'the first has left, and the last waits for the time of that one')
    t.ok(Math.abs(level - 2) < 1e-9, `a level of ${level}: that one counts`)
    t.ok(Math.abs(forgotten - 0.975) < 0.01, `${forgotten} of the first is forgotten`)
    t.equal((await resetKey(rigs[1]!.proxy.context, 'all', 'other'))!.level, 0)
  })
}

t.test('two instances: a reset waits for what the other tells, for a while', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.end())
  let memory: MemoryStore | undefined
  const shared: RigOptions['shared'] = clock => {
    memory ??= createMemoryStore({ clock })
    // Nothing is told.
    return { store: { ...memory, listen: () => () => undefined }, onOutage: 'local' }
  }
  await startRig(t, config(upstream.url, '3/m'), { shared, virtualClock: true })
  const rig = await startRig(t, config(upstream.url, '3/m'), { shared, virtualClock: true })
  await queue(t, rig, 2)
  let answeredAt: number | undefined
  const reset = resetKey(rig.proxy.context, 'all', 'all').finally(() => {
    answeredAt = rig.clock.now()
  })
  for (let at = 0; answeredAt === undefined && at < 1_000; at += 5) {
    rig.clock.runUntil(at)
    await turns(2)
  }
  t.ok(answeredAt! >= 150 && answeredAt! <= 200, `answered after ${answeredAt} ms`)
  t.match(await reset, { waiting: 0, lastWaitMs: 0 }, 'then it says what it knows')
})

t.test('two instances: a reload of both reaches all queued requests, at one rate', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.end())
  let store: ReturnType<typeof createMemoryStore> | undefined
  const shared: RigOptions['shared'] = clock => {
    store ??= createMemoryStore({ clock })
    return { store, onOutage: 'local' }
  }
  const rigs = [
    await startRig(t, config(upstream.url, '3/m'), { shared }),
    await startRig(t, config(upstream.url, '3/m'), { shared }),
  ]
  for (const rig of rigs) await queue(t, rig, 3)
  await pass(rigs, 500)
  const next = parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config(upstream.url, '10/s') }))
  await rigs[0]!.proxy.reload(next)
  await pass(rigs, 520)
  await rigs[1]!.proxy.reload(next)
  await pass(rigs, 2_000)
  const all = rigs.flatMap(times).sort((one, other) => one - other)
  t.equal(all.length, 6, `released at ${all}`)
  const gaps = all.slice(2).map((time, before) => time - all[before + 1]!)
  t.ok(Math.min(...gaps) >= 90 && Math.max(...gaps) <= 130, `released at ${all}`)
})

/** A proxy with `onOutage: "open"` and a store that can be taken away. Calls that are open by then get no answer. */
async function openRig(t: Test, upstream: object, route: object = {}) {
  let away = (_error: Error): void => undefined
  const outage = new Promise<never>((_, reject) => {
    away = reject
  })
  outage.catch(() => undefined)
  let hold = false
  let gone = false
  const shared: RigOptions['shared'] = clock => {
    const memory = createMemoryStore({ clock })
    const call = <T>(run: () => T) => (gone || hold ? outage : run())
    return { store: { ...through(memory, call), beat: id => (gone ? outage : memory.beat(id)) }, onOutage: 'open' }
  }
  const buckets = { all: { key: 'all', rate: '1/h', capacity: 100 } }
  const rig = await startRig(t, { upstream, buckets, routes: [{ name: 'api', ...route }] }, { shared })
  return {
    rig,
    hold: () => {
      hold = true
    },
    async goAway() {
      gone = true
      away(new StoreError('gone'))
      void askOnce(t, rig, get('/lost'))
      while (rig.proxy.context.sharing?.state !== 'alone') await turns(5)
      await rig.finished(1)
    },
  }
}

t.test('onOutage "open" may exceed the rate, never maxInFlight: the other requests wait for a place', async t => {
  let [inFlight, most] = [0, 0]
  const upstream = await httpUpstream(t, (_req, res) => {
    inFlight += 1
    most = Math.max(most, inFlight)
    setTimeout(() => {
      inFlight -= 1
      res.end()
    }, 50)
  })
  const { rig, goAway } = await openRig(t, { url: upstream.url, maxInFlight: 2 })
  await goAway()
  const answers = await Promise.all(Array.from({ length: 10 }, (_, at) => askOnce(t, rig, get(`/${at}`))))
  t.same(new Set(answers.map(({ status }) => status)), new Set([200]), 'at 1/h they all go')
  t.equal(most, 2, 'at most in flight')
})

t.test('onOutage "open" keeps to a pause that the upstream has asked for', async t => {
  const answers = [200, 429]
  const upstream = await httpUpstream(t, (_req, res) => {
    res.writeHead(answers.shift() ?? 200, { 'Retry-After': '5' }).end()
  })
  const pauseOn = { status: [429], default: '1s', max: '60s' }
  const { rig, goAway } = await openRig(t, { url: upstream.url, pauseOn })
  await goAway()
  await askOnce(t, rig, get('/asks-for-a-pause'))
  const later = Array.from({ length: 5 }, (_, at) => askOnce(t, rig, get(`/${at}`)))
  const hasty = await askOnce(t, rig, get('/hasty', 'Prefer: wait=2'))
  t.equal(hasty.status, 429)
  t.equal(hasty.header('retry-after'), '3', 'when the wait would fit')
  while (rig.proxy.context.shaper.queued < 5) await turns(5)
  await pass([rig], 4_990)
  t.equal(upstream.requests.length, 2, 'nothing is sent while it lasts')
  await pass([rig], 5_000)
  t.same(new Set((await Promise.all(later)).map(({ status }) => status)), new Set([200]))
  t.equal(upstream.requests.length, 7)
})

t.test('requests that wait for a place also leave when the store is back', async t => {
  const open: (() => void)[] = []
  const upstream = await httpUpstream(t, (_req, res) => void open.push(() => res.end()))
  let down = true
  const shared: RigOptions['shared'] = clock => {
    const memory = createMemoryStore({ clock })
    const call = <T>(run: () => T) => (down ? Promise.reject(new StoreError('gone')) : run())
    return { store: through(memory, call), onOutage: 'open' }
  }
  const buckets = { all: { key: 'all', rate: '1/h', capacity: 100 } }
  const rig = await startRig(t, { upstream: { url: upstream.url, maxInFlight: 1 }, buckets }, { shared })
  const answers = [0, 1, 2].map(at => askOnce(t, rig, get(`/${at}`)))
  await rig.until(({ queued }) => queued.length === 2)
  down = false
  while (rig.proxy.context.sharing?.state === 'alone') await new Promise(resolve => setTimeout(resolve, 10))
  for (let at = 0; at < 3; at += 1) {
    await upstream.until(() => open.length > at)
    open[at]!()
  }
  t.same(
    (await Promise.all(answers)).map(({ status }) => status),
    [200, 200, 200],
  )
})

t.test('meter: requests that lose their store call in an outage do not exceed maxInFlight', async t => {
  const open: (() => void)[] = []
  const upstream = await httpUpstream(t, (_req, res) => void open.push(() => res.end()))
  const { rig, hold, goAway } = await openRig(t, { url: upstream.url, maxInFlight: 2 }, { mode: 'meter' })
  hold()
  const answers = Array.from({ length: 10 }, (_, at) => askOnce(t, rig, get(`/${at}`)))
  while (rig.proxy.context.inProgress < 10) await turns(5)
  const gone = goAway()
  await upstream.until(({ requests }) => requests.length >= 2)
  await gone
  for (const end of open) end()
  const statuses = (await Promise.all(answers)).map(({ status }) => status)
  t.equal(upstream.requests.length, 2)
  t.equal(statuses.filter(status => status === 503).length, 8, `${statuses}`)
})
