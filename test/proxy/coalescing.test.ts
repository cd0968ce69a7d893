/** Identical GETs that wait at the same time leave as one and are answered alike. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import t from 'tap'
import type { LaneRoute } from '../../src/core/queue/lane.js'
import { Coalescing } from '../../src/proxy/features/coalesce.js'
import { ByteBudget } from '../../src/proxy/http/byte-budget.js'
import { Hand } from './hand.js'
import {
  answering,
  type Client,
  connect,
  eventually,
  get,
  httpUpstream,
  OK,
  occupy,
  post,
  type Rig,
  type RigOptions,
  rawUpstream,
  stalled,
  startRig,
  turns,
} from './harness.js'
import { answerOf, openSession, request } from './http2/h2-client.js'

type Test = Parameters<typeof startRig>[0]

const MB = 1024 * 1024

const COALESCED = {
  buckets: { all: { key: 'all', rate: '1/s', capacity: 50 } },
  routes: [{ name: 'all', coalesce: true }],
}

/** An upstream that answers when the test says so. The first request, for `/first`, is answered at once. */
async function heldUpstream(t: Test) {
  const held: { req: IncomingMessage; res: ServerResponse }[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.url === '/first') res.end('first')
    else held.push({ req, res })
  })
  return {
    ...upstream,
    held,
    /** The response to the request of that number, from 0, once that has come. */
    async response(number: number): Promise<ServerResponse> {
      await upstream.until(() => held.length > number)
      return held[number]!.res
    },
  }
}

type Held = Awaited<ReturnType<typeof heldUpstream>>

/** Sends requests, each on its own connection, that wait behind the first one. */
async function queue(t: Test, rig: Rig, ...requests: string[]): Promise<Client[]> {
  const clients: Client[] = []
  for (const text of requests) {
    const client = await connect(t, rig)
    const before = rig.queued.length
    client.send(text)
    await rig.until(({ queued }) => queued.length > before)
    clients.push(client)
  }
  return clients
}

async function start(
  t: Test,
  config: object = {},
  settings: object = {},
  options: RigOptions = {},
): Promise<{ rig: Rig; upstream: Held }> {
  const upstream = await heldUpstream(t)
  const rig = await startRig(t, { upstream: { url: upstream.url, ...settings }, ...COALESCED, ...config }, options)
  await occupy(t, rig)
  return { rig, upstream }
}

/** Bytes that all buffers of the proxy hold. */
function buffered(rig: Rig): number {
  return rig.proxy.context.bodyBytes.used
}

t.test('identical requests that wait leave as one, and all get its answer', async t => {
  const { rig, upstream } = await start(t)
  const clients = await queue(t, rig, get('/page'), get('/other'), get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  res.writeHead(200, { 'Content-Type': 'text/plain', 'X-Own': 'a' }).end('hello')
  for (const client of [clients[0]!, clients[2]!, clients[3]!]) {
    const answer = await client.answer()
    t.equal(answer.status, 200)
    t.equal(answer.text, 'hello')
    t.equal(answer.header('x-own'), 'a')
    t.match(answer.header('server-timing'), /^shaper;dur=1000/)
    t.match(answer.header('ratelimit-policy'), /"all"/)
  }
  rig.pacer.runUntil(2_000)
  ;(await upstream.response(1)).end('other')
  t.equal((await clients[1]!.answer()).text, 'other', 'the others have moved up')
  t.same(upstream.requests, ['GET /first', 'GET /page', 'GET /other'])
  await rig.until(() => rig.outcomes.length === 5)
  t.same(rig.outcomes, Array(5).fill('all forwarded 200'))
  t.equal(rig.coalesced, 2)
  t.equal(rig.released.length, 3, 'those that are answered with another one are not released')
  t.equal(buffered(rig), 0)
})

t.test('without "coalesce" each is sent', async t => {
  const { rig, upstream } = await start(t, { routes: [{ name: 'all' }] })
  await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end('one')
  await rig.finished(2)
  rig.pacer.runUntil(2_000)
  ;(await upstream.response(1)).end('two')
  await rig.finished(3)
  t.equal(rig.coalesced, 0)
})

t.test('a request that came after another was sent does not get its answer', async t => {
  const { rig, upstream } = await start(t)
  const early = await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  const [late] = await queue(t, rig, get('/page'))
  res.end('old')
  for (const client of early) t.equal((await client.answer()).text, 'old')
  rig.pacer.runUntil(2_000)
  ;(await upstream.response(1)).end('new')
  t.equal((await late!.answer()).text, 'new')
  t.equal(rig.coalesced, 1)
})

t.test('a request that passes at once leads those of other clients that wait', async t => {
  const upstream = await heldUpstream(t)
  const buckets = { client: { key: 'header:x-real-ip', rate: '1/s', capacity: 5 } }
  const rig = await startRig(t, { upstream: upstream.url, ...COALESCED, buckets })
  const first = await connect(t, rig)
  await first.ask(get('/first', 'X-Real-IP: alice'))
  const [waiting] = await queue(t, rig, get('/page', 'X-Real-IP: alice'))
  const other = await connect(t, rig)
  other.send(get('/page', 'X-Real-IP: bob'))
  ;(await upstream.response(0)).end('both')
  t.equal((await other.answer()).text, 'both')
  t.equal((await waiting!.answer()).text, 'both', 'before its own turn')
  t.equal(rig.pacer.now(), 0)
})

t.test('what makes requests differ', async t => {
  const base = get('/page', 'Accept: text/html', 'X-Forwarded-For: 192.0.2.1', 'Via: 1.1 cdn', 'traceparent: 00-a')
  const alike: Record<string, string> = {
    'another client, way and trace': get(
      '/page',
      'Accept: text/html',
      'X-Forwarded-For: 192.0.2.2',
      'X-Request-ID: 7',
      'X-Real-IP: 192.0.2.2',
    ),
    'names in another case': get('/page', 'accept: text/html'),
    'hop-by-hop headers': get(
      '/page',
      'Accept: text/html',
      'Connection: keep-alive, x-hop',
      'X-Hop: 1',
      'TE: trailers',
    ),
    'an absolute target': get('http://example.test/page', 'Accept: text/html'),
    'HTTP/1.0': 'GET /page HTTP/1.0\r\nHost: example.test\r\nAccept: text/html\r\n\r\n',
  }
  const different: Record<string, string> = {
    'the query': get('/page?x=1', 'Accept: text/html'),
    'the spelling of the path': get('/%70age', 'Accept: text/html'),
    'the host': 'GET /page HTTP/1.1\r\nHost: other.test\r\nAccept: text/html\r\n\r\n',
    'a value': get('/page', 'Accept: text/plain'),
    'one header more': get('/page', 'Accept: text/html', 'X-Api-Key: 7'),
    'the method': 'HEAD /page HTTP/1.1\r\nHost: example.test\r\nAccept: text/html\r\n\r\n',
    'a condition': get('/page', 'Accept: text/html', 'If-None-Match: "a"'),
    'the program': get('/page', 'Accept: text/html', 'User-Agent: curl'),
    'a text that spells two headers': get('/page', 'Accept: text/html","x-b","1'),
    'the scheme that a trusted hop tells': get('/page', 'Accept: text/html', 'X-Forwarded-Proto: https'),
  }
  for (const [what, text] of Object.entries({ ...alike, ...different })) {
    const { rig, upstream } = await start(t, { trustProxy: ['loopback'] })
    const [one, two] = await queue(t, rig, base, text)
    rig.pacer.runUntil(1_000)
    ;(await upstream.response(0)).end('ok')
    await one!.answer()
    await turns()
    if (what in alike) {
      t.equal((await two!.answer()).text, 'ok', `alike: ${what}`)
      t.equal(rig.coalesced, 1)
    } else {
      t.equal(rig.coalesced, 0, `different: ${what}`)
      two!.hangUp()
    }
  }
})

t.test('equal conditions are alike, and their 304 is shared', async t => {
  const { rig, upstream } = await start(t)
  const text = get('/page', 'If-None-Match: "a"')
  const clients = await queue(t, rig, text, text)
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).writeHead(304, { ETag: '"a"' }).end()
  for (const client of clients) {
    const answer = await client.answer()
    t.equal(answer.status, 304)
    t.equal(answer.header('etag'), '"a"')
  }
  t.equal(rig.coalesced, 1)
})

t.test('never shared: requests for one user, with a range, with a body', async t => {
  const texts = [
    get('/page', 'Authorization: Basic eDp5'),
    get('/page', 'COOKIE: a=b'),
    get('/page', 'Range: bytes=0-9'),
    get('/page', 'Content-Length: 0'),
    get('/page', 'Content-Length: 2').concat('ab'),
    get('/page', 'Transfer-Encoding: chunked').concat('0\r\n\r\n'),
    get('/page', 'Expect: 100-continue'),
    post('', '/page'),
    'HEAD /page HTTP/1.1\r\nHost: example.test\r\n\r\n',
  ]
  for (const text of texts) {
    const { rig, upstream } = await start(t)
    const [one, two] = await queue(t, rig, text, text)
    rig.pacer.runUntil(1_000)
    ;(await upstream.response(0)).end('one')
    await rig.finished(2)
    rig.pacer.runUntil(2_000)
    ;(await upstream.response(1)).end('two')
    await rig.finished(3)
    t.equal(rig.coalesced, 0, JSON.stringify(text))
    one!.hangUp()
    two!.hangUp()
  }
})

t.test('answers that are for one client: each of the others is sent in its own turn', async t => {
  const answers: [number, Record<string, string | string[]>][] = [
    [200, { 'Set-Cookie': 'a=b' }],
    [200, { 'Set-Cookie2': 'a=b' }],
    [200, { 'Authentication-Info': 'nextnonce="n"' }],
    [200, { 'Proxy-Authentication-Info': 'nextnonce="n"' }],
    [200, { 'Clear-Site-Data': '"cookies"' }],
    [200, { 'Cache-Control': 'max-age=9, Private' }],
    [200, { 'Cache-Control': 'private="set-cookie"' }],
    [200, { 'Cache-Control': ['max-age=0', 'no-store'] }],
    [200, { Vary: 'Accept, *' }],
    [200, { Vary: 'Accept-Encoding, X-Forwarded-For' }],
    [206, {}],
    [400, {}],
    [401, { 'WWW-Authenticate': 'Negotiate' }],
    [429, {}],
    [500, {}],
    [503, {}],
    [200, { 'Content-Length': String(MB + 1) }],
  ]
  for (const [status, headers] of answers) {
    const { rig, upstream } = await start(t)
    const [one, two] = await queue(t, rig, get('/page'), get('/page'))
    rig.pacer.runUntil(1_000)
    const body = 'x'.repeat(Number(headers['Content-Length'] ?? 3))
    ;(await upstream.response(0)).writeHead(status, headers).end(body)
    t.equal((await one!.answer()).status, status)
    t.equal(rig.coalesced, 0, `${status} ${JSON.stringify(headers)}`)
    t.equal(two!.bytes, 0)
    t.equal(buffered(rig), 0)
    rig.pacer.runUntil(2_000)
    ;(await upstream.response(1)).end('two')
    t.equal((await two!.answer()).text, 'two')
    t.same(rig.waits.slice(1), [1_000, 2_000], 'in the place that it had')
  }
})

t.test('answers that are shared', async t => {
  const answers: [number, Record<string, string>][] = [
    [200, { 'Cache-Control': 'no-cache, max-age=0, must-revalidate' }],
    [200, { 'Cache-Control': 'public, x-privateer=1, no-storehouse' }],
    [200, { Vary: 'Accept-Encoding, Cookie, User-Agent' }],
    [204, {}],
    [301, { Location: '/there' }],
    [302, { Location: '/there' }],
    [404, {}],
    [410, {}],
    [200, { 'Content-Length': String(MB) }],
  ]
  for (const [status, headers] of answers) {
    const { rig, upstream } = await start(t)
    const clients = await queue(t, rig, get('/page'), get('/page'))
    rig.pacer.runUntil(1_000)
    const body = status === 204 ? '' : 'x'.repeat(Number(headers['Content-Length'] ?? 3))
    ;(await upstream.response(0)).writeHead(status, headers).end(body)
    for (const client of clients) {
      const answer = await client.answer()
      t.equal(answer.status, status)
      t.equal(answer.text, body)
    }
    t.equal(rig.coalesced, 1, `${status} ${JSON.stringify(headers)}`)
    await eventually(() => buffered(rig) === 0)
  }
})

t.test('each client gets the framing and the connection that it can have', async t => {
  const trailers =
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 7\r\n\r\n'
  const upstream = await rawUpstream(t, incoming =>
    answering(incoming.text.includes('/first') && !incoming.text.includes('/page') ? OK : trailers)(incoming),
  )
  const rig = await startRig(t, { upstream: upstream.url, ...COALESCED })
  await occupy(t, rig)
  const old = 'GET /page HTTP/1.0\r\nHost: example.test\r\n\r\n'
  const last = get('/page', 'Connection: close')
  const [first, second, third] = await queue(t, rig, get('/page'), old, last)
  rig.pacer.runUntil(1_000)
  const one = await first!.answer()
  t.same([one.text, one.trailers, first!.ended], ['ab', ['X-Sum: 7'], false])
  await second!.end()
  const two = await second!.answer()
  t.same([two.text, two.header('trailer'), two.header('transfer-encoding')], ['ab', undefined, undefined])
  const three = await third!.answer()
  t.same([three.text, three.trailers, three.header('connection')], ['ab', ['X-Sum: 7'], 'close'])
  t.equal(rig.coalesced, 2)
})

t.test('clients of HTTP/2 and HTTP/1 share an answer', async t => {
  const { rig, upstream } = await start(t)
  const [one] = await queue(t, rig, get('/page'))
  const stream = request(openSession(t, rig.port), { ':path': '/page' })
  const answer = answerOf(stream)
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end('z'.repeat(100_000))
  t.equal((await one!.answer()).text.length, 100_000)
  const { status, text } = await answer
  t.same([status, text.length], [200, 100_000])
  t.equal(rig.coalesced, 1)
  await eventually(() => buffered(rig) === 0)
})

t.test('a follower whose turn comes before the answer is sent, and leads the rest', async t => {
  const { rig, upstream } = await start(t)
  const [one, two, three] = await queue(t, rig, get('/page'), get('/page'), get('/page'))
  rig.pacer.runUntil(2_000)
  const slow = await upstream.response(0)
  ;(await upstream.response(1)).end('second')
  t.equal((await two!.answer()).text, 'second')
  t.equal((await three!.answer()).text, 'second', 'it does not wait for the slow one')
  slow.end('first')
  t.equal((await one!.answer()).text, 'first')
  t.equal(rig.coalesced, 1)
  t.equal(rig.pacer.now(), 2_000)
})

t.test('a leader that hangs up while it waits: the next has its slot', async t => {
  const { rig, upstream } = await start(t)
  const [one, two, three] = await queue(t, rig, get('/page'), get('/page'), get('/page'))
  one!.hangUp()
  await rig.until(({ outcomes }) => outcomes.includes('all cancelled 499'))
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end('ok')
  t.equal((await two!.answer()).text, 'ok')
  t.equal((await three!.answer()).text, 'ok')
  t.same(upstream.requests, ['GET /first', 'GET /page'])
  t.same(rig.waits.slice(2), [1_000, 1_000])
})

t.test('a leader that hangs up before the head: its request goes on for the others', async t => {
  const { rig, upstream } = await start(t)
  const [one, two] = await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  one!.hangUp()
  await eventually(() => rig.proxy.context.inProgress === 2)
  await turns()
  t.equal(res.destroyed, false)
  res.end('ok')
  t.equal((await two!.answer()).text, 'ok')
  await rig.finished(3)
  t.same(rig.outcomes.slice(1).sort(), ['all cancelled 499', 'all forwarded 200'])
  await eventually(() => rig.proxy.context.inProgress === 0)
})

t.test('a leader that hangs up behind the head: the others get the whole answer', async t => {
  const { rig, upstream } = await start(t)
  const [one, two] = await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  res.write('a'.repeat(70_000))
  await one!.until(client => client.bytes > 70_000)
  one!.hangUp()
  await turns()
  res.end('b'.repeat(70_000))
  t.equal((await two!.answer()).text, 'a'.repeat(70_000) + 'b'.repeat(70_000))
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.same(rig.outcomes.slice(1).sort(), ['all cancelled 499', 'all forwarded 200'])
  t.equal(buffered(rig), 0)
})

/** A leader over HTTP/2 that takes no more than the window of its stream, and one that follows it. Half of the answer has come. */
async function slowLeader(t: Test): Promise<{ rig: Rig; upstream: Held; res: ServerResponse; follower: Client }> {
  const { rig, upstream } = await start(t, {}, { idleTimeout: '1h' }, { virtualClock: true })
  const stream = request(openSession(t, rig.port), { ':path': '/page' })
  let isClosed = false
  stream.on('close', () => {
    isClosed = true
  })
  await rig.until(({ queued }) => queued.length === 1)
  const [follower] = await queue(t, rig, get('/page'))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  res.write('a'.repeat(300_000))
  await eventually(() => buffered(rig) > 300_000)
  // What it takes while time passes counts for it.
  await stalled(() => buffered(rig))
  while (!isClosed && rig.clock.now() < 100_000) {
    rig.clock.runUntil(rig.clock.now() + 1_000)
    await turns(40)
  }
  // The client hears of it when its socket is read.
  await eventually(() => isClosed)
  return { rig, upstream, res, follower: follower! }
}

const TOO_SLOW = ['all the client took too little of the answer in 20 s']

t.test('a leader that is cut for reading too slowly: the others get the whole answer', async t => {
  const { rig, upstream, res, follower } = await slowLeader(t)
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 1, 'its request goes on, and keeps its place')
  res.end('b'.repeat(300_000))
  t.equal((await follower.answer()).text, 'a'.repeat(300_000) + 'b'.repeat(300_000))
  await rig.finished(3)
  t.same(rig.outcomes.slice(1).sort(), ['all failed 200', 'all forwarded 200'])
  t.same(rig.failures, TOO_SLOW)
  t.equal(rig.coalesced, 1)
  t.equal(upstream.requests.length, 2)
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.equal(buffered(rig), 0)
})

t.test('a leader that was cut is given up as soon as nobody waits for its answer', async t => {
  const { rig, res, follower } = await slowLeader(t)
  t.equal(res.destroyed, false)
  follower.hangUp()
  await eventually(() => res.destroyed)
  await rig.finished(3)
  t.same(rig.outcomes.slice(1).sort(), ['all cancelled 499', 'all failed 200'])
  t.same(rig.failures, TOO_SLOW)
  t.equal(rig.proxy.context.inProgress, 0)
  t.equal(buffered(rig), 0)
})

t.test('the request of a leader whose client is gone costs what its answer says', async t => {
  const route = {
    name: 'all',
    coalesce: true,
    cost: { buckets: { tokens: { estimate: 100, after: 'usage.total_tokens' } } },
  }
  for (const [what, status, body, settled] of [
    ['an answer that says it', 200, '{"usage":{"total_tokens":30}}', 'answer tokens=30'],
    ['one that says that nothing was served', 404, '{}', 'unserved tokens=0'],
    ['one that says nothing', 200, '{}', 'unknown'],
  ] as const) {
    const buckets = { tokens: { key: 'all', rate: '100/s', capacity: 1_000 } }
    const { rig, upstream } = await start(t, { buckets, routes: [route] })
    const [one, two] = await queue(t, rig, get('/page'), get('/page'))
    rig.pacer.runUntil(1_000)
    const res = await upstream.response(0)
    one!.hangUp()
    await turns()
    const before = rig.settled.length
    res.writeHead(status, { 'Content-Type': 'application/json' }).end(body)
    t.equal((await two!.answer()).text, body)
    await rig.finished(3)
    t.same(rig.settled.slice(before), [settled], what)
  }
})

t.test('an answer whose trailers are for one client is not shared', async t => {
  for (const [name, value] of Object.entries({ 'Set-Cookie': 'a=b', 'Authentication-Info': 'rspauth="r"' })) {
    const { rig, upstream } = await start(t)
    const [one, two] = await queue(t, rig, get('/page'), get('/page'))
    rig.pacer.runUntil(1_000)
    const res = await upstream.response(0)
    res.writeHead(200, { Trailer: name })
    res.write('one')
    res.addTrailers({ [name]: value })
    res.end()
    t.equal((await one!.answer()).text, 'one')
    t.equal(rig.coalesced, 0, name)
    t.equal(two!.bytes, 0)
    t.equal(buffered(rig), 0)
    rig.pacer.runUntil(2_000)
    ;(await upstream.response(1)).end('two')
    t.equal((await two!.answer()).text, 'two')
  }
})

t.test('a leader that hung up is given up as soon as nobody waits for its answer', async t => {
  const gone: Record<string, (rig: Rig, two: Client, res: ServerResponse) => void> = {
    'the last follower hangs up': (_rig, two) => two.hangUp(),
    'its turn comes': rig => rig.pacer.runUntil(2_000),
    'the answer is for one client': (_rig, _two, res) => res.writeHead(200, { 'Set-Cookie': 'a=b' }).flushHeaders(),
    'the answer is too long': (_rig, _two, res) => res.write('x'.repeat(MB + 1)),
  }
  for (const [what, happens] of Object.entries(gone)) {
    const { rig, upstream } = await start(t)
    const [one, two] = await queue(t, rig, get('/page'), get('/page'))
    rig.pacer.runUntil(1_000)
    const res = await upstream.response(0)
    let closed = false
    res.on('close', () => {
      closed = true
      upstream.notify()
    })
    one!.hangUp()
    await turns()
    t.equal(closed, false)
    happens(rig, two!, res)
    await upstream.until(() => closed)
    await rig.until(({ outcomes }) => outcomes.includes('all cancelled 499'))
    t.equal(buffered(rig), 0, what)
  }
})

t.test('an answer that breaks off costs only the leader', async t => {
  const { rig, upstream } = await start(t)
  const [one, two] = await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  res.writeHead(200, { 'Content-Length': 100 }).write('half')
  await one!.until(({ bytes }) => bytes > 0)
  res.destroy()
  t.equal((await one!.answer()).whole, false)
  t.equal(two!.bytes, 0)
  rig.pacer.runUntil(2_000)
  ;(await upstream.response(1)).end('whole')
  t.equal((await two!.answer()).text, 'whole')
})

t.test('followers that hang up or wait too long leave as ever', async t => {
  const { rig, upstream } = await start(t, { routes: [{ name: 'all', coalesce: true, maxWait: '4s' }] })
  const [one, two, three, four] = await queue(t, rig, ...Array(4).fill(get('/page')))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  two!.hangUp()
  await rig.until(({ outcomes }) => outcomes.includes('all cancelled 499'))
  res.end('ok')
  for (const client of [one!, three!, four!]) t.equal((await client.answer()).text, 'ok')
  t.equal(rig.coalesced, 2)
})

t.test('the place of a follower is free for others at once, and its cost is returned', async t => {
  const { rig, upstream } = await start(t, { buckets: { all: { key: 'all', rate: '1/s', capacity: 4 } } })
  const clients = await queue(t, rig, get('/page'), get('/page'), get('/page'))
  const full = await connect(t, rig)
  t.equal((await full.ask(get('/other'))).status, 429)
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end('ok')
  for (const client of clients) await client.answer()
  const others = await queue(t, rig, get('/1'), get('/2'), get('/3'))
  t.equal((await full.ask(get('/4'))).status, 429)
  for (const second of [2, 3, 4]) {
    rig.pacer.runUntil(second * 1_000)
    ;(await upstream.response(second - 1)).end('ok')
    t.equal((await others[second - 2]!.answer()).status, 200)
  }
})

t.test('a request that is sent again leads those that wait then', async t => {
  const { rig, upstream } = await start(t, {}, { retry: { status: [503], max: 3 } })
  const [one] = await queue(t, rig, get('/page'))
  rig.pacer.runUntil(1_000)
  const res = await upstream.response(0)
  const [two] = await queue(t, rig, get('/page'))
  res.writeHead(503).end()
  await rig.until(({ queued }) => queued.length === 3)
  rig.pacer.runUntil(2_000)
  ;(await upstream.response(1)).end('ok')
  t.equal((await one!.answer()).text, 'ok')
  t.equal((await two!.answer()).text, 'ok')
  t.equal(rig.coalesced, 1)
})

t.test('a slow leader holds up nobody: the answer is read at the pace of the upstream', async t => {
  const { rig, upstream } = await start(t, { limits: { minBodyRate: 0 } }, { responseBuffer: 1024 })
  const [slow] = await queue(t, rig, get('/page'))
  slow!.socket.removeAllListeners('data').pause()
  const [fast] = await queue(t, rig, get('/page'))
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end(Buffer.alloc(MB, 'x'))
  t.equal((await fast!.answer()).body.length, MB)
  t.equal(rig.coalesced, 1)
})

t.test('a slow follower holds up nobody and is not cut; there is one copy of the answer', async t => {
  const { rig, upstream } = await start(t, { limits: { minBodyRate: 0 } })
  const [one, ...rest] = await queue(t, rig, ...Array(6).fill(get('/page')))
  const slow = rest.slice(0, 4)
  for (const { socket } of slow) socket.removeAllListeners('data').pause()
  rig.pacer.runUntil(1_000)
  const body = Buffer.alloc(MB, 'x')
  ;(await upstream.response(0)).end(body)
  t.equal((await one!.answer()).body.length, MB)
  t.equal((await rest[4]!.answer()).body.length, MB)
  const held = buffered(rig)
  t.ok(held <= MB + 4 * (256 * 1024 + 64 * 1024), `${held} bytes are held`)
  for (const client of slow) {
    let bytes = 0
    client.socket.on('data', chunk => {
      bytes += chunk.length
    })
    client.socket.resume()
    for (let turn = 0; bytes < MB && turn < 100_000; turn += 1) await turns(1)
    t.ok(bytes > MB, 'all of it, and its head')
  }
  await rig.until(() => rig.outcomes.length === 7)
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.equal(buffered(rig), 0)
})

t.test('copies have a bounded part of the memory', async t => {
  const { rig, upstream } = await start(t, { limits: { bufferMemory: 1_000_000 } })
  const clients = await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).writeHead(200, { 'Content-Length': 600_000 }).end(Buffer.alloc(600_000))
  t.equal((await clients[0]!.answer()).body.length, 600_000)
  t.equal(rig.coalesced, 0, 'there is no room for more than half')
  rig.pacer.runUntil(2_000)
  ;(await upstream.response(1)).end('small')
  t.equal((await clients[1]!.answer()).text, 'small')
})

/** A follower over HTTP/2 that takes no more than the window of its stream. */
async function stalledFollower(t: Test, rig: Rig, upstream: Held): Promise<{ isClosed(): Promise<void> }> {
  const [leader] = await queue(t, rig, get('/page'))
  const stream = request(openSession(t, rig.port), { ':path': '/page' })
  let closed = false
  stream.on('close', () => {
    closed = true
    upstream.notify()
  })
  await rig.until(({ queued }) => queued.length === 2)
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end(Buffer.alloc(MB))
  await leader!.answer()
  await rig.until(({ coalesced }) => coalesced === 1)
  return { isClosed: () => upstream.until(() => closed) }
}

t.test('a follower that takes nothing is cut after idleTimeout', async t => {
  const { rig, upstream } = await start(
    t,
    { limits: { minBodyRate: 0 } },
    { idleTimeout: '5s' },
    { virtualClock: true },
  )
  await stalledFollower(t, rig, upstream)
  t.ok(buffered(rig) > MB, 'its answer is kept for it')
  // The kernels take some of it first.
  await stalled(() => buffered(rig))
  const since = rig.clock.now()
  rig.clock.runUntil(since + 4_900)
  await turns(100)
  t.equal(rig.proxy.context.inProgress, 1, 'not before its time')
  // What was taken before counts once, when the first 5 s are over.
  for (const ms of [5_001, 10_002]) {
    rig.clock.runUntil(since + ms)
    await turns(100)
  }
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.equal(buffered(rig), 0)
})

t.test('a shutdown cuts an answer that is being delivered', async t => {
  const { rig, upstream } = await start(t, { limits: { minBodyRate: 0 } })
  const { isClosed } = await stalledFollower(t, rig, upstream)
  const drained = rig.proxy.drain(0)
  await isClosed()
  await drained
  t.equal(rig.proxy.context.inProgress, 0)
  t.equal(buffered(rig), 0)
})

t.test('a shutdown: what waits is answered, and the request of a leader that hung up ends', async t => {
  const { rig, upstream } = await start(t)
  const [one, two] = await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  await upstream.response(0)
  one!.hangUp()
  await turns()
  await rig.proxy.drain(0)
  t.equal((await two!.answer()).status, 503)
  await rig.finished(3)
  t.same(rig.outcomes.slice(1).sort(), ['all cancelled 499', 'all expired 503'])
  t.equal(rig.proxy.context.inProgress, 0)
})

t.test('a shutdown while an answer is handed out: each client has one outcome and one answer', async t => {
  const { rig, upstream } = await start(t, {}, {}, { virtualClock: true })
  const clients = await queue(t, rig, ...Array(40).fill(get('/page')))
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end('ok')
  await rig.until(({ coalesced }) => coalesced > 0)
  const drained = rig.proxy.drain(0)
  rig.clock.runUntil(0)
  const answers = await Promise.all(clients.map(client => client.answer()))
  await turns()
  rig.clock.runUntil(60_000)
  await drained
  const count = (status: number): number => answers.filter(answer => answer.status === status).length
  t.ok(count(200) > 1 && count(503) > 1 && count(200) + count(503) === 40, `${count(200)} and ${count(503)}`)
  t.equal(rig.outcomes.length, 41)
  t.equal(rig.outcomes.filter(outcome => outcome === 'all expired 503').length, count(503))
  t.equal(buffered(rig), 0)
})

t.test('armed requests: those that came after the thread had written do not get the answer', async t => {
  const upstream = await heldUpstream(t)
  const hand = new Hand()
  const rig = await startRig(
    t,
    { ...COALESCED, upstream: upstream.url, buckets: { all: { key: 'all', rate: '100/s', capacity: 50 } } },
    { writes: hand.writes, virtualClock: true },
  )
  await occupy(t, rig)
  const [one, two] = await queue(t, rig, get('/page'), get('/page'))
  await eventually(() => {
    if (hand.armed.length === 0) rig.proxy.context.shaper.wake()
    return hand.armed.length > 0
  })
  hand.send(rig)
  const res = await upstream.response(0)
  const [late] = await queue(t, rig, get('/page'))
  res.end('ok')
  t.equal((await one!.answer()).text, 'ok')
  t.equal((await two!.answer()).text, 'ok')
  t.equal(rig.coalesced, 1)
  t.equal(late!.bytes, 0)
  t.equal(upstream.requests.length, 2)
  late!.hangUp()
})

t.test('"explain" tells that an answer was shared', async t => {
  const { rig, upstream } = await start(t, { routes: [{ name: 'all', coalesce: true, explain: true }] })
  const [one, two] = await queue(t, rig, get('/page'), get('/page'))
  rig.pacer.runUntil(1_000)
  ;(await upstream.response(0)).end('ok')
  t.match((await one!.answer()).header('shaper-explain'), /;wait=1000\.0;(?!.*coalesced)/)
  t.match((await two!.answer()).header('shaper-explain'), /;wait=1000\.0;.*predicted=2000\.0.*;coalesced$/)
})

/** Followers that only note that they were answered. */
function noted(count: number) {
  const answered: number[] = []
  const left: number[] = []
  const followers = Array.from({ length: count }, (_, number) => ({
    leaveQueue: () => left.push(number) > 0,
    takeAnswer: () => void answered.push(number),
  }))
  return { answered, left, followers }
}

const HEAD = { status: 200, reason: 'OK', fields: [], length: 0 }
const LANE = { name: 'all' } as LaneRoute

t.test('those that came after the moment of an armed write do not follow', async t => {
  const coalescing = new Coalescing(new ByteBudget(MB), () => undefined)
  const { answered, followers } = noted(3)
  for (const [at, follower] of followers.entries()) coalescing.join(LANE, 'page', follower, at)
  const leader = { unfollowed: () => undefined }
  t.equal(coalescing.lead(LANE, 'page', leader, -1), undefined, 'nobody waited then')
  t.equal(coalescing.lead(LANE, 'other', leader, Infinity), undefined)
  coalescing.lead(LANE, 'page', leader, 1)!.begin(HEAD)!.end([])
  t.same(answered, [0, 1])
  t.ok(coalescing.hasWaiting(LANE))
})

t.test('many are answered a few in each turn of the event loop, the first first', async t => {
  let woken = 0
  const coalescing = new Coalescing(new ByteBudget(MB), () => {
    woken += 1
  })
  const { answered, left, followers } = noted(20)
  for (const follower of followers) coalescing.join(LANE, 'page', follower, 0)
  coalescing
    .lead(LANE, 'page', { unfollowed: () => undefined }, 0)!
    .begin(HEAD)!
    .end([])
  t.same(left, [...Array(20).keys()].reverse(), 'all leave their queues at once, the last first')
  t.equal(woken, 1)
  t.equal(answered.length, 8)
  await turns(3)
  t.same(answered, [...Array(20).keys()])
  t.notOk(coalescing.hasWaiting(LANE), 'nothing is left of the group')
})
