/** The server for clients: writes, timeouts, memory, TLS handshakes. */
import { spawnSync } from 'node:child_process'
import { connect as tcpConnect } from 'node:net'
import t from 'tap'
import {
  connect,
  get,
  httpUpstream,
  OFF,
  ONE_A_SECOND,
  occupy,
  post,
  rawUpstream,
  stalled,
  startRig,
  TLS,
  taken,
  turns,
} from './harness.js'

t.test('a request and its answer take one write each way', async t => {
  const upstream = await rawUpstream(t, incoming => {
    incoming.socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  await client.ask(get())
  const pieces: string[] = []
  client.socket.on('data', piece => pieces.push(String(piece)))
  await client.ask(get())
  t.equal(pieces.length, 1, 'head and body come together')
  t.match(pieces[0], /^HTTP\/1\.1 200 OK\r\n.*\r\n\r\nok$/s)
})

t.test('keepAliveTimeout and headersTimeout run on the clock of the proxy, to the millisecond', async t => {
  const upstream = await httpUpstream(t)
  const limits = { keepAliveTimeout: '7s', headersTimeout: '3s' }
  const rig = await startRig(t, { upstream: upstream.url, limits, ...OFF }, { virtualClock: true })
  const pass = async (ms: number): Promise<void> => {
    rig.clock.runUntil(rig.clock.now() + ms)
    await turns()
  }
  const client = await connect(t, rig)
  t.match((await client.ask(get())).header('keep-alive'), 'timeout=7')
  await pass(6_999)
  t.equal((await client.ask(get())).status, 200, 'an answer starts it anew')
  client.send('GET / HT')
  await turns()
  await pass(2_999)
  t.equal(client.rest, '')
  await pass(1)
  t.equal((await client.answer()).status, 408)
  const idle = await connect(t, rig)
  await idle.ask(get())
  await pass(6_999)
  t.notOk(idle.ended)
  await pass(1)
  await idle.end()
  t.equal(idle.rest, '')
})

t.test('a reload changes the timeouts of what begins later', async t => {
  const { parseConfig } = await import('../../src/config/load.js')
  const upstream = await httpUpstream(t)
  const config = (keepAliveTimeout: string) => ({
    upstream: upstream.url,
    limits: { keepAliveTimeout },
    ...OFF,
  })
  const rig = await startRig(t, config('5s'), { virtualClock: true })
  const [early, late, begun] = [await connect(t, rig), await connect(t, rig), await connect(t, rig)]
  await early.ask(get())
  begun.send('GET / HT')
  await turns()
  await rig.proxy.reload(parseConfig(JSON.stringify(config('9s'))))
  t.match((await late.ask(get())).header('keep-alive'), 'timeout=9')
  rig.clock.runUntil(rig.clock.now() + 5_000)
  await early.end()
  await turns()
  t.notOk(late.ended)
  rig.clock.runUntil(rig.clock.now() + 4_000)
  await late.end()
  rig.clock.runUntil(rig.clock.now() + 1_000)
  t.equal((await begun.answer()).status, 408, 'after the ten seconds that it had')
})

t.test('what waits unparsed or unread is counted, and given back', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    req.resume()
    req.on('end', () => res.end('ok'))
  })
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  const { bodyBytes } = rig.proxy.context
  await occupy(t, rig)
  const behind = await connect(t, rig)
  behind.send(get('/a') + get('/b').repeat(100))
  await rig.until(({ queued }) => queued.length === 1)
  await turns()
  t.equal(bodyBytes.used, 100 * get('/b').length)
  const body = await connect(t, rig)
  body.send(post('x'.repeat(5_000)))
  await rig.until(({ queued }) => queued.length === 2)
  await turns()
  t.equal(bodyBytes.used, 100 * get('/b').length + 5_000)
  const much = await connect(t, rig)
  much.send(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50000000\r\n\r\n`)
  much.send(Buffer.alloc(50_000_000))
  await rig.until(({ queued }) => queued.length === 3)
  await stalled(() => taken(much))
  t.ok(bodyBytes.used < 300_000, `${bodyBytes.used} bytes`)
  much.resetConnection()
  behind.hangUp()
  await rig.finished(2)
  rig.pacer.runUntil(1_000)
  rig.pacer.runUntil(2_000)
  t.equal((await body.answer()).status, 200)
  await rig.finished(4)
  await turns()
  t.equal(bodyBytes.used, 0)
})

t.test('bytes that come one by one, behind a request or as chunks, cost little more than others', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    let bytes = 0
    req.on('data', (piece: Buffer) => {
      bytes += piece.length
    })
    req.on('end', () => res.end(String(bytes)))
  })
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const chunks = await connect(t, rig)
  const count = 60_000
  const before = process.memoryUsage().heapUsed
  const start = process.cpuUsage().user
  chunks.send(`POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${'1\r\nx\r\n'.repeat(count)}`)
  t.equal(await stalled(() => rig.proxy.context.bodyBytes.used), count)
  const cpu = (process.cpuUsage().user - start) / 1_000
  // With work that grows by the square it would be some seconds.
  t.ok(cpu < 1_000, `${cpu.toFixed(0)} ms of CPU`)
  t.ok(process.memoryUsage().heapUsed - before < 30_000_000, 'and no object for each of them')
  chunks.send('0\r\n\r\n')
  rig.pacer.runUntil(1_000)
  t.equal((await chunks.answer()).text, String(count))
})

t.test('a client that sends a whole request and a FIN after its answer has begun to flow gets all of it', async t => {
  const size = 3_000_000
  const upstream = await httpUpstream(t, (_req, res) => res.end('x'.repeat(size)))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.socket.pause()
  client.send(get('/'))
  await rig.finished(1)
  t.same(rig.outcomes, ['all forwarded 200'], 'the upstream is done, the client has not read')
  client.socket.end()
  await turns()
  client.socket.resume()
  t.equal((await client.answer()).body.length, size)
})

t.test('TLS: a client that never says hello, and one that says something else, are left', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { ...TLS, upstream: upstream.url, limits: { headersTimeout: '100ms' }, ...OFF })
  for (const bytes of ['', 'GET / HTTP/1.1\r\nHost: h\r\n\r\n']) {
    const socket = tcpConnect({ port: rig.port, host: '127.0.0.1' }).on('error', () => undefined)
    if (bytes !== '') socket.write(bytes)
    await new Promise(resolve => socket.resume().once('close', resolve))
  }
  t.same(rig.outcomes, [])
})

t.test('a body that comes with its head is sent on in order with what follows', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.pipe(res))
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc')
  await rig.until(({ queued }) => queued.length === 1)
  client.send('def')
  await turns()
  rig.pacer.runUntil(1_000)
  client.send('ghi')
  t.equal((await client.answer()).text, 'abcdefghi')
})

/** How a handshake begins. */
const CLIENT_HELLO = Buffer.from('1603010200010001fc0303', 'hex')

/** GET / over HTTP/2: the preface, empty SETTINGS, and HEADERS with `:authority: a`. */
const HTTP2_GET = Buffer.concat([
  Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
  Buffer.from('000000040000000000', 'hex'),
  Buffer.from('000006010500000001828684410161', 'hex'),
])

for (const [protocol, bytes, tls] of [
  ['HTTP/1.1', Buffer.from(get()), false],
  ['HTTP/2', HTTP2_GET, false],
  ['TLS', CLIENT_HELLO, true],
] as const) {
  t.test(`${protocol}: a client that has reset its connection before it is accepted gets nothing through`, async t => {
    const upstream = await httpUpstream(t)
    const client = { key: 'ip', rate: '1/s', capacity: 5 }
    const config = { upstream: upstream.url, buckets: { client }, routes: [{ name: 'all' }] }
    const rig = await startRig(t, tls ? { ...TLS, ...config } : config)
    // This process stands still meanwhile, so the connection waits to be accepted until it is reset.
    const code = `const socket = require('node:net').connect(${rig.port}, '127.0.0.1', () =>
      socket.write(Buffer.from('${bytes.toString('hex')}', 'hex'), () => socket.resetAndDestroy()))`
    t.equal(spawnSync(process.execPath, ['-e', code]).status, 0)
    // Connections are accepted in their order.
    const other = await connect(t, rig, { tls })
    t.equal((await other.ask(get())).status, 200)
    await turns()
    t.same(rig.outcomes, ['all forwarded 200'])
    t.same([...rig.proxy.context.bucketTable.keys('client')], ['127.0.0.1'])
  })
}
