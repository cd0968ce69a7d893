import t from 'tap'
import { least, parse } from './sample.js'

const bucket = (values: object) => parse({ upstream: 'echo:', buckets: { a: { rate: '5/s', ...values } } }).buckets[0]!
const route = (values: object) => parse({ ...least(), routes: [values] }).routes[0]!

t.test('the smallest valid file gets every default', async t => {
  const client = {
    name: 'client',
    key: { parts: [{ kind: 'ip' }], missing: 'ip', duplicates: 'first', ipv6: 64 },
    status: 429,
    limits: { name: 'client', rate: 0.005, capacity: 5, overflow: 'reject', minShare: 0.05 },
    rate: 0.005,
    capacity: 5,
    tiers: [],
  }
  const upstream = {
    url: 'echo:',
    hostHeader: 'preserve',
    maxInFlight: Infinity,
    keepAlive: 4_000,
    maxConnectionAge: 300_000,
    requestBuffer: 65_536,
    responseBuffer: 262_144,
    connectTimeout: 5_000,
    responseTimeout: 60_000,
    idleTimeout: 60_000,
    tls: {},
    breaker: { failures: 5, status: [], probe: 1_000, maxProbe: 30_000, hold: 5_000 },
    via: true,
    http2: false,
    learn: false,
  }
  t.strictSame(parse(least()), {
    listen: [{ host: '127.0.0.1', port: 8080 }],
    store: 'memory',
    trustProxy: false,
    buckets: [client],
    routes: [
      {
        name: 'default',
        match: {},
        mode: 'shape',
        buckets: [client],
        cost: { kind: 'fixed', cost: 1 },
        maxWait: Infinity,
        patience: 'auto',
        priority: 3,
        dryRun: false,
        refuse: false,
        explain: false,
        coalesce: false,
        appointments: false,
        waitingPage: {},
        headers: true,
        upstream,
      },
    ],
    limits: {
      maxKeys: 100_000,
      maxQueued: 10_000,
      maxConnections: 20_000,
      connectionsPerClient: 512,
      headersTimeout: 10_000,
      keepAliveTimeout: 75_000,
      tunnelIdleTimeout: 3_600_000,
      bodyTimeout: 10_000,
      minBodyRate: 240,
      bufferMemory: 67_108_864,
      maxHeaderSize: 16_384,
      maxHeaders: 100,
      drainDelay: 0,
      shutdownTimeout: 30_000,
    },
    accessLog: true,
    dryRun: false,
    headers: true,
    pacing: 'precise',
  })
})

t.test('capacities', async t => {
  t.equal(bucket({ rate: '57/s' }).capacity, 57)
  t.equal(bucket({ rate: '1001/s' }).capacity, 1001, 'no dust of binary fractions')
  t.equal(bucket({ rate: '4/s', maxDelay: '700ms' }).capacity, 2.8)
  t.equal(bucket({ rate: '6/30s' }).capacity, 1, 'at least 1')
  t.equal(bucket({ rate: 2.5 }).capacity, 2.5)
  t.equal(bucket({ maxDelay: '2s' }).capacity, 10)
  t.equal(bucket({ capacity: 1.5 }).capacity, 1.5)
})

t.test('overflow and blockFor', async t => {
  t.strictSame(bucket({ capacity: 10, overflow: 'fair', blockFor: '90s', weight: 2 }), {
    name: 'a',
    key: { parts: [{ kind: 'ip' }], missing: 'ip', duplicates: 'first', ipv6: 64 },
    status: 429,
    weight: 2,
    limits: { name: 'a', rate: 0.005, capacity: 10, overflow: 'fair', minShare: 0.05, blockFor: 90_000 },
    rate: 0.005,
    capacity: 10,
    tiers: [],
  })
  t.equal(bucket({ blockFor: 'drain' }).limits.blockFor, 'drain')
  t.equal(bucket({ overflow: 'fill' }).limits.overflow, 'fill')
  t.equal(route({ mode: 'meter', explain: true }).explain, true)
})

t.test('keys', async t => {
  t.strictSame(bucket({ key: 'header:X-Api-Key' }).key, {
    parts: [{ kind: 'header', name: 'x-api-key' }],
    missing: 'ip',
    duplicates: 'first',
    ipv6: 64,
  })
  t.strictSame(bucket({ key: ['all', 'cookie:Sid', 'query:Q x', 'method', 'host', 'route'] }).key.parts, [
    { kind: 'all' },
    { kind: 'cookie', name: 'Sid' },
    { kind: 'query', name: 'Q x' },
    { kind: 'method' },
    { kind: 'host' },
    { kind: 'route' },
  ])
  t.strictSame(bucket({ key: { from: ['ip', 'header:a'], missing: 'reject' } }).key, {
    parts: [{ kind: 'ip' }, { kind: 'header', name: 'a' }],
    missing: 'reject',
    duplicates: 'first',
    ipv6: 64,
  })
  t.strictSame(bucket({ key: { from: 'header:a', duplicates: 'reject', ipv6: 48 } }).key, {
    parts: [{ kind: 'header', name: 'a' }],
    missing: 'ip',
    duplicates: 'reject',
    ipv6: 48,
  })
})

t.test('addresses to listen on', async t => {
  const listen = (listen: unknown) => {
    const all = parse({ ...least(), listen }).listen
    t.equal(all.length, 1)
    return all[0]
  }
  t.strictSame(listen('0.0.0.0:0'), { host: '0.0.0.0', port: 0 })
  t.strictSame(listen('[::1]:8080'), { host: '::1', port: 8080 })
  t.strictSame(listen(':8081'), { host: '127.0.0.1', port: 8081 })
  t.strictSame(listen('8082'), { host: '127.0.0.1', port: 8082 })
  t.strictSame(listen('localhost:65535'), { host: 'localhost', port: 65_535 })
  t.strictSame(listen({ address: '[::]:443' }), { host: '::', port: 443 })
  t.strictSame(listen({ address: ':443', tls: { cert: 'c.pem', key: 'k.pem' } }), {
    host: '127.0.0.1',
    port: 443,
    tls: { cert: 'c.pem', key: 'k.pem' },
  })
})

t.test('trusted proxies', async t => {
  const trust = (trustProxy: unknown) => parse({ ...least(), trustProxy }).trustProxy
  const list = ['loopback', 'linklocal', 'uniquelocal', '10.0.0.1', '10.0.0.0/8', 'fd00::/8', '::1']
  t.strictSame(trust(list), list)
  t.equal(trust(true), true)
  t.equal(trust(2), 2)
  t.equal(trust(0), false, 'no hop is none')
})

t.test('matches', async t => {
  t.strictSame(
    route({ match: { path: '/a/*', method: ['get', 'POST'], host: 'API.example.com', header: { 'X-Plan': 'Gold' } } })
      .match,
    { path: '/a/*', method: ['GET', 'POST'], host: 'api.example.com', header: { 'x-plan': 'Gold' } },
  )
  t.strictSame(route({ match: { path: '*', method: 'get' } }).match, { path: '*', method: ['GET'] })
})

t.test('costs', async t => {
  t.strictSame(route({ cost: 0.5 }).cost, { kind: 'fixed', cost: 0.5 })
  t.strictSame(route({ cost: { post: 5, Get: 2 } }).cost, { kind: 'method', costs: { POST: 5, GET: 2 }, default: 1 })
  t.strictSame(route({ cost: { default: 3 } }).cost, { kind: 'method', costs: {}, default: 3 })
  t.strictSame(route({ cost: { header: 'X-Cost', max: 100 } }).cost, {
    kind: 'header',
    name: 'x-cost',
    min: 1,
    max: 100,
    default: 1,
  })
  t.match(route({ cost: { header: 'X-Cost', max: 100, default: 3 } }).cost, { min: 3 }, 'as the default')
  t.match(route({ cost: { header: 'X-Cost', min: 0.5, max: 100 } }).cost, { min: 0.5, default: 1 })
})

t.test('a route uses the buckets that it names, or all, or none in mode off', async t => {
  const { buckets, routes } = parse({
    upstream: 'echo:',
    buckets: { b: { rate: 1 }, a: { rate: 2 } },
    routes: [{ buckets: ['a'] }, { mode: 'meter' }, { mode: 'off' }, { mode: 'off', buckets: ['b'] }],
  })
  t.strictSame(
    buckets.map(each => each.name),
    ['b', 'a'],
    'in file order',
  )
  t.strictSame(
    routes.map(each => each.buckets.map(bucket => bucket.name)),
    [['a'], ['b', 'a'], [], ['b']],
  )
  t.equal(routes[0]?.buckets[0], buckets[1], 'the very same')
})

t.test('names of routes without one', async t => {
  const match = { path: '/v1/login', method: 'POST' }
  const { routes } = parse({
    ...least(),
    routes: [
      { name: 'post-v1-login-2' },
      { match },
      { match },
      { match: { path: '/api/*' } },
      { match: { host: 'a.example.com:80', header: { 'X-Plan': 'gold' } } },
      { match: { path: `/${'long'.repeat(30)}` } },
      { match: { path: `/${'long'.repeat(30)}` } },
      { match: { path: '/' } },
      {},
    ],
  })
  const names = routes.map(each => each.name)
  t.strictSame(names, [
    'post-v1-login-2',
    'post-v1-login',
    'post-v1-login-3',
    'api',
    'a.example.com-80-x-plan',
    'long'.repeat(16).slice(0, 63),
    `${'long'.repeat(14)}-2`,
    'route-8',
    'route-9',
  ])
  for (const name of names) t.match(name, /^[A-Za-z0-9_.-]{1,64}$/)
})

t.test('upstreams', async t => {
  const upstream = (upstream: unknown) => parse({ ...least(), upstream }).routes[0]!.upstream
  t.equal(upstream('http://h:9000/').url, 'http://h:9000')
  t.equal(upstream('HTTPS://H:443').url, 'https://h')
  t.strictSame(
    upstream({
      url: 'https://[::1]:8443',
      hostHeader: 'upstream',
      maxInFlight: 7,
      connections: 9,
      keepAlive: '9s',
      maxConnectionAge: '1m',
      requestBuffer: 0,
      responseBuffer: 1_048_576,
      connectTimeout: '1s',
      responseTimeout: '2s',
      idleTimeout: '3s',
      tls: { ca: 'ca.pem', servername: 'h' },
    }),
    {
      url: 'https://[::1]:8443',
      hostHeader: 'upstream',
      maxInFlight: 7,
      connections: 9,
      keepAlive: 9_000,
      maxConnectionAge: 60_000,
      requestBuffer: 0,
      responseBuffer: 1_048_576,
      connectTimeout: 1_000,
      responseTimeout: 2_000,
      idleTimeout: 3_000,
      tls: { ca: 'ca.pem', servername: 'h' },
      breaker: { failures: 5, status: [], probe: 1_000, maxProbe: 30_000, hold: 5_000 },
      via: true,
      http2: false,
      learn: false,
    },
  )
  const { pauseOn, retry, learn } = upstream({
    url: 'echo:',
    pauseOn: { status: [429] },
    retry: { status: [503] },
    learn: true,
  })
  t.strictSame(
    { pauseOn, retry, learn },
    { pauseOn: { status: [429], default: 1_000, max: 60_000 }, retry: { status: [503], max: 3 }, learn: true },
  )
  const { routes } = parse({ ...least(), routes: [{ upstream: 'http://own' }, {}] })
  t.strictSame(
    routes.map(each => each.upstream.url),
    ['http://own', 'echo:'],
  )
})

t.test('settings at the top of the file apply to every route', async t => {
  const routes = [{ dryRun: true }, { dryRun: false, maxWait: '0s' }]
  const plain = parse({ ...least(), routes })
  t.strictSame(
    plain.routes.map(each => each.dryRun),
    [true, false],
  )
  t.strictSame(
    plain.routes.map(each => each.maxWait),
    [Infinity, 0],
  )
  t.equal(plain.dryRun, false)
  const all = parse({ ...least(), routes, dryRun: true, headers: false })
  t.strictSame(
    all.routes.map(each => each.dryRun),
    [true, true],
  )
  t.strictSame(
    all.routes.map(each => each.headers),
    [false, false],
  )
  t.equal(all.headers, false)
})
