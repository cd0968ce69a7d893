import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import t from 'tap'
import { causeOf, describeError, failureText } from '../../src/proxy/upstream/upstream-error.js'
import { freePort } from '../servers/free-port.js'
import {
  type Answer,
  answering,
  askOnce,
  connect,
  get,
  httpUpstream,
  OFF,
  OK,
  ONE_A_SECOND,
  post,
  rawUpstream,
  STREAMED,
  stalled,
  startRig,
  taken,
  turns,
} from './harness.js'

function isProblem(
  t: { same(found: unknown, wanted: unknown): unknown },
  answer: Answer,
  status: number,
  title: string,
) {
  t.same(answer.status, status)
  t.same(answer.header('content-type'), 'application/problem+json')
  const { detail, ...rest } = answer.json()
  t.same(rest, { type: 'about:blank', title, status })
  t.same(typeof detail, 'string')
}

t.test('a refused connection to the upstream: 502', async t => {
  const rig = await startRig(t, { upstream: `http://127.0.0.1:${await freePort()}`, ...OFF })
  const client = await connect(t, rig)
  const answer = await client.ask(get())
  isProblem(t, answer, 502, 'Bad Gateway')
  t.equal(answer.json().detail, 'the upstream refused the connection')
  t.equal((await client.ask(post('body'))).status, 502)
  t.equal((await client.ask(get())).status, 502, 'the connection to the client stays open, because its body was read')
  t.same(await rig.finished(3), ['all failed 502', 'all failed 502', 'all failed 502'])
  t.same(rig.failures[0], 'all the upstream refused the connection')
})

t.test('an upstream with a name that does not resolve: 502', async t => {
  const rig = await startRig(t, { upstream: 'http://nowhere.invalid:80', ...OFF })
  isProblem(t, await askOnce(t, rig, get()), 502, 'Bad Gateway')
})

t.test('a 502 during an upload: the rest is read and the connection stays open', async t => {
  const upstream = await rawUpstream(t, incoming => incoming.socket.destroy())
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nstart')
  t.equal((await client.answer()).status, 502)
  client.send('x'.repeat(100_000 - 5))
  t.equal((await client.ask(get())).status, 502)
  t.same(await rig.finished(2), ['all failed 502', 'all failed 502'])
})

t.test('slow headers: 504 after responseTimeout, which runs from the end of the upload', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(
    t,
    { upstream: { url: upstream.url, responseTimeout: '3s', idleTimeout: '5s', requestBuffer: 0 }, ...OFF },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc')
  const incoming = await upstream.connection(0)
  await incoming.until(/abc$/)
  rig.clock.runUntil(4_000)
  client.send('def')
  await incoming.until(/def$/)
  rig.clock.runUntil(8_000)
  client.send('ghi')
  await incoming.until(/ghi$/)
  rig.clock.runUntil(10_900)
  await turns()
  t.equal(client.bytes, 0)
  rig.clock.runUntil(11_001)
  isProblem(t, await client.answer(), 504, 'Gateway Timeout')
  await incoming.until(incoming => incoming.closed)
  t.same(await rig.finished(1), ['all failed 504'])
})

t.test('the upload of an empty chunked body has ended: 504, not 408', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(
    t,
    { upstream: { url: upstream.url, responseTimeout: '1s', idleTimeout: '1h' }, ...OFF },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n')
  await (await upstream.connection(0)).until(/\r\n\r\n/)
  await turns()
  rig.clock.runUntil(1_000)
  t.equal((await client.answer()).status, 504)
})

t.test('a client that stops sending its body: 408, then its connection is closed', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { upstream: { url: upstream.url, idleTimeout: '5s' }, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${STREAMED}\r\n\r\nabc`)
  const incoming = await upstream.connection(0)
  await incoming.until(/abc$/)
  rig.clock.runUntil(5_000)
  const answer = await client.answer()
  isProblem(t, answer, 408, 'Request Timeout')
  t.equal(answer.header('connection'), 'close')
  await client.end()
  await incoming.until(incoming => incoming.closed)
})

t.test('an upstream that stops reading the body: 504', async t => {
  const upstream = await rawUpstream(t, incoming => incoming.socket.pause())
  const rig = await startRig(t, { upstream: { url: upstream.url, idleTimeout: '5s' }, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${64 * 1024 * 1024}\r\n\r\n`)
  client.send(Buffer.alloc(64 * 1024 * 1024))
  await stalled(() => taken(client))
  rig.clock.runUntil(5_000)
  t.equal((await client.answer()).status, 504)
})

t.test('a reset before the headers, or half of them: 502; sent once', async t => {
  for (const part of ['', 'HTTP/1.1 20', 'HTTP/1.1 200 OK\r\nContent-Le']) {
    const upstream = await rawUpstream(t, incoming => {
      incoming.socket.write(part, () => incoming.socket.resetAndDestroy())
    })
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    isProblem(t, await askOnce(t, rig, get()), 502, 'Bad Gateway')
    t.equal(upstream.requests, 1, 'a fresh connection is no race: no second try')
    t.same(await rig.finished(1), ['all failed 502'])
  }
})

t.test('a head without its body, and nothing was sent to the client yet: 502', async t => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.end('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  // The end may come a turn later than the head. Then the client has the head, and only a closed connection can tell it.
  const answer = await client.ask(get())
  if (answer.status === 502) isProblem(t, answer, 502, 'Bad Gateway')
  else t.notOk(answer.whole)
  t.same(await rig.finished(1), [`all failed ${answer.status}`])
  t.equal(upstream.connections.length, 1, 'it is not sent again')
})

t.test('a 100 that nobody asked for is ignored', async t => {
  const upstream = await rawUpstream(t, answering(`HTTP/1.1 100 Continue\r\n\r\n${OK}`))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  for (let count = 1; count <= 3; count += 1) t.equal((await client.ask(get())).status, 200)
  t.equal(client.rest, '')
  t.equal(upstream.connections.length, 1, 'the connection is kept')
})

t.test('invalid answers: 502', async t => {
  for (const answer of [
    'garbage\r\n\r\n',
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n',
    'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello',
    'HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n',
    'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
    `HTTP/1.1 200 OK\r\nX-Big: ${'x'.repeat(100_000)}\r\nContent-Length: 0\r\n\r\n`,
    'HTTP/1.1 200 OK\r\nX\x00Y: 1\r\nContent-Length: 0\r\n\r\n',
  ]) {
    const upstream = await rawUpstream(t, answering(answer))
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    const client = await connect(t, rig)
    isProblem(t, await client.ask(get()), 502, 'Bad Gateway')
    t.same(await rig.finished(1), ['all failed 502'], JSON.stringify(answer.slice(0, 60)))
    t.notOk(client.ended)
    t.equal((await client.ask(get())).status, 502, 'the next request is answered, too')
  }
})

t.test('an answer that breaks off: the client sees that it is incomplete', async t => {
  for (const [head, request] of [
    ['HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf', get()],
    ['HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n', get()],
    ['HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz', get()],
    ['HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf', 'GET / HTTP/1.0\r\n\r\n'],
  ] as const) {
    const upstream = await rawUpstream(t, incoming => incoming.socket.write(head))
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    const client = await connect(t, rig)
    client.send(request)
    await client.until(client => client.ended || client.rest.includes('half'))
    upstream.connections[0]!.socket.destroy()
    t.notOk((await client.answer()).whole)
    t.same(await rig.finished(1), ['all failed 200'])
    t.equal(rig.failures.length, 1)
  }
})

t.test(
  'an answer to HTTP/1.0 that breaks off: the connection is reset, because a FIN would end the answer',
  async t => {
    const upstream = await rawUpstream(t, incoming =>
      incoming.socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n'),
    )
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    const client = await connect(t, rig)
    client.send('GET / HTTP/1.0\r\n\r\n')
    await client.until(client => client.rest.includes('half'))
    ;(await upstream.connection(0)).socket.destroy()
    await client.end()
    t.ok(client.reset)
  },
)

/** An upstream that sends part of an answer, and resets once all of that has left. */
async function resettingUpstream(t: Parameters<typeof rawUpstream>[0], part: number, framing: string) {
  const begun = new WeakSet<object>()
  return rawUpstream(t, incoming => {
    if (begun.has(incoming)) return
    begun.add(incoming)
    const { socket } = incoming
    socket.write(`HTTP/1.1 200 OK\r\n${framing}\r\n\r\n`)
    if (framing.startsWith('T')) socket.write(`${(2 * part).toString(16)}\r\n`)
    socket.write(Buffer.alloc(part, 'x'))
    socket.end()
  })
}

t.test('an answer that breaks off reaches a slow client as far as it came', async t => {
  // More than the kernel takes; and as much as it takes, behind an upload that nobody reads.
  const upload = `POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 40000000\r\n\r\n${'y'.repeat(4_000_000)}`
  for (const [part, framing, request] of [
    [12_000_000, 'Content-Length: 24000000', get()],
    [12_000_000, 'Transfer-Encoding: chunked', get()],
    [3_000_000, 'Content-Length: 6000000', upload],
  ] as const) {
    const upstream = await resettingUpstream(t, part, framing)
    const rig = await startRig(t, { upstream: { url: upstream.url, responseBuffer: 16_000_000 }, ...OFF })
    const client = await connect(t, rig)
    client.socket.pause()
    client.send(request)
    t.same(await rig.finished(1), ['all failed 200'])
    await turns()
    client.socket.resume()
    await client.end()
    t.notOk(client.reset)
    t.equal(client.rest.replaceAll(/[^x]+/g, '').length, part, framing)
    t.notOk((await client.answer()).whole)
  }
})

t.test('an answer that breaks off: a client that does not read it is cut off after idleTimeout', async t => {
  const upstream = await resettingUpstream(t, 12_000_000, 'Content-Length: 24000000')
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, responseBuffer: 16_000_000, idleTimeout: '5s' },
      limits: { minBodyRate: 0 },
      ...OFF,
    },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  client.socket.pause()
  client.send(get())
  await rig.finished(1)
  const { context } = rig.proxy
  rig.clock.runUntil(rig.clock.now() + 4_900)
  await turns()
  t.equal(context.inProgress, 1)
  rig.clock.runUntil(rig.clock.now() + 200)
  await turns()
  t.equal(context.inProgress, 0)
})

t.test('silence between body bytes: the answer is cut off after idleTimeout, not before', async t => {
  const upstream = await rawUpstream(t, incoming =>
    incoming.socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc'),
  )
  const rig = await startRig(t, { upstream: { url: upstream.url, idleTimeout: '5s' }, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send(get())
  await client.until(client => client.rest.endsWith('abc'))
  rig.clock.runUntil(4_900)
  const incoming = await upstream.connection(0)
  incoming.socket.write('def')
  await client.until(client => client.rest.endsWith('def'))
  rig.clock.runUntil(9_800)
  await turns()
  t.notOk(client.ended)
  rig.clock.runUntil(9_900)
  t.notOk((await client.answer()).whole)
  await incoming.until(incoming => incoming.closed)
  t.same(await rig.finished(1), ['all failed 200'])
})

t.test('an upstream that refuses an upload and closes: the client reads the refusal', async t => {
  // In a thread of its own, so that its reset comes between our writes.
  const refusing = new Worker(
    `const { parentPort } = require('node:worker_threads')
     const server = require('node:net').createServer(socket => {
       socket.on('error', () => undefined).once('data', () => {
         const head = 'HTTP/1.1 413 Too Large\\r\\nContent-Length: 3\\r\\nConnection: close\\r\\n\\r\\n'
         socket.write(head + 'big', () => socket.destroy())
       })
     }).listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port))`,
    { eval: true },
  )
  t.teardown(() => refusing.terminate())
  const [port] = (await once(refusing, 'message')) as [number]
  const rig = await startRig(t, { upstream: `http://127.0.0.1:${port}`, ...OFF })
  let refused = 0
  for (let count = 0; count < 60; count += 1) {
    const client = await connect(t, rig)
    client.send('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n')
    for (let piece = 0; piece < 6 && client.rest === ''; piece += 1) {
      client.send(Buffer.alloc(20_000))
      await turns(1)
    }
    if ((await client.answer()).status === 413) refused += 1
    client.hangUp()
  }
  // The reset may still come between reading and writing: 15 of 20 were read on a busy machine. Without the order it was a third.
  t.ok(refused >= 33, `${refused} of 60`)
})

t.test('a connection that is not established: 504 after connectTimeout', async t => {
  // A server that never accepts: connections beyond its backlog get no answer.
  const stuck = new Worker(
    `const { parentPort } = require('node:worker_threads')
     const server = require('node:net').createServer().listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
       parentPort.postMessage(server.address().port)
       setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20000))
     })`,
    { eval: true },
  )
  t.teardown(() => stuck.terminate())
  const [port] = (await once(stuck, 'message')) as [number]
  const { connect: tcpConnect } = await import('node:net')
  for (let count = 0; count < 4; count += 1) {
    const filler = tcpConnect({ port, host: '127.0.0.1' }).on('error', () => undefined)
    t.teardown(() => filler.destroy())
  }
  await new Promise(resolve => setTimeout(resolve, 200))
  const rig = await startRig(t, { upstream: { url: `http://127.0.0.1:${port}`, connectTimeout: '500ms' }, ...OFF })
  const start = Date.now()
  isProblem(t, await askOnce(t, rig, get()), 504, 'Gateway Timeout')
  t.ok(Date.now() - start < 5_000, `${Date.now() - start} ms`)
})

t.test('a client that hangs up in the queue: the upstream never sees it, the requests behind move up', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await askOnce(t, rig, get('/1'))
  const [two, three, four] = await Promise.all([connect(t, rig), connect(t, rig), connect(t, rig)])
  for (const [at, client] of [two, three, four].entries()) {
    client.send(get(`/${at + 2}`))
    await rig.until(rig => rig.queued.length === at + 1)
  }
  three.hangUp()
  await rig.finished(2)
  two.resetConnection()
  t.same((await rig.finished(3)).slice(1), ['all cancelled 499', 'all cancelled 499'])
  rig.pacer.runUntil(1_000)
  t.equal((await four.answer()).status, 200, 'in the slot of the first that left')
  t.same(upstream.requests, ['GET /1', 'GET /4'])
  t.equal(rig.proxy.context.shaper.queued, 0)
  t.equal(rig.proxy.context.inProgress, 0)
})

t.test('a client that hangs up during its upload or its answer: the connection to the upstream is closed', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (incoming.text.startsWith('GET')) incoming.socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc')
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const uploading = await connect(t, rig)
  uploading.send(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${STREAMED}\r\n\r\nabc`)
  await (await upstream.connection(0)).until(/abc$/)
  uploading.hangUp()
  await upstream.connections[0]!.until(incoming => incoming.closed)
  const answered = await connect(t, rig)
  answered.send(get())
  await answered.until(client => client.rest.endsWith('abc'))
  answered.resetConnection()
  await upstream.connections[1]!.until(incoming => incoming.closed)
  t.same(await rig.finished(2), ['all cancelled 499', 'all cancelled 499'])
  const waiting = await connect(t, rig)
  waiting.send(post('body'))
  await (await upstream.connection(2)).until(/body$/)
  waiting.hangUp()
  await upstream.connections[2]!.until(incoming => incoming.closed)
  t.equal((await rig.finished(3))[2], 'all cancelled 499')
  t.same(rig.failures, [], 'no error of the upstream')
})

t.test('a client that does not read: it is cut off after idleTimeout, and so is the upstream', async t => {
  let written = 0
  const upstream = await httpUpstream(t, (_req, res) => {
    res.writeHead(200, { 'Content-Length': 64 * 1024 * 1024 })
    const more = (): void => {
      written += 65_536
      if (written < 64 * 1024 * 1024) res.write(Buffer.alloc(65_536), more)
    }
    more()
  })
  const rig = await startRig(t, { upstream: { url: upstream.url, idleTimeout: '5s' }, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.socket.pause()
  client.send(get())
  await upstream.until(({ requests }) => requests.length === 1)
  await stalled(() => written)
  rig.clock.runUntil(rig.clock.now() + 5_000)
  t.same(await rig.finished(1), ['all failed 200'])
  client.socket.resume()
  t.notOk((await client.answer()).whole)
})

t.test('a race with an idle close: GET is sent once more, POST is not', async t => {
  const script = (incoming: { text: string; socket: { write(text: string): void; destroy(): void } }): void => {
    if (/\/second|\/third/.test(incoming.text) && incoming.text.includes('/first')) incoming.socket.destroy()
    else answering(OK)(incoming as never)
  }
  const upstream = await rawUpstream(t, script)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  t.equal((await askOnce(t, rig, get('/first'))).status, 200)
  await turns()
  t.equal((await askOnce(t, rig, get('/second'))).status, 200, 'the kept connection was closed; once more, it works')
  t.equal(upstream.connections.length, 2)
  t.equal(upstream.text.match(/GET \/second/g)?.length, 2)

  const posts = await rawUpstream(t, script)
  const other = await startRig(t, { upstream: posts.url, ...OFF })
  t.equal((await askOnce(t, other, get('/first'))).status, 200)
  await turns()
  t.equal((await askOnce(t, other, post('body', '/second'))).status, 502)
  t.equal(posts.text.match(/POST \/second/g)?.length, 1)
  t.equal(posts.connections.length, 1)

  const never = await rawUpstream(t, incoming => {
    if (incoming.text.includes('/first') && !incoming.text.includes('/second')) incoming.socket.write(OK)
    else incoming.socket.destroy()
  })
  const third = await startRig(t, { upstream: never.url, ...OFF })
  t.equal((await askOnce(t, third, get('/first'))).status, 200)
  await turns()
  t.equal((await askOnce(t, third, get('/second'))).status, 502)
  t.equal(never.text.match(/GET \/second/g)?.length, 2, 'once more and no more')
})

/** Breaks each connection at its second request. Records when requests arrive, in ms of the pacer. */
async function breaking(t: Parameters<typeof rawUpstream>[0], now: () => number) {
  const seen: string[] = []
  const upstream = await rawUpstream(t, incoming => {
    const lines = incoming.text.match(/^[A-Z]+ \S+(?= HTTP)/gm) ?? []
    seen.push(`${lines.at(-1)} at ${now()}`)
    if (lines.length > 1) incoming.socket.destroy()
    else incoming.socket.write(OK)
  })
  return { url: upstream.url, seen }
}

for (const method of ['GET', 'PUT']) {
  t.test(
    `shape: a ${method} on a broken reused connection takes another slot, before the requests behind it`,
    async t => {
      const upstream = await breaking(t, () => rig.pacer.now())
      const rig = await startRig(t, {
        upstream: upstream.url,
        buckets: { all: { key: 'all', rate: '10/s', capacity: 20 } },
        routes: [{ name: 'all' }],
      })
      const ask = (path: string) =>
        askOnce(t, rig, `${method} ${path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n`)
      t.equal((await ask('/1')).status, 200)
      const two = ask('/2')
      await rig.until(({ queued }) => queued.length === 1)
      const three = ask('/3')
      await rig.until(({ queued }) => queued.length === 2)
      await turns()
      rig.pacer.runUntil(100)
      await rig.until(({ queued }) => queued.length === 3)
      rig.pacer.runUntil(200)
      t.equal((await two).status, 200)
      await turns()
      rig.pacer.runUntil(300)
      await rig.until(({ queued }) => queued.length === 4)
      rig.pacer.runUntil(400)
      t.equal((await three).status, 200)
      t.same(
        upstream.seen,
        ['/1 at 0', '/2 at 100', '/2 at 200', '/3 at 300', '/3 at 400'].map(each => `${method} ${each}`),
      )
      t.same(rig.outcomes, Array(3).fill('all forwarded 200'), 'each is counted once')
      t.equal(rig.proxy.context.routes[0]!.lane.gate.inFlight, 0)
    },
  )
}

t.test('shape: a request that cannot be sent again in time is answered 502', async t => {
  const upstream = await breaking(t, () => rig.pacer.now())
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '10/s', capacity: 20 } },
    routes: [{ name: 'all', maxWait: '150ms' }],
  })
  t.equal((await askOnce(t, rig, get('/1'))).status, 200)
  const two = askOnce(t, rig, get('/2'))
  await rig.until(({ queued }) => queued.length === 1)
  await turns()
  rig.pacer.runUntil(100)
  t.equal((await two).status, 502)
  t.same(upstream.seen, ['GET /1 at 0', 'GET /2 at 100'])
})

t.test(
  'shape: a request that was sent and expires before it is sent again is answered 502, not "still queued"',
  async t => {
    const upstream = await breaking(t, () => rig.pacer.now())
    const rig = await startRig(t, {
      upstream: upstream.url,
      buckets: { all: { key: 'all', rate: '10/s', capacity: 20 } },
      routes: [{ name: 'all', maxWait: '250ms' }],
    })
    t.equal((await askOnce(t, rig, get('/1'))).status, 200)
    const two = askOnce(t, rig, get('/2'))
    await rig.until(({ queued }) => queued.length === 1)
    await turns()
    rig.pacer.runUntil(100)
    await rig.until(({ queued }) => queued.length === 2)
    const { bucketTable, shaper } = rig.proxy.context
    for (const bucket of bucketTable.all()) shaper.engine.setLimits(bucket, { ...bucket.limits, rate: 0.001 })
    rig.pacer.runUntil(400)
    t.equal((await two).status, 502)
    t.same(upstream.seen, ['GET /1 at 0', 'GET /2 at 100'])
  },
)

t.test('shape: a request is sent again only once, and not for a client that hung up', async t => {
  const never = await rawUpstream(t, incoming => {
    if (incoming.text.includes('/1') && !incoming.text.includes('/2')) incoming.socket.write(OK)
    else incoming.socket.destroy()
  })
  const config = { buckets: { all: { key: 'all', rate: '10/s', capacity: 20 } }, routes: [{ name: 'all' }] }
  const rig = await startRig(t, { upstream: never.url, ...config })
  t.equal((await askOnce(t, rig, get('/1'))).status, 200)
  await turns()
  rig.pacer.runUntil(1_000)
  const two = askOnce(t, rig, get('/2'))
  await rig.until(({ queued }) => queued.length === 1)
  rig.pacer.runUntil(1_100)
  t.equal((await two).status, 502)
  t.equal(never.text.match(/GET \/2/g)?.length, 2)

  const other = await breaking(t, () => leaving.pacer.now())
  const leaving = await startRig(t, { upstream: other.url, ...config })
  t.equal((await askOnce(t, leaving, get('/1'))).status, 200)
  await turns()
  leaving.pacer.runUntil(1_000)
  const client = await connect(t, leaving)
  client.send(get('/2'))
  await leaving.until(({ queued }) => queued.length === 1)
  client.hangUp()
  t.equal((await leaving.finished(2))[1], 'all cancelled 499')
  leaving.pacer.runUntil(5_000)
  await turns()
  t.same(other.seen, ['GET /1 at 0', 'GET /2 at 1000'])
  t.equal(leaving.proxy.context.routes[0]!.lane.gate.inFlight, 0)
})

t.test('a broken connection uses up no retry, even after a retry', async t => {
  const turnsOf2 = ['break', '429', 'break', 'ok']
  const upstream = await rawUpstream(t, ({ text, socket }) => {
    const what = text.includes('GET /2 ') ? turnsOf2.shift() : 'ok'
    if (what === 'break') socket.destroy()
    else socket.write(what === 'ok' ? OK : 'HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n')
  })
  const rig = await startRig(t, {
    upstream: { url: upstream.url, retry: { status: [429], max: 1 } },
    buckets: { all: { key: 'all', rate: '10/s', capacity: 20 } },
    routes: [{ name: 'all' }],
  })
  t.equal((await askOnce(t, rig, get('/1'))).status, 200)
  const two = askOnce(t, rig, get('/2'))
  for (let count = 1; count <= 4; count += 1) {
    await rig.until(({ queued, outcomes }) => queued.length >= count || outcomes.length > 1)
    await turns()
    rig.pacer.runUntil(count * 100)
  }
  t.equal((await two).status, 200)
  t.same(turnsOf2, [])
  t.equal(rig.proxy.context.routes[0]!.lane.gate.inFlight, 0)
})

t.test('meter: a request that is sent again is admitted again or answered 502, and blocks no key', async t => {
  const upstream = await breaking(t, () => rig.pacer.now())
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 1 },
    buckets: { all: { key: 'all', rate: '1/s', capacity: 3, blockFor: '1h' } },
    routes: [{ name: 'all', mode: 'meter' }],
  })
  t.equal((await askOnce(t, rig, get('/1'))).status, 200)
  await turns()
  t.equal((await askOnce(t, rig, get('/2'))).status, 200)
  t.equal(upstream.seen.length, 3, 'the bucket is full now: all three have been admitted')
  t.equal((await askOnce(t, rig, get('/over'))).status, 429)
  rig.pacer.runUntil(3_600_000)
  t.equal((await askOnce(t, rig, get('/3'))).status, 200, 'on the connection that broke, and again')
  t.equal((await askOnce(t, rig, get('/4'))).status, 502, 'its second admission would be the fourth')
  t.same(rig.rejections, ['overflow all'], 'that of /over: what has been sent fails and is not rejected')
  rig.pacer.runUntil(3_601_000)
  t.equal((await askOnce(t, rig, get('/5'))).status, 200, 'and it has blocked no key')
  t.equal(rig.proxy.context.routes[0]!.lane.gate.inFlight, 0)
})

t.test('an upstream that fails frees its place in flight', async t => {
  const upstream = await rawUpstream(t, incoming => incoming.socket.destroy())
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 1 },
    buckets: { all: { key: 'all', rate: '1000/s', capacity: 5 } },
    routes: [{ name: 'all' }],
  })
  for (let count = 0; count < 3; count += 1) {
    t.equal((await askOnce(t, rig, get())).status, 502)
    rig.pacer.runUntil(rig.pacer.now() + 1)
  }
  t.equal(rig.proxy.context.routes[0]!.lane.gate.inFlight, 0)
})

t.test('the cause tells of each address that was tried', async t => {
  const refused = (address: string) =>
    Object.assign(new Error(`connect ECONNREFUSED ${address}`), { code: 'ECONNREFUSED' })
  const all = Object.assign(new AggregateError([refused('::1:9'), refused('127.0.0.1:9')]), { code: 'ECONNREFUSED' })
  t.match(causeOf(all), {
    message: 'connect ECONNREFUSED ::1:9, connect ECONNREFUSED 127.0.0.1:9',
    code: 'ECONNREFUSED',
  })
  t.equal(causeOf(all.errors[0] as Error), all.errors[0])
  const [, detail] = describeError(all)
  t.equal(
    failureText({ detail, cause: all.errors[0] as Error }),
    'the upstream refused the connection (connect ECONNREFUSED ::1:9)',
  )
})
