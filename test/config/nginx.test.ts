/** What `shaper import` makes of configurations of nginx. test/cli/import.test.ts compares it with nginx itself. */

import fc from 'fast-check'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { configText } from '../../src/config/nginx/config-text.js'
import { NginxSyntaxError } from '../../src/config/nginx/directives.js'
import { importNginx } from '../../src/config/nginx/import-nginx.js'
import { wildcardsOf } from '../../src/config/nginx/variables.js'
import { readConfigObject } from '../../src/config/read/json.js'
import { createRule } from '../../src/proxy/routing/route.js'
import { cpuTime } from '../cpu-time.js'
import { runs } from '../runs.js'

/** The configuration of some files, the first being nginx.conf, as an object, and the notes as lines. */
function imported(nginx: string | Record<string, string>, upstream?: string) {
  const contents = typeof nginx === 'string' ? { 'nginx.conf': nginx } : nginx
  const files = {
    read(file: string): string {
      const text = contents[file]
      if (text === undefined) throw Object.assign(new Error(), { code: 'ENOENT' })
      return text
    },
    list: (folder: string): string[] =>
      Object.keys(contents).flatMap(name => (name.startsWith(`${folder}/`) ? [name.slice(folder.length + 1)] : [])),
  }
  const { config, notes } = importNginx('nginx.conf', { files, upstream })
  const text = configText('nginx.conf', config)
  return {
    text,
    config: readConfigObject(text) as { listen: unknown; buckets: Record<string, object>; routes: object[] },
    settings: parseConfig(text, { env: {} }),
    notes: notes.map(({ place, message }) => `${place.file}:${place.line}: ${message}`),
  }
}

const ZONE = 'limit_req_zone $binary_remote_addr zone=api:10m rate=5r/s;'
const PASS = 'proxy_pass http://127.0.0.1:9000; proxy_set_header Host $host;'
const inLocation = (limits: string, http = ZONE): string =>
  `http { ${http} server { listen 8080; location / { ${limits} ${PASS} } } }`

t.test('burst, delay and nodelay', async t => {
  const told = (limits: string) => {
    const { config, notes } = imported(inLocation(limits))
    t.same(notes, [])
    const { status, key, ...bucket } = config.buckets.api as Record<string, unknown>
    t.same([status, key], [503, 'ip'])
    return [bucket, (config.routes[0] as { mode: string }).mode]
  }
  const rate = '5/s'
  t.same(told('limit_req zone=api burst=9;'), [{ rate, capacity: 10 }, 'shape'])
  t.same(told('limit_req zone=api burst=9 nodelay;'), [{ rate, capacity: 10 }, 'meter'])
  t.same(told('limit_req zone=api burst=9 delay=4;'), [{ rate, capacity: 10, burst: 5 }, 'shape'])
  t.same(told('limit_req zone=api burst=9 delay=9;'), [{ rate, capacity: 10 }, 'meter'], 'nothing is delayed')
  t.same(told('limit_req zone=api;'), [{ rate, capacity: 1 }, 'meter'], 'nothing may wait')
})

t.test('one without delay beside one that delays, and a key that is the same for all requests of a server', async t => {
  const http = `${ZONE} limit_req_zone $server_name zone=all:1m rate=100r/s;`
  const limits = 'limit_req zone=api burst=9 nodelay; limit_req zone=all burst=20;'
  const named = inLocation(limits, http).replace('listen 8080;', 'listen 8080; server_name a.example b.example;')
  t.same(imported(named).config.buckets, {
    api: { key: 'ip', rate: '5/s', capacity: 10, burst: 10, status: 503 },
    all: { key: 'all', rate: '100/s', capacity: 21, status: 503 },
  })
  const { buckets } = imported(inLocation(limits, http)).config
  t.same(Object.keys(buckets), ['api'], 'without a name the key is empty, and nothing is limited')
})

t.test('status and dry run are inherited, and limits are replaced as a whole', async t => {
  const { config } = imported(`http {
    ${ZONE} limit_req_zone $binary_remote_addr zone=slow:10m rate=30r/m;
    limit_req_status 429;
    limit_req zone=api burst=3;
    server {
      listen 8080;
      ${PASS.split('; ')[1]}
      location /slow/ { limit_req zone=slow; limit_req_status 420; limit_req_dry_run on; proxy_pass http://127.0.0.1:9000; }
      location / { proxy_pass http://127.0.0.1:9000; }
    }
  }`)
  t.same(config.buckets, {
    slow: { key: 'ip', rate: '30/m', capacity: 1, status: 420 },
    api: { key: 'ip', rate: '5/s', capacity: 4 },
  })
  t.same(config.routes, [
    { match: { path: '/slow/*' }, mode: 'meter', buckets: ['slow'], dryRun: true },
    { mode: 'shape', buckets: ['api'] },
  ])
})

t.test('keys', async t => {
  const keyOf = (key: string): unknown => {
    const { config } = imported(inLocation('limit_req zone=k;', `limit_req_zone ${key} zone=k:1m rate=1r/s;`))
    return (config.buckets.k as { key?: unknown } | undefined)?.key
  }
  t.equal(keyOf('$binary_remote_addr'), 'ip')
  t.equal(keyOf('$remote_addr'), 'ip')
  t.equal(keyOf('constant'), 'all')
  t.same(keyOf('$http_x_api_key'), { from: 'header:x-api-key', missing: 'skip' })
  t.same(keyOf(`$\{cookie_sid}`), { from: 'cookie:sid', missing: 'skip' })
  t.same(keyOf('$arg_user'), { from: 'query:user', missing: 'skip' })
  t.same(keyOf('"$binary_remote_addr $host"'), ['ip', 'host'])
  t.same(keyOf('$binary_remote_addr$http_x_api_key'), ['ip', 'header:x-api-key'])
  t.equal(keyOf('$host'), 'host')
  t.same(keyOf('$host$http_x_api_key'), { from: ['host', 'header:x-api-key'], missing: 'all' })
  t.same(keyOf('"key $http_x_api_key"'), { from: 'header:x-api-key', missing: 'all' }, 'this key is never empty')
  t.same(keyOf('$arg_a$arg_b'), { from: ['query:a', 'query:b'], missing: 'skip' })
  const v6 = inLocation('limit_req zone=api;').replace('listen 8080;', 'listen 8080; listen [::]:8080;')
  t.match(imported(v6).config.buckets.api, { key: { from: 'ip', ipv6: 128 } }, 'each address, as in nginx')
})

t.test('what cannot be said is told, with its place, and the rest is imported', async t => {
  const { notes, config } = imported({
    'nginx.conf': `http {
limit_req_zone $request_uri zone=uri:1m rate=1r/s;
limit_req_zone $jwt_claim_sub zone=sub:1m rate=1r/s;
limit_req_zone $binary_remote_addr zone=api:1m rate=5r/s sync;
limit_req_zone $binary_remote_addr zone=bad:1m rate=5r/h;
server {
listen 8080; listen unix:/run/x;
listen 8443 ssl;
location / {
limit_req zone=uri; limit_req zone=sub; limit_req zone=api burst=5;
limit_req zone=none;
rewrite ^/a /b;
limit_rate 10k;
${PASS} }
location ~ ^/(?!x) { ${PASS} }
location /php { fastcgi_pass 127.0.0.1:9001; }
location /many { limit_req zone=api burst=7; proxy_pass http://many/other/; }
}
upstream many { server 127.0.0.1:1; server 127.0.0.1:2 backup; server 127.0.0.1:3; }
server { listen 8443; server_name ~^www\\d+\\.example$; }
include nothing.conf;
include conf.d/*.conf;
}`,
    'conf.d/b.conf': '\nserver { listen 8443 ssl; ssl_certificate a; listen 8080; allow 10.0.0.0/8; }',
  })
  const own = (text: string): string => (/^\d/.test(text) ? `nginx.conf:${text}` : text)
  const other = 'shaper has nothing like it. Keep nginx behind shaper for it (--upstream)'
  const elsewhere = 'shaper listens on one address, here 0.0.0.0:8443: run another one for this, or keep nginx there'
  t.same(
    notes,
    [
      `conf.d/b.conf:2: "allow" is not imported: what nginx refuses by it gets through here. Keep nginx behind shaper for it (--upstream)`,
      '3: the key "$jwt_claim_sub" of zone "sub" cannot be said in shaper ("jwt:sub" is its key, and needs "identity", which says how tokens are verified): the limit is left out',
      '4: zone "api" is shared by machines (sync): add a "store" for that, see docs/scaling.md',
      '5: "limit_req_zone" takes a key, zone=NAME:SIZE and rate=Nr/s or Nr/m; left out',
      `7: ${elsewhere}`,
      '8: there is no ssl_certificate with its key: add "tls" to "listen"',
      '10: zone "uri" cannot be said in shaper (shaper has no key for the whole path; "path:1" is its first segment, and "route" tells routes apart): the limit is left out',
      '10: zone "api" is used with other numbers at nginx.conf:17. In nginx both share one level for each key, here each has its own',
      '11: "limit_req" names zone "none", which is not defined; left out',
      `12: "rewrite" is not imported: ${other}`,
      `13: "limit_rate" is not imported: ${other}`,
      '15: "location ~ ^/(?!x)" is left out (this expression takes more than linear time (invalid or unsupported Perl syntax: `(?!`)): its requests are in the next one that fits',
      '16: "location /php" has "fastcgi_pass" and no "proxy_pass": its requests go to "http://127.0.0.1:1" and 2 more',
      '17: proxy_pass "http://many/other/" rewrites paths; shaper passes them as they are',
      '17: nginx sends "Host: many", and shaper that of each server',
      '20: server_name "~^www\\\\d+\\\\.example$" is left out: hosts have no expressions, only "*"',
      '21: "nothing.conf" cannot be read (ENOENT), so nothing in it is imported',
      `conf.d/b.conf:2: ${elsewhere}`,
    ].map(own),
  )
  t.same(config.routes, [
    { match: { path: '/many*' }, mode: 'shape', buckets: ['api'] },
    { match: { path: '/php*' }, mode: 'off' },
    { mode: 'shape', buckets: ['api-2'], upstream: 'http://127.0.0.1:9000' },
  ])
})

t.test('shaper listens where the limits are', async t => {
  const servers = (plain: string, tls: string): string =>
    `http { limit_req_zone $binary_remote_addr zone=api:1m rate=5r/s;
      server { listen 80; location / { ${plain} ${PASS} } }
      server { listen 443 ssl; ssl_certificate a; ssl_certificate_key b; location / { ${tls} ${PASS} } } }`
  const limit = 'limit_req zone=api burst=5;'
  const only = imported(servers(limit, '')).config
  t.same([only.listen, Object.keys(only.buckets ?? {})], ['0.0.0.0:80', ['api']])
  t.match(imported(servers('', limit)).config.listen, { address: '0.0.0.0:443' })
  t.match(imported(servers(limit, limit)).config.listen, { address: '0.0.0.0:443' }, 'TLS goes first')
  t.match(imported(servers('', '')).config.listen, { address: '0.0.0.0:443' })
  const everywhere = servers('', '').replace('http {', 'http { limit_req zone=api burst=5;')
  t.match(imported(everywhere).config.listen, { address: '0.0.0.0:443' })
})

t.test('with --upstream nginx stays behind, and does what shaper does not', async t => {
  const conf = inLocation('limit_req zone=api burst=9; rewrite ^/a /b; root /var/www;')
  const { notes, settings } = imported(conf.replace(PASS, ''), 'http://127.0.0.1:8081')
  t.match(notes, [/^nginx.conf:1: remove limit_req and limit_conn from the nginx behind/])
  t.equal(settings.routes[0]!.upstream.url, 'http://127.0.0.1:8081')
  t.match(imported(conf).notes, [/:1: "rewrite" is not imported/])
})

/** The buckets that a request passes, as nginx.conf says it after import; undefined: no route takes it. */
function bucketsOf(conf: string, { path = '/', method = 'GET', address = '192.0.2.1', headers = {} } = {}) {
  const rules = imported(conf).settings.routes.map(route => createRule(route))
  const rawHeaders = Object.entries({ host: 'a.example', ...headers }).flat() as string[]
  const facts = { path, target: path, method, host: rawHeaders[1]!, rawHeaders }
  const rule = rules.find(each => each.matches({ facts, address } as never))
  return rule?.buckets.map(({ settings }) => settings.name)
}

t.test('whitelists by geo and map: the longest range counts, as in nginx', async t => {
  const conf = inLocation(
    'limit_req zone=api burst=5;',
    `geo $limited { default 1; 10.0.0.0/8 0; 10.9.0.0/16 1; 10.9.9.9 0; 2001:db8::/32 0; }
     map $limited $limit_key { 0 ""; 1 $binary_remote_addr; }
     limit_req_zone $limit_key zone=api:10m rate=5r/s;`,
  )
  for (const [address, isLimited] of [
    ['192.0.2.1', true],
    ['10.1.2.3', false],
    ['10.9.2.3', true],
    ['10.9.9.9', false],
    ['2001:db8::9', false],
    ['2001:db9::9', true],
  ] as const) {
    t.same(bucketsOf(conf, { address }), isLimited ? ['api'] : [], address)
  }
})

t.test('property: geo of random ranges: the value of the longest that has the address', async () => {
  const range = fc.record({ a: fc.nat(3), b: fc.nat(3), bits: fc.constantFrom(8, 15, 16, 24), value: fc.nat(2) })
  fc.assert(
    fc.property(
      fc.uniqueArray(range, { maxLength: 8, selector: each => cidr(each) }),
      fc.nat(3),
      fc.nat(3),
      (ranges, a, b) => {
        const lines = ranges.map(each => `${cidr(each)} ${each.value};`).join(' ')
        const zones = [1, 2].map(
          value =>
            `map $v $k${value} { ${value} $remote_addr; } limit_req_zone $k${value} zone=z${value}:1m rate=1r/s;`,
        )
        const conf = inLocation(
          'limit_req zone=z1; limit_req zone=z2;',
          `geo $v { default 1; ${lines} } ${zones.join(' ')}`,
        )
        const has = ({ bits, ...each }: { a: number; b: number; bits: number }): boolean =>
          number(a, b) >>> (32 - bits) === number(each.a, each.b) >>> (32 - bits)
        const longest = ranges.filter(has).sort((x, y) => y.bits - x.bits)[0]
        const value = longest?.value ?? 1
        const passed = bucketsOf(conf, { address: `${10 + a}.${b}.0.9` })
        if (String(passed) !== (value === 0 ? '' : `z${value}`)) throw new Error(`${conf}: ${value}, not ${passed}`)
      },
    ),
    { numRuns: runs(200) },
  )
})

function number(a: number, b: number): number {
  return ((10 + a) * 2 ** 24 + b * 2 ** 16) >>> 0
}

/** With the bits that do not count cleared. */
function cidr({ a, b, bits }: { a: number; b: number; bits: number }): string {
  const network = Math.floor(number(a, b) / 2 ** (32 - bits)) * 2 ** (32 - bits)
  return `${[24, 16, 8, 0].map(shift => (network >>> shift) & 255).join('.')}/${bits}`
}

t.test('maps of methods, headers and paths', async t => {
  const http = `
    map $request_method $posts { default ""; POST $binary_remote_addr; ~^P(UT|ATCH)$ $binary_remote_addr; }
    map $http_user_agent $bots { default ""; ~(Google|bing)bot $http_user_agent; ~curl/.*x $http_user_agent; }
    map $http_x_api_key $anonymous { "" $binary_remote_addr; default ""; }
    map $uri $login { ~^/(login|signup)$ $binary_remote_addr; /token $binary_remote_addr; }
    ${['posts', 'bots', 'anonymous', 'login'].map(name => `limit_req_zone $${name} zone=${name}:1m rate=1r/s;`).join(' ')}`
  const of = (zone: string, request: object) => bucketsOf(inLocation(`limit_req zone=${zone} burst=2;`, http), request)
  t.same(of('posts', {}), [])
  for (const method of ['POST', 'PUT', 'PATCH']) t.same(of('posts', { method }), ['posts'])
  const agent = (name: string) => ({ headers: { 'user-agent': name } })
  for (const name of ['Googlebot/2', 'a bingbot', 'curl/8 x']) t.same(of('bots', agent(name)), ['bots'], name)
  for (const name of ['Firefox', 'curl/8']) t.same(of('bots', agent(name)), [], name)
  t.same(of('anonymous', {}), ['anonymous'])
  t.same(of('anonymous', { headers: { 'x-api-key': 'k' } }), [])
  for (const path of ['/login', '/signup', '/token']) t.same(of('login', { path }), ['login'], path)
  t.same(of('login', { path: '/login/x' }), [])
  t.same(
    imported(
      inLocation('limit_req zone=b;', 'map $http_x $b { ~*abc 1; ~[a-z]+ 2; } limit_req_zone $b zone=b:1m rate=1r/s;'),
    ).notes,
    [
      'nginx.conf:1: header "x" is compared with "*abc*" in this case; nginx ignores case here',
      'nginx.conf:1: "map $http_x": "~[a-z]+" cannot be matched (headers have no regular expressions, only "*"), so it is left out',
    ],
  )
})

t.test('expressions as wildcards', async t => {
  const cases: [expression: string, wildcards: string[] | undefined][] = [
    ['bot', ['*bot*']],
    ['^curl/', ['curl/*']],
    ['^gold$', ['gold']],
    ['a|^b|c$', ['*a*', 'b*', '*c']],
    ['(?:Goo|ya)gle.*bot', ['*Google*bot*', '*yagle*bot*']],
    ['a\\.b\\|c', ['*a.b|c*']],
    ['a.b', undefined],
    ['[ab]', undefined],
    ['a+', undefined],
    ['(a(b|c))', undefined],
    ['a\\d', undefined],
    ['\\*', undefined],
    ['(a|b)(c|d)(e|f)(g|h)(i|j)(k|l)', undefined],
  ]
  for (const [expression, wildcards] of cases) t.same(wildcardsOf(expression), wildcards, expression)
})

t.test('locations in others, and a server without "location /"', async t => {
  const { config, notes } = imported(`http { ${ZONE}
    limit_req_zone $server_name zone=s:1m rate=9r/s;
    server { listen 8080; server_name a.example; limit_req zone=s burst=1;
      location ^~ /a/ { ${PASS} location /a/b/ { limit_req zone=api burst=2; ${PASS} } location ~ ^/a/.*\\.css$ { limit_req zone=api burst=2; ${PASS} } }
      location ~ x { ${PASS} location ~ y { limit_req zone=api burst=2; ${PASS} } }
      location @named { ${PASS} }
    } }`)
  t.same(config.routes, [
    { match: { path: '~ ^/a/.*\\.css$' }, mode: 'shape', buckets: ['api'] },
    { match: { path: '/a/b/*' }, mode: 'shape', buckets: ['api'] },
    { match: { path: '/a/*' }, mode: 'shape', buckets: ['s'] },
    { match: { path: '~ x ~ y' }, mode: 'shape', buckets: ['api'] },
    { mode: 'shape', buckets: ['s'] },
  ])
  t.match(notes, [
    /"server" has no "proxy_pass"/,
    /:4: nginx compares decoded paths/,
    /"location @named" is left out, with "proxy_pass/,
  ])
})

t.test('servers by name; the default one takes the rest', async t => {
  const server = (names: string, zone: string, listen = 'listen 8080;') =>
    `server { ${listen} server_name ${names}; location / { limit_req zone=${zone}; ${PASS} } }`
  const conf = `http { ${['a', 'b', 'c', 'd'].map(name => `limit_req_zone $remote_addr zone=${name}:1m rate=1r/s;`).join(' ')}
    ${server('*.example', 'a')} ${server('www.example .shop.example', 'b')} ${server('_', 'c', 'listen 8080 default_server;')} ${server('mail.*', 'd')} }`
  for (const [host, zone] of [
    ['x.example', 'a'],
    ['www.example', 'b'],
    ['shop.example', 'b'],
    ['x.shop.example', 'b'],
    ['mail.other', 'd'],
    ['other', 'c'],
  ] as const) {
    t.same(bucketsOf(conf, { headers: { host } }), [zone], host)
  }
  const first = `http { ${['a', 'b'].map(name => `limit_req_zone $remote_addr zone=${name}:1m rate=1r/s;`).join(' ')}
    ${server('www.example', 'a')} ${server('*.example', 'b')} }`
  t.same(
    bucketsOf(first, { headers: { host: 'www.example:8080' } }),
    ['a'],
    'the name of the default server goes first',
  )
  t.same(bucketsOf(first, { headers: { host: 'x.example' } }), ['b'])
})

t.test('limit_conn', async t => {
  const http = `${ZONE} limit_conn_zone $binary_remote_addr zone=conn:10m; limit_conn_zone $server_name zone=all:1m;`
  const alone = imported(inLocation('limit_conn conn 10;', http))
  t.same(alone.config.buckets, {
    conn: { key: 'ip', maxInFlight: 10, status: 503 },
  })
  t.match(alone.config.routes, [{ mode: 'meter', buckets: ['conn'] }])
  t.same(alone.notes, [])
  const beside = imported(inLocation('limit_req zone=api burst=20 nodelay; limit_conn conn 10;', http))
  t.same(beside.notes, [
    'nginx.conf:1: in nginx a request that limit_conn rejects counts in the zones of limit_req, here it does not',
  ])
  t.same(beside.config.buckets, { api: { key: 'ip', rate: '5/s', capacity: 21, maxInFlight: 10, status: 503 } })
  const delaying = imported(inLocation('limit_req zone=api burst=20; limit_conn conn 10;', http))
  t.same(delaying.notes, [
    'nginx.conf:1: where requests are delayed, more than 10 at once wait here; nginx rejects them',
  ])
  const dry = imported(inLocation('limit_req zone=api nodelay; limit_conn conn 10; limit_req_dry_run on;', http))
  t.match(dry.notes, [/only one of limit_req and limit_conn is a dry run/])
})

t.test('where it listens, certificates, proxies in front', async t => {
  const { config, notes } = imported(`http { ${ZONE} ssl_certificate_key /k;
    set_real_ip_from 10.0.0.0/8; set_real_ip_from 2001:db8::1; real_ip_header X-Forwarded-For; real_ip_recursive on;
    server { listen 443 ssl; listen [::]:443 ssl; ssl_certificate /c; location / { limit_req zone=api; ${PASS} } } }`)
  t.match(config, {
    listen: { address: '[::]:443', tls: { cert: '/c', key: '/k' } },
    trustProxy: ['10.0.0.0/8', '2001:db8::1'],
  })
  t.same(notes, [])
  const redirect = imported(`http { ${ZONE}
    server { listen 80; server_name a.example; return 301 https://$host$request_uri; }
    server { listen 443 ssl; server_name a.example; ssl_certificate c; ssl_certificate_key k;
      location / { limit_req zone=api burst=3; ${PASS} } }
    server { listen 443; server_name b.example; ssl_certificate other; ssl_certificate_key k; location / { ${PASS} } } }`)
  t.match(redirect.config, { listen: { address: '0.0.0.0:443', tls: { cert: 'c', key: 'k' } } })
  t.match(redirect.config.routes, [
    { match: { host: 'b.example' }, mode: 'off' },
    { mode: 'shape', buckets: ['api'] },
  ])
  t.match(redirect.notes, [
    /:2: shaper listens on one address, here 0\.0\.0\.0:443/,
    /:3: shaper serves one certificate/,
  ])
  const other = imported(inLocation('', `${ZONE} set_real_ip_from 10.0.0.0/8; real_ip_header X-Real-IP;`))
  t.notOk('trustProxy' in other.config)
  t.match(other.notes, [/from X-Forwarded-For, not from X-Real-IP/, /no limit_req/])
  t.match(imported('http { }').notes, [
    /no "proxy_pass" names an HTTP server; "upstream" is http:\/\/127\.0\.0\.1:9000/,
    /there is no "server", so nothing here is imported/,
  ])
})

t.test('words, quotes, comments, Lua, includes', async t => {
  const { config } = imported({
    'nginx.conf': `# a comment; {
      events {}
      http {
        include zones.conf; include /etc/mime.types;
        map "$http_x" $x { "a;b" "1"; 'c{' 2; \\default 3; default ""; }
        limit_req_zone $x "zone=x:1m" rate=1r/s;
        init_by_lua_block { local t = { "}" == "{" } if x then y() end -- {}
        }
        server { listen 8080; location "/a b" { limit_req zone=api; ${PASS} } location /$x { limit_req zone=x; ${PASS} } } }`,
    'zones.conf': `${ZONE}`,
  })
  t.match(config.routes[0], { match: { path: '/a%20b*' }, buckets: ['api'] })
  t.match(Object.keys(config.buckets), ['api', 'x'])
  const fault = (text: string, files = {}): string => {
    try {
      imported({ 'nginx.conf': text, ...files })
      return ''
    } catch (error) {
      if (!(error instanceof NginxSyntaxError)) throw error
      return `${error.place.file}:${error.place.line}: ${error.message}`
    }
  }
  t.equal(fault('http {\n server { listen 1\n'), 'nginx.conf:2: "listen" has no ";" at its end')
  t.equal(fault('http {\n server {'), 'nginx.conf:2: the block of "server" has no "}" at its end')
  t.equal(fault('http { }\n}'), 'nginx.conf:2: unexpected "}"')
  t.equal(fault('\n;'), 'nginx.conf:2: unexpected ";"')
  t.equal(fault('a "b'), 'nginx.conf:1: this quote does not end')
  t.equal(fault('http {\ninclude b;}', { b: '\nx' }), 'b:2: "x" has no ";" at its end')
  t.equal(fault('include nginx.conf;'), 'nginx.conf:1: includes itself: nginx.conf')
  t.equal(fault('a_by_lua_block { {'), 'nginx.conf:1: this block has no "}" at its end')
})

/** A server with these directives, beside others. */
const served = (directives: string, http = ''): string =>
  `http { ${ZONE} ${http}\n server { listen 8080; real_ip_header X-Forwarded-For; real_ip_recursive on; ${directives} location / { limit_req zone=api; ${PASS} } } }`

t.test('trustProxy has only what all servers believe', async t => {
  const both = served('set_real_ip_from 10.0.0.0/8;').replace(/ \}$/, '\nserver { listen 8080; server_name b; } }')
  const { config, notes } = imported(both)
  t.notOk('trustProxy' in config)
  t.match(notes.join('\n'), /:2: "10.0.0.0\/8" is left out of "trustProxy", which holds for all servers/)
  const inside = imported(served('location /a { set_real_ip_from 10.0.0.0/8; proxy_pass http://127.0.0.1:9000; }'))
  t.match(inside.notes.join('\n'), /"set_real_ip_from" in a location is left out/)
  const last = imported(served('set_real_ip_from 10.0.0.0/8;').replace('real_ip_recursive on;', ''))
  t.match(last.notes, [/without "real_ip_recursive on" nginx takes the last address/])
  t.match(last.config, { trustProxy: ['10.0.0.0/8'], buckets: { api: { key: { from: 'ip', ipv6: 128 } } } })
})

t.test('servers at other addresses of a port are told, and not merged', async t => {
  const server = (listen: string, limit = '') => `\nserver { listen ${listen}; location / { ${limit} ${PASS} } }`
  const limit = 'limit_req zone=api;'
  const apart = imported(`http { ${ZONE} ${server('10.0.0.1:80', limit)} ${server('10.0.0.2:80', limit)} }`)
  t.match(apart.notes.join('\n'), /:3: shaper listens on one address, here 10.0.0.1:80/)
  const within = imported(`http { ${ZONE} ${server('80', limit)} ${server('10.0.0.2:80')} }`)
  t.match(within.notes, [/:3: .* here 0.0.0.0:80: .* It gets the requests to 10.0.0.2:80, too, with other limits/])
  t.same(Object.keys(within.config.buckets), ['api'])
  const proxied = imported(served('').replace('8080', '8080 proxy_protocol'))
  t.match(proxied.notes, [/"proxyProtocol": \[/])
})

t.test('maps of paths: case, queries; geo with delete and proxy', async t => {
  const zone = (text: string) => `${text} limit_req_zone $k zone=k:1m rate=1r/s;`
  const limited = (text: string) => inLocation('limit_req zone=k;', zone(text))
  const uri = limited('map $uri $k { /login $remote_addr; "/my files" $remote_addr; }')
  t.same(bucketsOf(uri, { path: '/LOGIN' }), ['k'])
  t.same(bucketsOf(uri, { path: '/my%20files' }), ['k'])
  const target = limited('map $request_uri $k { ~^/api/ $remote_addr; /buy $remote_addr; ~^/a\\?b=1 1; /c?d 1; }')
  t.same(bucketsOf(target, { path: '/api/x' }), ['k'])
  t.same(bucketsOf(target, { path: '/buy' }), ['k'])
  const told = imported(target).notes.join('\n')
  t.match(told, /"\/buy" is matched with any query/)
  t.match(told, /"~\^\/a\\\\\?b=1" cannot be matched \(it may depend on the query/)
  t.match(told, /"\/c\?d" cannot be matched/)
  const geo = limited(
    'geo $l { default 1; 10.0.0.0/8 0; 10.1.0.0/16 0; delete 10.0.0.0/8; proxy 127.0.0.1; } map $l $k { 1 $remote_addr; }',
  )
  t.same(bucketsOf(geo, { address: '10.9.0.1' }), ['k'])
  t.same(bucketsOf(geo, { address: '10.1.0.1' }), [])
  t.match(imported(geo).notes, [/"geo": "proxy 127.0.0.1" is not imported/])
})

t.test('Unix sockets, to listen on and as upstreams', async t => {
  const locations =
    'location /a { proxy_pass http://unix:/run/a.sock; } location /b { proxy_pass http://unix:/run/b.sock:/b; }'
  const { config, notes } = imported({
    'nginx.conf': `http {
server { listen 8080; listen unix:/run/x.sock; set_real_ip_from unix:; real_ip_header X-Forwarded-For; real_ip_recursive on;
${locations} location /c { proxy_pass http://app; } location /d { proxy_pass https://unix:/run/d.sock; } }
server { listen 8081; listen unix:/run/y.sock; set_real_ip_from unix:; real_ip_header X-Forwarded-For; real_ip_recursive on; }
upstream app { server unix:/run/app.sock; } }`,
  })
  t.same(config.listen, ['0.0.0.0:8080', 'unix:/run/x.sock'])
  t.match(config, { trustProxy: ['loopback'] })
  for (const name of ['app', 'a', 'b'])
    t.match(JSON.stringify(config), `{"url":"unix:/run/${name}.sock","hostHeader":"upstream"}`)
  const told = notes.join('\n')
  t.match(told, 'nginx sends "Host: app", and shaper "localhost"')
  t.match(told, 'has proxy_pass "https://unix:/run/d.sock", no server that shaper could call')
  t.match(told, '"unix:/run/y.sock" is left out: none of its servers listens on 0.0.0.0:8080')
  t.match(told, '"unix:" becomes "loopback" in trustProxy, which also trusts programs of this machine over TCP')
  t.notMatch(told, 'rewrites paths')
  const rewriting = imported(served('location /a { proxy_pass http://unix:/run/a.sock:/other; }')).notes.join('\n')
  t.match(rewriting, 'proxy_pass "http://unix:/run/a.sock:/other" rewrites paths')
  const only = imported({ 'nginx.conf': `http { server { listen unix:/run/x.sock; ${locations} } }` })
  t.equal(only.config.listen, 'unix:/run/x.sock')
})

/** What becomes of `upstream app { ... }`, and the notes of its lines, which begin with the first. */
function grouped(group: string, location = '') {
  const { config, notes, settings } = imported(
    `http { ${ZONE} upstream app {\n${group}\n} server { location / { limit_req zone=api; ${PASS.replace('127.0.0.1:9000', 'app')} ${location} } } }`,
  )
  const { upstream } = config as unknown as { upstream: Record<string, unknown> | string }
  const own = notes.flatMap(each => /^nginx.conf:(?!1:)\d+: (.*)/.exec(each)?.[1] ?? [])
  return { upstream, notes: own, settings: settings.routes[0]!.upstream }
}

t.test('servers of a group, their weights, places, backups, and how one is picked', async t => {
  const two = 'server 10.0.0.1:8000; server 10.0.0.2;'
  const servers = ['http://10.0.0.1:8000', 'http://10.0.0.2']
  t.same(grouped(two), { ...grouped(two), upstream: { servers, pick: 'round-robin' }, notes: [] })
  t.same(grouped(`least_conn; ${two}`).upstream, { servers })
  t.same(grouped(`hash $http_x_user consistent; ${two}`).upstream, { servers, pick: { hash: 'header:x-user' } })
  t.same(grouped(`hash $remote_addr$cookie_id; ${two}`).upstream, { servers, pick: { hash: ['ip', 'cookie:id'] } })
  t.same(grouped(`ip_hash; ${two}`).upstream, { servers, pick: { hash: 'ip' } })
  t.match(grouped(`ip_hash; ${two}`).notes, [/first three numbers/])
  t.same(grouped(`random; ${two}`).upstream, { servers, pick: 'round-robin' })
  t.same(grouped(`random two least_conn; ${two}`).upstream, { servers })
  t.match(grouped(`random two; ${two}`).notes, [/"random" takes of two at random; here it is of all the one/])
  for (const hash of ['$request_uri', '$http_x$uri', 'same', '$upstream_addr']) {
    const { upstream, notes } = grouped(`hash ${hash}; ${two}`)
    t.match(upstream, { pick: 'round-robin' }, hash)
    t.match(notes, [/^"hash \S+" cannot be said in shaper \(.*\): here each server has its turn/], hash)
  }

  const full = grouped(`zone app 64k; keepalive 16; server 10.0.0.1 weight=2 max_conns=8;
server unix:/run/app.sock backup; server 10.0.0.3 down; server 10.0.0.4 weight=5000 resolve;`)
  t.same(full.upstream, {
    servers: [
      { url: 'http://10.0.0.1', weight: 2, maxInFlight: 8 },
      { url: 'unix:/run/app.sock', backup: true },
      { url: 'http://10.0.0.4', weight: 1_000 },
    ],
    pick: 'round-robin',
  })
  t.same(full.settings.servers!.length, 3)
  t.same(full.notes, [
    '"max_conns" becomes "maxInFlight": while no server has a place requests wait here; nginx answers 502',
    '"keepalive" is not imported: shaper keeps idle connections for "keepAlive", 4s, and no more than it has needed',
    'the server "10.0.0.3" is left out: it is "down"',
    'a weight is at most 1000 here: 5000 of "http://10.0.0.4" becomes that',
    '"resolve" is not imported: shaper has nothing like it. Keep nginx behind shaper for it (--upstream)',
  ])
  t.match(grouped('server 10.0.0.1 max_conns=8; server 10.0.0.2;').notes, [
    /without "zone" each of its worker processes/,
  ])
})

t.test('groups of one server, of the same one twice, of backups alone', async t => {
  t.equal(grouped('server 10.0.0.1:80 weight=3 max_fails=2;').upstream, 'http://10.0.0.1')
  t.same(grouped('server 10.0.0.1 max_conns=4; server 10.0.0.2 down;').upstream, {
    servers: [{ url: 'http://10.0.0.1', maxInFlight: 4 }],
  })
  const twice = grouped('server 10.0.0.1 weight=2 max_conns=3; server 10.0.0.1:80 max_conns=4; server 10.0.0.2;')
  t.match(twice.upstream, { servers: [{ url: 'http://10.0.0.1', weight: 3, maxInFlight: 7 }, 'http://10.0.0.2'] })
  t.match(twice.notes[0], /"http:\/\/10.0.0.1" is there twice: here it is one, with both weights/)
  const spare = grouped('server 10.0.0.1 down; server 10.0.0.2 backup; server 10.0.0.3 backup;')
  t.match(spare.upstream, { servers: ['http://10.0.0.2', 'http://10.0.0.3'] })
  t.match(grouped('server 10.0.0.1; server unix:relative; server 10.0.0.2;').notes, [
    'the server "unix:relative" is left out: shaper could not call it',
  ])
})

t.test('max_fails and fail_timeout become a breaker; proxy_next_upstream is told', async t => {
  const two = (first: string, second: string) => grouped(`server 10.0.0.1 ${first}; server 10.0.0.2 ${second};`)
  const alike = two('max_fails=3 fail_timeout=20s', 'max_fails=3 fail_timeout=20')
  t.match(alike.upstream, { breaker: { failures: 3, probe: '20s', maxProbe: '20s' } })
  t.match(alike.notes, [/^max_fails=3 fail_timeout=20s becomes "breaker": so many failures in a row/])
  t.match(alike.settings.breaker, { failures: 3, probe: 20_000, maxProbe: 20_000 })
  t.match(two('max_fails=0', 'max_fails=0').upstream, { breaker: false })
  const other = two('max_fails=4', '')
  t.match(other.upstream, { breaker: { failures: 4, probe: '10s' } })
  t.match(other.notes, [
    /^servers have different max_fails and fail_timeout; .* all have 4 and 10s here/,
    /^max_fails=4/,
  ])
  t.notOk('breaker' in (two('', '').upstream as object))
  const location = `\n proxy_next_upstream error http_503;`
  t.match(grouped('server 10.0.0.1; server 10.0.0.2;', location).notes, [
    /^"proxy_next_upstream" is not imported: a request that cannot connect goes to another server .* "retry": /,
  ])
})

t.test('https: our certificate, whom the upstream has to be', async t => {
  const tlsOf = (directives: string, pass = 'https://a.example:8443') => {
    const { config, notes } = imported(`http { ${ZONE} upstream app { server 10.0.0.1:8443; server 10.0.0.2:8443; }
server { location / { limit_req zone=api; proxy_pass ${pass}; ${directives} } } }`)
    return [(config as unknown as { upstream: { tls?: object } }).upstream.tls, notes.join('\n')]
  }
  const own = 'proxy_ssl_certificate own.pem; proxy_ssl_certificate_key /etc/own.key;'
  const verify = 'proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.pem;'
  t.same(tlsOf(`${own} ${verify}`), [{ ca: 'ca.pem', cert: 'own.pem', key: '/etc/own.key' }, ''])
  t.same(tlsOf(`${verify} proxy_ssl_name b.example;`)[0], { ca: 'ca.pem', servername: 'b.example' })
  const [named, told] = tlsOf(verify, 'https://app')
  t.same(named, { ca: 'ca.pem', servername: 'app' }, 'the name of the group')
  t.match(told, 'nginx sends "Host: app", and shaper that of each server')
  const [unverified, warned] = tlsOf('')
  t.equal(unverified, undefined)
  t.match(warned, 'without "proxy_ssl_verify on" nginx takes any certificate of the upstream. shaper verifies it')
  t.match(tlsOf('proxy_ssl_certificate own.pem;')[1], 'are left out: one is without the other')
  const [, depends] = tlsOf(`${verify} proxy_ssl_certificate $own; proxy_ssl_certificate_key $key;`)
  t.match(depends, 'proxy_ssl_certificate "$own" depends on the request; left out')
})

t.test('the PROXY protocol of proxies that are named', async t => {
  const from = (directives: string, more = '') =>
    imported(
      `http { ${ZONE} server { listen 8080 proxy_protocol; listen unix:/run/x.sock; ${directives} location / { limit_req zone=api; ${PASS} } } ${more} }`,
    )
  const real = 'real_ip_header proxy_protocol; set_real_ip_from 10.0.0.0/8;'
  const { config, notes, settings } = from(`${real} set_real_ip_from 192.0.2.1;`)
  t.same(config.listen, [{ address: '0.0.0.0:8080', proxyProtocol: ['10.0.0.0/8', '192.0.2.1'] }, 'unix:/run/x.sock'])
  t.notOk('trustProxy' in config)
  t.same(notes, [
    'nginx.conf:1: only 10.0.0.0/8, 192.0.2.1 may begin a connection with a PROXY header here, and has to; nginx wants one of everybody',
  ])
  t.ok(settings)
  const unknown = from('')
  t.same(unknown.config.listen, ['0.0.0.0:8080', 'unix:/run/x.sock'])
  t.match(unknown.notes, [/shaper reads the PROXY protocol only of proxies that it knows/])
  const other = from(real, `server { listen 8080; server_name b; location / { ${PASS} } }`)
  t.match(other.notes.join('\n'), /only of proxies that it knows/, 'a server that believes nobody')
})

t.test('where requests go that nginx does not proxy to an HTTP server', async t => {
  const { notes } = imported(
    served(
      'location /a/ { limit_req zone=api; proxy_pass http://app; } location /b { root /x; } location = /c { limit_req zone=api; return 200 ok; }',
      'upstream app { server 127.0.0.1:1 down; }',
    ),
  )
  const there = 'its requests go to "http://127.0.0.1:9000"'
  for (const text of [
    `"location /a/" goes to "upstream app", which has no server that shaper could call: ${there}`,
    `"location /b" has "root" and no "proxy_pass": ${there}`,
    `Here it is not limited, and what answers has to be added there: ${there}`,
  ]) {
    t.ok(
      notes.some(each => each.endsWith(text)),
      text,
    )
  }
  t.equal(notes.filter(each => each.includes(there)).length, 3)
  t.same(bucketsOf(served('location = /c { limit_req zone=api; return 200 ok; }'), { path: '/c' }), [])
})

t.test('what only redirects within nginx reach is refused', async t => {
  const { config, notes } = imported(
    served(`location /protected/ { internal; ${PASS} } location /no { deny all; ${PASS} } location = /gone { return 404; }
      location /office { satisfy any; deny all; auth_basic x; ${PASS} }`),
  )
  const refused = (path: string) => ({ match: { path }, mode: 'off', refuse: true })
  t.same(config.routes.slice(0, 3), [
    refused('/gone'),
    refused('/protected/*'),
    { match: { path: '/office*' }, mode: 'off' },
  ])
  t.same(config.routes[3], refused('/no*'))
  t.match(notes, [
    /"satisfy" is not/,
    /"deny" is not/,
    /"auth_basic" is not imported: what nginx refuses/,
    /X-Accel-Redirect/,
    /"deny all"/,
  ])
  const behind = imported(served(`location /protected/ { internal; ${PASS} }`), 'http://127.0.0.1:8081')
  t.notOk(behind.text.includes('refuse'), 'nginx behind shaper refuses itself')
})

t.test('named locations are followed, or told with their zone', async t => {
  const http = 'limit_req_zone $remote_addr zone=strict:1m rate=1r/s;'
  const named =
    'location @api { limit_req zone=strict burst=5; proxy_pass http://127.0.0.1:9001; proxy_set_header Host $host; }'
  const { config, notes } = imported(
    served(`${named} location /api/ { try_files $uri @api; } location /x { ${PASS} }`, http),
  )
  t.same(config.routes[0], {
    match: { path: '/api/*' },
    mode: 'shape',
    buckets: ['strict'],
    upstream: 'http://127.0.0.1:9001',
  })
  t.notOk(notes.some(each => each.includes('is left out')))
  const own = imported(
    served(
      `${named} location /api/ { limit_req zone=api burst=9; try_files $uri @api; } location /x { ${PASS} }`,
      http,
    ),
  )
  t.match(
    own.config.routes[0],
    { buckets: ['api'], upstream: 'http://127.0.0.1:9001' },
    'one limit_req of a request counts',
  )
  const lost = imported(served(`${named} location /api/ { error_page 404 = @api; ${PASS} }`, http))
  t.ok(
    lost.notes.some(each =>
      /"location @api" is left out, with "limit_req zone=strict burst=5", "proxy_pass/.test(each),
    ),
  )
})

const inServer = (directives: string): string => `http { ${ZONE} server { listen 8080; ${directives} } }`

t.test('try_files leads to the location of a path, and its files are told', async t => {
  const php = `location ~ \\.php$ { limit_req zone=api; ${PASS} }`
  const { config, notes } = imported(inServer(`location / { try_files $uri $uri/ /index.php?$args; } ${php}`))
  t.match(config.routes, [{ buckets: ['api'] }], 'all requests have the limit')
  t.match(notes, [
    /"try_files \$uri \$uri\/ \/index.php\?\$args" answers with files, or with what "\/index.php\?\$args"/,
  ])
  const hidden = `location = /app { internal; limit_req zone=api; ${PASS} }`
  t.match(imported(inServer(`location / { try_files $uri /app; } ${hidden}`)).config.routes, [
    { match: { path: '/app' }, refuse: true },
    { buckets: ['api'] },
  ])
  const variable = imported(inServer(`location / { try_files $uri /x$uri.php; ${PASS} } ${php}`))
  t.match(variable.notes, [/Limits of the location that it leads to are left out/])
  const circle = imported(inServer(`location / { try_files $uri /x; } location /x { try_files $uri /y; }`))
  t.match(circle.notes.join(), /"location \/" has "try_files" and no "proxy_pass"/)
})

t.test('what refuses requests is told for each block that has it', async t => {
  const notes = imported(
    inServer(
      `location /a { ${PASS}\n allow 10.0.0.1;\n allow 10.0.0.2; deny all; }\n location /b { ${PASS} allow ::1; deny all; }`,
    ),
  ).notes.filter(each => each.includes('"allow"'))
  t.match(notes, [/nginx.conf:2: "allow" is not imported/, /nginx.conf:4: "allow" is not imported/])
  t.equal(notes.length, 2)
})

t.test('characters that requests may write in two ways are told', async t => {
  for (const path of ['"/a|b"', '/[a]', '~ ^/\\{x', '~ "^/\\x20b"', '~ ^/\\(a']) {
    const { notes } = imported(inServer(`location ${path} { limit_req zone=api; ${PASS} } location / { ${PASS} }`))
    t.match(notes, [/nginx compares decoded paths/], path)
  }
  t.same(imported(inServer(`location /a_b.c { limit_req zone=api; ${PASS} } location / { ${PASS} }`)).notes, [])
})

t.test('names of groups and schemes in capitals, and a second block "http"', async t => {
  const http = (directives: string, port: number) =>
    `http { ${ZONE} server { listen ${port}; location / { limit_req zone=api; ${directives} } } }`
  const group = 'http { upstream App { server 10.0.0.1:81; } }'
  t.match(imported(`${group} ${http('proxy_pass HTTP://aPP;', 80)}`).config, {
    upstream: { url: 'http://10.0.0.1:81' },
  })
  t.match(imported(`${http(PASS, 80)} ${http(PASS, 81)}`).notes, [/here 0\.0\.0\.0:80/])
})

t.test('what nginx would refuse, or has no path, is no route', async t => {
  t.throws(() => imported(inServer(`location "/a " { } location ~^ /b { ${PASS} }`)), {
    message: /"location ~\^ \/b" is no location/,
  })
  t.throws(() => imported(inServer(`location = /a /b { ${PASS} }`)), { message: /is no location/ })
  const { config, notes } = imported(inServer(`location api/ { limit_req zone=api; ${PASS} } location / { ${PASS} }`))
  t.same(config.routes, [{ mode: 'off' }])
  t.match(notes, [/"location api\/" is left out: no path begins so/, /no limit_req/])
})

t.test('a file that others include is told, and a location outside of servers', async t => {
  const alone = imported(`location /api/ { limit_req zone=api; ${PASS} }`)
  t.match(
    alone.notes.join('\n'),
    /there is no "server", so nothing here is imported: name the file that includes this one/,
  )
  t.match(alone.notes.join('\n'), /"location \/api\/" is not imported/)
  t.notMatch(alone.notes.join('\n'), /no limit_req/)
  const beside = imported(`${ZONE} server { location / { limit_req zone=api; ${PASS} } } location /x { ${PASS} }`)
  t.match(beside.notes, [/"location \/x" is not imported/])
})

t.test('headers that shaper sends otherwise are told', async t => {
  const told = (header: string) =>
    imported(inLocation(`limit_req zone=api; proxy_set_header ${header};`)).notes.map(
      each => /"(.*?)" is/.exec(each)?.[1],
    )
  t.same(told('X-Forwarded-Proto $scheme'), [])
  t.same(told('X-Forwarded-For $proxy_add_x_forwarded_for'), [])
  t.same(told('Connection ""'), [])
  t.same(told('X-Forwarded-Proto https'), ['proxy_set_header X-Forwarded-Proto https'])
  t.same(told('X-Forwarded-For $remote_addr'), ['proxy_set_header X-Forwarded-For $remote_addr'])
  t.same(told('x-forwarded-for ""'), ['proxy_set_header x-forwarded-for \\"\\"'])
})

t.test('a map of the name of the server is told: it is that of the server, not that of the request', async t => {
  const http =
    'map $server_name $k { a.example $binary_remote_addr; default ""; } limit_req_zone $k zone=api:1m rate=1r/s;'
  const { notes } = imported(inLocation('limit_req zone=api;', http))
  t.match(notes.join('\n'), /shaper does not know \$server_name\): the limit is left out/)
})

t.test('a map that takes a segment of the path is told, with the key that does', async t => {
  for (const [source, pattern, value] of [
    ['$uri', '"~^/t/(?<t>[^/]+)"', '$t'],
    ['$request_uri', '"~^/t/([^/?]+)"', '$1'],
  ]) {
    const http = `map ${source} $k { ${pattern} ${value}; default ""; } limit_req_zone $k zone=api:1m rate=1r/s;`
    const { notes } = imported(inLocation('limit_req zone=api;', http))
    t.match(notes.join('\n'), /cannot be matched \(.*\), so it is left out\. For a segment .* the key "path:N"/)
  }
})

t.test('a server of https without a port has port 80', async t => {
  const group = (server: string) =>
    imported(
      `http { ${ZONE} upstream b { server ${server}; } server { location / { limit_req zone=api; proxy_pass https://b; } } }`,
    )
  t.match(group('10.0.0.1').config, { upstream: { url: 'https://10.0.0.1:80' } })
  t.match(group('10.0.0.1:8443').config, { upstream: { url: 'https://10.0.0.1:8443' } })
  t.match(group('10.0.0.1').notes, [/nginx sends "Host: b"/])
})

t.test('odd bytes: a mark at the beginning, blanks without a break, no UTF-8', async t => {
  t.match(imported(`\ufeff${inLocation('limit_req zone=api;')}`).config.routes, [{ buckets: ['api'] }])
  const blank = imported(inServer(`location /a\u00a0b { limit_req zone=api; ${PASS} }`))
  t.match(blank.config.routes[0], { match: { path: '/a%C2%A0b*' } })
  t.throws(() => imported(inServer(`location /caf\ufffd { ${PASS} }`)), { message: /is not in UTF-8/ })
  t.doesNotThrow(() => imported(`# caf\ufffd\n${inLocation('')}`), 'in a comment')
  t.match(imported({ 'nginx.conf': `include x[z-a].conf; ${inLocation('limit_req zone=api;')}` }).notes, [
    /names no file/,
  ])
})

t.test('times of nginx, and none that takes long to read', async t => {
  const timeout = (text: string) =>
    (imported(inLocation(`limit_req zone=api; proxy_read_timeout ${text};`)).config as { upstream?: object }).upstream
  t.match(timeout('60'), { responseTimeout: '60s' })
  t.match(timeout('"1m 30s"'), { responseTimeout: '90s' })
  t.match(timeout('1m30'), { responseTimeout: '90s' })
  t.match(timeout('1w'), { responseTimeout: '604800s' })
  const ms = cpuTime(() => t.equal(timeout(`${'1'.repeat(60)}x`), 'http://127.0.0.1:9000'))
  t.ok(ms < 2_000, `${ms} ms`)
})

t.test('one note for each thing that has no words here', async t => {
  for (const [name, conf, ...wanted] of [
    ['old TLS', served('').replace('8080;', '443; ssl on; ssl_certificate a.pem; ssl_certificate_key a.key;')],
    [
      'ports',
      served('').replace('8080;', '8080; listen 8000-8010;'),
      /"8000-8010" is left out: shaper listens on one port/,
    ],
    [
      'Lua',
      served('access_by_lua_block { if x == "}" then --[[ } ]] y = [==[ } ]==] end -- }\n }'),
      /"access_by_lua_block" is not imported: what nginx refuses/,
    ],
    ['include', `${served('')} include /nowhere/*.conf;`, /include "\/nowhere\/\*.conf" names no file here/],
    ['stream', `stream { server { limit_conn s 3; } } ${served('')}`, /"stream" is not imported/],
    ['444', served('limit_req_status 444; limit_req zone=api;'), /"limit_req_status 444" closes the connection/],
    [
      'Tengine',
      served('location /t { limit_req zone=api forbid_action=@t; } location /off { limit_req off; }'),
      /"forbid_action=@t" is left out/,
      /"location \/off" has no/,
      /"location \/t" has no/,
    ],
    [
      'a second key',
      served('', 'limit_req_zone $remote_addr $uri zone=two:1m rate=1r/s;'),
      /the second key "\$uri" is left out/,
    ],
    ['unknown', served('frobnicate on;'), /"frobnicate" is not imported: shaper has nothing like it/],
    [
      'a guard',
      served('error_page 404 /x; js_access main.check;'),
      /"js_access" is not imported: what nginx refuses/,
      /"error_page" is not imported/,
    ],
    ['an if', served('if ($arg_x) { return 403; }'), /"if" is not imported: what nginx refuses/],
    [
      'headers',
      served('proxy_set_header Upgrade $http_upgrade; proxy_set_header X-Real-IP $remote_addr;'),
      /"proxy_set_header X-Real-IP"/,
    ],
    ['harmless', served('sendfile on; tcp_nopush on; keepalive_timeout 65; proxy_buffers 8 16k;')],
  ] as [string, string, ...RegExp[]][]) {
    const { notes, config } = imported(conf)
    t.match(notes, wanted, name)
    t.equal(notes.length, wanted.length, name)
    if (name === 'old TLS') t.match(config.listen, { address: '0.0.0.0:443', tls: { cert: 'a.pem' } })
  }
})

t.test('names of groups in expressions', async t => {
  const { config } = imported(served(`location ~ ^/(?<user>\\w+)/ { ${PASS} }`))
  t.match(config.routes[0], { match: { path: '~ ^/(?<user>\\w+)/' } })
})

t.test('timeouts are imported; each other directive is told once', async t => {
  const { settings, notes } = imported(
    served(
      `proxy_read_timeout 90; proxy_connect_timeout 1m 500ms; proxy_set_header X-Real-IP $remote_addr; proxy_set_header X a;
      proxy_buffering off; error_page 429 /slow; proxy_next_upstream off;\n proxy_request_buffering off; proxy_buffering on;`.replace(
        '1m 500ms',
        '"1m 500ms"',
      ),
      'upstream u { least_conn; server 127.0.0.1:9000 max_fails=2; keepalive 9; }',
    ).replace('8080', '8080 http2 quic'),
  )
  t.match(settings.routes[0]!.upstream, { responseTimeout: 90_000, connectTimeout: 60_500 })
  const names = notes.map(each => /: "(.*?)" is not imported/.exec(each)?.[1])
  const own = [
    'proxy_set_header X',
    'proxy_set_header X-Real-IP',
    'proxy_buffering',
    'error_page',
    'proxy_next_upstream',
    'proxy_request_buffering',
  ]
  t.same(names.sort(), [...own, 'keepalive', 'listen ... quic'].sort())
})

t.test('long: time grows with the size of the file', async t => {
  const geo = (count: number): string =>
    inLocation(
      'limit_req zone=k;',
      `geo $l { default 1; ${Array.from({ length: count }, (_, at) => `10.${at >> 8}.${at & 255}.0/24 ${at & 1};`).join(' ')} }
      map $l $k { 0 ""; 1 $remote_addr; } limit_req_zone $k zone=k:1m rate=1r/s;`,
    )
  const servers = (count: number): string =>
    `http { ${Array.from(
      { length: count },
      (_, at) => `limit_req_zone $remote_addr zone=z${at}:1m rate=1r/s;
      server { listen 80; server_name h${at}.example; location / { limit_req zone=z${at}; ${PASS} } }`,
    ).join(' ')} }`
  const timed = (conf: string): number =>
    cpuTime(() => importNginx('nginx.conf', { files: { read: () => conf, list: () => [] } }))
  for (const [name, make, count] of [
    ['geo', geo, 2_000],
    ['servers', servers, 400],
  ] as const) {
    timed(make(count))
    const [few, many] = [timed(make(count)), timed(make(count * 8))]
    t.comment(`${name}: ${Math.round(few)} ms, ${Math.round(many)} ms with 8 times as many`)
    // With its square it would be 64 times.
    t.ok(many < 30 * Math.max(few, 20), name)
  }
  t.equal(Object.keys(imported(`${'# x\n'.repeat(50_000)}${served('')}`).config.buckets).length, 1)
})
