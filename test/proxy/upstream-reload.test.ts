/** A reload that changes settings of an upstream: its gate, and those who wait there, go on. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { askOnce, get, httpUpstream, type Rig, startRig, turns } from './harness.js'

const FAST = { all: { key: 'all', rate: '1000/s', capacity: 40 } }

function reload(rig: Rig, config: object): Promise<unknown> {
  return rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config })))
}

/** Sends one after the other and waits until all of them wait. */
async function enqueue(test: Parameters<typeof askOnce>[0], rig: Rig, paths: readonly string[]) {
  const answers = []
  for (const path of paths) {
    const before = rig.queued.length
    answers.push(askOnce(test, rig, get(path)))
    await rig.until(({ queued }) => queued.length > before)
  }
  return answers
}

/** An upstream that answers when told to, and remembers the most requests it had at once. */
async function holding(test: Parameters<typeof httpUpstream>[0]) {
  const held: (() => void)[] = []
  let open = 0
  const seen = { most: 0 }
  const upstream = await httpUpstream(test, (_req, res) => {
    open += 1
    seen.most = Math.max(seen.most, open)
    held.push(() => {
      open -= 1
      res.end('ok')
    })
  })
  return { upstream, held, seen }
}

t.test(
  'those who wait keep their order before newcomers when a reload changes a setting of their upstream',
  async t => {
    const hosts: string[] = []
    const upstream = await httpUpstream(t, (req, res) => {
      hosts.push(req.headers.host!)
      res.end('ok')
    })
    const config = (more: object) => ({
      upstream: { url: upstream.url, ...more },
      buckets: { all: { key: 'all', rate: '20/s', capacity: 40 } },
    })
    const rig = await startRig(t, config({}))
    await askOnce(t, rig, get('/old1'))
    const old = ['/old2', '/old3', '/old4', '/old5', '/old6', '/old7']
    const answers = await enqueue(t, rig, old)
    await reload(rig, config({ idleTimeout: '59s', hostHeader: 'upstream' }))
    const fresh = ['/new1', '/new2', '/new3', '/new4']
    answers.push(...(await enqueue(t, rig, fresh)))
    const expected = ['/old1', ...old, ...fresh].map(path => `GET ${path}`)
    for (let count = 2; count <= expected.length; count += 1) {
      rig.pacer.runUntil((count - 1) * 50)
      await upstream.until(({ requests }) => requests.length === count)
    }
    t.same(upstream.requests, expected)
    await Promise.all(answers)
    t.same(
      hosts.slice(1),
      Array(10).fill(new URL(upstream.url).host),
      'those who waited are sent with the new settings',
    )
  },
)

t.test('maxInFlight holds across a reload of another setting, for those in flight, waiting and new', async t => {
  const { upstream, held, seen } = await holding(t)
  const config = (more: object) => ({ upstream: { url: upstream.url, maxInFlight: 1, ...more }, buckets: FAST })
  const rig = await startRig(t, config({}))
  const first = askOnce(t, rig, get('/1'))
  await upstream.until(() => held.length === 1)
  const answers = [first, ...(await enqueue(t, rig, ['/2']))]
  for (const [round, idleTimeout] of ['59s', '58s', '57s'].entries()) {
    await reload(rig, config({ idleTimeout }))
    answers.push(...(await enqueue(t, rig, [`/${round + 3}`])))
  }
  rig.pacer.runUntil(1_000)
  await turns()
  for (let count = 1; count <= 5; count += 1) {
    await upstream.until(() => held.length === count)
    rig.pacer.runUntil(1_000 + count * 10)
    await turns()
    held[count - 1]!()
  }
  await Promise.all(answers)
  t.equal(seen.most, 1)
  t.same(upstream.requests, ['GET /1', 'GET /2', 'GET /3', 'GET /4', 'GET /5'])
})

t.test('a reload that raises maxInFlight sends those who wait at once; one that lowers it holds them', async t => {
  const { upstream, held } = await holding(t)
  const config = (maxInFlight: number) => ({ upstream: { url: upstream.url, maxInFlight }, buckets: FAST })
  const rig = await startRig(t, config(1))
  const first = askOnce(t, rig, get('/1'))
  await upstream.until(() => held.length === 1)
  const answers = [first, ...(await enqueue(t, rig, ['/2', '/3', '/4', '/5']))]
  rig.pacer.runUntil(100)
  await reload(rig, config(3))
  await upstream.until(() => held.length === 2)
  rig.pacer.runUntil(200)
  await upstream.until(() => held.length === 3)
  await reload(rig, config(2))
  held[0]!()
  await first
  rig.pacer.runUntil(300)
  await turns()
  t.equal(held.length, 3, 'two are in flight')
  for (const count of [4, 5]) {
    held[count - 3]!()
    await upstream.until(() => held.length === count)
    rig.pacer.runUntil(count * 100)
  }
  held[3]!()
  held[4]!()
  await Promise.all(answers)
  t.same(upstream.requests, ['GET /1', 'GET /2', 'GET /3', 'GET /4', 'GET /5'])
})

t.test('routes with settings of their own for one URL keep their own gates across a reload', async t => {
  const { upstream } = await holding(t)
  const config = (names: readonly string[], idleTimeout: string) => ({
    upstream: upstream.url,
    buckets: FAST,
    routes: names.map((name, place) => ({
      name,
      ...(place < names.length - 1 && { match: { path: `/${name}` } }),
      upstream: { url: upstream.url, idleTimeout, maxInFlight: { a: 1, b: 2, c: 3 }[name] },
    })),
  })
  const rig = await startRig(t, config(['a', 'b'], '60s'))
  const gates = () => new Map(rig.proxy.context.routes.map(({ name, upstream }) => [name, upstream.gate]))
  const before = gates()
  await reload(rig, config(['b', 'a'], '59s'))
  t.equal(gates().get('a'), before.get('a'))
  t.equal(gates().get('b'), before.get('b'))
  t.not(before.get('a'), before.get('b'))
  await reload(rig, config(['b', 'c'], '58s'))
  t.equal(gates().get('b'), before.get('b'))
  t.equal(gates().get('c'), before.get('a'), 'a renamed route takes over what is left')
})

t.test('an upstream that a reload replaced leaves the pauses of its gate alone when it closes', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(429, { 'Retry-After': '5' }).end())
  const config = (idleTimeout: string) => ({
    upstream: { url: upstream.url, idleTimeout, pauseOn: { status: [429], default: '1s', max: '60s' } },
    buckets: FAST,
  })
  const rig = await startRig(t, config('60s'))
  await reload(rig, config('59s'))
  await askOnce(t, rig, get())
  t.equal(rig.proxy.context.routes[0]!.lane.gate.pausedFor(0), 5_000)
})
