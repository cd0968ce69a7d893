import { resolve } from 'node:path'
import t from 'tap'
import { effective } from '../../src/config/report/effective-config.js'
import { TLS } from '../proxy/harness.js'
import { faults, least, parse } from './sample.js'

const ADMIN = 'use e.g. "127.0.0.1:9090", "[::1]:9090" or "unix:/run/shaper.sock"'
const top = (values: object) => ({ ...least(), ...values })

t.test('addresses to listen on', async t => {
  const table: [listen: unknown, message: string][] = [
    [
      70000,
      '70000 is not an address to listen on; use e.g. "127.0.0.1:8080", "unix:/run/shaper.sock", { "address": "host:port", "tls": { "cert": "FILE", "key": "FILE" } } or a list of these',
    ],
    ['localhost', '"localhost" has no port; write "localhost:8080"'],
    ['::1', '"::1" needs brackets and a port; write "[::1]:8080"'],
    ['1.2.3.4:70000', '"1.2.3.4:70000" has no such port; ports go from 1 to 65535, and 0 is any free one'],
    ['$HOST:80', `"$HOST" is not replaced; write "\${HOST}" for a variable`],
    [
      'a..b:80',
      '"a..b:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080" or "unix:/run/shaper.sock"',
    ],
    [
      '999.1.1.1:80',
      '"999.1.1.1:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080" or "unix:/run/shaper.sock"',
    ],
    [
      'http://a:80',
      '"http://a:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080" or "unix:/run/shaper.sock"',
    ],
    [
      '[::g]:80',
      '"[::g]:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080" or "unix:/run/shaper.sock"',
    ],
  ]
  for (const [listen, message] of table) t.same(faults(top({ listen })), [`listen: ${message}`], message)
  t.same(faults(top({ listen: { host: 'a', port: 1 } })), [
    'listen.address: missing; use e.g. "127.0.0.1:8080", "[::1]:8080" or "unix:/run/shaper.sock"',
    'listen.host: unknown key; known keys: address, mode, tls, proxyProtocol',
    'listen.port: unknown key; known keys: address, mode, tls, proxyProtocol',
  ])
  t.same(faults(top({ listen: { address: ':1', tls: { cert: 'a' } } })), [
    'listen.tls.key: missing; use e.g. "/etc/shaper/tls.pem"',
  ])
  const balancers = (proxyProtocol: unknown) => top({ listen: { address: ':1', proxyProtocol } })
  const remedy = 'use the addresses of what is in front, e.g. ["10.0.0.0/8"]'
  t.same(faults(balancers([])), [`listen.proxyProtocol: the list is empty; ${remedy}`])
  t.same(faults(balancers(true)), [`listen.proxyProtocol: true is not a list of addresses; ${remedy}`])
  t.same(faults(balancers(['10.0.0.0/33'])), [
    'listen.proxyProtocol[0]: "10.0.0.0/33" has a prefix above 32; use e.g. "10.0.0.0/32"',
  ])
  t.same(faults(top({ listen: { address: 'unix:/tmp/a.sock', proxyProtocol: ['loopback'] } })), [
    'listen.proxyProtocol: peers on a Unix socket have no address; remove it, or listen on an address',
  ])
  const listen = { address: '127.0.0.1:1', proxyProtocol: ['loopback', '10.0.0.0/8'] }
  t.match(effective(parse(top({ listen }))), { listen })
})

t.test('a port alone: as a text it listens on 127.0.0.1, to a number the message says the text', async t => {
  t.same(parse(top({ listen: '8081' })).listen, [{ host: '127.0.0.1', port: 8081 }])
  const message = '8081 is a number, and an address is a text; write "127.0.0.1:8081"'
  t.same(faults(top({ listen: 8081 })), [`listen: ${message}`])
  t.same(faults(top({ listen: { address: 8081 } })), [`listen.address: ${message}`])
  t.same(faults(top({ admin: { listen: 8081 } })), [`admin.listen: ${message}`])
})

t.test('upstreams on Unix sockets', async t => {
  const route = (upstream: unknown) => parse(top({ upstream })).routes[0]!.upstream.url
  for (const good of ['unix:/run/app.sock', 'unix:/run/a b?c#d%20:e.sock', `unix:/${'x'.repeat(106)}`]) {
    t.equal(route(good), good)
  }
  t.equal(route('unix:/run/../tmp//app.sock'), 'unix:/tmp/app.sock', 'so that the same one is found to be the same')
  const table: [url: string, message: string][] = [
    ['http://unix:/run/app.sock', 'is how nginx writes it; write "unix:/run/app.sock"'],
    ['http://unix:/run/app.sock:/api', 'is how nginx writes it; write "unix:/run/app.sock"'],
    ['unix:///run/app.sock', 'needs the full path of the socket; write "unix:/run/app.sock"'],
    [
      'unix:/run/app.sock:/api',
      'has a path behind the socket, but requests keep their own; write "unix:/run/app.sock"',
    ],
    ['unix:app.sock', `needs the full path of the socket; write "unix:${resolve('app.sock')}"`],
    ['unix:@app', 'needs the full path of the socket; write "unix:/run/app.sock"'],
    ['unix:', 'names no path; use e.g. "unix:/run/app.sock"'],
    ['unix:/run/', 'is a directory; name a file in it, e.g. "unix:/run/app.sock"'],
    ['unix:/run/\u0000', 'has a control character in its path; use e.g. "unix:/run/app.sock"'],
    [`unix:/${'é'.repeat(54)}`, 'has 109 bytes in its path, and a socket may have 107; use a shorter path'],
  ]
  for (const [url, message] of table) {
    t.same(faults(top({ upstream: url })), [`upstream: ${JSON.stringify(url)} ${message}`], message)
  }
})

t.test('Unix sockets to listen on, and several listeners', async t => {
  const listen = (value: unknown) => parse(top({ listen: value })).listen
  const socket = '/run/a.sock'
  const tls = { cert: TLS.listen.tls.cert, key: TLS.listen.tls.key }
  t.strictSame(listen(`unix:${socket}`), [{ path: socket }])
  t.strictSame(listen({ address: `unix:${socket}`, mode: '0660', tls }), [{ path: socket, mode: 0o660, tls }])
  t.strictSame(listen([':1', { address: `unix:${socket}`, mode: '600' }, { address: '[::1]:2', tls }]), [
    { host: '127.0.0.1', port: 1 },
    { path: socket, mode: 0o600 },
    { host: '::1', port: 2, tls },
  ])
  const written: object[] = [
    { listen: `unix:${socket}` },
    { listen: { address: `unix:${socket}`, mode: '0660' } },
    { listen: [':0', ':0', { address: `unix:${socket}`, mode: '0007' }], admin: { listen: `unix:${socket}2` } },
  ]
  for (const each of written) {
    const settings = parse(top(each))
    t.same(parse(effective(settings)), settings, 'what is printed is read again')
  }
  t.match(effective(parse(top(written[2]!))), {
    listen: ['127.0.0.1:0', '127.0.0.1:0', { address: `unix:${socket}`, mode: '0007' }],
  })
  const mode = { address: `unix:${socket}`, mode: '0600' }
  t.strictSame(parse(top({ admin: { listen: mode } })).admin, { listen: { path: socket, mode: 0o600 } })
  t.match(effective(parse(top({ admin: { listen: mode } }))), { admin: { listen: mode } })
  const both = { listen: [`unix:${socket}`, ':1'], upstream: `unix:${socket}`, admin: { listen: `unix:${socket}` } }
  const q = (path: string) => JSON.stringify(`unix:${path}`)
  const table: [file: object, ...lines: string[]][] = [
    [
      both,
      `upstream: ${q(socket)} is where shaper itself listens ("listen": ${q(socket)}), so every request would come back; name the address of the upstream, or listen elsewhere`,
      `admin.listen: ${q(socket)} is also where the proxy listens ("listen": ${q(socket)}); choose another path for one of them`,
    ],
    [{ listen: [':1', { address: '127.0.0.1:1' }] }, 'listen[1].address: "127.0.0.1:1" is listed twice; remove one'],
    [{ listen: [`unix:${socket}`, `unix:${socket}`] }, `listen[1]: ${q(socket)} is listed twice; remove one`],
    [{ listen: [] }, 'listen: the list is empty; use e.g. "127.0.0.1:8080", "[::1]:8080" or "unix:/run/shaper.sock"'],
    [{ listen: [':1', 'x'] }, 'listen[1]: "x" has no port; write "x:8080"'],
    [{ listen: [{ address: ':1', mode: '0660' }] }, 'listen[0].mode: only a Unix socket has a mode; remove it'],
    [
      { listen: { address: `unix:${socket}`, mode: '0999' } },
      'listen.mode: "0999" is not the mode of a file; use e.g. "0660"',
    ],
    [
      { admin: { listen: { address: ':1', mode: '0660' } } },
      'admin.listen.mode: only a Unix socket has a mode; remove it',
    ],
    [{ admin: { listen: { mode: '0660' } } }, `admin.listen.address: missing; ${ADMIN}`],
    [{ admin: { listen: 5 } }, 'admin.listen: 5 is a number, and an address is a text; write "127.0.0.1:5"'],
    [
      { listen: `unix:${socket}`, admin: { listen: mode } },
      `admin.listen.address: ${q(socket)} is also where the proxy listens ("listen": ${q(socket)}); choose another path for one of them`,
    ],
    [{ listen: [{ address: ':1', tls: { cert: 'a' } }] }, 'listen[0].tls.key: missing; use e.g. "/etc/shaper/tls.pem"'],
  ]
  for (const [file, ...lines] of table) {
    t.same(faults(top(file)).sort(), lines.sort())
  }
})

t.test('sockets of systemd to listen on', async t => {
  const listen = (value: unknown) => parse(top({ listen: value })).listen
  const token = 'a-token-for-the-tests'
  t.strictSame(listen('systemd'), [{ systemd: '' }])
  t.strictSame(listen({ address: 'systemd:web 1', proxyProtocol: ['loopback'] }), [
    { systemd: 'web 1', proxyProtocol: ['loopback'] },
  ])
  const settings = parse(top({ listen: ['systemd', ':0', 'systemd:web'], admin: { listen: 'systemd:admin', token } }))
  t.match(effective(settings), {
    listen: ['systemd', '127.0.0.1:0', 'systemd:web'],
    admin: { listen: 'systemd:admin' },
  })
  const table: [file: object, ...lines: string[]][] = [
    ...['systemd:', 'systemd:a:b', 'systemd:a\n'].map((text): [object, string] => [
      { listen: text },
      `listen: ${JSON.stringify(text)} does not name a socket of systemd; write "systemd:NAME" with its FileDescriptorName=, or "systemd" for all`,
    ]),
    [{ listen: 'systemdx' }, 'listen: "systemdx" has no port; write "systemdx:8080"'],
    [
      { listen: { address: 'systemd', mode: '0660' } },
      'listen.mode: systemd makes the socket, with its SocketMode=; remove it',
    ],
    [{ listen: ['systemd:a', { address: 'systemd:a' }] }, 'listen[1].address: "systemd:a" is listed twice; remove one'],
    [
      { listen: 'systemd:a', admin: { listen: 'systemd:a', token } },
      'admin.listen: "systemd:a" is also where the proxy listens ("listen": "systemd:a"); choose another socket for one of them',
    ],
    [
      { admin: { listen: 'systemd:a' } },
      `admin.token: other machines can reach systemd:a, so a token is needed; set "admin": { "listen": "systemd:a", "token": "\${SHAPER_TOKEN}" } in the file, or listen on 127.0.0.1`,
    ],
  ]
  for (const [file, ...lines] of table) t.same(faults(top(file)), lines)
})

t.test('hosts of stores', async t => {
  const of = (store: object) => faults(top({ store }))
  const url = (at: string) => [`store.${at}: "$HOST" is not replaced; write "\${HOST}" for a variable`]
  t.same(of({ type: 'redis', url: 'redis://$HOST:6379' }), url('url'))
  t.same(of({ type: 'redis', cluster: ['redis://$HOST:6379'] }), url('cluster[0]'))
  t.same(of({ type: 'postgres', url: 'postgres://$HOST/db' }), url('url'))
  t.match(of({ type: 'postgres', url: 'postgres://a..b/db' }), [
    /^store\.url: "postgres:\/\/a\.\.b\/db" is not the URL/,
  ])
  for (const good of ['postgres:///db', 'postgres://%2Frun%2Fpostgresql/db', 'postgres://u:p$x@[::1]:5432/db']) {
    t.same(of({ type: 'postgres', url: good }), [], good)
  }
  for (const good of ['redis://localhost', 'rediss://u:p$x@redis_1.internal:6380/2', 'redis://[::1]:6379']) {
    t.same(of({ type: 'redis', url: good }), [], good)
  }
})

t.test('a token has 16 characters or more', async t => {
  const message = /^admin\.token: not a token; use at least 16 letters/
  for (const listen of ['0.0.0.0:9090', '127.0.0.1:9090']) {
    t.match(faults(top({ admin: { listen, token: 'x' } })), [message])
    t.match(faults(top({ admin: { listen, token: 'x'.repeat(15) } })), [message])
    t.same(faults(top({ admin: { listen, token: 'x'.repeat(16) } })), [])
  }
  t.match(faults(top({ egress: { token: 'x' } })), [/^egress\.token: not a token; use at least 16/])
})

t.test('URLs of upstreams', async t => {
  const table: [url: unknown, message: string][] = [
    ['http://h/api', '"http://h/api" has a path, but requests keep their own; write "http://h"'],
    ['http://h/?a=1', '"http://h/?a=1" has a query or fragment, but requests keep their own; write "http://h"'],
    ['http://me:secret@h', '"http://***@h" carries credentials; write "http://h"'],
    ['http://127.0.0.1:99999', '"http://127.0.0.1:99999" has no such port; ports go from 1 to 65535'],
    ['http://127.0.0.1:0', '"http://127.0.0.1:0" has no such port; ports go from 1 to 65535'],
    ['http://$HOST:9000', `"$HOST" is not replaced; write "\${HOST}" for a variable`],
    ['https://api-$STAGE.example.com', `"$STAGE" is not replaced; write "\${STAGE}" for a variable`],
    ['http://a..b', '"http://a..b" names no host; use e.g. "http://127.0.0.1:9000"'],
    ['http://-', '"http://-" names no host; use e.g. "http://127.0.0.1:9000"'],
    ['localhost:9000', '"localhost:9000" is not an upstream\'s URL; write "http://localhost:9000"'],
    [
      'ftp://h',
      '"ftp://h" is not an upstream\'s URL; use e.g. "http://127.0.0.1:9000", "https://api.example.com" or "echo:"',
    ],
    [
      'me:secret@h',
      '"***@h" is not an upstream\'s URL; use e.g. "http://127.0.0.1:9000", "https://api.example.com" or "echo:"',
    ],
    [9000, '9000 is not an upstream\'s URL; use e.g. "http://127.0.0.1:9000" or "echo:", or an object with "url"'],
  ]
  for (const [upstream, message] of table) t.same(faults(top({ upstream })), [`upstream: ${message}`], message)
  t.same(
    faults(
      top({
        upstream: {
          url: 'x:y@z',
          maxInFlight: 0,
          hostHeader: 'none',
          idleTimeout: '0s',
          tls: { cert: 'x' },
          pauseOn: {},
          retry: { status: [200], max: 0 },
          learn: 1,
        },
      }),
    ),
    [
      'upstream.url: "***@z" is not an upstream\'s URL; use e.g. "http://127.0.0.1:9000", "https://api.example.com" or "echo:"',
      'upstream.hostHeader: "none" is not a choice of Host header; use "preserve" or "upstream"',
      'upstream.maxInFlight: 0 is not a number of requests; use a whole number above 0, e.g. 100',
      'upstream.idleTimeout: "0s" is not above 0; use e.g. "10s"',
      'upstream.tls.key: missing, as "cert" is set; name the PEM file of the key, or remove "cert"',
      'upstream.pauseOn.status: missing; use e.g. [429, 503]',
      'upstream.retry.status[0]: 200 is not a status; use a status from 400 to 599, e.g. 503',
      'upstream.retry.max: 0 is not a number of tries; use a whole number above 0, e.g. 3',
      'upstream.learn: 1 is not true or false; write true or false, without quotes',
    ],
  )
  t.same(faults(top({ upstream: {} })), [
    'upstream.url: missing; use e.g. "http://127.0.0.1:9000" or "echo:", or "servers": a list',
  ])
})

t.test('trusted proxies', async t => {
  const table: [entry: unknown, message: string][] = [
    ['10.0.0.0/33', '"10.0.0.0/33" has a prefix above 32; use e.g. "10.0.0.0/32"'],
    ['fd00::/129', '"fd00::/129" has a prefix above 128; use e.g. "fd00::/128"'],
    ['10.0.0/8', '"10.0.0/8" is not an address or CIDR; use e.g. "10.0.0.0/8", "fd00::/8", "loopback"'],
    ['fe80::1%eth0', '"fe80::1%eth0" is not an address or CIDR; use e.g. "10.0.0.0/8", "fd00::/8", "loopback"'],
    ['lopback', '"lopback" is not a named range; did you mean "loopback"?'],
    [5, '5 is not an address; use e.g. "10.0.0.0/8", "loopback"'],
  ]
  for (const [entry, message] of table) {
    t.same(faults(top({ trustProxy: ['loopback', entry] })), [`trustProxy[1]: ${message}`], message)
  }
  t.same(faults(top({ trustProxy: 'loopback' })), [
    'trustProxy: "loopback" is not a choice of trusted proxies; use true, false, a hop count, or a list such as ["loopback"]',
  ])
  t.same(faults(top({ trustProxy: -1 })), ['trustProxy: -1 is not a hop count; use a whole number of hops, e.g. 1'])
})

t.test(
  'an admin server without a token is allowed on loopback addresses only, not on names that may resolve elsewhere',
  async t => {
    const listen = (address: string) => faults({ ...least(), admin: { listen: address } })
    for (const own of ['127.0.0.1:9090', '127.1.2.3:9090', '[::1]:9090', 'localhost:9090', ':9090'])
      t.same(listen(own), [])
    for (const other of [
      '0.0.0.0:9090',
      '10.0.0.1:9090',
      '127.evil.example:9090',
      '[::]:9090',
      '[::ffff:127.0.0.1]:9090',
    ]) {
      t.equal(listen(other).length, 1, other)
    }
    const token = (token: string) => faults({ ...least(), admin: { listen: ':9090', token } })
    t.same(token('aZ09-._~+/aZ09-._~+/=='), [])
    for (const bad of ['', ...['a b', ' a', 'a\n', 'pässwort', 'a=b'].map(each => each + 'x'.repeat(16))])
      t.match(token(bad)[0], /^admin\.token: not a token/)
  },
)

t.test('the admin server and the proxy have different addresses', async t => {
  const both = (listen: unknown, admin: string) => faults(top({ listen, admin: { listen: admin } }))
  const line = (path: string, admin: string, proxy = admin) =>
    `${path}: "${admin}" is also where the proxy listens ("listen": "${proxy}"); choose another port for one of them`
  t.same(both('127.0.0.1:81', ':81'), [line('admin.listen', '127.0.0.1:81')])
  t.same(both({ address: '[0::1]:81' }, '[::1]:81'), [line('admin.listen', '[::1]:81', '[0::1]:81')])
  t.same(both(undefined, '8080'), [line('admin.listen', '127.0.0.1:8080')], 'the default address')
  t.same(faults(least(), { flags: { listen: ':81', admin: ':81', rate: '5/x' } }), [
    '--rate: "5/x" is not a rate; use e.g. "5/s", "6/30s"',
    line('--admin', '127.0.0.1:81'),
  ])
  t.same(both(':81', ':82'), [])
  t.same(both(':81', '127.0.0.2:81'), [])
  t.same(both(':0', ':0'), [], 'any free ports')
})
