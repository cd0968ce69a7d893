import fc from 'fast-check'
import t from 'tap'
import { formatAuthority, readAuthority } from '../../src/http/authority.js'
import { isSpecialAddress } from '../../src/proxy/egress/egress.js'
import { often, runs } from '../runs.js'

const SPECIAL = [
  ...[
    '0.0.0.0',
    '10.1.2.3',
    '100.64.0.1',
    '127.0.0.1',
    '127.255.255.255',
    '169.254.169.254',
    '172.16.0.1',
    '172.31.255.255',
  ],
  ...[
    '192.0.0.1',
    '192.0.2.1',
    '192.88.99.1',
    '192.168.1.1',
    '198.18.0.1',
    '198.19.255.255',
    '198.51.100.1',
    '203.0.113.1',
  ],
  ...['224.0.0.1', '239.1.1.1', '240.0.0.1', '255.255.255.255'],
  ...[
    '::',
    '::1',
    '::7f00:1',
    '::ffff:127.0.0.1',
    '::ffff:7f00:1',
    '::ffff:a00:1',
    '0:0:0:0:0:ffff:c0a8:1',
    '::ffff:0:127.0.0.1',
  ],
  ...[
    '64:ff9b::7f00:1',
    '64:ff9b::10.0.0.1',
    '64:ff9b:1::808:808',
    '100::1',
    '2001::1',
    '2001:db8::1',
    '2002:7f00:1::',
    '3fff::1',
  ],
  ...['fc00::1', 'fd00::1', 'fe80::1', 'fe80::1%eth0', 'fec0::1', 'ff02::1', '4000::1', '1::1'],
  ...['', 'localhost', '1.1.1', '2130706433', '0x7f.0.0.1', '127.0.0.01'],
]
const PUBLIC = [
  ...[
    '1.1.1.1',
    '8.8.8.8',
    '9.255.255.255',
    '11.0.0.0',
    '100.63.255.255',
    '100.128.0.0',
    '126.255.255.255',
    '128.0.0.0',
  ],
  ...[
    '169.253.255.255',
    '172.15.255.255',
    '172.32.0.0',
    '192.0.1.0',
    '192.169.0.0',
    '198.17.255.255',
    '198.20.0.0',
    '223.255.255.255',
  ],
  ...['2606:4700::1111', '2a00:1450::1', '2001:200::1', '2001:4860:4860::8888', '::ffff:8.8.8.8', '64:ff9b::8.8.8.8'],
]

t.test('addresses that are not public', async t => {
  for (const address of SPECIAL) t.ok(isSpecialAddress(address), address)
  for (const address of PUBLIC) t.notOk(isSpecialAddress(address), address)
})

t.test('what holds of an IPv4 address holds of its mapped and NAT64 forms', async t => {
  fc.assert(
    fc.property(fc.ipV4(), address => {
      const is = isSpecialAddress(address)
      t.equal(isSpecialAddress(`::ffff:${address}`), is)
      t.equal(isSpecialAddress(`64:ff9b::${address}`), is)
    }),
  )
  t.end()
})

t.test('an authority has one spelling', async t => {
  const cases: [text: string, read: string | undefined][] = [
    ['API.Example.com:443', 'api.example.com:443'],
    ['api.example.com.:443', 'api.example.com:443'],
    ['api.example.com', 'api.example.com:undefined'],
    ['api.example.com:', 'api.example.com:undefined'],
    ['_srv.example:080', '_srv.example:80'],
    ['127.0.0.1:80', '127.0.0.1:80'],
    ['[::1]:80', '[::1]:80'],
    ['[0:0:0:0:0:0:0:1]:80', '[::1]:80'],
    ['[2001:DB8::0001]:80', '[2001:db8::1]:80'],
    ['[::ffff:7f00:1]:80', '127.0.0.1:80'],
    ...[
      '',
      ':80',
      '.',
      'a..b:80',
      '-a',
      'a-',
      '127.1',
      '127.0.0.1.:0',
      '0x7f.1',
      '1',
      'a.1',
      '::1',
      '[::1',
      '[::g]',
      '[1.2.3.4]',
      '[fe80::1%25a]',
    ].map(text => [text, undefined] as [string, undefined]),
    ...[
      'a:0',
      'a:65536',
      'a:-1',
      'a:+1',
      'a:1e1',
      'a: 1',
      'a b',
      'a@b',
      'a%2eb',
      'a/b',
      'a\\b',
      'a,b',
      'ä',
      'a\0b',
      `${'a.'.repeat(130)}a`,
    ].map(text => [text, undefined] as [string, undefined]),
  ]
  for (const [text, expected] of cases) {
    const read = readAuthority(text)
    t.equal(
      read && `${read.host.includes(':') ? `[${read.host}]` : read.host}:${read.port}`,
      expected,
      JSON.stringify(text),
    )
  }
})

t.test('property: what is read is read the same again, and URL parsers mean the same by it', async t => {
  const part = fc.constantFrom(
    'a',
    'B',
    '1',
    '0',
    'x',
    '.',
    '..',
    '-',
    '_',
    ':',
    '[',
    ']',
    '%',
    '@',
    '::',
    'ffff',
    '127',
    '0x7',
    ' ',
    '/',
    '443',
  )
  let read = 0
  fc.assert(
    fc.property(
      fc.array(part, { maxLength: 9 }).map(parts => parts.join('')),
      text => {
        const found = readAuthority(text)
        if (found === undefined) return true
        read += 1
        const { host, port = 80 } = found
        const again = readAuthority(formatAuthority(host, port))
        const url = new URL(`http://${formatAuthority(host, port)}`)
        const bare = url.hostname.replace(/^\[|\]$/g, '')
        return again?.host === host && again.port === port && bare === host && Number(url.port || 80) === port
      },
    ),
    { numRuns: runs(5_000) },
  )
  t.ok(read > often(100), `${read}`)
})
