import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { changes } from '../../src/config/report/changes.js'
import { effective } from '../../src/config/report/effective-config.js'
import { least, parse } from './sample.js'

const base = {
  upstream: 'http://127.0.0.1:9000',
  buckets: { client: { key: 'ip', rate: '10/s', capacity: 10 } },
  routes: [
    { name: 'a', match: { path: '/a' }, buckets: ['client'] },
    { name: 'b', buckets: ['client'], maxWait: '10s' },
  ],
}

t.test('changes are listed in the words of the file', async t => {
  const after = {
    ...base,
    buckets: { client: { key: 'ip', rate: '5/s', capacity: 10 }, all: { key: 'all', rate: '100/s', capacity: 5 } },
    routes: [{ name: 'b', buckets: ['client', 'all'], maxWait: '5s' }],
  }
  const lines = changes(parseConfig(JSON.stringify(base)), parseConfig(JSON.stringify(after)))
  for (const line of [
    'buckets.client.rate: 10/s -> 5/s',
    'buckets.all.rate: added, 100/s',
    'routes[b].buckets: client -> client, all',
    'routes[b].maxWait: 10s -> 5s',
    'routes[a].match.path: removed',
  ]) {
    t.ok(lines.includes(line), `${line} in\n${lines.join('\n')}`)
  }
  t.notOk(
    lines.some(line => line.startsWith('upstream') || line.includes('capacity: 10')),
    'nothing else',
  )
})

t.test('without a change there are no lines', async t => {
  t.same(changes(parseConfig(JSON.stringify(base)), parseConfig(JSON.stringify(base))), [])
})

t.test('a file for levels is a change of the store', async t => {
  const file = (store: unknown) => parse({ ...least(), store })
  const kept = { type: 'memory', file: 'levels.json' }
  t.same(changes(file('memory'), file(kept)), ['store: memory -> memory, kept in levels.json'])
  t.same(changes(file(kept), file({ ...kept, file: 'b.json' })), [
    'store: memory, kept in levels.json -> memory, kept in b.json',
  ])
  t.same(changes(file('memory'), file({ type: 'memory' })), [])
})

t.test('a changed credential is reported without its value', async t => {
  const file = (secret: string) => ({
    ...least(),
    admin: { listen: '0.0.0.0:9090', token: secret.repeat(2) },
    ticketKeys: [secret.repeat(4)],
    buckets: {
      client: { key: 'header:x-api-key', rate: '5/s', tiers: [{ name: 'gold', keys: [secret], rate: '9/s' }] },
    },
    routes: [{ name: 'own', match: { header: { authorization: secret } } }, { name: 'rest' }],
  })
  const found = changes(parse(file('s3cret-1')), parse(file('s3cret-2')))
  t.same(found, [
    'buckets.client.tiers[gold].keys: changed',
    'routes[own].match.header.authorization: changed',
    'admin.token: another token',
    'ticketKeys: other keys',
  ])
  t.notMatch(JSON.stringify(effective(parse(file('s3cret-1')))), /s3cret/)
})

t.test('a rate that becomes a list by the time of day is one change', async t => {
  const file = (rate: unknown) => parse({ ...least(), buckets: { client: { rate, capacity: 9 } } })
  const list = [{ from: '22:00', to: '06:00', rate: '50/s' }, { rate: '10/s' }]
  const listed = '50/s from 22:00 to 06:00, 10/s'
  t.same(changes(file('2/s'), file(list))[0], `buckets.client.rate: 2/s -> ${listed}`)
  t.same(changes(file(list), file([{ ...list[0], rate: '40/s' }, list[1]])), [
    `buckets.client.rate: ${listed} -> 40/s from 22:00 to 06:00, 10/s`,
  ])
})
