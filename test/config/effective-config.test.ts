import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import { effective } from '../../src/config/report/effective-config.js'
import { parseRate } from '../../src/core/units.js'
import { runs } from '../runs.js'
import { exampleConfig, least, parse } from './sample.js'

t.test('the effective configuration in the words of the file', async t => {
  const file = {
    listen: { address: '[::1]:443', tls: { cert: 'c', key: 'k' } },
    upstream: 'https://h/',
    admin: { listen: '0.0.0.0:9090', token: 's3cret-of-16-and-more' },
    ticketKeys: ['s3cret-of-16-and-more'.repeat(6), 's3cret-of-16-and-more'.repeat(7)],
    buckets: { a: { rate: '6/30s' }, b: { key: ['ip', 'query:q'], rate: '1000/30d', capacity: 9, status: 503 } },
    routes: [
      { cost: { header: 'X-Cost', max: 9 } },
      {
        mode: 'off',
        upstream: {
          url: 'echo:',
          maxInFlight: 3,
          connections: 4,
          keepAlive: false,
          retry: { status: [503] },
          pauseOn: { status: [429], max: '9s' },
        },
        maxWait: '1500ms',
      },
    ],
  }
  const upstream = {
    url: 'https://h',
    hostHeader: 'preserve',
    keepAlive: '4s',
    maxConnectionAge: '5m',
    requestBuffer: 65_536,
    responseBuffer: 262_144,
    connectTimeout: '5s',
    responseTimeout: '60s',
    idleTimeout: '60s',
    breaker: { failures: 5, status: [], probe: '1s', maxProbe: '30s', hold: '5s' },
    via: true,
    http2: false,
    learn: false,
  }
  t.strictSame(JSON.parse(JSON.stringify(effective(parse(file)))), {
    listen: { address: '[::1]:443', tls: { cert: 'c', key: 'k' } },
    upstream,
    trustProxy: false,
    store: 'memory',
    buckets: {
      a: {
        key: { from: 'ip', missing: 'ip', ipv6: 64 },
        rate: '12/m',
        capacity: 1,
        status: 429,
        overflow: 'reject',
        minShare: 0.05,
      },
      b: {
        key: { from: ['ip', 'query:q'], missing: 'ip', ipv6: 64 },
        rate: '100/3d',
        capacity: 9,
        status: 503,
        overflow: 'reject',
        minShare: 0.05,
      },
    },
    routes: [
      {
        name: 'route-1',
        match: {},
        mode: 'shape',
        buckets: ['a', 'b'],
        cost: { header: 'x-cost', min: 1, max: 9, default: 1 },
        patience: 'auto',
        priority: 3,
        dryRun: false,
        explain: false,
        coalesce: false,
        appointments: false,
        waitingPage: true,
      },
      {
        name: 'route-2',
        match: {},
        mode: 'off',
        buckets: [],
        cost: 1,
        maxWait: '1.5s',
        patience: 'auto',
        priority: 3,
        dryRun: false,
        explain: false,
        coalesce: false,
        appointments: false,
        waitingPage: false,
        upstream: {
          ...upstream,
          url: 'echo:',
          maxInFlight: 3,
          connections: 4,
          keepAlive: false,
          pauseOn: { status: [429], default: '1s', max: '9s' },
          retry: { status: [503], max: 3 },
        },
      },
    ],
    limits: {
      maxKeys: 100_000,
      maxQueued: 10_000,
      maxConnections: 20_000,
      connectionsPerClient: 512,
      headersTimeout: '10s',
      keepAliveTimeout: '75s',
      tunnelIdleTimeout: '1h',
      bodyTimeout: '10s',
      minBodyRate: 240,
      bufferMemory: 67_108_864,
      maxHeaderSize: 16_384,
      maxHeaders: 100,
      drainDelay: '0ms',
      shutdownTimeout: '30s',
    },
    admin: { listen: '0.0.0.0:9090', token: '***' },
    ticketKeys: ['***', '***'],
    accessLog: true,
    dryRun: false,
    headers: true,
    pacing: 'precise',
  })
  t.notMatch(JSON.stringify(effective(parse(file))), /s3cret/)
})

t.test('property: it parses to the same settings', async t => {
  const same = (file: object) => {
    const settings = parse(file)
    t.strictSame(parse(effective(settings)), settings)
  }
  same(least())
  same({ ...least(), store: { type: 'memory' } })
  same({ ...least(), store: { type: 'memory', file: 'levels.json' } })
  same({ ...least(), upstream: { url: 'echo:', retry: { status: [503] }, learn: true } })
  same(exampleConfig())
  same({
    ...least(),
    dryRun: true,
    headers: false,
    trustProxy: 3,
    buckets: {
      client: {
        key: { from: ['ip', 'header:x-client'], duplicates: 'reject', ipv6: 56 },
        rate: '5/s',
        overflow: 'fair',
        blockFor: '1500ms',
        weight: 2,
        minShare: 0.1,
        maxInFlight: 3,
        burst: 2.5,
        grace: '20ms',
        tiers: [
          { name: 'gold', keys: ['a', 'b'], rate: '1000/30d', capacity: 20, burst: 7 },
          { name: 'silver', header: { 'X-Plan': 'Silver' }, weight: 0.5, maxInFlight: 9, priority: 0 },
        ],
      },
      other: { rate: 1, maxDelay: '3s', blockFor: 'drain', tiers: [{ name: 'a', keys: ['a'], rate: '7/3s' }] },
    },
    routes: [{ explain: true, cost: { post: 2 }, match: { host: 'A', header: { X: 'y' } } }],
  })

  const units = ['ms', 's', 'm', 'h', 'd']
  const number = fc.double({ min: 1e-6, max: 1e6, noNaN: true }).map(value => value.toFixed(9))
  const text = fc.tuple(number, fc.constantFrom(...units)).map(parts => parts.join(''))
  const rate = fc
    .oneof(
      fc.double({ min: 1e-8, max: 1e30, noNaN: true }),
      fc.tuple(fc.integer({ min: 1, max: 5000 }), fc.integer({ min: 1, max: 120 })).map(parts => `${parts.join('/')}h`),
      fc.tuple(number, text).map(parts => parts.join('/')),
    )
    .filter(isRate)
  const property = fc.property(rate, text, fc.double({ min: 1, max: 1e9, noNaN: true }), (rate, delay, capacity) => {
    const routes = [{ maxWait: delay.replace(/[mhd]$/, 'ms') }]
    const settings = parse({ upstream: 'echo:', buckets: { a: { rate, capacity } }, routes })
    return isDeepStrictEqual(parse(effective(settings)), settings)
  })
  t.doesNotThrow(() => fc.assert(property, { seed: 7, numRuns: runs(1_000) }))
})

/** A rate below one in ten years is refused. */
function isRate(rate: string | number): boolean {
  try {
    parseRate(rate)
    return true
  } catch {
    return false
  }
}

t.test('costs of buckets come out as they went in', async t => {
  const buckets = {
    a: 2,
    b: { estimate: 'body/3.5', max: 'x[0].y', after: 'usage.total' },
    c: { estimate: 'n' },
    d: { estimate: 5, after: ['[2]', 'usage.n'] },
  }
  const bucket = { rate: '5/s', capacity: 10 }
  const file = {
    upstream: 'echo:',
    buckets: Object.fromEntries('abcd'.split('').map(name => [name, bucket])),
    routes: [{ cost: { buckets } }],
  }
  const shown = effective(parse(file)) as { routes: { cost: object }[] }
  t.same(shown.routes[0]!.cost, { buckets })
  t.same(effective(parse(shown)), shown)
})
