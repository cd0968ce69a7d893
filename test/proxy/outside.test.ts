/** Outside APIs: over TLS, by their own name, on connections that are used again. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer as createPlainServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createServer } from 'node:https'
import { type AddressInfo, connect as connectTo, createServer as createRelay, type Socket } from 'node:net'
import { createServer as createTlsServer, type TLSSocket } from 'node:tls'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { causeOf, describeError, isMisconfigured } from '../../src/proxy/upstream/upstream-error.js'
import { type Certificate, makeCertificate } from '../servers/certificate.js'
import { askOnce, connect, get, OFF, startRig, turns } from './harness.js'

const file = (name: string) => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url))
const CA = file('upgrade-cert.pem')
/** Of each request: Host, requested server name, and number of its connection. Upgrades are answered 101. */
async function outside(
  t: { teardown(run: () => unknown): void },
  { cert, key }: Certificate = { cert: CA, key: file('upgrade-key.pem') },
) {
  const seen: { host: string | undefined; servername: unknown; connection: number }[] = []
  const connections: unknown[] = []
  const see = (req: IncomingMessage): void => {
    if (!connections.includes(req.socket)) connections.push(req.socket)
    const { servername } = req.socket as TLSSocket & { servername?: unknown }
    seen.push({ host: req.headers.host, servername, connection: connections.indexOf(req.socket) })
  }
  const server = createServer({ cert: readFileSync(cert), key: readFileSync(key) }, (req, res) => {
    see(req)
    res.end('ok')
  })
  server.on('upgrade', (req, socket) => {
    see(req)
    socket.on('error', () => undefined)
    socket.end('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
  })
  server.listen(0)
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { port: (server.address() as AddressInfo).port, seen }
}

t.test(
  'https with the name of the upstream: Host, certificate, and one connection for successive requests',
  async t => {
    const { port, seen } = await outside(t)
    const rig = await startRig(t, {
      upstream: { url: `https://localhost:${port}`, hostHeader: 'upstream', tls: { ca: CA } },
      ...OFF,
    })
    for (let count = 0; count < 5; count += 1) t.equal((await askOnce(t, rig, get())).status, 200)
    t.strictSame(
      seen,
      seen.map(() => ({ host: `localhost:${port}`, servername: 'localhost', connection: 0 })),
    )
  },
)

t.test('an authority that is not trusted: 502, and the request is not sent', async t => {
  const { port, seen } = await outside(t)
  const rig = await startRig(t, { upstream: `https://localhost:${port}`, ...OFF })
  t.equal((await askOnce(t, rig, get())).status, 502)
  t.equal(seen.length, 0)
})

for (const [name, tls, remedy] of [
  ['of an unknown authority', {}, /self-signed certificate.* tls\.ca/],
  ['for another name', { ca: CA, servername: 'wrong.test' }, /wrong\.test.* tls\.servername/],
] as const) {
  t.test(`a certificate ${name}: 502 at once that says so, whatever the mode and the protocol`, async t => {
    let connections = 0
    const ALPNProtocols = ['h2', 'http/1.1']
    const server = createTlsServer({
      cert: readFileSync(CA),
      key: readFileSync(file('upgrade-key.pem')),
      ALPNProtocols,
    })
    server.on('connection', () => {
      connections += 1
    })
    await once(server.listen(0), 'listening')
    t.teardown(() => server.close())
    const url = `https://localhost:${(server.address() as AddressInfo).port}`
    for (const [http2, mode, ...headers] of [
      [false, 'shape'],
      [false, 'meter'],
      [false, 'off'],
      [true, 'shape'],
      [false, 'shape', ...WEBSOCKET],
    ] as const) {
      connections = 0
      const what = `${http2 ? 'HTTP/2' : 'HTTP/1.1'} ${mode} ${headers[1] ?? ''}`
      const rig = await startRig(t, {
        upstream: { url, http2, tls },
        buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
        routes: [{ name: 'all', mode, ...(mode !== 'off' && { buckets: ['all'] }) }],
      })
      for (let count = 0; count < 7; count += 1) {
        const asked = askOnce(t, rig, get('/', ...headers))
        if (mode === 'shape' && count > 0) await rig.until(({ queued }) => queued.length === count)
        rig.pacer.runUntil(rig.pacer.now() + 1)
        const answer = await asked
        t.equal(answer.status, 502, `${what}: the breaker stays closed`)
        t.match(answer.json().detail, /certificate/)
      }
      t.equal(connections, 7, `${what}: none is tried again`)
      for (const cause of rig.causes) t.match(cause, remedy)
    }
  })
}

for (const [name, http2, detail] of [
  ['plain HTTP behind an https URL', false, /does not speak TLS/],
  ['HTTP/1.1 where HTTP/2 is asked for', true, /does not speak HTTP\/2/],
] as const) {
  t.test(`${name}: 502 at once that says so`, async t => {
    const server = http2
      ? createServer({ cert: readFileSync(CA), key: readFileSync(file('upgrade-key.pem')) })
      : createRelay(socket =>
          socket.on('error', () => undefined).on('data', () => socket.end('HTTP/1.1 400 Bad\r\n\r\n')),
        )
    await once(server.listen(0, 'localhost'), 'listening')
    t.teardown(() => server.close())
    const url = `https://localhost:${(server.address() as AddressInfo).port}`
    const rig = await startRig(t, {
      upstream: { url, http2, tls: { ca: CA } },
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'all', mode: 'shape', buckets: ['all'] }],
    })
    for (let count = 0; count < 7; count += 1) {
      const asked = askOnce(t, rig, get())
      if (count > 0) await rig.until(({ queued }) => queued.length === 1)
      rig.pacer.runUntil(rig.pacer.now() + 1)
      const answer = await asked
      t.equal(answer.status, 502, 'the breaker stays closed')
      t.match(answer.json().detail, detail)
    }
  })
}

t.test('a fault of a certificate that Node has no code for is one of the configuration', async t => {
  const cause = Object.assign(new Error('permitted subtree violation'), { code: 'UNSPECIFIED' })
  t.ok(isMisconfigured({ status: 502, cause }))
  t.match(describeError(cause), [502, /certificate/])
  t.match(causeOf(cause).message, /tls\.ca/)
})

for (const host of ['127.0.0.1', '::1']) {
  t.test(`an address of either kind: ${host}`, async t => {
    const server = createPlainServer((req: IncomingMessage, res: ServerResponse) => res.end(req.headers.host))
    server.listen(0, host)
    await once(server, 'listening')
    t.teardown(() => {
      server.closeAllConnections()
      server.close()
    })
    const { port } = server.address() as AddressInfo
    const written = host.includes(':') ? `[${host}]` : host
    const rig = await startRig(t, { upstream: { url: `http://${written}:${port}`, hostHeader: 'upstream' }, ...OFF })
    t.equal((await askOnce(t, rig, get())).text, `${written}:${port}`)
  })
}

const WEBSOCKET = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
]

const asking = (host: string, ...headers: string[]): string => get('/', ...headers).replace('example.test', host)

/** The server name of a handshake. An address is none (RFC 6066). */
function nameSent(host: string, servername = host): string | false {
  const isAddress = (name: string): boolean => /^[\d.]+$|\[/.test(name)
  return [servername, host].find(name => !isAddress(name)) ?? false
}

t.test("the certificate's name is checked against the configuration, never against the client's Host", async t => {
  const dir = t.testdir()
  const evil = makeCertificate(`${dir}/evil`, 'DNS:evil.example')
  const both = makeCertificate(`${dir}/both`, 'DNS:localhost', 'IP:127.0.0.1', 'IP:::1')
  const named = makeCertificate(`${dir}/named`, 'DNS:api.example')
  const cases: [what: string, certificate: Certificate, host: string, servername: string | undefined, good: boolean][] =
    [
      ["a certificate of the client's choice", evil, 'localhost', undefined, false],
      ["the same, and the upstream's URL is an address", evil, '127.0.0.1', undefined, false],
      ["the same, and the upstream's URL is an address of IPv6", evil, '[::1]', undefined, false],
      ['the same, and tls.servername is another', evil, 'localhost', 'api.example', false],
      ['the name of the URL', both, 'localhost', undefined, true],
      ['the address of the URL', both, '127.0.0.1', undefined, true],
      ['the address of the URL, IPv6', both, '[::1]', undefined, true],
      ['the name of tls.servername', named, 'localhost', 'api.example', true],
      ['the name of tls.servername, and the URL is an address', named, '127.0.0.1', 'api.example', true],
      ['the name of the URL, and tls.servername is another', both, 'localhost', 'api.example', false],
      ['an address as tls.servername', both, 'localhost', '127.0.0.1', true],
      ['an address as tls.servername that it does not have', named, '127.0.0.1', '127.0.0.1', false],
    ]
  for (const [what, certificate, host, servername, good] of cases) {
    const { port, seen } = await outside(t, certificate)
    const tls = { ca: certificate.cert, ...(servername !== undefined && { servername }) }
    const rig = await startRig(t, { upstream: { url: `https://${host}:${port}`, tls, breaker: false }, ...OFF })
    for (const asked of ['evil.example', 'localhost', '127.0.0.1']) {
      t.equal((await askOnce(t, rig, asking(asked))).status, good ? 200 : 502, `${what}; Host: ${asked}`)
      const upgrade = await askOnce(t, rig, asking(asked, ...WEBSOCKET))
      t.equal(upgrade.status, good ? 101 : 502, `${what}; a WebSocket with Host: ${asked}`)
    }
    t.equal(seen.length, good ? 6 : 0, `${what}: requests that were sent`)
    if (!good) continue
    t.same(
      [...new Set(seen.map(each => each.servername))],
      [nameSent(host, servername)],
      `${what}: the server name sent`,
    )
    t.same([...new Set(seen.map(each => each.host))], ['evil.example', 'localhost', '127.0.0.1'])
  }
})

t.test('clients that ask for different hosts share the connections to an upstream', async t => {
  const { port, seen } = await outside(t)
  const rig = await startRig(t, { upstream: { url: `https://localhost:${port}`, tls: { ca: CA } }, ...OFF })
  for (const host of ['a.example', 'b.example', 'localhost', 'a.example']) {
    t.equal((await askOnce(t, rig, asking(host))).status, 200)
  }
  t.same(
    seen.map(({ connection }) => connection),
    [0, 0, 0, 0],
  )
})

/** Passes connections on to a port, but nothing of them before `open`. */
async function slowDoor(t: { teardown(run: () => unknown): void }, to: number) {
  const held: (() => void)[] = []
  const sockets: Socket[] = []
  const relay = createRelay(socket => {
    sockets.push(socket.on('error', () => undefined))
    held.push(() => {
      const onward = connectTo(to, '127.0.0.1')
      sockets.push(onward.on('error', () => undefined))
      socket.pipe(onward).pipe(socket)
    })
  })
  relay.listen(0, '127.0.0.1')
  await once(relay, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    relay.close()
  })
  return {
    port: (relay.address() as AddressInfo).port,
    open: () => {
      for (const pass of held.splice(0)) pass()
    },
  }
}

t.test('requests that wait for a connection do not leave together when one opens', async t => {
  const { port, seen } = await outside(t)
  const door = await slowDoor(t, port)
  const rig = await startRig(t, {
    upstream: { url: `https://localhost:${door.port}`, tls: { ca: CA } },
    buckets: { all: { key: 'all', rate: '10/s', capacity: 9 } },
    routes: [{ name: 'all' }],
  })
  const clients = [await connect(t, rig), await connect(t, rig), await connect(t, rig)]
  for (const client of clients) client.send(get())
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(900)
  await turns()
  t.same(rig.released.length, 1, 'the first has its turn and waits for the connection: no other is released')
  const opening = setInterval(door.open, 5)
  t.teardown(() => clearInterval(opening))
  t.equal((await clients[0]!.answer()).status, 200)
  t.equal((await clients[1]!.answer()).status, 200, 'lateness of one period is made up for')
  rig.pacer.runUntil(999)
  await turns()
  t.equal(seen.length, 2)
  rig.pacer.runUntil(1_000)
  t.equal((await clients[2]!.answer()).status, 200)
})
