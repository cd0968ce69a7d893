import t from 'tap'
import { answering, askOnce, connect, get, httpUpstream, OFF, OK, rawUpstream, startRig } from './harness.js'

const BUCKETS = { client: { key: 'ip', rate: '5/s', capacity: 10 } }
/** The head of the only request that the upstream saw. The id in Via is that of a program. */
function head(text: string): string[] {
  const lines = text.slice(0, text.indexOf('\r\n\r\n')).split('\r\n')
  return lines.map(line => line.replace(/^(Via: .*) \([0-9a-f]{6}\)$/, '$1 (ID)'))
}

t.test('towards the upstream: line, order, case and duplicates as they came', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  const answer = await askOnce(
    t,
    rig,
    'GET /a?b=c HTTP/1.1\r\nX-Zebra: 1\r\nHoSt: Example.TEST:81\r\naccept: a\r\nX-DUP: one\r\nX-alpha:\r\nx-dup: two\r\n' +
      'X-Latin: caf\xe9\r\nConnection: keep-alive\r\n\r\n',
  )
  t.equal(answer.status, 200)
  t.same(head(upstream.text), [
    'GET /a?b=c HTTP/1.1',
    'Host: Example.TEST:81',
    'X-Zebra: 1',
    'accept: a',
    'X-DUP: one',
    'X-alpha: ',
    'x-dup: two',
    'X-Latin: caf\xe9',
    'X-Forwarded-For: 127.0.0.1',
    'X-Forwarded-Proto: http',
    'X-Forwarded-Host: Example.TEST:81',
    'Via: 1.1 shaper (ID)',
  ])
})

t.test('the target is passed byte for byte', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  const targets = [
    '//evil/x',
    '/a%2Fb',
    '/a/../b',
    '/a/./b//c',
    '/%',
    '/%zz',
    '/a?',
    '/?a=/../b&c=%2e',
    "/!$&'()*+,;=:@",
    '/"<>\\^`{|}',
    '/a?b?c',
  ]
  for (const target of targets) {
    t.equal((await client.ask(get(target))).status, 200, target)
  }
  t.same(
    [...upstream.text.matchAll(/^GET (.*) HTTP\/1\.1\r$/gm)].map(match => match[1]),
    targets,
  )
})

t.test('a target that is not ASCII is refused: no URI has it', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  t.equal((await askOnce(t, rig, get('/caf\xe9'))).status, 400)
  t.equal(upstream.requests, 0)
})

t.test('every method goes through', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  for (const method of ['GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE', 'PROPFIND', 'PURGE']) {
    const answer = await askOnce(t, rig, `${method} /m HTTP/1.1\r\nHost: h\r\n\r\n`)
    t.equal(answer.status, 200, method)
    t.ok(upstream.text.includes(`${method} /m HTTP/1.1\r\n`), method)
  }
})

t.test('hop-by-hop headers and those that Connection names are removed, framing stays', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (incoming.text.endsWith('body')) incoming.socket.write(OK)
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  await askOnce(
    t,
    rig,
    'POST / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X-Private ,content-length,Host\r\nConnection: x-Second\r\n' +
      'Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: secret\r\nTE: trailers\r\n' +
      'Trailer: x-t\r\nHTTP2-Settings: AAM\r\nX-Private: 1\r\nX-Second: 2\r\nX-Kept: 3\r\nContent-Length: 4\r\n\r\nbody',
  )
  t.same(
    head(upstream.text).map(line => line.split(':')[0]!.toLowerCase()),
    [
      'post / http/1.1',
      'host',
      'x-kept',
      'content-length',
      'x-forwarded-for',
      'x-forwarded-proto',
      'x-forwarded-host',
      'via',
    ],
  )
  t.match(upstream.text, /\r\nContent-Length: 4\r\n(?:.+\r\n)*\r\nbody$/)
})

t.test('Connection options never remove headers that identify the client, in plain requests and upgrades', async t => {
  const said = [
    'X-Forwarded-For: 9.9.9.9',
    'X-Forwarded-Proto: https',
    'X-Forwarded-Host: bank',
    'X-Forwarded-Port: 443',
    'Forwarded: for=9.9.9.9',
    'X-Real-IP: 9.9.9.9',
    'Via: 1.0 fred',
    'Cookie: sid=1',
    'Authorization: Bearer one',
    'X-Key: one',
    'X-Plan: gold',
    'X-Version: 2',
    'X-Cost: 2',
  ]
  const names = said.map(line => line.slice(0, line.indexOf(':')))
  const sent = [`Connection: ${names}, X-Private`, 'X-Private: 1', ...said]
  const upgrade = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: eA==', 'Sec-WebSocket-Version: 13']
  for (const [kind, text] of [
    ['plain', get('/', ...sent)],
    ['upgrade', get('/', ...upgrade, ...sent)],
    ['an upgrade to h2c', get('/', 'Connection: Upgrade', 'Upgrade: h2c', ...sent)],
  ] as const) {
    const upstream = await rawUpstream(t, answering(OK))
    const rig = await startRig(t, {
      upstream: upstream.url,
      trustProxy: ['loopback'],
      buckets: {
        key: { key: 'header:x-key', rate: '5/s', tiers: [{ name: 'gold', header: { 'x-plan': 'gold' }, rate: '9/s' }] },
      },
      routes: [{ match: { header: { 'x-version': '2' } }, cost: { header: 'x-cost', max: 5 } }],
    })
    t.equal((await askOnce(t, rig, text)).status, 200)
    const lines = head(upstream.text)
    const wanted = said.filter(line => !/^X-Forwarded-(For|Proto|Host)/.test(line))
    for (const line of [...wanted, 'X-Forwarded-For: 9.9.9.9, 127.0.0.1', 'X-Forwarded-Host: bank']) {
      t.ok(lines.includes(line), `${kind}: ${line}`)
    }
    t.notMatch(upstream.text, /x-private/i)
  }
})

t.test('names that CGI takes for headers of ours, or for those that the route reads, are not passed on', async t => {
  const dropped = [
    'X_Forwarded_For: 6.6.6.6',
    'x-forwarded_for: 6.6.6.6',
    'X_FORWARDED-PROTO: https',
    'X_Forwarded_Host: bank',
    'X_Real_IP: 6.6.6.6',
    'Proxy_Authorization: secret',
    'X_Key: other',
    'X_PLAN: gold',
    'x_version: 3',
    'x_cost: 1',
  ]
  const passed = ['X_Other: 1', '_: 1', 'X__Key: 1', 'My_Id: mine', 'X-Key: one', 'X-Version: 2']
  const upgrade = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: eA==', 'Sec-WebSocket-Version: 13']
  for (const lines of [[], upgrade]) {
    const upstream = await rawUpstream(t, answering(OK))
    const rig = await startRig(t, {
      upstream: upstream.url,
      trustProxy: ['loopback'],
      buckets: {
        key: {
          key: ['header:x-key', 'header:my_id'],
          rate: '5/s',
          tiers: [{ name: 'gold', header: { 'x-plan': 'gold' }, rate: '9/s' }],
        },
      },
      routes: [{ match: { header: { 'x-version': '2' } }, cost: { header: 'x-cost', max: 5 } }],
    })
    t.equal((await askOnce(t, rig, get('/', ...lines, ...dropped, ...passed))).status, 200)
    const names = head(upstream.text).map(line => line.split(':')[0])
    t.same(
      dropped.filter(line => names.includes(line.split(':')[0])),
      [],
    )
    for (const line of [...passed, 'X-Forwarded-For: 127.0.0.1']) t.ok(head(upstream.text).includes(line), line)
  }
})

t.test('Content_Length and Transfer_Encoding are refused: a CGI would read the body as they say', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  for (const line of ['Content_Length: 5', 'TRANSFER_ENCODING: chunked', 'transfer_encoding: x']) {
    const answer = await askOnce(t, rig, get('/', line))
    t.equal(answer.status, 400, line)
    t.match(answer.json(), { detail: /an upstream could take (content_length|transfer_encoding) for the length/ })
    t.equal(answer.header('connection'), 'close')
  }
  t.equal(upstream.requests, 0)
})

t.test('more than 64 Connection options, over all lines, are refused before any bucket', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS, routes: [{ mode: 'meter' }] })
  const options = (count: number) => Array.from({ length: count }, (_, at) => `x-${at}`)
  const client = await connect(t, rig)
  const most = await client.ask(get('/', `Connection: ${options(40)}`, `Connection: ${options(24)}`, 'X-39: 1'))
  t.equal(most.status, 200)
  t.notMatch(upstream.text, /x-39/i)
  for (const lines of [[options(65)], [options(40), options(25)], options(65), [','.repeat(64)]]) {
    const answer = await askOnce(t, rig, get('/', ...lines.map(line => `Connection: ${line}`)))
    t.equal(answer.status, 400)
    t.match(answer.json(), { status: 400, detail: /Connection.*64/ })
  }
  t.same((await rig.finished(5)).slice(1), Array(4).fill(' refused 400'))
  t.equal(upstream.requests, 1)
  t.equal((await client.ask(get('/'))).header('ratelimit'), '"client";r=8;t=1', 'they cost nothing')
})

t.test('Max-Forwards is counted down for OPTIONS and TRACE only', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  for (const method of ['OPTIONS', 'TRACE', 'GET']) {
    await client.ask(`${method} / HTTP/1.1\r\nHost: h\r\nMax-Forwards: 10\r\n\r\n`)
  }
  t.same(upstream.text.match(/^Max-Forwards: .*$/gm), ['Max-Forwards: 9', 'Max-Forwards: 9', 'Max-Forwards: 10'])
  t.equal((await client.ask('TRACE / HTTP/1.1\r\nHost: h\r\nMax-Forwards: 0\r\n\r\n')).status, 501)
})

t.test('X-Forwarded-* of an untrusted client: For is extended, Proto and Host are replaced', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  await askOnce(
    t,
    rig,
    get('/', 'x-forwarded-FOR: 9.9.9.9', 'X-Forwarded-Proto: https', 'X-Forwarded-Host: bank', 'Via: 1.0 fred'),
  )
  t.same(head(upstream.text).slice(2), [
    'x-forwarded-FOR: 9.9.9.9, 127.0.0.1',
    'Via: 1.0 fred',
    'X-Forwarded-Proto: http',
    'X-Forwarded-Host: example.test',
    'Via: 1.1 shaper (ID)',
  ])
})

t.test('X-Forwarded-* of a trusted hop are kept, several lines in order', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, trustProxy: ['loopback'], ...OFF })
  await askOnce(
    t,
    rig,
    get('/', 'X-Forwarded-For: 1.1.1.1', 'X-Forwarded-For: 2.2.2.2', 'X-Forwarded-Proto: https', 'X-Forwarded-Host: a'),
  )
  t.same(head(upstream.text).slice(2), [
    'X-Forwarded-For: 1.1.1.1',
    'X-Forwarded-For: 2.2.2.2, 127.0.0.1',
    'X-Forwarded-Proto: https',
    'X-Forwarded-Host: a',
    'Via: 1.1 shaper (ID)',
  ])
})

t.test('Via has the received version', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  await askOnce(t, rig, 'GET / HTTP/1.0\r\n\r\n')
  t.match(upstream.text, /\r\nVia: 1\.0 shaper \([0-9a-f]{6}\)\r\n/)
  t.match(upstream.text, new RegExp(`\r\nHost: 127.0.0.1:${upstream.port}\r\n`), 'a Host where there was none')
})

t.test('hostHeader upstream', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: { url: upstream.url, hostHeader: 'upstream' }, ...OFF })
  await askOnce(t, rig, get('/'))
  t.match(upstream.text, new RegExp(`^GET / HTTP/1.1\r\nHost: 127.0.0.1:${upstream.port}\r\n`))
  t.match(upstream.text, /\r\nX-Forwarded-Host: example\.test\r\n/)
})

t.test('towards the client: line, order, case and duplicates as they came', async t => {
  const upstream = await rawUpstream(
    t,
    answering(
      'HTTP/1.1 299 Very Fine\r\nX-B: 2\r\nset-cookie: a=1\r\nContent-Type: text/plain\r\nSet-Cookie: b=2\r\n' +
        'DATE: Thu, 01 Jan 1970 00:00:00 GMT\r\nX-Latin: caf\xe9\r\nx-empty:\r\nConnection: keep-alive, X-Hop\r\n' +
        'Keep-Alive: timeout=99\r\nX-Hop: 1\r\nServer: it\r\nContent-Length: 2\r\n\r\nok',
    ),
  )
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const answer = await askOnce(t, rig, get('/'))
  t.equal(`${answer.status} ${answer.reason}`, '299 Very Fine')
  t.same(answer.headers.slice(0, -2), [
    ['X-B', '2'],
    ['set-cookie', 'a=1'],
    ['Content-Type', 'text/plain'],
    ['Set-Cookie', 'b=2'],
    ['DATE', 'Thu, 01 Jan 1970 00:00:00 GMT'],
    ['X-Latin', 'caf\xe9'],
    ['x-empty', ''],
    ['Server', 'it'],
    ['Content-Length', '2'],
  ])
  t.same(
    answer.headers.slice(-2).map(([name]) => name),
    ['Connection', 'Keep-Alive'],
    'of this connection',
  )
  t.equal(answer.text, 'ok')
})

t.test('no Date is added', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  t.equal((await askOnce(t, rig, get('/'))).header('date'), undefined)
})

t.test('a reason phrase that is not ASCII is left out, an empty one stays empty', async t => {
  for (const reason of ['D\xe9j\xe0 vu', '']) {
    const upstream = await rawUpstream(t, answering(`HTTP/1.1 200 ${reason}\r\nContent-Length: 0\r\n\r\n`))
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    const answer = await askOnce(t, rig, get('/'))
    t.equal(answer.status, 200)
    t.equal(answer.reason, '')
  }
})

t.test('forwarded answers have our limits, and keep those of the upstream', async t => {
  const upstream = await rawUpstream(
    t,
    answering(
      'HTTP/1.1 200 OK\r\nRateLimit: "own";r=5\r\nRateLimit-Policy: "own";q=9\r\nServer-Timing: db;dur=3\r\nContent-Length: 0\r\n\r\n',
    ),
  )
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { ...BUCKETS, everyone: { key: 'all', rate: '2/s', capacity: 3 } },
  })
  const answer = await askOnce(t, rig, get('/'))
  const values = (name: string) => answer.headers.filter(([each]) => each === name).map(([, value]) => value)
  t.same(values('RateLimit-Policy'), ['"own";q=9', '"client";q=10;w=2, "everyone";q=3;w=2'])
  t.same(values('RateLimit'), ['"own";r=5', '"client";r=9;t=1, "everyone";r=2;t=1'])
  t.same(values('Server-Timing'), ['db;dur=3', 'shaper;dur=0'])
})

t.test('headers: false and mode off add no headers', async t => {
  const upstream = await httpUpstream(t)
  for (const config of [{ headers: false, buckets: BUCKETS }, OFF]) {
    const rig = await startRig(t, { upstream: upstream.url, ...config })
    const answer = await askOnce(t, rig, get('/'))
    t.equal(answer.status, 200)
    t.equal(answer.header('ratelimit'), undefined)
    t.equal(answer.header('ratelimit-policy'), undefined)
  }
})

t.test('many and large headers arrive whole in both directions', async t => {
  const many = Array.from({ length: 1_500 }, (_, at) => `X-N${at}: ${at}`)
  const upstream = await rawUpstream(
    t,
    answering(`HTTP/1.1 200 OK\r\n${many.join('\r\n')}\r\nContent-Length: 0\r\n\r\n`),
  )
  const rig = await startRig(t, {
    upstream: upstream.url,
    limits: { maxHeaderSize: 65_536, maxHeaders: 2_000 },
    ...OFF,
  })
  const answer = await askOnce(t, rig, get('/', ...many))
  t.equal(answer.status, 200)
  t.equal(answer.headers.filter(([name]) => name.startsWith('X-N')).length, 1_500)
  t.equal(head(upstream.text).filter(line => line.startsWith('X-N')).length, 1_500)
})

t.test('Trailer is announced only if there can be trailers', async t => {
  const upstream = await rawUpstream(t, answering('HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nContent-Length: 2\r\n\r\nok'))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const answer = await askOnce(t, rig, get('/'))
  t.equal(answer.status, 200, 'Node would throw')
  t.equal(answer.header('trailer'), undefined)
  const head = await rawUpstream(
    t,
    answering('HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n'),
  )
  const other = await startRig(t, { upstream: head.url, ...OFF })
  t.equal((await askOnce(t, other, 'HEAD / HTTP/1.1\r\nHost: h\r\n\r\n')).status, 200)
})

t.test('an unknown expectation is refused', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, buckets: BUCKETS })
  const answer = await askOnce(t, rig, get('/', 'Expect: a-miracle'))
  t.equal(answer.status, 417)
  t.same(await rig.finished(1), [' refused 417'])
  t.equal(upstream.requests, 0)
})

t.test('a POST without a body tells its length: some upstreams insist on one', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  for (const method of ['POST', 'PUT', 'PATCH', 'GET', 'DELETE']) {
    t.equal((await client.ask(`${method} / HTTP/1.1\r\nHost: h\r\n\r\n`)).status, 200)
  }
  t.equal((await client.ask('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n')).status, 200)
  t.same(upstream.text.match(/^(?:POST|PUT|PATCH|GET|DELETE|Content-Length: .*)/gm), [
    ...['POST', 'Content-Length: 0', 'PUT', 'Content-Length: 0', 'PATCH', 'Content-Length: 0', 'GET', 'DELETE'],
    ...['POST', 'Content-Length: 0'],
  ])
})
