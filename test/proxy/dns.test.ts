/** Servers from DNS behind one queue (contract 14.4). */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import type { TLSSocket } from 'node:tls'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import type { NameResolver } from '../../src/proxy/upstream/followed-names.js'
import { makeCertificate } from '../servers/certificate.js'
import { askOnce, connect, eventually, get, passBoth, type Rig, startRig, turns } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const FAST = { all: { key: 'all', rate: '1000/s', capacity: 100 } }
const ADDRESSES = ['127.0.0.2', '127.0.0.3', '127.0.0.4']

/** A server at each address, all at one port. */
async function machines(t: Teardown, handler?: (req: IncomingMessage, res: ServerResponse) => void) {
  let port = 0
  const requests = new Map<string, string[]>()
  const sockets = new Map<string, number>()
  for (const address of ADDRESSES) {
    requests.set(address, [])
    sockets.set(address, 0)
    const server = createServer((req, res) => {
      requests.get(address)!.push(`${req.headers.host} ${req.url}`)
      if (handler === undefined) res.end(address)
      else handler(req, res)
    })
    server.on('connection', socket => {
      sockets.set(address, sockets.get(address)! + 1)
      socket.on('close', () => sockets.set(address, sockets.get(address)! - 1))
    })
    server.keepAliveTimeout = 60_000
    server.listen(port, address)
    await once(server, 'listening')
    port = (server.address() as AddressInfo).port
    t.teardown(() => {
      server.close()
      server.closeAllConnections()
    })
  }
  const counts = () => ADDRESSES.map(address => requests.get(address)!.length)
  return { port, url: `http://app.test:${port}`, requests, sockets, counts }
}

/** DNS that says at once what it is told to. */
function zoneOf(...addresses: string[]) {
  const dns = { addresses, ttl: 5, fails: false, asked: 0, cancelled: 0 }
  const error = (code: string): Error => Object.assign(new Error(`queryA ${code} app.test`), { code })
  const openResolver = (): NameResolver => ({
    addresses: async (_name, family) => {
      if (family === 4) dns.asked += 1
      if (dns.fails) throw error('ESERVFAIL')
      if (family === 6 || dns.addresses.length === 0) throw error('ENODATA')
      return dns.addresses.map(address => ({ address, ttl: dns.ttl }))
    },
    services: async () => dns.addresses.map((name, at) => ({ name, priority: at, weight: 1, port: 1 })),
    cancel: () => {
      dns.cancelled += 1
    },
  })
  return Object.assign(dns, { options: { virtualClock: true, openResolver } })
}

const configOf = (upstream: object, rest: object = {}) => ({
  buckets: FAST,
  routes: [{ name: 'all', mode: 'meter' }],
  upstream: { dns: true, ...upstream },
  ...rest,
})

function reload(rig: Rig, config: object): Promise<unknown> {
  return rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config })))
}

const upstreamOf = ({ proxy }: Rig) => proxy.context.routes[0]!.upstream

t.test('each address is a server with the name of its URL, and its rules', async t => {
  const { url, port, requests, counts } = await machines(t)
  const dns = zoneOf(...ADDRESSES)
  const servers = [{ url, dns: true, maxInFlight: 7, weight: 2 }]
  const rig = await startRig(t, { ...configOf({}), upstream: { servers, hostHeader: 'upstream' } }, dns.options)
  for (let at = 0; at < 9; at += 1) t.equal((await askOnce(t, rig, get(`/${at}`))).status, 200)
  t.same(counts(), [3, 3, 3])
  t.match(requests.get('127.0.0.3'), [`app.test:${port} /1`])
  const all = upstreamOf(rig).servers
  t.same(
    all.map(server => server.url),
    ADDRESSES.map(address => `${url} (${address})`),
  )
  t.same(
    all.map(({ place }) => [place.rules.maxInFlight, place.rules.weight]),
    [
      [7, 2],
      [7, 2],
      [7, 2],
    ],
  )
})

t.test('an address that is gone finishes what it has, and nobody is refused', async t => {
  const held: (() => void)[] = []
  const { url, sockets, counts } = await machines(t, (req, res) => {
    if (req.url === '/slow') held.push(() => res.end('late'))
    else res.end('ok')
  })
  const dns = zoneOf('127.0.0.2', '127.0.0.3')
  const rig = await startRig(t, configOf({ url }), dns.options)
  const slow = [await connect(t, rig), await connect(t, rig)]
  for (const [at, client] of slow.entries()) {
    client.send(get('/slow'))
    await eventually(() => held.length === at + 1)
  }
  t.same(counts(), [1, 1, 0])
  dns.addresses = ['127.0.0.3', '127.0.0.4']
  await passBoth(rig, 5_100, 100)
  for (let at = 0; at < 6; at += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(counts(), [1, 1, 6], 'the new one has none in flight')
  t.equal(sockets.get('127.0.0.2'), 1)
  for (const answer of held) answer()
  for (const client of slow) t.equal((await client.answer()).text, 'late')
  await eventually(() => sockets.get('127.0.0.2') === 0)
  t.same(new Set(rig.outcomes), new Set(['all forwarded 200']))
})

t.test('a failing address that is gone does not answer again, and its probes end', async t => {
  const { url, counts } = await machines(t)
  const dns = zoneOf('127.0.0.9')
  const rig = await startRig(t, configOf({ url, breaker: { failures: 1, hold: '60s' } }), dns.options)
  const told: string[] = []
  Object.assign(rig.proxy.context.observer, {
    broken: (server: string, state: string) => told.push(`${server} ${state}`),
  })
  t.equal((await askOnce(t, rig, get())).status, 502)
  t.equal((await askOnce(t, rig, get())).status, 503)
  dns.addresses = ['127.0.0.2']
  await passBoth(rig, 5_100, 100)
  for (let at = 0; at < 3; at += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(counts(), [3, 0, 0])
  t.same(told, [`${url} (127.0.0.9) failing`])
})

t.test('what waits or is armed goes to the addresses of then', async t => {
  const { url, counts } = await machines(t)
  const dns = zoneOf('127.0.0.2')
  const rig = await startRig(
    t,
    configOf(
      { url },
      { routes: [{ name: 'all', maxWait: '60s' }], buckets: { all: { key: 'all', rate: '1/s', capacity: 20 } } },
    ),
    dns.options,
  )
  const clients = []
  for (let at = 0; at < 12; at += 1) {
    const client = await connect(t, rig)
    client.send(get())
    await rig.until(({ queued, outcomes }) => queued.length + Math.min(1, outcomes.length) > at)
    clients.push(client)
  }
  dns.addresses = ['127.0.0.3']
  await passBoth(rig, 12_000, 100)
  for (const client of clients) t.equal((await client.answer()).status, 200)
  const [before, after] = counts()
  t.ok(before! >= 5 && before! <= 6 && before! + after! === 12, `${before} ${after}`)
})

t.test('the places of a server that is gone are not those of its successor', async t => {
  const held: (() => void)[] = []
  const { url, counts } = await machines(t, (_req, res) => void held.push(() => res.end('ok')))
  const dns = zoneOf('127.0.0.2')
  const rig = await startRig(
    t,
    { ...configOf({}), upstream: { servers: [{ url, dns: true, maxInFlight: 1 }] }, routes: [{ name: 'all' }] },
    dns.options,
  )
  const [first, second] = [await connect(t, rig), await connect(t, rig)]
  first.send(get('/first'))
  await eventually(() => held.length === 1)
  dns.addresses = ['127.0.0.3']
  await passBoth(rig, 5_100, 100)
  second.send(get('/second'))
  await eventually(() => held.length === 2)
  t.same(counts(), [1, 1, 0])
  const third = await connect(t, rig)
  third.send(get('/third'))
  await rig.until(({ queued }) => queued.length === 1)
  held[0]!()
  await first.answer()
  await passBoth(rig, 100)
  t.equal(held.length, 2, 'its bound is one')
  held[1]!()
  await eventually(() => held.length === 3)
  held[2]!()
  t.equal((await third.answer()).status, 200)
})

t.test('a hash pick moves only the clients of the address that is gone', async t => {
  const { url } = await machines(t)
  const dns = zoneOf(...ADDRESSES)
  const rig = await startRig(t, configOf({ url, pick: { hash: 'header:x-user' } }), dns.options)
  const homes = async (): Promise<string[]> => {
    const found: string[] = []
    for (let at = 0; at < 45; at += 1) found.push((await askOnce(t, rig, get('/', `X-User: ${at}`))).text)
    return found
  }
  const before = await homes()
  t.equal(new Set(before).size, 3)
  dns.addresses = ['127.0.0.4', '127.0.0.2']
  await passBoth(rig, 5_100, 100)
  const after = await homes()
  for (const [at, home] of before.entries()) if (home !== '127.0.0.3') t.equal(after[at], home)
  dns.addresses = ADDRESSES
  await passBoth(rig, 5_100, 100)
  t.same(await homes(), before)
})

t.test('without an address requests wait, then get 503 with Retry-After, until DNS has one', async t => {
  const { url, counts } = await machines(t)
  const dns = zoneOf()
  const health = { path: '/healthz', interval: '1s' }
  const routes = [
    { name: 'off', match: { path: '/off' }, mode: 'off' },
    { name: 'meter', match: { path: '/meter' }, mode: 'meter' },
    { name: 'all' },
  ]
  const rig = await startRig(t, configOf({ url, health }, { routes }), dns.options)
  const waiting = await connect(t, rig)
  waiting.send(get('/waits'))
  await rig.until(({ queued }) => queued.length === 1)
  for (const path of ['/meter', '/off']) {
    const answer = await askOnce(t, rig, get(path))
    t.equal(answer.status, 503)
    t.match(answer.header('retry-after'), /^[12]$/)
  }
  t.match(upstreamOf(rig).failure, { detail: "the upstream's name does not resolve", isEarlier: true })
  await passBoth(rig, 6_000, 100)
  t.equal((await waiting.answer()).status, 503)
  const late = await askOnce(t, rig, get('/late'))
  t.equal(late.status, 503)
  t.ok(Number(late.header('retry-after')) >= 1)
  dns.addresses = ['127.0.0.2']
  await passBoth(rig, 10_000, 100)
  for (const path of ['/late', '/meter', '/off']) t.equal((await askOnce(t, rig, get(path))).status, 200, path)
  t.ok(counts()[0]! > 3, 'its checks began')
  t.same(upstreamOf(rig).servers.length, 1)
})

t.test('one name without an address leaves the other servers alone', async t => {
  const { url, port, counts } = await machines(t)
  const dns = zoneOf()
  const servers = [`http://127.0.0.3:${port}`, { url, dns: true }]
  const rig = await startRig(t, { ...configOf({}), upstream: { servers } }, dns.options)
  for (let at = 0; at < 3; at += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(counts(), [0, 3, 0])
})

t.test('a reload keeps the addresses, also while DNS fails', async t => {
  const { url, counts } = await machines(t)
  const dns = zoneOf('127.0.0.2')
  const rig = await startRig(t, configOf({ url }), dns.options)
  dns.fails = true
  for (const upstream of [
    { url, pick: 'round-robin' },
    { url, idleTimeout: '9s' },
    { url, responseTimeout: '9s' },
  ]) {
    await reload(rig, configOf(upstream))
    t.equal((await askOnce(t, rig, get())).status, 200)
  }
  t.same(counts(), [3, 0, 0])
  t.equal(dns.asked, 1)
  dns.fails = false
  dns.addresses = ['127.0.0.3']
  await passBoth(rig, 5_100, 100)
  t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(counts(), [3, 1, 0])
  await reload(rig, configOf({ dns: undefined, url: `http://127.0.0.4:${new URL(url).port}` }))
  const { asked } = dns
  await passBoth(rig, 60_000, 1_000)
  t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(counts(), [3, 1, 1])
  t.equal(dns.asked, asked, 'nobody asks for it any more')
})

t.test('after a reload those who waited for an upstream without an address are served', async t => {
  const { url, port, counts } = await machines(t)
  const dns = zoneOf()
  const routes = [{ name: 'all', maxWait: '60s' }]
  const rig = await startRig(t, configOf({ url }, { routes }), dns.options)
  const client = await connect(t, rig)
  client.send(get('/early'))
  await rig.until(({ queued }) => queued.length === 1)
  // Another setting than its servers: another upstream takes the gate over.
  await reload(rig, configOf({ url, idleTimeout: '9s' }, { routes }))
  const later = await connect(t, rig)
  later.send(get('/later'))
  await rig.until(({ queued }) => queued.length === 2)
  dns.addresses = ['127.0.0.2']
  await passBoth(rig, 3_000, 50)
  for (const each of [client, later]) t.equal((await each.answer()).status, 200)
  t.same(counts(), [2, 0, 0])
  dns.addresses = []
  await reload(rig, { ...configOf({}, { routes }), upstream: `http://127.0.0.3:${port}` })
  t.equal((await askOnce(t, rig, get())).status, 200, 'the plain URL is another server')
})

t.test('SRV: the port of the record, and spares by priority', async t => {
  const { port, counts } = await machines(t)
  const dns = zoneOf('127.0.0.2', '127.0.0.3')
  const openResolver = (): NameResolver => ({
    ...dns.options.openResolver(),
    addresses: async (name, family) => {
      if (family === 6) throw Object.assign(new Error('none'), { code: 'ENODATA' })
      return [{ address: name, ttl: 5 }]
    },
    services: async () => dns.addresses.map((name, at) => ({ name, priority: at, weight: 1, port })),
  })
  const rig = await startRig(t, configOf({ url: 'http://_http._tcp.app.test', dns: 'srv' }), {
    ...dns.options,
    openResolver,
  })
  for (let at = 0; at < 3; at += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(counts(), [3, 0, 0])
  t.same(
    upstreamOf(rig).servers.map(server => [server.url, server.place.rules.backup]),
    [
      [`http://_http._tcp.app.test (127.0.0.2:${port})`, false],
      [`http://_http._tcp.app.test (127.0.0.3:${port})`, true],
    ],
  )
})

t.test('TLS: the name is asked for and verified, also of a WebSocket', async t => {
  const { cert, key } = makeCertificate(`${t.testdir({})}/app`, 'DNS:app.test')
  const asked: unknown[] = []
  const server = createTlsServer({ cert: readFileSync(cert), key: readFileSync(key) }, (req, res) => {
    asked.push((req.socket as TLSSocket).servername)
    res.end('ok')
  })
  server.on('upgrade', (req, socket) => {
    asked.push((req.socket as TLSSocket).servername)
    socket.end('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
  })
  server.listen(0, '127.0.0.2')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  const { port } = server.address() as AddressInfo
  for (const [name, status] of [
    ['app.test', 200],
    ['other.test', 502],
  ] as const) {
    const rig = await startRig(
      t,
      configOf({ url: `https://${name}:${port}`, tls: { ca: cert } }),
      zoneOf('127.0.0.2').options,
    )
    t.equal((await askOnce(t, rig, get())).status, status)
    const client = await connect(t, rig)
    const upgrade = [
      'Connection: Upgrade',
      'Upgrade: websocket',
      'Sec-WebSocket-Version: 13',
      'Sec-WebSocket-Key: aaaaaaaaaaaaaaaaaaaaaa==',
    ]
    t.equal((await client.ask(get('/', ...upgrade))).status, status === 200 ? 101 : status)
  }
  t.same(asked.slice(0, 2), ['app.test', 'app.test'])
})

t.test('nothing is asked after the end', async t => {
  const { url } = await machines(t)
  const dns = zoneOf('127.0.0.2')
  const rig = await startRig(t, configOf({ url, health: { path: '/' } }), dns.options)
  t.equal((await askOnce(t, rig, get())).status, 200)
  const drained = rig.proxy.drain(0)
  await turns()
  rig.clock.runUntil(rig.clock.now() + 10_000)
  await drained
  const { asked } = dns
  t.equal(rig.clock.next(), Infinity, 'no timer is left')
  t.equal(dns.asked, asked)
  t.ok(dns.cancelled > 0)
})
