/** Upstreams on Unix sockets. */
import { existsSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener } from 'node:http'
import { createServer as createHttp2Server } from 'node:http2'
import type { Server } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { WebSocket, WebSocketServer } from 'ws'
import { socketFolder } from '../servers/socket-folder.js'
import { askOnce, get, OFF, post, startRig } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

async function listenOn(t: Teardown, server: Server, path: string): Promise<void> {
  await new Promise<void>(resolve => server.listen(path, resolve))
  t.teardown(() => new Promise(resolve => server.close(resolve)))
}

/** Answers with the Host header, and keeps what came. */
async function upstreamAt(t: Teardown, path: string): Promise<IncomingMessage[]> {
  const requests: IncomingMessage[] = []
  const answer: RequestListener = (req, res) => {
    requests.push(req)
    req.resume().on('end', () => res.end(req.headers.host))
  }
  const server = createServer(answer)
  await listenOn(t, server, path)
  t.teardown(() => server.closeAllConnections())
  return requests
}

t.test('requests go to a Unix socket, on one connection, with the Host that the client sent', async t => {
  const path = join(socketFolder(t), 'app.sock')
  const requests = await upstreamAt(t, path)
  const rig = await startRig(t, { ...OFF, upstream: `unix:${path}` })
  t.match(await askOnce(t, rig, get('/one?a=1')), { status: 200, body: Buffer.from('example.test') })
  t.match(await askOnce(t, rig, post('hello', '/two')), { status: 200, body: Buffer.from('example.test') })
  t.same(
    requests.map(({ method, url }) => `${method} ${url}`),
    ['GET /one?a=1', 'POST /two'],
  )
  t.equal(requests[0]!.socket, requests[1]!.socket, 'the connection is kept')
  t.equal(requests[0]!.headers['x-forwarded-for'], '127.0.0.1')
})

t.test('with "hostHeader": "upstream" a Unix upstream gets the Host localhost, as from nginx', async t => {
  const path = join(socketFolder(t), 'app.sock')
  await upstreamAt(t, path)
  const rig = await startRig(t, { ...OFF, upstream: { url: `unix:${path}`, hostHeader: 'upstream' } })
  t.match(await askOnce(t, rig, get()), { status: 200, body: Buffer.from('localhost') })
})

t.test('the pacing thread writes to a Unix socket, too', async t => {
  const path = join(socketFolder(t), 'app.sock')
  const requests = await upstreamAt(t, path)
  const limits = { buckets: { all: { key: 'all', rate: '100/s', capacity: 20 } } }
  const rig = await startRig(t, { ...limits, upstream: `unix:${path}` }, { realPacer: 'precise' })
  const answers = await Promise.all(Array.from({ length: 20 }, () => askOnce(t, rig, get('/paced'))))
  t.same(
    answers.map(({ status }) => status),
    answers.map(() => 200),
  )
  t.equal(requests.length, 20)
})

t.test('a Unix upstream over HTTP/2', async t => {
  const path = join(socketFolder(t), 'app.sock')
  const server = createHttp2Server()
  server.on('session', session => t.teardown(() => session.destroy()))
  server.on('stream', (stream, headers) => stream.end(`${headers[':scheme']} ${headers[':authority']}`))
  await listenOn(t, server, path)
  const rig = await startRig(t, { ...OFF, upstream: { url: `unix:${path}`, http2: true } })
  t.match(await askOnce(t, rig, get()), { status: 200, body: Buffer.from('http example.test') })
})

t.test('a WebSocket to a Unix upstream', async t => {
  const path = join(socketFolder(t), 'app.sock')
  const server = createServer()
  const sockets = new WebSocketServer({ server })
  sockets.on('connection', socket => socket.on('message', data => socket.send(`${data} back`)))
  await listenOn(t, server, path)
  t.teardown(() => {
    for (const client of sockets.clients) client.terminate()
  })
  const rig = await startRig(t, { ...OFF, upstream: `unix:${path}` })
  const client = new WebSocket(`ws://127.0.0.1:${rig.port}/`)
  client.on('open', () => client.send('there and'))
  const [message] = await new Promise<unknown[]>(resolve => client.on('message', (...got) => resolve(got)))
  t.equal(String(message), 'there and back')
  client.terminate()
})

t.test('why a Unix upstream does not answer', async t => {
  const path = join(socketFolder(t), 'app.sock')
  const rig = await startRig(t, { ...OFF, upstream: { url: `unix:${path}`, breaker: false } })
  t.match(await askOnce(t, rig, get()), { status: 502 })
  writeFileSync(path, '')
  t.match(await askOnce(t, rig, get()), { status: 502 })
  t.same(rig.failures, ["all the upstream's socket does not exist", 'all the upstream refused the connection'])
  rmSync(path)
  await upstreamAt(t, path)
  t.match(await askOnce(t, rig, get()), { status: 200 })
  t.ok(existsSync(path))
})
