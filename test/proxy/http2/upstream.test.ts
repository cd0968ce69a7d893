/** Upstreams over HTTP/2: a stream is a connection that counts. */
import { spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import {
  constants,
  createSecureServer,
  createServer,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Stream,
  type ServerOptions,
} from 'node:http2'
import { type AddressInfo, createServer as createTcpServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { endWithThisProcess } from '../../servers/end-with-this-process.js'
import { freePort, isListening } from '../../servers/free-port.js'
import { until } from '../../servers/redis.js'
import {
  connect,
  eventually,
  get,
  occupy,
  post,
  rawUpstream,
  STREAMED,
  slotsOf,
  startRig,
  TLS,
  turns,
} from '../harness.js'
import {
  ask,
  block,
  END_HEADERS,
  END_STREAM,
  FRAME,
  frame,
  framesOf,
  openSession,
  PREFACE,
  request,
} from './h2-client.js'

interface Teardown {
  teardown(run: () => unknown): void
}

interface Upstream {
  readonly url: string
  readonly port: number
  readonly server: Http2Server
  /** How many connections there have been, and are. */
  sessions: number
  open: number
  readonly heads: IncomingHttpHeaders[]
}

type Handler = (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => void

function answerOk(stream: ServerHttp2Stream): void {
  stream.respond({ ':status': 200, 'content-length': 2 })
  stream.end('ok')
}

async function http2Upstream(
  t: Teardown,
  handler: Handler = answerOk,
  { tls = false, ...options }: ServerOptions & { tls?: boolean } = {},
): Promise<Upstream> {
  const { cert, key } = TLS.listen.tls
  const server = tls
    ? createSecureServer({ ...options, cert: readFileSync(cert), key: readFileSync(key) })
    : createServer(options)
  const upstream = { server, sessions: 0, open: 0, heads: [] as IncomingHttpHeaders[], url: '', port: 0 }
  const open = new Set<{ destroy(): void }>()
  server.on('session', session => {
    upstream.sessions += 1
    upstream.open += 1
    open.add(session)
    session.on('error', () => undefined)
    session.on('close', () => {
      upstream.open -= 1
    })
  })
  server.on('stream', (stream, headers) => {
    stream.on('error', () => undefined)
    upstream.heads.push(headers)
    handler(stream, headers)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  upstream.port = (server.address() as AddressInfo).port
  upstream.url = `${tls ? 'https' : 'http'}://127.0.0.1:${upstream.port}`
  t.teardown(() => {
    for (const session of open) session.destroy()
    server.close()
  })
  return upstream
}

const OFF = [{ name: 'all', mode: 'off' }]

/** Answers each request with the frames that `answer` makes for its stream. */
async function framesUpstream(t: Teardown, answer: (stream: number, socket: Socket) => Buffer[]): Promise<string> {
  const sockets: Socket[] = []
  const server = createTcpServer(socket => {
    sockets.push(socket)
    socket.on('error', () => undefined).write(frame(FRAME.settings, 0, 0))
    socket.on('data', bytes => {
      for (const { type, stream } of framesOf(bytes.subarray(bytes.indexOf(PREFACE) === 0 ? PREFACE.length : 0)))
        if (type === FRAME.headers) socket.write(Buffer.concat(answer(stream, socket)))
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

t.test('h2c and TLS, from clients of HTTP/1.1 and HTTP/2', async t => {
  for (const tls of [false, true]) {
    const upstream = await http2Upstream(t, answerOk, { tls })
    const settings = {
      url: upstream.url,
      http2: true,
      tls: tls ? { ca: TLS.listen.tls.cert, servername: 'localhost' } : {},
    }
    const rig = await startRig(t, { upstream: settings, routes: OFF })
    const client = await connect(t, rig)
    const answer = await client.ask(get('/a?b', 'X-Name: value', 'Keep-Alive: 5', 'Cookie: a=b'))
    t.match(answer, { status: 200, reason: 'OK', text: 'ok' }, `${tls}`)
    t.match(upstream.heads[0], {
      ':method': 'GET',
      ':path': '/a?b',
      ':authority': 'example.test',
      ':scheme': tls ? 'https' : 'http',
      'x-name': 'value',
      cookie: 'a=b',
      'x-forwarded-for': '127.0.0.1',
    })
    for (const name of ['host', 'keep-alive', 'connection']) t.equal(upstream.heads[0]![name], undefined)
    t.equal((await ask(openSession(t, rig.port))).text, 'ok')
    t.equal(upstream.sessions, 1, 'one connection for all')
  }
})

t.test('bodies and answers, long and short, with trailers, 103 and backpressure', async t => {
  const upstream = await http2Upstream(t, (stream, headers) => {
    let length = 0
    if (headers[':path'] === '/early') {
      stream.additionalHeaders({ ':status': 103, link: '</a>' })
      return answerOk(stream)
    }
    if (headers[':path'] === '/long') {
      stream.respond({ ':status': 200 })
      return void stream.end(Buffer.alloc(5_000_000, 'l'))
    }
    stream.on('data', chunk => {
      length += chunk.length
    })
    stream.on('end', () => {
      stream.respond({ ':status': 201, 'content-type': 'text/plain' }, { waitForTrailers: true })
      stream.on('wantTrailers', () => stream.sendTrailers({ 'x-sum': String(length) }))
      stream.end(`${length} ${headers['content-length']}`)
    })
  })
  const rig = await startRig(t, { upstream: { url: upstream.url, http2: true }, routes: OFF })
  const client = await connect(t, rig)
  for (const length of [0, 10, STREAMED, 2_000_000]) {
    const answer = await client.ask(post('x'.repeat(length)))
    t.match(answer, { status: 201, text: `${length} ${length}`, trailers: [`x-sum: ${length}`] })
  }
  client.send('POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n')
  t.equal((await client.answer()).text, '3 undefined')
  t.equal((await client.ask(get('/long'))).body.length, 5_000_000)
  client.send(get('/early'))
  t.equal((await client.answer()).status, 103)
  t.equal((await client.answer()).text, 'ok')
  const slow = request(openSession(t, rig.port), { ':path': '/long' })
  await new Promise(resolve => slow.once('response', resolve))
  slow.pause()
  await eventually(() => rig.proxy.context.bodyBytes.used > 200_000)
  t.ok(rig.proxy.context.bodyBytes.used < 600_000)
  let length = 0
  slow.on('data', chunk => {
    length += chunk.length
  })
  slow.resume()
  await new Promise(resolve => slow.once('end', resolve))
  t.equal(length, 5_000_000)
})

t.test('an answer that ends with its head ends over HTTP/1.1 too', async t => {
  const upstream = await http2Upstream(t, (stream, headers) =>
    stream.respond({ ':status': Number(headers[':path']!.slice(1)) }, { endStream: true }),
  )
  const rig = await startRig(t, { upstream: { url: upstream.url, http2: true, breaker: false }, routes: OFF })
  const client = await connect(t, rig)
  for (const status of [200, 404, 304, 204]) {
    const answer = await client.ask(get(`/${status}`))
    t.match(answer, { status, text: '' })
    t.equal(answer.header('content-length'), status === 204 || status === 304 ? undefined : '0', `${status}`)
  }
  t.match(await client.ask(get('/200').replace('GET', 'HEAD')), { status: 200 })
})

t.test('a stream counts as a connection', async t => {
  let open = 0
  let most = 0
  const held: ServerHttp2Stream[] = []
  const upstream = await http2Upstream(t, stream => {
    open += 1
    most = Math.max(most, open)
    stream.on('close', () => {
      open -= 1
    })
    held.push(stream)
  })
  const buckets = { all: { key: 'all', rate: '10000/s', capacity: 1_000 } }
  const routes = [{ name: 'off', match: { path: '/off' }, mode: 'off' }, { name: 'shape' }]
  const config = { upstream: { url: upstream.url, http2: true, connections: 3 }, buckets, routes }
  const rig = await startRig(t, config, { realPacer: true })
  const session = openSession(t, rig.port)
  const answers = Array.from({ length: 20 }, (_, index) => ask(session, { ':path': index % 2 === 0 ? '/off' : '/' }))
  for (let answered = 0; answered < 20; answered += 1) {
    await eventually(() => held.length > 0)
    t.ok(open <= 3)
    answerOk(held.shift()!)
  }
  t.match(await Promise.all(answers), Array(20).fill({ status: 200 }))
  t.equal(most, 3)
  t.equal(upstream.sessions, 1)
})

t.test('no more streams than the upstream allows; another connection takes the rest', async t => {
  const held: ServerHttp2Stream[] = []
  const upstream = await http2Upstream(t, stream => held.push(stream), { settings: { maxConcurrentStreams: 2 } })
  const rig = await startRig(t, { upstream: { url: upstream.url, http2: true }, routes: OFF })
  const session = openSession(t, rig.port)
  const first = ask(session)
  await eventually(() => held.length === 1)
  const rest = [ask(session), ask(session), ask(session)]
  await eventually(() => held.length === 4)
  t.equal(upstream.sessions, 2)
  for (const stream of held) answerOk(stream)
  t.match(await Promise.all([first, ...rest]), Array(4).fill({ status: 200 }))
})

t.test('a cancelled request resets its stream only', async t => {
  const codes: number[] = []
  const upstream = await http2Upstream(t, (stream, headers) => {
    if (headers[':path'] !== '/held') return answerOk(stream)
    stream.on('close', () => codes.push(stream.rstCode ?? 0))
  })
  const rig = await startRig(t, { upstream: { url: upstream.url, http2: true }, routes: OFF })
  const client = await connect(t, rig)
  client.send(get('/held'))
  await eventually(() => upstream.heads.length === 1)
  client.hangUp()
  await rig.finished(1)
  await eventually(() => codes.length === 1)
  t.strictSame(codes, [8])
  t.equal((await ask(openSession(t, rig.port))).text, 'ok')
  t.equal(upstream.sessions, 1)
})

t.test('failures: refused, reset, gone, GOAWAY, and HTTP/1.1 behind it', async t => {
  const upstream = await http2Upstream(t, (stream, headers) => {
    switch (headers[':path']) {
      case '/reset':
        return stream.close(2)
      case '/gone':
        return stream.session!.destroy()
      case '/broken':
        stream.respond({ ':status': 200 })
        stream.write('part')
        return void setImmediate(() => stream.destroy(new Error('broken')))
      case '/short':
        stream.respond({ ':status': 200, 'content-length': 100 })
        return void stream.end('part')
      case '/goaway':
        stream.session!.goaway(0)
        return answerOk(stream)
      default:
        return answerOk(stream)
    }
  })
  const rig = await startRig(t, { upstream: { url: upstream.url, http2: true, breaker: false }, routes: OFF })
  const ok = async () => t.equal((await ask(openSession(t, rig.port))).text, 'ok')
  const status = async (path: string) => (await (await connect(t, rig)).ask(post('x', path))).status
  t.equal(await status('/reset'), 502)
  await ok()
  t.equal(await status('/gone'), 502)
  await ok()
  for (const path of ['/broken', '/short']) {
    const { code, status } = await ask(openSession(t, rig.port), { ':path': path })
    t.ok(code !== 0 || status === 502, path)
  }
  await ok()
  t.equal((await ask(openSession(t, rig.port), { ':path': '/goaway' })).text, 'ok')
  const before = upstream.sessions
  await ok()
  t.equal(upstream.sessions, before + 1, 'after GOAWAY on another connection')
  const http1 = createTcpServer(socket => socket.on('error', () => undefined).end('HTTP/1.1 400 Bad Request\r\n\r\n'))
  await new Promise<void>(resolve => http1.listen(0, '127.0.0.1', resolve))
  t.teardown(() => http1.close())
  const url = `http://127.0.0.1:${(http1.address() as AddressInfo).port}`
  const wrong = await startRig(t, { upstream: { url, http2: true, breaker: false }, routes: OFF })
  t.equal((await (await connect(t, wrong)).ask(get())).status, 502)
  http1.close()
  const refused = await startRig(t, {
    upstream: { url: 'http://127.0.0.1:9', http2: true, breaker: false },
    routes: OFF,
  })
  t.equal((await (await connect(t, refused)).ask(get())).status, 502)
})

/** How an upstream says that it has not processed a stream. */
const UNTAKEN: Readonly<Record<string, (stream: ServerHttp2Stream) => void>> = {
  // Node takes 0 for the last stream that has come.
  '/goaway': stream => (stream.id === 1 ? stream.close(7) : stream.session!.goaway(0, stream.id! - 2)),
  '/goaway-error': stream => (stream.id === 1 ? stream.close(7) : stream.session!.goaway(11, stream.id! - 2)),
  '/refused': stream => stream.close(7),
}

/** An upstream that does not take the first requests of each path above, as many as `times` says, and else answers with the body. */
function untakingUpstream(t: Teardown, times: number): Promise<Upstream> {
  const asked = new Map<string, number>()
  return http2Upstream(t, (stream, { ':path': path = '' }) => {
    const count = (asked.get(path) ?? 0) + 1
    asked.set(path, count)
    const untaken = UNTAKEN[path]
    if (untaken !== undefined && count <= times) return untaken(stream)
    stream.respond({ ':status': 200 })
    stream.pipe(stream)
  })
}

t.test('what the upstream says it has not processed is sent again with its body, whatever its method', async t => {
  const buckets = { all: { key: 'all', rate: '1/s', capacity: 100 } }
  for (const config of [{ routes: OFF }, { buckets, routes: [{ name: 'meter', mode: 'meter' }] }]) {
    const upstream = await untakingUpstream(t, 2)
    const rig = await startRig(t, { ...config, upstream: { url: upstream.url, http2: true } })
    const client = await connect(t, rig)
    t.equal((await client.ask(get())).status, 200)
    for (const path of Object.keys(UNTAKEN)) {
      const before = upstream.heads.length
      t.match(await client.ask(post('some body', path)), { status: 200, text: 'some body' }, path)
      t.equal(upstream.heads.length, before + 3, `${path}: the third attempt`)
      t.equal((await client.ask(get('/'))).status, 200, 'no connection is in doubt')
    }
    t.equal(rig.proxy.context.bodyBytes.used, 0, 'what was kept of the bodies is free')
    t.ok(rig.outcomes.every(outcome => outcome.endsWith(' forwarded 200')))
  }
})

t.test('so is a body of which a part has been sent', async t => {
  const body = Array.from({ length: 200_000 }, (_, at) => at).join()
  const upstream = await untakingUpstream(t, 2)
  const rig = await startRig(t, { routes: OFF, upstream: { url: upstream.url, http2: true } })
  const client = await connect(t, rig)
  t.equal((await client.ask(get())).status, 200)
  for (const path of Object.keys(UNTAKEN)) {
    const { status, text } = await client.ask(post(body, path))
    t.equal(status, 200, path)
    t.ok(text === body, `${path}: ${text.length} of ${body.length}`)
  }
  await eventually(() => rig.proxy.context.bodyBytes.used === 0)
})

t.test('it is sent again in a slot of its own', async t => {
  const upstream = await untakingUpstream(t, 1)
  const config = { buckets: { all: { key: 'all', rate: '1/s', capacity: 100 } }, routes: [{ name: 'all' }] }
  const rig = await startRig(t, { ...config, upstream: { url: upstream.url, http2: true } })
  const client = await connect(t, rig)
  t.equal((await client.ask(get())).status, 200)
  client.send(post('x', '/goaway'))
  await rig.until(({ queued }) => queued.length === 1)
  rig.pacer.runUntil(1_000)
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(1_999)
  await turns()
  t.equal(upstream.heads.length, 2)
  rig.pacer.runUntil(2_000)
  t.match(await client.answer(), { status: 200, text: 'x' })
  t.equal(upstream.heads.length, 3)
})

t.test('it is not sent again without end, nor with a body that was not kept', async t => {
  const upstream = await untakingUpstream(t, Infinity)
  const rig = await startRig(t, { routes: OFF, upstream: { url: upstream.url, http2: true, breaker: false } })
  const client = await connect(t, rig)
  t.equal((await client.ask(get())).status, 200)
  const answer = await client.ask(post('x', '/refused'))
  t.match(answer, { status: 502 })
  t.match(answer.text, /the upstream did not take the request/)
  t.equal(upstream.heads.length, 12)
  const taking = await http2Upstream(t, stream => {
    let taken = 0
    stream.on('data', (chunk: Buffer) => {
      taken += chunk.length
      if (taken > 400_000) stream.close(constants.NGHTTP2_REFUSED_STREAM)
    })
  })
  const long = await startRig(t, { routes: OFF, upstream: { url: taking.url, http2: true, breaker: false } })
  t.match(await (await connect(t, long)).ask(post('x'.repeat(2_000_000))), { status: 502 })
  t.equal(taking.heads.length, 1)
  await eventually(() => long.proxy.context.bodyBytes.used === 0)
  await eventually(() => rig.proxy.context.bodyBytes.used === 0)
})

t.test('nginx as the upstream ends connections after some requests: no POST of many fails', async t => {
  const port = await freePort()
  const folder = mkdtempSync(join(tmpdir(), 'shaper-http2-nginx-'))
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(each => `${each}_temp_path ${folder};`)
  writeFileSync(
    join(folder, 'nginx.conf'),
    `events {} http { access_log off; ${temporary.join(' ')} server {
      listen 127.0.0.1:${port} http2; keepalive_requests 100; location / { return 200 ok; } } }`,
  )
  const options = 'daemon off; master_process off; pid nginx.pid; error_log stderr crit;'
  const nginx = spawn('nginx', ['-e', 'stderr', '-p', folder, '-c', 'nginx.conf', '-g', options], { stdio: 'ignore' })
  endWithThisProcess(nginx)
  t.teardown(() => nginx.kill())
  await until('nginx listens', () => isListening(port))
  const upstream = { url: `http://127.0.0.1:${port}`, http2: true }
  const rig = await startRig(t, { upstream, routes: OFF })
  const statuses = new Map<number, number>()
  const askInTurn = async (): Promise<void> => {
    const client = await connect(t, rig)
    for (let count = 0; count < 40; count += 1) {
      const { status } = await client.ask(post('x'.repeat(1_000)))
      statuses.set(status, (statuses.get(status) ?? 0) + 1)
    }
  }
  await Promise.all(Array.from({ length: 50 }, askInTurn))
  t.same([...statuses], [[200, 2_000]])
})

const USAGE = Buffer.from(JSON.stringify({ usage: { total_tokens: 7 }, filler: 'x'.repeat(1_000) }))

/** The frames of an answer whose body does not end. */
function endless(id: number, ...fields: string[]): Buffer[] {
  const head = block(':status', '200', 'content-type', 'application/json', ...fields)
  return [frame(FRAME.headers, END_HEADERS, id, head), frame(FRAME.data, 0, id, USAGE)]
}

/** RST_STREAM(NO_ERROR) */
function reset(id: number): Buffer {
  return frame(FRAME.reset, 0, id, Buffer.alloc(4))
}

t.test('an answer that is reset without an error before its end is broken', async t => {
  let fields: string[] = []
  let breakOff = () => {}
  const url = await framesUpstream(t, (id, socket) => {
    breakOff = () => void socket.write(reset(id))
    return endless(id, ...fields)
  })
  const rig = await startRig(t, { upstream: { url, http2: true, breaker: false }, routes: OFF })
  for (fields of [[], ['content-length', '2000'], ['content-length', String(USAGE.length)]]) {
    const client = await connect(t, rig)
    client.send(get())
    await client.until(({ rest }) => rest.includes('xxx'))
    breakOff()
    await client.end()
    t.equal((await client.answer()).whole, fields[1] === String(USAGE.length), `HTTP/1.1 ${fields}`)
    for (const type of ['text/plain', 'application/grpc']) {
      const stream = request(openSession(t, rig.port), { 'content-type': type })
      await new Promise(resolve => stream.once('data', resolve))
      const closed = new Promise(resolve => stream.once('close', resolve))
      breakOff()
      await closed
      t.not(stream.rstCode, 0, `${type} ${fields}`)
    }
  }
  t.strictSame(await rig.finished(9), Array(9).fill('all failed 200'))
})

t.test('an answer with a length or a status that is not valid is 502, over both protocols on either side', async t => {
  let head: string[] = []
  const url = await framesUpstream(t, id => [
    frame(FRAME.headers, END_HEADERS, id, block(...head)),
    frame(FRAME.data, END_STREAM, id, Buffer.from('ok')),
  ])
  let text = ''
  const http1 = await rawUpstream(t, ({ socket }) => void socket.end(text, 'latin1'))
  const rigs = [
    await startRig(t, { upstream: { url, http2: true, breaker: false }, routes: OFF }),
    await startRig(t, { upstream: { url: http1.url, breaker: false }, routes: OFF }),
  ]
  const both = async (status: string, lengths: readonly string[], expected: number) => {
    head = [':status', status, ...lengths.flatMap(length => ['content-length', length])]
    text = `HTTP/1.1 ${status} X\r\n${lengths.map(length => `Content-Length: ${length}\r\n`).join('')}\r\nok`
    for (const [at, rig] of rigs.entries()) {
      const told = `${status} ${lengths} of HTTP/${2 - at}`
      const client = await connect(t, rig)
      t.equal((await client.ask(get())).status, expected, told)
      t.equal((await ask(openSession(t, rig.port))).status, expected, `${told}, over HTTP/2`)
    }
  }
  await both('200', ['2'], 200)
  await both('599', [], 599)
  for (const status of ['042', '099', '000', '600', '999']) await both(status, ['2'], 502)
  const lengths = ['000002', '0000000000000000002', '02', '1e53', '2e0', '+2', '', '9007199254740993', '2, 2']
  for (const length of lengths) await both('200', [length], 502)
  await both('200', ['2', '2'], 502)
  for (const { outcomes } of rigs) t.ok(outcomes.slice(4).every(each => each === 'all failed 502'))
})

t.test('204 and 103 have no Content-Length', async t => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write('HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\nLink: </a>\r\n\r\n')
    socket.end('HTTP/1.1 204 No Content\r\nContent-Length: 5\r\nX-Kept: 1\r\n\r\n')
  })
  const rig = await startRig(t, { upstream: upstream.url, routes: OFF })
  const client = await connect(t, rig)
  client.send(get())
  for (const [status, kept] of [
    [103, 'Link'],
    [204, 'X-Kept'],
  ] as const) {
    const answer = await client.answer()
    t.match(answer, { status })
    t.ok(answer.header(kept))
    t.equal(answer.header('content-length'), undefined)
  }
})

t.test('an answer that is reset without an error is not shared, and says no cost', async t => {
  let isBroken = true
  const url = await framesUpstream(t, id => [
    ...endless(id),
    isBroken ? reset(id) : frame(FRAME.data, END_STREAM, id, Buffer.from('end')),
  ])
  const cost = { buckets: { tokens: { estimate: 100, after: 'usage.total_tokens' } } }
  const rig = await startRig(t, {
    upstream: { url, http2: true, breaker: false },
    buckets: { all: { key: 'all', rate: '1/s', capacity: 5 }, tokens: { key: 'all', rate: '1/s', capacity: 500 } },
    routes: [
      { name: 'cost', match: { path: '/cost' }, buckets: ['tokens'], cost },
      { name: 'all', buckets: ['all'], coalesce: true },
    ],
  })
  t.equal((await (await connect(t, rig)).ask(get('/cost'))).whole, false)
  await rig.finished(1)
  t.strictSame(rig.settled, ['unknown'])
  await occupy(t, rig)
  const clients = [await connect(t, rig), await connect(t, rig)]
  for (const client of clients) client.send(get('/same'))
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(1_000)
  t.equal((await clients[0]!.answer()).whole, false)
  isBroken = false
  rig.pacer.runUntil(2_000)
  t.match(await clients[1]!.answer(), { status: 200, whole: true }, 'an answer of its own')
  t.equal(rig.coalesced, 0)
  t.strictSame(rig.outcomes, ['cost failed 200', 'all failed 200', 'all failed 200', 'all forwarded 200'])
})

t.test('an upstream that breaks a rule of the connection loses it, with its streams', async t => {
  const sockets: Socket[] = []
  let goneAway = false
  const server = createTcpServer(socket => {
    sockets.push(socket)
    socket.on('error', () => undefined).write(frame(FRAME.settings, 0, 0))
    socket.on('data', bytes => {
      const types = framesOf(bytes.subarray(bytes.indexOf(PREFACE) === 0 ? PREFACE.length : 0)).map(({ type }) => type)
      goneAway ||= types.includes(FRAME.goaway)
      if (!types.includes(FRAME.headers)) return
      if (sockets.length === 1) socket.write(frame(FRAME.data, 0, 99, Buffer.alloc(10)))
      // `:status: 200` is field 8 of the table.
      else socket.write(frame(FRAME.headers, END_HEADERS | END_STREAM, 1, Buffer.from([0x88])))
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const rig = await startRig(t, { upstream: { url, http2: true, breaker: false }, routes: OFF })
  const client = await connect(t, rig)
  client.send(get('/held'))
  await eventually(() => goneAway)
  const broken = new Promise(resolve => sockets[0]!.once('close', resolve))
  t.equal((await (await connect(t, rig)).ask(get('/next'))).status, 200, 'others take another connection')
  rig.clock.runUntil(rig.clock.now() + 1_000)
  t.equal((await client.answer()).status, 502)
  await broken
})

t.test('an idle connection is closed after keepAlive, an old one takes no more, and responseTimeout holds', async t => {
  const upstream = await http2Upstream(t, (stream, headers) => headers[':path'] !== '/silent' && answerOk(stream))
  const settings = { url: upstream.url, http2: true, keepAlive: '4s', maxConnectionAge: '9s', responseTimeout: '5s' }
  const rig = await startRig(t, { upstream: settings, routes: OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  const later = (ms: number) => rig.clock.runUntil(rig.clock.now() + ms)
  for (let count = 0; count < 3; count += 1) {
    await client.ask(get())
    t.equal(upstream.sessions, 1)
    later(3_500)
  }
  await client.ask(get())
  t.equal(upstream.sessions, 2, 'older than maxConnectionAge')
  later(4_000)
  await eventually(() => upstream.open === 0)
  client.send(get('/silent'))
  await eventually(() => upstream.heads.some(({ ':path': path }) => path === '/silent'))
  later(5_000)
  t.equal((await client.answer()).status, 504)
})

t.test('a client over HTTP/2 and pacing: releases leave in order at their times', async t => {
  const at: number[] = []
  const upstream = await http2Upstream(t, stream => {
    at.push(performance.now())
    answerOk(stream)
  })
  const buckets = { all: { key: 'all', rate: '200/s', capacity: 100 } }
  const config = { upstream: { url: upstream.url, http2: true }, buckets, routes: [{ name: 'all' }] }
  const rig = await startRig(t, config, { realPacer: 'precise' })
  const session = openSession(t, rig.port)
  // The first may come late on a busy machine, so the time counts from before it.
  const begun = performance.now()
  await Promise.all(Array.from({ length: 60 }, () => ask(session)))
  const took = at.at(-1)! - begun
  t.ok(took > 59 * 5 - 1, `59 periods of 5 ms took ${took} ms`)
  const { longest, late } = slotsOf(rig)
  t.ok(
    longest < 1.2 * 59 * 5 + 2 * late,
    `the slot of the last is ${longest} ms after its arrival, all were ${late} ms late`,
  )
  const gaps = at.slice(1).map((time, index) => time - at[index]!)
  t.comment(
    `gap errors: ${gaps.map(gap => Math.abs(gap - 5)).sort((a, b) => a - b)[Math.floor(gaps.length * 0.9)]} ms p90`,
  )
})
