/** gRPC through the proxy: its frames, its statuses and its trailers over node:http2. */
import { constants, createServer, type IncomingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { eventually, httpUpstream, startRig } from '../harness.js'
import { ask, openSession } from './h2-client.js'

type Test = Parameters<typeof openSession>[0]

const OK = 0
const DEADLINE_EXCEEDED = 4
const NOT_FOUND = 5
const RESOURCE_EXHAUSTED = 8
const UNIMPLEMENTED = 12
const UNAVAILABLE = 14

/** A message as gRPC frames it: whether it is compressed, its length, its bytes. */
function frame(text: string): Buffer {
  const head = Buffer.alloc(5)
  head.writeUInt32BE(Buffer.byteLength(text), 1)
  return Buffer.concat([head, Buffer.from(text)])
}

/** Calls back with each message as it is whole. */
function onMessages(stream: NodeJS.ReadableStream, heard: (text: string) => void): void {
  let rest = Buffer.alloc(0)
  stream.on('data', (bytes: Buffer) => {
    rest = Buffer.concat([rest, bytes])
    while (rest.length >= 5 && rest.length >= 5 + rest.readUInt32BE(1)) {
      const end = 5 + rest.readUInt32BE(1)
      heard(String(rest.subarray(5, end)))
      rest = rest.subarray(end)
    }
  })
}

/** `say` and `chat` answer with what they hear, `fail` with a status alone, `hang` never. */
async function grpcServer(t: Test) {
  const seen: string[] = []
  const server = createServer()
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => undefined)
    const path = headers[':path']
    const head = { ':status': 200, 'content-type': 'application/grpc' }
    if (path === '/test.Echo/fail') {
      return stream.respond(
        { ...head, 'grpc-status': `${NOT_FOUND}`, 'grpc-message': 'nothing there' },
        { endStream: true },
      )
    }
    if (path === '/test.Echo/hang') return
    stream.respond(head, { waitForTrailers: true })
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': `${OK}`, 'x-trailer': 'yes' }))
    onMessages(stream, text => {
      seen.push(text)
      stream.write(frame(text))
    })
    stream.on('end', () => stream.end())
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen }
}

interface Result {
  readonly text: string
  readonly code: number
  readonly details: string
  /** The trailers, or the head of an answer that has nothing else. */
  readonly trailers: IncomingHttpHeaders
}

function clientOf(t: Test, port: number) {
  const session = openSession(t, port)
  const open = (name: string, headers: Record<string, string> = {}) => {
    const head = {
      ':method': 'POST',
      ':path': `/test.Echo/${name}`,
      'content-type': 'application/grpc',
      te: 'trailers',
    }
    const stream = session.request({ ...head, ...headers })
    stream.on('error', () => undefined)
    return stream
  }
  const call = (name: string, text: string, headers: Record<string, string> = {}): Promise<Result> => {
    const stream = open(name, headers)
    return new Promise(resolve => {
      let heard = ''
      let trailers: IncomingHttpHeaders = {}
      onMessages(stream, message => {
        heard += message
      })
      for (const event of ['response', 'trailers']) {
        stream.on(event, (fields: IncomingHttpHeaders) => {
          trailers = fields
        })
      }
      // Not at once: Node's client ends in std::bad_alloc if its session is destroyed while a stream closes.
      stream.on('close', () =>
        setImmediate(() => {
          const { 'grpc-status': code = 'none', 'grpc-message': details = '' } = trailers as Record<string, string>
          resolve({ text: heard, code: Number(code), details: decodeURIComponent(details), trailers })
        }),
      )
      stream.end(frame(text))
    })
  }
  return { open, call }
}

/** Enough of protocol buffers to read a status: field number to its values. */
function fields(bytes: Buffer): Map<number, (number | Buffer)[]> {
  const found = new Map<number, (number | Buffer)[]>()
  let at = 0
  const varint = (): number => {
    let value = 0
    for (let shift = 1; ; shift *= 128) {
      const byte = bytes[at++]!
      value += (byte & 127) * shift
      if (byte < 128) return value
    }
  }
  while (at < bytes.length) {
    const tag = varint()
    const number = tag >> 3
    let value: number | Buffer = varint()
    if ((tag & 7) === 2) {
      const length = value
      value = bytes.subarray(at, at + length)
      at += length
    }
    found.set(number, [...(found.get(number) ?? []), value])
  }
  return found
}

const BUCKETS = { all: { key: 'all', rate: '1/s', capacity: 3 } }

t.test('calls pass with their messages, statuses and trailers, also over TLS-less HTTP/2 with queueing', async t => {
  const server = await grpcServer(t)
  const buckets = { all: { key: 'all', rate: '200/s', capacity: 100 } }
  const config = { upstream: { url: server.url, http2: true }, buckets, routes: [{ name: 'all' }] }
  const rig = await startRig(t, config, { realPacer: true })
  const { open, call } = clientOf(t, rig.port)
  t.match(await call('say', 'hello'), { text: 'hello', code: OK, trailers: { 'x-trailer': 'yes' } })
  t.match(await call('fail', ''), { text: '', code: NOT_FOUND, details: 'nothing there' })
  t.equal((await call('say', 'x'.repeat(300_000))).text.length, 300_000)
  const chat = open('chat')
  const heard: string[] = []
  onMessages(chat, message => heard.push(message))
  for (const message of ['a', 'b', 'c']) {
    chat.write(frame(message))
    await eventually(() => heard.at(-1) === message)
  }
  const ended = new Promise(resolve => chat.once('trailers', resolve))
  chat.end()
  t.match(await ended, { 'grpc-status': `${OK}` })
  t.strictSame(heard, ['a', 'b', 'c'])
  const many = await Promise.all(Array.from({ length: 30 }, (_, index) => call('say', `${index}`)))
  t.ok(many.every(({ text }, index) => text === `${index}`))
})

t.test('a rejection is RESOURCE_EXHAUSTED with RetryInfo', async t => {
  const server = await grpcServer(t)
  const config = { upstream: { url: server.url, http2: true }, buckets: BUCKETS, routes: [{ name: 'all' }] }
  const rig = await startRig(t, config)
  const { call } = clientOf(t, rig.port)
  t.equal((await call('say', 'first')).text, 'first')
  const waiting = [call('say', 'second'), call('say', 'third')]
  await rig.until(({ queued }) => queued.length === 2)
  const { code, details, trailers } = await call('say', 'too many')
  t.match({ code, details }, { code: RESOURCE_EXHAUSTED, details: 'bucket "all" is full: 3 of 3' })
  const status = fields(Buffer.from(String(trailers['grpc-status-details-bin']), 'base64'))
  t.equal(status.get(1)![0], 8)
  t.equal(String(status.get(2)![0]), 'bucket "all" is full: 3 of 3')
  const any = fields(status.get(3)![0] as Buffer)
  t.equal(String(any.get(1)![0]), 'type.googleapis.com/google.rpc.RetryInfo')
  const delay = fields(fields(any.get(2)![0] as Buffer).get(1)![0] as Buffer)
  t.strictSame([delay.get(1), delay.get(2)], [[1], undefined], 'one second')
  t.match(rig.outcomes.at(-1), 'all rejected 429')
  rig.pacer.runUntil(1_000)
  rig.pacer.runUntil(2_000)
  t.match(await Promise.all(waiting), [{ text: 'second' }, { text: 'third' }])
})

t.test('grpc-timeout is a deadline: it is known on arrival and at the release', async t => {
  const server = await grpcServer(t)
  const buckets = { all: { key: 'all', rate: '1/20s', capacity: 3 } }
  const config = { upstream: { url: server.url, http2: true }, buckets, routes: [{ name: 'all' }] }
  const rig = await startRig(t, config)
  const { call } = clientOf(t, rig.port)
  await call('say', 'first')
  void call('say', 'second', { 'grpc-timeout': '600S' })
  await rig.until(({ queued }) => queued.length === 1)
  const early = await call('say', 'third', { 'grpc-timeout': '30000m' })
  t.equal(early.code, RESOURCE_EXHAUSTED, 'forty seconds of wait, thirty left')
  t.match(rig.givenUp, [{ at: 'arrival', source: 'known' }])
  t.strictSame(server.seen, ['first'])
})

t.test('expiries are DEADLINE_EXCEEDED, outages UNAVAILABLE', async t => {
  const server = await grpcServer(t)
  const routes = [{ name: 'all', maxWait: '1500ms' }]
  const rig = await startRig(t, { upstream: { url: server.url, http2: true }, buckets: BUCKETS, routes })
  const { call } = clientOf(t, rig.port)
  await call('say', 'first')
  const late = call('say', 'second')
  await rig.until(({ queued }) => queued.length === 1)
  rig.proxy.context.routes[0]!.lane.gate.maxInFlight = 0
  rig.pacer.runUntil(1_600)
  t.equal((await late).code, DEADLINE_EXCEEDED)
  t.match(rig.outcomes.at(-1), 'all expired 503')
  const upstream = { url: 'http://127.0.0.1:9', http2: true, breaker: false }
  const down = await startRig(t, { upstream, routes: [{ name: 'all', mode: 'off' }] })
  const refused = await clientOf(t, down.port).call('say', 'x')
  t.match(refused, { code: UNAVAILABLE, details: 'the upstream refused the connection' })
  const none = await startRig(t, {
    upstream: server.url,
    routes: [{ name: 'all', match: { path: '/other' }, mode: 'off' }],
  })
  t.equal((await clientOf(t, none.port).call('say', 'x')).code, UNIMPLEMENTED, 'no route')
  const draining = call('say', 'third')
  await rig.until(({ queued }) => queued.length === 2)
  const drained = rig.proxy.drain(1)
  t.equal((await draining).code, UNAVAILABLE, 'shutting down')
  await drained
})

t.test('a cancelled call leaves its queue, and other requests get problem documents', async t => {
  const server = await grpcServer(t)
  const config = { upstream: { url: server.url, http2: true }, buckets: BUCKETS, routes: [{ name: 'all' }] }
  const rig = await startRig(t, config)
  const { open, call } = clientOf(t, rig.port)
  await call('say', 'first')
  const waiting = open('say')
  waiting.end(frame('second'))
  await rig.until(({ queued }) => queued.length === 1)
  waiting.close(constants.NGHTTP2_CANCEL)
  await rig.finished(2)
  t.equal(rig.outcomes[1], 'all cancelled 499')
  const session = openSession(t, rig.port)
  void ask(session)
  void ask(session)
  const rejected = await ask(session, { 'content-type': 'application/json' })
  t.match(rejected, { status: 429, headers: { 'content-type': 'application/problem+json' } })
})

t.test('gRPC needs HTTP/2 at the upstream: over HTTP/1.1 trailers are passed on if it sends any', async t => {
  const upstream = await httpUpstream(t, (_req, res) => {
    res.writeHead(200, { 'content-type': 'application/grpc', trailer: 'grpc-status' })
    res.write(Buffer.from([0, 0, 0, 0, 2, 0x6f, 0x6b]))
    res.addTrailers({ 'grpc-status': '0' })
    res.end()
  })
  const rig = await startRig(t, { upstream: upstream.url, routes: [{ name: 'all', mode: 'off' }] })
  t.equal((await clientOf(t, rig.port).call('say', 'x')).text, 'ok')
})
