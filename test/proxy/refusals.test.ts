import t from 'tap'
import { answering, connect, get, httpUpstream, OK, post, rawUpstream, startRig, turns } from './harness.js'

const BUCKETS = { all: { key: 'all', rate: '1/s', capacity: 5 } }

interface Case {
  readonly name: string
  readonly text: string
  readonly status: number
  /** Whether the connection goes on after it. */
  readonly kept?: boolean
}

const REFUSED: Case[] = [
  {
    name: 'Content-Length and Transfer-Encoding',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG',
    status: 400,
  },
  {
    name: 'Transfer-Encoding and Content-Length',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nG',
    status: 400,
  },
  {
    name: 'differing Content-Lengths',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab',
    status: 400,
  },
  {
    name: 'the same Content-Length twice',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na',
    status: 400,
  },
  { name: 'a list of lengths', text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\na', status: 400 },
  { name: 'a signed length', text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\na', status: 400 },
  { name: 'a hex length', text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x1\r\n\r\na', status: 400 },
  { name: 'an empty length', text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\na', status: 400 },
  {
    name: 'a transfer coding before chunked',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
    status: 501,
  },
  {
    name: 'chunked twice',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    status: 400,
  },
  {
    name: 'a transfer coding only',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\nabc',
    status: 501,
  },
  {
    name: 'chunked not last',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n',
    status: 400,
  },
  {
    name: 'an obscured coding',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n',
    status: 501,
  },
  {
    name: 'a quoted coding',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    status: 501,
  },
  {
    name: 'Transfer-Encoding in HTTP/1.0',
    text: 'POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    status: 400,
  },
  { name: 'two Hosts', text: 'GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n', status: 400 },
  { name: 'the same Host twice', text: 'GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n', status: 400 },
  { name: 'no Host', text: 'GET / HTTP/1.1\r\nX: y\r\n\r\n', status: 400 },
  ...['a b', 'a/b', 'u@h', 'h:80:80', 'h:x', 'a"b', '[::1', 'h?x', 'h#x', 'caf\xe9', '<h>', 'a\\b', 'h:123456'].map(
    host => ({ name: `Host ${host}`, text: `GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`, status: 400 }),
  ),
  { name: 'bare LF in the head', text: 'GET / HTTP/1.1\nHost: h\n\n', status: 400 },
  { name: 'bare LF after a header', text: 'GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n', status: 400 },
  { name: 'bare CR', text: 'GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n', status: 400 },
  { name: 'obs-fold', text: 'GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n', status: 400 },
  { name: 'a folded first header', text: 'GET / HTTP/1.1\r\n Host: h\r\n\r\n', status: 400 },
  { name: 'NUL in a value', text: 'GET / HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n', status: 400 },
  { name: 'a control character in a value', text: 'GET / HTTP/1.1\r\nHost: h\r\nX: a\x01b\r\n\r\n', status: 400 },
  { name: 'DEL in a value', text: 'GET / HTTP/1.1\r\nHost: h\r\nX: a\x7fb\r\n\r\n', status: 400 },
  { name: 'space before the colon', text: 'GET / HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n', status: 400 },
  {
    name: 'space before the colon of a length',
    text: 'POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 1\r\n\r\na',
    status: 400,
  },
  { name: 'a header without a name', text: 'GET / HTTP/1.1\r\nHost: h\r\n: y\r\n\r\n', status: 400 },
  { name: 'a header without a colon', text: 'GET / HTTP/1.1\r\nHost: h\r\nnonsense\r\n\r\n', status: 400 },
  { name: 'headers too large', text: `GET / HTTP/1.1\r\nHost: h\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`, status: 431 },
  { name: 'a target too long', text: `GET /${'x'.repeat(20_000)} HTTP/1.1\r\nHost: h\r\n\r\n`, status: 431 },
  { name: 'CONNECT', text: 'CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n', status: 405 },
  { name: '*', text: 'OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n', status: 501, kept: true },
  { name: '* of GET', text: 'GET * HTTP/1.1\r\nHost: h\r\n\r\n', status: 501, kept: true },
  { name: 'a fragment', text: 'GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'a space in the target', text: 'GET /a b HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'no target', text: 'GET HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'a target of another scheme', text: 'GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'an absolute target with credentials', text: 'GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'an absolute target without a host', text: 'GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'HTTP/2 in a request line', text: 'GET / HTTP/2.0\r\nHost: h\r\n\r\n', status: 505 },
  { name: 'HTTP/0.9', text: 'GET /\r\n\r\n', status: 505 },
  { name: 'another version', text: 'GET / HTTP/1.2\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'garbage', text: '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', status: 400 },
  { name: 'a method that is no token', text: 'FR@B / HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
  { name: 'a method in lower case', text: 'get / HTTP/1.1\r\nHost: h\r\n\r\n', status: 400 },
]

for (const { name, text, status, kept = false } of REFUSED) {
  t.test(`${name}: ${status}`, async t => {
    const upstream = await rawUpstream(t, answering(OK))
    const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
    const client = await connect(t, rig)
    const answer = await client.ask(text)
    t.equal(answer.status, status)
    t.equal(answer.header('content-type'), 'application/problem+json')
    t.match(answer.json(), { type: 'about:blank', status })
    t.same(rig.outcomes, [` refused ${status}`], 'counted once, as refused')
    t.equal(rig.proxy.context.bucketTable.size(), 0, 'no bucket was touched')
    if (kept) t.equal((await client.ask(get())).status, 200, 'the connection stays open')
    else {
      t.equal(answer.header('connection'), 'close')
      client.send(get('/smuggled'))
      await client.end()
      t.equal(client.rest, '', 'nothing follows')
      await turns()
      t.equal(upstream.requests, 0)
      t.same(rig.outcomes, [` refused ${status}`], 'still once')
    }
    t.equal(rig.proxy.context.inProgress, 0)
  })
}

t.test('absolute-form: its authority replaces Host, the rest becomes the target', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  const client = await connect(t, rig)
  t.equal((await client.ask('GET http://real:81//x?y HTTP/1.1\r\nHost: fake\r\n\r\n')).status, 200)
  rig.pacer.runUntil(1_000)
  t.equal((await client.ask('GET HTTP://real HTTP/1.1\r\nHost: fake\r\n\r\n')).status, 200)
  rig.pacer.runUntil(2_000)
  t.equal((await client.ask('GET http://real?q HTTP/1.1\r\nHost: fake\r\n\r\n')).status, 200)
  t.same(upstream.text.match(/^(GET|Host|X-Forwarded-Host).*$/gm), [
    'GET //x?y HTTP/1.1',
    'Host: real:81',
    'X-Forwarded-Host: real:81',
    'GET / HTTP/1.1',
    'Host: real',
    'X-Forwarded-Host: real',
    'GET /?q HTTP/1.1',
    'Host: real',
    'X-Forwarded-Host: real',
  ])
})

t.test('a bad chunk in the body of a queued request: 400, it leaves the queue, the upstream sees nothing', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  const first = await connect(t, rig)
  await first.ask(get())
  const client = await connect(t, rig)
  client.send('POST /bad HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n')
  await rig.until(rig => rig.queued.length === 1)
  client.send(`zz\r\n${get('/smuggled')}`)
  const answer = await client.answer()
  t.equal(answer.status, 400)
  t.equal(answer.header('connection'), 'close')
  await client.end()
  t.same(await rig.finished(2), ['default forwarded 200', 'default refused 400'])
  const [[, bucket] = []] = [...rig.proxy.context.bucketTable.entries('all')]
  t.equal(bucket?.level(rig.pacer.now()), 1, 'only the first is in the bucket')
  rig.pacer.runUntil(5_000)
  await turns()
  t.equal(upstream.requests, 1)
  t.equal(rig.outcomes.length, 2)
})

t.test('a bad chunk in the body of a request in flight: 400, and the upstream sees it cut off', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  const client = await connect(t, rig)
  client.send('POST /bad HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n')
  const incoming = await upstream.connection(0)
  await incoming.until(/abc/)
  client.send(`zz\r\n${get('/smuggled')}`)
  const answer = await client.answer()
  t.equal(answer.status, 400)
  await client.end()
  await incoming.until(incoming => incoming.closed)
  t.notMatch(incoming.text, /\r\n0\r\n/, 'not ended as if it were whole')
  t.same(await rig.finished(1), ['default failed 400'])
})

t.test('a bad chunk during or after the answer: the connection ends, nothing is counted twice', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (incoming.text.includes('abc')) incoming.socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf')
  })
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  const client = await connect(t, rig)
  client.send('POST /bad HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n')
  await client.until(client => client.rest.endsWith('half'))
  client.send('zz\r\n')
  t.notOk((await client.answer()).whole)
  t.same(await rig.finished(1), ['default failed 400'])

  const notFound = await startRig(t, { upstream: upstream.url, routes: [{ match: { path: '/x' }, mode: 'off' }] })
  const other = await connect(t, notFound)
  other.send('POST /bad HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n')
  t.equal((await other.answer()).status, 404)
  other.send('zz\r\n')
  await other.end()
  t.equal(other.rest, '')
  t.same(notFound.outcomes, [' refused 404'])
})

t.test('a bad chunk that comes with its head: the request before is answered, then 400 without any cost', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  await (await connect(t, rig)).ask(get())
  const client = await connect(t, rig)
  client.send(`${get('/good')}POST /bad HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n`)
  await rig.until(rig => rig.queued.length === 1)
  await turns()
  rig.pacer.runUntil(1_000)
  t.equal((await client.answer()).status, 200)
  t.equal((await client.answer()).status, 400)
  await client.end()
  t.equal(upstream.requests, 2)
  t.same((await rig.finished(3)).slice(1), ['default forwarded 200', ' refused 400'])
})

t.test('garbage in several pieces is counted once; behind a request it waits for its turn', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  await (await connect(t, rig)).ask(get())
  const client = await connect(t, rig)
  client.send(get('/waits'))
  await rig.until(rig => rig.queued.length === 1)
  for (let piece = 0; piece < 5; piece += 1) {
    client.send('\x00\x01\x02')
    await turns()
  }
  rig.pacer.runUntil(1_000)
  t.equal((await client.answer()).status, 200)
  t.equal((await client.answer()).status, 400)
  await client.end()
  t.same(rig.outcomes, ['default forwarded 200', 'default forwarded 200', ' refused 400'])
})

t.test('CONNECT behind a request waits for its turn; a reset then does no harm', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  await (await connect(t, rig)).ask(get())
  const client = await connect(t, rig)
  client.send(`${get('/waits')}CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\nbytes`)
  await rig.until(rig => rig.queued.length === 1)
  await turns()
  t.equal(client.rest, '', 'answers come in order')
  rig.pacer.runUntil(1_000)
  t.equal((await client.answer()).status, 200)
  t.equal((await client.answer()).status, 405)
  await client.end()
  const rude = await connect(t, rig)
  rude.send('CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n')
  t.equal((await rude.answer()).status, 405)
  rude.resetConnection()
  await turns(50)
  rig.pacer.runUntil(2_000)
  t.equal((await (await connect(t, rig)).ask(get())).status, 200, 'still alive')
})

t.test('a refusal is readable although the client goes on sending', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  for (const head of [
    `GET / HTTP/1.1\r\nX: ${'x'.repeat(30_000)}`,
    'POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n',
    `POST / HTTP/1.1\r\nHost: a b\r\nContent-Length: 900000\r\n\r\n`,
  ]) {
    const client = await connect(t, rig)
    client.send(head)
    client.send('x'.repeat(800_000))
    t.ok((await client.answer()).status >= 400)
    t.notOk(client.reset)
  }
})

t.test('unusual but valid framing is one request', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (/abc(\r\n0\r\n\r\n)?$/.test(incoming.text)) incoming.socket.write(OK)
  })
  const rig = await startRig(t, { upstream: upstream.url, routes: [{ mode: 'off' }] })
  for (const text of [
    `\r\n${post('abc')}`,
    'POST / HTTP/1.1\r\nhost:h\r\ncontent-length:3\r\n\r\nabc',
    'POST / HTTP/1.1\r\nHost:\t h \r\nTransfer-Encoding:  Chunked\r\n\r\n0003;a="b"\r\nabc\r\n0\r\n\r\n',
    'POST / HTTP/1.1\r\nHost:\r\nContent-Length: 0003\r\n\r\nabc',
  ]) {
    const client = await connect(t, rig)
    const before = upstream.text.split('POST / HTTP/1.1').length
    client.send(text)
    t.equal((await client.answer()).status, 200, JSON.stringify(text))
    t.equal(upstream.text.split('POST / HTTP/1.1').length, before + 1)
  }
})

const BAD_LENGTHS = 'Host: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n'
const PROXY = 'this looks like the PROXY protocol, and "proxyProtocol" does not list this peer'

const REASONS: readonly (readonly [text: string, told: string])[] = [
  [`POST /a?b HTTP/1.1\r\n${BAD_LENGTHS}`, 'POST /a?b: the request is malformed: a bad Content-Length'],
  [
    'GET /a HTTP/1.1\nHost: h\n\n',
    'GET /a: the request is malformed: a control character or a bare line end in the headers',
  ],
  [
    'GET /\xc3\xbc HTTP/1.1\r\nHost: h\r\n\r\n',
    'GET /\xc3\xbc: the request is malformed: the target has bytes above 127; they have to be percent-encoded',
  ],
  ['PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n\r\n', `PROXY TCP4: the request is malformed: ${PROXY}`],
  ['\r\n\r\n\0\r\nQUIT\n', ` : the request is malformed: ${PROXY}`],
  ['\x16\x03\x01\x02\0', ' : the request is malformed: this looks like TLS, and this address is for plain HTTP'],
  ['GET /none HTTP/1.1\r\nHost: h\r\n\r\n', 'GET /none: no route matches'],
]

t.test('a refusal tells its reason, to the client and to the log, with what was asked for', async t => {
  const routes = [{ name: 'one', match: { path: '/one' }, mode: 'off' }]
  const rig = await startRig(t, { upstream: 'http://127.0.0.1:9', routes })
  for (const [text, told] of REASONS) {
    const client = await connect(t, rig)
    const { detail } = (await client.ask(text)).json() as { detail: string }
    t.equal(rig.refused.at(-1), told)
    t.ok(told.endsWith(`: ${detail}`), detail)
  }
})
