import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { Gate, type SharedBucket } from '../../src/core/queue/lane.js'
import { addressOfClient, clientKey, findStack, type Stack } from '../../src/proxy/exchange/incoming-request.js'
import { rejectionReply } from '../../src/proxy/exchange/reply.js'
import { addressKey, clientAddress, createTrust, readAddress } from '../../src/proxy/http/client-address.js'
import { NO_BODY } from '../../src/proxy/routing/bucket-costs.js'
import { NO_CLAIMS } from '../../src/proxy/routing/key.js'
import type { Route } from '../../src/proxy/routing/route.js'
import {
  askOnce,
  type Client,
  connect,
  get,
  type HttpUpstream,
  httpUpstream,
  pass,
  post,
  type Rig,
  slotsOf,
  startRig,
  turns,
} from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const NO_FACTS = {
  method: 'GET',
  origin: undefined,
  oldHttp: false,
  target: '/',
  path: '/',
  host: 'h',
  rawHeaders: [],
  connection: undefined,
  via: undefined,
  contentLength: undefined,
  chunked: false,
  expectContinue: false,
  maxForwards: undefined,
  preferWait: undefined,
  grpcTimeout: undefined,
  expectedTimeout: undefined,
}

const NOTHING_ELSE = { certificate: undefined, claims: NO_CLAIMS, body: NO_BODY }

/** Buckets that admit one request per key in a time that no test takes. */
const once = (key: unknown) => ({ key, rate: '1/h', capacity: 1 })

/** The statuses of requests sent one after another. */
async function statuses(t: Teardown, rig: Rig, texts: readonly string[]): Promise<number[]> {
  const client = await connect(t, rig)
  const found: number[] = []
  for (const text of texts) found.push((await client.ask(text)).status)
  client.hangUp()
  return found
}

/** Sends requests on connections of their own, each before the next. */
async function queue(t: Teardown, rig: Rig, texts: readonly string[]): Promise<Client[]> {
  const clients: Client[] = []
  for (const text of texts) {
    const client = await connect(t, rig)
    const decided = rig.queued.length + rig.outcomes.length + rig.released.length
    client.send(text)
    await rig.until(rig => rig.queued.length + rig.outcomes.length + rig.released.length > decided)
    clients.push(client)
  }
  return clients
}

/** An upstream that holds every request until `release`. */
async function holdingUpstream(t: Teardown): Promise<HttpUpstream & { letGo(): void; held(): number }> {
  const held: (() => void)[] = []
  const upstream = await httpUpstream(t, (_req, res) => held.push(() => res.end('ok')) as never)
  return Object.assign(upstream, { letGo: () => held.shift()?.(), held: () => held.length })
}

t.test('routes: the first match wins, no match is 404', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    routes: [
      { name: 'exact', match: { path: '/a' }, mode: 'off' },
      { name: 'prefix', match: { path: '/a/*' }, mode: 'off' },
      { name: 'methods', match: { path: '/m', method: ['POST', 'PUT'] }, mode: 'off' },
      { name: 'host', match: { host: 'API.example.com' }, mode: 'off' },
      { name: 'port', match: { host: 'other.example.com:8443' }, mode: 'off' },
      { name: 'header', match: { header: { 'X-Plan': 'gold' } }, mode: 'off' },
      { name: 'encoded', match: { path: '/caf%c3%a9%2f%7Euser' }, mode: 'off' },
    ],
  })
  const cases: [string, string][] = [
    [get('/a'), 'exact'],
    [get('/a?b'), 'exact'],
    [get('/a/'), 'prefix'],
    [get('/a/b/c'), 'prefix'],
    [get('/ab'), ''],
    [get('/A'), ''],
    [post('', '/m'), 'methods'],
    [get('/m'), ''],
    ['GET / HTTP/1.1\r\nHost: api.EXAMPLE.com\r\n\r\n', 'host'],
    ['GET / HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n', 'host'],
    ['GET / HTTP/1.1\r\nHost: api.example.com.\r\n\r\n', 'host'],
    ['GET / HTTP/1.1\r\nHost: xapi.example.com\r\n\r\n', ''],
    ['GET http://api.example.com/ HTTP/1.1\r\nHost: fake\r\n\r\n', 'host'],
    ['GET http://fake/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n', ''],
    ['GET / HTTP/1.1\r\nHost: other.example.com:8443\r\n\r\n', 'port'],
    ['GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n', ''],
    [get('/', 'x-plan: gold'), 'header'],
    [get('/', 'X-Plan: Gold'), ''],
    [get('/', 'X-Plan: gold', 'X-Plan: iron'), ''],
    [get('/caf%C3%A9%2F~user'), 'encoded'],
  ]
  for (const [at, [text, route]] of cases.entries()) {
    const answer = await askOnce(t, rig, text)
    t.equal(answer.status, route === '' ? 404 : 200, text)
    const outcome = route === '' ? ' refused 404' : `${route} forwarded 200`
    t.equal((await rig.finished(at + 1))[at], outcome, text)
    if (route === '') t.match(answer.json(), { type: 'about:blank', title: 'Not Found', status: 404, detail: /route/ })
  }
})

t.test('no spelling of a path evades its route', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    routes: [
      { name: 'login', match: { path: '/login' }, mode: 'off' },
      { name: 'admin', match: { path: '/admin/*' }, mode: 'off' },
      { name: 'rest', mode: 'off' },
    ],
  })
  const login = [
    '/login?x',
    '/%6cogin',
    '/%6C%6F%67%69%6e',
    '//login',
    '///login',
    '/x/../login',
    '/./login',
    '/x/%2e%2e/login',
    '/x/.%2E/login',
    '/../login',
    '/x/..//login',
    '/%2e/login',
  ]
  const admin = ['/admin//x', '//admin/x', '/admin/./x', '/x/../admin/x', '/%61dmin/x', '/admin/x/..', '/admin/.']
  const rest = ['/admin/..', '/admin/../x', '/admin%2Fx', '/login/', '/login/.', '/log%00in', '/login%20', '/admin']
  const client = await connect(t, rig)
  let count = 0
  for (const [route, paths] of Object.entries({ login, admin, rest })) {
    for (const path of paths) {
      t.equal((await client.ask(get(path))).status, 200)
      count += 1
      t.equal((await rig.finished(count))[count - 1], `${route} forwarded 200`, path)
    }
  }
  t.same(
    upstream.requests,
    [...login, ...admin, ...rest].map(path => `GET ${path}`),
    'and passes as it was written',
  )
})

t.test('keys: which requests share a bucket', async t => {
  const upstream = await httpUpstream(t)
  const withHost = (host: string) => `GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`
  const long = 'k'.repeat(5_000)
  const cases: [key: unknown, texts: string[], wanted: number[]][] = [
    ['all', [get('/'), get('/x')], [200, 429]],
    ['ip', [get('/'), get('/', 'X-Forwarded-For: 9.9.9.9')], [200, 429]],
    ['method', [get('/'), post('', '/'), get('/')], [200, 200, 429]],
    ['host', [withHost('a'), withHost('b'), withHost('A:80'), withHost('a.')], [200, 200, 429, 429]],
    ['header:X-Key', [get('/', 'x-key: a'), get('/', 'X-Key: b'), get('/', 'X-KEY: a')], [200, 200, 429]],
    // Of several lines the first counts.
    [
      'header:x-key',
      [get('/', 'x-key: a'), get('/', 'x-key: a', 'x-key: b'), get('/', 'x-key: b', 'x-key: a')],
      [200, 429, 200],
    ],
    ['header:x-key', [get('/'), get('/', 'x-key:', 'x-key: b')], [200, 429]],
    // A comma is part of a value, not the start of a new cookie.
    [
      'cookie:sid',
      [
        get('/', 'Cookie: sid=x'),
        get('/', 'Cookie: a=1,sid=new; sid=x'),
        get('/', 'Cookie: sid=x', 'Cookie: sid=new'),
        get('/', 'Cookie: sid=x; sid=new'),
        get('/', 'Cookie: sid=x,y'),
      ],
      [200, 429, 429, 429, 200],
    ],
    [
      'header:x-key',
      [get('/', `x-key: ${long}1`), get('/', `x-key: ${long}2`), get('/', `x-key: ${long}1`)],
      [200, 200, 429],
    ],
    [
      'cookie:sid',
      [
        get('/', 'Cookie: a=1; sid=x'),
        get('/', 'Cookie: sid=y'),
        get('/', 'Cookie: sid=x;b=2'),
        get('/', 'Cookie: a', 'Cookie: sid=x'),
      ],
      [200, 200, 429, 429],
    ],
    // One tenant, however it is spelled; a segment that is not there is missing, and an empty one is none.
    [
      { from: 'path:2', missing: 'reject' },
      [
        ...[get('/t/acme/a'), get('/t/acme'), get('/u/acme?x=/t/b'), get('/t/%61cme'), get('//t/./x/../acme/')],
        ...[get('/t/other'), get('/t/a%21b'), get('/t/a!b'), get('/t/a%2Fb'), get('/t/a%2fb'), get('/t'), get('/t/')],
        ...[get('/'), get('/t/%20'), get('/t/%ff'), get('/t/%FF')],
        // As upstreams read it that decode a slash, or that know parameters.
        ...[get('/t/a%2Fc'), get('/t/acme%2F%ff'), get('/t%2Facme/o'), get('/t/x%2F..%2facme/o'), get('/t/acme%5Cx')],
        ...[get('/t/acme;v=1'), get('/t/x/..;v=1/acme'), get('/t/ac%3Bme'), get('/t/acme%252Fx')],
      ],
      [
        ...[200, 429, 429, 429, 429, 200, 200, 429, 200, 429, 400, 400, 400, 400, 200, 429],
        ...[429, 429, 429, 429, 429, 429, 429, 200, 200],
      ],
    ],
    ['query:k', [get('/?k=a'), get('/?k=b'), get('/p?x=1&k=%61'), get('/?kk=a&k=c')], [200, 200, 429, 200]],
    [
      ['header:x-key', 'method'],
      [get('/', 'x-key: a'), post('', '/', 'x-key: a'), get('/', 'x-key: b'), get('/', 'x-key: a')],
      [200, 200, 200, 429],
    ],
    // Combined keys do not run into each other.
    [
      ['query:a', 'query:b'],
      [get('/?a=x%0Ay&b=z'), get('/?a=x&b=y%0Az'), get('/?a=x%0Ay&b=z')],
      [200, 200, 429],
    ],
    // A missing key falls back to the address, which no value can pretend to be.
    ['header:x-key', [get('/'), get('/', 'x-key: 127.0.0.1'), get('/', 'x-key:'), get('/')], [200, 200, 429, 429]],
    [{ from: 'header:x-key', missing: 'all' }, [get('/'), get('/', 'x-key: all'), get('/')], [200, 200, 429]],
    [
      { from: 'cookie:sid', missing: 'reject' },
      [get('/'), get('/', 'Cookie: sid='), get('/', 'Cookie: sid=1')],
      [400, 400, 200],
    ],
    [
      { from: 'header:x-key', duplicates: 'reject' },
      [get('/', 'x-key: a'), get('/', 'x-key: b', 'X-KEY: a'), get('/', 'x-key: c', 'x-key: c'), get('/', 'x-key: b')],
      [200, 400, 400, 200],
    ],
    [
      { from: ['ip', 'header:x-key'], duplicates: 'reject' },
      [get('/', 'x-key:', 'x-other: 1', 'x-key:'), get('/', 'x-other: 1', 'x-other: 2'), get('/')],
      [400, 200, 429],
    ],
    [{ from: ['ip', 'query:k'], missing: 'reject' }, [get('/'), get('/?k=1'), get('/?k=1')], [400, 200, 429]],
  ]
  for (const [key, texts, wanted] of cases) {
    const rig = await startRig(t, {
      upstream: upstream.url,
      buckets: { one: once(key) },
      limits: { maxHeaderSize: 32_768 },
    })
    t.same(await statuses(t, rig, texts), wanted, JSON.stringify(key))
  }
})

t.test('key route: one instance per route', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { one: once('route') },
    routes: [{ match: { path: '/a' } }, { match: { path: '/b*' } }],
  })
  t.same(await statuses(t, rig, [get('/a'), get('/b'), get('/a'), get('/b2')]), [200, 200, 429, 429])
})

t.test('a missing key that is rejected is a 400, refused, before any bucket', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { everyone: once('all'), mine: once({ from: 'header:x-key', missing: 'reject' }) },
  })
  const answer = await askOnce(t, rig, get('/'))
  t.equal(answer.status, 400)
  t.match(answer.json(), { type: 'about:blank', detail: /"mine"/ })
  t.same(await rig.finished(1), ['default refused 400'])
  t.equal(rig.proxy.context.bucketTable.size(), 0)
})

t.test('a key header with several lines that is rejected is a 400, refused, before any bucket', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { everyone: once('all'), mine: once({ from: 'header:x-key', duplicates: 'reject' }) },
  })
  const answer = await askOnce(t, rig, get('/', 'x-key: a', 'X-Key: b'))
  t.equal(answer.status, 400)
  t.equal(answer.json().detail, 'bucket "mine" needs one x-key header, and the request has several')
  t.same(await rig.finished(1), ['default refused 400'])
  t.equal(rig.proxy.context.bucketTable.size(), 0)
})

t.test('long keys are kept as digests', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, buckets: { one: once('header:x-key') } })
  await askOnce(t, rig, get('/', `x-key: ${'k'.repeat(10_000)}`))
  const [[key]] = [...rig.proxy.context.bucketTable.entries('one')] as [[string, unknown]]
  t.ok(key.length <= 128)
})

t.test('a tier may list a long key', async t => {
  const upstream = await httpUpstream(t)
  const long = 'k'.repeat(1_000)
  const tiers = [{ name: 'gold', keys: [long], capacity: 7 }]
  const rig = await startRig(t, { upstream: upstream.url, buckets: { one: { ...once('header:x-key'), tiers } } })
  const capacityOf = async (key: string) =>
    /q=(\d+)/.exec((await askOnce(t, rig, get('/', `x-key: ${key}`))).header('ratelimit-policy') ?? '')?.[1]
  t.equal(await capacityOf(long), '7')
  t.equal(await capacityOf(`${long}k`), '1')
})

t.test('addresses: valid and invalid ones, and their keys', async t => {
  for (const [text, wanted] of [
    ['1.2.3.4', '1.2.3.4'],
    [' 1.2.3.4:5678 ', '1.2.3.4'],
    ['::ffff:1.2.3.4', '1.2.3.4'],
    ['[2001:DB8::1]:443', '2001:db8::1'],
    ['[2001:db8::1]', '2001:db8::1'],
    ['fe80::1%eth0', 'fe80::1'],
    ['010.0.0.1', undefined],
    ['1.2.3', undefined],
    ['unknown', undefined],
    ['_hidden', undefined],
    ['', undefined],
    ['1.2.3.4.5', undefined],
    ['1'.repeat(3_000), undefined],
  ] as const) {
    t.equal(readAddress(text), wanted, text.slice(0, 40))
  }
  t.equal(addressKey('1.2.3.4'), '1.2.3.4')
  t.equal(addressKey('2001:db8:1:2:3:4:5:6'), addressKey('2001:db8:1:2:ffff::'))
  t.not(addressKey('2001:db8:1:2::1'), addressKey('2001:db8:1:3::1'))
  for (const [prefix, wanted] of [
    [1, '8000::/1'],
    [16, 'fedc::/16'],
    [32, 'fedc:0::/32'],
    [56, 'fedc:0:1:ab00::/56'],
    [60, 'fedc:0:1:abc0::/60'],
    [64, 'fedc:0:1:abcd::/64'],
    [112, 'fedc:0:1:abcd:0:0:0::/112'],
    [127, 'fedc:0:1:abcd:0:0:0:fffe/127'],
    [128, 'fedc:0:1:abcd:0:0:0:ffff/128'],
  ] as const) {
    t.equal(addressKey('fedc:0:1:abcd::ffff', prefix), wanted)
    t.equal(addressKey('1.2.3.4', prefix), '1.2.3.4')
    t.equal(addressKey('64:ff9b::203.0.113.7', prefix), '203.0.113.7', 'NAT64')
  }
  // Not NAT64: another prefix, and bits in between.
  for (const address of ['64:ff9b:1::cb00:7107', '64:ff9b::1:cb00:7107', '64:ff9a::cb00:7107'])
    t.match(addressKey(address), /::\/64$/, address)
})

t.test('ipv6: the networks that share a bucket, also where the address stands for a missing key', async t => {
  const upstream = await httpUpstream(t)
  const from = (address: string) => get('/', `X-Forwarded-For: ${address}`)
  const cases: [key: object, second: string, third: string][] = [
    [{ from: 'ip' }, '2001:db8:0:100:9::1', '2001:db8:0:101::1'],
    [{ from: 'ip', ipv6: 56 }, '2001:db8:0:1ff:9::1', '2001:db8:0:200::1'],
    [{ from: ['ip', 'method'], ipv6: 48 }, '2001:db8:0:fff::1', '2001:db8:1:100::1'],
    [{ from: 'header:x-key', ipv6: 56 }, '2001:db8:0:1ff:9::1', '2001:db8:0:200::1'],
    [{ from: 'ip', ipv6: 128 }, '2001:db8:0:100:0::1', '2001:db8:0:100::2'],
  ]
  for (const [key, second, third] of cases) {
    const rig = await startRig(t, { upstream: upstream.url, trustProxy: ['loopback'], buckets: { one: once(key) } })
    t.same(
      await statuses(t, rig, [from('2001:db8:0:100::1'), from(second), from(third)]),
      [200, 429, 200],
      JSON.stringify(key),
    )
  }
  // IPv4 addresses have no such networks.
  const rig = await startRig(t, {
    upstream: upstream.url,
    trustProxy: ['loopback'],
    buckets: { one: once({ from: 'ip', ipv6: 8 }) },
  })
  t.same(await statuses(t, rig, [from('1.2.3.4'), from('1.2.3.5'), from('::ffff:1.2.3.4')]), [200, 200, 429])
})

t.test("shares of our own resources stay those of an IPv6 client's /64, whatever ipv6 says", async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    trustProxy: ['loopback'],
    buckets: { one: { key: { from: 'ip', ipv6: 56 }, rate: '1/s', capacity: 5 } },
  })
  const [route] = rig.proxy.context.routes
  const facts = { ...NO_FACTS, forwardedFor: ['2001:db8:0:1ff::1'] }
  const connection = { peer: '127.0.0.1', peerKey: '127.0.0.1' } as never
  const address = addressOfClient(rig.proxy.context, connection, facts)
  const client = clientKey(address, connection)
  const { keys } = findStack(rig.proxy.context, route!, { ...NOTHING_ELSE, facts, address, client }) as Stack
  t.same(keys, ['2001:db8:0:100::/56'])
  t.equal(client, '2001:db8:0:1ff::/64')
})

t.test('trustProxy: the address of the client', async t => {
  const cases: [setting: boolean | number | string[], peer: string, lines: string[], wanted: string][] = [
    [false, '127.0.0.1', ['9.9.9.9'], '127.0.0.1'],
    [true, '127.0.0.1', ['1.1.1.1, 2.2.2.2', '3.3.3.3'], '1.1.1.1'],
    [0, '127.0.0.1', ['9.9.9.9'], '127.0.0.1'],
    [1, '127.0.0.1', ['1.1.1.1, 2.2.2.2'], '2.2.2.2'],
    [2, '127.0.0.1', ['1.1.1.1', '2.2.2.2'], '1.1.1.1'],
    [5, '127.0.0.1', ['1.1.1.1', '2.2.2.2'], '1.1.1.1'],
    [['loopback'], '127.0.0.1', ['1.1.1.1, 2.2.2.2'], '2.2.2.2'],
    [['loopback'], '::1', ['1.1.1.1, 2.2.2.2'], '2.2.2.2'],
    [['loopback'], '8.8.8.8', ['1.1.1.1'], '8.8.8.8'],
    [['loopback', '10.0.0.0/8'], '127.0.0.1', ['6.6.6.6, 1.1.1.1, 10.2.3.4'], '1.1.1.1'],
    [['loopback', '10.0.0.0/8'], '127.0.0.1', ['6.6.6.6, ::ffff:1.1.1.1, ::ffff:10.2.3.4'], '1.1.1.1'],
    [['uniquelocal', 'linklocal'], '192.168.1.1', ['1.1.1.1, 169.254.3.4, fe80::3, fd00::1'], '1.1.1.1'],
    [['2001:db8::/32'], '2001:db8::9', ['2001:db9::1, 2001:db8::8'], '2001:db9::1'],
    [['1.2.3.4'], '1.2.3.4', ['5.6.7.8'], '5.6.7.8'],
    // An entry that is no address: the hop that wrote it is the nearest thing known.
    [['loopback', '10.0.0.1'], '127.0.0.1', ['1.1.1.1, unknown, 10.0.0.1'], '10.0.0.1'],
    // Empty elements are none (RFC 9110 5.6.1).
    [true, '127.0.0.1', ['1.1.1.1,,'], '1.1.1.1'],
    [true, '127.0.0.1', ['1.1.1.1,1.1.1.1,,'], '1.1.1.1'],
    [true, '127.0.0.1', ['1.1.1.1, ,2.2.2.2 ,\t'], '1.1.1.1'],
    [1, '127.0.0.1', ['1.1.1.1, 2.2.2.2', '', ' '], '2.2.2.2'],
    [['loopback'], '127.0.0.1', ['203.0.113.30 ,'], '203.0.113.30'],
    [true, '127.0.0.1', [' ', ','], '127.0.0.1'],
    [true, '127.0.0.1', ['x'.repeat(3_000)], '127.0.0.1'],
    [true, '127.0.0.1', ['[2001:db8::1]:99'], '2001:db8::1'],
    [true, '127.0.0.1', [], '127.0.0.1'],
    // No more than 100 hops are read.
    [true, '127.0.0.1', [`9.9.9.9, 1.1.1.1${', 2.2.2.2'.repeat(99)}`], '1.1.1.1'],
    [true, '127.0.0.1', ['9.9.9.9', '1.1.1.1', ...Array(99).fill('2.2.2.2')], '1.1.1.1'],
  ]
  for (const [setting, peer, lines, wanted] of cases) {
    t.equal(
      clientAddress(peer, lines, createTrust(setting)),
      wanted,
      JSON.stringify([setting, peer, lines]).slice(0, 120),
    )
  }
})

t.test('trustProxy: thousands of hops cost no more than a hundred, on one line or on many', async t => {
  /** How many lines are read, and how many hops are judged. */
  const work = (lines: string[]) => {
    let read = 0
    let judged = 0
    const counted = new Proxy(lines, {
      get(target, name) {
        if (typeof name === 'string' && /^\d+$/.test(name)) read += 1
        return Reflect.get(target, name)
      },
    })
    const address = clientAddress('127.0.0.1', counted, () => {
      judged += 1
      return true
    })
    return { read, judged, address }
  }
  const hops = (count: number) => Array<string>(count).fill('2.2.2.2')
  t.same(work([hops(10).join()]), { read: 1, judged: 10, address: '2.2.2.2' })
  t.same(work([hops(5_000).join()]), { read: 1, judged: 100, address: '2.2.2.2' })
  t.same(work(hops(10)), { read: 10, judged: 10, address: '2.2.2.2' })
  t.same(work(hops(5_000)), { read: 100, judged: 100, address: '2.2.2.2' })
  // Empty elements count as read.
  t.same(work(['1.1.1.1', ','.repeat(5_000)]), { read: 1, judged: 0, address: '127.0.0.1' })
})

t.test('trustProxy over the wire: a trusted hop chooses the bucket, an untrusted client cannot', async t => {
  const upstream = await httpUpstream(t)
  const from = (...addresses: string[]) => get('/', ...addresses.map(address => `X-Forwarded-For: ${address}`))
  const stranger = await startRig(t, { upstream: upstream.url, buckets: { one: once('ip') } })
  t.same(await statuses(t, stranger, [from('1.1.1.1'), from('2.2.2.2')]), [200, 429])
  const trusted = await startRig(t, { upstream: upstream.url, trustProxy: ['loopback'], buckets: { one: once('ip') } })
  t.same(
    await statuses(t, trusted, [
      from('1.1.1.1'),
      from('2.2.2.2'),
      from('6.6.6.6', '2.2.2.2'),
      from('6.6.6.6, 2.2.2.2'),
      from('2001:db8::1'),
      from('2001:db8::2'),
      from('::ffff:1.1.1.1'),
      from('2.2.2.2 ,'),
    ]),
    [200, 200, 429, 429, 200, 429, 429, 429],
  )
})

t.test('cost: a number, by method, by header within its bounds', async t => {
  const upstream = await httpUpstream(t)
  const free = async (cost: unknown, text: string): Promise<string | undefined> => {
    const rig = await startRig(t, {
      upstream: upstream.url,
      buckets: { one: { key: 'all', rate: '1/h', capacity: 1_000 } },
      routes: [{ cost }],
    })
    return /r=(\d+)/.exec((await askOnce(t, rig, text)).header('ratelimit')!)?.[1]
  }
  t.equal(await free(7, get()), '993')
  t.equal(await free(0.5, get()), '999', 'whole units that are free')
  t.equal(await free({ POST: 5 }, post('')), '995')
  t.equal(await free({ POST: 5, default: 2 }, get()), '998')
  const byHeader = { header: 'X-Cost', max: 100, default: 3 }
  for (const [sent, wanted] of [
    ['X-Cost: 20', '980'],
    ['x-cost: 3.5', '996'],
    // At least as much as by default.
    ['x-cost: 2.5', '997'],
    ['X-Cost: 0.0000001', '997'],
    ['X-Cost: 101', '900'],
    [`X-Cost: ${'9'.repeat(400)}`, '900'],
    ['X-Cost: 0', '997'],
    ['X-Cost: -5', '997'],
    ['X-Cost: 1e9', '997'],
    ['X-Cost: NaN', '997'],
    ['X-Cost: Infinity', '997'],
    ['X-Cost: 0x10', '997'],
    ['X-Cost: 5, 5', '997'],
    ['X-Cost:', '997'],
    ['X-Other: 1', '997'],
  ] as const) {
    t.equal(await free(byHeader, get('/', sent)), wanted, sent.slice(0, 40))
  }
  const withMin = { header: 'X-Cost', min: 2, max: 100, default: 5 }
  t.equal(await free(withMin, get('/', 'X-Cost: 2')), '998')
  t.equal(await free(withMin, get('/', 'X-Cost: 0.0000001')), '998')
  t.equal(await free(withMin, get('/')), '995')
})

t.test('shape: released one by one in order of arrival, each in its slot', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, buckets: { all: { key: 'all', rate: '5/s', capacity: 10 } } })
  const clients = await queue(
    t,
    rig,
    Array.from({ length: 10 }, (_, at) => get(`/${at}`)),
  )
  for (const [at, client] of clients.entries()) {
    if (at > 0) {
      rig.pacer.runUntil(at * 200 - 0.01)
      await turns()
      t.equal(client.bytes, 0)
    }
    rig.pacer.runUntil(at * 200)
    const answer = await client.answer()
    t.equal(answer.header('server-timing'), `shaper;dur=${at * 200}`)
  }
  t.same(
    upstream.requests,
    Array.from({ length: 10 }, (_, at) => `GET /${at}`),
  )
  t.same(
    rig.released.map(({ wait, lateness }) => [Math.round(wait), Math.round(lateness)]),
    Array.from({ length: 10 }, (_, at) => [at * 200, 0]),
  )
})

t.test('shape in real time: never early, at the rate', async t => {
  const times: number[] = []
  const upstream = await httpUpstream(t, (_req, res) => {
    times.push(performance.now())
    res.end('ok')
  })
  const rig = await startRig(
    t,
    { upstream: upstream.url, buckets: { all: { key: 'all', rate: '50/s', capacity: 20 } } },
    { realPacer: true },
  )
  const clients = await Promise.all(Array.from({ length: 20 }, () => connect(t, rig)))
  // The first may come late on a busy machine, so the time counts from before it.
  const begun = performance.now()
  await Promise.all(clients.map(client => client.ask(get())))
  const took = times.at(-1)! - begun
  t.ok(took > 379, `19 periods of 20 ms took ${took.toFixed(1)} ms`)
  t.ok(rig.released.every(({ lateness }) => lateness >= 0))
  const { longest, late } = slotsOf(rig)
  t.ok(
    longest < 1.2 * 380 + 2 * late,
    `the slot of the last is ${longest} ms after its arrival, all were ${late} ms late`,
  )
})

t.test('meter: admission without waiting; off: neither', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '1/s', capacity: 3 } },
    routes: [
      { name: 'off', match: { path: '/off' }, mode: 'off' },
      { name: 'meter', mode: 'meter' },
    ],
  })
  t.same(await statuses(t, rig, [get(), get(), get(), get(), get('/off')]), [200, 200, 200, 429, 200])
  rig.pacer.runUntil(1_000)
  t.same(await statuses(t, rig, [get(), get()]), [200, 429])
  t.same(rig.outcomes.slice(3, 5), ['meter rejected 429', 'off forwarded 200'])
})

t.test(
  'dryRun, of a route and of all: nothing is held or rejected, and the log has what would have happened',
  async t => {
    const upstream = await httpUpstream(t)
    const bucket = { all: { key: 'all', rate: '1/s', capacity: 3 } }
    for (const config of [{ dryRun: true }, { routes: [{ name: 'default', dryRun: true }] }]) {
      const rig = await startRig(t, { upstream: upstream.url, buckets: bucket, ...config })
      t.same(await statuses(t, rig, [get(), get(), get(), get(), get()]), [200, 200, 200, 200, 200])
      t.same(rig.rehearsed, [
        'default would_delay',
        'default would_delay',
        'default would_reject',
        'default would_reject',
      ])
      t.ok(rig.outcomes.every(outcome => outcome === 'default forwarded 200'))
      const level = () => [...rig.proxy.context.bucketTable.entries('all')][0]![1].level(rig.pacer.now())
      t.equal(level(), 3, 'levels move')
      rig.pacer.runUntil(2_000)
      t.equal(level(), 1)
      t.equal(rig.proxy.context.routes[0]!.lane.gate.inFlight, 0)
    }
    const meter = await startRig(t, {
      upstream: upstream.url,
      buckets: bucket,
      routes: [{ mode: 'meter', dryRun: true }],
    })
    t.same(await statuses(t, meter, [get(), get(), get(), get()]), [200, 200, 200, 200])
    t.equal(meter.rehearsed.length, 1)
  },
)

t.test('dryRun: a key that would be rejected is forwarded too', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    dryRun: true,
    buckets: { one: once({ from: 'header:x-key', missing: 'reject' }) },
  })
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 200)
  t.equal(answer.header('ratelimit'), undefined)
  t.same(rig.rehearsed, ['default would_reject'])
})

t.test('a stack admits in all buckets or none, and names the bucket that refused', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: {
      everyone: { key: 'all', rate: '1/s', capacity: 4 },
      mine: { key: 'header:x-key', rate: '1/s', capacity: 2 },
    },
    routes: [{ mode: 'meter' }],
  })
  const as = (key: string) => get('/', `x-key: ${key}`)
  t.same(await statuses(t, rig, [as('a'), as('a'), as('a'), as('b'), as('b'), as('c')]), [200, 200, 429, 200, 200, 429])
  const client = await connect(t, rig)
  const mine = await client.ask(as('a'))
  t.same(mine.json()['violated-policies']?.sort(), ['everyone', 'mine'])
  const other = await client.ask(as('c'))
  t.same(other.json()['violated-policies'], ['everyone'])
  t.match(other.header('ratelimit-policy'), /"mine";q=2;w=2/)
  t.equal(other.header('ratelimit'), '"everyone";r=0;t=1')
  rig.pacer.runUntil(1_000)
  t.equal((await client.ask(as('c'))).status, 200, 'its own bucket was not touched by the rejections')
  t.equal(/"mine";r=(\d)/.exec((await client.ask(as('c'))).header('ratelimit') ?? '')?.[1], undefined)
})

t.test(
  'eleven at once on b = 10, r = 5: ten are admitted, the Retry-After of the eleventh is exact to the ms',
  async t => {
    for (const mode of ['shape', 'meter']) {
      const upstream = await httpUpstream(t)
      const rig = await startRig(t, {
        upstream: upstream.url,
        buckets: { client: { key: 'ip', rate: '5/s', capacity: 10 } },
        routes: [{ mode }],
      })
      const clients = await queue(
        t,
        rig,
        Array.from({ length: 10 }, () => get()),
      )
      rig.pacer.runUntil(13)
      const answer = await askOnce(t, rig, get())
      t.equal(answer.status, 429)
      t.equal(answer.reason, 'Too Many Requests')
      t.same(answer.json(), {
        type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
        title: 'Too Many Requests',
        status: 429,
        detail: 'bucket "client" is full: 9.94 of 10, and this request costs 1',
        'violated-policies': ['client'],
        retryAfterMs: 187,
      })
      t.same(
        answer.headers.filter(([name]) => !['Date', 'Connection', 'Keep-Alive'].includes(name)),
        [
          ['Content-Type', 'application/problem+json'],
          ['Content-Length', String(answer.body.length)],
          ['Retry-After', '1'],
          ['RateLimit-Policy', '"client";q=10;w=2'],
          ['RateLimit', '"client";r=0;t=1'],
        ],
      )
      rig.pacer.runUntil(13 + 186)
      t.equal((await askOnce(t, rig, get())).status, 429, 'not a ms before')
      rig.pacer.runUntil(13 + 187)
      const [late] = await queue(t, rig, [get()])
      await pass(rig, 3_000, 200)
      t.equal((await late!.answer()).status, 200, 'that much later it is admitted')
      for (const client of clients) t.equal((await client.answer()).status, 200)
    }
  },
)

t.test('w, t and Retry-After are rounded up from the exact times, not from errors of the arithmetic', async t => {
  // In floating point 49 units at this rate take 127,008,000.00000001 ms.
  for (const [capacity, seconds] of [[49, 127_008] as const, [100, 259_200] as const]) {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, {
      upstream: upstream.url,
      buckets: { month: { key: 'all', rate: '1000/30d', capacity } },
      routes: [{ mode: 'meter', cost: capacity }],
    })
    const passed = await askOnce(t, rig, get())
    t.equal(passed.header('ratelimit-policy'), `"month";q=${capacity};w=${seconds}`)
    t.equal(passed.header('ratelimit'), `"month";r=0;t=${seconds}`)
    const rejected = await askOnce(t, rig, get())
    t.equal(rejected.header('retry-after'), String(seconds))
    t.equal(rejected.header('ratelimit'), `"month";r=0;t=${seconds}`)
    t.equal(rejected.json().retryAfterMs, seconds * 1_000)
  }
})

t.test('a bucket may have another status', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, buckets: { one: { ...once('all'), status: 503 } } })
  await askOnce(t, rig, get())
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 503)
  t.match(answer.json(), {
    type: /quota-exceeded/,
    title: 'Service Unavailable',
    status: 503,
    'violated-policies': ['one'],
  })
  t.equal(rig.outcomes[1], 'default rejected 503')
})

t.test('no header makes a cost below its min, also not a 0', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { one: { key: 'all', rate: '1/h', capacity: 1_000 } },
    routes: [{ mode: 'meter', cost: { header: 'x-cost', min: 5, max: 9, default: 1 } }],
  })
  let level = 0
  for (const [sent, cost] of [
    ['x-cost: 0', 5],
    ['x-cost: 0.0', 5],
    ['x-cost: 0.5', 5],
    ['x-cost: -1', 1],
    ['x-other: 0', 1],
  ] as const) {
    const answer = await askOnce(t, rig, get('/', sent))
    level += cost
    t.match(answer.header('ratelimit'), `r=${1_000 - level};`, sent)
  }
})

t.test('a cost above the capacity: no Retry-After, and a detail that says so', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { one: { key: 'all', rate: '1/s', capacity: 10 } },
    routes: [{ cost: { header: 'x-cost', max: 100 } }],
  })
  const answer = await askOnce(t, rig, get('/', 'x-cost: 11'))
  t.equal(answer.status, 429)
  t.equal(answer.header('retry-after'), undefined)
  t.equal(answer.json().retryAfterMs, undefined)
  t.equal(answer.json().detail, 'the cost 11 can never fit bucket "one" of 10')
})

t.test('maxWait: a request that would wait longer is rejected, with the time until its wait would fit', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { one: { key: 'all', rate: '1/s', capacity: 10 } },
    routes: [{ name: 'default', maxWait: '2s' }],
  })
  const clients = await queue(t, rig, [get(), get(), get()])
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 429)
  t.equal(answer.header('retry-after'), '1')
  t.match(answer.json(), {
    detail: 'bucket "one" would make it wait 3 s',
    retryAfterMs: 1_000,
    'violated-policies': ['one'],
  })
  t.equal(rig.outcomes.at(-1), 'default rejected 429')
  rig.pacer.runUntil(1_000)
  const [late] = await queue(t, rig, [get()])
  rig.pacer.runUntil(3_000)
  t.equal((await late!.answer()).status, 200)
  for (const client of clients) t.equal((await client.answer()).status, 200)
})

t.test('Prefer: wait lowers maxWait for one request, and Preference-Applied says so', async t => {
  const upstream = await httpUpstream(t)
  const config = { upstream: upstream.url, buckets: { one: { key: 'all', rate: '1/s', capacity: 10 } } }
  const rig = await startRig(t, config)
  const [, waits] = await queue(t, rig, [get(), get('/', 'Prefer: wait=1'), get()])
  for (const prefer of [['wait=1'], ['respond-async, WAIT = 1'], ['return=minimal', 'wait="1"'], ['wait=1; x=y, z']]) {
    const answer = await askOnce(t, rig, get('/', ...prefer.map(each => `Prefer: ${each}`)))
    t.equal(answer.status, 429, prefer.join())
    t.equal(answer.header('preference-applied'), 'wait=1')
    t.equal(answer.json().retryAfterMs, 2_000)
  }
  const before = rig.queued.length
  const ignored = ['wait=x', 'wait', 'swait=1', 'wait=-1', 'foo; wait=1']
  const odd = await queue(
    t,
    rig,
    ignored.map(each => get('/', `Prefer: ${each}`)),
  )
  t.equal(rig.queued.length, before + ignored.length, 'invalid preferences are ignored')
  await pass(rig, 20_000, 1_000)
  for (const client of odd) t.equal((await client.answer()).header('preference-applied'), undefined)
  const answer = await waits!.answer()
  t.same([answer.status, answer.header('preference-applied')], [200, 'wait=1'])

  const shorter = await startRig(t, { ...config, routes: [{ maxWait: '2s' }] })
  const longer = await askOnce(t, shorter, get('/', 'Prefer: wait=5'))
  t.equal(longer.header('preference-applied'), undefined, 'it cannot raise it')
})

t.test('maxInFlight is honoured; still queued after maxWait: 503', async t => {
  const upstream = await holdingUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 2 },
    buckets: { one: { key: 'all', rate: '10/s', capacity: 10 } },
    routes: [{ name: 'default', maxWait: '3s' }],
  })
  const clients = await queue(
    t,
    rig,
    Array.from({ length: 5 }, (_, at) => get(`/${at}`)),
  )
  rig.pacer.runUntil(1_000)
  await upstream.until(upstream => upstream.requests.length === 2)
  await turns()
  t.equal(upstream.requests.length, 2, 'as many as may be in flight')
  upstream.letGo()
  t.equal((await clients[0]!.answer()).status, 200)
  await upstream.until(upstream => upstream.requests.length === 3)
  rig.pacer.runUntil(2_999)
  await turns()
  t.equal(rig.outcomes.length, 1)
  rig.pacer.runUntil(3_000)
  for (const client of clients.slice(3)) {
    const answer = await client.answer()
    t.equal(answer.status, 503)
    t.match(answer.json(), { type: /temporary-reduced-capacity/, status: 503, detail: 'still queued after 3.0 s' })
    t.ok(answer.header('retry-after'))
  }
  upstream.letGo()
  upstream.letGo()
  for (const client of clients.slice(1, 3)) t.equal((await client.answer()).status, 200)
  t.same(upstream.requests, ['GET /0', 'GET /1', 'GET /2'])
  t.equal(rig.outcomes.filter(outcome => outcome === 'default expired 503').length, 2)
  t.equal(rig.proxy.context.routes[0]!.lane.gate.inFlight, 0)
})

t.test('hang-up, maxWait and shutdown in the queue: the recorded wait is the time in the queue', async t => {
  const upstream = await holdingUpstream(t)
  const free = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 1 },
    buckets: { one: { key: 'all', rate: '10/s', capacity: 10 }, slow: { key: 'all', rate: '1/m', capacity: 10 } },
    routes: [
      { name: 'slow', match: { path: '/slow' }, upstream: free.url, buckets: ['slow'], explain: true },
      { name: 'brief', match: { path: '/brief' }, buckets: ['one'], maxWait: '3s', explain: true },
      { name: 'default', buckets: ['one'] },
    ],
  })
  // The first request stays in flight, so the two behind it wait at the gate.
  const [, leaving, brief] = await queue(t, rig, [get(), get('/leaving'), get('/brief')])
  t.equal((await askOnce(t, rig, get('/slow'))).status, 200)
  const [slow] = await queue(t, rig, [get('/slow')])
  rig.pacer.runUntil(1_250)
  leaving!.hangUp()
  await rig.finished(2)
  rig.pacer.runUntil(3_000)
  t.match((await brief!.answer()).header('Shaper-Explain'), /;wait=3000\.0;/)
  rig.pacer.runUntil(4_500)
  const drained = rig.proxy.drain(0)
  t.match((await slow!.answer()).header('Shaper-Explain'), /;wait=4500\.0;/)
  await drained
  const finished = rig.outcomes.map((outcome, index) => `${outcome} ${rig.waits[index]}`)
  t.same(finished.slice(0, 3), ['slow forwarded 200 0', 'default cancelled 499 1250', 'brief expired 503 3000'])
  t.same(finished.slice(3).sort(), ['default failed 503 0', 'slow expired 503 4500'])
  t.same(
    rig.released.map(({ wait }) => wait),
    [0, 0],
    'only a release is told as one',
  )
})

t.test('the end of shutdownTimeout: a place in flight that becomes free releases no request', async t => {
  const upstream = await holdingUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 1 },
    buckets: { one: { key: 'all', rate: '10/s', capacity: 10 } },
    routes: [{ name: 'default' }],
  })
  const clients = await queue(t, rig, [get('/first'), get('/second'), get('/third')])
  rig.pacer.runUntil(1_000)
  await rig.proxy.drain(0)
  for (const client of clients.slice(1)) t.equal((await client.answer()).status, 503)
  t.same(rig.outcomes.sort(), ['default expired 503', 'default expired 503', 'default failed 503'])
  t.equal(rig.released.length, 1)
})

t.test('maxInFlight of a meter route: too many at once are rejected at no cost', async t => {
  const upstream = await holdingUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 1 },
    buckets: { one: { key: 'all', rate: '1/h', capacity: 2 } },
    routes: [{ mode: 'meter' }],
  })
  const client = await connect(t, rig)
  client.send(get())
  await upstream.until(() => upstream.held() === 1)
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 503)
  t.match(answer.json(), { type: /temporary-reduced-capacity/ })
  upstream.letGo()
  t.equal((await client.answer()).status, 200)
  client.send(get())
  await upstream.until(() => upstream.held() === 1)
  upstream.letGo()
  t.equal((await client.answer()).status, 200, 'it had cost nothing')
})

t.test('maxQueued: more are rejected with 503', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    limits: { maxQueued: 2 },
    buckets: { one: { key: 'all', rate: '1/s', capacity: 10 } },
  })
  const clients = await queue(t, rig, [get(), get(), get()])
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 503)
  t.match(answer.json(), { type: /temporary-reduced-capacity/, retryAfterMs: 1_000 })
  t.equal(answer.header('retry-after'), '1')
  t.equal(rig.outcomes.at(-1), 'default rejected 503')
  rig.pacer.runUntil(5_000)
  for (const client of clients) t.equal((await client.answer()).status, 200)
})

t.test('maxKeys: new keys are rejected if every key has a waiting request', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    limits: { maxKeys: 1 },
    buckets: { one: { key: 'header:x-key', rate: '1/s', capacity: 10 } },
  })
  const as = (key: string) => get('/', `x-key: ${key}`)
  await queue(t, rig, [as('a'), as('a')])
  const answer = await askOnce(t, rig, as('b'))
  t.equal(answer.status, 503)
  t.equal(answer.header('retry-after'), '1')
  rig.pacer.runUntil(1_000)
  await rig.finished(3)
  t.equal((await askOnce(t, rig, as('b'))).status, 200)
})

t.test('routes have upstreams of their own, each with its own limit', async t => {
  const [one, two] = await Promise.all([httpUpstream(t), httpUpstream(t)])
  const rig = await startRig(t, {
    upstream: one.url,
    routes: [{ match: { path: '/two' }, mode: 'off', upstream: two.url }, { mode: 'off' }],
  })
  t.same(await statuses(t, rig, [get('/'), get('/two')]), [200, 200])
  t.same([one.requests, two.requests], [['GET /'], ['GET /two']])
})

t.test('a rejection for room that other instances have says so', t => {
  const bucket = new QueuedBucket({ name: 'client', rate: 0.005, capacity: 10 }) as unknown as SharedBucket
  const arrival = { stack: [bucket], cost: 1, route: { name: 'r', gate: new Gate() } }
  const detail = (): unknown => {
    const rejection = { reason: 'overflow', buckets: [bucket], retryAfterMs: 100 } as const
    const visit = { arrival, maxWait: Infinity, givenUp: undefined }
    return rejectionReply(rejection, { buckets: [] } as unknown as Route, visit, 0).detail
  }
  t.equal(detail(), 'bucket "client" is full: 0 of 10, and the rest is for other instances')
  bucket.queued = 9.5
  t.equal(detail(), 'bucket "client" is full: 9.5 of 10, and this request costs 1', 'what waits here counts')
  t.end()
})
