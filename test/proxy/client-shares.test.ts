/** What one client may take of what the proxy has for all. */
import { connect as tcpConnect } from 'node:net'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { OpenConnections } from '../../src/proxy/client/open-connections.js'
import type { OpenConnection } from '../../src/proxy/http/client.js'
import { createTrust, peerOf } from '../../src/proxy/http/client-address.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import {
  askOnce,
  type Client,
  connect,
  get,
  httpUpstream,
  OFF,
  ONE_A_SECOND,
  occupy,
  type RigOptions,
  startRig,
  TLS,
  turns,
} from './harness.js'

const OTHER = { from: '127.0.0.2' }

t.test(`connectionsPerClient bounds the connections of one address, and of no other`, async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { connectionsPerClient: 3 }, ...OFF })
  const early: Client[] = []
  for (let count = 0; count < 3; count += 1) early.push(await connect(t, rig))
  for (const client of early) t.equal((await client.ask(get())).status, 200)
  const late = await connect(t, rig)
  const answer = await late.ask(get('/late'))
  t.equal(answer.status, 503)
  t.equal(answer.header('retry-after'), '1')
  t.equal(answer.header('connection'), 'close')
  t.equal(answer.json().detail, 'there are too many connections')
  await late.end()
  for (let count = 0; count < 3; count += 1) {
    t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 200, 'another address has its own share')
  }
  t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 503)
  for (const client of early) t.equal((await client.ask(get())).status, 200, 'those that are open stay')
  early[0]!.hangUp()
  await turns(50)
  t.equal((await (await connect(t, rig)).ask(get())).status, 200, 'one has left')
  t.notOk(upstream.requests.includes('GET /late'))
})

t.test(`connectionsPerClient follows a reload, and does not apply to trusted hops`, async t => {
  const upstream = await httpUpstream(t)
  const config = (connectionsPerClient: number, trustProxy: unknown = false) => {
    const limits = { connectionsPerClient }
    return { listen: '127.0.0.1:0', upstream: upstream.url, trustProxy, limits, ...OFF }
  }
  const rig = await startRig(t, config(1))
  const reload = (next: object) => rig.proxy.reload(parseConfig(JSON.stringify(next)))
  const ask = async () => (await (await connect(t, rig)).ask(get())).status
  t.equal(await ask(), 200)
  t.equal(await ask(), 503)
  await reload(config(2))
  t.equal(await ask(), 200)
  t.equal(await ask(), 503)
  await reload(config(2, ['loopback']))
  for (let count = 0; count < 5; count += 1) t.equal(await ask(), 200)
  await reload(config(2, 1))
  t.equal(await ask(), 200)
  await reload(config(2))
  t.equal(await ask(), 503, 'those that came while it was trusted count')
})

t.test(`far above connectionsPerClient, connections of that address are closed unread`, async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { connectionsPerClient: 2 }, ...OFF })
  const silent = await Promise.all(Array.from({ length: 2 + 256 }, () => connect(t, rig)))
  await turns(50)
  const unheard = await connect(t, rig)
  await unheard.end()
  t.equal(unheard.bytes, 0)
  t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 200)
  for (const client of silent) client.hangUp()
  await turns(50)
  t.equal((await (await connect(t, rig)).ask(get())).status, 200)
})

t.test(`far above connectionsPerClient, TLS handshakes of that address are not begun`, async t => {
  const upstream = await httpUpstream(t)
  const limits = { connectionsPerClient: 2, headersTimeout: '5m' }
  const rig = await startRig(t, { ...TLS, upstream: upstream.url, limits, ...OFF })
  const silent = await Promise.all(Array.from({ length: 2 + 256 }, () => connect(t, rig)))
  await turns(50)
  const ended = new Promise<void>(resolve => {
    const socket = tcpConnect({ port: rig.port, host: '127.0.0.1' }).on('error', () => undefined)
    socket.resume().once('close', () => resolve())
  })
  await ended
  t.equal((await (await connect(t, rig, { tls: true, ...OTHER })).ask(get())).status, 200)
  for (const client of silent) client.hangUp()
  await turns(50)
  for (const status of [200, 200, 503]) {
    t.equal((await (await connect(t, rig, { tls: true })).ask(get())).status, status)
  }
})

t.test(`at maxConnections the connection that has been idle longest makes room`, async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxConnections: 40 }, ...OFF })
  const idle: Client[] = []
  for (let count = 0; count < 40; count += 1) {
    const client = await connect(t, rig)
    await client.ask(get())
    idle.push(client)
  }
  t.equal((await idle[0]!.ask(get())).status, 200)
  const next = await connect(t, rig, OTHER)
  t.equal((await next.ask(get())).status, 200)
  await idle[1]!.end()
  t.equal(idle[1]!.rest, '')
  const others = await Promise.all(Array.from({ length: 9 }, () => connect(t, rig, OTHER)))
  for (const client of others) t.equal((await client.ask(get())).status, 200)
  for (const client of idle.slice(2, 11)) await client.end()
  await turns(50)
  t.notOk(idle[0]!.ended, 'it has been used since')
  t.notOk(
    idle.slice(11).some(({ ended }) => ended),
    'as many as have come were closed',
  )
  t.ok(rig.outcomes.every(outcome => outcome === 'all forwarded 200'))
})

t.test('at maxConnections connections that have never sent a byte make room, after those that have', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxConnections: 3 }, ...OFF })
  const silent = [await connect(t, rig), await connect(t, rig)] as const
  const idle = await connect(t, rig)
  t.equal((await idle.ask(get())).status, 200)
  await turns(50)
  t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 200)
  await idle.end()
  const busy = await connect(t, rig, OTHER)
  t.notOk(silent[0].ended, 'the one that had been used went first')
  busy.send('GET / HTTP/1.1\r\n')
  const last = await connect(t, rig, OTHER)
  t.equal((await last.ask(get())).status, 200)
  await silent[0].end()
})

t.test(`no connection makes room in the middle of a request, or for a client above its share`, async t => {
  const upstream = await httpUpstream(t)
  const limits = { maxConnections: 4, connectionsPerClient: 4 }
  const routes = [{ name: 'off', match: { path: '/off' }, mode: 'off' }, { name: 'all' }]
  const rig = await startRig(t, { upstream: upstream.url, limits, ...ONE_A_SECOND, routes })
  await occupy(t, rig)
  await turns(50)
  const [queued, head, body, idle] = [
    await connect(t, rig),
    await connect(t, rig),
    await connect(t, rig),
    await connect(t, rig),
  ] as const
  for (const client of [queued, head, body, idle]) t.equal((await client.ask(get('/off'))).status, 200)
  queued.send(get('/queued'))
  head.send('GET /off HTTP/1.1\r\nHost:')
  body.send('POST /off HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na')
  await rig.until(({ queued }) => queued.length === 1)
  await turns(50)
  const fifth = await connect(t, rig)
  t.equal((await fifth.ask(get('/off'))).status, 503, 'four of this address are open')
  await fifth.end()
  t.notOk(idle.ended)
  const other = await connect(t, rig, OTHER)
  t.equal((await other.ask(get('/off'))).status, 200)
  await idle.end()
  other.send('GET')
  await turns(50)
  const late = await connect(t, rig, OTHER)
  t.equal((await late.ask(get('/off'))).status, 503, 'none is idle')
  head.send(' h\r\n\r\n')
  t.equal((await head.answer()).status, 200)
  body.send('bc')
  t.equal((await body.answer()).status, 200)
  rig.pacer.runUntil(1_000)
  t.equal((await queued.answer()).status, 200)
})

const KEYED = {
  limits: { maxQueued: 12 },
  trustProxy: ['127.0.0.9'],
  buckets: {
    user: { key: 'header:x-user', rate: '1/s', capacity: 10 },
    everyone: { key: 'all', rate: '1/s', capacity: 100, overflow: 'fair' },
  },
}

for (const [where, options] of [
  ['in memory', {}],
  ['with a store', { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' }) }],
] as [string, RigOptions][]) {
  t.test(`${where}: a client with many keys does not fill maxQueued for the others`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...KEYED }, options)
    await askOnce(t, rig, get('/first'))
    const flood: Client[] = []
    const send = async (text: string, from: string): Promise<Client> => {
      const client = await connect(t, rig, { from })
      const decided = (): number => rig.queued.length + rig.outcomes.length
      const before = decided()
      client.send(text)
      await rig.until(() => decided() > before)
      return client
    }
    for (let key = 0; key < 12; key += 1) flood.push(await send(get('/flood', `X-User: ${key % 4}`), '127.0.0.2'))
    const others = [
      await send(get('/other'), '127.0.0.3'),
      await send(get('/other', 'X-User: 1'), '127.0.0.4'),
      await send(get('/other', 'X-Forwarded-For: 192.0.2.1'), '127.0.0.9'),
      await send(get('/other', 'X-Forwarded-For: 192.0.2.2, 192.0.2.3'), '127.0.0.9'),
    ]
    for (const client of flood.slice(8)) {
      const answer = await client.answer()
      t.equal(answer.status, 503, 'the newest of the flood')
      t.equal(answer.header('retry-after'), '1')
      t.equal(answer.json().detail, 'too many requests are waiting or in flight')
    }
    const late = await send(get('/flood', 'X-User: new'), '127.0.0.2')
    t.equal((await late.answer()).status, 503, 'a client displaces no other for itself')
    t.same(rig.outcomes.slice(1), Array(5).fill('default rejected 503'))
    t.equal(rig.proxy.context.shaper.queued, 12)
    for (let second = 0; second < 30; second += 1) {
      rig.pacer.runUntil(rig.pacer.now() + 500)
      await turns(5)
    }
    for (const client of [...others, ...flood.slice(0, 8)]) t.equal((await client.answer()).status, 200)
    t.equal(upstream.requests.filter(request => request === 'GET /flood').length, 8)
  })
}

t.test('own: connections that are idle since before a reload of the timeouts make room first', async t => {
  const upstream = await httpUpstream(t)
  const config = (keepAliveTimeout: string) => {
    const limits = { maxConnections: 3, keepAliveTimeout }
    return { listen: '127.0.0.1:0', upstream: upstream.url, limits, ...OFF }
  }
  const rig = await startRig(t, config('60s'))
  const clients: Client[] = []
  for (const timeout of ['61s', '62s', '63s']) {
    const client = await connect(t, rig)
    await client.ask(get())
    clients.push(client)
    await rig.proxy.reload(parseConfig(JSON.stringify(config(timeout))))
  }
  for (const client of clients) {
    t.notOk(client.ended)
    t.equal((await (await connect(t, rig, OTHER)).ask(get())).status, 200)
    await client.end()
  }
})

t.test('IPv6 connections are counted by /64, and clients without any take no memory', async t => {
  const open = new OpenConnections(() => undefined)
  const limits = { maxConnections: 100, connectionsPerClient: 2, trust: createTrust(['2001:db8:9::/48']) }
  const from = (remoteAddress: string) => peerOf({ remoteAddress })!
  const roomFor = (address: string) => open.makeRoomFor(from(address), limits)
  const connections = ['2001:db8::1', '2001:db8::2'].map(address => from(address) as OpenConnection)
  for (const connection of connections) open.add(connection)
  t.equal(roomFor('2001:db8::3'), 'excess')
  t.equal(roomFor('2001:db8:0:1::3'), 'free', 'another network')
  open.delete(connections[0]!)
  open.delete(connections[0]!)
  t.equal(roomFor('2001:db8::3'), 'free')
  for (let count = 0; count < 50; count += 1) open.add(from('2001:db8:9::1') as OpenConnection)
  t.equal(roomFor('2001:db8:9::1'), 'free', 'a trusted hop')
  for (const connection of open.all) open.delete(connection)
  t.equal(open.clients, 0)
})

t.test('the place of an idle connection is free before its socket has closed', async t => {
  const limits = { maxConnections: 2, connectionsPerClient: 9, trust: createTrust(false) }
  const peer = peerOf({ remoteAddress: '192.0.2.1' })!
  const idle: OpenConnection[] = []
  const open = new OpenConnections(() => idle.shift())
  const newcomer = () => ({ ...peer, socket: { destroy() {} } }) as unknown as OpenConnection
  open.add(newcomer())
  idle.push(newcomer())
  open.add(idle[0]!)
  t.equal(open.makeRoomFor(peer, limits), 'free')
  t.equal(open.all.size, 1)
  open.add(newcomer())
  t.equal(open.makeRoomFor(peer, limits), 'excess')
})
