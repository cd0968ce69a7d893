import { AggregatorRegistry } from 'prom-client'
import t from 'tap'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { httpUpstream, turns } from '../proxy/harness.js'
import { startAdminRig } from './rig.js'

const CLIENT = { client: { key: 'header:x-user', rate: '5/s', capacity: 3 } }

t.test('each request is counted once, by route and outcome', async t => {
  let broken = false
  const upstream = await httpUpstream(t, (req, res) => (broken ? req.socket.destroy() : res.end('ok')))
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: CLIENT,
    routes: [
      { name: 'brief', match: { path: '/brief' }, maxWait: '300ms' },
      { name: 'api', match: { path: '/api/*' } },
    ],
  })
  const { proxy, pacer } = rig
  const ask = (path: string, user: string, init: RequestInit = {}) =>
    fetch(proxy.url + path, { ...init, headers: { 'x-user': user } })
  // One goes at once, two wait, one is rejected.
  const four = Array.from({ length: 4 }, () => ask('/api/a', 'a'))
  while ((await rig.snapshot()).queued < 2) await turns()
  t.equal(await rig.metric('shaper_queued{route="api"}'), 2)
  t.equal(await rig.metric('shaper_keys{bucket="client"}'), 1)
  const abort = new AbortController()
  const left = ask('/api/b', 'b')
  await left
  const cancelled = ask('/api/b', 'b', { signal: abort.signal })
  while ((await rig.snapshot()).queued < 3) await turns()
  abort.abort()
  await t.rejects(cancelled)
  while ((await rig.snapshot()).queued > 2) await turns()
  pacer.runUntil(400)
  t.same((await Promise.all(four)).map(({ status }) => status).sort(), [200, 200, 200, 429])
  t.equal((await ask('/nowhere', 'a')).status, 404)
  broken = true
  const failing = ask('/api/c', 'c')
  // The connection that broke had served others, so the request is sent again: in the next slot of its bucket.
  while ((await rig.snapshot()).queued < 1) await turns()
  pacer.runUntil(600)
  t.equal((await failing).status, 502)
  const wanted = {
    'shaper_requests_total{route="api",outcome="forwarded"}': 4,
    'shaper_requests_total{route="api",outcome="rejected"}': 1,
    'shaper_requests_total{route="api",outcome="cancelled"}': 1,
    'shaper_requests_total{route="api",outcome="failed"}': 1,
    'shaper_requests_total{route="(none)",outcome="refused"}': 1,
    'shaper_requests_total{route="brief",outcome="forwarded"}': 0,
    'shaper_queued{route="api"}': 0,
    [`shaper_upstream_in_flight{upstream="${upstream.url}",server="${upstream.url}"}`]: 0,
    'shaper_queue_wait_seconds_count{route="api"}': 6,
    'shaper_queue_wait_seconds_sum{route="api"}': 0.2 + 0.4 + 0.2,
    'shaper_queue_wait_seconds_bucket{le="0.25",route="api"}': 5,
    shaper_release_lateness_seconds_count: 6,
    'shaper_upstream_seconds_count{route="api"}': 4,
    shaper_store_errors_total: 0,
  }
  for (const [line, value] of Object.entries(wanted)) t.equal(await rig.metric(line), value, line)
})

t.test('dry runs are counted by what they would have done and by kind of program', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: CLIENT,
    dryRun: true,
    routes: [{ name: 'api' }],
  })
  for (const agent of ['curl/8', 'curl/8', 'Mozilla/5.0 Firefox/1', 'Mozilla/5.0 Firefox/1', '']) {
    await fetch(rig.proxy.url, { headers: { 'x-user': 'a', 'user-agent': agent } })
  }
  t.equal(await rig.metric('shaper_dry_run_total{route="api",outcome="would_delay"}'), 2)
  t.equal(await rig.metric('shaper_dry_run_total{route="api",outcome="would_reject"}'), 2)
  const { dryRun, buckets } = await rig.snapshot()
  t.same(dryRun!.keys.map(({ agent, wouldReject, wouldDelay }) => [agent, wouldReject, wouldDelay]).sort(), [
    ['browser', 1, 1],
    ['empty', 1, 0],
    ['library', 0, 1],
  ])
  t.same(dryRun!.agents, {
    browser: { would_reject: 1, would_delay: 1 },
    bot: { would_reject: 0, would_delay: 0 },
    library: { would_reject: 0, would_delay: 1 },
    empty: { would_reject: 1, would_delay: 0 },
  })
  t.ok(dryRun!.since > Date.now() - 60_000 && dryRun!.since <= Date.now() + 1_000)
  t.equal(dryRun!.keys.length, 3)
  t.equal(
    dryRun!.keys.reduce((sum, { longestWait }) => Math.max(sum, longestWait), 0),
    400,
  )
  t.equal(buckets[0]!.offered, 5)
})

t.test('what is learnt of clients, and what was given up for it', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    trustProxy: true,
    buckets: { all: { key: 'all', rate: '10/s', capacity: 100 } },
    routes: [{ name: 'api' }],
  })
  const { proxy, pacer } = rig
  const ask = (client: number, init: { signal?: AbortSignal; headers?: Record<string, string> } = {}) =>
    fetch(proxy.url, { ...init, headers: { 'x-forwarded-for': `192.0.2.${client}`, ...init.headers } })
  const route = async () => (await rig.snapshot()).routes[0]!
  const over = async () => Object.values((await route()).outcomes).reduce((sum, count) => sum + count, 0)
  /** All of them have been decided on. */
  const decided = async (count: number) => {
    while ((await over()) + (await rig.snapshot()).queued < count) await turns()
  }
  /** Answers take no time on the virtual clock. */
  const pass = async (ms: number) => {
    for (let passed = 0; passed < ms; passed += 100) {
      pacer.runUntil(pacer.now() + 100)
      while ((await rig.snapshot()).inFlight > 0) await turns()
    }
  }
  const [patience, service] = ['shaper_patience_seconds{route="api"}', 'shaper_service_time_seconds{route="api"}']
  const givenUp = (at: string, source: string) => `shaper_given_up_total{route="api",at="${at}",source="${source}"}`
  t.equal((await ask(0)).status, 200)
  t.notOk('patience' in (await route()), 'nothing is known')
  for (const line of [patience, service]) t.equal(await rig.metric(line), undefined, line)
  t.equal(await rig.metric(givenUp('release', 'learnt')), 0, 'all counts of a route are there with its first request')
  // Thirty requests of six clients: six leave within 600 ms, and the clients of the others hang up then.
  const abort = new AbortController()
  const first = Array.from({ length: 30 }, (_, client) =>
    ask(client % 6, { signal: abort.signal }).catch(() => undefined),
  )
  await decided(31)
  await pass(600)
  t.equal(await over(), 7)
  abort.abort()
  await Promise.all(first)
  while ((await rig.snapshot()).queued > 0) await turns()
  t.equal(await rig.metric(patience), 0.582, '3 % less than was seen')
  t.same((await route()).patience, { learntMs: 582, givenUp: 0, lastMinute: 0 })
  // Five may wait. Of the next twenty one is on trial.
  const second: Promise<Response>[] = []
  for (let client = 0; client < 25; client += 1) {
    second.push(ask(client % 6))
    await decided(32 + client)
  }
  await ask(9, { headers: { 'grpc-timeout': '100m' } })
  t.equal(await rig.metric(givenUp('arrival', 'learnt')), 19)
  t.equal(await rig.metric(givenUp('arrival', 'known')), 1)
  t.equal(await rig.metric('shaper_rejections_total{route="api",bucket="all",reason="patience"}'), 20)
  t.equal(await rig.metric('shaper_patience_trials_total{route="api"}'), 0, 'it is not over')
  await pass(2_000)
  await Promise.all(second)
  t.equal(await rig.metric('shaper_patience_trials_total{route="api"}'), 1)
  t.match((await route()).patience, { givenUp: 20, lastMinute: 20 })
  // Twenty answers tell how long the upstream takes.
  for (let client = 0; client < 8; client += 1) {
    await pass(1_000)
    t.equal((await ask(client)).status, 200)
  }
  t.equal(await rig.metric(service), 0)
  t.equal((await route()).patience!.serviceMs, 0)
  pacer.runUntil(pacer.now() + 61_000)
  t.equal(await rig.metric(patience), undefined, 'hang-ups of more than a minute ago say nothing')
  t.same((await route()).patience, { serviceMs: 0, givenUp: 20, lastMinute: 0 })
})

t.test('what was reserved and what it cost', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    res.writeHead(req.url === '/refused' ? 400 : 200, { 'content-type': 'application/json' })
    res.end(req.url === '/told' ? '{"usage":{"total_tokens":512}}' : '{}')
  })
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: { tokens: { key: 'all', rate: '500/s', capacity: 30_000, burst: 30_000 } },
    routes: [{ name: 'chat', cost: { buckets: { tokens: { estimate: 100, after: 'usage.total_tokens' } } } }],
  })
  for (const path of ['/told', '/told', '/refused', '/silent']) await (await fetch(rig.proxy.url + path)).text()
  const wanted = {
    'shaper_settlements_total{route="chat",by="answer"}': 2,
    'shaper_settlements_total{route="chat",by="unserved"}': 1,
    'shaper_settlements_total{route="chat",by="unknown"}': 1,
    'shaper_settled_cost_total{route="chat",bucket="tokens",kind="reserved"}': 300,
    'shaper_settled_cost_total{route="chat",bucket="tokens",kind="settled"}': 1_024,
  }
  for (const [line, value] of Object.entries(wanted)) t.equal(await rig.metric(line), value, line)
})

t.test('the adaptive bucket: its present rate as a limit, no capacity', async t => {
  const upstream = await httpUpstream(t)
  const adapt = { min: '5/s', max: '100/s', start: '10/s', latency: { p90: '800ms' } }
  const rig = await startAdminRig(t, { upstream: { url: upstream.url, adapt }, routes: [{ name: 'api' }] })
  const waiting = Array.from({ length: 3 }, () => fetch(rig.proxy.url))
  while ((await rig.snapshot()).queued < 2) await turns()
  t.equal(await rig.metric('shaper_limit{bucket="adaptive"}'), 10)
  t.equal(await rig.metric('shaper_capacity{bucket="adaptive"}'), undefined)
  t.equal(await rig.metric('shaper_keys{bucket="adaptive"}'), 1)
  const [bucket] = (await rig.snapshot()).buckets
  t.match(bucket, { name: 'adaptive', rate: 10, configured: 100, capacity: null, waiting: 2 })
  t.match(bucket!.fullest, [{ key: 'all', rate: 10, capacity: null, level: 3, waiting: 2, predictedWaitMs: 300 }])
  t.same(((await (await rig.get('/buckets')).json()) as Snapshot).buckets[0]!.capacity, null)
  rig.pacer.runUntil(200)
  for (const { status } of await Promise.all(waiting)) t.equal(status, 200)
})

t.test('waits by priority, once there are several', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '10/s', capacity: 10 } },
    routes: [{ name: 'late', match: { path: '/late' }, priority: 6, explain: true }, { name: 'api' }],
  })
  const { proxy, pacer } = rig
  await fetch(`${proxy.url}/api`)
  t.equal(await rig.metric('shaper_priority_wait_seconds_count{priority="3"}'), undefined)
  const late = fetch(`${proxy.url}/late`)
  while ((await rig.snapshot()).queued < 1) await turns()
  pacer.runUntil(100)
  t.match((await late).headers.get('shaper-explain'), /^"all";position=0;wait=100\.0;cost=1;priority=6;predicted=/)
  const api = fetch(`${proxy.url}/api`)
  while ((await rig.snapshot()).queued < 1) await turns()
  pacer.runUntil(200)
  t.equal((await api).headers.get('shaper-explain'), null)
  for (const priority of [3, 6])
    t.equal(await rig.metric(`shaper_priority_wait_seconds_sum{priority="${priority}"}`), 0.1, `${priority}`)
})

t.test('answers by class: those of the upstream, and all', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    res.writeHead(Number(req.url!.slice('/api/'.length))).end()
  })
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: { client: { key: 'all', rate: '1/h', capacity: 5 } },
    routes: [{ name: 'api', match: { path: '/api/*' }, mode: 'meter' }],
  })
  for (const status of [200, 204, 304, 404, 503, 200]) await fetch(`${rig.proxy.url}/api/${status}`)
  await fetch(`${rig.proxy.url}/elsewhere`)
  const line = (name: string, route: string, digit: number) => `${name}{route="${route}",class="${digit}xx"}`
  for (const [digit, count] of [
    [2, 2],
    [3, 1],
    [4, 1],
    [5, 1],
  ] as const) {
    t.equal(await rig.metric(line('shaper_upstream_responses_total', 'api', digit)), count, `upstream ${digit}xx`)
    // The sixth was rejected.
    const all = digit === 4 ? count + 1 : count
    t.equal(await rig.metric(line('shaper_responses_total', 'api', digit)), all, `${digit}xx`)
  }
  t.equal(await rig.metric(line('shaper_responses_total', '(none)', 4)), 1)
  t.equal(await rig.metric(line('shaper_responses_total', 'api', 1)), undefined)
})

t.test('a client that left was not answered', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: { client: { key: 'all', rate: '1/h', capacity: 5 } },
    routes: [{ name: 'api' }],
  })
  await fetch(rig.proxy.url)
  const abort = new AbortController()
  const left = fetch(rig.proxy.url, { signal: abort.signal })
  while ((await rig.snapshot()).queued < 1) await turns()
  abort.abort()
  await t.rejects(left)
  while ((await rig.snapshot()).queued > 0) await turns()
  t.equal(await rig.metric('shaper_requests_total{route="api",outcome="cancelled"}'), 1)
  t.equal(await rig.metric('shaper_responses_total{route="api",class="2xx"}'), 1)
  t.equal(await rig.metric('shaper_responses_total{route="api",class="4xx"}'), 0)
})

t.test('an upstream is down while its breaker is open; one without a breaker is not told', async t => {
  const bare = await httpUpstream(t)
  const down = 'http://127.0.0.1:1'
  const breaker = { failures: 2, hold: '1ms' }
  const rig = await startAdminRig(t, {
    upstream: { url: down, breaker },
    buckets: { client: { key: 'all', rate: '1000/s', capacity: 5 } },
    routes: [
      { name: 'bare', match: { path: '/bare' }, upstream: { url: bare.url, breaker: false } },
      { name: 'api', mode: 'meter' },
    ],
  })
  const up = `shaper_upstream_up{upstream="${down}",server="${down}"}`
  t.equal(await rig.metric(up), 1)
  t.equal(await rig.metric(`shaper_upstream_up{upstream="${bare.url}",server="${bare.url}"}`), undefined)
  for (let each = 0; each < 2; each += 1) t.equal((await fetch(rig.proxy.url)).status, 502)
  t.equal(await rig.metric(up), 0)
})

t.test('of several processes: an upstream is up if all can use it, the longest lag counts, and a key once', async t => {
  const urls = { upstream: 'http://127.0.0.1:1', buckets: { client: { key: 'all', rate: '1000/s', capacity: 5 } } }
  const settings = { ...urls, routes: [{ name: 'api', mode: 'meter' }] }
  const [one, two] = [await startAdminRig(t, settings), await startAdminRig(t, settings)]
  for (let each = 0; each < 5; each += 1) await fetch(one.proxy.url)
  await fetch(two.proxy.url)
  const parts = [...(await one.source.metrics()), ...(await two.source.metrics())]
  const valuesOf = (name: string) => parts.flat().filter(each => each.name === name)
  t.same(
    valuesOf('shaper_upstream_up').map(({ values }) => values[0]!.value),
    [0, 1],
  )
  const merged = AggregatorRegistry.aggregate(parts as never)
  t.match(await merged.metrics(), /^shaper_keys\{bucket="client"\} 1$/m, 'a key of both is one')
  t.match(
    await merged.metrics(),
    /^shaper_upstream_up\{upstream="http:\/\/127\.0\.0\.1:1",server="http:\/\/127\.0\.0\.1:1"\} 0$/m,
  )
  const lags = valuesOf('shaper_event_loop_lag_seconds').map(({ values }) => values[0]!.value)
  t.match(await merged.metrics(), new RegExp(`^shaper_event_loop_lag_seconds ${Math.max(...lags)}$`, 'm'))
})

t.test('the lag of the event loop is what it was busy for', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', routes: [{ name: 'api', mode: 'off' }] })
  // The loop has to turn once, so that it is looked at.
  await new Promise(resolve => setTimeout(resolve, 50))
  const until = performance.now() + 300
  while (performance.now() < until);
  await new Promise(resolve => setTimeout(resolve, 50))
  const lag = await rig.metric('shaper_event_loop_lag_seconds')
  t.ok(lag! > 0.25 && lag! < 5, `${lag} s`)
})

t.test('requests that got the answer to another one', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '1/s', capacity: 5 } },
    routes: [{ name: 'pages', coalesce: true }],
  })
  await (await fetch(rig.proxy.url)).text()
  const both = [fetch(rig.proxy.url), fetch(rig.proxy.url)]
  while ((await rig.snapshot()).queued < 2) await turns()
  rig.pacer.runUntil(1_000)
  for (const answer of await Promise.all(both)) t.equal(await answer.text(), 'ok')
  const wanted = {
    'shaper_coalesced_total{route="pages"}': 1,
    'shaper_requests_total{route="pages",outcome="forwarded"}': 3,
    'shaper_upstream_responses_total{route="pages",class="2xx"}': 2,
  }
  for (const [line, value] of Object.entries(wanted)) t.equal(await rig.metric(line), value, line)
  const { routes } = await rig.snapshot()
  t.match(routes, [{ outcomes: { forwarded: 3 }, coalesced: 1 }])
})
