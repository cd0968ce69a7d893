/** Clients on Unix sockets, and several listeners. */
import { existsSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { socketFolder } from '../servers/socket-folder.js'
import { askOnce, connect, get, httpUpstream, OFF, rawUpstream, startRig, TLS } from './harness.js'

const PAIR = TLS.listen.tls
const PER_CLIENT = { buckets: { client: { key: 'ip', rate: '1/h', capacity: 1, overflow: 'reject' } } }
const METER = { routes: [{ name: 'all', mode: 'meter' }] }

t.test('a Unix socket and a port at once, and the socket is removed at the end', async t => {
  const path = join(socketFolder(t), 'shaper.sock')
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    ...OFF,
    upstream: upstream.url,
    listen: ['127.0.0.1:0', { address: `unix:${path}`, mode: '0640' }],
  })
  t.same(rig.proxy.urls, [`http://127.0.0.1:${rig.port}`, `unix:${path}`])
  t.match(await askOnce(t, rig, get('/tcp')), { status: 200 })
  t.match(await askOnce(t, { path }, get('/unix')), { status: 200 })
  t.same(upstream.requests, ['GET /tcp', 'GET /unix'])
  t.equal(statSync(path).mode & 0o777, 0o640)
  await rig.proxy.drain(0)
  t.notOk(existsSync(path))
})

t.test('without a forwarded address all clients of a Unix socket are "unix"', async t => {
  const path = join(socketFolder(t), 'shaper.sock')
  const upstream = await rawUpstream(t, ({ socket }) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'))
  const rig = await startRig(t, { ...PER_CLIENT, ...METER, upstream: upstream.url, listen: `unix:${path}` })
  t.match(await askOnce(t, { path }, get('/', 'X-Forwarded-For: 192.0.2.1')), { status: 200 })
  t.match(await askOnce(t, { path }, get('/', 'X-Forwarded-For: 192.0.2.2')), { status: 429 }, 'it is not believed')
  t.match(upstream.text, /^X-Forwarded-For: 192\.0\.2\.1, unix\r$/m)
  t.ok(rig.proxy.context.bucketTable.peek('client', 'unix'))
})

t.test('a proxy on a Unix socket is trusted as one of loopback', async t => {
  const path = join(socketFolder(t), 'shaper.sock')
  const upstream = await rawUpstream(t, ({ socket }) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'))
  const config = { ...PER_CLIENT, ...METER, upstream: upstream.url, listen: `unix:${path}` }
  const rig = await startRig(t, { ...config, trustProxy: ['loopback'] })
  const from = (address: string) => askOnce(t, { path }, get('/', `X-Forwarded-For: ${address}`))
  t.match(await from('192.0.2.1'), { status: 200 })
  t.match(await from('192.0.2.2'), { status: 200 })
  t.match(await from('192.0.2.2'), { status: 429 })
  t.match(await askOnce(t, { path }, get()), { status: 200 })
  t.same(upstream.text.match(/^X-Forwarded-For: .*$/gm), [
    'X-Forwarded-For: 192.0.2.1',
    'X-Forwarded-For: 192.0.2.2',
    'X-Forwarded-For: unix',
  ])
  for (const key of ['192.0.2.1', '192.0.2.2', 'unix']) t.ok(rig.proxy.context.bucketTable.peek('client', key), key)
  await rig.proxy.drain(0)
  const other = await startRig(t, { ...config, trustProxy: ['10.0.0.0/8'] })
  t.match(await from('192.0.2.1'), { status: 200 })
  t.match(await from('192.0.2.2'), { status: 429 })
  t.equal(other.outcomes.length, 2)
})

t.test('TLS on one listener and none on the other; a hang-up on a Unix socket', async t => {
  const path = join(socketFolder(t), 'shaper.sock')
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    buckets: { all: { key: 'all', rate: '1/s', capacity: 5 } },
    routes: [{ name: 'all' }],
    upstream: upstream.url,
    listen: [`unix:${path}`, { address: '127.0.0.1:0', tls: PAIR }],
  })
  const { port } = new URL(rig.proxy.urls[1]!)
  const secure = await connect(t, { port: Number(port) }, { tls: true })
  t.match(await secure.ask(get('/secure')), { status: 200 })
  const waiting = await connect(t, { path })
  waiting.socket.write(get('/left'))
  await rig.until(({ queued }) => queued.length === 1)
  waiting.hangUp()
  await rig.until(({ outcomes }) => outcomes.includes('all cancelled 0') || outcomes.length > 1)
  t.match(rig.outcomes[1], /^all cancelled/)
  t.same(upstream.requests, ['GET /secure'])
})

t.test('an address that is in use ends what listens already', async t => {
  const path = join(socketFolder(t), 'shaper.sock')
  const first = await startRig(t, { ...OFF, upstream: 'echo:' })
  const taken = `127.0.0.1:${first.port}`
  await t.rejects(startRig(t, { ...OFF, upstream: 'echo:', listen: [`unix:${path}`, taken] }), { code: 'EADDRINUSE' })
  t.notOk(existsSync(path))
})

t.test('an answer that breaks off on a Unix socket, to a client of HTTP/1.0', async t => {
  const path = join(socketFolder(t), 'shaper.sock')
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n', () => socket.destroy())
  })
  const rig = await startRig(t, { ...OFF, upstream: upstream.url, listen: `unix:${path}` })
  const client = await connect(t, { path })
  client.socket.write('GET / HTTP/1.0\r\n\r\n')
  await rig.finished(1)
  t.match(rig.outcomes, [/^all (failed|forwarded)/])
})
