import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t from 'tap'
import type { buildConnector } from 'undici'
import { createVirtualClock } from '../../src/core/clock.js'
import { createConnector } from '../../src/proxy/upstream/warm-connector.js'
import { freePort } from '../servers/free-port.js'
import { askOnce, connect, get, httpUpstream, OK, rawUpstream, startRig, turns } from './harness.js'

type Teardown = { teardown(run: () => unknown): void }

async function listener(
  t: Teardown,
): Promise<{ asked: buildConnector.Options; sockets: Socket[]; next(): Promise<Socket> }> {
  const sockets: Socket[] = []
  const server = createServer(socket => {
    sockets.push(socket.on('error', () => undefined))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const port = String((server.address() as AddressInfo).port)
  const asked = { hostname: '127.0.0.1', host: `127.0.0.1:${port}`, protocol: 'http:', port }
  return {
    asked,
    sockets,
    async next() {
      const [socket] = (await once(server, 'connection')) as [Socket]
      return socket
    },
  }
}

function open(connect: buildConnector.connector, asked: buildConnector.Options): Promise<Socket> {
  return new Promise((resolve, reject) => {
    connect(asked, (error, socket) => (error === null ? resolve(socket!) : reject(error)))
  })
}

t.test('connections are ready before they are needed', async t => {
  const clock = createVirtualClock()
  const { asked, sockets, next } = await listener(t)
  const connector = createConnector({ timeout: 1_000 }, clock)
  t.teardown(() => connector.close())
  connector.keepReady(0, 9)
  t.equal(sockets.length, 0, 'nothing is opened before it is known where to')
  const first = await open(connector.connect, asked)
  for (let count = 0; count < 10; count += 1) connector.keepReady(1, 9)
  for (let count = sockets.length; count < 5; count += 1) await next()
  t.equal(sockets.length, 5, 'four besides the one in use')
  const spare = await open(connector.connect, asked)
  t.not(spare, first)
  t.equal(sockets.length, 5, 'which is one of them')
  await turns()
  clock.runUntil(1_000)
  await open(connector.connect, asked)
  t.equal(sockets.length, 6, 'one that has waited for a second is closed')
  for (const socket of [first, spare]) socket.destroy()
})

t.test('the next request gets the connection that is being opened', async t => {
  const { asked, sockets, next } = await listener(t)
  const connector = createConnector({ timeout: 1_000 }, createVirtualClock(), 2)
  t.teardown(() => connector.close())
  const first = await open(connector.connect, asked)
  if (sockets.length === 0) await next()
  for (let count = 0; count < 3; count += 1) connector.keepReady(0, 9)
  const second = await open(connector.connect, asked)
  if (sockets.length === 1) await next()
  await turns()
  t.equal(sockets.length, 2, 'and there are no more than there may be')
  for (const socket of [first, second]) socket.destroy()
})

t.test('a connection that the other end closes is not used', async t => {
  const { asked, sockets, next } = await listener(t)
  const connector = createConnector({ timeout: 1_000 }, createVirtualClock())
  t.teardown(() => connector.close())
  const first = await open(connector.connect, asked)
  const opened = next()
  connector.keepReady(1, 1)
  const spare = await opened
  const closed = new Promise(resolve => spare.once('close', resolve))
  spare.destroy()
  await closed
  await turns(2)
  const second = await open(connector.connect, asked)
  t.equal(second.destroyed, false)
  t.ok(sockets.length >= 3)
  for (const socket of [first, second]) socket.destroy()
})

t.test('a port that refuses: no connection is ready, nothing is thrown, a request gets the error', async t => {
  const port = await freePort()
  const asked = { hostname: '127.0.0.1', host: `127.0.0.1:${port}`, protocol: 'http:', port: String(port) }
  const connector = createConnector({ timeout: 1_000 }, createVirtualClock())
  await t.rejects(open(connector.connect, asked), { code: 'ECONNREFUSED' })
  connector.keepReady(0, 1)
  await t.rejects(open(connector.connect, asked), { code: 'ECONNREFUSED' })
})

/** An upstream that gives a worker to each connection, until it has answered one request on it or the other end closes it. */
async function syncWorkers(t: Teardown, close = true) {
  const busy = new Set<Socket>()
  const seen = { url: '', connections: 0, requests: 0, most: 0, busy }
  const server = createServer({ noDelay: true }, socket => {
    busy.add(socket)
    seen.connections += 1
    seen.most = Math.max(seen.most, busy.size)
    socket.on('error', () => undefined).once('close', () => busy.delete(socket))
    socket.on('data', () => {
      seen.requests += 1
      setTimeout(() => {
        if (!close) return void socket.write(OK)
        busy.delete(socket)
        socket.end(OK.replace('\r\n', '\r\nConnection: close\r\n'))
      }, 10)
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of busy) socket.destroy()
    server.close()
  })
  seen.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return seen
}

for (const maxInFlight of [1, undefined]) {
  t.test(`maxInFlight ${maxInFlight}: no worker of the upstream waits for a request that does not come`, async t => {
    const upstream = await syncWorkers(t)
    const rig = await startRig(
      t,
      {
        upstream: { url: upstream.url, ...(maxInFlight && { maxInFlight }) },
        buckets: { all: { key: 'all', rate: '20/s', capacity: 20 } },
        routes: [{ name: 'all' }],
      },
      { realPacer: true },
    )
    const answers = await Promise.all(Array.from({ length: 6 }, () => askOnce(t, rig, get())))
    t.same(
      answers.map(({ status }) => status),
      [200, 200, 200, 200, 200, 200],
    )
    await turns()
    t.equal(upstream.requests, 6)
    t.equal(upstream.connections, 6, 'each connection has had its request')
    if (maxInFlight === 1) t.equal(upstream.most, 1, 'one connection at a time')
  })
}

t.test('an upstream that keeps connections open has no more of them than maxInFlight allows', async t => {
  const upstream = await syncWorkers(t, false)
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, maxInFlight: 2 },
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'all' }],
    },
    { realPacer: true },
  )
  const answers = await Promise.all(Array.from({ length: 40 }, () => askOnce(t, rig, get())))
  t.ok(answers.every(({ status }) => status === 200))
  t.equal(upstream.requests, 40)
  t.equal(upstream.most, 2)
})

t.test('requests without maxInFlight (off, dry runs) do not wait', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.url !== '/stream') res.end(req.url)
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, maxInFlight: 1 },
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [
        { name: 'off', match: { path: '/off' }, mode: 'off' },
        { name: 'dry', match: { path: '/dry' }, dryRun: true },
        { name: 'api' },
      ],
    },
    { realPacer: true },
  )
  const stream = await connect(t, rig)
  stream.send(get('/stream'))
  await upstream.until(({ requests }) => requests.length === 1)
  for (const path of ['/off', '/dry', '/off']) t.equal((await askOnce(t, rig, get(path))).text, path)
  const other = await connect(t, rig)
  other.send(get('/api'))
  await rig.until(({ queued }) => queued.length === 1)
  t.same(upstream.requests, ['GET /stream', 'GET /off', 'GET /dry', 'GET /off'], 'the others wait for their place')
})

t.test('an upstream that comes back has no more connections than maxInFlight allows', async t => {
  const busy = new Set<Socket>()
  let most = 0
  const server = createServer({ noDelay: true }, socket => {
    busy.add(socket)
    most = Math.max(most, busy.size)
    socket.on('error', () => undefined).once('close', () => busy.delete(socket))
    socket.on('data', () => void socket.write(OK))
  })
  const port = await freePort()
  const rig = await startRig(
    t,
    {
      upstream: { url: `http://127.0.0.1:${port}`, maxInFlight: 2 },
      buckets: { all: { key: 'all', rate: '500/s', capacity: 100 } },
      routes: [{ name: 'all' }],
    },
    { realPacer: true },
  )
  const answers = Array.from({ length: 60 }, () => askOnce(t, rig, get()))
  await rig.finished(10)
  server.listen(port, '127.0.0.1')
  t.teardown(() => {
    for (const socket of busy) socket.destroy()
    server.close()
  })
  const statuses = (await Promise.all(answers)).map(({ status }) => status)
  t.ok(statuses.includes(200) && statuses.includes(502), statuses.join(' '))
  t.ok(most <= 2, `${most} at once`)
  t.equal(rig.proxy.context.routes[0]!.lane.gate.inFlight, 0)
})

t.test('a connection that was opened ahead is closed after a second without a request', async t => {
  const upstream = await rawUpstream(t, incoming => {
    incoming.socket.end(OK.replace('\r\n', '\r\nConnection: close\r\n'))
  })
  const rig = await startRig(
    t,
    {
      upstream: upstream.url,
      buckets: { all: { key: 'all', rate: '1/10s', capacity: 20 } },
      routes: [{ name: 'all' }],
    },
    { virtualClock: true },
  )
  t.equal((await askOnce(t, rig, get('/first'))).status, 200)
  const client = await connect(t, rig)
  client.send(get('/second'))
  const ahead = await upstream.connection(1)
  await turns()
  t.equal(upstream.connections.length, 2, 'one request waits: one connection')
  rig.clock.runUntil(rig.clock.now() + 1_000)
  await ahead.until(({ closed }) => closed)
  t.equal(ahead.text, '')
  rig.pacer.runUntil(10_000)
  t.equal((await client.answer()).status, 200)
  t.equal(upstream.connections.length, 3)
})
