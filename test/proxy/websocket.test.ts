/** WebSockets through admission and queue, with the `ws` package at both ends. */
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { WebSocket, WebSocketServer } from 'ws'
import { answering, connect, rawUpstream, startRig } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

async function echoServer(t: Teardown): Promise<{ port: number; server: WebSocketServer }> {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' })
  server.on('connection', socket => socket.on('message', (data, binary) => socket.send(data, { binary })))
  await once(server, 'listening')
  t.teardown(() => {
    for (const client of server.clients) client.terminate()
    server.close()
  })
  return { port: (server.address() as AddressInfo).port, server }
}

const limited = (port: number, capacity = 2): object => ({
  upstream: `http://127.0.0.1:${port}`,
  buckets: { client: { rate: '1/s', capacity } },
  routes: [{ name: 'ws', buckets: ['client'] }],
})

const HANDSHAKE =
  'GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
  'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n'

t.test('a handshake passes the queue like any request, then the tunnel is open', async t => {
  const { port } = await echoServer(t)
  const rig = await startRig(t, limited(port))
  const first = new WebSocket(`ws://127.0.0.1:${rig.port}/`)
  let limits: string | undefined
  first.once('upgrade', response => {
    limits = response.headers['ratelimit-policy'] as string
  })
  await once(first, 'open')
  t.equal(limits, '"client";q=2;w=2', 'its answer carries the limits, as any')
  const second = new WebSocket(`ws://127.0.0.1:${rig.port}/`)
  await rig.until(({ queued }) => queued.length === 1)
  const third = new WebSocket(`ws://127.0.0.1:${rig.port}/`)
  const [, refusal] = (await once(third, 'unexpected-response')) as [unknown, { statusCode: number }]
  t.equal(refusal.statusCode, 429)
  third.on('error', () => undefined)
  third.terminate()
  rig.pacer.runUntil(1_000)
  await once(second, 'open')
  second.send('hello')
  const [data] = (await once(second, 'message')) as [Buffer]
  t.equal(data.toString(), 'hello')
  t.same(rig.outcomes, ['ws forwarded 101', 'ws rejected 429', 'ws forwarded 101'])
  first.terminate()
  second.terminate()
})

for (const how of ['FIN', 'RST']) {
  t.test(`a client that hangs up in the queue (${how}) is gone, with its socket`, async t => {
    const { port, server } = await echoServer(t)
    const rig = await startRig(t, limited(port))
    const first = new WebSocket(`ws://127.0.0.1:${rig.port}/`)
    await once(first, 'open')
    const client = await connect(t, rig)
    client.send(HANDSHAKE)
    await rig.until(({ queued }) => queued.length === 1)
    if (how === 'FIN') client.socket.end()
    else client.resetConnection()
    await rig.until(({ outcomes }) => outcomes.includes('ws cancelled 499'))
    if (how === 'FIN') await client.end()
    rig.pacer.runAll()
    t.equal(server.clients.size, 1, 'the upstream never saw it')
    first.terminate()
  })
}

t.test('an upstream that refuses: 502, without its address', async t => {
  const { port, server } = await echoServer(t)
  const rig = await startRig(t, { ...limited(port), upstream: { url: `http://127.0.0.1:${port}`, breaker: false } })
  server.close()
  await once(server, 'close')
  const client = await connect(t, rig)
  const answer = await client.ask(HANDSHAKE)
  t.equal(answer.status, 502)
  t.equal(answer.json().detail, 'the upstream refused the connection')
  t.same(rig.outcomes, ['ws failed 502'])
})

t.test('a handshake in flight at the end of shutdownTimeout is answered 503', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, limited(upstream.port))
  const client = await connect(t, rig)
  client.send(HANDSHAKE)
  const handshake = await upstream.connection(0)
  await handshake.until(/\r\n\r\n/)
  const drained = rig.proxy.drain(0)
  const answer = await client.answer()
  t.equal(answer.status, 503)
  t.equal(answer.header('connection'), 'close')
  t.equal(answer.json().detail, 'shaper is shutting down')
  await client.end()
  await handshake.until(({ closed }) => closed)
  client.hangUp()
  await drained
  t.same(rig.outcomes, ['ws failed 503'])
})

t.test('an idle tunnel lives until tunnelIdleTimeout, and its end is logged', async t => {
  const { port } = await echoServer(t)
  const rig = await startRig(t, {
    ...limited(port),
    upstream: { url: `http://127.0.0.1:${port}`, idleTimeout: '100ms' },
    limits: { tunnelIdleTimeout: '700ms' },
  })
  // Its client may hear late that it is open.
  const begun = performance.now()
  const socket = new WebSocket(`ws://127.0.0.1:${rig.port}/`)
  socket.on('error', () => undefined)
  await once(socket, 'open')
  await once(socket, 'close')
  const lived = performance.now() - begun
  t.ok(lived > 699, `${lived} ms`)
  await rig.until(({ failures }) => failures.length > 0)
  t.same(rig.failures, ['ws a WebSocket was closed after 700ms without traffic (limits.tunnelIdleTimeout)'])
  t.same(await rig.finished(1), ['ws forwarded 101'], 'it is counted once')
})

t.test('a tunnel that ends in another way is no failure', async t => {
  const { port, server } = await echoServer(t)
  const rig = await startRig(t, limited(port))
  const socket = new WebSocket(`ws://127.0.0.1:${rig.port}/`)
  await once(socket, 'open')
  for (const client of server.clients) client.close()
  await once(socket, 'close')
  t.same(rig.failures, [])
})

t.test('an answer to a handshake with an invalid status: 502', async t => {
  for (const status of ['099', '000', '001', '600', '700', '999']) {
    const upstream = await rawUpstream(t, answering(`HTTP/1.1 ${status} Odd\r\nContent-Length: 2\r\n\r\nok`))
    const rig = await startRig(t, limited(upstream.port))
    const client = await connect(t, rig)
    const answer = await client.ask(HANDSHAKE)
    t.equal(answer.status, 502, status)
    t.equal(answer.json().status, 502)
    t.same(rig.outcomes, ['ws failed 502'])
  }
  for (const status of [200, 204, 404, 599]) {
    const upstream = await rawUpstream(t, answering(`HTTP/1.1 ${status} Fine\r\nContent-Length: 0\r\n\r\n`))
    const rig = await startRig(t, limited(upstream.port))
    const client = await connect(t, rig)
    t.equal((await client.ask(HANDSHAKE)).status, status)
  }
})
