import dns from 'node:dns'
import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t from 'tap'
import { type Clock, createVirtualClock } from '../../src/core/clock.js'
import { ConnectionBudget } from '../../src/proxy/upstream/connection-limit.js'
import type { ResponseHandler } from '../../src/proxy/upstream/http1-connection.js'
import { ConnectionPool } from '../../src/proxy/upstream/http1-pool.js'
import { Opener } from '../../src/proxy/upstream/opener.js'
import { freePort } from '../servers/free-port.js'
import {
  askOnce,
  connect,
  eventually,
  get,
  httpUpstream,
  OK,
  post,
  rawUpstream,
  resolving,
  startRig,
  turns,
} from './harness.js'

type Teardown = { teardown(run: () => unknown): unknown }

/** A server that keeps its connections and answers each request. */
async function listener(t: Teardown) {
  const sockets: Socket[] = []
  const seen = { text: '' }
  const server = createServer(socket => {
    sockets.push(socket.on('error', () => undefined))
    socket.on('data', data => {
      seen.text += data.toString('latin1')
      socket.write(OK)
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return {
    port,
    sockets,
    seen,
    /** Waits until so many connections are open, and returns how many there are a moment later. */
    async settled(count: number) {
      const open = (): number => sockets.filter(({ destroyed }) => !destroyed).length
      await eventually(() => open() === count)
      await turns()
      return open()
    },
    async until(count: number) {
      while (sockets.length < count) await once(server, 'connection')
      await turns()
    },
  }
}

const POOL = { host: '127.0.0.1', most: Infinity, keepAlive: 4_000, maxAge: 300_000 }

function poolTo(
  t: Teardown,
  port: number,
  { clock = createVirtualClock(), ...options }: Partial<typeof POOL> & { clock?: Clock } = {},
) {
  const { host, most, keepAlive, maxAge } = { ...POOL, ...options }
  const opener = new Opener({ host, port, tls: undefined })
  const budget = new ConnectionBudget()
  budget.limit(most)
  const pool = new ConnectionPool({ opener, clock, connectTimeout: 1_000, keepAlive, maxAge, budget })
  t.teardown(() => pool.close())
  return pool
}

const REQUEST = { method: 'GET', target: '/', headers: ['Host', 'x'], body: null, contentLength: undefined }
const IGNORING: ResponseHandler = {
  sending: () => undefined,
  sentLate: () => undefined,
  interim: () => undefined,
  responseStarted: () => undefined,
  responseData: () => undefined,
  responseEnded: () => undefined,
  failed: () => undefined,
}

/** Sends a request. Resolves with the status, rejects with the error. */
function send(pool: ConnectionPool): Promise<number> {
  return new Promise((resolve, reject) => {
    let status = 0
    pool.send(REQUEST, {
      ...IGNORING,
      responseStarted: head => {
        status = head.status
      },
      responseEnded: () => resolve(status),
      failed: reject,
    })
  })
}

t.test('connections are ready before they are needed', async t => {
  const clock = createVirtualClock()
  const { port, sockets, settled, until } = await listener(t)
  const pool = poolTo(t, port, { clock })
  pool.keepReady(9)
  t.equal(await send(pool), 200)
  t.equal(sockets.length, 1, 'none before the upstream has taken one')
  for (let count = 0; count < 10; count += 1) pool.keepReady(9)
  await until(4)
  await turns()
  t.equal(sockets.length, 4)
  t.equal(await send(pool), 200)
  t.equal(sockets.length, 4, 'the request took one of them')
  clock.runUntil(1_000)
  t.equal(await settled(1), 1, 'those without a request are closed after a second')
  t.equal(await send(pool), 200)
  t.equal(sockets.length, 4, 'the one that has served is kept')
  clock.runUntil(10_000)
  t.equal(await settled(0), 0, 'for four seconds')
})

t.test('after a connection was opened in vain none is opened ahead before another was of use', async t => {
  const clock = createVirtualClock()
  const { port, sockets, until } = await listener(t)
  const pool = poolTo(t, port, { clock })
  t.equal(await send(pool), 200)
  pool.keepReady(2)
  await until(2)
  await turns()
  clock.runUntil(1_000)
  // Also the one that had answered has closed.
  clock.runUntil(60_000)
  pool.keepReady(9)
  await turns()
  t.equal(sockets.length, 2, 'none, however long it is ago')
  pool.send(REQUEST, IGNORING)
  pool.keepReady(9)
  await until(3)
  t.equal(sockets.length, 3, 'one for the request that waits')
  t.equal(await send(pool), 200)
  pool.keepReady(2)
  await until(4)
})

t.test('an upstream that answers slowly and keeps its connections gets some ahead', async t => {
  const clock = createVirtualClock()
  const upstream = await rawUpstream(t)
  const pool = poolTo(t, upstream.port, { clock })
  pool.send(REQUEST, IGNORING)
  await upstream.until(({ requests }) => requests === 1)
  pool.keepReady(2)
  clock.runUntil(100)
  pool.keepReady(2)
  await upstream.connection(2)
  t.equal(upstream.connections.length, 3)
})

t.test('an upstream that closes what it has: nothing is opened ahead', async t => {
  const { port, sockets, until } = await listener(t)
  const pool = poolTo(t, port)
  t.equal(await send(pool), 200)
  const closed = once(sockets[0]!, 'close')
  sockets[0]!.end()
  await closed
  await turns(5)
  pool.keepReady(9)
  t.equal(await send(pool), 200)
  await turns()
  t.equal(sockets.length, 2)
  pool.keepReady(9)
  await until(5)
})

t.test('an idle connection is kept for keepAlive', async t => {
  const clock = createVirtualClock()
  const { port, sockets, settled } = await listener(t)
  const pool = poolTo(t, port, { clock, keepAlive: 20_000 })
  t.equal(await send(pool), 200)
  clock.runUntil(19_999)
  t.equal(await send(pool), 200)
  t.equal(sockets.length, 1)
  clock.runUntil(39_998)
  t.equal(await settled(1), 1)
  clock.runUntil(39_999)
  t.equal(await settled(0), 0)
})

t.test('no connection is reused after maxConnectionAge, and a new one looks its name up anew', async t => {
  const clock = createVirtualClock()
  const { port, sockets, settled } = await listener(t)
  const names = resolving(t)
  const pool = poolTo(t, port, { host: 'upstream.test', clock, keepAlive: 60_000, most: 1 })
  const sendUntil = async (end: number): Promise<void> => {
    for (; clock.now() < end; clock.runUntil(clock.now() + 30_000)) t.equal(await send(pool), 200)
  }
  await sendUntil(300_000)
  t.same([sockets.length, names], [1, ['upstream.test']])
  t.equal(await send(pool), 200)
  t.same([sockets.length, names.length], [2, 2], 'although it was in use all the time')
  t.equal(await settled(1), 1)
  await sendUntil(570_000)
  clock.runUntil(599_999)
  const answers = [send(pool), send(pool)]
  t.equal(pool.requests, 2)
  clock.runUntil(600_000)
  t.same(await Promise.all(answers), [200, 200])
  t.same([sockets.length, names.length], [3, 3], 'also if a request waits for it')
})

t.test('keepAlive false: each connection serves one request, which says so, and none is opened ahead', async t => {
  const { port, sockets, seen, settled, until } = await listener(t)
  const pool = poolTo(t, port, { keepAlive: 0, most: 2 })
  pool.keepReady(5)
  await turns()
  t.equal(sockets.length, 0)
  t.same(await Promise.all([send(pool), send(pool), send(pool)]), [200, 200, 200])
  t.equal(sockets.length, 3)
  t.equal(await settled(0), 0, 'closed here, as the upstream keeps them')
  t.equal(seen.text.match(/^Connection: close\r$/gm)?.length, 3)
  pool.send(REQUEST, IGNORING)!()
  await until(4)
  t.equal(await settled(0), 0, 'one whose request has gone is of no use')
})

t.test('the next request gets the connection that is being opened', async t => {
  const { port, sockets, until } = await listener(t)
  const pool = poolTo(t, port, { most: 2 })
  t.equal(await send(pool), 200)
  for (let count = 0; count < 3; count += 1) pool.keepReady(9)
  t.same(await Promise.all([send(pool), send(pool), send(pool)]), [200, 200, 200])
  await until(2)
  t.equal(sockets.length, 2, 'and there are no more than there may be')
})

t.test('a connection that the other end closes is not used', async t => {
  const { port, sockets, until } = await listener(t)
  const pool = poolTo(t, port)
  t.equal(await send(pool), 200)
  await until(1)
  const closed = once(sockets[0]!, 'close')
  sockets[0]!.destroy()
  await closed
  await turns(5)
  t.equal(await send(pool), 200)
  t.equal(sockets.length, 2)
})

t.test('a port that refuses: no connection is ready, nothing is thrown, each request gets the error', async t => {
  const pool = poolTo(t, await freePort(), { most: 2 })
  pool.keepReady(1)
  const errors = await Promise.allSettled(Array.from({ length: 5 }, () => send(pool)))
  t.match(errors, Array<object>(5).fill({ status: 'rejected', reason: { code: 'ECONNREFUSED' } }))
  t.equal(pool.requests, 0)
})

t.test('a change of how to connect does not fail the requests that wait for a connection', async t => {
  const { port, sockets } = await listener(t)
  const pool = poolTo(t, port, { most: 1 })
  const answers = [send(pool), send(pool)]
  pool.change(new Opener({ host: '127.0.0.1', port, tls: undefined }))
  t.same(await Promise.all(answers), [200, 200])
  t.equal(sockets.filter(({ destroyed }) => !destroyed).length, 1)
})

t.test('a closed pool fails requests, those that wait and later ones', async t => {
  const { port } = await listener(t)
  const pool = poolTo(t, port, { most: 1 })
  const waits = t.rejects(send(pool), { message: /no longer used/ })
  pool.close()
  await waits
  await t.rejects(send(pool), { message: /no longer used/ })
  t.equal(pool.requests, 0)
})

t.test('a connection that is not established in time', async t => {
  const clock = createVirtualClock()
  // Addresses for documentation (RFC 5737) have no hosts.
  const pool = poolTo(t, 9, { host: '192.0.2.1', clock, most: 1 })
  const failed = t.rejects(send(pool), { code: /^(?:ETIMEDOUT|ENETUNREACH)$/ })
  clock.runUntil(1_000)
  await failed
  t.equal(pool.requests, 0)
})

t.test('a request does not wait for one connection after another that is not established', async t => {
  const clock = createVirtualClock()
  resolving(t)
  const upstream = await rawUpstream(t)
  const pool = poolTo(t, upstream.port, { host: 'nowhere.test', clock })
  pool.send(REQUEST, IGNORING)
  await upstream.until(({ requests }) => requests === 1)
  // No address is found any more.
  Object.assign(dns, { lookup: () => undefined })
  const failedAt: number[] = []
  for (let at = 100; at < 4_000; at += 100) {
    clock.runUntil(at)
    const sentAt = at
    // Some are opened ahead at first.
    pool.keepReady(9)
    void send(pool).catch(() => failedAt.push(clock.now() - sentAt))
    await turns(1)
  }
  t.ok(failedAt.length > 15, `${failedAt.length} have failed`)
  t.ok(Math.max(...failedAt) <= 2_000, `the longest wait is ${Math.max(...failedAt)} ms`)
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

t.test('keepAlive false: requests that wait, with and without a body, leave on connections of their own', async t => {
  const upstream = await rawUpstream(
    t,
    incoming => void (/x{9}$|^GET/.test(incoming.text) && incoming.socket.write(OK)),
  )
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, keepAlive: false, connections: 1 },
      buckets: { all: { key: 'all', rate: '100/s', capacity: 20 } },
      routes: [{ name: 'all' }],
    },
    { realPacer: 'precise' },
  )
  const client = await connect(t, rig)
  for (let count = 0; count < 3; count += 1) {
    const answers = [client.ask(get()), askOnce(t, rig, post('x'.repeat(9))), askOnce(t, rig, get())]
    for (const answer of await Promise.all(answers)) {
      t.equal(answer.status, 200)
      t.not(answer.header('connection'), 'close', 'the client keeps its connection')
    }
  }
  t.equal(upstream.connections.length, 9)
  for (const { text } of upstream.connections) t.match(text, /^Connection: close\r$/m)
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
      upstream: { url: `http://127.0.0.1:${port}`, maxInFlight: 2, breaker: false },
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
