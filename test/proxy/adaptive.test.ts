/** The adaptive bucket of an upstream: what passes it, what waits for it, and what is said of it. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { askOnce, connect, get, httpUpstream, pass, type Rig, startRig, turns } from './harness.js'

const adapt = { min: '5/s', max: '100/s', latency: { p90: '800ms' } }
const MODES = [
  { name: 'off', match: { path: '/off' }, mode: 'off' },
  { name: 'meter', match: { path: '/meter' }, mode: 'meter' },
  { name: 'shape' },
]

const config = (url: string, more: object = {}) => ({ upstream: { url, adapt, ...more }, routes: MODES })

const limitOf = (rig: Rig) => rig.proxy.context.routes[0]!.upstream.adaptive!

t.test('it spaces what waits, and never rejects', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, config(upstream.url))
  const answers = []
  for (let sent = 0; sent < 4; sent += 1) {
    const client = await connect(t, rig)
    client.send(get())
    answers.push(client.answer())
    await rig.until(({ queued, released }) => queued.length + released.length > sent)
  }
  await pass(rig, 1_000, 50)
  const came = await Promise.all(answers)
  t.same(
    came.map(({ status }) => status),
    [200, 200, 200, 200],
  )
  t.same(
    rig.released.map(({ wait }) => Math.round(wait)),
    [0, 200, 400, 600],
  )
  t.equal(came[3]!.header('ratelimit-policy'), undefined, 'it has no quota')
  t.equal(came[3]!.header('ratelimit'), undefined)
})

t.test('a rejection because of it names no policy, as it has no quota', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: { url: upstream.url, adapt }, routes: [{ name: 'all', maxWait: '300ms' }] })
  for (let sent = 0; sent < 2; sent += 1) {
    const client = await connect(t, rig)
    client.send(get())
    await rig.until(({ queued, released }) => queued.length + released.length > sent)
  }
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 429)
  const problem = answer.json()
  t.equal(problem['violated-policies'], undefined)
  t.match(problem.detail, /^bucket "adaptive" would make it wait 0\.4 s/)
})

t.test('meter and off routes count in it and do not wait', async t => {
  const upstream = await httpUpstream(t)
  for (const path of ['/off', '/meter']) {
    const rig = await startRig(t, config(upstream.url))
    for (let sent = 0; sent < 3; sent += 1) t.equal((await askOnce(t, rig, get(path))).status, 200)
    const client = await connect(t, rig)
    client.send(get())
    await rig.until(({ queued }) => queued.length === 1)
    await pass(rig, 1_000, 50)
    t.equal((await client.answer()).status, 200)
    t.equal(Math.round(rig.released.at(-1)!.wait), 600, path)
  }
})

t.test('what does not wait delays others by a second at most', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, config(upstream.url))
  for (let sent = 0; sent < 30; sent += 1) await askOnce(t, rig, get('/off'))
  const { bucketTable, clock } = rig.proxy.context
  t.equal(bucketTable.look('adaptive', 'all')!.level(clock.now()), 5)
})

t.test('a reload keeps the rate that was found', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, config(upstream.url))
  const answers = []
  for (let sent = 0; sent < 12; sent += 1) {
    const client = await connect(t, rig)
    client.send(get())
    answers.push(client.answer())
  }
  await rig.until(({ queued, released }) => queued.length + released.length >= 12)
  for (let at = 50; at <= 3_000; at += 50) {
    rig.pacer.runUntil(at)
    await turns(60)
  }
  await Promise.all(answers)
  const { rate } = limitOf(rig).limits
  t.ok(rate > 0.005, `${rate}`)
  const same = { listen: '127.0.0.1:0', ...config(upstream.url, { connectTimeout: '3s' }) }
  await rig.proxy.reload(parseConfig(JSON.stringify(same)))
  t.equal(limitOf(rig).limits.rate, rate)
})

t.test('several upstreams have a bucket each, by host', async t => {
  const [one, other] = [await httpUpstream(t), await httpUpstream(t)]
  const rig = await startRig(t, {
    upstream: { url: one.url, adapt },
    routes: [{ name: 'other', match: { path: '/o' }, upstream: { url: other.url, adapt } }, { name: 'one' }],
  })
  t.same(
    rig.proxy.context.routes.map(({ settings }) => settings.buckets.map(({ name }) => name)),
    [[`adaptive:127.0.0.1:${other.port}`], [`adaptive:127.0.0.1:${one.port}`]],
  )
})
