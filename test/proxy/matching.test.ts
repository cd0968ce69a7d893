/** Who is let past: routes by address and by pattern, tiers by range, buckets that do not apply. */
import t from 'tap'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, connect, get, httpUpstream, pass, type Rig, startRig, turns } from './harness.js'

const from = (address: string, ...headers: string[]) => get('/', `X-Forwarded-For: ${address}`, ...headers)

async function routes(t: Parameters<typeof startRig>[0], rig: Rig, texts: readonly string[]): Promise<string[]> {
  const before = rig.outcomes.length
  for (const text of texts) await askOnce(t, rig, text)
  return (await rig.finished(before + texts.length)).slice(before).map(outcome => outcome.split(' ')[0]!)
}

t.test("routes by the client's address, behind trusted hops the forwarded one", async t => {
  const upstream = await httpUpstream(t)
  const config = (trustProxy: unknown) => ({
    upstream: upstream.url,
    trustProxy,
    routes: [
      { name: 'office', match: { ip: ['192.0.2.0/24', '2001:db8:1::/48'] }, mode: 'off' },
      { name: 'one', match: { ip: '198.51.100.7' }, mode: 'off' },
      { name: 'near', match: { ip: '127.0.0.0/8' }, mode: 'off' },
      { name: 'rest', mode: 'off' },
    ],
  })
  const trusting = await startRig(t, config(['loopback']))
  t.same(
    await routes(t, trusting, [
      from('192.0.2.255'),
      from('192.0.3.0'),
      from('2001:db8:1:ffff::1'),
      from('2001:db8:2::1'),
      from('198.51.100.7'),
      from('::ffff:198.51.100.7'),
      from('192.0.2.1, 203.0.113.1'),
      get('/'),
    ]),
    ['office', 'rest', 'office', 'rest', 'one', 'one', 'rest', 'near'],
  )
  const wary = await startRig(t, config(false))
  t.same(await routes(t, wary, [from('192.0.2.1')]), ['near'], 'what an untrusted hop says does not count')
})

t.test('routes by patterns of host, header and path', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    routes: [
      { name: 'host', match: { host: '*.Example.com' }, mode: 'off' },
      { name: 'bots', match: { header: { 'User-Agent': '*bot*' } }, mode: 'off' },
      { name: 'flag', match: { header: { 'x-flag': '*' } }, mode: 'off' },
      { name: 'edit', match: { path: '/users/*/edit', normalise: ['case', 'slash', 'params'] }, mode: 'off' },
      { name: 'version', match: { path: '~ ^/v[0-9]+/' }, mode: 'off' },
      { name: 'rest', mode: 'off' },
    ],
  })
  const cases: [text: string, route: string][] = [
    ['GET / HTTP/1.1\r\nHost: a.EXAMPLE.com:8080\r\n\r\n', 'host'],
    ['GET / HTTP/1.1\r\nHost: example.com\r\n\r\n', 'rest'],
    ['GET / HTTP/1.0\r\n\r\n', 'rest'],
    [get('/', 'User-Agent: Googlebot/2.1'), 'bots'],
    [get('/', 'User-Agent: Robot'), 'bots'],
    [get('/', 'User-Agent: curl'), 'rest'],
    [get('/', 'X-Flag: '), 'rest'],
    [get('/', 'X-Flag: 0'), 'flag'],
    [get('/Users/7/EDIT/'), 'edit'],
    [get('/users;a/7/..;b/x/%65dit;v=1?q'), 'edit'],
    [get('/users/edit'), 'rest'],
    [get('/v12/x'), 'version'],
    [get('/x/../v1/'), 'version'],
    [get('/V1/'), 'rest'],
  ]
  t.same(
    await routes(
      t,
      rig,
      cases.map(([text]) => text),
    ),
    cases.map(([, route]) => route),
  )
})

t.test('tiers by range: the exact key first, then the longest prefix, then headers', async t => {
  const upstream = await httpUpstream(t)
  const tier = (name: string, capacity: number, members: object) => ({ name, capacity, ...members })
  const rig = await startRig(t, {
    upstream: upstream.url,
    trustProxy: ['loopback'],
    buckets: {
      client: {
        key: 'ip',
        rate: '1/h',
        capacity: 1,
        tiers: [
          tier('header', 2, { header: { 'x-plan': 'gold' } }),
          tier('wide', 3, { keys: ['10.0.0.0/8', '2001:db8::/32'] }),
          tier('narrow', 4, { keys: ['10.1.0.0/16', '2001:db8:5::/48'] }),
          tier('exact', 5, { keys: ['10.1.0.9', '2001:db8:5:0::/64'] }),
        ],
      },
    },
    routes: [{ name: 'api', mode: 'meter' }],
  })
  const cases: [address: string, capacity: number][] = [
    ['192.0.2.1', 1],
    ['10.2.0.1', 3],
    ['10.1.0.1', 4],
    ['10.1.0.9', 5],
    ['2001:db8:6::1', 3],
    ['2001:db8:5:1::1', 4],
    ['2001:db8:5::77', 5],
    ['2001:db9::1', 1],
  ]
  for (const [address, capacity] of cases) {
    const answer = await askOnce(t, rig, from(address))
    t.match(answer.header('ratelimit-policy'), `q=${capacity};`, address)
  }
  const gold = async (address: string) =>
    (await askOnce(t, rig, from(address, 'X-Plan: gold'))).header('ratelimit-policy')
  t.match(await gold('192.0.2.2'), 'q=2;')
  t.match(await gold('10.2.0.2'), 'q=3;', 'a range goes before a header')
})

const SKIPPED = {
  user: { key: { from: 'header:x-user', missing: 'skip' }, rate: '1/h', capacity: 1, weight: 5 },
  everyone: { key: 'all', rate: '10/s', capacity: 20 },
}

t.test('missing "skip": without the key the bucket does not apply', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: SKIPPED,
    routes: [
      { name: 'alone', match: { path: '/alone' }, mode: 'meter', buckets: ['user'] },
      { name: 'both', mode: 'meter' },
    ],
  })
  const ask = async (path: string, ...headers: string[]) => askOnce(t, rig, get(path, ...headers))
  t.equal((await ask('/alone', 'x-user: a')).status, 200)
  t.equal((await ask('/alone', 'x-user: a')).status, 429)
  for (let count = 0; count < 5; count += 1) {
    const free = await ask('/alone')
    t.equal(free.status, 200)
    t.equal(free.header('ratelimit-policy'), undefined, 'nothing limits it')
  }
  t.equal((await ask('/', 'x-user: b')).header('ratelimit-policy'), '"user";q=1;w=3600, "everyone";q=20;w=2')
  t.equal((await ask('/')).header('ratelimit-policy'), '"everyone";q=20;w=2')
  t.equal((await ask('/', 'x-user: b')).status, 429)
  t.equal((await ask('/', 'x-user: ')).status, 200, 'an empty value is none')
})

t.test('missing "skip": in shape a request without buckets waits only for its upstream', async t => {
  for (const shared of [undefined, 'store'] as const) {
    const held: (() => void)[] = []
    const upstream = await httpUpstream(t, (_req, res) => held.push(() => res.end('ok')))
    const rig = await startRig(
      t,
      {
        upstream: { url: upstream.url, maxInFlight: 1 },
        buckets: { user: SKIPPED.user },
        routes: [{ name: 'api', maxWait: '5s' }],
      },
      shared && { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' as const }) },
    )
    const clients = []
    for (let count = 0; count < 3; count += 1) {
      const client = await connect(t, rig)
      client.send(get(`/${count}`))
      if (count === 0) await upstream.until(() => held.length === 1)
      else await rig.until(({ queued }) => queued.length === count)
      clients.push(client)
    }
    await turns()
    t.same(upstream.requests, ['GET /0'], 'the gate has one place')
    for (let count = 0; count < 3; count += 1) {
      await upstream.until(() => held.length > count)
      held[count]!()
      t.equal((await clients[count]!.answer()).status, 200)
    }
    t.same(upstream.requests, ['GET /0', 'GET /1', 'GET /2'], 'in order')
    t.same(rig.waits, [0, 0, 0], 'no bucket delayed any')
  }
})

t.test('missing "skip": a pause that is longer than maxWait rejects a request without buckets', async t => {
  const upstream = await httpUpstream(t, (_req, res) => {
    res.writeHead(upstream.requests.length === 1 ? 503 : 200, { 'Retry-After': '10' }).end()
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, pauseOn: { status: [503] } },
    buckets: { user: SKIPPED.user },
    routes: [{ name: 'api', maxWait: '4s' }],
  })
  t.equal((await askOnce(t, rig, get())).status, 503)
  const rejected = await askOnce(t, rig, get())
  t.equal(rejected.status, 429)
  t.match(rejected.json().detail, /asks for a pause/)
  t.equal(rejected.header('retry-after'), '6')
  await pass(rig, 7_000, 1_000)
  const waiting = askOnce(t, rig, get())
  await rig.until(({ queued }) => queued.length === 1)
  await pass(rig, 10_000, 1_000)
  t.equal((await waiting).status, 200)
})

t.test('missing "skip": a dry run and its weight', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: SKIPPED,
    routes: [{ name: 'api', dryRun: true, buckets: ['user'] }],
  })
  for (let count = 0; count < 3; count += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(rig.rehearsed, [])
  for (let count = 0; count < 2; count += 1) await askOnce(t, rig, get('/', 'x-user: a'))
  t.same(rig.rehearsed, ['api would_reject'])
})
