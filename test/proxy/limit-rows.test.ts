/** Files of limits: what is read of them, and what is told of the rest. */
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { tier } from '../../src/config/schema/buckets.js'
import type { LimitTable } from '../../src/core/structures/limit-table.js'
import { formOf, readFile } from '../../src/proxy/limits/lines.js'
import { LimitsError, Rows, type RowsOf } from '../../src/proxy/limits/rows.js'
import { parse } from '../config/sample.js'
import { random as seeded } from '../core/run.js'
import { runs } from '../runs.js'

const folder = mkdtempSync(join(tmpdir(), 'shaper-limits-'))
t.teardown(() => rmSync(folder, { recursive: true }))

function ofKey(key: unknown, more: Partial<RowsOf> = {}): RowsOf {
  const [bucket] = parse({ upstream: 'echo:', buckets: { client: { key, rate: '5/s' } } }).buckets
  return { name: 'client', key: bucket!.key, by: 'rate', leastInFlight: 1, ...more }
}

const BY_HEADER = ofKey('header:x-api-key')

function read(
  text: string | Buffer,
  { of = BY_HEADER, before, name = 'a.csv' }: { of?: RowsOf; before?: LimitTable; name?: string } = {},
) {
  const file = join(folder, name)
  writeFileSync(file, text)
  const descriptor = openSync(file, 'r')
  try {
    const rows = new Rows(of, 'line', before)
    readFile(descriptor, formOf(name), rows)
    const { table, report } = rows.end()
    const all = Array.from(table.all(), entry => {
      const [rate, ...rest] = table.own(table.setOf(entry))
      const shown = [rate! * 1_000, ...rest].map(number => (Number.isNaN(number) ? '' : number))
      return `${table.keyOf(entry)}: ${shown.join(' ').trim()}`
    })
    return { table, all, told: report.told, more: report.more, bad: report.bad }
  } finally {
    closeSync(descriptor)
  }
}

/** What is read of lines below a header with a key and a rate. */
const rated = (lines: string | Buffer, of?: RowsOf) =>
  read(Buffer.concat([Buffer.from('key,rate\n'), Buffer.from(lines)]), of && { of })

t.test('a CSV', async t => {
  const all = 'a: 5 10 2 1 4'
  t.same(read('key,rate,capacity,weight,priority,maxInFlight\na,5/s,10,2,1,4\n').all, [all])
  t.same(read('MAX_IN_FLIGHT,Priority,weight,capacity,rate,key\n4,1,2,10,300/m,a\n').all, [all], 'in any order')
  t.same(read('key,capacity\na,7\nb,\n').all, ['a: 7', 'b: '], 'what is empty or has no column is as the bucket says')
  t.same(rated('a,5\nb, 7.5/s \n c ,1e2').all, ['a: 5', 'b: 7.5', 'c: 100'], 'spaces around, and no last line feed')
  t.same(rated('a,5\r\n\r\n\nb,6\r\n').all, ['a: 5', 'b: 6'], 'CRLF and empty lines')
  t.same(read('\ufeffkey,rate\na,5').all, ['a: 5'], 'a BOM')
  t.same(read('\ufeff"key","rate"\n"a","5"').all, ['a: 5'])
  t.same(rated('"a,b",5\n"say ""hi""",6\n"",7\n"a b",8').all, ['a,b: 5', 'say "hi": 6', 'a b: 8'], 'quotes')
  t.same(rated('é,5\n"日本",6\nÿ,7').all, ['é: 5', '日本: 6', 'ÿ: 7'], 'UTF-8')
  t.same(rated('a\tb,5').all, ['a\tb: 5'])
  t.same(rated('constructor,5\n__proto__,6').all, ['constructor: 5', '__proto__: 6'])
})

t.test('lines that are wrong are told by their numbers, and the others count', async t => {
  const told = (lines: string | Buffer): string => {
    const { told, bad, all } = rated(Buffer.concat([Buffer.from(lines), Buffer.from('\nlast,9\n')]))
    t.equal(told.length, 1, told.join())
    t.equal(bad, 1)
    t.same(all, ['last: 9'])
    return told[0]!
  }
  t.equal(told('a'), 'line 2: this line has 1 field, and the header 2')
  t.equal(told('a,5,6'), 'line 2: this line has 3 fields, and the header 2')
  t.equal(told('\n,5'), 'line 3: there is no key')
  t.equal(told('a,fast'), 'line 2: rate is wrong; use e.g. 5/s')
  t.equal(told('a,0'), 'line 2: rate is wrong; use e.g. 5/s')
  t.equal(told('a,-1'), 'line 2: rate is wrong; use e.g. 5/s')
  t.equal(told('a,1e999'), 'line 2: rate is wrong; use e.g. 5/s')
  t.equal(told('a,NaN'), 'line 2: rate is wrong; use e.g. 5/s')
  t.equal(told('a"b,5'), 'line 2: this line has a quote inside a field; write the field in quotes')
  t.equal(told('"a"b,5'), 'line 2: this line goes on after a closing quote')
  t.equal(told('"a,5\nb,6'.split('\n')[0]!).slice(0, 7), 'line 2:', 'a quote that is not closed')
  t.equal(told('a\0,5'), 'line 2: this line has a control character')
  t.equal(told('a\rb,5'), 'line 2: this line has a control character')
  t.equal(told('"a\0",5'), 'line 2: this line has a key that is no text')
  t.equal(told(Buffer.from([0xff, 0xfe, 0x2c, 0x35])), 'line 2: this line has a key that is no text')
  t.equal(told(`${'a'.repeat(1_000_000)},5`), 'line 2: this line is longer than 65536 bytes')
  t.equal(
    told(`"${'a\n'.repeat(40_000).slice(0, 70_000)}`.replaceAll('\n', ' ')),
    'line 2: this line is longer than 65536 bytes',
  )
  t.equal(told(`a${',5'.repeat(1_000)}`), 'line 2: this line has too many fields')
  t.equal(told(`a${',5'.repeat(1_000_000)}`), 'line 2: this line is longer than 65536 bytes')
  const open = rated('"a,5\nb,6\n')
  t.same(open.told, ['line 2: this line has a quote that is not closed'])
  t.same(open.all, ['b: 6'], 'the lines after it count')
})

t.test('values', async t => {
  const fault = (column: string, value: string, of = BY_HEADER) => read(`key,${column}\na,${value}`, { of }).told[0]
  for (const value of ['0', '-1', 'x', '1/s']) t.match(fault('capacity', value), /capacity is wrong/, value)
  for (const value of ['8', '1.5', '-1', 'x']) t.match(fault('priority', value), /priority is wrong/, value)
  for (const value of ['0', '1.5', 'x']) t.match(fault('maxInFlight', value), /maxInFlight is wrong/, value)
  for (const value of ['0', '-2']) t.match(fault('weight', value), /weight is wrong/, value)
  t.match(fault('maxInFlight', '3', ofKey('ip', { leastInFlight: 4 })), /no request has this key/)
  t.equal(
    fault('maxInFlight', '3', { ...BY_HEADER, leastInFlight: 4 }),
    'line 2: maxInFlight is wrong; the workers divide it, so use at least 4',
  )
  t.equal(
    fault('capacity', '3', { ...BY_HEADER, by: 'in flight' }),
    'line 2: a capacity needs a rate, as the bucket has none; add it',
  )
  const ofQuota = { ...BY_HEADER, by: 'quota' as const }
  t.match(fault('rate', '3', ofQuota), 'line 2: a rate has no effect, as the bucket is a quota; leave it empty')
  t.equal(fault('capacity', '3', ofQuota), undefined)
})

t.test('property: a column takes what a tier takes', async t => {
  const random = seeded(5)
  const shape: Record<string, { safeParse(value: unknown): { success: boolean } }> = tier.shape
  const numbers = [0, 1, 7, 8, 0.5, 1e9, 1e21, 1e-12, 2 ** 53, 9e15]
  for (let run = 0; run < runs(300); run += 1) {
    const number = random() < 0.5 ? numbers[Math.floor(random() * numbers.length)]! : random() * 20
    const unit = ['/s', '/m', '/30d', '/w', '/', 's', '/0s', '/1.5h'][Math.floor(random() * 8)]!
    for (const column of ['rate', 'capacity', 'weight', 'priority', 'maxInFlight']) {
      const text = column === 'rate' && random() < 0.5 ? `${number}${unit}` : number
      const isGood = shape[column]!.safeParse(text).success
      t.equal(read(`key,${column}\na,${text}`).bad, isGood ? 0 : 1, `${column} ${text}`)
    }
  }
})

t.test('a file that cannot be used', async t => {
  const fault = (text: string | Buffer): string => {
    try {
      read(text)
      return 'none'
    } catch (error) {
      t.ok(error instanceof LimitsError)
      return (error as Error).message
    }
  }
  t.match(fault(''), /^the file is empty; begin it with a line that names its columns/)
  t.match(fault('\ufeff'), /^the file is empty/)
  t.match(fault('\n\n'), /^the file is empty/)
  t.equal(fault('key,rte\na,5'), 'the column "rte" is not known; did you mean "rate"?')
  t.equal(
    fault('rate,capacity\n5,6'),
    'there is no column "key"; columns are key, rate, capacity, weight, priority, maxInFlight',
  )
  t.equal(fault('key,rate,RATE\na,5,6'), 'the column "rate" is there twice; remove one')
  t.match(fault('key,"rate\na,5'), /its header, has a quote that is not closed/)
  t.match(fault(`key${',x'.repeat(100)}`), /its header, has too many fields/)
  t.match(fault('a'.repeat(1_000_000)), /its header, is longer than/)
  t.match(fault(Buffer.alloc(1_000_000)), /its header, /)
})

t.test('a key twice, and many complaints', async t => {
  const twice = rated('a,5\nb,6\na,7\n')
  t.same(twice.all, ['a: 7', 'b: 6'])
  t.same(twice.told, ['line 4: an earlier line has this key, too; this one counts'])
  t.equal(twice.bad, 0)
  const { told, more, bad } = rated('a,x\n'.repeat(1_000))
  t.same([told.length, more, bad], [20, 980, 1_000])
  t.notMatch(rated('secret-key,x\nsecret-key,5\nsecret-key,6').told.join(), /secret/)
})

t.test('the last good line of a key stays', async t => {
  const before = rated('a,5\nb,6\nc,7\n').table
  const now = read('key,rate\na,x\nb,60\nb,y\nd,1\n', { before })
  t.same(now.all.sort(), ['a: 5', 'b: 60', 'd: 1'], 'that of the former table, or an earlier one; c is gone')
  t.same(read('key,rate\na\n', { before }).all, ['a: 5'], 'also if fields are missing')
  for (const rest of [`5${','.repeat(70_000)}`, `5${','.repeat(3_000_000)}`, '5,,,"x', '5"', '\u0001'])
    t.same(read(`key,rate\na,${rest}\nd,1\n`, { before }).all.sort(), ['a: 5', 'd: 1'], rest.slice(0, 20))
  t.same(read('key,rate\na"b,5\nd,1\n', { before }).all, ['d: 1'], 'a key that is broken itself is none')
})

t.test('JSON lines', async t => {
  const json = (text: string | Buffer) => read(text, { name: 'a.jsonl' })
  const { all } = json(
    '{"key":"a","rate":"5/s"}\r\n\n{"key":"b","rate":7,"capacity":null}\n{"key":9,"maxInFlight":"2"}',
  )
  t.same(all, ['a: 5', 'b: 7', '9: 2'])
  t.same(read('\ufeff{"key":"日本","rate":1}', { name: 'a.NDJSON' }).all, ['日本: 1'])
  t.same(read('{"key":"__proto__","rate":1}', { name: 'a.json' }).all, ['__proto__: 1'])
  const bad: [string | Buffer, RegExp][] = [
    ['[', /is no JSON object/],
    ['{"key":"a"', /is no JSON object/],
    ['5', /is no JSON object/],
    ['null', /is no JSON object/],
    ['["key"]', /is no JSON object/],
    ['{"rate":5}', /has no key/],
    ['{"key":null}', /has no key/],
    ['{"key":{}}', /has no key/],
    ['{"key":""}', /there is no key/],
    ['{"key":"a","rte":5}', /has an unknown name/],
    ['{"key":"a","__proto__":5}', /has an unknown name/],
    ['{"key":"a","rate":{}}', /rate is wrong/],
    ['{"key":"a","rate":true}', /rate is wrong/],
    ['{"key":"a","rate":"5\\u000010"}', /rate is wrong/],
    [Buffer.from('{"key":"\xff"}', 'latin1'), /is no JSON object/],
    [`{"key":"${'a'.repeat(1_000_000)}"}`, /is longer than/],
    ['['.repeat(60_000), /is no JSON object/],
  ]
  for (const [line, why] of bad) {
    const { told, all } = json(Buffer.concat([Buffer.from(line), Buffer.from('\n{"key":"last"}')]))
    t.equal(told.length, 1)
    t.match(told[0], why)
    t.same(all, ['last: '])
  }
})

t.test('keys are as requests have them', async t => {
  const keys = (of: unknown, lines: string) => {
    const { table, told } = rated(lines, ofKey(of))
    return [...Array.from(table.all(), entry => table.keyOf(entry)), ...told]
  }
  t.same(keys('ip', '192.0.2.1,5\n2001:db8:0:0:1::7,6\n2001:db8:1::/64,7\n::ffff:192.0.2.9,8'), [
    '192.0.2.1',
    '2001:db8:0:0::/64',
    '2001:db8:1:0::/64',
    '192.0.2.9',
  ])
  const none = 'line 2: no request has this key; write it as requests have it'
  t.same(keys('ip', '10.0.0.0/8,5'), [none])
  t.same(keys('ip', 'somebody,5'), [none])
  t.same(keys('all', 'all,5'), ['all'])
  t.same(keys('all', 'everyone,5'), [none])
  t.same(keys(['header:x-tenant', 'ip'], '"acme\n192.0.2.1",5'), ['acme\n192.0.2.1'])
  t.same(keys(['header:x-tenant', 'ip'], 'acme,5'), [none])
  t.match(keys('header:x-api-key', `${'a'.repeat(129)},5`)[0], /^#[\w-]{43}$/, 'a long one is hashed')
})

/** A random key, its field as CSV has it, and whether a request can have it. */
function writtenKey(random: () => number): { key: string; field: string; isRead: boolean } {
  const letters = ['a', 'b', '"', ',', ' ', 'é', '中', '-', '\n', '\r\n']
  const count = random() * (random() < 0.05 ? 40_000 : 6)
  const key = `k${Array.from({ length: count }, () => letters[Math.floor(random() * letters.length)]).join('')}k`
  const isBare = !/["\n\r,]/.test(key) && random() < 0.5
  return {
    key,
    field: isBare ? key : `"${key.replaceAll('"', '""')}"`,
    isRead: !/[\r\n]/.test(key) && key.length <= 128,
  }
}

t.test('property: a file is read as it was written', async t => {
  const random = seeded(3)
  for (let run = 0; run < runs(200); run += 1) {
    const wanted = new Map<string, number>()
    const lines = Array.from({ length: random() * 60 }, () => {
      const { key, field, isRead } = writtenKey(random)
      const rate = Math.floor(random() * 10)
      if (isRead && rate > 0) wanted.set(key, rate)
      return `${field},${rate}`
    })
    const end = random() < 0.5 ? '\n' : '\r\n'
    const { table } = rated(lines.join(end) + (random() < 0.5 ? end : ''))
    for (const [key, rate] of wanted) t.equal(table.own(table.find(key))[0]! * 1_000, rate, JSON.stringify(key))
    t.ok([...wanted.keys()].length <= table.size)
  }
})

t.test('property: no bytes make it fail', async t => {
  const random = seeded(4)
  const pieces = [
    'key',
    ',',
    '"',
    '\n',
    '\r',
    '\0',
    'a',
    '5/s',
    '\xff',
    '\xef\xbb\xbf',
    '{',
    '}',
    ':',
    '"key":"a"',
    ' ',
    '\t',
  ]
  for (let run = 0; run < runs(500); run += 1) {
    const text = Array.from({ length: random() * 200 }, () => pieces[Math.floor(random() * pieces.length)]).join('')
    for (const name of ['a.csv', 'a.json']) {
      const { table, bad, all } = read(Buffer.from(`${name === 'a.csv' ? 'key,rate\n' : ''}${text}`, 'latin1'), {
        name,
      })
      t.equal(all.length, table.size)
      t.ok(bad <= text.length)
    }
  }
})
