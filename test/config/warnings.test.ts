import { fileURLToPath } from 'node:url'
import t from 'tap'
import { certificateWarnings } from '../../src/config/warnings/certificates.js'
import { warnings } from '../../src/config/warnings/index.js'
import { addressKey } from '../../src/proxy/http/client-address.js'
import { exampleConfig, parse } from './sample.js'

const bucket = { key: 'header:k', rate: '5/s', capacity: 10 }
const shared = { key: 'all', rate: '100/s', capacity: 200 }
const own = { match: { path: '/own' } }

const lines = (file: object) =>
  warnings(parse({ upstream: 'echo:', ...file })).map(({ path, message }) => `${path}: ${message}`)
/** The warnings for one bucket `a` on one route. */
const ofBucket = (values: object, route: object = {}) =>
  lines({ buckets: { a: { ...bucket, ...values } }, routes: [{ name: 'api', ...route }] })

t.test('a sound configuration has no warnings', async t => {
  t.same(lines(exampleConfig()), [])
  t.same(ofBucket({}), [])
  t.same(lines({ buckets: { a: bucket, b: shared } }), [])
})

t.test('a path that is spelled otherwise comes to a route that limits nothing', async t => {
  const rest = { name: 'rest', mode: 'off' }
  const table: [match: object, rest: object, spellings?: string, normalise?: string][] = [
    [{ path: '/login', method: 'POST' }, rest, '"/LOGIN", "/login/" or "/login;a=1"', '"case", "slash", "params"'],
    [{ path: '/LOGIN/' }, rest, '"/login/", "/LOGIN" or "/LOGIN/;a=1"', '"case", "slash", "params"'],
    [{ path: '/login', normalise: ['case'] }, rest, '"/login/" or "/login;a=1"', '"case", "slash", "params"'],
    [{ path: '/login', normalise: ['case', 'slash'] }, rest, '"/login;a=1"', '"case", "slash", "params"'],
    [{ path: '/login', normalise: ['params', 'case'] }, rest, '"/login/"', '"params", "case", "slash"'],
    [{ path: '/login', normalise: ['case', 'slash', 'params'] }, rest],
    [{ path: '/login;v=1', normalise: ['case', 'slash'] }, rest],
    [{ path: '/' }, rest, '"/;a=1"', '"params"'],
    [{ path: '/login/*' }, rest, '"/LOGIN/*", "/login" or "/;a=1/login/*"', '"case", "slash", "params"'],
    [{ path: '/login*' }, rest, '"/LOGIN*" or "/;a=1/login*"', '"case", "params"'],
    [{ path: '/login/*', normalise: ['case', 'slash', 'params'] }, rest],
    [{ path: '/*' }, rest],
    [{ path: '~ ^/login$' }, rest, '"/LOGIN", "/login/" or "/login;a=1"', '"case", "slash", "params"'],
    [{ path: '~ ^/v[0-9]+/login' }, rest, '"/V0/LOGIN" or "/;a=1/v0/login"', '"case", "params"'],
    [{ path: '~ (?i)^/login/?$', normalise: ['params'] }, rest],
    [{ path: '~ (css|js)$' }, rest],
    [{ path: '/login' }, { name: 'rest' }],
    [{ path: '/login' }, { ...rest, match: { path: '/healthz' } }],
    [
      { path: '/login', method: 'POST' },
      { ...rest, match: { method: 'GET' } },
    ],
    [
      { path: '/login', method: ['POST', 'PUT'], normalise: ['case', 'slash'] },
      { ...rest, match: { method: ['GET', 'POST'] } },
      '"/login;a=1"',
      '"case", "slash", "params"',
    ],
    [
      { path: '/login' },
      { ...rest, match: { method: 'POST' } },
      '"/LOGIN", "/login/" or "/login;a=1"',
      '"case", "slash", "params"',
    ],
    [
      { path: '/login', normalise: ['case', 'slash'] },
      { name: 'rest', dryRun: true },
      '"/login;a=1"',
      '"case", "slash", "params"',
    ],
  ]
  const told = (...routes: object[]) =>
    lines({ buckets: { a: bucket }, routes }).filter(line => line.startsWith('routes[0].match'))
  const login = { name: 'login', mode: 'meter' }
  for (const [match, rest, spellings, normalise] of table) {
    const line = `routes[0].match.path: a request for ${spellings} goes to routes[1] ("rest"), which limits nothing; add "normalise": [${normalise}] beside "path"`
    t.same(told({ ...login, match }, rest), spellings === undefined ? [] : [line], JSON.stringify([match, rest]))
  }
  const exact = { ...login, match: { path: '/login', normalise: ['case', 'slash'] } }
  t.same(told(exact), [], 'the rest is answered 404')
  t.same(
    told(exact, { name: 'any', match: { path: '/login*', normalise: ['params'] } }, rest),
    [],
    'another one limits it',
  )
  t.same(told({ ...exact, dryRun: true }, { name: 'rest', dryRun: true }), [], 'a rehearsal of all')
  const health = { name: 'health', match: { path: '/healthz' }, mode: 'off' }
  t.same(told(health, { name: 'api' }), [], 'nothing limits the path itself')
})

t.test('learning from an upstream', async t => {
  const learn = { upstream: { url: 'echo:', learn: true } }
  t.same(ofBucket({}, learn), [
    'routes[0].upstream.learn: several clients together may exceed what is learnt; add a bucket with "key": "all" to the route',
  ])
  t.same(ofBucket({ key: 'all' }, learn), [])
  const requests = (key: string) =>
    lines({ ...learn, buckets: { all: shared, requests: { ...shared, key, capacity: 9 } } })
  t.same(requests('all'), [])
  t.match(
    requests('header:k').join(),
    /routes\[0\].upstream.learn: several clients/,
    'the bucket called so follows alone',
  )
  const two = (first: string[], second: string[]) =>
    lines({
      upstream: learn.upstream,
      buckets: { a: shared, b: shared },
      routes: [
        { name: 'x', match: { path: '/x' }, buckets: first },
        { name: 'y', buckets: second },
      ],
    })
  t.same(two(['a'], ['b', 'a']), [])
  t.match(two(['a'], ['b'])[0], /^routes\[0\].upstream.learn: the routes to this upstream together may exceed/)
  const retry = { upstream: { url: 'echo:', retry: { status: [503] } } }
  t.same(ofBucket({}, retry), [])
  t.same(ofBucket({}, { ...retry, mode: 'meter' }), [])
  t.same(lines({ upstream: retry.upstream, routes: [{ mode: 'off' }] }), [
    'routes[0].upstream.retry: has no effect in mode "off", where nothing limits it; use mode "shape" or "meter"',
  ])
})

t.test('a longest pause between attempts below the first one', async t => {
  const deliver = { url: 'postgres://127.0.0.1/shaper', backoff: '10s' }
  t.same(ofBucket({}, { deliver }), [])
  t.same(ofBucket({}, { deliver: { ...deliver, maxBackoff: '5s' } }), [
    'routes[0].deliver.maxBackoff: is below backoff (10s), so that has no effect; raise it to 10s at least, or lower backoff',
  ])
})

t.test('no room for a queue', async t => {
  const line = (room: string, least: number) =>
    `buckets.a.capacity: ${room} only, so there is no queue at all; raise it to at least ${least}, better to the burst that you expect`
  t.same(ofBucket({ capacity: 1 }), [line('1 has room for one request', 2)])
  t.same(ofBucket({ capacity: 1.5 }), [line('1.5 has room for one request', 2)])
  t.same(ofBucket({ capacity: 2 }), [])
  t.same(lines({ buckets: { a: { key: 'all', rate: '6/30s' } } }), [line('1 has room for one request', 2)])
  t.same(ofBucket({ capacity: 5 }, { cost: 4 }), [line('5 has room for one request of cost 4', 8)])
  t.same(ofBucket({ capacity: 5 }, { cost: { POST: 4 } }), [], 'the smallest cost counts')
  t.same(ofBucket({ capacity: 0.5 }, { cost: 0.1 }), [])
  const tiers = [
    { name: 'x', keys: ['x'], rate: 9 },
    { name: 'y', keys: ['y'], capacity: 1.5 },
  ]
  t.same(ofBucket({ tiers }), [line('1.5 has room for one request', 2).replace('a.', 'a.tiers[1].')])
  t.same(ofBucket({ capacity: 1, tiers: tiers.slice(0, 1) }), [line('1 has room for one request', 2)])
})

t.test('a burst that is never used whole', async t => {
  const line = (path: string, capacity: number, burst: number) =>
    `${path}.burst: the bucket holds ${capacity} and rejects what goes beyond, so ${burst} never leave at once; raise the capacity to at least ${burst}, or lower this`
  t.same(ofBucket({ burst: 11 }), [line('buckets.a', 10, 11)])
  t.same(ofBucket({ burst: 10 }), [])
  t.same(lines({ buckets: { a: { key: 'header:k', rate: '2/s', burst: 40 } } }), [], 'it has room by default')
  t.same(ofBucket({ burst: 11 }, { mode: 'meter' }), [line('buckets.a', 10, 11)])
  const tiers = [
    { name: 'x', keys: ['x'], rate: 9 },
    { name: 'y', keys: ['y'], burst: 12 },
    { name: 'z', keys: ['z'], capacity: 3 },
  ]
  t.same(ofBucket({ tiers, burst: 4 }), [line('buckets.a.tiers[1]', 10, 12), line('buckets.a.tiers[2]', 3, 4)])
  t.same(ofBucket({ burst: 11, tiers: tiers.slice(0, 1) }), [line('buckets.a', 10, 11)], 'once')
})

t.test('no room for a burst', async t => {
  t.same(ofBucket({ rate: '6/30s', capacity: 1 }, { mode: 'meter' }), [
    'buckets.a.capacity: 1 has room for one request only: of 12/m only one every 5 s passes, two at once never do; raise it to at least 2, better to the burst that you expect',
  ])
  t.same(ofBucket({ rate: '1/m', capacity: 1 }, { mode: 'meter' }), [], 'one a minute may well be meant')
  t.same(ofBucket({ rate: '6/30s', capacity: 6 }, { mode: 'meter' }), [])
})

t.test('a quota that is written as a rate', async t => {
  const line = (pace: string, capacity: number) =>
    `buckets.a.capacity: one request leaves every ${pace}; if this is a quota that a client may use at once, use "quota" where it starts anew with the calendar, set "burst": ${capacity}, or "mode": "meter" on route "api"; if not, lower the capacity`
  const monthly = line('25.9 s, the last of 100000 after 30 d', 100_000)
  t.same(ofBucket({ rate: '100000/30d', capacity: 100_000 }), [monthly])
  t.same(ofBucket({ rate: '5000/h', capacity: 6_000 }), [line('720 ms, the last of 6000 after 72 min', 6_000)])
  t.same(ofBucket({ rate: '100000/30d', capacity: 100_000, burst: 100_000 }), [])
  t.same(ofBucket({ rate: '100000/30d', capacity: 100_000 }, { mode: 'meter' }), [])
})

t.test('waits that are longer than clients accept', async t => {
  const line = (wait: string, instead = '"maxDelay": "30s" instead of capacity') =>
    `buckets.a.capacity: a request can wait ${wait}, and many clients give up after 30s; set "maxWait" on route "api" to what its clients accept, or ${instead}`
  t.same(ofBucket({ capacity: 1_001 }), [line('3.33 min')])
  t.same(
    ofBucket({ capacity: 201, burst: 11 }),
    [line('38 s', 'a smaller capacity')],
    'maxDelay counts the burst as a wait',
  )
  t.same(ofBucket({ capacity: 151.5 }), [line('30.1 s')])
  t.same(ofBucket({ capacity: 151 }), [])
  t.same(ofBucket({ capacity: undefined, maxDelay: '30s' }), [])
  t.same(ofBucket({ capacity: 1_000 }, { maxWait: '20s' }), [])
  t.same(ofBucket({ capacity: 1_000 }, { maxWait: '1m' }), [], 'a decision')
  t.same(ofBucket({ capacity: 1_000 }, { mode: 'meter' }), [])
  const tiers = [{ name: 'x', keys: ['x'], capacity: 200 }]
  t.same(ofBucket({ tiers }), [line('39.8 s', 'a smaller capacity').replace('a.', 'a.tiers[0].')])
})

t.test('tiers with addresses that no request has', async t => {
  const told = (key: string, bucketKey: unknown = 'ip') =>
    lines({
      listen: '0.0.0.0:8080',
      buckets: { a: { ...bucket, key: bucketKey, tiers: [{ name: 'x', keys: ['192.0.2.1', key], weight: 2 }] } },
    })
  // Without the key, which may be a credential.
  const at = 'buckets.a.tiers[0].keys[1]: never matches: '
  for (const key of ['192.0.2.7', '2001:db8:0:0::/64', 'fe80:0:0:0::/64']) t.same(told(key), [], key)
  const ranges = ['192.0.2.0/24', '192.0.2.9/32', '::ffff:192.0.2.0/120', '2001:db8::/32', '2001:db8::/64', '0.0.0.0/0']
  for (const key of ranges) t.same(told(key), [], key)
  t.same(told('192.0.2.9/24'), [`${at}it has bits set after its prefix; use "192.0.2.0/24", or the address alone`])
  t.same(told('2001:db8::7/64'), [`${at}it has bits set after its prefix; use "2001:db8::/64", or the address alone`])
  t.same(told('::ffff:192.0.2.9'), [`${at}the key "ip" writes it differently; use "192.0.2.9"`])
  for (const key of ['2001:DB8::7', '2001:db8::7', '2001:db8::/80', '2001:db8::7/128']) {
    const network = addressKey('2001:db8::7')
    t.same(told(key), [`${at}the key "ip" of IPv6 is the network of 64 bits; use "${network}"`], key)
    t.same(told(network), [])
  }
  for (const key of ['acme', '192.0.2.1:80', '192.0.2.*', '192.0.2.0/33', '*']) {
    const remedy = 'use e.g. "192.0.2.1" or "192.0.2.0/24"'
    t.same(told(key), [`${at}it is no address, and the key of the bucket is "ip"; ${remedy}`], key)
  }
  const wide = { from: 'ip', ipv6: 56 }
  for (const key of ['2001:db8:0:ab00::/56', '2001:DB8:0:ab00::/56', '2001:db8::/48']) t.same(told(key, wide), [], key)
  for (const key of ['2001:db8:0:abcd::7', '2001:db8:0:abcd::/64']) {
    t.same(told(key, wide), [`${at}the key "ip" of IPv6 is the network of 56 bits; use "2001:db8:0:ab00::/56"`], key)
  }
  const parts = ['ip', 'method']
  const only = 'ranges are looked into only where the key of the bucket is "ip" and nothing else'
  t.match(told('192.0.2.0/24\nGET', parts).at(-1), `${at}${only}; list the addresses, e.g. "192.0.2.0"`)
  t.match(told('2001:db8::/32\nGET', parts).at(-1), `${only}; list the networks of 64 bits, e.g. "2001:db8:0:0::/64"`)
  t.same(told('acme', 'header:k'), [])
})

t.test('patterns and ranges in the keys of tiers, which are compared as a whole', async t => {
  const told = (key: unknown, text: string) =>
    lines({ buckets: { a: { ...bucket, key, tiers: [{ name: 'x', keys: ['y', text], rate: 1 }] } } }).filter(line =>
      line.startsWith('buckets.a.tiers[0].keys[1]'),
    )
  const whole = 'buckets.a.tiers[0].keys[1]: the keys of this bucket are compared as a whole'
  const star = `${whole}, and "*" stands for nothing but itself; write the exact key, or match the pattern in a route with a bucket of its own`
  const range = `${whole}, so this range stands for no address in it; ranges are looked into only where the key is "ip" and nothing else`
  for (const text of ['*bot*', 'acme-*']) t.same(told('header:user-agent', text), [star], text)
  t.same(told(['ip', 'header:k'], '192.0.2.1\nacme-*'), [star])
  t.same(told('header:accept', '*/*'), [], 'a value that clients send')
  for (const text of ['10.0.0.0/8', '2001:db8::/32']) {
    t.same(told('header:k', text), [range], text)
    t.same(told(['ip', 'route'], text), [range], `${text} without the other part`)
    t.same(told('ip', text), [], text)
  }
  t.same(told('header:k', ` ${addressKey('2001:db8::7')}`), [], 'an address in place of a missing header')
  t.same(told(['ip', 'header:k'], `${addressKey('2001:db8::7')}\nacme`), [])
})

t.test('keys of tiers and header values that no request has', async t => {
  const told = (key: unknown, text: string) =>
    lines({ buckets: { a: { ...bucket, key, tiers: [{ name: 'x', keys: ['y', text], rate: 1 }] } } })
      .filter(line => line.startsWith('buckets.a.tiers[0].keys[1]'))
      .map(line => line.replace('buckets.a.tiers[0].keys[1]: never matches: ', ''))
  t.same(told('route', 'nowhere'), ['no route of that name uses the bucket; use "default"'])
  t.same(told('route', 'default'), [])
  t.same(told('method', 'get'), ['it is no HTTP method; use e.g. "GET", in capitals'])
  t.same(told(['ip', 'method'], '192.0.2.1\nGET'), [])
  t.same(told('host', 'API.example.com:80'), [
    'hosts in keys are in lower case, without port and dot at the end; use "api.example.com"',
  ])
  t.same(told('host', 'api.example.com'), [])
  t.same(told(['ip', 'header:k'], 'acme'), ['the key of the bucket has 2 parts, joined by "\\n"; write all of them'])
  const spaced = 'values have no space at their ends; remove it'
  t.same(told('header:k', 'acme '), [`header ${spaced}`])
  t.same(told('cookie:k', ' acme'), [`header ${spaced}`])
  t.same(told('query:k', 'acme '), ['values in keys have no space at their ends; remove it'])
  t.same(told('header:k', 'a\nb'), ['header values have no such character; write visible ASCII'])
  t.same(told('query:k', 'a\nb'), [])
  t.same(told({ from: 'header:k', missing: 'all' }, ' '), [], 'requests without the header')
  t.same(told({ from: 'header:k', missing: 'reject' }, ' '), [`header ${spaced}`])

  const header = { 'x-a': 'b ', 'x-b': '', 'x-c': '\u20ac', 'x-d': 'gold' }
  const at = 'never matches: header values have no'
  const empty = 'never matches: an empty header counts as none; write a value, or "*" in a route'
  t.same(
    lines({ buckets: { a: { ...bucket, tiers: [{ name: 'x', header, rate: 1 }] } }, routes: [{ match: { header } }] }),
    ['buckets.a.tiers[0]', 'routes[0].match'].flatMap(place => [
      `${place}.header.x-a: ${at} space at their ends; remove it`,
      `${place}.header.x-b: ${empty}`,
      `${place}.header.x-c: ${at} such character; write visible ASCII`,
    ]),
  )
})

t.test('appointments where nothing is booked', async t => {
  const warned = (values: object, route: object = {}) =>
    ofBucket({ ...shared, ...values }, { appointments: true, ...route })
  const line =
    'routes[0].appointments: has no effect, as nothing is booked in a bucket for less than four requests, with "blockFor" or with "overflow": "fill"; change a bucket of this route, or remove it'
  t.same(warned({ capacity: 3 }), [line])
  t.same(warned({ capacity: 4 }), [])
  t.same(warned({ capacity: 19 }, { cost: 5 }), [line])
  t.same(warned({ capacity: 20 }, { cost: 5 }), [])
  t.same(warned({ overflow: 'fill' }), [line])
})

t.test('coalesce where no two requests are answered together', async t => {
  const warned = (route: object, more: object = {}) =>
    lines({ buckets: { a: bucket }, routes: [{ name: 'api', coalesce: true, ...route }], ...more }).filter(line =>
      line.startsWith('routes[0].coalesce'),
    )
  const idle = 'routes[0].coalesce: has no effect'
  t.same(warned({}), [])
  t.same(warned({ match: { method: ['GET', 'POST'], header: { accept: 'text/html' } } }), [])
  t.same(warned({ mode: 'meter' }), [`${idle}, as nothing waits in mode "meter"; remove it, or use mode "shape"`])
  t.same(warned({ upstream: 'gate:' }, { trustProxy: ['loopback'] }), [
    `${idle}, as a gate forwards nothing; remove it`,
  ])
  t.same(warned({ match: { method: ['POST', 'HEAD'] } }), [`${idle}, as only GETs are answered together; remove it`])
  t.same(warned({ match: { header: { Cookie: '*' } } }), [
    `${idle}, as requests with the header "cookie" are never answered together; remove it`,
  ])
})

t.test('patience where nothing waits', async t => {
  for (const mode of ['meter', 'off']) {
    const line = `routes[0].patience: has no effect, as nothing waits in mode "${mode}"; remove it, or use mode "shape"`
    const told = (patience: string) =>
      ofBucket({}, { mode, patience }).filter(each => each.startsWith('routes[0].patience'))
    t.same(told('2s'), [line])
    t.same(told('none'), [line])
    t.same(told('auto'), [], 'the default')
  }
  t.same(ofBucket({}, { patience: '2s' }), [])
})

t.test('patterns in the headers of tiers, which are compared literally', async t => {
  const told = (header: Record<string, string>) =>
    lines({
      buckets: { a: { ...bucket, tiers: [{ name: 'bots', header, rate: 1 }] } },
      routes: [{ name: 'x', match: { header } }, { name: 'y' }],
    })
  const line = (path: string) =>
    `${path}: this value is compared as a whole, and "*" stands for nothing but itself; write the exact value`
  t.same(told({ 'user-agent': '*bot*' }), [line('buckets.a.tiers[0].header.user-agent')])
  t.same(told({ 'x-plan': 'gold' }), [])
  t.same(told({ accept: '*/*' }), [], 'a value that clients send')
  const any = told({ 'x-api-key': '*' })
  t.match(any[0], /header\.x-api-key: this value is compared as a whole, .*; write the exact value/)
})

t.test('addresses of routes that clients can choose', async t => {
  const told = (trustProxy: unknown) =>
    lines({
      trustProxy,
      buckets: { a: bucket },
      routes: [{ name: 'office', match: { ip: '10.0.0.0/8' } }, { name: 'y' }],
    })
  t.match(told(true), [
    /^trustProxy: with true clients can choose their own address for "match" of route "office", with/,
  ])
  t.same(told(['loopback']), [])
})

t.test('two tiers with the same range', async t => {
  const told = (...keys: string[]) =>
    lines({
      listen: '0.0.0.0:8080',
      buckets: {
        a: { ...bucket, key: 'ip', tiers: keys.map((key, at) => ({ name: `t${at}`, keys: [key], weight: 2 })) },
      },
    })
  t.same(told('2001:db8::/32', '10.0.0.0/8', '2001:0DB8::/32'), [
    'buckets.a.tiers[2].keys[0]: never matches: it is the same range as tiers[0].keys[0]; remove one',
  ])
  t.same(told('10.0.0.0/8', '10.0.0.0/9'), [], 'the longer one counts')
})

t.test('expressions that no path matches', async t => {
  const told = (path: string, normalise: string[] = []) =>
    lines({ buckets: { a: bucket }, routes: [{ name: 'x', match: { path: `~ ${path}`, normalise } }] }).map(line =>
      line.replace('routes[0].match.path: never matches: ', ''),
    )
  t.same(told('^api/'), ['every path starts with "/", and the expression with "api/"; write "^/"'])
  const query = 'no path has "?"; leave it out: the path ends before a "?" or a "#"'
  t.same(told('^/a\\?b=1'), [query])
  t.same(told('[0-9]+\\?b'), [query])
  t.same(told('/a b'), [query.replace('"?"', '" "')])
  t.same(told('^/a//b'), ['"//" is "/" in the paths that are compared; write "/"'])
  t.same(told('^/a/\\./b'), ['"/./" and "/../" are resolved in the paths that are compared; leave them out'])
  t.same(told('/%2f'), ['"%2f" is "%2F" in the paths that are compared; write that'])
  t.same(told('/%41'), ['"%41" is "A" in the paths that are compared; write that'])
  t.same(told('/a^/b'), ['there is text before "^", which is the start of the path; move the "^" to the front'])
  t.same(told('^/a$/b'), ['there is text behind "$", which is the end of the path; move the "$" to the end'])
  t.same(told('^$'), ['no path is empty; write "^/$"'])
  t.same(told('/a;b', ['params']), ['no path has a ";", as "params" leaves out all of them; leave it out'])
  const possible = [
    '^/api(\\?|$)',
    '\\??x',
    '^a*/x',
    '^(a|/b)',
    'a|^b',
    '^[a-z/]b',
    '/a ?b',
    '//?a',
    '^/a/./b',
    '/%2F',
    ';',
    '^/a$',
    '^/a$|^/b',
    'x?^/a$b?',
    '^/$',
  ]
  for (const path of [...possible, '(?i)^api', '^\\w', '(?:a\\?)?b', '^.+#{0,1}', '[?]*x']) t.same(told(path), [], path)
  t.same(told('/%2f', ['case']), [])
})

t.test('buckets that may apply to no request of a route', async t => {
  const skip = { from: 'header:x-key', missing: 'skip' }
  const path = 'routes[0].buckets: a request without the key of '
  const rest =
    ' passes without any limit, as it says "missing": "skip"; add a bucket that every request has, e.g. with the key "ip"'
  t.same(ofBucket({ key: skip }), [`${path}"a"${rest}`])
  t.same(
    ofBucket({ key: skip }, { mode: 'off' }).filter(line => line.includes('skip')),
    [],
  )
  t.same(ofBucket({ key: { from: 'method', missing: 'skip' } }), [], 'it is never missing')
  t.same(lines({ buckets: { a: { ...bucket, key: skip }, b: shared } }), [])
  t.same(lines({ buckets: { a: { ...bucket, key: skip }, b: { ...bucket, key: skip } } }), [`${path}"a", "b"${rest}`])
})

t.test('buckets that no route uses', async t => {
  const line = 'buckets.b: no route uses it; name it in "buckets" of one, or remove it'
  t.same(lines({ buckets: { a: bucket, b: { ...bucket, capacity: 1 } }, routes: [{ buckets: ['a'] }] }), [line])
  const routes = [{ ...own, mode: 'off', buckets: ['b'] }, { buckets: ['a'] }]
  t.same(lines({ buckets: { a: bucket, b: bucket }, routes }), [line])
})

t.test('a block that hits everyone', async t => {
  const line = (until: string) =>
    `buckets.a.blockFor: one client that overflows this bucket blocks all others, too, ${until}; block on a bucket whose key tells clients apart, e.g. "ip"`
  t.same(ofBucket({ key: 'all', blockFor: '30s' }), [line('for 30s')])
  t.same(ofBucket({ key: ['route', 'host'], blockFor: 'drain' }), [line('until it has drained')])
  t.same(ofBucket({ key: ['route', 'cookie:sid'], blockFor: 'drain' }), [])
})

t.test('tiers of a bucket with the key "all"', async t => {
  const tiers = [{ name: 'gold', header: { 'x-plan': 'gold' }, rate: '50/s' }]
  t.same(ofBucket({ key: 'all', tiers }), [
    'buckets.a.tiers: with the key "all" all clients share one bucket, so tiers cannot set any apart; move the tiers to a bucket whose key tells clients apart, e.g. "ip"',
  ])
  t.same(ofBucket({ key: 'route', tiers }), [])
})

t.test('a rate that a wider bucket undercuts', async t => {
  const stack = (narrow: object, wide: object, routes: object[] = [{ name: 'api' }]) =>
    lines({ buckets: { a: { ...bucket, ...narrow }, b: { ...shared, ...wide } }, routes })
  const line = (path: string, rate: string, pass: string) =>
    `buckets.a.${path}rate: ${rate} can never be reached: bucket "b", which comes with it on route "api", lets ${pass} pass for all its keys together; raise that one or lower this`
  t.same(stack({}, { rate: '1/s', capacity: 20 }), [line('', '5/s', '1/s')])
  t.same(stack({}, { rate: '5/s', capacity: 20 }), [])
  t.same(stack({}, { rate: '1/s', capacity: 20 }, [{ ...own, name: 'api' }, {}]), [line('', '5/s', '1/s')], 'once')
  const gold = [{ name: 'gold', keys: ['x'], rate: '50/s' }]
  t.same(stack({ tiers: gold }, { rate: '20/s' }), [line('tiers[0].', '50/s', '20/s')])
  t.same(stack({ key: ['header:k', 'route'] }, { key: 'header:k', rate: '1/s', capacity: 20 }), [
    line('', '5/s', '1/s'),
  ])
  t.same(stack({ key: ['header:k', 'route'] }, { key: 'ip', rate: '1/s', capacity: 20 }), [
    'trustProxy: a hint: only this machine reaches 127.0.0.1, so all clients have the same address and share bucket "b"; behind a proxy on this machine use ["loopback"], for clients on others "listen": "0.0.0.0:8080"',
  ])
  const apart = [
    { name: 'x', buckets: ['a'] },
    { match: { path: '/' }, buckets: ['b'] },
  ].reverse()
  t.same(stack({}, { rate: '1/s', capacity: 20 }, apart), [])
})

t.test('a bucket that only bounds what is in flight has no rate and no capacity to warn of', async t => {
  const conns = { key: 'header:k', maxInFlight: 5 }
  t.same(lines({ buckets: { a: bucket, conns, b: shared } }), [], 'the other bucket of the client bounds what it fills')
  t.same(lines({ buckets: { conns, b: shared } }), [
    'buckets.b.overflow: one client can fill this bucket (200) on route "default", as its own bucket "conns" has no capacity, and then everyone else is rejected; set "overflow": "fair", or make this capacity larger or that one smaller',
  ])
  const finer = { ...bucket, key: ['header:k', 'header:p'] }
  t.equal(lines({ buckets: { conns, finer, b: shared } }).length, 1, 'a client has many of the finer ones')
})

t.test('a shared bucket that one client can fill', async t => {
  const stack = (narrow: object, wide: object, mode = 'shape') =>
    lines({ buckets: { a: { ...bucket, ...narrow }, b: { ...shared, ...wide } }, routes: [{ name: 'api', mode }] })
  const line = (held: number, remedy: string) =>
    `buckets.b.${remedy ? 'overflow' : 'capacity'}: one client can fill this bucket (${held}) on route "api", as its own bucket "a" holds 10, and then everyone else is rejected; ${remedy}make this capacity larger or that one smaller`
  t.same(stack({}, { capacity: 5 }), [line(5, 'set "overflow": "fair", or ')])
  t.same(stack({}, { capacity: 10, overflow: 'fill' }), [line(10, 'set "overflow": "fair", or ')])
  t.same(stack({}, { capacity: 5, overflow: 'fair' }), [])
  t.same(stack({}, { capacity: 11 }), [])
  t.same(stack({}, { capacity: 5, overflow: 'fair' }, 'meter'), [line(5, '')], 'in meter it is "reject"')
  t.same(stack({ tiers: [{ name: 'x', keys: ['x'], capacity: 300 }] }, {}).length, 2, 'with its longest wait')
  t.same(stack({ key: 'route' }, { capacity: 5 }), [], 'not one client')
  t.same(stack({ key: ['header:k', 'route'] }, { key: 'header:k', capacity: 5 }), [], 'its own')
})

t.test('routes that are never reached', async t => {
  const reached = (first: object, second: object) => {
    const found = lines({ buckets: { a: bucket }, routes: [{ name: 'x', match: first }, { match: second }] })
    if (found.length > 0) {
      t.same(found, [
        'routes[1]: can never be reached: routes[0] ("x") comes first and matches all requests that this one matches; move this before it, or remove it',
      ])
    }
    return found.length === 0
  }
  for (const [first, second] of [
    [{}, {}],
    [{ path: '/*' }, {}],
    [{ path: '*' }, { path: '/a' }],
    [{ path: '/a' }, { path: '/a', method: 'GET' }],
    [{ path: '/a/*' }, { path: '/a/b' }],
    [{ path: '/a*' }, { path: '/a/b/*' }],
    [{ method: ['GET', 'POST'] }, { method: 'post' }],
    [{ host: 'h' }, { host: 'H:8080', path: '/x' }],
    [{ header: { 'X-A': '1' } }, { header: { 'x-a': '1', 'x-b': '2' } }],
    [{ header: { 'X-A': '*' } }, { header: { 'x-a': 'b*' } }],
    [{ host: '*.b' }, { host: 'a.*.b:80' }],
    [{ path: '/a/*/c' }, { path: '/a/b*/x/c' }],
    [{ path: '/a/../b*' }, { path: '/%62c' }],
    [{ path: '/api/*' }, { path: '~ ^/api/v[0-9]+/' }],
    [{ path: '*/admin/*' }, { path: '~ /admin/users$' }],
    [{ path: '~ ^/v[0-9]/' }, { path: '/v1/a' }],
    [{ path: '~ ^/v[0-9]/' }, { path: '~ ^/v[0-9]/', method: 'GET' }],
    [{ path: '/A*', normalise: ['case'] }, { path: '/aB*' }],
    [{ path: '/a', normalise: ['slash'] }, { path: '/a/' }],
    [{ path: '/a/*', normalise: ['slash'] }, { path: '/a' }],
    [
      { path: '/a', normalise: ['params'] },
      { path: '/a', normalise: ['params'] },
    ],
    [{ ip: ['10.0.0.0/8', '2001:db8::/32'] }, { ip: ['10.1.0.0/16', '2001:db8::1', '::ffff:10.0.0.1'] }],
  ] as const) {
    t.notOk(reached(first, second), JSON.stringify([first, second]))
  }
  for (const [first, second] of [
    [{ path: '/a' }, { path: '/b' }],
    [{ path: '/a' }, { path: '/a*' }],
    [{ path: '/a/*' }, { path: '/a' }],
    [{ path: '/a/*' }, { path: '/a*' }],
    [{ path: '/a*' }, { path: '/a/../b' }],
    [{ path: '/a*' }, {}],
    [{ method: 'GET' }, {}],
    [{ method: 'GET' }, { method: ['GET', 'PUT'] }],
    [{ host: 'h' }, {}],
    [{ host: 'h:1' }, { host: 'h' }],
    [{ header: { 'x-a': '1' } }, { header: { 'x-a': '2' } }],
    [{ header: { 'x-a': '1', 'x-b': '2' } }, { header: { 'x-a': '1' } }],
    [{ header: { 'x-a': 'b*' } }, { header: { 'x-a': '*' } }],
    [{ header: { 'x-a': '*' } }, {}],
    [{ host: '*.b' }, { host: '*' }],
    [{ path: '/a/*/c' }, { path: '/a/c' }],
    [{ path: '/api/*' }, { path: '~ /api/v[0-9]+/' }],
    [{ path: '/api/*' }, { path: '~ ^/(api/)?v[0-9]+/' }],
    [{ path: '~ ^/V[0-9]/' }, { path: '/v1/a' }],
    [{ path: '~ ^/v[0-9]/' }, { path: '~ ^/v[0-9]', method: 'GET' }],
    [{ path: '/A*' }, { path: '/aB*' }],
    [{ path: '/a' }, { path: '/a', normalise: ['case'] }],
    [{ path: '/a' }, { path: '/a', normalise: ['slash'] }],
    [{ path: '/a/*', normalise: ['params'] }, { path: '/a/*' }],
    [
      { path: '~ (?-i)^/API', normalise: ['case'] },
      { path: '/API', normalise: ['case'] },
    ],
    [{ ip: '10.0.0.0/8' }, { ip: ['10.0.0.1', '11.0.0.1'] }],
    [{ ip: '10.0.0.0/8' }, {}],
    [{ ip: '10.0.0.0/9' }, { ip: '10.0.0.0/8' }],
  ] as const) {
    t.ok(reached(first, second), JSON.stringify([first, second]))
  }
})

t.test('a maxWait without effect', async t => {
  const longer = (wait: string) =>
    `routes[0].maxWait: has no effect, as nothing waits longer than ${wait} anyway; lower it below that, or remove it`
  t.same(ofBucket({}, { maxWait: '10s' }), [longer('1.8 s')])
  t.same(ofBucket({}, { maxWait: '1800ms' }), [])
  t.same(ofBucket({}, { maxWait: '1900ms', cost: { header: 'x', max: 5 } }), [longer('1.8 s')])
  t.same(ofBucket({}, { maxWait: '1900ms', cost: { header: 'x', min: 0.1, max: 5 } }), [], 'a header may say 0.1')
  t.same(ofBucket({}, { maxWait: '3s', cost: { header: 'x', min: 0.5, max: 5 } }), [longer('1.9 s')])
  t.same(
    ofBucket({}, { maxWait: '10s', upstream: { url: 'echo:', maxInFlight: 5 } }),
    [],
    'a full upstream keeps requests longer',
  )
  t.same(ofBucket({}, { maxWait: '10s', upstream: { url: 'echo:', connections: 5 } }), [])
  t.same(ofBucket({ maxInFlight: 1 }, { maxWait: '10s' }), [], 'and so do those in flight')
  t.same(ofBucket({ tiers: [{ name: 'x', keys: ['y'], maxInFlight: 1 }] }, { maxWait: '10s' }), [])
  t.same(
    lines({ buckets: { a: bucket }, routes: [{ ...own, maxWait: '10s' }, {}] }),
    [],
    'so do others who share the bucket',
  )
  const nothing = (mode: string) =>
    `routes[0].maxWait: has no effect, as nothing waits in mode "${mode}"; remove it, or use mode "shape"`
  t.same(ofBucket({}, { maxWait: '1s', mode: 'meter' }), [nothing('meter')])
  t.same(lines({ routes: [{ mode: 'off', maxWait: '1s' }] }), [nothing('off')])
})

t.test('a certificate towards an upstream without TLS', async t => {
  const of = (url: string) => lines({ upstream: { url, tls: { servername: 'a' } }, buckets: { a: bucket } })
  t.same(of('http://127.0.0.1:9'), [
    'upstream.tls: has no effect, as the upstream is without TLS; use https, or remove it',
  ])
  t.same(of('https://127.0.0.1:9'), [])
})

t.test('a maxInFlight above what connections allow', async t => {
  const of = (upstream: object) => lines({ upstream: { url: 'echo:', ...upstream }, buckets: { a: bucket } })
  t.same(of({ maxInFlight: 6, connections: 5 }), [
    'upstream.maxInFlight: has no effect, as each request needs a connection and there are only 5 (connections); lower it below that, or remove it',
  ])
  t.same(of({ maxInFlight: 5, connections: 5 }), [])
  t.same(of({ connections: 5 }), [])
  const routes = [{ match: { path: '/a' } }, { upstream: { url: 'http://b', maxInFlight: 9, connections: 1 } }]
  t.match(lines({ buckets: { a: bucket }, routes }), [/^routes\[1\]\.upstream\.maxInFlight: has no effect/])
})

t.test('a header that may cost more than there is room for', async t => {
  const line = (title: string, capacity: number) =>
    `routes[0].cost.max: a request that says more than ${capacity} never fits ${title} and is always rejected; lower this to ${capacity}, or raise the capacity`
  const cost = { header: 'x-cost', max: 100 }
  t.same(ofBucket({}, { cost }), [line('bucket "a"', 10)])
  t.same(ofBucket({ capacity: 100 }, { cost }), [])
  t.same(ofBucket({ capacity: 100, tiers: [{ name: 'free', keys: ['x'], capacity: 5 }] }, { cost }), [
    line('tier "free" of bucket "a"', 5),
  ])
  t.same(lines({ routes: [{ mode: 'off', cost }] }), [])
})

t.test('costs of buckets that nothing is counted or read for', async t => {
  const cost = { buckets: { a: { estimate: 'n', max: 'max_tokens', after: 'usage.total_tokens' } } }
  t.same(ofBucket({}, { cost }), [])
  t.same(lines({ routes: [{ mode: 'off', cost }] }), [
    'routes[0].cost.buckets: has no effect, as mode "off" counts nothing; remove it, or use mode "shape" or "meter"',
  ])
  const unread = 'has no effect, as no body is read with "requestBuffer": 0; raise that, or remove this'
  t.same(ofBucket({}, { cost, upstream: { url: 'echo:', requestBuffer: 0 } }), [
    `routes[0].cost.buckets.a.estimate: ${unread}`,
    `routes[0].cost.buckets.a.max: ${unread}`,
  ])
})

t.test('nothing is enforced', async t => {
  const all = 'dryRun: nothing is held or rejected; remove "dryRun", or the flag --dry-run, to enforce the limits'
  t.same(lines({ buckets: { a: bucket }, dryRun: true }), [all])
  t.same(lines({ buckets: { a: bucket }, routes: [{ ...own, mode: 'off' }, { dryRun: true }] }), [
    'routes: nothing is held or rejected: every route with limits is a dry run; remove "dryRun" to enforce the limits',
  ])
  t.same(lines({ buckets: { a: bucket }, routes: [{ ...own, dryRun: true }, {}] }), [])
  t.same(lines({ dryRun: true, routes: [{ mode: 'off' }] }), [])
})

t.test('addresses that do not tell clients apart', async t => {
  const byIp = (file: object, key: unknown = 'ip') => lines({ buckets: { a: { ...bucket, key } }, ...file })
  const hint = (host: string, port: number) =>
    `trustProxy: a hint: only this machine reaches ${host}, so all clients have the same address and share bucket "a"; behind a proxy on this machine use ["loopback"], for clients on others "listen": "0.0.0.0:${port}"`
  t.same(byIp({}), [hint('127.0.0.1', 8080)])
  t.same(byIp({ listen: '[::1]:80' }, ['ip', 'route']), [hint('::1', 80)])
  t.same(byIp({ listen: '0.0.0.0:80' }), [])
  const unix = 'unix:/run/shaper.sock'
  t.same(byIp({ listen: [unix, ':80'] }), [
    `trustProxy: a hint: only this machine reaches ${unix} and 127.0.0.1, so all clients of each have the same address and share bucket "a"; behind a proxy on this machine use ["loopback"], for clients on others "0.0.0.0:80" in place of "127.0.0.1:80"`,
  ])
  const unheard = (names: string) =>
    `trustProxy: a hint: clients of ${unix} have no address, so all of them share bucket "a" as one client; behind a proxy on this machine use [${names}]`
  t.same(byIp({ listen: unix, trustProxy: ['10.0.0.0/8'] }), [hint(unix, 8080)], 'only loopback trusts its clients')
  t.same(byIp({ listen: [unix, '127.0.0.1:80'], trustProxy: ['10.0.0.0/8'] }), [unheard('"10.0.0.0/8", "loopback"')])
  t.same(byIp({ listen: [unix, '0.0.0.0:80'], trustProxy: ['10.0.0.0/8', 'loopback'] }), [])
  t.same(byIp({ listen: unix, trustProxy: ['10.0.0.0/8', 'loopback'] }), [])
  t.same(byIp({ listen: [unix, '0.0.0.0:80'] }), [unheard('"loopback"')])
  t.same(byIp({ listen: [unix, '0.0.0.0:80'], trustProxy: 1 }), [])
  t.same(byIp({ listen: [unix, { address: ':80', proxyProtocol: ['loopback'] }] }), [unheard('"loopback"')])
  t.same(byIp({ listen: 'systemd' }), [], 'who reaches it is not known')
  t.same(byIp({ trustProxy: ['loopback'] }), [])
  t.same(byIp({ trustProxy: 1 }), [])
  t.same(byIp({}, 'header:k'), [])
  t.same(byIp({ trustProxy: true }), [
    'trustProxy: with true clients can choose their own address for bucket "a", with a header X-Forwarded-For; list your proxies instead, e.g. ["loopback", "10.0.0.0/8"], or give their number',
  ])
  t.same(byIp({ trustProxy: true }, 'header:k'), [])
  t.same(byIp({ trustProxy: true, routes: [{ mode: 'off', buckets: ['a'] }] }), [
    'buckets.a: no route uses it; name it in "buckets" of one, or remove it',
  ])
})

t.test('every warning has a remedy, and none looks like JSON', async t => {
  for (const file of [
    {
      buckets: {
        a: { key: 'ip', rate: '1/s', capacity: 100, blockFor: '1s' },
        b: { ...shared, capacity: 1, rate: '1/m' },
      },
    },
    { buckets: { a: bucket }, routes: [{ maxWait: '1h', cost: { header: 'x', max: 99 }, dryRun: true }, {}] },
  ]) {
    const found = lines(file)
    t.ok(found.length > 1)
    for (const line of found) t.match(line, /^[^{}]*; [^{}]*$/)
  }
})

t.test('a priority that changes nothing', async t => {
  const buckets = { a: shared, b: { ...shared, rate: '90/s' } }
  const of = (first: object, second: object, more: object = {}) =>
    lines({
      buckets,
      ...more,
      routes: [
        { name: 'x', match: { path: '/x' }, ...first },
        { name: 'y', ...second },
      ],
    })
  const alone =
    'routes[0].priority: has no effect, as all requests that wait for the same buckets have this priority; give another route or a tier another one, or remove it'
  t.same(of({ priority: 0 }, { priority: 3 }), [])
  t.same(of({ priority: 0, buckets: ['a'] }, { buckets: ['b'] }), [alone])
  t.same(of({ priority: 0, buckets: ['a'] }, { buckets: ['b', 'a'] }), [])
  t.same(of({ priority: 0, buckets: ['a'] }, { buckets: ['b'] }, { upstream: { url: 'echo:', maxInFlight: 2 } }), [])
  t.same(of({ priority: 0 }, { mode: 'meter' }), [alone], 'nothing else waits')
  t.same(of({ priority: 7, mode: 'meter' }, {}), [
    'routes[0].priority: has no effect, as nothing waits in mode "meter"; remove it, or use mode "shape"',
  ])
  const tiers = [{ name: 'gold', keys: ['g'], priority: 1 }]
  t.same(lines({ buckets: { a: { ...bucket, tiers }, b: shared }, routes: [{ name: 'x', priority: 4 }] }), [])
  const header = { priority: { header: true } }
  t.same(of(header, {}, { trustProxy: ['10.0.0.0/8'] }), [])
  t.same(of(header, {}), [
    'routes[0].priority: has no effect, as only trusted hops are believed; set "trustProxy", or write a number',
  ])
})

t.test('a certificate outside of its time', async t => {
  const cert = fileURLToPath(new URL('../fixtures/expired-cert.pem', import.meta.url))
  const told = (instant: string, file = cert): string[] =>
    certificateWarnings([{ host: '127.0.0.1', port: 0, tls: { cert: file, key: '' } }], Date.parse(instant)).map(
      ({ path, message }) => `${path}: ${message}`,
    )
  const line = (fault: string): string => `listen.tls.cert: "${cert}" ${fault}, so clients refuse it; renew it`
  t.same(told('2019-12-31T23:59:59Z'), [line('is not valid before 2020-01-01T00:00:00Z')])
  for (const instant of ['2020-01-01T00:00:00Z', '2020-02-01T00:00:00Z']) t.same(told(instant), [], instant)
  t.same(told('2020-02-01T00:00:01Z'), [line('expired at 2020-02-01T00:00:00Z')])
  t.same(told('2026-01-01T00:00:00Z', '/nowhere'), [], 'reported elsewhere')
  t.same(certificateWarnings([{ host: '127.0.0.1', port: 0 }], 0), [])
})
