/** gRPC through the proxy, with the client and the server of @grpc/grpc-js. */
import * as grpc from '@grpc/grpc-js'
import t from 'tap'
import { eventually, httpUpstream, startRig } from '../harness.js'
import { ask, openSession } from './h2-client.js'

interface Teardown {
  teardown(run: () => unknown): void
}

const asIs = (value: Buffer): Buffer => value
const method = (path: string, requestStream: boolean, responseStream: boolean) => ({
  path: `/test.Echo/${path}`,
  requestStream,
  responseStream,
  requestSerialize: asIs,
  requestDeserialize: asIs,
  responseSerialize: asIs,
  responseDeserialize: asIs,
})
const service = {
  say: method('say', false, false),
  fail: method('fail', false, false),
  chat: method('chat', true, true),
  hang: method('hang', false, false),
}
const EchoClient = grpc.makeGenericClientConstructor(service, 'Echo')

async function grpcServer(t: Teardown) {
  const server = new grpc.Server()
  const seen: string[] = []
  server.addService(service, {
    say(call: grpc.ServerUnaryCall<Buffer, Buffer>, done: grpc.sendUnaryData<Buffer>) {
      seen.push(String(call.request))
      const trailer = new grpc.Metadata()
      trailer.set('x-trailer', 'yes')
      done(null, call.request, trailer)
    },
    fail(_call: unknown, done: grpc.sendUnaryData<Buffer>) {
      done({ code: grpc.status.NOT_FOUND, details: 'nothing there' })
    },
    chat(call: grpc.ServerDuplexStream<Buffer, Buffer>) {
      call.on('data', message => call.write(message))
      call.on('end', () => call.end())
    },
    hang: () => undefined,
  })
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    ),
  )
  t.teardown(() => server.forceShutdown())
  return { url: `http://127.0.0.1:${port}`, seen }
}

function clientOf(t: Teardown, port: number) {
  const client = new EchoClient(`127.0.0.1:${port}`, grpc.credentials.createInsecure())
  t.teardown(() => client.close())
  const call = (name: 'say' | 'fail' | 'hang', text: string, options: grpc.CallOptions = {}) =>
    new Promise<{ text?: string; error?: grpc.ServiceError; trailers?: grpc.Metadata }>(resolve => {
      const sent = client[name]!(
        Buffer.from(text),
        new grpc.Metadata(),
        options,
        (error: grpc.ServiceError, value: Buffer) =>
          setImmediate(() => resolve(error ? { error } : { text: String(value), trailers })),
      )
      let trailers = new grpc.Metadata()
      sent.on('status', ({ metadata }: grpc.StatusObject) => {
        trailers = metadata
      })
    })
  return { client, call }
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
  const { client, call } = clientOf(t, rig.port)
  const { text, trailers } = await call('say', 'hello')
  t.equal(text, 'hello')
  t.strictSame(trailers!.get('x-trailer'), ['yes'])
  t.match((await call('fail', '')).error, { code: grpc.status.NOT_FOUND, details: 'nothing there' })
  t.equal((await call('say', 'x'.repeat(300_000))).text!.length, 300_000)
  const chat = client.chat!() as grpc.ClientDuplexStream<Buffer, Buffer>
  const heard: string[] = []
  chat.on('data', message => heard.push(String(message)))
  for (const message of ['a', 'b', 'c']) {
    chat.write(Buffer.from(message))
    await eventually(() => heard.at(-1) === message)
  }
  chat.end()
  await new Promise(resolve => chat.once('status', resolve))
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
  const { error } = await call('say', 'too many')
  t.match(error, { code: grpc.status.RESOURCE_EXHAUSTED, details: 'bucket "all" is full: 3 of 3' })
  const [details] = error!.metadata.get('grpc-status-details-bin') as Buffer[]
  const status = fields(details!)
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
  void call('say', 'second', { deadline: Date.now() + 600_000 })
  await rig.until(({ queued }) => queued.length === 1)
  const early = await call('say', 'third', { deadline: Date.now() + 30_000 })
  t.equal(early.error!.code, grpc.status.RESOURCE_EXHAUSTED, 'forty seconds of wait, thirty left')
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
  t.equal((await late).error!.code, grpc.status.DEADLINE_EXCEEDED)
  t.match(rig.outcomes.at(-1), 'all expired 503')
  const upstream = { url: 'http://127.0.0.1:9', http2: true, breaker: false }
  const down = await startRig(t, { upstream, routes: [{ name: 'all', mode: 'off' }] })
  const { error } = await clientOf(t, down.port).call('say', 'x')
  t.match(error, { code: grpc.status.UNAVAILABLE, details: 'the upstream refused the connection' })
  const none = await startRig(t, {
    upstream: server.url,
    routes: [{ name: 'all', match: { path: '/other' }, mode: 'off' }],
  })
  t.equal((await clientOf(t, none.port).call('say', 'x')).error!.code, grpc.status.UNIMPLEMENTED, 'no route')
  const draining = call('say', 'third')
  await rig.until(({ queued }) => queued.length === 2)
  const drained = rig.proxy.drain(1)
  t.equal((await draining).error!.code, grpc.status.UNAVAILABLE, 'shutting down')
  await drained
})

t.test('a cancelled call leaves its queue, and other requests get problem documents', async t => {
  const server = await grpcServer(t)
  const config = { upstream: { url: server.url, http2: true }, buckets: BUCKETS, routes: [{ name: 'all' }] }
  const rig = await startRig(t, config)
  const { client, call } = clientOf(t, rig.port)
  await call('say', 'first')
  const waiting = client.say!(Buffer.from('second'), () => undefined) as grpc.ClientUnaryCall
  await rig.until(({ queued }) => queued.length === 1)
  waiting.cancel()
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
