import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { askOnce, type Client, connect, get, httpUpstream, pass, type Rig, startRig } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

/** Sends requests on connections of their own, each decided on before the next. */
async function queue(t: Teardown, rig: Rig, texts: readonly string[]): Promise<Client[]> {
  const clients: Client[] = []
  for (const text of texts) {
    const client = await connect(t, rig)
    const decided = (): number => rig.queued.length + rig.outcomes.length + rig.released.length
    const before = decided()
    client.send(text)
    await rig.until(() => decided() > before)
    clients.push(client)
  }
  return clients
}

const byUser = (user: string, ...more: string[]): string => get(`/${user}`, `X-User: ${user}`, ...more)

t.test('tiers: by key and by header; missing settings are inherited', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: {
      client: {
        key: 'header:x-user',
        rate: '1/h',
        capacity: 1,
        tiers: [
          { name: 'partners', keys: ['acme', 'initech'], capacity: 3 },
          { name: 'gold', header: { 'X-Plan': 'gold' }, rate: '2/h', capacity: 2 },
        ],
      },
    },
    routes: [{ name: 'api', mode: 'meter', buckets: ['client'] }],
  })
  const admitted = async (...text: [string, ...string[]]): Promise<number> => {
    for (let count = 0; ; count += 1) if ((await askOnce(t, rig, byUser(...text))).status === 429) return count
  }
  t.equal(await admitted('somebody'), 1)
  t.equal(await admitted('acme'), 3)
  t.equal(await admitted('initech'), 3, 'each key has its own')
  t.equal(await admitted('other', 'X-Plan: gold'), 2)
  const policy = async (...text: [string, ...string[]]): Promise<string | undefined> =>
    (await askOnce(t, rig, byUser(...text))).header('RateLimit-Policy')
  t.equal(await policy('acme'), '"client";q=3;w=10800')
  t.equal(await policy('third', 'X-Plan: gold'), '"client";q=2;w=3600')
})

t.test('a key that changes its tier keeps its level', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: {
      client: {
        key: 'header:x-user',
        rate: '1/h',
        capacity: 2,
        tiers: [{ name: 'gold', header: { 'x-plan': 'gold' }, capacity: 3 }],
      },
    },
    routes: [{ name: 'api', mode: 'meter', buckets: ['client'] }],
  })
  const statuses: number[] = []
  for (const plan of ['none', 'none', 'none', 'gold', 'gold']) {
    statuses.push((await askOnce(t, rig, byUser('a', `X-Plan: ${plan}`))).status)
  }
  t.same(statuses, [200, 200, 429, 200, 429])
})

t.test('weights: three to one', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: {
      client: {
        key: 'header:x-user',
        rate: '1000/s',
        capacity: 100,
        weight: 1,
        tiers: [{ name: 'gold', keys: ['g'], weight: 3 }],
      },
      everyone: { key: 'all', rate: '10/s', capacity: 100 },
    },
    routes: [{ name: 'api', buckets: ['client', 'everyone'] }],
  })
  await queue(
    t,
    rig,
    Array.from({ length: 40 }, (_, index) => byUser(index % 2 === 0 ? 'g' : 'b')),
  )
  await pass(rig, 2_000, 100)
  await upstream.until(({ requests }) => requests.length === 21)
  const gold = upstream.requests.slice(1).filter(request => request.endsWith('/g')).length
  t.equal(gold, 15, upstream.requests.join(' '))
})

t.test('overflow "fair": the newest request of the heaviest key is rejected to make room', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: {
      client: { key: 'header:x-user', rate: '1000/s', capacity: 100 },
      everyone: { key: 'all', rate: '1/s', capacity: 4, overflow: 'fair' },
    },
    routes: [{ name: 'api', buckets: ['client', 'everyone'] }],
  })
  const heavy = await queue(
    t,
    rig,
    ['h', 'h', 'h', 'h'].map(user => byUser(user)),
  )
  const light = await connect(t, rig)
  light.send(byUser('l'))
  const told = await heavy[3]!.answer()
  t.equal(told.status, 429)
  t.same(told.json()['violated-policies'], ['everyone'])
  t.ok(told.json().retryAfterMs! >= 1_000)
  t.equal((await askOnce(t, rig, byUser('h'))).status, 429, 'a key that has its share is rejected')
  rig.pacer.runAll()
  t.equal((await light.answer()).status, 200)
  await rig.finished(6)
  t.same([...rig.outcomes].sort(), [...Array(4).fill('api forwarded 200'), ...Array(2).fill('api rejected 429')])
})

t.test('blockFor and fill, over HTTP', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: {
      login: { key: 'header:x-user', rate: '1/s', capacity: 2, blockFor: '30s' },
      strict: { key: 'header:x-user', rate: '1/s', capacity: 2, overflow: 'fill' },
    },
    routes: [
      { name: 'login', match: { path: '/a' }, mode: 'meter', buckets: ['login'] },
      { name: 'strict', mode: 'meter', buckets: ['strict'] },
    ],
  })
  const ask = async (user: string): Promise<[number, string | undefined]> => {
    const answer = await askOnce(t, rig, byUser(user))
    return [answer.status, answer.header('Retry-After')]
  }
  for (const status of [200, 200]) t.equal((await ask('a'))[0], status)
  t.same(await ask('a'), [429, '30'], 'it overflows')
  rig.pacer.runUntil(29_000)
  t.same(await ask('a'), [429, '1'], 'a block lasts, and is not extended')
  rig.pacer.runUntil(30_000)
  t.equal((await ask('a'))[0], 200)
  for (const status of [200, 200, 429]) t.equal((await ask('b'))[0], status)
  rig.pacer.runUntil(30_900)
  t.same(await ask('b'), [429, '1'], 'and is full again')
  rig.pacer.runUntil(31_500)
  t.equal((await ask('b'))[0], 429)
  rig.pacer.runUntil(32_500)
  t.equal((await ask('b'))[0], 200)
})

t.test('explain: the deciding bucket, the position, the wait and the cost', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { client: { rate: '10/s', capacity: 3 }, everyone: { key: 'all', rate: '100/s', capacity: 100 } },
    routes: [{ name: 'api', buckets: ['client', 'everyone'], explain: true }],
  })
  const clients = await queue(t, rig, [get(), get(), get()])
  t.equal(
    (await askOnce(t, rig, get())).header('Shaper-Explain'),
    '"client";position=2;wait=0.0;cost=1;predicted=300.0',
  )
  rig.pacer.runAll()
  t.equal((await clients[0]!.answer()).header('Shaper-Explain'), '"client";position=0;wait=0.0;cost=1;predicted=0.0')
  t.equal(
    (await clients[2]!.answer()).header('Shaper-Explain'),
    '"client";position=1;wait=200.0;cost=1;predicted=200.0',
  )
})

t.test('reload: queued requests stay queued, at the new rate; levels stay; removed routes drain', async t => {
  const upstream = await httpUpstream(t)
  const other = await httpUpstream(t)
  const config = (rate: string, more: object = {}): object => ({
    upstream: upstream.url,
    buckets: { client: { rate, capacity: 5 } },
    routes: [{ name: 'api', buckets: ['client'] }],
    ...more,
  })
  const rig = await startRig(t, config('1/s'))
  const reload = (to: object): Promise<Map<string, number>> => rig.proxy.reload(parseConfig(JSON.stringify(to)))
  await queue(
    t,
    rig,
    ['/0', '/1', '/2', '/3', '/4'].map(path => get(path)),
  )
  t.equal((await askOnce(t, rig, get())).status, 429)
  await reload(config('10/s'))
  t.equal((await askOnce(t, rig, get())).status, 429, 'the level is as it was')
  rig.pacer.runUntil(100)
  await queue(t, rig, [get('/5')])
  rig.pacer.runUntil(200)
  await upstream.until(({ requests }) => requests.length === 3)
  await reload(config('1/s', { upstream: other.url, routes: [{ name: 'new', buckets: ['client'] }] }))
  await queue(t, rig, [get('/6')])
  // One at a time: what is released in one moment may overtake each other on its connections.
  for (let slot = 1; slot <= 4; slot += 1) {
    rig.pacer.runUntil(200 + slot * 1_000)
    await rig.until(({ outcomes }) => outcomes.length === 5 + slot)
  }
  await rig.finished(9)
  t.same(
    upstream.requests.map(request => request.slice(-2)),
    ['/0', '/1', '/2', '/3', '/4', '/5'],
    'in order, to where they were to go',
  )
  t.same(other.requests, ['GET /6'])
  t.equal(rig.outcomes.filter(outcome => outcome.includes('forwarded')).length, 7)
})

t.test('reload: a configuration that cannot be put into effect changes nothing', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, buckets: { client: { rate: '1/h', capacity: 1 } } })
  const bad = { url: 'https://127.0.0.1:1', tls: { ca: '/nowhere/ca.pem' } }
  const settings = parseConfig(JSON.stringify({ upstream: bad, buckets: { client: { rate: '1/s', capacity: 9 } } }))
  await t.rejects(rig.proxy.reload(settings), { code: 'ENOENT' })
  t.equal((await askOnce(t, rig, get())).status, 200)
  t.equal((await askOnce(t, rig, get())).status, 429)
})
