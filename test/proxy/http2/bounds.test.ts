/** What clients of HTTP/2 can make us do, and its bounds. */
import type { ServerResponse } from 'node:http'
import t from 'tap'
import {
  askOnce,
  eventually,
  get as getOver1,
  httpUpstream,
  OFF,
  ONE_A_SECOND,
  passBoth,
  rawUpstream,
  startRig,
  turns,
} from '../harness.js'
import {
  answerOf,
  ask,
  block,
  END_HEADERS,
  END_STREAM,
  FRAME,
  frame,
  openSession,
  PREFACE,
  RawClient,
  REQUEST,
  request,
} from './h2-client.js'

const CANCEL = Buffer.from([0, 0, 0, 8])
const ENHANCE_YOUR_CALM = 11
/** Hang-ups teach nothing. */
const IMPATIENT = { ...ONE_A_SECOND, routes: [{ name: 'all', patience: 'none' }] }

const WHOLE = END_STREAM | END_HEADERS

function get(id: number): Buffer {
  return frame(FRAME.headers, WHOLE, id, block(...REQUEST))
}

t.test('CVE-2023-44487 (rapid reset): a client that resets without end loses its connection', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...IMPATIENT })
  const client = new RawClient(t, rig.port).open()
  for (let id = 1; id < 10_000 && !client.ended; id += 200) {
    const frames: Buffer[] = []
    for (let each = id; each < id + 200; each += 2) frames.push(get(each), frame(FRAME.reset, 0, each, CANCEL))
    client.send(...frames)
    await turns(2)
  }
  const { payload } = await client.frame(FRAME.goaway)
  t.equal(payload.readUInt32BE(4), ENHANCE_YOUR_CALM)
  await client.until(({ ended }) => ended)
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.ok(rig.outcomes.length <= 1_200, `${rig.outcomes.length} requests`)
  t.ok(upstream.requests.length <= 1)
  rig.pacer.runUntil(10_000)
  t.equal((await ask(openSession(t, rig.port))).status, 200, 'others are served')
})

t.test('CVE-2025-8671 (made you reset): resets that the client provokes count as well', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  const client = new RawClient(t, rig.port).open()
  for (let id = 1; id < 10_000 && !client.ended; id += 200) {
    const frames: Buffer[] = []
    // An increment of 0 is an error of the stream.
    for (let each = id; each < id + 200; each += 2)
      frames.push(get(each), frame(FRAME.window, 0, each, Buffer.alloc(4)))
    client.send(...frames)
    await turns(2)
  }
  await client.until(({ ended }) => ended)
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.ok(rig.outcomes.length <= 1_200, `${rig.outcomes.length} requests`)
})

t.test('resets of answered streams beside an open one end the connection, not the process', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...IMPATIENT })
  const client = new RawClient(t, rig.port).open()
  const open = [1, 3, 5, 7, 9]
  client.send(...open.map(get))
  await rig.until(({ queued }) => queued.length === 4)
  // The answer has not left when its reset comes.
  for (let id = 11; id < 10_000 && !client.ended; id += 200) {
    const frames: Buffer[] = []
    for (let each = id; each < id + 200; each += 2) frames.push(get(each), frame(FRAME.reset, 0, each, CANCEL))
    client.send(...frames)
    await turns(2)
  }
  await client.until(({ ended }) => ended)
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.ok(rig.outcomes.length <= 1_200, `${rig.outcomes.length} requests`)
  rig.pacer.runUntil(10_000)
  t.equal((await ask(openSession(t, rig.port))).status, 200, 'others are served')
})

t.test('CVE-2024-28182, CVE-2024-27316 (CONTINUATION flood): a head that does not end is cut', async t => {
  const rig = await startRig(t, { upstream: 'http://127.0.0.1:9', ...OFF })
  const client = new RawClient(t, rig.port).open()
  client.send(frame(FRAME.headers, END_STREAM, 1, block(...REQUEST)))
  let sent = 0
  for (; sent < 1_000 && !client.ended; sent += 1) {
    client.send(frame(FRAME.continuation, 0, 1, block('x-filler', 'y'.repeat(1_000))))
    await turns(1)
  }
  await client.until(({ ended }) => ended)
  t.ok(sent < 1_000, `${sent} frames`)
  t.strictSame(rig.outcomes, [])
})

t.test('CVE-2024-27983: a connection that dies within a head leaves nothing behind', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  for (let count = 0; count < 20; count += 1) {
    const client = new RawClient(t, rig.port).open()
    client.send(
      frame(FRAME.headers, END_STREAM, 1, block(...REQUEST)),
      frame(FRAME.continuation, 0, 1, block('a', 'b')),
    )
    await turns(3)
    client.socket.resetAndDestroy()
  }
  t.equal((await ask(openSession(t, rig.port))).status, 200)
  await eventually(() => rig.proxy.context.inProgress === 0)
})

t.test('CVE-2019-9512, CVE-2019-9515 (ping and settings floods): what is not read ends the connection', async t => {
  const rig = await startRig(t, { upstream: 'http://127.0.0.1:9', ...OFF })
  for (const [type, payload] of [
    [FRAME.ping, Buffer.alloc(8)],
    [FRAME.settings, Buffer.alloc(0)],
  ] as const) {
    const client = new RawClient(t, rig.port).open()
    await client.frame(FRAME.settings)
    client.socket.pause()
    const flood = Buffer.concat(Array(2_000).fill(frame(type, 0, 0, payload)))
    let open = true
    client.socket.on('close', () => {
      open = false
    })
    for (let count = 0; open && count < 2_000; count += 1) {
      client.send(flood)
      await turns(1)
    }
    t.notOk(open, `type ${type}`)
  }
})

t.test('long: heads: as large as over HTTP/1.1, then 431; malformed ones are refused', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxHeaderSize: 2_000 }, ...OFF })
  const session = openSession(t, rig.port)
  t.equal((await ask(session, { 'x-long': 'a'.repeat(1_500) })).status, 200)
  t.equal((await ask(session, { 'x-long': 'a'.repeat(2_200) })).status, 431)
  t.not((await ask(session, { 'x-long': 'a'.repeat(9_000) })).code, 0)
  t.match(await rig.finished(2), ['all forwarded 200', ' refused 431'])
  t.equal((await ask(session, { ':path': '/a b' })).status || 400, 400)
  t.equal((await ask(session, { ':method': 'get' })).status, 400)
  t.equal((await ask(session, { host: 'other.test' })).status, 400)
  const connect = request(session, { ':method': 'CONNECT', ':authority': 'example.test:80' }, 'open')
  const refused = answerOf(connect)
  await new Promise(resolve => connect.once('response', resolve))
  // Its stream is open, as more may come.
  rig.clock.runUntil(rig.clock.now() + 5_000)
  t.equal((await refused).status, 501)
  // What Node's client does not send.
  const raw = new RawClient(t, rig.port).open()
  const fields: string[][] = [
    ['transfer-encoding', 'chunked'],
    ['connection', 'close'],
    ['te', 'gzip'],
    ['X-Upper', 'a'],
    [':path', '/again'],
    ['content-length', '5'],
    ['content-length', '1e53'],
  ]
  for (const [index, field] of fields.entries()) {
    const id = 2 * index + 1
    raw.send(frame(FRAME.headers, WHOLE, id, block(...REQUEST, ...field)))
    await raw.until(
      ({ frames, ended }) => ended || frames.some(({ type, stream }) => type === FRAME.reset && stream === id),
    )
    t.notOk(raw.ended, `${field}`)
  }
  const before = upstream.requests.length
  raw.send(frame(FRAME.headers, WHOLE, 101, block(...REQUEST.slice(0, 4), ':path', '/a\r\nx: y', ...REQUEST.slice(6))))
  await raw.until(({ frames, ended }) => ended || frames.some(({ stream }) => stream === 101))
  t.equal(upstream.requests.length, before, 'nothing of them is forwarded')
})

t.test('a target that is no path, another scheme, or a length that is not exact are 400', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const raw = new RawClient(t, rig.port).open()
  const of = (scheme: string, path: string, ...fields: string[]) =>
    block(':method', 'POST', ':scheme', scheme, ':path', path, ':authority', 'example.test', ...fields)
  const heads = [
    of('foo', 'http://evil/x'),
    of('foo', '/x'),
    of('foo', 'x'),
    of('http', '/', 'content-length', '9007199254740993'),
    of('http', '/', 'content-length', '0000000000000000002'),
  ]
  for (const [at, head] of heads.entries()) raw.send(frame(FRAME.headers, END_HEADERS, 2 * at + 1, head))
  t.strictSame(await rig.finished(heads.length), Array(heads.length).fill(' refused 400'))
  raw.send(frame(FRAME.headers, WHOLE, 101, of('http', 'http://evil/x')))
  await raw.frame(FRAME.reset, 101)
  t.strictSame(upstream.requests, [])
  t.equal((await ask(openSession(t, rig.port), { ':scheme': 'https' })).status, 200, 'of a proxy that ends TLS')
})

/** A field in one byte each, after the first. */
function tiny(id: number, count: number): Buffer {
  const first = id === 1 ? [Buffer.from([0x40, 1, 0x61, 1, 0x62])] : []
  const fields = Buffer.concat([block(...REQUEST), ...first, Buffer.alloc(count - first.length, 0xbe)])
  return frame(FRAME.headers, WHOLE, id, fields)
}

t.test('more than maxHeaders fields are 431 over both protocols', async t => {
  const upstream = await httpUpstream(t)
  for (const maxHeaders of [undefined, 7]) {
    const most = maxHeaders ?? 100
    const rig = await startRig(t, { upstream: upstream.url, ...(maxHeaders && { limits: { maxHeaders } }), ...OFF })
    const lines = Array.from({ length: most - 1 }, (_, at) => `x-${at}: 1`)
    t.equal((await askOnce(t, rig, getOver1('/', ...lines))).status, 200, 'Host is one of them')
    const refused = await askOnce(t, rig, getOver1('/', ...lines, 'a: b'))
    t.match(refused, { status: 431 })
    t.match(refused.json(), { detail: `there are more than ${most} header fields` })
    const session = openSession(t, rig.port)
    const fields = Object.fromEntries(lines.map(line => line.split(': ')))
    t.equal((await ask(session, fields)).status, 200)
    const many = await ask(session, { ...fields, a: 'b' })
    t.match(many, { status: 431, text: new RegExp(`there are more than ${most} header fields`) })
    const grpc = await ask(session, { ...fields, 'content-type': 'application/grpc' })
    t.match(grpc, { status: 200, headers: { 'grpc-status': '8' } })
    const crumbs = block(...REQUEST, ...Array.from({ length: most }, () => ['cookie', 'a=b']).flat())
    const raw = new RawClient(t, rig.port).open()
    raw.send(tiny(1, 1), frame(FRAME.headers, WHOLE, 3, crumbs), tiny(5, 3 * most))
    t.equal((await raw.frame(FRAME.headers, 3)).payload[0], 0x88, 'cookies in several lines are one field')
    await raw.frame(FRAME.reset, 5)
    t.strictSame(
      rig.outcomes,
      [
        'forwarded 200',
        'refused 431',
        'forwarded 200',
        'refused 431',
        'refused 431',
        'forwarded 200',
        'forwarded 200',
      ].map(each => (each.startsWith('f') ? `all ${each}` : ` ${each}`)),
    )
  }
})

t.test('a client that goes on with heads of too many fields loses its connection', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  for (const [count, heads] of [
    [150, 100],
    [1_900, 1_500],
  ] as const) {
    const client = new RawClient(t, rig.port).open()
    client.send(tiny(1, 1))
    await client.frame(FRAME.headers, 1)
    const ids = Array.from({ length: heads }, (_, at) => 2 * at + 3)
    client.send(...ids.map(id => tiny(id, count)))
    t.equal((await client.frame(FRAME.goaway)).payload.readUInt32BE(4), ENHANCE_YOUR_CALM, `${count} fields`)
    await client.until(({ ended }) => ended)
    const requests = rig.outcomes.splice(0).length
    t.ok(requests <= 22, `${requests} of them were looked at`)
  }
  t.equal((await ask(openSession(t, rig.port))).status, 200, 'others are served')
})

t.test('heads of streams that wait count in the buffers of their client', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    trustProxy: ['loopback'],
    limits: { bufferMemory: 1_000_000 },
    buckets: { all: { key: 'all', rate: '1/s', capacity: 500 } },
    routes: [{ name: 'all', patience: 'none' }],
  })
  const session = openSession(t, rig.port)
  const from = (address: string) => {
    const fields = Object.fromEntries(Array.from({ length: 90 }, (_, at) => [`x-${at}`, 'v']))
    return ask(session, { ...fields, 'x-forwarded-for': address })
  }
  const { bodyBytes } = rig.proxy.context
  const answers = Array.from({ length: 30 }, () => from('192.0.2.1'))
  await rig.until(({ queued, outcomes }) => queued.length + outcomes.length >= 30)
  t.ok(bodyBytes.used >= 500_000 && bodyBytes.used <= 600_000, `${bodyBytes.used} held`)
  const refused = rig.outcomes.filter(each => each === ' refused 503').length
  t.ok(refused > 10, `${refused} refused`)
  const others = ['192.0.2.2', '192.0.2.3'].map(from)
  await rig.until(({ queued, outcomes }) => queued.length + outcomes.length >= 32)
  t.equal(rig.outcomes.filter(each => each === ' refused 503').length, refused, 'others have room')
  session.destroy()
  await Promise.all([...answers, ...others])
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.equal(bodyBytes.used, 0)
})

t.test('at most 128 streams at a time; more are refused, and may come again', async t => {
  const upstream = await httpUpstream(t)
  const config = { buckets: { all: { key: 'all', rate: '1/s', capacity: 500 } }, routes: [{ name: 'all' }] }
  const rig = await startRig(t, { upstream: upstream.url, ...config })
  const client = new RawClient(t, rig.port).open()
  const frames: Buffer[] = []
  for (let id = 1; id <= 2 * 200; id += 2) frames.push(get(id))
  client.send(...frames)
  await client.until(({ frames: got }) => got.filter(({ type }) => type === FRAME.reset).length === 200 - 128)
  await rig.until(({ queued, outcomes }) => queued.length + outcomes.length >= 128)
  t.ok(rig.queued.length <= 128)
})

t.test('rejected uploads that go on are dropped, at most 64 at a time, beside other streams', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  const client = new RawClient(t, rig.port).open()
  client.send(...[1, 3, 5, 7, 9].map(get))
  await rig.until(({ queued, outcomes }) => queued.length === 4 && outcomes.length === 1)
  await eventually(() => rig.proxy.context.inProgress === 4)
  const heads = rig.proxy.context.bodyBytes.used
  const uploads = Array.from({ length: 66 }, (_, index) => 11 + 2 * index)
  const head = block(':method', 'POST', ...REQUEST.slice(2))
  const piece = Buffer.alloc(500)
  for (const id of uploads) client.send(frame(FRAME.headers, END_HEADERS, id, head), frame(FRAME.data, 0, id, piece))
  await client.frame(FRAME.headers, 141)
  const resets = (): number[] => client.frames.filter(({ type }) => type === FRAME.reset).map(({ stream }) => stream)
  await client.until(() => resets().length === 2)
  t.strictSame(resets(), [11, 13], 'the oldest')
  t.equal((await client.frame(FRAME.reset, 11)).payload.readUInt32BE(0), 0)
  t.equal(rig.proxy.context.bodyBytes.used, heads)
  client.send(get(143))
  await client.frame(FRAME.headers, 143)
  client.send(...uploads.map(id => frame(FRAME.data, END_STREAM, id, piece)))
  await turns(50)
  rig.clock.runUntil(rig.clock.now() + 5_000)
  await turns(50)
  t.equal(resets().length, 2, 'those that have ended are not reset')
})

t.test('an upload is read no faster than the upstream takes it, and its window counts as held', async t => {
  const upstream = await rawUpstream(t, incoming => incoming.socket.pause())
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const session = openSession(t, rig.port)
  const upload = request(session, { ':method': 'POST' }, 'open')
  const flood = Buffer.alloc(65_536)
  for (let count = 0; count < 400; count += 1) upload.write(flood)
  const { bodyBytes } = rig.proxy.context
  await upstream.connection(0)
  let last = -1
  for (let same = 0; same < 10; ) {
    await new Promise(resolve => setTimeout(resolve, 30))
    same = session.state.remoteWindowSize === last ? same + 1 : 0
    last = session.state.remoteWindowSize ?? 0
  }
  t.ok(bodyBytes.used > 0 && bodyBytes.used < 400_000, `${bodyBytes.used} held`)
  upload.close(8)
  await rig.finished(1)
  await eventually(() => bodyBytes.used === 0)
})

t.test('windows of streams that wait are counted, and there is an end to them', async t => {
  const upstream = await httpUpstream(t)
  const config = { buckets: { all: { key: 'all', rate: '1/s', capacity: 500 } }, routes: [{ name: 'all' }] }
  const limits = { bufferMemory: 1_000_000 }
  const rig = await startRig(t, { upstream: upstream.url, limits, ...config })
  const session = openSession(t, rig.port)
  await ask(session)
  const { bodyBytes } = rig.proxy.context
  const uploads = Array.from({ length: 30 }, () =>
    answerOf(request(session, { ':method': 'POST', 'content-type': 'application/grpc' }, 'open')),
  )
  await rig.until(({ outcomes }) => outcomes.includes(' refused 503'))
  t.ok(bodyBytes.used >= 400_000 && bodyBytes.used <= 600_000, `${bodyBytes.used} held`)
  session.destroy()
  await Promise.all(uploads)
  await eventually(() => rig.proxy.context.inProgress === 0)
  t.equal(bodyBytes.used, 0)
})

t.test('a client that takes nothing is cut, one that takes enough is not', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.end(Buffer.alloc(3_000_000)))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF }, { virtualClock: true })
  const session = openSession(t, rig.port)
  const slow = request(session)
  await new Promise(resolve => slow.once('response', resolve))
  slow.pause()
  const quick = ask(session)
  t.equal((await quick).text.length, 3_000_000, 'a stream beside it')
  const { bodyBytes } = rig.proxy.context
  await eventually(() => bodyBytes.used > 100_000)
  t.ok(bodyBytes.used < 500_000, `${bodyBytes.used} held`)
  await passBoth(rig, 19_000)
  t.notOk(slow.closed)
  const closed = new Promise(resolve => slow.once('close', resolve))
  // What the kernel keeps is read from a file, in real time. Bytes that were in it at first count once more.
  for (let seconds = 0; seconds < 80 && !slow.closed; seconds += 1) {
    await passBoth(rig, 1_000)
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  await closed
  t.equal(slow.rstCode, 8)
  t.equal(bodyBytes.used, 0)
  t.equal((await ask(session)).status, 200, 'the connection goes on')
})

/** A window of so many bytes for each stream. */
function windowOf(bytes: number): Buffer {
  const setting = Buffer.alloc(6)
  setting.writeUInt16BE(4)
  setting.writeUInt32BE(bytes, 2)
  return frame(FRAME.settings, 0, 0, setting)
}

t.test('a client whose window is shut is cut, however short the answer is', async t => {
  const answers: Record<string, (res: ServerResponse) => void> = {
    'whole at once': res => res.end('x'.repeat(4_096)),
    'of unknown length': res => {
      res.write('x')
      setImmediate(() => res.end('y'))
    },
    'with trailers': res => {
      res.writeHead(200, { Trailer: 'X-Sum' })
      res.write('x')
      res.addTrailers({ 'X-Sum': '1' })
      res.end()
    },
    'without an end': res => res.write('x'),
  }
  for (const [what, answer] of Object.entries(answers)) {
    const upstream = await httpUpstream(t, (_req, res) => answer(res))
    const rig = await startRig(
      t,
      { upstream: { url: upstream.url, idleTimeout: '1h' }, ...OFF },
      { virtualClock: true },
    )
    const client = new RawClient(t, rig.port)
    client.socket.write(Buffer.concat([PREFACE, windowOf(0)]))
    client.send(get(1))
    await client.frame(FRAME.headers, 1)
    await eventually(() => rig.proxy.context.bodyBytes.used > 0)
    await passBoth(rig, 19_000)
    t.notOk(
      client.frames.some(({ type }) => type === FRAME.reset),
      what,
    )
    await passBoth(rig, 2_000)
    t.same((await client.frame(FRAME.reset, 1)).payload, CANCEL, what)
    await eventually(() => rig.proxy.context.inProgress === 0)
    t.equal(rig.proxy.context.bodyBytes.used, 0)
    t.equal(rig.proxy.context.bodyLimits.size, 0)
  }
})

t.test('a short answer whose client opens its window in time comes whole', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.end('x'.repeat(4_096)))
  const rig = await startRig(t, { upstream: { url: upstream.url, idleTimeout: '1h' }, ...OFF }, { virtualClock: true })
  const client = new RawClient(t, rig.port)
  client.socket.write(Buffer.concat([PREFACE, windowOf(0)]))
  client.send(get(1))
  await client.frame(FRAME.headers, 1)
  await eventually(() => rig.proxy.context.bodyBytes.used > 0)
  await passBoth(rig, 19_000)
  const more = Buffer.alloc(4)
  more.writeUInt32BE(10_000)
  client.send(frame(FRAME.window, 0, 1, more))
  await client.until(({ frames }) => frames.some(({ type, flags }) => type === FRAME.data && flags === END_STREAM))
  await eventually(() => rig.proxy.context.inProgress === 0)
  await passBoth(rig, 30_000)
  t.equal(
    client.frames.reduce((sum, { type, payload }) => sum + (type === FRAME.data ? payload.length : 0), 0),
    4_096,
  )
  t.notOk(client.frames.some(({ type }) => type === FRAME.reset))
  t.equal(rig.proxy.context.bodyBytes.used, 0)
})

t.test('a body that comes too slowly is 408', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end()))
  const rig = await startRig(
    t,
    { upstream: upstream.url, limits: { bodyTimeout: '60s' }, ...OFF },
    { virtualClock: true },
  )
  const session = openSession(t, rig.port)
  const upload = request(session, { ':method': 'POST', 'content-length': 10_000 }, 'open')
  const answer = answerOf(upload)
  upload.write('x')
  await eventually(() => rig.proxy.context.bodyLimits.size > 0)
  await turns(50)
  await passBoth(rig, 41_000)
  t.equal((await answer).status, 408)
  t.equal((await ask(session, { ':method': 'POST' })).status, 200)
})

t.test('a client that breaks a rule of the connection loses it, and what it waits for leaves the queue', async t => {
  const upstream = await httpUpstream(t)
  const onIdleStream = frame(FRAME.data, 0, 99, Buffer.alloc(10))
  const leaving = frame(FRAME.goaway, 0, 0, Buffer.alloc(8))
  for (const broken of [[onIdleStream], [leaving, onIdleStream]]) {
    const rig = await startRig(t, { upstream: upstream.url, ...IMPATIENT })
    const client = new RawClient(t, rig.port).open()
    client.send(...[1, 3, 5, 7].map(get))
    await rig.until(({ queued, outcomes }) => queued.length === 3 && outcomes.length === 1)
    client.send(...broken)
    await client.until(({ frames }) =>
      frames.some(({ type, payload }) => type === FRAME.goaway && payload.readUInt32BE(4) === 1),
    )
    rig.clock.runUntil(rig.clock.now() + 1_000)
    await client.until(({ ended }) => ended)
    t.strictSame((await rig.finished(4)).slice(1), Array(3).fill('all cancelled 499'))
    t.equal(rig.proxy.context.inProgress, 0)
  }
})

t.test('idle connections are closed after keepAliveTimeout, silent ones after headersTimeout', async t => {
  const upstream = await httpUpstream(t)
  const limits = { keepAliveTimeout: '7s', headersTimeout: '3s' }
  const rig = await startRig(t, { upstream: upstream.url, limits, ...OFF }, { virtualClock: true })
  const client = new RawClient(t, rig.port)
  client.socket.write('PRI * HTTP')
  await turns(50)
  await passBoth(rig, 3_100)
  await client.until(({ ended }) => ended)
  const session = openSession(t, rig.port)
  await ask(session)
  await turns()
  await passBoth(rig, 6_900)
  t.notOk(session.closed)
  const closed = new Promise(resolve => session.once('close', resolve))
  await passBoth(rig, 200)
  await closed
})
