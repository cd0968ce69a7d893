import t from 'tap'
import { faults, least, parse } from './sample.js'

const top = (values: object) => ({ ...least(), ...values })

t.test('addresses to listen on', async t => {
  const table: [listen: unknown, message: string][] = [
    [
      70000,
      '70000 is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080" or { "address": "host:port", "tls": { "cert": "FILE", "key": "FILE" } }',
    ],
    ['localhost', '"localhost" has no port; write "localhost:8080"'],
    ['::1', '"::1" needs brackets and a port; write "[::1]:8080"'],
    ['1.2.3.4:70000', '"1.2.3.4:70000" has no such port; ports go from 1 to 65535, and 0 is any free one'],
    ['$HOST:80', `"$HOST" is not replaced; write "\${HOST}" for a variable`],
    ['a..b:80', '"a..b:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080"'],
    ['999.1.1.1:80', '"999.1.1.1:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080"'],
    ['http://a:80', '"http://a:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080"'],
    ['[::g]:80', '"[::g]:80" is not an address to listen on; use e.g. "127.0.0.1:8080", "[::1]:8080"'],
  ]
  for (const [listen, message] of table) t.same(faults(top({ listen })), [`listen: ${message}`], message)
  t.same(faults(top({ listen: { host: 'a', port: 1 } })), [
    'listen.address: missing; use e.g. "127.0.0.1:8080", "[::1]:8080"',
    'listen.host: unknown key; known keys: address, tls, grpc',
    'listen.port: unknown key; known keys: address, tls, grpc',
  ])
  t.same(faults(top({ listen: { address: ':1', tls: { cert: 'a' } } })), [
    'listen.tls.key: missing; use e.g. "/etc/shaper/tls.pem"',
  ])
})

t.test('a port alone: as a text it listens on 127.0.0.1, to a number the message says the text', async t => {
  t.same(parse(top({ listen: '8081' })).listen, { host: '127.0.0.1', port: 8081 })
  const message = '8081 is a number, and an address is a text; write "127.0.0.1:8081"'
  t.same(faults(top({ listen: 8081 })), [`listen: ${message}`])
  t.same(faults(top({ listen: { address: 8081 } })), [`listen.address: ${message}`])
  t.same(faults(top({ admin: { listen: 8081 } })), [`admin.listen: ${message}`])
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
      'upstream.tls.cert: unknown key; known keys: ca, servername',
      'upstream.pauseOn.status: missing; use e.g. [429, 503]',
      'upstream.retry.status[0]: 200 is not a status; use a status from 400 to 599, e.g. 503',
      'upstream.retry.max: 0 is not a number of tries; use a whole number above 0, e.g. 3',
      'upstream.learn: 1 is not true or false; write true or false, without quotes',
    ],
  )
  t.same(faults(top({ upstream: {} })), ['upstream.url: missing; use e.g. "http://127.0.0.1:9000" or "echo:"'])
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
