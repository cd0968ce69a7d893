/** Answers about single keys: what a newcomer would wait, overrides, resets, and finding keys. */
import type { ServerResponse } from 'node:http'
import t from 'tap'
import type { KeyState } from '../../src/admin/keys/key-state.js'
import type { KeySearch } from '../../src/admin/keys/search.js'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { keyLines } from '../../src/cli/commands/key.js'
import { boundedKey } from '../../src/proxy/http/meant-key.js'
import { hashedKey } from '../../src/proxy/routing/key.js'
import { httpUpstream, pass, turns } from '../proxy/harness.js'
import { type AdminRig, startAdminRig } from './rig.js'

const BUCKETS = {
  client: { key: 'header:x-user', rate: '50/s', capacity: 1_000 },
  everyone: { key: 'all', rate: '10/s', capacity: 10_000 },
}

async function keyOf(rig: AdminRig, bucket: string, key: string): Promise<KeyState> {
  const answer = await rig.get(`/buckets/${bucket}/${encodeURIComponent(key)}`)
  if (answer.status !== 200) throw new Error(await answer.text())
  return (await answer.json()) as KeyState
}

function put(rig: AdminRig, path: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(rig.admin.url + path, {
    method: 'PUT',
    headers: { 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  })
}

/** Sends requests of a user without waiting for their answers, and resolves when all wait or have left. */
async function send(
  rig: AdminRig,
  user: string,
  count: number,
  headers: Record<string, string> = {},
): Promise<Response[]> {
  const before = (await rig.snapshot()).buckets[0]!.offered
  const answers = Array.from({ length: count }, () => fetch(rig.proxy.url, { headers: { 'x-user': user, ...headers } }))
  pending.push(...answers)
  while ((await rig.snapshot()).buckets[0]!.offered < before + count) await turns(2)
  return []
}

const pending: Promise<Response>[] = []
t.teardown(() => Promise.allSettled(pending))

t.test('a key whose own bucket is free waits for the shared one, wherever its wait is shown', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: BUCKETS, routes: [{ name: 'api' }] })
  await send(rig, 'flood', 40)
  // The flood has one request a round, as every other client.
  await send(rig, 'quiet', 1)
  rig.pacer.runUntil(500)
  await turns()
  // What the server answers may be 200 ms old.
  await new Promise(resolve => setTimeout(resolve, 250))
  const { buckets, routes } = (await (await rig.get('/buckets')).json()) as Snapshot
  const [client] = buckets
  const waits = new Map(client!.fullest.map(({ key, predictedWaitMs }) => [key, predictedWaitMs]))
  // 35 of the flood wait: it left alone or in turns.
  t.match(waits.get('flood'), Number)
  const flood = await keyOf(rig, 'client', 'flood')
  t.equal(flood.predictedWaitMs, waits.get('flood'), 'the same everywhere')
  const slots = flood.waiting
  t.equal(flood.predictedWaitMs, 100 * (slots + 1), 'behind its own')
  t.match(flood, { bucket: 'client', key: 'flood', rate: 50, capacity: 1_000, waiting: slots, level: slots + 1 })
  t.same(flood.routes, { api: { predictedWaitMs: 100 * (slots + 1), waitsFor: 'bucket everyone', assumed: [] } })
  const stranger = await keyOf(rig, 'client', 'never seen')
  t.match(stranger, { level: 0, waiting: 0, recent: [] })
  t.ok(stranger.predictedWaitMs > 0 && stranger.predictedWaitMs <= 200, `a turn: ${stranger.predictedWaitMs} ms`)
  t.equal(routes[0]!.predictedWaitMs, stranger.predictedWaitMs)
  let left = Number.NaN
  const sentAt = rig.pacer.now()
  const answer = fetch(rig.proxy.url, { headers: { 'x-user': 'never seen' } }).then(() => {
    left = rig.pacer.now() - sentAt
  })
  const { length } = upstream.requests
  await turns(40)
  for (let at = 600; at <= 1_500 && Number.isNaN(left); at += 100) {
    rig.pacer.runUntil(at)
    await turns(40)
  }
  t.ok(upstream.requests.length > length)
  await answer
  t.equal(left, stranger.predictedWaitMs, 'and so long it waits')
  const all = await keyOf(rig, 'everyone', 'all')
  t.same(all.routes.api!.assumed, ['client'])
  await drain(rig)
})

/** Lets everything leave. */
async function drain(rig: AdminRig): Promise<void> {
  while ((await rig.snapshot()).queued > 0) {
    rig.pacer.runUntil(rig.pacer.now() + 1_000)
    await turns(10)
  }
}

t.test('keys in other buckets follow where they can, and else are assumed to be idle', async t => {
  const buckets = {
    login: { key: ['header:x-user', 'route'], rate: '5/s', capacity: 100 },
    user: { key: 'header:x-user', rate: '5/s', capacity: 100 },
    tenant: { key: 'header:x-tenant', rate: '2/s', capacity: 100 },
    everyone: { key: 'all', rate: '100/s', capacity: 1_000 },
  }
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets,
    routes: [{ name: 'api', buckets: ['login', 'user', 'tenant', 'everyone'] }],
  })
  const idle = await keyOf(rig, 'login', 'ann\napi')
  t.same(idle.routes.api, { predictedWaitMs: 0, assumed: ['tenant'] })
  await send(rig, 'bob', 20, { 'x-tenant': 'acme' })
  const ann = await keyOf(rig, 'login', 'ann\napi')
  t.same(
    ann.routes.api,
    { predictedWaitMs: 10, waitsFor: 'bucket everyone', assumed: ['tenant'] },
    'the tenant of others says nothing of hers',
  )
  const bob = await keyOf(rig, 'user', 'bob')
  t.same(
    bob.routes.api!.assumed,
    ['login', 'tenant'].filter(name => bob.routes.api!.assumed.includes(name)),
  )
  t.equal(bob.predictedWaitMs, 10_000, 'those of his who wait go through the bucket of their tenant')
  const acme = await keyOf(rig, 'tenant', 'acme')
  t.same(acme.routes.api!.assumed, ['login', 'user'])
  await drain(rig)
})

t.test('a newcomer that would be rejected is told so, and how the latest requests ended', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: { client: { key: 'header:x-user', rate: '5/s', capacity: 3 } },
    routes: [{ name: 'api' }, { name: 'meter', mode: 'meter', match: { path: '/m' } }],
  })
  await send(rig, 'a', 5)
  await turns(20)
  const state = await keyOf(rig, 'client', 'a')
  t.match(state, { level: 3, waiting: 2, queued: 2, inFlight: Number })
  t.match(state.routes.api, {
    predictedWaitMs: 600,
    rejected: { reason: 'overflow', bucket: 'client', retryAfterMs: 200 },
  })
  t.match(state.routes.meter, { predictedWaitMs: 0, rejected: { reason: 'overflow' } })
  const rejected = state.recent.filter(({ outcome }) => outcome === 'rejected')
  t.equal(rejected.length, 2)
  t.match(rejected[0], { route: 'api', status: 429, waitMs: 0, reason: 'overflow', bucket: 'client' })
  t.ok(Math.abs(rejected[0]!.at - Date.now()) < 60_000)
  await drain(rig)
  await turns(20)
  const { recent } = await keyOf(rig, 'client', 'a')
  t.same(
    recent.filter(({ outcome }) => outcome === 'forwarded').map(({ waitMs }) => waitMs),
    [0, 200, 400],
  )
  t.equal((await rig.get('/buckets/none/a')).status, 404)
})

t.test('keys are found by a text and by the hash of the log', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: {
      client: { key: 'header:x-user', rate: '5/s', capacity: 10 },
      ip: { key: 'ip', rate: '1000/s', capacity: 100, burst: 100 },
    },
    routes: [{ name: 'api', buckets: ['client', 'ip'] }],
  })
  for (const user of ['alice@example.com', 'malice', 'Alice', 'bob']) {
    await (await fetch(rig.proxy.url, { headers: { 'x-user': user } })).text()
    await turns(2)
  }
  const search = async (text: string): Promise<KeySearch> =>
    (await (await rig.get(`/buckets?q=${encodeURIComponent(text)}`)).json()) as KeySearch
  const names = ({ buckets }: KeySearch): string[] =>
    buckets.flatMap(({ name, fullest }) => fullest.map(({ key }) => `${name} ${key}`))
  t.same(names(await search('alice')), ['client Alice', 'client alice@example.com', 'client malice'])
  t.same(names(await search('127.0')), ['ip 127.0.0.1'])
  t.same(names(await search(hashedKey('bob'))), ['client bob'])
  t.same(names(await search('nobody')), [])
  t.equal((await rig.get('/buckets?q=')).status, 400)
  t.equal((await rig.get(`/buckets?q=${'x'.repeat(129)}`)).status, 400)
  const many = rig.proxy.context
  for (let n = 0; n < 700; n += 1)
    many.bucketTable.find({ name: 'client', rate: 1e-9, capacity: 1 }, `n${n}`, 0)!.fill(1, 0)
  const [found] = (await search('n')).buckets
  t.equal(found!.fullest.length, 20)
  t.equal(found!.hasMore, true)
  t.match(await keyOf(rig, 'ip', '::ffff:127.0.0.1'), { key: '127.0.0.1' }, 'an address as it is written')
  t.match(await keyOf(rig, 'ip', '2001:DB8::1'), { key: /^2001:db8:.*\/64$/ })
})

t.test('an override changes a key until it ends, is listed and logged, and survives a reload', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: BUCKETS,
    routes: [{ name: 'api', buckets: ['client'] }],
  })
  const told: string[] = []
  rig.proxy.context.observer.overridden = ({ bucket, key }, what) => told.push(`${bucket} ${key} ${what}`)
  const answer = await put(rig, '/buckets/client/a', { rate: '1/s', capacity: 3, until: '1h' })
  t.equal(answer.status, 200)
  const { until, ...rest } = (await answer.json()) as { until: string }
  t.same(rest, { bucket: 'client', key: 'a', rate: 1, capacity: 3 })
  t.ok(Math.abs(Date.parse(until) - Date.now() - 3_600_000) < 60_000)
  await send(rig, 'a', 4)
  await turns(20)
  t.match(await keyOf(rig, 'client', 'a'), {
    rate: 1,
    capacity: 3,
    waiting: 2,
    predictedWaitMs: 3_000,
    override: { rate: 1, capacity: 3 },
  })
  t.match(await keyOf(rig, 'client', 'b'), { rate: 50, capacity: 1_000 })
  const listed = (await (await rig.get('/overrides')).json()) as { overrides: object[] }
  t.match(
    listed.overrides,
    [{ bucket: 'client', key: 'a', rate: 1, capacity: 3, until }],
    'the end stays as it was told',
  )
  t.match((await rig.snapshot()).buckets[0]!.fullest[0], { key: 'a', overriddenUntil: until })

  const { parseConfig } = await import('../../src/config/load.js')
  const next = parseConfig(
    JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: 'echo:',
      buckets: { ...BUCKETS, client: { ...BUCKETS.client, rate: '20/s' } },
      routes: [{ name: 'api', buckets: ['client'] }],
    }),
  )
  await rig.proxy.reload(next)
  t.match(await keyOf(rig, 'client', 'a'), { rate: 1, capacity: 3 })
  t.match(await keyOf(rig, 'client', 'b'), { rate: 20 })

  const changed = await put(rig, '/buckets/client/a', { rate: 100, until: '2035-01-01T01:00:00+01:00' })
  t.equal(changed.status, 200)
  t.match(await changed.json(), { until: '2035-01-01T00:00:00.000Z' })
  t.match(await keyOf(rig, 'client', 'a'), { rate: 100, capacity: 1_000 })
  t.equal((await put(rig, '/buckets/client/a', { until: 'now' })).status, 200)
  t.match(await keyOf(rig, 'client', 'a'), { rate: 20, capacity: 1_000 })
  t.equal((await put(rig, '/buckets/client/a', { until: 'now' })).status, 404)
  t.same(told, ['client a set', 'client a set', 'client a ended'])

  t.equal((await put(rig, '/buckets/client/c', { capacity: 7, until: '200ms' })).status, 200)
  const overridden = await keyOf(rig, 'client', 'c')
  // On a busy machine it may have ended by then.
  if (told.length < 5) t.match(overridden, { capacity: 7 })
  while (told.length < 5) await new Promise(resolve => setTimeout(resolve, 5))
  t.equal(told.at(-1), 'client c ended', 'it ends by itself')
  t.match(await keyOf(rig, 'client', 'c'), { capacity: 1_000 })
  await drain(rig)
})

t.test('what is wrong with an override is said, with the remedy', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: BUCKETS })
  const wrong: [body: unknown, status: number, detail: RegExp][] = [
    [{ rate: '1/s' }, 400, /"until" is missing: .*use e\.g\. "30m"/],
    [{ until: '1h' }, 400, /"rate" and "capacity" are missing/],
    [{ rate: '1/s', until: 'tomorrow' }, 400, /^until: "tomorrow" is not a duration/],
    [{ rate: '1/s', until: '2001-01-01T00:00:00Z' }, 400, /has passed/],
    [{ rate: '1/s', until: '2031-01-01T00:00:00' }, 400, /with its zone/],
    [{ rate: '1/s', until: '0s' }, 400, /"now" ends an override/],
    [{ rate: '1/s', until: '20000d' }, 400, /ten years/],
    [{ rate: 'fast', until: '1h' }, 400, /^rate: "fast" is not a rate/],
    [{ rate: -1, until: '1h' }, 400, /^rate: -1 is not a rate/],
    [{ capacity: 0, until: '1h' }, 400, /^capacity: 0 is not/],
    ['{"capacity":1e999,"until":"1h"}', 400, /^capacity: /],
    [{ rate: '1/s', until: 'now' }, 400, /leave "rate" and "capacity" out/],
    [{ rates: '1/s', until: '1h' }, 400, /did you mean "rate"\?/],
    ['{', 400, /not JSON/],
    ['[]', 400, /not a JSON object/],
    [`{"until":"${'x'.repeat(5_000)}"}`, 413, /4096 bytes/],
  ]
  for (const [body, status, detail] of wrong) {
    const answer = await put(rig, '/buckets/client/a', body)
    t.equal(answer.status, status, JSON.stringify(body).slice(0, 60))
    t.match(((await answer.json()) as { detail: string }).detail, detail)
  }
  const right = { rate: '1/s', until: '1h' }
  t.equal((await put(rig, '/buckets/none/a', right)).status, 404)
  t.equal((await put(rig, '/buckets/client/a/b', right)).status, 400)
  t.equal((await put(rig, '/buckets/client/a', right, { 'content-type': 'text/plain' })).status, 415)
  t.equal((await put(rig, '/buckets/client/a', right, { origin: 'http://evil.example' })).status, 403)
  t.equal((await put(rig, '/buckets/adaptive/all', right)).status, 409)
  const right2027 = await put(rig, '/buckets/client/a', { rate: '1/s', until: '2027-02-30T00:00:00Z' })
  t.equal(right2027.status, 400, 'there is no such day')
  t.same(await (await rig.get('/overrides')).json(), { overrides: [] })
})

t.test('a newcomer whose turn comes after the end of an override is told so', async t => {
  const user = { key: 'header:x-user', rate: '1/s', capacity: 100 }
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: { user }, routes: [{ buckets: ['user'] }] })
  await rig.source.override({ bucket: 'user', key: 'a', rate: 0.004, endsIn: 10_000 })
  const answers = Array.from({ length: 50 }, () => fetch(rig.proxy.url, { headers: { 'x-user': 'a' } }))
  while ((await rig.snapshot()).queued < 49) await turns()
  // 40 pass in the 10 s of the override, and 10 after it.
  const { predictedWaitMs } = (await rig.source.key('user', 'a'))!
  t.ok(Math.abs(predictedWaitMs - 20_000) < 1, `told ${predictedWaitMs}`)
  await pass(rig, 20_000, 200)
  await Promise.all(answers)
})

t.test('at most 1,000 overrides last', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: BUCKETS })
  for (let n = 0; n < 1_000; n += 1)
    await rig.source.override({ bucket: 'client', key: `k${n}`, rate: 1, endsIn: 60_000 })
  const more = await put(rig, '/buckets/client/more', { rate: '1/s', until: '1h' })
  t.equal(more.status, 409)
  t.equal((await put(rig, '/buckets/client/k7', { rate: '2/s', until: '1h' })).status, 200, 'one may be replaced')
  await put(rig, '/buckets/client/k8', { until: 'now' })
  t.equal((await put(rig, '/buckets/client/more', { rate: '1/s', until: '1h' })).status, 200)
})

t.test('what holds a newcomer besides its rates is told with its wait', async t => {
  const held: ServerResponse[] = []
  const upstream = await httpUpstream(t, (_req, res) => held.push(res))
  const rig = await startAdminRig(t, {
    upstream: { url: upstream.url, maxInFlight: 2 },
    buckets: {
      client: { key: 'header:x-user', rate: '50/s', capacity: 100, maxInFlight: 1 },
      conn: { key: 'all', maxInFlight: 10 },
    },
    routes: [{ name: 'api' }],
  })
  t.match((await keyOf(rig, 'client', 'a')).heldBy, undefined)
  await send(rig, 'a', 2)
  await upstream.until(() => held.length === 1)
  rig.pacer.runUntil(1_000)
  await turns(20)
  const full = 'bucket client has 1 of 1 in flight'
  const state = await keyOf(rig, 'client', 'a')
  t.same([state.heldBy, state.routes.api!.heldBy, state.inFlight, state.maxInFlight], [[full], [full], 1, 1])
  t.match(keyLines(state)[2], /^a newcomer waits at least [\d.]+ ms$/)
  t.equal(keyLines(state)[3], `because: ${full}`)
  t.equal((await keyOf(rig, 'client', 'b')).heldBy, undefined)
  await send(rig, 'b', 1)
  await upstream.until(() => held.length === 2)
  const upstreamFull = `${upstream.url} is full, with 2 of 2 in flight`
  t.same((await keyOf(rig, 'client', 'c')).heldBy, [upstreamFull])
  const { upstreams, buckets } = await rig.snapshot()
  t.match(upstreams[0], { inFlight: 2, maxInFlight: 2 })
  t.match(buckets[0]!.fullest.find(({ key }) => key === 'a')!.heldBy, [upstreamFull, full])
  for (let left = 3; left > 0; left -= 1) {
    await upstream.until(() => held.length > 0)
    held.shift()!.end('ok')
    await turns(40)
    rig.pacer.runUntil(rig.pacer.now() + 1_000)
  }
})

t.test('the wait of a key is told with the bucket that it comes from', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: BUCKETS, routes: [{ name: 'api' }] })
  await put(rig, '/buckets/client/slow', { rate: '1/s', until: '1h' })
  await send(rig, 'slow', 5)
  t.equal((await keyOf(rig, 'client', 'slow')).routes.api!.waitsFor, 'bucket client')
  await send(rig, 'flood', 30)
  const flood = await keyOf(rig, 'client', 'flood')
  t.equal(flood.routes.api!.waitsFor, 'bucket everyone')
  t.equal(keyLines(flood)[3], 'because: bucket everyone')
  await drain(rig)
})

t.test('a bucket without a rate is told without one', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: { conn: { key: 'all', maxInFlight: 2 } },
    routes: [{ name: 'api' }],
  })
  const state = await keyOf(rig, 'conn', 'all')
  t.equal(state.rate, null)
  t.match(keyLines(state)[1], /^level 0 of any amount, any rate; /)
  t.same((await rig.snapshot()).buckets[0]!.rate, null)
  const reset = await fetch(`${rig.admin.url}/buckets/conn/all`, { method: 'DELETE' })
  t.same(await reset.json(), { forgotten: 0, waiting: 0, level: 0 })
  t.equal(await rig.metric('shaper_limit{bucket="conn"}'), undefined)
  t.equal(await rig.metric('shaper_capacity{bucket="conn"}'), undefined)
  t.equal((await put(rig, '/buckets/conn/all', { capacity: 5, until: '1h' })).status, 400)
})

t.test('at the start and the end of an override who would exceed maxWait expires', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: { client: { key: 'header:x-user', rate: '1/s', capacity: 60 } },
    routes: [{ name: 'api', maxWait: '5s' }],
  })
  await put(rig, '/buckets/client/a', { rate: '10/s', until: '1h' })
  await send(rig, 'a', 20)
  t.equal((await keyOf(rig, 'client', 'a')).waiting, 19)
  await put(rig, '/buckets/client/a', { until: 'now' })
  await turns(20)
  const { waiting } = await keyOf(rig, 'client', 'a')
  t.ok(waiting === 4 || waiting === 5, `${waiting} can leave within 5 s`)
  await drain(rig)
})

t.test('an override is refused for a key that no request can have', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: {
      ip: { key: 'ip', rate: '5/s', capacity: 10 },
      client: { key: 'header:x-user', rate: '5/s', capacity: 10 },
      everyone: { key: 'all', rate: '10/s', capacity: 10 },
    },
    routes: [{ name: 'api' }],
  })
  const set = { rate: '1/s', until: '1h' }
  const wrong: [path: string, detail: RegExp][] = [
    ['everyone/some', /it has one key, "all"/],
    ['ip/alice', /use an address or an IPv6 network of 64 bits/],
    ['ip/2001:db8::%2F48', /network of 64 bits/],
    ['ip/10.0.0.0%2F8', /use an address/],
  ]
  for (const [path, detail] of wrong) {
    const answer = await put(rig, `/buckets/${path}`, set)
    t.equal(answer.status, 400, path)
    t.match(((await answer.json()) as { detail: string }).detail, detail)
  }
  const long = 'x'.repeat(200)
  const stored = '2001:db8:0:0::/64'
  for (const [path, key] of [
    ['ip/2001:db8::%2F64', stored],
    ['ip/2001:DB8::1', stored],
    ['ip/10.1.2.3', '10.1.2.3'],
    ['everyone/all', 'all'],
    [`client/${long}`, boundedKey(long)],
  ] as const) {
    const answer = await put(rig, `/buckets/${path}`, set)
    t.match(await answer.json(), { key }, path)
  }
  t.ok((await keyOf(rig, 'ip', '2001:db8::/64')).override, 'a network is the stored one')
  rig.proxy.context.bucketTable.find({ name: 'ip', rate: 1e-9, capacity: 1 }, stored, 0)!.fill(1, 0)
  const found = (await (await rig.get('/buckets?q=2001:db8::1')).json()) as KeySearch
  t.equal(found.buckets[0]?.fullest[0]?.key, stored)

  const { parseConfig } = await import('../../src/config/load.js')
  await rig.proxy.reload(
    parseConfig(
      JSON.stringify({
        ...{ listen: '127.0.0.1:0', upstream: 'echo:' },
        buckets: { everyone: { key: 'all', rate: '10/s', capacity: 10 } },
        routes: [{ name: 'api' }],
      }),
    ),
  )
  t.equal((await put(rig, `/buckets/ip/10.1.2.3`, { until: 'now' })).status, 200, 'its bucket is no more')
  t.equal((await put(rig, `/buckets/ip/10.1.2.3`, { until: 'now' })).status, 404)
})

t.test('a key that no request can have is 400, whether it is asked for, reset or its override ended', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: {
      ip: { key: 'ip', rate: '5/s', capacity: 10 },
      client: { key: 'header:x-user', rate: '5/s', capacity: 10 },
      everyone: { key: 'all', rate: '10/s', capacity: 10 },
      user: { key: ['jwt:https://a/b', 'body:c'], rate: '5/s', capacity: 10 },
    },
    identity: { jwt: { secret: 'x'.repeat(32) } },
    routes: [{ name: 'api' }],
  })
  const ask = async (method: string, path: string): Promise<[status: number, detail: string | undefined]> => {
    const answer =
      method === 'PUT' ? await put(rig, path, { until: 'now' }) : await fetch(rig.admin.url + path, { method })
    return [answer.status, ((await answer.json()) as { detail?: string }).detail]
  }
  for (const [path, detail] of [
    ['everyone/x', '"x" is no key of everyone: it has one key, "all"'],
    ['everyone/', '"" is no key of everyone: it has one key, "all"'],
    ['everyone/%20all', '" all" is no key of everyone: it has one key, "all"'],
    [`everyone/%23${'x'.repeat(43)}`, `"#${'x'.repeat(43)}" is no key of everyone: it has one key, "all"`],
    ['ip/notanip', '"notanip" is no key of ip: use an address or an IPv6 network of 64 bits'],
    ['ip/', '"" is no key of ip: use an address or an IPv6 network of 64 bits'],
    ['ip/2001:db8::%2F48', '"2001:db8::/48" is no key of ip: use an address or an IPv6 network of 64 bits'],
    ['client/', '"" is no key of client: no value is empty'],
    ['client/a%0Ab', 'a key of client has one part (header:x-user); quote it if it has spaces'],
    [
      'user/a',
      'a key of user has 2 parts (jwt:https://a/b, body:c); write them one after another, as in "shaper key user HTTPS://A/B C", or in a URL with %0A between them',
    ],
  ] as const) {
    for (const method of ['GET', 'DELETE', 'PUT'])
      t.same(await ask(method, `/buckets/${path}`), [400, detail], `${method} ${path}`)
  }
  for (const path of ['everyone/all', 'ip/10.1.2.3', 'ip/2001:DB8::1', 'ip/2001:db8::%2F64', 'client/x', 'client/%20'])
    for (const method of ['GET', 'DELETE'])
      t.equal((await ask(method, `/buckets/${path}`))[0], 200, `${method} ${path}`)
  t.equal((await ask('GET', '/buckets/absent/'))[0], 404)
  // Of such a kind before a reload.
  rig.proxy.context.bucketTable.find({ name: 'everyone', rate: 1e-9, capacity: 1 }, 'old', 0)!.fill(1, 0)
  t.equal((await ask('GET', '/buckets/everyone/old'))[0], 200, 'one that is known is shown')
})
