import t from 'tap'
import { maskUrl } from '../../src/config/messages.js'
import { changes } from '../../src/config/report/changes.js'
import { effective } from '../../src/config/report/effective-config.js'
import { warnings } from '../../src/config/warnings/index.js'
import { faults, least, parse } from './sample.js'

const store = (values: unknown) => parse({ ...least(), store: values }).store
const fault = (values: unknown) => faults({ ...least(), store: values })
const written = (values: object) => (effective(parse({ ...least(), store: values })) as { store: object }).store

t.test('every default is filled in', async t => {
  t.equal(store('memory'), 'memory')
  t.strictSame(store({ type: 'redis', url: 'redis://h' }), {
    type: 'redis',
    url: 'redis://h',
    prefix: 'shaper:',
    timeout: 250,
    onOutage: 'local',
  })
  t.strictSame(store({ type: 'postgres', url: 'postgres://h/d' }), {
    type: 'postgres',
    url: 'postgres://h/d',
    table: 'shaper_buckets',
    timeout: 250,
    onOutage: 'local',
  })
})

t.test('given values are used', async t => {
  const nodes = ['redis://10.0.0.1:7000', 'rediss://u:p@10.0.0.2:7000']
  const redis = { type: 'redis', cluster: nodes, prefix: 'a', timeout: '1s', onOutage: 'closed' }
  t.strictSame(store(redis), { ...redis, timeout: 1_000 })
  const postgres = {
    type: 'postgres',
    url: 'postgresql:///d?host=/run',
    table: 'a."b',
    timeout: '2s',
    onOutage: 'open',
    instances: 3,
  }
  t.strictSame(store(postgres), { ...postgres, timeout: 2_000 })
  for (const url of [
    'rediss://user:p%40ss@h:6380/3',
    'redis://:p@s:s@[::1]:6379',
    'redis+sentinel://h/mymaster',
    'redis+sentinel://u:p,w@h:26379,[::1]:26380,h3/mymaster',
    'rediss+sentinel://h/mymaster',
  ]) {
    t.match(store({ type: 'redis', url }), { url })
  }
  for (const url of ['postgres://u@h:1/d', 'postgres://u:p@h/d?sslmode=verify-full']) {
    t.match(store({ type: 'postgres', url }), { url })
  }
})

t.test('errors have a remedy and show no passwords', async t => {
  const redis = 'use e.g. "redis://127.0.0.1:6379"'
  const sentinel = 'use e.g. "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster"'
  const encode = 'in its user and password write special characters percent-encoded, e.g. %2F for "/"'
  const urls: [string, string, string][] = [
    ['redis', 'redis://', `"redis://" is not the URL of this store; ${redis}`],
    ['redis', 'redis://h/db', `"redis://h/db" is not the URL of this store; ${redis}`],
    ['redis', 'http://u:s3cret@h', `"http://***@h" is not the URL of this store; ${redis}`],
    ['redis', 'redis://u:s3/cret@h', `"redis://***@h" is not a URL as it is; ${encode}`],
    ['redis', 'redis://u:12/s3cret@h', `"redis://***@h" is not a URL as it is; ${encode}`],
    ['redis', 'redis://u:12#s3cret@h', `"redis://***@h" is not a URL as it is; ${encode}`],
    ['redis', 'ridis://h?password=s3cret', `"ridis://h?password=***" is not the URL of this store; ${redis}`],
    ['redis', 'redis://h/0?db=1', `"redis://h/0?db=1" is not the URL of this store; ${redis}`],
    ['redis', 'redis+sentinel://h', `"redis+sentinel://h" is not the URL of this store; ${sentinel}`],
    ['redis', 'redis+sentinel://h,/n', `"redis+sentinel://h,/n" is not the URL of this store; ${sentinel}`],
    ['postgres', 'postgres://u:s3?cret@h', `"postgres://***@h" is not a URL as it is; ${encode}`],
    ['postgres', 'redis://h', '"redis://h" is not the URL of this store; use e.g. "postgres://127.0.0.1/shaper"'],
  ]
  for (const [type, url, line] of urls) t.same(fault({ type, url }), [`store.url: ${line}`], url)
  t.same(fault({ type: 'redis', cluster: ['redis+sentinel://h/n'] }), [
    `store.cluster[0]: "redis+sentinel://h/n" is not the URL of this store; ${redis}`,
  ])
  t.same(fault({ type: 'redis', url: 'redis://h', cluster: ['redis://h'] }), [
    'store.url: give either url or cluster; remove one',
  ])
  const table = 'use e.g. "shaper_buckets" or "limits.shaper_buckets"'
  for (const name of ['a.b.c', 'a.', '.', 'x'.repeat(64)]) {
    t.same(fault({ type: 'postgres', url: 'postgres://h/d', table: name }), [
      `store.table: ${JSON.stringify(name)} is not a table's name, or one in a schema; ${table}`,
    ])
  }
  for (const instances of [0, 1.5, 10_001]) {
    t.same(fault({ type: 'redis', url: 'redis://h', instances }), [
      `store.instances: ${instances} is not a number of instances; use a whole number from 1 to 10000, e.g. 3`,
    ])
  }
  t.same(fault({ type: 'redis', url: 'redis://h', timeout: '0s', table: 'x' }), [
    'store.timeout: "0s" is not above 0; use e.g. "10s"',
    'store.table: unknown key; known keys: type, url, cluster, prefix, timeout, onOutage, instances',
  ])
})

t.test('a line that is not JSON is shown without passwords', async t => {
  const text = '{\n"store": { "type": "redis", "url": "rediss://u:s3cret@h/0?password=s3cret" ]\n}'
  t.notMatch(faults(text).join('\n'), /s3cret/)
})

t.test('the effective store has no passwords, and parses to the same store otherwise', async t => {
  t.strictSame(written({ type: 'redis', url: 'rediss://me:s3cret@h:6380/1', timeout: '1s' }), {
    type: 'redis',
    url: 'rediss://me:***@h:6380/1',
    prefix: 'shaper:',
    timeout: '1s',
    onOutage: 'local',
  })
  t.strictSame(written({ type: 'redis', cluster: ['redis://:s3cret@h'] }), {
    type: 'redis',
    cluster: ['redis://:***@h'],
    prefix: 'shaper:',
    timeout: '250ms',
    onOutage: 'local',
  })
  const plain = {
    type: 'postgres',
    url: 'postgres://me@h/d',
    table: 't',
    timeout: '90ms',
    onOutage: 'open',
    instances: 3,
  }
  t.strictSame(written(plain), plain)
  t.equal(maskUrl('redis://me@x:s3:cr@t@h:1'), 'redis://me@x:***@h:1')
  t.equal(maskUrl('redis://me@h:6379/0'), 'redis://me@h:6379/0')
  t.equal(
    maskUrl('redis+sentinel://:s3@a:1,b:2/n?sentinelPassword=s3&db=1'),
    'redis+sentinel://:***@a:1,b:2/n?sentinelPassword=***&db=1',
  )
  t.equal(maskUrl('postgres:///d?host=/run&password=s3'), 'postgres:///d?host=/run&password=***')
})

t.test('a change of the store is reported without passwords, also when only the password changes', async t => {
  const of = (url: string, more = {}) => parse({ ...least(), store: { type: 'redis', url, ...more } })
  t.same(changes(of('redis://:old@h'), of('redis://:new@h')), ['store: another password'])
  t.same(changes(of('redis://:old@h'), of('redis://:old@h')), [])
  t.same(changes(of('redis://:old@h'), of('redis://:new@g')), ['store.url: redis://:***@h -> redis://:***@g'])
  t.same(changes(parse(least()), of('redis://h', { onOutage: 'open' })), ['store: memory -> redis'])
})

t.test('settings that change their meaning with a shared store are warned about', async t => {
  const file = {
    listen: '0.0.0.0:1',
    upstream: { url: 'echo:', maxInFlight: 5 },
    buckets: {
      a: { key: 'ip', rate: '5/s', capacity: 10 },
      b: { key: 'all', rate: '50/s', capacity: 100, overflow: 'fair' },
      c: { key: 'all', rate: '50/s', capacity: 100, overflow: 'fair' },
    },
    routes: [
      { name: 'm', match: { path: '/m' }, mode: 'meter', buckets: ['c'] },
      { name: 's', buckets: ['a', 'b'] },
      { name: 'o', match: { path: '/o' }, mode: 'off', upstream: { url: 'http://o', maxInFlight: 3, connections: 3 } },
    ],
  }
  const paths = (more: object) =>
    warnings(parse({ ...file, ...more }))
      .filter(({ message }) => message.startsWith('a hint: with a shared') || message.startsWith('a hint: each'))
      .map(({ path }) => path)
  t.same(paths({}), [])
  t.same(paths({ store: { type: 'redis', url: 'redis://h' } }), [
    'buckets.b.overflow',
    'upstream.maxInFlight',
    'routes[2].upstream.maxInFlight',
    'routes[2].upstream.connections',
  ])
})
