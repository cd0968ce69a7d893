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

const REQUESTS = { 'x-ratelimit-limit-requests': '120', 'x-ratelimit-remaining-requests': '119' }
const TOKENS = { 'x-ratelimit-limit-tokens': '6000', 'x-ratelimit-remaining-tokens': '3000' }
const MODEL = {
  ...{ ...REQUESTS, 'x-ratelimit-reset-requests': '1m0s' },
  ...{ ...TOKENS, 'x-ratelimit-reset-tokens': '1m0s' },
}
const all = (rate: string) => ({ key: 'all', rate, capacity: 1_000 })

t.test('limits on requests and tokens are followed by the buckets that are called so', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, MODEL).end())
  const rig = await startRig(t, {
    upstream: { url: upstream.url, learn: true },
    buckets: { client: all('10/s'), requests: all('10/s'), tokens: all('1000/s') },
  })
  await askOnce(t, rig, get())
  rig.pacer.runUntil(1_000)
  await askOnce(t, rig, get())
  t.same(ratesOf(rig), { client: 10, requests: 2, tokens: 50 })
})

t.test('without such buckets the limit on requests holds for all, and that on tokens for none', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, MODEL).end())
  const rig = await startRig(t, {
    upstream: { url: upstream.url, learn: true },
    buckets: { client: all('10/s'), everyone: all('10/s') },
  })
  await askOnce(t, rig, get())
  rig.pacer.runUntil(1_000)
  await askOnce(t, rig, get())
  t.same(ratesOf(rig), { client: 2, everyone: 2 })
})

t.test('an answer 200 that says that nothing is left pauses the upstream until the reset', async t => {
  const answers: Record<string, string>[] = [
    { 'x-ratelimit-remaining-requests': '0', 'x-ratelimit-reset-requests': '3s' },
    { 'x-ratelimit-remaining-tokens': '0', 'x-ratelimit-reset-tokens': '20ms' },
    { 'x-ratelimit-remaining-tokens': '0', 'x-ratelimit-reset-tokens': '6m0s' },
  ]
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, answers.shift()).end())
  const rig = await startRig(t, {
    upstream: { url: upstream.url, learn: true },
    buckets: { requests: all('10/s'), tokens: all('1000/s') },
  })
  const { gate } = rig.proxy.context.routes[0]!.upstream
  for (const [at, pause] of [
    [0, 3_000],
    [10_000, 20],
    [20_000, 60_000],
  ] as const) {
    rig.pacer.runUntil(at)
    t.equal((await askOnce(t, rig, get())).status, 200)
    t.equal(gate.pausedFor(at), pause, `at ${at}`)
  }
})

t.test("GitHub's 403 of a limit pauses the upstream, and the request is sent again after it", async t => {
  const refusals: Record<string, string>[] = [
    { 'retry-after': '5', 'x-ratelimit-remaining': '4000' },
    { 'x-ratelimit-limit': '5000', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '7' },
  ]
  const upstream = await httpUpstream(t, (req, res) => {
    const refusal = req.url === '/secret' ? { 'x-ratelimit-remaining': '4000' } : refusals.shift()
    res.writeHead(refusal === undefined ? 200 : 403, refusal).end()
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, pauseOn: { status: [429], default: '1s' }, retry: { status: [429] } },
    buckets: { everyone: all('10/s') },
  })
  const { gate } = rig.proxy.context.routes[0]!.upstream
  t.equal((await askOnce(t, rig, get('/secret'))).status, 403, 'that one is not allowed')
  t.equal(gate.pausedFor(0), 0)
  rig.pacer.runUntil(1_000)
  const answer = askOnce(t, rig, get())
  await rig.until(() => gate.pausedFor(1_000) === 5_000)
  rig.pacer.runUntil(6_000)
  await rig.until(() => gate.pausedFor(6_000) === 7_000)
  rig.pacer.runUntil(13_000)
  t.equal((await answer).status, 200)
})

t.test('with a profile there are its buckets, and pauses as long as its provider asks for', async t => {
  const answers: [number, Record<string, string>][] = [
    [200, { 'x-ratelimit-limit': '5000', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '1200' }],
    [403, { 'retry-after': '90', 'x-ratelimit-remaining': '4000' }],
    [429, {}],
    [403, {}],
  ]
  const upstream = await httpUpstream(t, (_req, res) => {
    const [status, headers] = answers.shift()!
    res.writeHead(status, headers).end()
  })
  const rig = await startRig(t, { upstream: { url: upstream.url, profile: 'github' } })
  const { gate } = rig.proxy.context.routes[0]!.upstream
  for (const [at, pause] of [
    [0, 1_200_000],
    [1_200_000, 90_000],
    [1_300_000, 60_000],
    [1_400_000, 0],
  ] as const) {
    rig.pacer.runUntil(at)
    await askOnce(t, rig, get())
    t.equal(gate.pausedFor(at), pause, `at ${at}`)
  }
  t.same(Object.keys(ratesOf(rig)), ['github.requests'])
})
