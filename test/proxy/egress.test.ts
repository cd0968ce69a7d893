import { readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { ProxyAgent, request } from 'undici'
import { parseConfig } from '../../src/config/load.js'
import type { ResolveName } from '../../src/proxy/egress/egress.js'
import { makeCertificate } from '../servers/certificate.js'
import {
  answering,
  askOnce,
  connect,
  httpUpstream,
  OK,
  passBoth,
  rawUpstream,
  stalled,
  startRig,
  TLS,
  taken,
  turns,
} from './harness.js'

const ALL_OFF = { routes: [{ name: 'all', mode: 'off' }] }
const ONE_A_SECOND = { buckets: { api: { key: 'host', rate: '1/s', capacity: 5 } }, routes: [{ name: 'api' }] }

/** A resolver with the addresses of each name, and a list of the names that were asked for. */
function names(known: Record<string, string[]>): { resolve: ResolveName; asked: string[] } {
  const asked: string[] = []
  return {
    asked,
    resolve(name, _options, done) {
      asked.push(name)
      const addresses = known[name] ?? []
      done(
        null,
        addresses.map(address => ({ address, family: address.includes(':') ? 6 : 4 })),
      )
    },
  }
}

/** A proxy with `egress`, in front of a server for `api.test`, which it also finds at its address. */
async function started(t: Test, config: object = ALL_OFF, egress: object = {}) {
  const upstream = await rawUpstream(t, answering(OK))
  const { port } = upstream
  const dns = names({ 'api.test': ['127.0.0.1'], 'rebound.test': ['10.0.0.1'] })
  const allow = [`api.test:${port}`, `127.0.0.1:${port}`]
  const rig = await startRig(
    t,
    { ...config, egress: { allow, ...egress } },
    { virtualClock: true, egress: { resolve: dns.resolve } },
  )
  const ask = (text: string) => askOnce(t, rig, text)
  return { rig, upstream, port, dns, ask }
}

const absolute = (url: string, ...more: string[]) =>
  `GET ${url} HTTP/1.1\r\nHost: other.test\r\n${more.map(line => `${line}\r\n`).join('')}\r\n`
const base = (path: string, ...more: string[]) =>
  `GET ${path} HTTP/1.1\r\n${more.some(line => /^host/i.test(line)) ? '' : 'Host: 127.0.0.1:8080\r\n'}${more.map(line => `${line}\r\n`).join('')}\r\n`
const tunnel = (authority: string, ...more: string[]) =>
  `CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n${more.map(line => `${line}\r\n`).join('')}\r\n`

t.test('absolute form: the URL decides where it goes, not the Host header', async t => {
  const { upstream, port, ask, rig } = await started(t)
  const answer = await ask(
    absolute(`http://api.test:${port}/a//b?c=%41`, 'X-Forwarded-Host: mine', 'Proxy-Connection: keep-alive'),
  )
  t.equal(answer.status, 200)
  const [head] = upstream.text.split('\r\n\r\n')
  t.match(head, new RegExp(`^GET /a//b\\?c=%41 HTTP/1.1\r\nHost: api.test:${port}\r\n`))
  t.match(head, /X-Forwarded-Host: mine/, 'what the program sends passes unchanged')
  t.notMatch(head, /X-Forwarded-For|X-Forwarded-Proto|Proxy-Connection|other\.test/)
  t.same(rig.outcomes, ['all forwarded 200'])
})

t.test('base URL: the path says where it goes', async t => {
  const { upstream, port, ask } = await started(t)
  for (const path of ['/x?y=1', '', '?z', '//twice']) {
    t.equal((await ask(base(`/http/api.test:${port}${path}`))).status, 200, path)
  }
  t.same(
    [...upstream.text.matchAll(/^GET (\S+)/gm)].map(([, target]) => target),
    ['/x?y=1', '/', '/?z', '//twice'],
  )
})

t.test('CONNECT: a tunnel for bytes of any kind', async t => {
  const upstream = await rawUpstream(t, ({ socket, text }) => text.endsWith('!') && socket.write('\x00heard'))
  const authority = `127.0.0.1:${upstream.port}`
  const rig = await startRig(t, { ...ALL_OFF, egress: { allow: [authority] } }, { egress: {} })
  const client = await connect(t, rig)
  // What comes right behind it belongs to the tunnel.
  client.send(`${tunnel(authority)}\x16early`)
  const answer = await client.answer('CONNECT')
  t.equal(answer.status, 200)
  t.equal(answer.header('content-length'), undefined)
  client.send(' later!')
  await client.until(({ rest }) => rest === '\x00heard')
  t.equal(upstream.text, '\x16early later!')
  t.same(rig.outcomes, ['all forwarded 200'])
  client.socket.end()
  await client.end()
  t.ok((await upstream.connection(0)).closed)
})

t.test('CONNECT: a side that has ended still gets what the other sends', async t => {
  const upstream = await rawUpstream(t, ({ socket, text }) => {
    if (text === 'question') socket.end('a long answer')
  })
  const authority = `127.0.0.1:${upstream.port}`
  const rig = await startRig(t, { ...ALL_OFF, egress: { allow: [authority] } }, { egress: {} })
  const client = await connect(t, rig)
  await client.ask(tunnel(authority))
  client.socket.end('question')
  await client.end()
  t.match(client.rest, /a long answer$/)
})

t.test('nothing is allowed by default', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { ...ALL_OFF, egress: {} }, { egress: {} })
  const target = `127.0.0.1:${upstream.port}`
  for (const text of [absolute(`http://${target}/`), base(`/http/${target}/`), tunnel(target)]) {
    const answer = await askOnce(t, rig, text)
    t.equal(answer.status, 403)
    t.match(answer.json().detail, /not allowed.*"egress"/)
  }
  t.same(upstream.connections, [])
  t.same(rig.outcomes, [' refused 403', ' refused 403', ' refused 403'])
})

t.test('what is no egress request is told how to make one', async t => {
  const { ask } = await started(t)
  for (const target of ['/', '/index.html', '/ftp/api.test/', '/httpsx/api.test/', '*', 'ftp://api.test/']) {
    const answer = await ask(`OPTIONS ${target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`)
    t.equal(answer.status, 404, target)
    t.match(answer.json().detail, /\/https\/HOST/)
  }
})

t.test('spellings of an authority', async t => {
  const { upstream, port, ask, rig } = await started(t)
  const cases: [authority: string, status: number][] = [
    [`API.Test:${port}`, 200],
    [`api.test.:${port}`, 200],
    [`127.0.0.1:${port}`, 200],
    [`[::ffff:127.0.0.1]:${port}`, 200],
    [`[0:0:0:0:0:FFFF:7f00:1]:${port}`, 200],
    [`api.test:0${port}`, port < 10_000 ? 200 : 400],
    [`api.test..:${port}`, 400],
    [`.api.test:${port}`, 400],
    ['api.test', 403],
    [`api.test:${port + 1}`, 403],
    ['api.test:0', 400],
    ['api.test:99999', 400],
    [`api.test:${port}@evil.test`, 400],
    [`evil.test:${port}`, 403],
    [`xapi.test:${port}`, 403],
    [`api.test.evil.test:${port}`, 403],
    [`user@api.test:${port}`, 400],
    [`api.test:${port}:80`, 400],
    [`api%2etest:${port}`, 400],
    [`api.test%00.evil:${port}`, 400],
    [`api.test,evil.test:${port}`, 400],
    [`localhost:${port}`, 403],
    [`[::1]:${port}`, 403],
    [`[::ffff:10.0.0.1]:${port}`, 403],
    [`[64:ff9b::7f00:1]:${port}`, 403],
    [`[fe80::1%25eth0]:${port}`, 400],
    [`2130706433:${port}`, 400],
    [`0x7f000001:${port}`, 400],
    [`127.1:${port}`, 400],
    [`127.0.0.01:${port}`, 400],
    [`0177.0.0.1:${port}`, 400],
    [`0.0.0.0:${port}`, 403],
    [`${'a.'.repeat(2_500)}test:${port}`, 400],
  ]
  for (const [authority, status] of cases) {
    const connected = upstream.connections.length
    const requests = [absolute(`http://${authority}/`), base(`/http/${authority}/`), tunnel(authority)]
    // Where a port is missing it is that of the scheme, and CONNECT has none.
    const expected = authority === 'api.test' ? [403, 403, 400] : [status, status, status]
    for (const [index, text] of requests.entries()) {
      const answer = await ask(text)
      // The parser takes some for no request at all.
      t.equal(answer.status, expected[index], `${authority.slice(0, 50)}, form ${index}`)
    }
    if (status !== 200) t.equal(upstream.connections.length, connected, authority.slice(0, 50))
  }
  t.ok(rig.outcomes.every(line => line === 'all forwarded 200' || line.startsWith(' refused 4')))
})

t.test('the scheme is part of what is allowed: no plain HTTP to port 443, no TLS to port 80', async t => {
  const rig = await startRig(t, { ...ALL_OFF, egress: { allow: ['api.test:443', 'api.test:80'] } }, { egress: {} })
  for (const target of ['http://api.test:443/', 'https://api.test:80/']) {
    t.equal((await askOnce(t, rig, absolute(target))).status, 403, target)
  }
})

t.test('a name is allowed only as long as its addresses are public, or allowed themselves', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const { port } = upstream
  const special = [
    '127.0.0.1',
    '::1',
    '10.0.0.1',
    '169.254.169.254',
    '::ffff:127.0.0.1',
    '64:ff9b::7f00:1',
    'fd00::1',
    'fe80::1',
    '0.0.0.0',
  ]
  const known = Object.fromEntries(special.map((address, index) => [`s${index}.test`, [address]]))
  const dns = names({ ...known, 'all.test': special, 'none.test': [] })
  const hosts = [...Object.keys(known), 'all.test', 'none.test']
  const rig = await startRig(
    t,
    {
      ...ONE_A_SECOND,
      buckets: { api: { key: 'host', rate: '1000/s' } },
      egress: { allow: hosts.map(host => `${host}:${port}`) },
    },
    { egress: { resolve: dns.resolve }, realPacer: true },
  )
  for (const host of hosts) {
    for (const text of [absolute(`http://${host}:${port}/`), tunnel(`${host}:${port}`)]) {
      const answer = await askOnce(t, rig, text)
      t.equal(answer.status, 403, `${host} ${text.slice(0, 7)}`)
      t.match(answer.json().detail, /the operator can add the address itself/)
      t.notMatch(answer.text, /169\.254|10\.0/, 'an address inside is not told')
    }
  }
  t.same(upstream.connections, [])
  t.ok(rig.outcomes.every(line => line === 'api failed 403'))
})

t.test('an address that is allowed counts with its port only', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const { port } = upstream
  const { resolve } = names({ 'api.test': ['127.0.0.1'] })
  const allow = [`api.test:${port}`, `127.0.0.1:${port + 1}`]
  const rig = await startRig(t, { ...ALL_OFF, egress: { allow } }, { egress: { resolve } })
  t.equal((await askOnce(t, rig, absolute(`http://api.test:${port}/`))).status, 403)
  t.same(upstream.connections, [])
})

t.test('DNS rebinding: the address that was checked is the one that is connected to', async t => {
  const upstream = await rawUpstream(t, answering('HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n'))
  const { port } = upstream
  const answers = [['127.0.0.1', '10.0.0.1'], ['10.0.0.1'], ['127.0.0.1']]
  let asked = 0
  const resolve: ResolveName = (_name, _options, done) => {
    const addresses = answers[asked]!
    asked += 1
    done(
      null,
      addresses.map(address => ({ address, family: 4 })),
    )
  }
  const allow = [`api.test:${port}`, `127.0.0.1:${port}`]
  const rig = await startRig(t, { ...ALL_OFF, egress: { allow } }, { egress: { resolve } })
  const statuses: number[] = []
  for (let count = 0; count < 3; count += 1) {
    statuses.push((await askOnce(t, rig, absolute(`http://api.test:${port}/`))).status)
  }
  t.same(statuses, [200, 403, 200])
  t.equal(asked, 3, 'one look-up for each connection')
  t.equal(upstream.connections.length, 2)
})

t.test('pages of other sites cannot use a base URL', async t => {
  const { upstream, port, ask } = await started(t)
  const path = `/http/api.test:${port}/`
  const cases: [headers: string[], status: number][] = [
    [['Host: evil.test:8080'], 421],
    [['Host: localhost.evil.test'], 421],
    [['Host: 127.0.0.1:8080', 'Origin: http://evil.test'], 403],
    [['Host: 127.0.0.1:8080', 'Origin: null'], 403],
    [['Host: 127.0.0.1:8080', 'Sec-Fetch-Site: cross-site'], 403],
    [['Host: 127.0.0.1:8080', 'Origin: http://127.0.0.1:8080'], 200],
    [['Host: localhost:8080'], 200],
    [['Host: [::1]:8080'], 200],
  ]
  for (const [headers, status] of cases) t.equal((await ask(base(path, ...headers))).status, status, headers.join())
  t.equal(upstream.requests, 3)
  t.equal((await ask(`GET ${path} HTTP/1.0\r\n\r\n`)).status, 421)
})

t.test('a token is needed in every form, and is not passed on', async t => {
  const { upstream, port, ask, rig } = await started(t, ALL_OFF, { token: 's3cret-of-16-and-more' })
  const basic = (text: string) => `Proxy-Authorization: Basic ${Buffer.from(text).toString('base64')}`
  const forms = [
    (...more: string[]) => absolute(`http://api.test:${port}/`, ...more),
    (...more: string[]) => base(`/http/api.test:${port}/`, 'Host: proxy.internal', ...more),
    (...more: string[]) => tunnel(`api.test:${port}`, ...more),
  ]
  for (const form of forms) {
    const denied = await ask(form())
    t.equal(denied.status, 407)
    t.equal(denied.header('proxy-authenticate'), 'Basic realm="shaper"')
    for (const wrong of [
      basic('any:wrong'),
      basic('s3cret-of-16-and-more:wrong'),
      'Proxy-Authorization: Bearer s3cret-of-16-and-more2',
      'Proxy-Authorization: Basic !',
      'Authorization: Bearer s3cret-of-16-and-more',
      'Proxy-Authorization: Bearer s3cret-of-16-and-more\r\nProxy-Authorization: Bearer x',
    ])
      t.equal((await ask(form(wrong))).status, 407, wrong)
    for (const right of [
      basic('any:s3cret-of-16-and-more'),
      basic('s3cret-of-16-and-more:'),
      basic('s3cret-of-16-and-more'),
      'Proxy-Authorization: Bearer s3cret-of-16-and-more',
    ])
      t.equal((await ask(form(right))).status, 200, right)
  }
  t.notMatch(upstream.text, /s3cret|proxy-authorization/i)
  t.equal(rig.outcomes.filter(line => line === ' refused 407').length, 21)
})

t.test('CONNECT with a body, or refused: nothing behind it is taken for a request', async t => {
  const { upstream, port, rig } = await started(t)
  const smuggled = `${absolute(`http://api.test:${port}/smuggled`)}`
  const heads = [
    `CONNECT api.test:${port} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcde`,
    `CONNECT api.test:${port} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    `CONNECT api.test:${port} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n`,
    'CONNECT evil.test:443 HTTP/1.1\r\nHost: h\r\n\r\n',
    'CONNECT /http/api.test HTTP/1.1\r\nHost: h\r\n\r\n',
    `CONNECT http://api.test:${port}/ HTTP/1.1\r\nHost: h\r\n\r\n`,
    'CONNECT api.test HTTP/1.1\r\nHost: h\r\n\r\n',
    'CONNECT evil.test:443 HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n',
  ]
  for (const head of heads) {
    const client = await connect(t, rig)
    client.send(head + smuggled)
    const answer = await client.answer()
    t.match(String(answer.status), /^40[03]$/, head)
    await client.end()
    t.equal(client.rest, '', 'one answer')
  }
  t.same(upstream.connections, [])
  t.equal(rig.outcomes.length, heads.length)
})

t.test('without --egress CONNECT is refused, and so is a base URL that no route knows', async t => {
  const rig = await startRig(t, { upstream: 'http://127.0.0.1:9', routes: [{ match: { path: '/x' }, mode: 'off' }] })
  t.equal((await askOnce(t, rig, tunnel('127.0.0.1:9'))).status, 405)
  t.equal((await askOnce(t, rig, base('/http/127.0.0.1:9/'))).status, 404)
})

t.test('https: the certificate has to be that of the name that is allowed', async t => {
  const dir = t.testdir({})
  const good = makeCertificate(`${dir}/good`, 'DNS:api.test')
  const bad = makeCertificate(`${dir}/bad`, 'DNS:other.test')
  const listen = async ({ cert, key }: { cert: string; key: string }) => {
    const server = createServer({ cert: readFileSync(cert), key: readFileSync(key) }, (req, res) =>
      res.end(`${req.headers.host} ${req.url}`),
    )
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => server.close())
    return (server.address() as AddressInfo).port
  }
  const [port, wrong] = [await listen(good), await listen(bad)]
  const { resolve } = names({ 'api.test': ['127.0.0.1'] })
  const allow = [port, wrong].flatMap(each => [`api.test:${each}`, `127.0.0.1:${each}`])
  const ca = `${dir}/ca.pem`
  writeFileSync(ca, [good, bad].map(({ cert }) => readFileSync(cert)).join(''))
  const rigOf = (upstream: object) => startRig(t, { ...ALL_OFF, egress: { allow, upstream } }, { egress: { resolve } })
  const rig = await rigOf({ tls: { ca } })
  for (const text of [base(`/https/api.test:${port}/p`), absolute(`https://API.test:${port}/p`)]) {
    const answer = await askOnce(t, rig, text)
    t.equal(answer.status, 200)
    t.equal(answer.text, `api.test:${port} /p`)
  }
  t.equal((await askOnce(t, rig, base(`/https/api.test:${wrong}/`))).status, 502, 'another name')
  t.equal((await askOnce(t, rig, base(`/https/127.0.0.1:${port}/`))).status, 502, 'its address')
  t.equal((await askOnce(t, await rigOf({}), base(`/https/api.test:${port}/`))).status, 502, 'another authority')
})

t.test('buckets by host, explain and RateLimit count egress requests as others', async t => {
  const { port, rig, upstream } = await started(t, { ...ONE_A_SECOND, routes: [{ name: 'api', explain: true }] })
  const client = await connect(t, rig)
  const first = await client.ask(absolute(`http://api.test:${port}/1`))
  t.match(first.header('shaper-explain'), /"api";position=0/)
  t.equal(first.header('ratelimit-policy'), '"api";q=5;w=5')
  client.send(absolute(`http://api.test:${port}/2`))
  await rig.until(({ queued }) => queued.length === 1)
  // Another host, another instance of the bucket.
  const other = await connect(t, rig)
  t.equal((await other.ask(absolute(`http://127.0.0.1:${port}/3`))).status, 200)
  t.equal(upstream.requests, 2)
  await passBoth(rig, 1_000)
  t.equal((await client.answer()).status, 200)
  t.same(
    rig.released.map(({ route, wait }) => `${route} ${wait}`),
    ['api 0', 'api 0', 'api 1000'],
  )
})

t.test(
  'costs in each bucket: an answer tells them, a tunnel costs its estimate, what is not sent costs nothing',
  async t => {
    const upstream = await httpUpstream(t, (req, res) => {
      req.resume().on('end', () => {
        res.writeHead(200, { 'Content-Type': 'application/json' }).end('{"usage":{"total_tokens":40}}')
      })
    })
    const { port } = upstream
    const { resolve } = names({ 'api.test': ['127.0.0.1'], 'inner.test': ['10.0.0.1'] })
    const tokens = { estimate: 'body/4', max: 'max_tokens', after: 'usage.total_tokens' }
    const rig = await startRig(
      t,
      {
        buckets: { tokens: { key: 'host', rate: '1000/s', capacity: 1_000, burst: 1_000 } },
        routes: [{ name: 'chat', cost: { buckets: { tokens } } }],
        egress: { allow: [`api.test:${port}`, `127.0.0.1:${port}`, `inner.test:${port}`] },
      },
      { virtualClock: true, egress: { resolve } },
    )
    const body = '{"max_tokens":75}'.padEnd(100)
    const call = (host: string) =>
      `POST /http/${host}:${port}/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${body.length}\r\n\r\n${body}`
    const levels = () =>
      [...rig.proxy.context.bucketTable.entries('tokens')].map(([, bucket]) => bucket.level(rig.pacer.now()))
    t.equal((await askOnce(t, rig, call('api.test'))).status, 200)
    t.equal((await askOnce(t, rig, tunnel(`127.0.0.1:${port}`))).status, 200)
    t.equal((await askOnce(t, rig, call('inner.test'))).status, 403)
    await rig.finished(3)
    t.same(rig.settled, ['answer tokens=40', 'unknown', 'unserved tokens=0'])
    t.same(levels(), [40, 1, 0])
    const client = await connect(t, rig)
    client.send(call('api.test').slice(0, -1))
    await turns(50)
    const next = { ...ONE_A_SECOND, egress: { allow: [`127.0.0.1:${port}`] } }
    await rig.proxy.reload(parseConfig(JSON.stringify(next), { flags: { egress: true } }))
    client.send(' ')
    t.equal((await client.answer()).status, 404, 'its body came after the reload')
  },
)

t.test('CONNECT takes a slot for each connection, and a request that hangs up in the queue costs none', async t => {
  const { port, rig, upstream } = await started(t, ONE_A_SECOND)
  const authority = `api.test:${port}`
  const first = await connect(t, rig)
  t.equal((await first.ask(tunnel(authority))).status, 200)
  const gone = await connect(t, rig)
  gone.send(tunnel(authority))
  await rig.until(({ queued }) => queued.length === 1)
  const waiting = await connect(t, rig)
  waiting.send(tunnel(authority))
  await rig.until(({ queued }) => queued.length === 2)
  gone.hangUp()
  await rig.until(({ outcomes }) => outcomes.includes('api cancelled 499'))
  t.equal(upstream.connections.length, 1, 'none is opened ahead for a tunnel')
  await passBoth(rig, 1_000)
  await waiting.until(({ rest }) => rest.startsWith('HTTP/1.1 200 '))
  // In the tunnel nothing is paced.
  for (const path of ['/1', '/2', '/3']) waiting.send(`GET ${path} HTTP/1.1\r\nHost: h\r\n\r\n`)
  await upstream.until(({ requests }) => requests === 3)
})

t.test('a pause that one origin asks for holds its requests only', async t => {
  const busy = await httpUpstream(t, (_req, res) => {
    res.writeHead(busy.requests.length === 1 ? 429 : 200, { 'Retry-After': '5' }).end()
  })
  const calm = await httpUpstream(t)
  const rig = await startRig(
    t,
    {
      buckets: { all: { key: 'all', rate: '100/s', capacity: 50 } },
      egress: {
        allow: [`127.0.0.1:${busy.port}`, `127.0.0.1:${calm.port}`],
        upstream: { pauseOn: { status: [429] } },
      },
    },
    { virtualClock: true, egress: {} },
  )
  t.equal((await askOnce(t, rig, absolute(`${busy.url}/`))).status, 429)
  const held = await connect(t, rig)
  held.send(absolute(`${busy.url}/`))
  await rig.until(({ queued }) => queued.length === 1)
  await passBoth(rig, 100)
  const other = await connect(t, rig)
  other.send(absolute(`${calm.url}/`))
  await passBoth(rig, 100)
  t.equal((await other.answer()).status, 200)
  t.equal(busy.requests.length, 1)
  await passBoth(rig, 5_000)
  t.equal((await held.answer()).status, 200)
})

t.test('learn: a route with a bucket of its own follows what its origin announces', async t => {
  const slow = await httpUpstream(t, (_req, res) => {
    res.writeHead(200, { 'RateLimit-Policy': '"p";q=60;w=60', RateLimit: '"p";r=1;t=60' }).end()
  })
  const fast = await httpUpstream(t)
  const rig = await startRig(
    t,
    {
      buckets: {
        slow: { key: 'all', rate: '100/s', capacity: 50 },
        fast: { key: 'all', rate: '100/s', capacity: 50 },
      },
      routes: [
        { name: 'slow', match: { host: `127.0.0.1:${slow.port}` }, buckets: ['slow'] },
        { name: 'fast', buckets: ['fast'] },
      ],
      egress: {
        allow: [`127.0.0.1:${slow.port}`, `localhost:${fast.port}`, `127.0.0.1:${fast.port}`],
        upstream: { learn: true },
      },
    },
    { virtualClock: true, egress: {} },
  )
  t.equal((await askOnce(t, rig, absolute(`${slow.url}/`))).status, 200)
  const rates = () =>
    rig.proxy.context.routes.flatMap(({ settings }) =>
      settings.buckets.map(
        ({ limits }) => [limits.name, rig.proxy.context.learned.limitsOf(limits).rate * 1_000] as const,
      ),
    )
  t.ok(new Map(rates()).get('slow')! < 2, JSON.stringify(rates()))
  t.equal(new Map(rates()).get('fast'), 100)
})

t.test('a WebSocket goes through a base URL', async t => {
  const upstream = await rawUpstream(t, ({ socket, text }) => {
    if (text.endsWith('\r\n\r\n'))
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
    else socket.write('frame')
  })
  const { resolve } = names({ 'api.test': ['127.0.0.1'], 'inner.test': ['10.0.0.1'] })
  const allow = [`api.test:${upstream.port}`, `127.0.0.1:${upstream.port}`, `inner.test:${upstream.port}`]
  const rig = await startRig(t, { ...ALL_OFF, egress: { allow } }, { egress: { resolve } })
  const handshake = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13']
  const client = await connect(t, rig)
  t.equal((await client.ask(base(`/http/api.test:${upstream.port}/ws`, ...handshake))).status, 101)
  client.send('hello')
  await client.until(({ rest }) => rest === 'frame')
  t.match(upstream.text, new RegExp(`^GET /ws HTTP/1.1\r\nHost: api.test:${upstream.port}\r\n`))
  t.equal((await askOnce(t, rig, base(`/http/inner.test:${upstream.port}/ws`, ...handshake))).status, 403)
})

t.test('a reload changes what is allowed, and the token; what waits for an origin goes on', async t => {
  const { port, rig, ask } = await started(t, ONE_A_SECOND)
  const client = await connect(t, rig)
  t.equal((await client.ask(absolute(`http://api.test:${port}/`))).status, 200)
  client.send(absolute(`http://api.test:${port}/`))
  await rig.until(({ queued }) => queued.length === 1)
  const reload = (egress: object) =>
    rig.proxy.reload(parseConfig(JSON.stringify({ ...ONE_A_SECOND, egress }), { flags: { egress: true } }))
  await reload({ allow: [`127.0.0.1:${port}`], token: 'another-of-16-and-more' })
  t.equal((await ask(absolute(`http://127.0.0.1:${port}/`))).status, 407)
  const authorized = 'Proxy-Authorization: Bearer another-of-16-and-more'
  t.equal((await ask(absolute(`http://api.test:${port}/`, authorized))).status, 403)
  t.equal((await ask(absolute(`http://127.0.0.1:${port}/`, authorized))).status, 200)
  await passBoth(rig, 1_000)
  t.equal((await client.answer()).status, 200, 'it had been admitted')
})

t.test('a tunnel that is silent for too long, and one whose other side does not answer', async t => {
  const upstream = await rawUpstream(t)
  const authority = `127.0.0.1:${upstream.port}`
  const rig = await startRig(
    t,
    { ...ALL_OFF, limits: { tunnelIdleTimeout: '50ms' }, egress: { allow: [authority, '127.0.0.1:1'] } },
    { egress: {} },
  )
  const client = await connect(t, rig)
  client.send(tunnel(authority))
  await client.end()
  await rig.until(({ failures }) => failures.some(line => /a tunnel was closed after 50ms/.test(line)))
  await (await upstream.connection(0)).until(({ closed }) => closed)
  t.equal((await askOnce(t, rig, tunnel('127.0.0.1:1'))).status, 502)
})

t.test('a tunnel carries as much as both sides take, also to a client over TLS', async t => {
  const block = Buffer.alloc(4 * 1024 * 1024, 'abcdefg')
  /** More than all buffers of the kernel on the way. */
  const most = 32 * block.length
  const upstream = await rawUpstream(t)
  const authority = `127.0.0.1:${upstream.port}`
  for (const tls of [false, true]) {
    const rig = await startRig(t, { ...ALL_OFF, ...(tls && TLS), egress: { allow: [authority] } }, { egress: {} })
    const client = await connect(t, rig, { tls })
    t.equal((await client.ask(tunnel(authority))).status, 200)
    const other = await upstream.connection(tls ? 1 : 0)
    const { socket } = other
    socket.pause()
    let sent = 0
    // The other side does not read: the client feels it.
    while (client.socket.writableLength === 0 && sent < most) {
      client.send(block)
      sent += block.length
      await stalled(() => taken(client))
    }
    t.ok(sent < most, `${sent} of ${most} bytes are under way`)
    const before = client.bytes
    socket.resume()
    socket.write(block)
    await client.until(({ bytes }) => bytes - before === block.length)
    t.ok(client.rest.endsWith(block.subarray(-1_000).toString('latin1')))
    await other.until(({ text }) => text.length === sent)
  }
})

t.test('a tunnel ends when either side breaks, and when the program shuts down', async t => {
  const upstream = await rawUpstream(t)
  const authority = `127.0.0.1:${upstream.port}`
  const rig = await startRig(t, { ...ALL_OFF, egress: { allow: [authority] } }, { egress: {} })
  const open = async (index: number) => {
    const client = await connect(t, rig)
    t.equal((await client.ask(tunnel(authority))).status, 200)
    return [client, await upstream.connection(index)] as const
  }
  const [first, ofFirst] = await open(0)
  ofFirst.socket.resetAndDestroy()
  await first.end()
  const [second, ofSecond] = await open(1)
  second.resetConnection()
  await upstream.until(() => ofSecond.closed)
  const [third, ofThird] = await open(2)
  await rig.proxy.drain(0)
  await third.end()
  await upstream.until(() => ofThird.closed)
  t.same(rig.outcomes, ['all forwarded 200', 'all forwarded 200', 'all forwarded 200'])
})

t.test(
  "Node's fetch behind a ProxyAgent: each request is seen with proxyTunnel: false, else each connection",
  async t => {
    for (const proxyTunnel of [false, true]) {
      const upstream = await httpUpstream(t, (_req, res) => res.end('ok'))
      const { host } = new URL(upstream.url)
      const rig = await startRig(t, { ...ALL_OFF, egress: { allow: [host] } }, { egress: {} })
      const dispatcher = new ProxyAgent({ uri: `http://127.0.0.1:${rig.port}`, proxyTunnel })
      for (let count = 0; count < 3; count += 1) {
        const { body } = await request(upstream.url, { dispatcher })
        t.equal(await body.text(), 'ok')
      }
      await dispatcher.close()
      await rig.until(({ outcomes }) => outcomes.length > 0)
      // A connection more is opened where the first is not ready again.
      t.ok(proxyTunnel ? rig.outcomes.length < 3 : rig.outcomes.length === 3, `${rig.outcomes}`)
    }
  },
)
