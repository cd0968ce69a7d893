import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { request } from 'node:http'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import {
  answering,
  askOnce,
  type Client,
  connect,
  get,
  httpUpstream,
  OFF,
  OK,
  ONE_A_SECOND,
  occupy,
  pass,
  post,
  rawUpstream,
  STREAMED,
  stalled,
  startRig,
  taken,
  turns,
} from './harness.js'

const CHUNKED_POST = 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n'

/** Bytes in buffers that are in use. */
function held(): number {
  setFlagsFromString('--expose-gc')
  runInNewContext('gc')()
  return process.memoryUsage().arrayBuffers
}

// First: what other tests leave behind would count.
t.test(
  'long: many large uploads that have waited are held by their clients, and arrive whole when the upstream reads',
  async t => {
    const count = 24
    const size = 8 * 1024 * 1024
    const body = Buffer.alloc(size)
    for (let at = 0; at < size; at += 4) body.writeUInt32LE(at, at)
    const arrived: Socket[] = []
    const server = createServer({ pauseOnConnect: true }, socket => {
      arrived.push(socket.on('error', () => undefined))
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    t.teardown(() => {
      for (const socket of arrived) socket.destroy()
      server.close()
    })
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const rig = await startRig(t, {
      upstream: url,
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'all' }],
    })
    const clients = await Promise.all(Array.from({ length: count + 1 }, () => connect(t, rig)))
    clients[0]!.send(get('/first'))
    await rig.until(({ proxy }) => proxy.context.routes[0]!.lane.gate.inFlight === 1)
    for (const { socket } of clients.slice(1)) {
      socket.write(`POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: ${size}\r\n\r\n`)
      socket.write(body)
    }
    await rig.until(({ queued }) => queued.length === count)
    await stalled(() => clients.reduce((sum, client) => sum + taken(client), 0))
    const before = held()
    await pass(rig, 10 * count, 1)
    await rig.until(({ released }) => released.length === count + 1)
    // Each is sent upstream once it has been found that its client is still there.
    while (arrived.length <= count) await turns()
    await stalled(() => clients.reduce((sum, client) => sum + taken(client), 0))
    const grown = (held() - before) / 1024 / 1024
    t.ok(grown < 64, `${Math.round(grown)} MB for ${count} uploads`)
    for (const socket of arrived) answerWhole(socket.resume())
    const answers = await Promise.all(clients.slice(1).map(client => client.answer()))
    t.ok(
      answers.every(({ status }) => status === 200),
      'each came byte for byte',
    )

    function answerWhole(socket: Socket): void {
      let head = ''
      let at = 0
      socket.on('data', data => {
        let part = data
        if (!head.includes('\r\n\r\n')) {
          head += part.toString('latin1')
          part = Buffer.from(head.slice(head.indexOf('\r\n\r\n') + 4), 'latin1')
        }
        const same = part.equals(body.subarray(at, at + part.length))
        at += part.length
        if (!same) socket.destroy()
        else if (at === size) socket.end(OK)
      })
    }
  },
)

t.test('sixteen megabytes come back unchanged', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    res.writeHead(200, { 'Content-Length': req.headers['content-length'] })
    req.pipe(res)
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const body = randomBytes(16 * 1024 * 1024)
  const client = await connect(t, rig)
  client.send(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n`)
  client.send(body)
  const answer = await client.answer()
  t.ok(answer.body.equals(body))
  t.same(await rig.finished(1), [rig.outcomes[0]])
})

t.test('chunks go both ways', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.pipe(res))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  const answer = await client.ask(`${CHUNKED_POST}5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-Trailer: dropped\r\n\r\n`)
  t.equal(answer.text, 'hello world')
  t.equal(answer.header('transfer-encoding'), 'chunked')
  t.equal((await client.ask(`${CHUNKED_POST}0\r\n\r\n`)).text, '', 'an empty one')
})

t.test('request trailers are dropped', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (/\r\n\r\n.*(abc|0\r\n\r\n)$/s.test(incoming.text)) incoming.socket.write(OK)
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const answer = await askOnce(
    t,
    rig,
    'POST / HTTP/1.1\r\nHost: h\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n',
  )
  t.equal(answer.status, 200)
  t.notMatch(upstream.text, /x-t/i)
})

t.test('response trailers are passed to HTTP/1.1 and dropped for HTTP/1.0', async t => {
  const upstream = await rawUpstream(
    t,
    answering(
      'HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\xe9\r\nX-SUM: 7\r\n\r\n',
    ),
  )
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const answer = await askOnce(t, rig, get('/'))
  t.equal(answer.header('trailer'), 'X-Sum')
  t.same(answer.trailers, ['X-Sum: 6\xe9', 'X-SUM: 7'])
  const old = await askOnce(t, rig, 'GET / HTTP/1.0\r\n\r\n')
  t.equal(old.text, 'abc')
  t.equal(old.header('trailer'), undefined)
  t.equal(old.header('transfer-encoding'), undefined)
  t.ok(old.whole)
})

t.test('HEAD, 204 and 304 have no body, even if they have a Content-Length', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.method === 'HEAD') res.writeHead(200, { 'Content-Length': 10 }).end()
    else if (req.url === '/204') res.writeHead(204, { 'X-A': 'b' }).end()
    else if (req.url === '/304') res.writeHead(304, { 'Content-Length': 10, ETag: '"x"' }).end()
    else res.end('after')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  const head = await client.ask('HEAD / HTTP/1.1\r\nHost: h\r\n\r\n')
  t.same([head.status, head.header('content-length')], [200, '10'])
  const none = await client.ask(get('/204'))
  t.same([none.status, none.header('x-a')], [204, 'b'])
  const unchanged = await client.ask(get('/304'))
  t.same([unchanged.status, unchanged.header('content-length'), unchanged.header('etag')], [304, '10', '"x"'])
  t.equal((await client.ask(get('/'))).text, 'after', 'on the same connection')
  t.same(
    (await rig.finished(4)).map(outcome => outcome.split(' ').slice(1).join(' ')),
    ['forwarded 200', 'forwarded 204', 'forwarded 304', 'forwarded 200'],
  )
})

t.test('an answer that ends with the connection is whole', async t => {
  const upstream = await rawUpstream(t, incoming => {
    incoming.socket.end('HTTP/1.1 200 OK\r\n\r\nuntil the end')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const answer = await askOnce(t, rig, get('/'))
  t.equal(answer.text, 'until the end')
  t.equal(answer.header('transfer-encoding'), 'chunked')
  t.ok(answer.whole)
  const old = await askOnce(t, rig, 'GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n')
  t.equal(old.text, 'until the end')
})

t.test('103 is passed on with all its headers; other 1xx are dropped, and HTTP/1.0 clients get no 103', async t => {
  const upstream = await rawUpstream(
    t,
    answering(
      'HTTP/1.1 102 Processing\r\n\r\n' +
        'HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload; as=style\r\nlink: <https://x/?a=b,c>;rel="preconnect"\r\nX-More: 1\r\n\r\n' +
        `HTTP/1.1 103 Early Hints\r\nLink: </b>;odd\r\n\r\n${OK}`,
    ),
  )
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  const hints = await client.ask(get('/'))
  t.equal(hints.status, 103)
  t.same(hints.headers, [
    ['Link', '</a.css>; rel=preload; as=style'],
    ['link', '<https://x/?a=b,c>;rel="preconnect"'],
    ['X-More', '1'],
  ])
  t.equal((await client.answer()).status, 103)
  t.equal((await client.answer()).text, 'ok')
  t.equal((await askOnce(t, rig, 'GET / HTTP/1.0\r\n\r\n')).text, 'ok')
})

t.test('early hints are bounded, even if the client does not read', async t => {
  const hint = `HTTP/1.1 103 Early Hints\r\nLink: </${'x'.repeat(32_000)}>\r\n\r\n`
  const upstream = await rawUpstream(t, ({ socket }) => {
    let left = 2_000
    const write = (): void => {
      while (left > 0) {
        left -= 1
        if (!socket.write(left === 0 ? OK : hint)) return void socket.once('drain', write)
      }
    }
    write()
  })
  for (const reads of [true, false]) {
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    const client = await connect(t, rig)
    if (!reads) client.socket.pause()
    client.send(get('/'))
    await rig.finished(1)
    client.socket.resume()
    let answer = await client.answer()
    let hints = 0
    for (; answer.status === 103; answer = await client.answer()) hints += 1
    t.equal(answer.text, 'ok')
    t.ok(hints >= 1 && hints <= 16, `${hints} of 2,000 hints`)
    t.ok(client.bytes < 1_000_000, `${client.bytes} bytes of 64 MB`)
  }
})

t.test('100 Continue is sent on admission if the body is read then, else at the release', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    let body = ''
    req.on('data', chunk => {
      body += chunk
    })
    req.on('end', () => res.end(`${req.headers.expect ?? 'no expect'} ${body}`))
  })
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const short = await connect(t, rig)
  short.send('POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n')
  t.equal((await short.answer()).status, 100, 'while it waits for its turn')
  t.same(rig.queued, ['all'])
  short.send('body')
  const long = await connect(t, rig)
  long.send(`POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: ${STREAMED}\r\n\r\n`)
  await rig.until(rig => rig.queued.length === 2)
  rig.pacer.runUntil(1_000)
  t.equal((await short.answer()).text, 'no expect body')
  rig.pacer.runUntil(1_999)
  await turns()
  t.equal(long.rest, '', 'not before')
  rig.pacer.runUntil(2_000)
  t.equal((await long.answer()).status, 100)
  long.send('x'.repeat(STREAMED))
  t.equal((await long.answer()).text, `no expect ${'x'.repeat(STREAMED)}`)
})

t.test('Expect with a rejection: no 100, and the client may send its body or leave it out', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '1/m', capacity: 1 } },
  })
  await occupy(t, rig)
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n')
  const answer = await client.answer()
  t.equal(answer.status, 429)
  if (answer.header('connection') === 'close') await client.end()
  else {
    client.send(`body${get('/next')}`)
    t.equal((await client.answer()).status, 429, 'the body was no request')
  }
  t.same(upstream.requests, ['GET /first'])
})

t.test('the body of a queued request stays unread: backpressure holds the client', async t => {
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
  const size = 64 * 1024 * 1024
  client.send(`POST /big HTTP/1.1\r\nHost: h\r\nContent-Length: ${size}\r\n\r\n`)
  client.send(Buffer.alloc(size))
  await rig.until(rig => rig.queued.length === 1)
  await stalled(() => taken(client))
  t.ok(client.socket.writableLength > 0, 'the client is held')
  t.same(upstream.requests, ['GET /first'])
  rig.pacer.runUntil(1_000)
  t.equal((await client.answer()).text, String(size))
})

t.test('an upstream that stops reading holds the client', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  const size = 64 * 1024 * 1024
  client.send(`POST /big HTTP/1.1\r\nHost: h\r\nContent-Length: ${size + 1}\r\n\r\nx`)
  const incoming = await upstream.connection(0)
  await incoming.until(/\r\n\r\n/)
  incoming.socket.pause()
  const heap = process.memoryUsage().arrayBuffers
  client.send(Buffer.alloc(size))
  await stalled(() => taken(client))
  t.ok(client.socket.writableLength > 0, 'the client is held')
  t.ok(process.memoryUsage().arrayBuffers - heap < 1.25 * size, 'and nothing else holds its body')
  incoming.socket.removeAllListeners('data')
  let answered = false
  incoming.socket.on('data', () => {
    if (!answered && incoming.socket.bytesRead > size) {
      answered = true
      incoming.socket.write(OK)
    }
  })
  incoming.socket.resume()
  t.equal((await client.answer()).status, 200)
})

t.test('a rejection before the 100 ends the connection: a body that is left out cannot become a request', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, buckets: { all: { key: 'all', rate: '1/m', capacity: 1 } } })
  await occupy(t, rig)
  const hidden = 'GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n'
  const next = `GET /next HTTP/1.1\r\nHost: h\r\n\r\n`.padEnd(60, ' ').slice(0, 60)
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 60\r\n\r\n')
  const answer = await client.answer()
  t.same([answer.status, answer.header('connection')], [429, 'close'])
  client.send(next + hidden)
  await client.end()
  t.equal(client.rest, '')
  t.same(upstream.requests, ['GET /first'])
})

t.test('many small pieces for a client that does not read: one listener waits', async t => {
  const warnings: string[] = []
  const onWarning = ({ name }: Error): void => void warnings.push(name)
  process.on('warning', onWarning)
  t.teardown(() => process.off('warning', onWarning))
  const head = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'
  const count = 40_000
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write(`${head}${'1\r\nx\r\n'.repeat(count)}0\r\n\r\n`)
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.socket.pause()
  client.send(get())
  await upstream.connection(0)
  await turns(50)
  client.socket.resume()
  t.equal((await client.answer()).body.length, count)
  t.same(warnings, [])
})

t.test('a client that stops reading holds the upstream', async t => {
  const size = 64 * 1024 * 1024
  let written = 0
  const upstream = await httpUpstream(t, (_req, res) => {
    res.writeHead(200, { 'Content-Length': size })
    const piece = Buffer.alloc(64 * 1024)
    const more = (): void => {
      while (written < size) {
        written += piece.length
        if (!res.write(piece)) return void res.once('drain', more)
      }
      res.end()
    }
    more()
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.socket.pause()
  client.send(get('/'))
  await upstream.until(() => written > 0)
  await stalled(() => written)
  t.ok(written < size, 'the upstream is held')
  client.socket.resume()
  t.equal((await client.answer()).body.length, size)
})

t.test('an early final answer ends the upload; both connections stay open', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.method === 'GET') res.end('ok')
    else res.writeHead(413).end('too large')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\nstart')
  const answer = await client.answer()
  t.same([answer.status, answer.text], [413, 'too large'])
  client.send('x'.repeat(200_000 - 5) + get('/next'))
  t.equal((await client.answer()).text, 'ok', 'the rest was read, the next request is understood')
  for (let count = 0; count < 5; count += 1) t.equal((await client.ask(get('/again'))).text, 'ok')
  t.ok(rig.outcomes.every(outcome => outcome.includes('forwarded')))
})

/** Asks with Node's own client, which reads while it writes. */
function byRequest(port: number, path: string, body: Buffer): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const req = request({ port, host: '127.0.0.1', path, method: 'POST', headers: { 'Content-Length': body.length } })
    req.on('error', reject)
    req.on('response', res => res.resume().on('end', () => resolve(res.statusCode)))
    req.end(body)
  })
}

for (const [megabytes, times] of [
  [2, 3],
  [8, 3],
  [50, 1],
] as const) {
  t.test(`an upload of ${megabytes} MB that is refused: the client reads its answer`, async t => {
    const upstream = await httpUpstream(t, (req, res) => {
      if (req.method === 'POST') res.writeHead(413).end('too large')
    })
    const rig = await startRig(t, {
      upstream: upstream.url,
      limits: { maxQueued: 1 },
      buckets: {
        one: { key: 'all', rate: '1/h', capacity: 1 },
        many: { key: 'all', rate: '1/h', capacity: 100 },
      },
      routes: [
        { name: 'full', match: { path: '/429' }, mode: 'meter', buckets: ['one'] },
        { name: 'crowded', match: { path: '/503' }, buckets: ['many'] },
        { name: 'early', match: { path: '/413' }, mode: 'off' },
      ],
    })
    for (const path of ['/429', '/503', '/503']) (await connect(t, rig)).send(get(path))
    await rig.until(({ queued }) => queued.length === 1)
    await upstream.until(({ requests }) => requests.length === 2)
    const body = Buffer.alloc(megabytes * 1024 * 1024)
    for (const status of [429, 404, 413, 503]) {
      for (let count = 0; count < times; count += 1) {
        const client = await connect(t, rig)
        // As simple clients do: the answer is read when everything is written.
        client.socket.pause()
        client.send(`POST /${status} HTTP/1.1\r\nHost: h\r\nContent-Length: ${body.length}\r\n\r\n`)
        await new Promise<void>(resolve => client.socket.write(body, () => resolve()))
        client.socket.resume()
        const answer = await client.answer()
        t.equal(answer.status, status)
        // The connection may go on if the whole body was read before the answer. The Connection header must then agree.
        if (answer.header('connection') === 'close') await client.end()
        else t.equal((await client.ask(get('/'))).status, 404)
        t.notOk(client.reset)
        client.hangUp()
      }
      t.equal(await byRequest(rig.port, `/${status}`, body), status, 'http.request')
      const fetched = await fetch(`http://127.0.0.1:${rig.port}/${status}`, { method: 'POST', body })
      await fetched.text()
      t.equal(fetched.status, status, 'fetch')
    }
  })
}

t.test('after its answer a client that sends is read on for a while, a silent one for five seconds', async t => {
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(413).end())
  const rig = await startRig(t, { upstream: upstream.url, ...OFF }, { virtualClock: true })
  const head = 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50000000\r\n\r\nstart'
  const silent = await connect(t, rig)
  silent.send(head)
  t.equal((await silent.answer()).status, 413)
  const sending = await connect(t, rig)
  sending.send(head)
  t.equal((await sending.answer()).status, 413)
  const sendAndWait = async (client: Client): Promise<void> => {
    client.send('x')
    await turns()
    rig.clock.runUntil(rig.clock.now() + 4_000)
    await turns()
  }
  /** Writing to a connection that the other end has left fails at the second try. */
  const left = async ({ socket, send }: Client): Promise<boolean> => {
    for (let tries = 0; tries < 3 && !socket.destroyed; tries += 1) {
      send('x')
      await turns()
    }
    return socket.destroyed
  }
  await sendAndWait(sending)
  await sendAndWait(sending)
  t.ok(await left(silent), 'a silent client is left')
  t.notOk(await left(sending), 'a client that sends is read on')
  for (let seconds = 8; seconds < 320; seconds += 4) await sendAndWait(sending)
  t.ok(await left(sending), 'but only for a time')
})

t.test('an answer may start before the upload ends, and both go on', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    res.write('early ')
    req.on('data', chunk => res.write(chunk))
    req.on('end', () => res.end('.'))
  })
  const upstreamSettings = { url: upstream.url, idleTimeout: '1s', requestBuffer: 0 }
  const rig = await startRig(t, { upstream: upstreamSettings, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send(`${CHUNKED_POST}1\r\n \r\n`)
  await client.until(client => client.rest.includes('early'))
  for (let part = 0; part < 5; part += 1) {
    rig.clock.runUntil(rig.clock.now() + 900)
    client.send(`3\r\nab${part}\r\n`)
    await client.until(client => client.rest.includes(`ab${part}`))
  }
  client.send('0\r\n\r\n')
  t.equal((await client.answer()).text, 'early  ab0ab1ab2ab3ab4.')
})

t.test('the head of an upload leaves before its first byte: the client may wait for the answer', async t => {
  const answer = 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n'
  const long = 'body'.padEnd(STREAMED, '-')
  for (const [framing, requestBuffer, body] of [
    [`Content-Length: ${STREAMED}`, 65_536, long],
    ['Content-Length: 4', 0, 'body'],
    ['Transfer-Encoding: chunked', 0, '4\r\nbody\r\n0\r\n\r\n'],
  ] as const) {
    const upstream = await rawUpstream(t, incoming => {
      const [, sent] = incoming.text.split('\r\n\r\n')
      if (sent === '') incoming.socket.write(answer)
      else if (incoming.text.endsWith(body)) incoming.socket.write('done')
    })
    const rig = await startRig(t, { upstream: { url: upstream.url, requestBuffer }, ...ONE_A_SECOND })
    const client = await connect(t, rig)
    client.send(`POST / HTTP/1.1\r\nHost: h\r\n${framing}\r\n\r\n`)
    await client.until(({ rest }) => rest.endsWith('\r\n\r\n'))
    client.send(body)
    t.match(await client.answer(), { status: 200, text: 'done', whole: true }, framing)
  }
})

t.test('bodies where none are expected, and none where they are', async t => {
  const upstream = await httpUpstream(t, (req, res) => {
    let body = ''
    req.on('data', chunk => {
      body += chunk
    })
    req.on('end', () => res.end(`${req.method} ${req.headers['content-length'] ?? '-'} ${body}`))
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  for (const [method, length, body] of [
    ['GET', 4, 'body'],
    ['DELETE', 4, 'body'],
    ['OPTIONS', 4, 'body'],
    ['POST', 0, ''],
    ['PUT', 0, ''],
  ] as const) {
    const answer = await client.ask(`${method} / HTTP/1.1\r\nHost: h\r\nContent-Length: ${length}\r\n\r\n${body}`)
    t.equal(answer.text, `${method} ${length} ${body}`)
  }
  for (const method of ['GET', 'DELETE']) {
    const answer = await client.ask(`${method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n`)
    t.match(answer.text, new RegExp(`^${method} [-0] $`))
  }
})

t.test('a connection to the upstream is reused, even after HEAD, GET with a body and 304', async t => {
  const ports = new Set<number>()
  const upstream = await httpUpstream(t, (req, res) => {
    ports.add(req.socket.remotePort!)
    req.resume()
    req.on('end', () => (req.url === '/304' ? res.writeHead(304).end() : res.end('ok')))
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  for (const text of [get('/'), 'HEAD / HTTP/1.1\r\nHost: h\r\n\r\n', get('/304'), post('abc'), get('/')]) {
    await client.ask(text)
    await turns()
  }
  await client.ask('GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc')
  await turns()
  await client.ask(get('/'))
  t.equal(ports.size, 1)
})

t.test('the head of an answer does not wait for its body', async t => {
  for (const framing of ['Transfer-Encoding: chunked', 'X: y', 'Content-Length: 100000']) {
    const upstream = await rawUpstream(t, answering(`HTTP/1.1 200 OK\r\nX-Name: caf\xe9\r\n${framing}\r\n\r\n`))
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    const client = await connect(t, rig)
    client.send(get())
    await client.until(({ rest }) => rest.endsWith('\r\n\r\n'))
    t.match(client.rest, /^HTTP\/1\.1 200 OK\r\nX-Name: caf\xe9\r\n/)
    const incoming = upstream.connections.find(({ text }) => text !== '')!
    incoming.socket.write(framing.startsWith('T') ? '3\r\nabc\r\n' : 'abc')
    await client.until(({ rest }) => rest.includes('abc'))
    client.hangUp()
  }
})
