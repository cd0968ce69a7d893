import { networkInterfaces } from 'node:os'
import t from 'tap'
import { loopFaults } from '../../src/config/checks/as-written.js'
import { exampleConfig, faults, least } from './sample.js'

const ADD_BUCKET = 'add e.g. "buckets": { "client": { "key": "ip", "rate": "5/s" } }'
const one = { rate: '5/s', capacity: 10 }

t.test('names of buckets', async t => {
  const file = (buckets: object, routes: object[]) => ({ upstream: 'echo:', buckets, routes })
  t.same(faults(file({ client: one }, [{ buckets: ['clinet'] }])), [
    'routes[0].buckets[0]: unknown bucket "clinet"; did you mean "client"?',
  ])
  t.same(faults(file({ a: one, b: one }, [{ buckets: ['a'] }, { buckets: ['b', 'login'] }])), [
    'routes[1].buckets[1]: unknown bucket "login"; known buckets: a, b',
  ])
  t.same(faults(file({}, [{ buckets: ['a'] }])), [`routes[0].buckets[0]: unknown bucket "a"; ${ADD_BUCKET}`])
  t.same(faults(file({ a: one }, [{ buckets: ['a', 'a'] }])), ['routes[0].buckets[1]: "a" is listed twice; remove one'])
  t.same(faults(file({ a: one }, [{ buckets: ['constructor'] }])), [
    'routes[0].buckets[0]: unknown bucket "constructor"; known buckets: a',
  ])
  t.same(faults({ upstream: 'echo:', buckets: { 'a b': { rate: 'x' } } }), [
    'buckets["a b"].rate: "x" is not a rate; use e.g. "5/s", "6/30s"',
    'buckets["a b"]: "a b" is not a name; use 1 to 64 letters, digits, "_", "." or "-"',
  ])
})

t.test('routes without buckets', async t => {
  const file = (route: object) => ({ upstream: 'echo:', routes: [route] })
  t.same(faults(file({ mode: 'shape' })), [
    `routes[0].buckets: mode "shape" needs a bucket and the file has none; ${ADD_BUCKET}`,
  ])
  t.same(faults(file({ mode: 'meter' })), [
    `routes[0].buckets: mode "meter" needs a bucket and the file has none; ${ADD_BUCKET}`,
  ])
  t.same(faults({ ...least(), routes: [{ buckets: [] }] }), [
    'routes[0].buckets: the list is empty; name a bucket, or use "mode": "off"',
  ])
  t.same(faults({ upstream: 'echo:' }), [`buckets: there is no bucket; ${ADD_BUCKET}`])
  t.same(faults(file({ mode: 'off' })), [])
  t.same(faults({ ...least(), routes: [{ mode: 'off', buckets: ['client'] }, {}] }), [])
})

t.test('names of routes', async t => {
  t.same(faults({ ...least(), routes: [{ name: 'a' }, {}, { name: 'a' }] }), [
    'routes[2].name: "a" is already routes[0]; use another name',
  ])
})

t.test('upstreams', async t => {
  const { upstream: _upstream, ...file } = least()
  const own = { upstream: 'http://h' }
  const remedy = 'use e.g. "http://127.0.0.1:9000" or "echo:"'
  t.same(faults(file), [`upstream: missing; ${remedy}`])
  t.same(faults({ ...file, routes: [{}, {}] }), [`upstream: missing; ${remedy}`])
  t.same(faults({ ...file, routes: [own, {}] }), [
    `routes[1].upstream: missing, and there is none at the top of the file; ${remedy}`,
  ])
  t.same(faults({ ...file, routes: [own, own] }), [])
})

t.test('costs in buckets', async t => {
  const file = (buckets: object, ...routes: object[]) => ({
    upstream: 'echo:',
    buckets: { requests: one, tokens: one },
    routes: routes.map(route => ({ cost: { buckets }, ...route })),
  })
  const tokens = { estimate: 'body/4', max: 'max_tokens', after: 'usage.total_tokens' }
  t.same(faults(file({ requests: 1, tokens }, {}, { buckets: ['tokens', 'requests'] })), [])
  t.same(faults(file({ token: tokens }, {})), [
    'routes[0].cost.buckets.token: the route does not have the bucket "token"; did you mean "tokens"?',
  ])
  t.same(faults(file({ tokens }, { buckets: ['requests'] })), [
    'routes[0].cost.buckets.tokens: the route does not have the bucket "tokens"; add it to "buckets" of the route, or remove it',
  ])
  t.same(faults(file({ x: 1 }, { mode: 'off' })), [], 'it is warned of')
  t.same(faults(file({ requests: 11, tokens: { estimate: 12, after: 'x' } }, {})), [
    'routes[0].cost.buckets.requests: 11 can never fit bucket "requests" (capacity 10); raise the capacity or lower the cost',
    'routes[0].cost.buckets.tokens: 12 can never fit bucket "tokens" (capacity 10); raise the capacity or lower the cost',
  ])
  const small = { ...file({ requests: 1 }, {}), buckets: { requests: one, tokens: { rate: '1/s', capacity: 0.5 } } }
  t.same(faults(small), [
    'routes[0].cost.buckets: 1 can never fit bucket "tokens" (capacity 0.5); raise the capacity or lower the cost',
  ])
})

t.test('costs that can never fit', async t => {
  const file = (bucket: object, ...costs: unknown[]) => ({
    upstream: 'echo:',
    buckets: { client: { rate: '5/s', ...bucket }, wide: { rate: '5/s', capacity: 1000 } },
    routes: costs.map(cost => ({ cost, buckets: ['client', 'wide'] })),
  })
  t.same(faults(file({ capacity: 10 }, 10, 50)), [
    'routes[1].cost: 50 can never fit bucket "client" (capacity 10); raise the capacity or lower the cost',
  ])
  t.same(faults(file({ capacity: 10 }, { POST: 11 })), [
    'routes[0].cost.POST: 11 can never fit bucket "client" (capacity 10); raise the capacity or lower the cost',
  ])
  t.same(faults(file({ capacity: 0.5 }, { POST: 0.5 })), [
    'routes[0].cost.default: 1 can never fit bucket "client" (capacity 0.5); raise the capacity or lower the cost',
  ])
  t.same(faults(file({ capacity: 10 }, { header: 'x', max: 100, default: 20 })), [
    'routes[0].cost.default: 20 can never fit bucket "client" (capacity 10); raise the capacity or lower the cost',
  ])
  t.same(faults(file({}, 6)), [
    'routes[0].cost: 6 can never fit bucket "client" (capacity 5); raise the capacity or lower the cost',
  ])
  t.same(faults(file({ maxDelay: '2s' }, 10, 11)), [
    'routes[1].cost: 11 can never fit bucket "client" (capacity 10); raise the capacity or lower the cost',
  ])
  t.same(faults(file({ capacity: 10 }, { header: 'x', max: 100 })), [], 'what a header may say is no static cost')
  t.same(faults(file({ capacity: 10 }, { header: 'x', min: 11, max: 100 })), [
    'routes[0].cost.min: 11 can never fit bucket "client" (capacity 10); raise the capacity or lower the cost',
  ])
  t.same(faults(file({ capacity: 0.3 }, 0.1 + 0.2)), [], 'binary dust is no cost')
  t.same(faults({ ...least(), routes: [{ cost: 50, mode: 'off' }] }), [])
  t.same(faults({ upstream: 'echo:', buckets: { a: { rate: '5/s', capacity: 0.5 } } }), [
    'buckets.a.capacity: a capacity of 0.5 can never fit a request of cost 1; raise it',
  ])
  t.same(faults({ upstream: 'echo:', buckets: { a: { rate: '5/s', maxDelay: '100ms' } } }), [
    'buckets.a.maxDelay: a capacity of 0.5 can never fit a request of cost 1; raise it',
  ])
})

t.test('capacity and maxDelay exclude each other', async t => {
  t.same(faults({ upstream: 'echo:', buckets: { a: { ...one, maxDelay: '2s' } } }), [
    'buckets.a.maxDelay: give either capacity or maxDelay; remove one',
  ])
})

t.test('an error does not hide other errors', async t => {
  const file = {
    buckets: { bad: { rate: '5/w', rat: 1 }, small: { rate: 'x', capacity: 2, maxDelay: '1s' } },
    routes: [{ name: 'a', mode: 'on', maxWait: 5, buckets: ['bda', 5, 'small'], cost: 3 }, { name: 'a', cost: 0 }, 7],
    limits: 5,
  }
  t.same(faults(file), [
    'buckets.bad.rate: "5/w" is not a rate; use e.g. "5/s", "6/30s"',
    'buckets.bad.rat: unknown key; did you mean "rate"?',
    'buckets.small.rate: "x" is not a rate; use e.g. "5/s", "6/30s"',
    'routes[0].mode: "on" is not a mode; use "shape", "meter" or "off"',
    'routes[0].buckets[1]: 5 is not the name of a bucket; use e.g. "client"',
    'routes[0].maxWait: 5 has no unit; write e.g. "5s" or "5ms"',
    'routes[1].cost: 0 is not a cost; costs are above 0 (to forward untouched, use "mode": "off")',
    'routes[2]: 7 is not a route; use e.g. { "match": { "path": "/api/*" }, "buckets": ["client"] }',
    'limits: 5 is not an object; use e.g. { "maxQueued": 10000 }',
    'upstream: missing; use e.g. "http://127.0.0.1:9000" or "echo:"',
    'buckets.small.maxDelay: give either capacity or maxDelay; remove one',
    'routes[1].name: "a" is already routes[0]; use another name',
    'routes[0].buckets[0]: unknown bucket "bda"; did you mean "bad"?',
    'routes[0].cost: 3 can never fit bucket "small" (capacity 2); raise the capacity or lower the cost',
  ])
})

t.test('an invalid value is not reported as missing', async t => {
  const file = (bucket: object) => ({
    upstream: 'echo:',
    buckets: { a: { rate: '5/s', ...bucket } },
    routes: [{ cost: 50 }],
  })
  t.same(faults(file({ maxDelay: 10 })), ['buckets.a.maxDelay: 10 has no unit; write e.g. "10s" or "10ms"'])
  t.same(faults(file({ capacity: -1 })), ['buckets.a.capacity: -1 is not a capacity; use a number above 0, e.g. 10'])
  t.same(faults(file({ rate: 'x' })), ['buckets.a.rate: "x" is not a rate; use e.g. "5/s", "6/30s"'])
})

t.test('the example configuration is valid', async t => {
  t.same(faults(exampleConfig()), [])
})

t.test('an upstream that is where it listens is reported together with all other errors', async t => {
  const file = {
    listen: { address: '127.0.0.1:8080', tls: 5 },
    upstream: { url: 'http://127.0.0.1:8080', maxInFlight: 0 },
    buckets: { a: { key: 'cheese', rate: 'x' } },
    routes: [{ upstream: 'http://localhost:8080', mode: 'on' }, 5],
  }
  const loop = (url: string) =>
    `"${url}" is where shaper itself listens ("listen": "127.0.0.1:8080"), so every request would come back; name the address of the upstream, or listen elsewhere`
  const found = faults(file)
  t.same(found.slice(-2), [
    `upstream.url: ${loop('http://127.0.0.1:8080')}`,
    `routes[0].upstream: ${loop('http://localhost:8080')}`,
  ])
  t.same(
    found.slice(0, -2).map(line => line.split(':')[0]),
    ['listen.tls', 'upstream.maxInFlight', 'buckets.a.key', 'buckets.a.rate', 'routes[0].mode', 'routes[1]'],
  )
  t.same(faults({ upstream: 'http://127.0.0.1:8080', buckets: { a: { ...one, key: 'cheese' } } }).length, 2)
})

const OWN = { hostname: 'Edge-1', addresses: ['127.0.0.1', '192.0.2.7', '::1', '2001:DB8::7', 'fe80::7'] }

t.test('an upstream that is an address or the name of this machine, where it listens on all of them', t => {
  for (const [listen, names] of [
    ['0.0.0.0:8080', ['192.0.2.7', '[::ffff:192.0.2.7]', 'edge-1', 'EDGE-1']],
    ['[::]:8080', ['192.0.2.7', '[2001:db8:0:0::7]', '[fe80::7]', 'edge-1']],
  ] as const) {
    for (const name of names) {
      const [fault, ...more] = loopFaults({ listen, upstream: `http://${name}:8080` }, OWN)
      t.match(fault, { path: ['upstream'], message: /is where shaper itself listens/ }, `${listen} -> ${name}`)
      t.same(more, [])
      t.same(loopFaults({ listen, upstream: `http://${name}:8081` }, OWN), [], 'another port')
    }
  }
  for (const [listen, name] of [
    ['0.0.0.0:8080', '192.0.2.8'],
    ['0.0.0.0:8080', 'edge-2'],
    // Nobody listens there over IPv6.
    ['0.0.0.0:8080', '[2001:db8::7]'],
    ['[::]:8080', '[2001:db8::8]'],
    ['127.0.0.1:8080', '192.0.2.7'],
    ['127.0.0.1:8080', 'edge-1'],
  ] as const) {
    t.same(loopFaults({ listen, upstream: `http://${name}:8080` }, OWN), [], `${listen} -> ${name}`)
  }
  t.end()
})

t.test('an upstream that is an address of an interface is refused when a configuration is read', t => {
  const address = Object.values(networkInterfaces())
    .flatMap((list = []) => list)
    .find(({ family, internal }) => family === 'IPv4' && !internal)?.address
  if (address === undefined) t.pass('this machine has no address but those of loopback')
  else {
    const upstream = `http://${address}:18777`
    const found = faults({ listen: '0.0.0.0:18777', upstream, buckets: { a: one } })
    t.match(found, [/^upstream: .* is where shaper itself listens \("listen": "0\.0\.0\.0:18777"\)/])
  }
  t.end()
})

t.test('an upstream that is where it listens', t => {
  const loops = (listen: string, upstream: string): boolean => loopFaults({ listen, upstream }, OWN).length > 0
  for (const [listen, upstream] of [
    ['127.0.0.1:8080', 'http://127.0.0.1:8080'],
    ['127.0.0.1:8080', 'http://localhost:8080'],
    ['127.0.0.1:8080', 'https://localhost:8080'],
    ['127.0.0.1:8080', 'http://0.0.0.0:8080'],
    ['127.0.0.1:8080', 'http://[::ffff:127.0.0.1]:8080'],
    ['127.0.0.1:80', 'http://127.0.0.1'],
    ['127.0.0.1:443', 'https://127.0.0.1'],
    ['localhost:8080', 'http://127.0.0.1:8080'],
    ['localhost:8080', 'http://[::1]:8080'],
    ['LOCALHOST:8080', 'http://localhost:8080'],
    ['[::1]:8080', 'http://localhost:8080'],
    ['[0:0:0:0:0:0:0:1]:8080', 'http://[::1]:8080'],
    ['[::1]:8080', 'http://[::]:8080'],
    ['0.0.0.0:8080', 'http://127.0.0.1:8080'],
    ['0.0.0.0:8080', 'http://127.1.2.3:8080'],
    ['0.0.0.0:8080', 'http://localhost:8080'],
    ['0.0.0.0:8080', 'http://0.0.0.0:8080'],
    ['[::]:8080', 'http://127.0.0.1:8080'],
    ['[::]:8080', 'http://localhost:8080'],
    ['[::]:8080', 'http://[::1]:8080'],
    ['[::]:8080', 'http://[::]:8080'],
    ['[fe80::1%eth0]:8080', 'http://[fe80::1]:8080'],
    ['gateway:8080', 'http://gateway:8080'],
    ['10.0.0.1:8080', 'http://10.0.0.1:8080'],
  ] as const) {
    t.ok(loops(listen, upstream), `${listen} -> ${upstream}`)
  }
  for (const [listen, upstream] of [
    ['127.0.0.1:8080', 'http://127.0.0.1:8081'],
    ['127.0.0.1:8080', 'http://127.0.0.1'],
    ['127.0.0.1:8080', 'http://127.0.0.2:8080'],
    ['127.0.0.1:8080', 'http://[::1]:8080'],
    ['0.0.0.0:8080', 'http://[::1]:8080'],
    ['0.0.0.0:8080', 'http://10.0.0.1:8080'],
    ['[::]:8080', 'http://app:8080'],
    ['10.0.0.1:8080', 'http://localhost:8080'],
    ['127.0.0.1:0', 'http://127.0.0.1:9000'],
    ['127.0.0.1:8080', 'echo:'],
  ] as const) {
    t.notOk(loops(listen, upstream), `${listen} -> ${upstream}`)
  }
  t.end()
})

t.test('appointments', async t => {
  const file = (store: object, route: object) => ({ ...least(), ...store, routes: [{ ...route, appointments: true }] })
  t.same(faults(file({}, {})), [])
  t.same(faults(file({}, { mode: 'meter' })), [])
  t.same(faults(file({}, { mode: 'off' })), [
    'routes[0].appointments: mode "off" rejects nothing; remove it, or use "shape" or "meter"',
  ])
  t.same(faults(file({ store: { type: 'redis', url: 'redis://127.0.0.1' } }, {})), [])
})

t.test('waiting pages', async t => {
  const file = (route: object) => ({ ...least(), routes: [{ ...route, waitingPage: { template: 'wait.html' } }] })
  t.same(faults(file({})), [])
  t.same(faults(file({ mode: 'off' })), [
    'routes[0].waitingPage: mode "off" rejects nothing; remove it, or use "shape" or "meter"',
  ])
  t.same(faults({ ...file({ upstream: 'gate:' }), trustProxy: true }), [
    'routes[0].waitingPage: a gate answers a proxy, and with "upstream": "gate:" no browser gets a page; remove it',
  ])
  for (const waitingPage of [true, false]) t.same(faults({ ...least(), routes: [{ mode: 'off', waitingPage }] }), [])
})
