/** `limits.minBodyRate`: a client that owes bytes and sends too few is answered 408. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import {
  type Client,
  connect,
  get,
  OFF,
  ONE_A_SECOND,
  occupy,
  type Rig,
  rawUpstream,
  STREAMED,
  stalled,
  startRig,
  taken,
  turns,
} from './harness.js'

type Test = Parameters<typeof startRig>[0]

/** 4,800 bytes in 20 s. */
const RATE = 240

const LATE = { bodyTimeout: '1h' }

function head(length: number, ...headers: string[]): string {
  return `POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${length}\r\n${headers.map(each => `${each}\r\n`).join('')}\r\n`
}

async function send(t: Test, rig: Rig, text: string): Promise<Client> {
  const client = await connect(t, rig)
  client.send(text)
  await turns()
  return client
}

async function wait(rig: Rig, ms: number): Promise<void> {
  rig.clock.runUntil(rig.clock.now() + ms)
  await turns()
}

for (const [what, length] of [
  ['is read before its request is sent', 60_000],
  ['is streamed', 10 * STREAMED],
] as const) {
  t.test(`a body that ${what}: 408 below ${RATE} bytes/s over 20 s`, async t => {
    const upstream = await rawUpstream(t)
    const rig = await startRig(
      t,
      { upstream: { url: upstream.url, idleTimeout: '1h' }, limits: LATE, ...OFF },
      { virtualClock: true },
    )
    const client = await send(t, rig, head(length))
    for (let window = 0; window < 5; window += 1) {
      client.send(Buffer.alloc(2_400))
      await wait(rig, 10_000)
      client.send(Buffer.alloc(2_400))
      await wait(rig, 9_999)
      await wait(rig, 1)
      t.equal(client.rest, '', 'just fast enough')
    }
    client.send(Buffer.alloc(4_799))
    await wait(rig, 19_999)
    t.equal(client.rest, '')
    await wait(rig, 1)
    const answer = await client.answer()
    t.same([answer.status, answer.header('connection')], [408, 'close'])
    t.equal(answer.json().detail, 'the request body came too slowly')
    t.same(await rig.finished(1), ['all failed 408'])
    await client.end()
    await turns()
    t.equal(rig.proxy.context.bodyBytes.used, 0)
    t.equal(rig.proxy.context.bodyLimits.size, 0)
  })
}

t.test('also while its request waits for its turn; others move up', async t => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'))
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND }, { virtualClock: true })
  await occupy(t, rig)
  const slow = await send(t, rig, head(1_000))
  const other = await send(t, rig, get('/other'))
  await wait(rig, 20_000)
  t.equal((await slow.answer()).status, 408)
  rig.pacer.runUntil(1_000)
  t.equal((await other.answer()).status, 200)
})

t.test('once an answer has begun, the connection is closed', async t => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc'))
  const rig = await startRig(t, { upstream: { url: upstream.url, idleTimeout: '1h' }, ...OFF }, { virtualClock: true })
  const client = await send(t, rig, head(STREAMED))
  await client.until(({ rest }) => rest.endsWith('abc'))
  await wait(rig, 20_000)
  t.notOk((await client.answer()).whole)
  await upstream.connections[0]!.until(({ closed }) => closed)
  t.same(await rig.finished(1), ['all failed 408'])
})

t.test('a body that is held by the upstream is not too slow', async t => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.pause())
  const rig = await startRig(t, { upstream: { url: upstream.url, idleTimeout: '1h' }, ...OFF }, { virtualClock: true })
  const client = await send(t, rig, head(64 * 1024 * 1024))
  client.send(Buffer.alloc(32 * 1024 * 1024))
  await stalled(() => taken(client))
  await wait(rig, 600_000)
  t.equal(client.rest, '')
  const [incoming] = upstream.connections
  incoming!.socket.removeAllListeners('data').resume()
  await stalled(() => taken(client))
  await wait(rig, 19_999)
  t.equal(client.rest, '', 'the time counts from when it is read again')
  // In the first 20 s the client has sent much.
  await wait(rig, 1)
  await wait(rig, 20_000)
  t.equal((await client.answer()).status, 408)
})

t.test('a body that nobody reads yet is not too slow', async t => {
  const upstream = await rawUpstream(t)
  for (const text of [head(STREAMED), head(STREAMED, 'Expect: 100-continue')]) {
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND }, { virtualClock: true })
    const first = await send(t, rig, get('/first'))
    const client = await send(t, rig, text)
    await rig.until(({ queued }) => queued.length === 1)
    await wait(rig, 50_000)
    t.same(rig.outcomes, [])
    for (const each of [first, client]) each.hangUp()
    await rig.finished(2)
  }
})

t.test('a body that is full or whole is not too slow', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(
    t,
    { upstream: { url: upstream.url, requestBuffer: 5_000 }, ...ONE_A_SECOND },
    { virtualClock: true },
  )
  await send(t, rig, get('/first'))
  const whole = await send(t, rig, `${head(5_000)}${'x'.repeat(5_000)}`)
  const full = await send(
    t,
    rig,
    `POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n${'x'.repeat(5_000)}`,
  )
  await wait(rig, 50_000)
  t.same(rig.outcomes, [])
  for (const each of [whole, full]) each.hangUp()
})

t.test('a body of unknown length may be as slow as it likes', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(
    t,
    { upstream: { url: upstream.url, idleTimeout: '1h' }, limits: { minBodyRate: 1_000_000 }, ...OFF },
    { virtualClock: true },
  )
  const client = await send(t, rig, 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n')
  await wait(rig, 1_000)
  await upstream.until(({ text }) => text.endsWith('1\r\nx\r\n'))
  await wait(rig, 3_000_000)
  client.send('1\r\ny\r\n')
  await upstream.until(({ text }) => text.endsWith('1\r\ny\r\n'))
  t.equal(client.rest, '')
})

t.test('a tunnel may be as slow as it likes', async t => {
  const upgraded = 'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n'
  const upstream = await rawUpstream(t, ({ socket, text }) => {
    if (text.endsWith('\r\n\r\n')) socket.write(upgraded)
  })
  const rig = await startRig(
    t,
    { upstream: upstream.url, limits: { minBodyRate: 1_000_000, tunnelIdleTimeout: '10h' }, ...OFF },
    { virtualClock: true },
  )
  const client = await send(
    t,
    rig,
    get('/', 'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhl'),
  )
  t.equal((await client.answer()).status, 101)
  await wait(rig, 3_000_000)
  client.send('x')
  await upstream.until(({ text }) => text.endsWith('x'))
  t.notOk(client.ended)
})

t.test('0 turns it off, and a reload changes it for bodies that begin later', async t => {
  const upstream = await rawUpstream(t)
  const config = (minBodyRate: number): object => ({
    listen: '127.0.0.1:0',
    upstream: { url: upstream.url, idleTimeout: '10h' },
    limits: { minBodyRate, ...LATE },
    ...OFF,
  })
  const rig = await startRig(t, config(0), { virtualClock: true })
  const before = await send(t, rig, head(STREAMED))
  await wait(rig, 1_000_000)
  t.equal(before.rest, '')
  await rig.proxy.reload(parseConfig(JSON.stringify(config(10))))
  const after = await send(t, rig, head(STREAMED))
  await wait(rig, 20_000)
  t.equal((await after.answer()).status, 408)
  t.equal(before.rest, '')
})
