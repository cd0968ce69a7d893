/** Whose buckets follow what an upstream announces. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { askOnce, get, httpUpstream, type Rig, startRig } from './harness.js'

const ANNOUNCED = { 'RateLimit-Policy': '"default";q=120;w=60', RateLimit: '"default";r=119;t=60' }

function ratesOf(rig: Rig): Record<string, number> {
  const instances = [...rig.proxy.context.bucketTable.all()]
  return Object.fromEntries(instances.map(({ limits }) => [limits.name, Math.round(limits.rate * 1_000)]))
}

t.test('a reload that turns learn off brings the configured rate back at once, also for those who wait', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, ANNOUNCED).end())
  const config = (learn: boolean) => ({
    listen: '127.0.0.1:0',
    upstream: { url: upstream.url, learn },
    buckets: { all: { key: 'all', rate: '10/s', capacity: 20 } },
  })
  const rig = await startRig(t, config(true))
  await askOnce(t, rig, get())
  const waiting = askOnce(t, rig, get())
  await rig.until(({ queued }) => queued.length === 1)
  t.same(ratesOf(rig), { all: 2 })
  await rig.proxy.reload(parseConfig(JSON.stringify(config(false))))
  t.same(ratesOf(rig), { all: 10 })
  rig.pacer.runUntil(100)
  t.equal((await waiting).status, 200)
  t.same(ratesOf(rig), { all: 10 })
})

t.test('a route without learn keeps its rate while another route to the same upstream learns', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, ANNOUNCED).end())
  const bucket = { key: 'all', rate: '10/s', capacity: 20 }
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { learning: bucket, own: bucket },
    routes: [
      { name: 'a', match: { path: '/a' }, buckets: ['learning'], upstream: { url: upstream.url, learn: true } },
      { name: 'b', buckets: ['own'] },
    ],
  })
  await askOnce(t, rig, get('/b'))
  await askOnce(t, rig, get('/a'))
  rig.pacer.runUntil(1_000)
  await askOnce(t, rig, get('/a'))
  await askOnce(t, rig, get('/b'))
  t.same(ratesOf(rig), { learning: 2, own: 10 })
})
