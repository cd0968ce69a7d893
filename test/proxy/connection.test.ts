import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { promisify } from 'node:util'
import t from 'tap'
import {
  answering,
  askOnce,
  connect,
  get,
  httpUpstream,
  OFF,
  OK,
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

t.test('keep-alive: many requests on one connection, with HTTP/1.0 on request, until Connection: close', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  for (let count = 0; count < 20; count += 1) t.equal((await client.ask(get())).status, 200)
  const last = await client.ask(get('/', 'Connection: close'))
  t.equal(last.header('connection'), 'close')
  await client.end()
  const old = await connect(t, rig)
  t.equal((await old.ask('GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n')).header('connection'), 'keep-alive')
  t.equal((await old.ask('GET / HTTP/1.0\r\n\r\n')).header('connection'), 'close')
  await old.end()
})

t.test('pipelined requests are taken one at a time and answered in order', async t => {
  const waiting: (() => void)[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    waiting.push(() => res.end(req.url))
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.send(get('/a') + post('body', '/b') + get('/c'))
  for (const path of ['/a', '/b', '/c']) {
    await upstream.until(() => waiting.length > 0)
    await turns()
    t.equal(waiting.length, 1, 'only one is on its way')
    waiting.pop()!()
    t.equal((await client.answer()).text, path)
  }
  t.same(upstream.requests, ['GET /a', 'POST /b', 'GET /c'])
  t.notOk(client.ended)
})

for (const [kind, one] of [
  ['one like the others', get('/66')],
  ['one with a body', post('body', '/66')],
  ['an upgrade to h2c', get('/66', 'Connection: Upgrade', 'Upgrade: h2c')],
] as const) {
  const prefix = kind === 'one with a body' ? '' : 'long: '
  t.test(`${prefix}five thousand requests in one write, one of them ${kind}: all are answered in order`, async t => {
    const upstream = await httpUpstream(t, (req, res) => res.end(req.url))
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    const client = await connect(t, rig)
    const paths = Array.from({ length: 5_000 }, (_, at) => `/${at + 1}`)
    client.send(paths.map(path => (path === '/66' ? one : get(path))).join(''))
    const answered: string[] = []
    while (answered.length < paths.length) answered.push((await client.answer()).text)
    t.same(answered, paths)
    t.equal((await client.ask(get('/after'))).text, '/after')
    t.equal(client.rest, '')
    t.equal((await rig.finished(5_001)).filter(outcome => outcome === 'all forwarded 200').length, 5_001)
    t.equal(rig.proxy.context.inProgress, 0)
  })
}

t.test('a WebSocket behind many pipelined requests gets its answer', async t => {
  const upstream = await rawUpstream(t, answering('HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno'))
  const rig = await startRig(t, { upstream: upstream.url, routes: [{ match: { path: '/on' }, mode: 'off' }] })
  for (const ahead of [64, 65, 66, 200]) {
    const client = await connect(t, rig)
    client.send(get('/none').repeat(ahead) + get('/on', 'Upgrade: websocket', 'Connection: Upgrade'))
    for (let count = 0; count < ahead; count += 1) t.equal((await client.answer()).status, 404)
    t.equal((await client.answer()).status, 403)
    await client.end()
  }
  t.match(upstream.text, /upgrade: websocket/i)
})

t.test('a bounded number of pipelined requests is read; the rest are read after the answers', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const client = await connect(t, rig)
  // More than the kernel takes.
  const count = 400_000
  client.send(get('/held') + get('/none').repeat(count))
  await rig.until(rig => rig.queued.length === 1)
  t.ok((await stalled(() => taken(client))) < 0.7 * count * get('/none').length, 'the client feels it')
  const other = await connect(t, rig)
  other.send(get('/other'))
  await rig.until(rig => rig.queued.length === 2)
  t.equal(rig.outcomes.length, 1)
  client.resetConnection()
  await turns()
  rig.pacer.runUntil(1_000)
  t.equal((await other.answer()).status, 200, 'in the slot of the one that has gone')
  t.same(upstream.requests, ['GET /first', 'GET /other'])
})

for (const ahead of [64, 65, 66, 200]) {
  t.test(`a client that sent ${ahead} pipelined requests and hangs up is noticed while it waits`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
    await occupy(t, rig)
    for (const leave of ['resetConnection', 'hangUp'] as const) {
      const client = await connect(t, rig)
      const before = rig.outcomes.length
      client.send(get('/a').repeat(1 + ahead))
      await rig.until(rig => rig.proxy.context.shaper.queued === 1)
      await turns()
      client[leave]()
      await rig.until(rig => rig.outcomes.length > before)
      await turns()
      t.equal(rig.proxy.context.shaper.queued, 0)
      t.equal(rig.proxy.context.inProgress, 0)
    }
    t.same(upstream.requests, ['GET /first'])
  })
}

t.test('a large answer before many pipelined requests arrives whole, even at a slow reader', async t => {
  const upstream = await httpUpstream(t, (req, res) => res.end(req.url === '/large' ? 'x'.repeat(8_000_000) : req.url))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  for (const behind of [get('/a').repeat(200), get('/a', ...H2C).repeat(3)]) {
    const client = await connect(t, rig)
    client.socket.pause()
    client.send(get('/large') + behind)
    await stalled(() => upstream.requests.length)
    client.socket.resume()
    t.equal((await client.answer()).body.length, 8_000_000)
    for (let left = behind.split('/a').length - 1; left > 0; left -= 1) t.equal((await client.answer()).text, '/a')
  }
})

t.test('keepAliveTimeout does not touch a request that waits behind others on its connection', async t => {
  const waits = async (behind: string): Promise<void> => {
    const upstream = await httpUpstream(t)
    const config = {
      upstream: upstream.url,
      limits: { keepAliveTimeout: '100ms' },
      ...ONE_A_SECOND,
      routes: [{ match: { path: '/on/*' } }],
    }
    const rig = await startRig(t, config, { virtualClock: true })
    const client = await connect(t, rig)
    client.send(get('/on/first') + behind)
    await rig.until(rig => rig.queued.length > 0)
    rig.clock.runUntil(rig.clock.now() + 1_500)
    await turns()
    t.notOk(client.ended)
    t.equal(rig.proxy.context.shaper.queued, 1)
    const before = rig.outcomes.length
    client.hangUp()
    await rig.until(rig => rig.outcomes.length > before)
  }
  await Promise.all([get('/on/a', ...H2C), get('/none').repeat(65) + get('/on/a')].map(waits))
})

t.test('draining: endless pipelined requests are answered 503 as far as they were read', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const client = await connect(t, rig)
  client.send(get('/a').repeat(100_000))
  await rig.until(rig => rig.queued.length === 1)
  await turns()
  const drained = rig.proxy.drain(60_000)
  rig.pacer.runUntil(1_000)
  t.equal((await client.answer()).status, 200)
  let last = await client.answer()
  for (; last.header('connection') !== 'close'; last = await client.answer()) t.equal(last.status, 503)
  t.equal(last.status, 503)
  client.socket.end()
  await drained
  t.equal(rig.outcomes.length, 3, 'the connection ends with the first of them')
})

t.test(
  'draining with a successor: what was sent ahead is answered, up to a bound for one that never stops',
  async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
    await occupy(t, rig)
    const client = await connect(t, rig)
    client.send(get('/a').repeat(100_000))
    await rig.until(rig => rig.queued.length === 1)
    const handed = rig.proxy.handOver({
      send(order) {
        if (order.verb !== 'guests') return
        for (const { id } of order.guests) setImmediate(() => handed.told({ verb: 'released', id, slot: 0 }))
      },
      machine: { ours: ms => ms, theirs: ms => ms },
    })
    await handed.complete
    const drained = rig.proxy.drain(60_000)
    let answers = 0
    for (let isLast = false; !isLast; answers += 1) {
      const answer = await client.answer()
      if (answer.status !== 200) t.fail(`status ${answer.status}`)
      isLast = answer.header('connection') === 'close'
    }
    const bytes = answers * get('/a').length
    t.ok(bytes > 64 * 1024, 'what it had sent')
    t.ok(bytes < 512 * 1024, 'and some more')
    client.socket.end()
    await drained
  },
)

t.test('a client that hangs up: the waiting request is cancelled, and those behind it are never sent', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const client = await connect(t, rig)
  client.send(get('/a') + get('/b') + get('/c'))
  await rig.until(rig => rig.queued.length === 1)
  await turns()
  client.resetConnection()
  // Those behind it have not been parsed.
  t.same((await rig.finished(2)).slice(1), ['all cancelled 499'])
  rig.pacer.runUntil(5_000)
  await turns()
  t.same(upstream.requests, ['GET /first'])
  t.equal(rig.proxy.context.inProgress, 0)
})

t.test('a FIN is a hang-up, as with nginx: a queued request leaves', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  for (const text of [get('/a'), post('body', '/b')]) {
    const client = await connect(t, rig)
    const before = rig.outcomes.length
    client.send(text)
    await rig.until(rig => rig.proxy.context.shaper.queued === 1)
    client.socket.end()
    t.equal((await rig.finished(before + 1)).at(-1), 'all cancelled 499')
    await client.end()
    t.equal(rig.proxy.context.shaper.queued, 0)
  }
  t.same(upstream.requests, ['GET /first'])
})

for (const size of [70_000, 200_000, 1_000_000]) {
  for (const [how, leave] of [
    ['RST', 'resetConnection'],
    ['FIN', 'hangUp'],
  ] as const) {
    // A FIN arrives behind all that was sent, and we read only so far.
    if (size > 256 * 1024 && how === 'FIN') continue
    for (const chunked of [false, true]) {
      const kind = `${size} bytes ${chunked ? 'in chunks' : 'of known length'}`
      t.test(`a ${how} behind an unread body of ${kind} is noticed before the slot is spent`, async t => {
        const upstream = await httpUpstream(t, (req, res) => {
          req.resume()
          res.end('ok')
        })
        const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
        await occupy(t, rig)
        const gone = await connect(t, rig)
        const body = 'x'.repeat(size)
        gone.send(
          chunked
            ? `POST /gone HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n${size.toString(16)}\r\n${body}\r\n`
            : `POST /gone HTTP/1.1\r\nHost: h\r\nContent-Length: ${size + 1}\r\n\r\n${body}`,
        )
        await rig.until(rig => rig.queued.length === 1)
        const next = await connect(t, rig)
        next.send(get('/next'))
        await rig.until(rig => rig.queued.length === 2)
        if (size < 500_000) await new Promise<void>(resolve => gone.socket.write('', () => resolve()))
        gone[leave]()
        await once(gone.socket, 'close')
        await new Promise(resolve => setTimeout(resolve, 50))
        rig.pacer.runUntil(1_000)
        t.equal((await next.answer()).status, 200, 'in the same slot')
        t.same(upstream.requests, ['GET /first', 'GET /next'])
        t.same(rig.outcomes, ['all forwarded 200', 'all cancelled 499', 'all forwarded 200'])
      })
    }
  }
}

t.test('a connected client with a large unread body is forwarded whole', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    let bytes = 0
    req.on('data', chunk => {
      bytes += chunk.length
    })
    req.on('end', () => res.end(String(bytes)))
  })
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const client = await connect(t, rig)
  client.send(post('x'.repeat(3_000_000)))
  await rig.until(rig => rig.queued.length === 1)
  const slow = await connect(t, rig)
  slow.send('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n')
  await rig.until(rig => rig.queued.length === 2)
  rig.pacer.runUntil(1_000)
  t.equal((await client.answer()).text, '3000000')
  rig.pacer.runUntil(2_000)
  slow.send('x'.repeat(100_000))
  t.equal((await slow.answer()).text, '100000', 'also one that has sent nothing of it yet')
})

t.test('late headers: 408; a connection that sent nothing is just closed', async t => {
  const upstream = await httpUpstream(t)
  const config = { upstream: upstream.url, limits: { headersTimeout: '200ms' }, ...OFF }
  const rig = await startRig(t, config, { virtualClock: true })
  const [slow, silent] = await Promise.all([connect(t, rig), connect(t, rig)])
  slow.send('GET / HTTP/1.1\r\nHost: h\r\nX-Sl')
  await turns()
  rig.clock.runUntil(200)
  const answer = await slow.answer()
  t.equal(answer.status, 408)
  t.equal(answer.header('content-type'), 'application/problem+json')
  await slow.end()
  await silent.end()
  t.equal(silent.bytes, 0)
  t.same(rig.outcomes, [' refused 408'])
})

t.test('headersTimeout does not affect requests that wait, even with incomplete headers behind them', async t => {
  const upstream = await httpUpstream(t)
  const config = { upstream: upstream.url, limits: { headersTimeout: '100ms' }, ...ONE_A_SECOND }
  const rig = await startRig(t, config, { virtualClock: true })
  await occupy(t, rig)
  const posting = await connect(t, rig)
  posting.send('POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo')
  await rig.until(rig => rig.queued.length === 1)
  const ahead = await connect(t, rig)
  ahead.send(`${get('/ahead')}GET /slow HTTP/1.1\r\nHo`)
  await rig.until(rig => rig.queued.length === 2)
  rig.clock.runUntil(500)
  await turns()
  t.equal(rig.outcomes.length, 1, 'both are still there')
  posting.send('dy')
  await turns()
  rig.pacer.runUntil(1_000)
  t.equal((await posting.answer()).status, 200)
  rig.pacer.runUntil(2_000)
  t.equal((await ahead.answer()).status, 200)
  await turns()
  rig.clock.runUntil(600)
  t.equal((await ahead.answer()).status, 408)
  await ahead.end()
  t.equal(rig.outcomes.filter(outcome => outcome === ' refused 408').length, 1)
})

t.test('an idle connection is closed after keepAliveTimeout', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { keepAliveTimeout: '100ms' }, ...OFF })
  const client = await connect(t, rig)
  await client.ask(get())
  await client.end()
  t.same(rig.outcomes, ['all forwarded 200'])
})

t.test('a rejected request with a body leaves the connection usable, even after an idle time', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(
    t,
    { upstream: upstream.url, ...ONE_A_SECOND, ...{ routes: [{ match: { path: '/x' } }] } },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  t.equal((await client.ask(post('body'))).status, 404)
  await turns()
  rig.clock.runUntil(60_000)
  await turns()
  t.equal((await client.ask(post('b'.repeat(500_000)))).status, 404)
  await stalled(() => taken(client))
  rig.clock.runUntil(120_000)
  t.equal((await client.ask(get('/x'))).status, 200)
})

const H2C = [
  'Connection: Upgrade, HTTP2-Settings, X-Hop',
  'Upgrade: h2c',
  'HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA',
  'X-Hop: 1',
]

t.test('an upgrade to anything but websocket is a plain request', async t => {
  const upstream = await rawUpstream(t, incoming => {
    const bodies = incoming.text.split('\r\n\r\n')
    if (/content-length: 4/i.test(bodies.at(-2) ?? '') && bodies.at(-1) !== 'body') return
    answering(OK)({ ...incoming, text: incoming.text.replace(/body$/, '') })
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  t.equal((await client.ask(get('/h2c', ...H2C))).status, 200)
  t.equal((await client.ask(get('/tls', 'Upgrade: TLS/1.2', 'Connection: upgrade, keep-alive'))).status, 200)
  t.equal((await client.ask(post('body', '/post', ...H2C))).status, 200)
  t.notMatch(upstream.text, /upgrade|settings|hop/i)
  t.same(await rig.finished(3), ['all forwarded 200', 'all forwarded 200', 'all forwarded 200'])
})

t.test('refused upgrades, repeated and pipelined, are answered in order without a warning', async t => {
  const warnings: Error[] = []
  const warn = (warning: Error) => warnings.push(warning)
  process.on('warning', warn)
  t.teardown(() => process.off('warning', warn))
  const upstream = await httpUpstream(t, (req, res) => res.end(req.url))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  for (let count = 0; count < 30; count += 1) t.equal((await client.ask(get(`/${count}`, ...H2C))).text, `/${count}`)
  client.send(get('/a') + get('/b', ...H2C) + get('/c') + get('/d', ...H2C) + get('/e'))
  for (const path of ['/a', '/b', '/c', '/d', '/e']) t.equal((await client.answer()).text, path)
  await turns()
  t.same(warnings, [])
})

t.test('a client that hangs up after such an upgrade is noticed', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const client = await connect(t, rig)
  client.send(get('/waits') + get('/h2c', ...H2C))
  await rig.until(rig => rig.queued.length === 1)
  client.resetConnection()
  t.equal((await rig.finished(2))[1], 'all cancelled 499')
  const alone = await connect(t, rig)
  alone.send(get('/h2c', ...H2C))
  await rig.until(rig => rig.queued.length === 2)
  alone.hangUp()
  t.equal((await rig.finished(3))[2], 'all cancelled 499')
  t.same(upstream.requests, ['GET /first'])
})

t.test('curl --http2 is served', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const { stdout } = await promisify(execFile)('curl', ['-s', '--http2', '-m', '5', `${rig.proxy.url}/x`])
  t.equal(stdout, 'ok')
})

t.test('draining: queued requests are answered, new ones get 503, every connection ends', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  const idle = await connect(t, rig)
  await idle.ask(get('/first'))
  const silent = await connect(t, rig)
  const queued = await connect(t, rig)
  queued.send(get('/queued'))
  await rig.until(rig => rig.queued.length === 1)
  const busy = await connect(t, rig)
  busy.send(get('/ahead') + get('/behind'))
  await rig.until(rig => rig.queued.length === 2)
  const drained = rig.proxy.drain(60_000)
  await idle.end()
  const refused = await new Promise(resolve => {
    const late = connect(t, rig)
    late.then(
      () => resolve(false),
      () => resolve(true),
    )
  })
  t.ok(refused, 'accepts no more')
  rig.pacer.runUntil(1_000)
  const answer = await queued.answer()
  t.equal(answer.status, 200)
  t.equal(answer.header('connection'), 'close')
  await queued.end()
  rig.pacer.runUntil(2_000)
  t.equal((await busy.answer()).status, 200)
  const behind = await busy.answer()
  t.equal(behind.status, 503)
  t.equal(behind.header('connection'), 'close')
  t.match(behind.json(), { type: /temporary-reduced-capacity/, status: 503, detail: 'shaper is shutting down' })
  t.ok(behind.header('retry-after'))
  await drained
  await silent.end()
  t.equal(silent.bytes, 0)
  t.same(upstream.requests, ['GET /first', 'GET /queued', 'GET /ahead'])
})

t.test('draining: after the timeout the rest is answered 503 or cut off', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (incoming.text.includes('/half')) incoming.socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf')
  })
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '1/s', capacity: 5 } },
    routes: [{ name: 'off', match: { path: '/off/*' }, mode: 'off' }, { name: 'all' }],
  })
  const silentUpstream = await connect(t, rig)
  silentUpstream.send(get('/first'))
  const half = await connect(t, rig)
  half.send(get('/off/half'))
  await half.until(client => client.rest.endsWith('half'))
  const queued = await connect(t, rig)
  queued.send(get('/queued'))
  const uploading = await connect(t, rig)
  uploading.send(`POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n${'x'.repeat(300_000)}`)
  await rig.until(rig => rig.queued.length === 2)
  await upstream.until(upstream => upstream.requests === 2)
  const drained = rig.proxy.drain(0)
  t.equal((await silentUpstream.answer()).status, 503)
  t.notOk((await half.answer()).whole)
  t.equal((await queued.answer()).status, 503)
  t.equal((await uploading.answer()).status, 503)
  uploading.hangUp()
  await drained
  t.same([...rig.outcomes].sort(), ['all expired 503', 'all expired 503', 'all failed 503', 'off failed 503'])
  t.equal(upstream.requests, 2)
  t.equal(rig.proxy.context.inProgress, 0)
})

t.test(
  'draining with a delay: until it is over new requests are served, and each connection closes after its answer',
  async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND }, { virtualClock: true })
    const idle = await connect(t, rig)
    await idle.ask(get('/first'))
    const drained = rig.proxy.drain(60_000, 5_000)
    rig.clock.runUntil(4_999)
    const late = await connect(t, rig)
    late.send(get('/late'))
    await rig.until(rig => rig.queued.length === 1)
    rig.pacer.runUntil(1_000)
    const answer = await late.answer()
    t.equal(answer.status, 200)
    t.equal(answer.header('connection'), 'close')
    await late.end()
    const waiting = await connect(t, rig)
    waiting.send(get('/waiting'))
    await rig.until(rig => rig.queued.length === 2)
    t.notOk(rig.proxy.context.draining)
    rig.clock.runUntil(5_000)
    await idle.end()
    await t.rejects(connect(t, rig), 'accepts no more')
    t.ok(rig.proxy.context.draining)
    rig.pacer.runUntil(2_000)
    t.equal((await waiting.answer()).status, 200, 'it is released as in any drain')
    await drained
    t.same(upstream.requests, ['GET /first', 'GET /late', 'GET /waiting'])
  },
)

t.test('draining twice has the effect of draining once; both calls end', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND }, { virtualClock: true })
  await occupy(t, rig)
  const client = await connect(t, rig)
  client.send(get())
  await rig.until(rig => rig.queued.length === 1)
  const first = rig.proxy.drain(60_000)
  const second = rig.proxy.drain(60_000)
  rig.pacer.runUntil(1_000)
  await Promise.all([first, second])
  t.equal((await client.answer()).status, 200)
  await rig.proxy.drain(0)
})

t.test('over TLS: the same, refused upgrades included; the upstream sees https', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { ...TLS, upstream: upstream.url, ...OFF })
  const client = await connect(t, rig, { tls: true })
  for (const request of [get('/plain'), get('/h2c', ...H2C), get('/after')]) {
    t.equal((await client.ask(request)).status, 200)
  }
  t.equal(upstream.text.match(/X-Forwarded-Proto: https/g)?.length, 3)
})

t.test('over TLS: a drain ends idle connections at once, even those that are half closed', async t => {
  const upstream = await httpUpstream(t)
  // On the virtual clock nothing is cut off after five seconds.
  const rig = await startRig(t, { ...TLS, upstream: upstream.url, ...OFF }, { virtualClock: true })
  const idle = await connect(t, rig, { tls: true })
  await idle.ask(get())
  // A client's handshake is over before the server's.
  const silent = await connect(t, rig, { tls: true })
  await Promise.all([rig.proxy.drain(0), idle.end(), silent.end()])
  t.same(rig.outcomes, ['all forwarded 200'])
})

t.test('an invalid request for a WebSocket is a plain request', async t => {
  const upgrades: unknown[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    upgrades.push(req.headers.upgrade)
    req.pipe(res)
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const websocket = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: x']
  for (const [text, body] of [
    [post('body', '/', ...websocket), 'body'],
    [`GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n${websocket.join('\r\n')}\r\n\r\nbody`, 'body'],
    [`GET / HTTP/1.0\r\n${websocket.join('\r\n')}\r\n\r\n`, ''],
  ] as const) {
    const answer = await askOnce(t, rig, text)
    t.same([answer.status, answer.text], [200, body])
  }
  t.same(upgrades, [undefined, undefined, undefined])
})

t.test('long: over TLS: two thousand requests in one write are answered, in order', async t => {
  const upstream = await httpUpstream(t, (req, res) => res.end(req.url))
  const rig = await startRig(t, { ...TLS, upstream: upstream.url, ...OFF })
  const client = await connect(t, rig, { tls: true })
  const paths = Array.from({ length: 2_000 }, (_, at) => `/${at}`)
  client.send(paths.map(path => get(path)).join(''))
  const answered: string[] = []
  while (answered.length < paths.length) answered.push((await client.answer()).text)
  t.same(answered, paths)
})
