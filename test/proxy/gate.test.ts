/** `"upstream": "gate:"`: another proxy asks when a request may pass, and forwards it itself. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, connect, get, httpUpstream, pass, type Rig, type RigOptions, startRig, turns } from './harness.js'

type Test = Parameters<typeof startRig>[0]

const CLIENTS = { client: { key: 'ip', rate: '1/s', capacity: 3 } }
const gate = (more: object = {}) => ({
  upstream: 'gate:',
  trustProxy: ['loopback'],
  buckets: CLIENTS,
  routes: [{ name: 'gate' }],
  ...more,
})
const from = (address: string) => `X-Forwarded-For: ${address}`
const memory: RigOptions['shared'] = clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' })

/** Asks on a new connection. The answer comes when time has passed. */
function asking(t: Test, rig: Rig, ...headers: string[]) {
  return askOnce(t, rig, get('/', ...headers))
}

for (const [where, options] of [
  ['in memory', {}],
  ['with a store', { shared: memory }],
] as const) {
  t.test(`${where}, the answer is 204 at the slot, with the limits and the wait`, async t => {
    const rig = await startRig(t, gate(), options)
    const answers = []
    for (let count = 1; count <= 3; count += 1) {
      answers.push(asking(t, rig, from('192.0.2.1')))
      await rig.until(({ queued, released }) => queued.length + released.length >= count)
      await turns()
    }
    const other = asking(t, rig, from('192.0.2.2'))
    await pass(rig, 3_000, 10)
    const [first, second, third] = await Promise.all(answers)
    t.same([first!.status, second!.status, third!.status, (await other).status], [204, 204, 204, 204])
    t.equal(first!.header('x-shaper-wait'), '0')
    t.match(third!.header('x-shaper-wait'), /^(2000|199\d)(\.\d)?$/)
    t.equal(second!.header('ratelimit-policy'), '"client";q=3;w=3')
    t.match(second!.header('ratelimit'), /^"client";r=\d;t=\d$/)
    for (const name of ['content-length', 'content-type', 'transfer-encoding', 'server-timing'])
      t.equal(first!.header(name), undefined, name)
    t.equal(first!.body.length, 0)
    t.same(rig.outcomes, Array(4).fill('gate forwarded 204'))
    t.equal(rig.proxy.context.shaper.queued, 0)
  })
}

t.test('a rejection is 429 with the usual headers, or what the route says', async t => {
  for (const [given, status] of [
    [{}, 429],
    [{ gate: {} }, 429],
    [{ gate: { rejectStatus: 403 } }, 403],
  ] as const) {
    const rig = await startRig(t, gate({ routes: [{ name: 'gate', mode: 'meter', ...given }] }))
    for (let count = 0; count < 3; count += 1) t.equal((await asking(t, rig)).status, 204)
    const answer = await asking(t, rig)
    t.equal(answer.status, status)
    t.equal(answer.header('retry-after'), '1')
    t.equal(answer.header('ratelimit'), '"client";r=0;t=1')
    t.equal(answer.header('ratelimit-policy'), '"client";q=3;w=3')
    t.equal(answer.header('content-type'), 'application/problem+json')
    t.match(answer.json(), { status, 'violated-policies': ['client'], retryAfterMs: 1_000 })
    t.same(rig.outcomes.slice(-1), [`gate rejected ${status}`])
  }
})

t.test('the status of rejections goes before that of the bucket, and is that of expiries, too', async t => {
  const buckets = { client: { ...CLIENTS.client, status: 503 } }
  const route = { name: 'gate', maxWait: '1500ms', gate: { rejectStatus: 401 } }
  const rig = await startRig(t, gate({ buckets, routes: [route] }))
  const answers = []
  for (let count = 1; count <= 3; count += 1) {
    answers.push(asking(t, rig))
    await rig.until(({ queued, released, outcomes }) => queued.length + released.length + outcomes.length >= count)
    await turns()
  }
  const late = await answers[2]!
  t.equal(late.status, 401, 'it would have waited 2 s')
  const slower = { client: { ...buckets.client, rate: '1/m' } }
  await rig.proxy.reload(parseConfig(JSON.stringify(gate({ buckets: slower, routes: [route] }))))
  t.equal((await answers[1]!).status, 401, 'it would wait for a minute now')
  t.same(rig.outcomes, ['gate forwarded 204', 'gate rejected 401', 'gate expired 401'])
})

t.test('routes, keys, priorities and costs are of the request that is asked for', async t => {
  const rig = await startRig(t, {
    ...gate(),
    buckets: {
      paths: { key: ['method', 'host', 'query:user'], rate: '1/s', capacity: 10 },
      client: { key: 'ip', rate: '1/s', capacity: 10 },
    },
    routes: [
      {
        name: 'login',
        match: { path: '/login', method: 'POST', host: 'shop.example', header: { 'x-plan': 'g*' }, ip: '192.0.2.7' },
        mode: 'meter',
        cost: { POST: 4 },
        priority: { header: true },
      },
      { name: 'other', mode: 'meter' },
    ],
  })
  const keys: (readonly string[])[] = []
  const told: string[] = []
  rig.proxy.context.observer.arrived = ({ keys: found, cost, priority, method, target }) => {
    keys.push(found)
    told.push(`${method} ${target} cost ${cost} priority ${priority}`)
  }
  const plan = ['X-Plan: gold', from('192.0.2.7')]
  const traefik = ['X-Forwarded-Method: POST', 'X-Forwarded-Uri: /login?user=7', 'X-Forwarded-Host: shop.example']
  const nginx = ['X-Original-Method: POST', 'X-Original-URI: /login?user=7', 'X-Forwarded-Host: shop.example']
  await asking(t, rig, ...plan, ...traefik, 'Priority: u=1')
  await asking(t, rig, ...plan, ...nginx)
  await asking(t, rig, ...plan, ...nginx, ...traefik)
  await askOnce(t, rig, `HEAD /login?user=7 HTTP/1.1\r\nHost: shop.example\r\n${plan.join('\r\n')}\r\n\r\n`)
  await asking(t, rig, ...nginx)
  t.same(
    rig.outcomes.map(each => each.split(' ')[0]),
    ['login', 'login', 'login', 'other', 'other'],
  )
  t.same(told.slice(0, 4), [
    'POST /login?user=7 cost 4 priority 1',
    'POST /login?user=7 cost 4 priority 3',
    'POST /login?user=7 cost 4 priority 3',
    'HEAD /login?user=7 cost 1 priority 3',
  ])
  t.ok(keys[0]!.includes('POST\nshop.example\n7'))
  t.ok(keys[0]!.includes('192.0.2.7'))
})

t.test('only trusted hops say which request it is', async t => {
  const routes = [
    { name: 'admin', match: { path: '/admin' }, mode: 'off' },
    { name: 'rest', mode: 'meter' },
  ]
  const rig = await startRig(t, gate({ trustProxy: ['192.0.2.0/24'], routes }))
  const headers = ['X-Original-URI: /admin', 'X-Forwarded-Uri: /admin', from('192.0.2.9')]
  await askOnce(t, rig, get('/x', ...headers))
  t.same(rig.outcomes, ['rest forwarded 204'])
})

t.test('a client cannot say another thing than its proxy', async t => {
  const rig = await startRig(t, gate({ routes: [{ name: 'gate', mode: 'meter' }] }))
  for (const [ours, theirs] of [
    ['X-Original-URI: /a', 'X-Forwarded-Uri: /b'],
    ['X-Forwarded-Uri: /a', 'X-Original-URI: /b'],
    ['X-Original-URI: /a', 'X-Original-URI: /b'],
    ['X-Original-Method: GET', 'X-Forwarded-Method: POST'],
  ] as const) {
    const answer = await asking(t, rig, ours, theirs)
    t.equal(answer.status, 400)
    t.match(answer.json().detail, /differs from another header/)
  }
  for (const [header, detail] of [
    ['X-Original-Method: GET, POST', /method/],
    ['X-Forwarded-Uri: http://x/', /URI/],
    ['X-Forwarded-Host: a/b', /host/],
  ] as const) {
    const answer = await asking(t, rig, header)
    t.equal(answer.status, 400)
    t.match(answer.json().detail, detail)
  }
  // A route that is no gate reads none of it.
  t.same(new Set(rig.outcomes), new Set([' refused 400']))
  await asking(t, rig, 'X-Forwarded-Host: first.example, last.example')
  t.same(rig.outcomes.slice(-1), ['gate forwarded 204'])
})

t.test('other routes beside a gate work on the request itself', async t => {
  const upstream = await httpUpstream(t)
  const routes = [
    { name: 'gate', match: { path: '/asked' }, mode: 'meter' },
    { name: 'proxy', match: { path: '/own' }, mode: 'meter', upstream: upstream.url },
  ]
  const rig = await startRig(t, gate({ routes }))
  t.equal((await askOnce(t, rig, get('/own', 'X-Original-URI: /asked'))).status, 204)
  t.equal((await askOnce(t, rig, get('/own', 'X-Original-URI: /other'))).status, 200)
  t.equal((await askOnce(t, rig, get('/own', 'X-Original-URI: /a', 'X-Forwarded-Uri: /b'))).status, 200)
  t.equal((await askOnce(t, rig, get('/elsewhere', 'X-Original-URI: /own'))).status, 404)
  t.same(upstream.requests, ['GET /own', 'GET /own'])
})

t.test('a hang-up of the proxy gives the slot back', async t => {
  const buckets = { client: { key: 'ip', rate: '10/s', capacity: 50 } }
  const rig = await startRig(t, gate({ buckets }))
  await asking(t, rig)
  const clients = []
  for (let count = 1; count <= 50; count += 1) {
    const client = await connect(t, rig)
    client.send(get('/'))
    clients.push(client)
    if (count < 50) await rig.until(({ queued }) => queued.length === count)
  }
  // The bucket was full: the last one was rejected.
  await rig.finished(2)
  t.equal(rig.proxy.context.shaper.queued, 49)
  const staying = clients.slice(39, 49)
  for (const client of clients.slice(0, 39)) client.hangUp()
  await rig.finished(41)
  t.equal(rig.proxy.context.shaper.queued, 10)
  await pass(rig, 1_000, 10)
  for (const client of staying) t.equal((await client.answer()).status, 204)
  t.same(
    rig.released.slice(1).map(({ wait }) => Math.round(wait / 100)),
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    'they follow each other at the rate, from the first slot on',
  )
})

t.test('long: ten thousand hang-ups leak nothing', async t => {
  const buckets = { all: { key: 'all', rate: '1/h', capacity: 20_000 } }
  const routes = [{ name: 'gate', patience: 'none' }]
  const rig = await startRig(t, gate({ buckets, routes, limits: { maxQueued: 20_000 } }))
  await asking(t, rig)
  const { shaper, bucketTable } = rig.proxy.context
  for (let round = 1; round <= 100; round += 1) {
    const clients = await Promise.all(Array.from({ length: 100 }, () => connect(t, rig)))
    for (const client of clients) client.send(get('/'))
    await rig.until(({ queued }) => queued.length === round * 100)
    for (const client of clients) client.hangUp()
    await rig.finished(1 + round * 100)
  }
  t.equal(shaper.queued, 0)
  t.equal(rig.proxy.context.inProgress, 0)
  const [all] = [...bucketTable.all()]
  t.equal(all!.inFlight, 0)
  t.ok(all!.level(rig.pacer.now()) <= 1, 'the bucket holds the first request alone')
  t.equal(rig.outcomes.filter(outcome => outcome === 'gate cancelled 499').length, 10_000)
})

t.test('mode "off" and dry runs let everything pass', async t => {
  const rig = await startRig(
    t,
    gate({
      routes: [
        { name: 'off', match: { path: '/off' }, mode: 'off' },
        { name: 'dry', dryRun: true },
      ],
    }),
  )
  const off = await asking(t, rig, 'X-Original-URI: /off')
  t.equal(off.status, 204)
  t.equal(off.header('ratelimit'), undefined)
  t.equal(off.header('x-shaper-wait'), '0')
  for (let count = 0; count < 6; count += 1) t.equal((await asking(t, rig)).status, 204)
  t.same(rig.rehearsed, [...Array(2).fill('dry would_delay'), ...Array(3).fill('dry would_reject')])
})

t.test('`headers: false` leaves the limits out, and `explain` explains', async t => {
  const rig = await startRig(t, gate({ headers: false, routes: [{ name: 'gate', explain: true }] }))
  const answer = await asking(t, rig, 'Prefer: wait=5')
  t.equal(answer.header('ratelimit'), undefined)
  t.equal(answer.header('x-shaper-wait'), '0')
  t.match(answer.header('shaper-explain'), /^"client";position=0/)
  t.equal(answer.header('preference-applied'), 'wait=5')
})

t.test('a connection serves one question after another, with bodies and without', async t => {
  const rig = await startRig(t, gate({ routes: [{ name: 'gate', mode: 'off' }] }))
  const client = await connect(t, rig)
  for (let count = 0; count < 3; count += 1) {
    t.equal((await client.ask(get('/'))).status, 204)
    const body = `POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello`
    t.equal((await client.ask(body)).status, 204)
  }
  t.notOk(client.ended)
  const upgrade = await client.ask(get('/', 'Connection: upgrade', 'Upgrade: websocket'))
  t.equal(upgrade.status, 204, 'the proxy asks about a WebSocket')
  await client.end()
  t.same(rig.outcomes, Array(7).fill('gate forwarded 204'))
})

t.test('a reload goes on with those that wait', async t => {
  const rig = await startRig(t, gate())
  await asking(t, rig)
  const second = asking(t, rig)
  await rig.until(({ queued }) => queued.length === 1)
  const next = gate({ listen: '127.0.0.1:0', routes: [{ name: 'gate', gate: { rejectStatus: 403 } }] })
  await rig.proxy.reload(parseConfig(JSON.stringify(next)))
  await pass(rig, 1_000, 100)
  t.equal((await second).status, 204)
})
