import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { askOnce, connect, get, httpUpstream, post, startRig, turns } from './harness.js'

const TEN = { all: { key: 'all', rate: '10/s', capacity: 20 } }
const PAUSE = { status: [429, 503], default: '1s', max: '60s' }

/** An upstream that answers from a list of statuses and headers, then 200. */
async function scripted(t: Parameters<typeof httpUpstream>[0], answers: [number, Record<string, string>?][]) {
  return httpUpstream(t, (_req, res) => {
    const [status, headers = {}] = answers.shift() ?? [200]
    res.writeHead(status, headers).end('body')
  })
}

t.test('an answer that asks for a pause stops all releases until then; the next ones are spaced as usual', async t => {
  const upstream = await scripted(t, [[429, { 'Retry-After': '2' }]])
  const rig = await startRig(t, {
    upstream: { url: upstream.url, pauseOn: PAUSE },
    buckets: TEN,
    routes: [{ name: 'api' }],
  })
  const first = askOnce(t, rig, get())
  await upstream.until(({ requests }) => requests.length === 1)
  const others = [askOnce(t, rig, get()), askOnce(t, rig, get())]
  const answer = await first
  t.equal(answer.status, 429)
  t.equal(answer.header('retry-after'), '2', 'it is handed on as it came')
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(1_999)
  await turns()
  t.equal(upstream.requests.length, 1)
  rig.pacer.runUntil(2_000)
  await upstream.until(({ requests }) => requests.length === 2)
  rig.pacer.runUntil(2_099)
  await turns()
  t.equal(upstream.requests.length, 2)
  rig.pacer.runUntil(2_100)
  t.same(
    (await Promise.all(others)).map(({ status }) => status),
    [200, 200],
  )
})

t.test('without Retry-After the default applies, and no pause exceeds the maximum', async t => {
  const pauseOn = { status: [503], default: '3s', max: '5s' }
  const upstream = await scripted(t, [[503], [503, { 'Retry-After': '3600' }], [429, { 'Retry-After': '3600' }]])
  const rig = await startRig(t, { upstream: { url: upstream.url, pauseOn }, buckets: TEN })
  const { gate } = rig.proxy.context.routes[0]!.upstream
  for (const [at, pause] of [
    [0, 3_000],
    [3_000, 5_000],
    [8_000, 0],
  ] as const) {
    rig.pacer.runUntil(at)
    await askOnce(t, rig, get())
    t.equal(gate.pausedFor(at), pause)
  }
})

t.test('requests that would now wait beyond maxWait are answered at once', async t => {
  const held: (() => void)[] = []
  const slow = await httpUpstream(t, (_req, res) => held.push(() => res.writeHead(503, { 'Retry-After': '30' }).end()))
  const rig = await startRig(t, {
    upstream: { url: slow.url, pauseOn: PAUSE },
    buckets: TEN,
    routes: [
      { name: 'brief', match: { path: '/brief' }, maxWait: '10s' },
      { name: 'long', maxWait: '40s' },
    ],
  })
  const first = askOnce(t, rig, get())
  await slow.until(() => held.length === 1)
  const [brief, long] = [askOnce(t, rig, get('/brief')), askOnce(t, rig, get('/long'))]
  await rig.until(({ queued }) => queued.length === 2)
  held[0]!()
  const answer = await brief
  t.equal(answer.status, 503)
  t.equal(answer.header('retry-after'), '30')
  t.match(answer.json().detail, /the upstream asks for a pause/)
  t.equal((await first).status, 503)
  t.same(rig.outcomes.includes('brief expired 503'), true)
  const late = await askOnce(t, rig, get('/brief'))
  t.equal(late.status, 429, 'a newcomer is rejected on its arrival')
  t.equal(late.header('retry-after'), '21', 'until the wait would fit, behind the one that waits')
  rig.pacer.runUntil(30_000)
  await slow.until(() => held.length === 2)
  held[1]!()
  await long
})

t.test('a rejection during a pause names what decided: maxWait, the client, or its Prefer', async t => {
  const paused = 'the upstream asks for a pause, and '
  const lost = `${paused}clients stop waiting before the answer: this one waits 2 s`
  const table: [headers: string[], route: object, detail: string][] = [
    [[], { maxWait: '4s' }, `${paused}the wait would be longer than maxWait`],
    [['Prefer: wait=2'], {}, lost],
    [['Prefer: wait=2'], { maxWait: '4s' }, lost],
    [['Prefer: wait=2'], { patience: 'none' }, `${paused}the wait would be longer than its "Prefer: wait"`],
    [['grpc-timeout: 2S'], {}, lost],
    [['X-Envoy-Expected-Rq-Timeout-Ms: 2000'], {}, lost],
    [[], { patience: '2s' }, lost],
  ]
  for (const buckets of [TEN, { user: { ...TEN.all, key: { from: 'header:x-user', missing: 'skip' } } }]) {
    for (const [headers, route, detail] of table) {
      const upstream = await scripted(t, [[503, { 'Retry-After': '30' }]])
      const rig = await startRig(t, {
        upstream: { url: upstream.url, pauseOn: PAUSE },
        trustProxy: true,
        buckets,
        routes: [{ name: 'api', ...route }],
      })
      await askOnce(t, rig, get())
      const answer = await askOnce(t, rig, get('/', ...headers))
      t.same([answer.status, answer.json().detail], [429, detail], JSON.stringify([headers, route]))
    }
  }
})

t.test('a meter answers 503 while the upstream pauses', async t => {
  const upstream = await scripted(t, [[429, { 'Retry-After': '7' }]])
  const rig = await startRig(t, {
    upstream: { url: upstream.url, pauseOn: PAUSE },
    buckets: TEN,
    routes: [{ name: 'api', mode: 'meter' }],
  })
  await askOnce(t, rig, get())
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 503)
  t.equal(answer.header('retry-after'), '7')
  rig.pacer.runUntil(7_000)
  t.equal((await askOnce(t, rig, get())).status, 200)
})

t.test('retry: an idempotent request without a body goes back to the head of its lane', async t => {
  const seen: string[] = []
  let refusals = 2
  const upstream = await httpUpstream(t, (req, res) => {
    seen.push(`${req.url} at ${rig.pacer.now()}`)
    if (req.url === '/a' && refusals-- > 0) res.writeHead(429, { 'Retry-After': '1' }).end('no')
    else res.end('ok')
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [429], max: 3 } },
    buckets: TEN,
    routes: [{ name: 'api' }],
  })
  const a = askOnce(t, rig, get('/a'))
  await upstream.until(({ requests }) => requests.length === 1)
  await rig.until(({ queued }) => queued.length === 1)
  const b = askOnce(t, rig, get('/b'))
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(1_000)
  await rig.until(({ queued }) => queued.length === 3)
  rig.pacer.runUntil(2_000)
  const answer = await a
  rig.pacer.runUntil(2_100)
  await b
  t.same(seen, ['/a at 0', '/a at 1000', '/a at 2000', '/b at 2100'])
  t.equal(answer.status, 200)
  t.equal(answer.text, 'ok')
  t.equal(answer.header('server-timing'), 'shaper;dur=2000')
  t.same(rig.outcomes, ['api forwarded 200', 'api forwarded 200'], 'each is counted once')
})

t.test('retry: after the last try the answer is passed on; with a body, after the first', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(503).end('no'))
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [503], max: 2 } },
    buckets: TEN,
    routes: [{ name: 'api' }],
  })
  const client = await connect(t, rig)
  const answer = client.ask(get())
  for (const count of [1, 2, 3]) {
    await upstream.until(({ requests }) => requests.length === count)
    if (count < 3) await rig.until(({ queued }) => queued.length === count)
    rig.pacer.runUntil(count * 100)
  }
  t.equal((await answer).status, 503)
  t.equal((await answer).text, 'no')
  const posted = client.ask(post('body'))
  rig.pacer.runUntil(500)
  t.equal((await posted).status, 503)
  t.equal(upstream.requests.length, 4)
})

t.test('retry: a request that could not be sent again in time gets the answer at hand', async t => {
  const upstream = await scripted(t, [[429, { 'Retry-After': '30' }]])
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [429], max: 3 } },
    buckets: TEN,
    routes: [{ name: 'api', maxWait: '20s' }],
  })
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 429)
  t.equal(answer.header('retry-after'), '30')
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 0)
})

t.test('retry: a client that hangs up while it waits again leaves the queue', async t => {
  const upstream = await scripted(t, [[503, { 'Retry-After': '5' }]])
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [503], max: 3 } },
    buckets: TEN,
    routes: [{ name: 'api' }],
  })
  const client = await connect(t, rig)
  client.socket.write(get())
  await rig.until(({ queued }) => queued.length === 1)
  client.socket.destroy()
  t.same(await rig.finished(1), ['api cancelled 499'])
  rig.pacer.runUntil(10_000)
  await turns()
  t.equal(upstream.requests.length, 1)
  t.equal(rig.proxy.context.shaper.queued, 0)
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 0)
})

t.test('retry: the connection is reused, and an endless answer is cut', async t => {
  const sockets = new Set<unknown>()
  const sizes = [1_000, 10_000_000]
  const upstream = await httpUpstream(t, (req, res) => {
    sockets.add(req.socket)
    const size = sizes.shift()
    if (size === undefined) res.end('ok')
    else res.writeHead(503).end('x'.repeat(size))
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [503], max: 3 } },
    buckets: TEN,
    routes: [{ name: 'api' }],
  })
  const answer = askOnce(t, rig, get())
  await rig.until(({ queued }) => queued.length === 1)
  await turns(50)
  rig.pacer.runUntil(100)
  await rig.until(({ queued }) => queued.length === 2)
  t.equal(sockets.size, 1)
  await turns(50)
  rig.pacer.runUntil(200)
  t.equal((await answer).text, 'ok')
  t.equal(sockets.size, 2)
})

t.test('learn: the rate follows the upstream, never above the configured rate', async t => {
  let fields: Record<string, string> = {}
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, fields).end())
  const rig = await startRig(t, {
    upstream: { url: upstream.url, learn: true },
    buckets: TEN,
    routes: [{ name: 'api' }],
  })
  const rateOf = () => [...rig.proxy.context.bucketTable.all()][0]!.limits.rate * 1_000
  fields = { 'RateLimit-Policy': '"default";q=120;w=60', RateLimit: '"default";r=119;t=60' }
  await askOnce(t, rig, get())
  const waiting = askOnce(t, rig, get())
  await rig.until(({ queued }) => queued.length === 1)
  rig.pacer.runUntil(499)
  await turns()
  t.equal(upstream.requests.length, 1)
  rig.pacer.runUntil(510)
  const answer = await waiting
  t.ok(Math.abs(rateOf() - 2) < 0.05, `2 a second, not ${rateOf()}`)
  t.match(answer.header('ratelimit-policy'), /"all";q=20;w=1[01]/, 'and the headers say so')

  fields = { 'X-RateLimit-Limit': '100000', 'X-RateLimit-Remaining': '99999', 'X-RateLimit-Reset': '60' }
  rig.pacer.runUntil(5_000)
  await askOnce(t, rig, get())
  rig.pacer.runUntil(6_000)
  await askOnce(t, rig, get())
  t.equal(rateOf(), 10)
})

t.test('learn: with no quota left, nothing is sent until the window ends', async t => {
  const upstream = await scripted(t, [
    [200, { 'X-RateLimit-Limit': '60', 'X-RateLimit-Remaining': '0', 'X-RateLimit-Reset': '20' }],
  ])
  const rig = await startRig(t, { upstream: { url: upstream.url, learn: true }, buckets: TEN })
  await askOnce(t, rig, get())
  const waiting = askOnce(t, rig, get())
  await rig.until(({ queued }) => queued.length === 1)
  rig.pacer.runUntil(19_999)
  await turns()
  t.equal(upstream.requests.length, 1)
  rig.pacer.runUntil(20_000)
  t.equal((await waiting).status, 200)
})

t.test('an endless refusal keeps its place in flight until it is cut off', async t => {
  let requests = 0
  const upstream = await httpUpstream(t, (_req, res) => {
    requests += 1
    if (requests <= 2) res.writeHead(503).write('and on it goes')
    else res.end('ok')
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, maxInFlight: 1, retry: { status: [503], max: 3 } },
      buckets: TEN,
      routes: [{ name: 'api' }],
    },
    { virtualClock: true },
  )
  const answers = [askOnce(t, rig, get('/a')), askOnce(t, rig, get('/b'))]
  for (const count of [1, 2]) {
    await rig.until(({ queued }) => queued.length === count + 1)
    rig.pacer.runUntil(count * 1_000)
    await turns()
    t.equal(requests, count, 'no request leaves before it is over')
    rig.clock.runUntil(count * 2_000)
    await upstream.until(() => requests === count + 1)
  }
  rig.pacer.runUntil(9_000)
  await upstream.until(() => requests === 4)
  t.same(
    (await Promise.all(answers)).map(({ status }) => status),
    [200, 200],
  )
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 0)
})

t.test('a request that is put back uses the current bucket of its key', async t => {
  const held: (() => void)[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.url === '/first' && held.length < 3) held.push(() => res.writeHead(503).end())
    else res.end('ok')
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [503], max: 3 } },
    buckets: { user: { key: 'header:x-user', rate: '10/s', capacity: 20 } },
    limits: { maxKeys: 2 },
    routes: [{ name: 'api' }],
  })
  const ask = (path: string, user: string) => askOnce(t, rig, get(path, `X-User: ${user}`))
  const first = Array.from({ length: 3 }, () => ask('/first', 'a'))
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(200)
  await upstream.until(() => held.length === 3)
  // All of them are under way, the bucket has drained, and other keys take its place.
  rig.pacer.runUntil(2_000)
  await Promise.all([ask('/', 'b'), ask('/', 'c'), ask('/', 'd')])
  const next = Array.from({ length: 3 }, () => ask('/next', 'a'))
  await rig.until(({ queued }) => queued.length === 4)
  for (const refuse of held) refuse()
  await rig.until(({ queued }) => queued.length === 7)
  const before = upstream.requests.length
  rig.pacer.runUntil(2_400)
  await upstream.until(({ requests }) => requests.length >= before + 4)
  await turns()
  t.equal(upstream.requests.length, before + 4, 'four periods, four requests')
  rig.pacer.runUntil(3_000)
  await Promise.all([...first, ...next])
})

t.test('requests that are put back count each other: one that would be late gets its answer', async t => {
  const held: (() => void)[] = []
  const upstream = await httpUpstream(t, (_req, res) => {
    if (held.length < 6) held.push(() => res.writeHead(429, { 'Retry-After': '1' }).end('no'))
    else res.end('ok')
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [429], max: 3 } },
    buckets: { all: { key: 'all', rate: '5/s', capacity: 20 } },
    routes: [{ name: 'api', maxWait: '2500ms' }],
  })
  const answers = Array.from({ length: 6 }, (_, place) => askOnce(t, rig, get(`/${place}`)))
  await rig.until(({ queued }) => queued.length === 5)
  // Each opens a connection: nothing has been answered.
  for (let count = 1; count <= 5; count += 1) {
    rig.pacer.runUntil(200 * count)
    await upstream.until(() => held.length === 1 + count)
  }
  for (const refuse of held) {
    refuse()
    await turns(5)
  }
  await rig.until(({ queued, outcomes }) => queued.length + outcomes.length >= 11)
  rig.pacer.runUntil(5_000)
  const statuses = (await Promise.all(answers)).map(({ status }) => status)
  t.same(
    statuses.filter(status => status === 503),
    [],
    'no request with an answer expires',
  )
  t.equal(statuses.filter(status => status === 200).length, 3)
  t.equal(statuses.filter(status => status === 429).length, 3)
})

t.test('a pause of an upstream outlives a change of its settings, and holds for all routes to its URL', async t => {
  const upstream = await scripted(t, [[429, { 'Retry-After': '4' }]])
  const config = (more: object) => ({
    listen: '127.0.0.1:0',
    buckets: TEN,
    upstream: { url: upstream.url, pauseOn: PAUSE, ...more },
    routes: [
      { name: 'slow', match: { path: '/slow' }, upstream: { url: upstream.url, responseTimeout: '9s' } },
      { name: 'api' },
    ],
  })
  const rig = await startRig(t, config({}))
  await askOnce(t, rig, get())
  const slow = askOnce(t, rig, get('/slow'))
  await rig.until(({ queued }) => queued.length === 1)
  await rig.proxy.reload(parseConfig(JSON.stringify(config({ responseTimeout: '59s' }))))
  const late = askOnce(t, rig, get())
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(3_999)
  await turns()
  t.equal(upstream.requests.length, 1)
  rig.pacer.runUntil(4_200)
  t.same([(await slow).status, (await late).status], [200, 200])
})

t.test('with learn, a request is sent after the longest pause', async t => {
  const upstream = await scripted(t, [[200, { 'X-RateLimit-Remaining': '0', 'X-RateLimit-Reset': '31000000' }]])
  const rig = await startRig(t, {
    upstream: { url: upstream.url, learn: true, pauseOn: { ...PAUSE, max: '2s' } },
    buckets: TEN,
    routes: [{ name: 'api' }],
  })
  await askOnce(t, rig, get())
  const waiting = [askOnce(t, rig, get()), askOnce(t, rig, get())]
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(2_000)
  await waiting[0]
  rig.pacer.runUntil(4_000)
  await waiting[1]
})

t.test('successive refusals extend a pause in steps, not each by a little', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(429, { 'Retry-After': '1' }).end())
  let pauses = 0
  const rig = await startRig(t, {
    upstream: { url: upstream.url, pauseOn: PAUSE },
    routes: [{ name: 'all', mode: 'off' }],
  })
  const { observer } = rig.proxy.context
  observer.paused = () => {
    pauses += 1
  }
  for (let count = 0; count < 50; count += 1) {
    rig.pacer.runUntil(count)
    await askOnce(t, rig, get())
  }
  t.equal(pauses, 2)
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.pausedFor(49), 1_051)
})

t.test('a proxy that has drained waits for no pause', async t => {
  const upstream = await scripted(t, [[429, { 'Retry-After': '30' }]])
  const rig = await startRig(t, { upstream: { url: upstream.url, pauseOn: PAUSE }, buckets: TEN })
  await askOnce(t, rig, get())
  await rig.proxy.drain(0)
  const before = rig.pacer.now()
  t.equal(rig.pacer.runAll(), before, 'nothing is planned any more')
})

t.test('a resource of an upstream that has nothing left pauses its own routes only', async t => {
  const spent = { 'x-ratelimit-limit': '30', 'x-ratelimit-remaining': '0', 'x-ratelimit-reset-after': '24' }
  const upstream = await httpUpstream(t, (req, res) => {
    res.writeHead(200, req.url!.startsWith('/search') ? spent : {}).end()
  })
  const own = { url: upstream.url, learn: true }
  const rig = await startRig(t, {
    upstream: own,
    buckets: { ...TEN, searches: TEN.all },
    routes: [
      { match: { path: '/search*' }, upstream: { ...own, resource: 'search' }, buckets: ['searches'] },
      { match: { path: '/code*' }, upstream: { ...own, resource: 'search', via: false }, buckets: ['searches'] },
      { name: 'rest', buckets: ['all'] },
    ],
  })
  const pauses = () => rig.proxy.context.routes.map(({ upstream }) => upstream!.gate.pausedFor(0))
  await askOnce(t, rig, get('/search'))
  t.same(pauses(), [24_000, 24_000, 0])
  t.equal((await askOnce(t, rig, get('/repos'))).status, 200)
})

t.test('in meter a retry has to be admitted again, else the answer stands', async t => {
  const failing = () =>
    scripted(
      t,
      Array.from({ length: 20 }, () => [503] as [number]),
    )
  const ask = async (mode: string, more: object = {}) => {
    const upstream = await failing()
    const rig = await startRig(t, {
      upstream: { url: upstream.url, retry: { status: [503], max: 3 }, ...more },
      buckets: { all: { key: 'all', rate: '1/m', capacity: 3 } },
      routes: [{ name: 'api', mode }],
    })
    const { status } = await askOnce(t, rig, get())
    t.equal(status, 503)
    t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 0)
    return upstream.requests.length
  }
  t.equal(await ask('meter'), 3, 'as many as the bucket admits')
  t.equal(await ask('meter', { maxInFlight: 1 }), 3)
  t.equal(await ask('off'), 1)
})

t.test('in meter a retry that an answer pauses stands', async t => {
  const upstream = await scripted(t, [[503, { 'Retry-After': '2' }]])
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [503], max: 3 } },
    buckets: TEN,
    routes: [{ name: 'api', mode: 'meter' }],
  })
  t.equal((await askOnce(t, rig, get())).status, 503)
  t.equal(upstream.requests.length, 1)
  t.equal((await askOnce(t, rig, get())).status, 503, 'shaper answers during the pause')
  t.equal(upstream.requests.length, 1)
})
