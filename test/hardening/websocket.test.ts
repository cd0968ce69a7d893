/** WebSockets as clients and servers of the world make them, through the queue and the tunnel. */
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import t, { type Test } from 'tap'
import { type ClientOptions, WebSocket, WebSocketServer } from 'ws'
import { parseConfig } from '../../src/config/load.js'
import { connect, type Rig, startRig, turns } from '../proxy/harness.js'

const MEGABYTE = 1024 * 1024
const HANDSHAKE =
  'GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
  'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n'

interface Stage {
  readonly rig: Rig
  readonly config: object
  /** Those of the upstream. */
  readonly sockets: ReadonlySet<Socket>
  readonly server: WebSocketServer
  open(options?: ClientOptions): WebSocket
}

interface Options {
  readonly rate?: string
  readonly capacity?: number
  readonly deflate?: boolean
  /** What the upstream does with an upgrade instead of accepting it. */
  readonly upgrade?: (req: IncomingMessage, socket: Socket) => void
}

/** An echo of messages behind a proxy. At the end of the test both have no connection left. */
async function stage(t: Test, options: Options = {}): Promise<Stage> {
  const { rate = '1000000/s', capacity = 1_000, deflate = false, upgrade } = options
  const server = new WebSocketServer({ noServer: true, perMessageDeflate: deflate, maxPayload: 8 * MEGABYTE })
  server.on('connection', socket => {
    socket.on('message', (data, binary) => {
      if (data.toString() === 'reset') (socket as unknown as { _socket: Socket })._socket.resetAndDestroy()
      else if (data.toString() === 'close') socket.close(4_001, 'as told')
      else socket.send(data, { binary })
    })
    socket.on('error', () => undefined)
  })
  const http = createServer((_req: IncomingMessage, res: ServerResponse) => res.end('ok'))
  const sockets = await listen(http)
  http.on('upgrade', (req, socket, head) => {
    if (upgrade !== undefined) upgrade(req, socket as Socket)
    else server.handleUpgrade(req, socket as Socket, head, client => server.emit('connection', client, req))
  })
  const config = {
    listen: '127.0.0.1:0',
    upstream: `http://127.0.0.1:${(http.address() as AddressInfo).port}`,
    buckets: { all: { key: 'all', rate, capacity } },
    routes: [{ name: 'ws', buckets: ['all'] }],
  }
  const rig = await startRig(t, config, { realPacer: rate === '1000000/s' })
  const clients: WebSocket[] = []
  t.teardown(async () => {
    for (const client of clients) client.terminate()
    await settled(() => rig.proxy.context.inProgress === 0 && rig.proxy.context.routes[0]!.upstream.gate.inFlight === 0)
    await rig.proxy.drain(0)
    await settled(() => sockets.size === 0)
    const left = {
      sockets: sockets.size,
      inProgress: rig.proxy.context.inProgress,
      queued: rig.proxy.context.shaper.queued,
    }
    http.close()
    server.close()
    if (JSON.stringify(left) !== '{"sockets":0,"inProgress":0,"queued":0}') throw new Error(JSON.stringify(left))
  })
  return {
    rig,
    config,
    sockets,
    server,
    open(more = {}) {
      const client = new WebSocket(`ws://127.0.0.1:${rig.port}/chat`, { perMessageDeflate: deflate, ...more })
      client.on('error', () => undefined)
      clients.push(client)
      return client
    },
  }
}

async function listen(http: Server): Promise<ReadonlySet<Socket>> {
  const sockets = new Set<Socket>()
  http.on('connection', socket => {
    sockets.add(socket)
    socket.on('error', () => undefined).once('close', () => sockets.delete(socket))
  })
  await once(http.listen(0, '127.0.0.1'), 'listening')
  return sockets
}

/** Until it holds, or long enough that it never will. */
async function settled(holds: () => boolean): Promise<void> {
  for (const end = performance.now() + 10_000; !holds() && performance.now() < end; ) await turns(10)
}

async function echoOf(client: WebSocket, send: () => void): Promise<{ data: Buffer; binary: boolean }> {
  send()
  const [data, binary] = (await once(client, 'message')) as [Buffer, boolean]
  return { data, binary }
}

for (const deflate of [false, true]) {
  t.test(`large frames come back as they went, ${deflate ? 'with' : 'without'} permessage-deflate`, async t => {
    const { open } = await stage(t, { deflate })
    const client = open()
    await once(client, 'open')
    t.equal(client.extensions.includes('permessage-deflate'), deflate)
    for (const size of [0, 1, 125, 126, 65_535, 65_536, MEGABYTE]) {
      const bytes = randomBytes(size)
      const binary = await echoOf(client, () => client.send(bytes))
      t.ok(binary.binary && binary.data.equals(bytes), `${size} bytes`)
      const letters = 'aé€'.repeat(Math.ceil(size / 3))
      const text = await echoOf(client, () => client.send(letters))
      t.ok(!text.binary && text.data.toString() === letters, `${size} characters`)
    }
    const parts = Array.from({ length: 16 }, () => randomBytes(MEGABYTE / 16))
    const whole = await echoOf(client, () => {
      for (const [index, part] of parts.entries()) client.send(part, { fin: index === parts.length - 1, binary: true })
    })
    t.ok(whole.data.equals(Buffer.concat(parts)), 'in fragments')
  })
}

t.test('twenty clients at once, each with its own frames', async t => {
  const { open } = await stage(t)
  await Promise.all(
    Array.from({ length: 20 }, async () => {
      const client = open()
      await once(client, 'open')
      for (let count = 0; count < 5; count += 1) {
        const bytes = randomBytes(MEGABYTE / 4)
        t.ok((await echoOf(client, () => client.send(bytes))).data.equals(bytes))
      }
    }),
  )
})

t.test('ping, pong and their payload pass both ways', async t => {
  const { open, server } = await stage(t)
  const client = open()
  await once(client, 'open')
  client.ping('are you there')
  t.equal(String((await once(client, 'pong'))[0]), 'are you there')
  const [other] = server.clients
  other!.ping('and you')
  t.equal(String((await once(other!, 'pong'))[0]), 'and you')
})

t.test('close codes and reasons pass both ways', async t => {
  const { open, server } = await stage(t)
  const client = open()
  await once(client, 'open')
  const [other] = server.clients
  client.close(4_000, 'enough')
  const [code, reason] = await once(other!, 'close')
  t.same([code, String(reason)], [4_000, 'enough'])
  const told = open()
  await once(told, 'open')
  told.send('close')
  const [code2, reason2] = await once(told, 'close')
  t.same([code2, String(reason2)], [4_001, 'as told'])
})

t.test('a reset of either side ends the other, 1006', async t => {
  const { open, server } = await stage(t)
  const first = open()
  await once(first, 'open')
  first.send('reset')
  t.equal((await once(first, 'close'))[0], 1_006)
  const second = open()
  await once(second, 'open')
  const [other] = [...server.clients].filter(({ readyState }) => readyState === WebSocket.OPEN)
  ;(second as unknown as { _socket: Socket })._socket.resetAndDestroy()
  t.equal((await once(other!, 'close'))[0], 1_006)
})

t.test('clients that reset before, during and after the handshake', async t => {
  const { rig, open } = await stage(t)
  for (let turn = 0; turn < 40; turn += 1) {
    const client = await connect(t, rig)
    client.send(HANDSHAKE.slice(0, turn % 4 === 0 ? 60 : undefined))
    await turns(turn >> 1)
    client.resetConnection()
  }
  const client = open()
  await once(client, 'open')
  t.equal(String((await echoOf(client, () => client.send('still there'))).data), 'still there')
})

for (const [when, behave] of [
  ['at once', (socket: Socket) => socket.resetAndDestroy()],
  ['in the middle of its answer', (socket: Socket) => socket.write('HTTP/1.1 101 Sw', () => socket.resetAndDestroy())],
  ['by an end without an answer', (socket: Socket) => socket.end()],
] as const) {
  t.test(`an upstream that breaks the handshake ${when}: 502`, async t => {
    const { open, rig } = await stage(t, { upgrade: (_req, socket) => void behave(socket) })
    for (let count = 0; count < 3; count += 1) {
      const [, answer] = (await once(open(), 'unexpected-response')) as [unknown, IncomingMessage]
      t.equal(answer.statusCode, 502)
    }
    t.same(await rig.finished(3), ['ws failed 502', 'ws failed 502', 'ws failed 502'])
  })
}

t.test('an upstream that breaks right after its 101 ends the client', async t => {
  const { open } = await stage(t, {
    upgrade: (_req, socket) =>
      void socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n', () =>
        socket.resetAndDestroy(),
      ),
  })
  await new Promise(resolve => open().once('close', resolve))
})

for (const status of [401, 503]) {
  t.test(`an upstream that refuses with ${status}: its answer passes, body included`, async t => {
    const { open, rig } = await stage(t, {
      upgrade: (_req, socket) =>
        socket.end(`HTTP/1.1 ${status} No\r\nX-Why: because\r\nContent-Length: 7\r\nConnection: close\r\n\r\nno, you`),
    })
    const [, answer] = (await once(open(), 'unexpected-response')) as [unknown, IncomingMessage]
    let body = ''
    for await (const chunk of answer) body += chunk
    t.same([answer.statusCode, answer.headers['x-why'], body], [status, 'because', 'no, you'])
    t.same(await rig.finished(1), [`ws forwarded ${status}`])
  })
}

t.test('a queued handshake is opened in its turn; one too many gets 429', async t => {
  const { open, rig } = await stage(t, { rate: '1/s', capacity: 3 })
  const first = open()
  await once(first, 'open')
  const second = open()
  await rig.until(({ queued }) => queued.length === 1)
  const third = open()
  await rig.until(({ queued }) => queued.length === 2)
  const [, answer] = (await once(open(), 'unexpected-response')) as [unknown, IncomingMessage]
  t.equal(answer.statusCode, 429)
  t.ok(answer.headers['retry-after'])
  answer.resume()
  t.equal(second.readyState, WebSocket.CONNECTING)
  rig.pacer.runUntil(1_000)
  await once(second, 'open')
  t.equal(third.readyState, WebSocket.CONNECTING)
  rig.pacer.runUntil(2_000)
  await once(third, 'open')
  t.equal(String((await echoOf(third, () => third.send('late'))).data), 'late')
})

t.test('a reload does not affect open and queued tunnels', async t => {
  const { open, rig, config } = await stage(t, { rate: '1/s', capacity: 3 })
  const first = open()
  await once(first, 'open')
  const second = open()
  await rig.until(({ queued }) => queued.length === 1)
  const buckets = { all: { key: 'all', rate: '10/s', capacity: 3 } }
  await rig.proxy.reload(parseConfig(JSON.stringify({ ...config, buckets })))
  t.equal(String((await echoOf(first, () => first.send('still'))).data), 'still')
  rig.pacer.runUntil(1_000)
  await once(second, 'open')
  t.equal(String((await echoOf(second, () => second.send('here'))).data), 'here')
})

t.test('draining opens queued tunnels, and ends open tunnels after everything else is answered', async t => {
  const { open, rig, sockets } = await stage(t, { rate: '1/s', capacity: 3 })
  const first = open()
  await once(first, 'open')
  const second = open()
  await rig.until(({ queued }) => queued.length === 1)
  const closed = Promise.all([once(first, 'close'), once(second, 'close')])
  const opened = once(second, 'open')
  const drained = rig.proxy.drain(60_000)
  t.equal(String((await echoOf(first, () => first.send('still'))).data), 'still', 'open while others wait')
  rig.pacer.runUntil(1_000)
  await opened
  await Promise.all([closed, drained])
  await settled(() => sockets.size === 0)
  t.equal(sockets.size, 0, 'the upstream has none left')
})
