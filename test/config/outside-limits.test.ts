/** Where limits of single keys come from, in the file. */
import t from 'tap'
import { bucketsOfSeveralLanes } from '../../src/config/derived/store-groups.js'
import { workerShare } from '../../src/config/derived/worker-share.js'
import { parseConfig } from '../../src/config/load.js'
import { changes } from '../../src/config/report/changes.js'
import { effective } from '../../src/config/report/effective-config.js'
import { faults, parse } from './sample.js'

const url = 'postgres://user:secret@db/shop'
const file = (limits: unknown, more: object = {}) => ({
  upstream: 'echo:',
  buckets: { client: { rate: '5/s', limits, ...more } },
})
const outside = (limits: unknown, more?: object) => parse(file(limits, more)).buckets[0]!.outside

t.test('a file, or a query', async t => {
  t.strictSame(outside({ file: 'a.csv' }), { source: { file: 'a.csv' } })
  t.strictSame(outside({ file: 'a.csv' }, { capacity: 7 }), { source: { file: 'a.csv' }, capacity: 7 })
  t.strictSame(outside({ file: 'a.csv' }, { maxDelay: '2s' }), { source: { file: 'a.csv' }, maxDelay: 2_000 })
  const postgres = { url, query: 'SELECT key FROM a' }
  t.strictSame(outside({ postgres }), { source: { postgres, refresh: 30_000 } })
  t.strictSame(outside({ postgres, refresh: '5s', channel: 'a_1' }), {
    source: { postgres, refresh: 5_000, channel: 'a_1' },
  })
  t.equal(outside(undefined), undefined)
})

t.test('what makes no sense', async t => {
  const fault = (limits: unknown) => faults(file(limits))
  t.same(fault({}), [
    'buckets.client.limits.file: missing; give file or postgres, use e.g. { "file": "customers.csv" }',
  ])
  t.same(fault('a.csv'), [
    'buckets.client.limits: "a.csv" is not limits from outside; use e.g. { "file": "customers.csv" }',
  ])
  t.match(fault({ fil: 'a.csv' })[0], /limits\.fil: unknown key; did you mean "file"\?/)
  t.match(fault({ file: '' })[0], /limits\.file: "" is not a file/)
  const both = fault({ file: 'a.csv', postgres: { url, query: 'SELECT 1' }, refresh: '1s', channel: 'a' })
  t.equal(both.length, 3)
  for (const each of both) t.match(each, /has no effect beside "file", which is read when it changes; remove it$/)
  t.match(fault({ postgres: { query: 'SELECT 1' } })[0], /limits\.postgres\.url: missing/)
  t.match(fault({ postgres: { url } })[0], /limits\.postgres\.query: .*use e\.g\./)
  t.match(fault({ postgres: { url: 'http://user:secret@db', query: 'x' } })[0], /not the URL of this store/)
  t.notMatch(fault({ postgres: { url: 'http://user:secret@db', query: 'x' } })[0], /secret/)
  for (const channel of ['a b', 'a"; DROP', '', '1a', 5])
    t.match(fault({ postgres: { url, query: 'x' }, channel })[0], /limits\.channel: .*is not a channel/)
  t.match(fault({ postgres: { url, query: 'x' }, refresh: '0s' })[0], /limits\.refresh: "0s" is not above 0/)
})

t.test('it is printed as it is written, without passwords, and a change is told without them', async t => {
  const limits = { postgres: { url, query: 'SELECT key FROM a' }, refresh: '5s', channel: 'a' }
  const settings = parse(file(limits))
  const text = JSON.stringify(effective(settings))
  t.notMatch(text, /secret/)
  const printed = JSON.parse(text).buckets.client.limits
  t.same(printed, { ...limits, postgres: { ...limits.postgres, url: 'postgres://user:***@db/shop' } })
  t.same(parseConfig(JSON.stringify(effective(settings, 'clear'))).buckets, settings.buckets)
  const other = parse(file({ ...limits, postgres: { ...limits.postgres, url: url.replace('secret', 'other') } }))
  t.same(changes(settings, other), ['buckets.client.limits.postgres.url: changed'])
  t.same(changes(parse(file({ file: 'a.csv' })), parse(file({ file: 'b.csv' }))), [
    'buckets.client.limits.file: a.csv -> b.csv',
  ])
})

t.test('workers know their part, and classes are expected', async t => {
  const settings = parse(file({ file: 'a.csv' }))
  t.same(workerShare(settings, 2, 3).buckets[0]!.outside!.worker, { number: 2, count: 3 })
  t.same([...bucketsOfSeveralLanes(settings.routes)], ['client'])
  t.same([...bucketsOfSeveralLanes(parse(file(undefined)).routes)], [])
})
