/** A dry run decides, and nothing is held or rejected because of it. */
import t from 'tap'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, get, httpUpstream, pass, type RigOptions, startRig, turns } from './harness.js'

const config = (url: string) => ({
  upstream: url,
  limits: { maxQueued: 5 },
  buckets: {
    tried: { key: 'all', rate: '1/m', capacity: 20 },
    enforced: { key: 'all', rate: '1/s', capacity: 20 },
  },
  routes: [
    { name: 'try', match: { path: '/t' }, buckets: ['tried'], dryRun: true },
    { name: 'real', buckets: ['enforced'] },
  ],
})

const memory: RigOptions['shared'] = clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' })

for (const [where, options] of [
  ['in memory', {}],
  ['with a store', { shared: memory }],
] as const) {
  t.test(`${where}, a dry run takes no place in maxQueued from requests of other routes`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, config(upstream.url), options)
    for (let count = 1; count <= 8; count += 1) {
      t.equal((await askOnce(t, rig, get('/t'))).status, 200)
      for (let step = 0; step < 10; step += 1) {
        await turns(5)
        rig.pacer.runUntil(rig.pacer.now() + 1)
      }
    }
    // Dry runs are bounded by themselves: the first passes, five wait.
    await rig.until(({ rehearsed }) => rehearsed.filter(decision => decision === 'try would_reject').length === 2)
    t.equal(rig.proxy.context.shaper.queued, 0)
    t.equal((await askOnce(t, rig, get('/r'))).status, 200)
    const waiting = []
    // With a store also the first one was queued.
    const before = rig.queued.length
    for (let count = 1; count <= 5; count += 1) {
      waiting.push(askOnce(t, rig, get('/r')))
      await rig.until(({ queued }) => queued.length === before + count)
    }
    t.equal(rig.proxy.context.shaper.queued, 5)
    const crowded = await askOnce(t, rig, get('/r'))
    t.equal(crowded.status, 503, 'real requests are still bounded')
    for (let step = 0; step < 60; step += 1) {
      rig.pacer.runUntil(rig.pacer.now() + 100)
      await turns(5)
    }
    t.same(
      (await Promise.all(waiting)).map(({ status }) => status),
      Array(5).fill(200),
    )
    t.equal(rig.proxy.context.shaper.queued, 0)
  })

  for (const [what, tried, overflow] of [
    ['a lower number', { priority: 0 }, 'reject'],
    ['a lane with less than its share', {}, 'fair'],
  ] as const) {
    t.test(`${where}, a dry run of ${what} takes no place in a bucket from a request`, async t => {
      const upstream = await httpUpstream(t)
      const all = { key: 'all', rate: '1/s', capacity: 4, overflow }
      const routes = [{ name: 'try', match: { path: '/t*' }, dryRun: true, ...tried }, { name: 'real' }]
      const rig = await startRig(t, { upstream: upstream.url, buckets: { all }, routes }, options)
      const answers = []
      for (let count = 1; count <= 4; count += 1) {
        answers.push(askOnce(t, rig, get(`/${count}`)))
        await rig.until(({ queued, released }) => queued.length + released.length >= count)
        await turns()
      }
      t.equal((await askOnce(t, rig, get('/t'))).status, 200)
      await rig.until(({ rehearsed }) => rehearsed.length === 1)
      t.same(rig.rehearsed, ['try would_reject'])
      await pass(rig, 4_000, 100)
      t.same(
        (await Promise.all(answers)).map(({ status }) => status),
        [200, 200, 200, 200],
      )
    })
  }

  t.test(`${where}, the first of an idle bucket would not be delayed, the second would`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, config(upstream.url), options)
    for (const wanted of [[], ['try would_delay']]) {
      t.equal((await askOnce(t, rig, get('/t'))).status, 200)
      await pass(rig, rig.pacer.now() + 10, 1)
      t.same(rig.rehearsed, wanted)
    }
  })

  t.test(`${where}, a dry run of a lower number makes room among dry runs`, async t => {
    const upstream = await httpUpstream(t)
    const all = { key: 'all', rate: '1/m', capacity: 2 }
    const routes = [{ name: 'first', match: { path: '/first' }, priority: 0 }, { name: 'last' }]
    const rig = await startRig(t, { upstream: upstream.url, buckets: { all }, routes, dryRun: true }, options)
    const told = async (path: string) => {
      t.equal((await askOnce(t, rig, get(path))).status, 200)
      await pass(rig, rig.pacer.now() + 10, 1)
    }
    for (const path of ['/1', '/2', '/3', '/first']) await told(path)
    const [last, ...before] = [...rig.rehearsed].reverse()
    t.equal(last, 'first would_delay')
    t.equal(before[0], 'last would_reject')
  })
}
