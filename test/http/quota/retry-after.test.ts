import t from 'tap'
import { LONGEST } from '../../../src/http/quota/field-values.js'
import { readHttpDate } from '../../../src/http/quota/http-date.js'
import { type PauseRule, pauseAfter, readRetryAfter } from '../../../src/http/quota/pause-rule.js'

/** Sat, 21 Nov 2026 12:00:00 GMT */
const NOW = Date.UTC(2026, 10, 21, 12)

function wait(fields: Record<string, string>, wallNow = NOW): number | undefined {
  return readRetryAfter(name => fields[name], wallNow)
}

t.test('an HTTP-date is read in its three forms', async t => {
  const time = Date.UTC(1994, 10, 6, 8, 49, 37)
  t.equal(readHttpDate('Sun, 06 Nov 1994 08:49:37 GMT', NOW), time)
  t.equal(readHttpDate('Sunday, 06-Nov-94 08:49:37 GMT', NOW), time)
  t.equal(readHttpDate('Sun Nov  6 08:49:37 1994', NOW), time)
  t.equal(readHttpDate('Sat, 31 Dec 2016 23:59:60 GMT', NOW), Date.UTC(2017, 0, 1), 'a leap second')
  t.equal(readHttpDate('Monday, 06-Nov-76 00:00:00 GMT', NOW), Date.UTC(2076, 10, 6), 'at most 50 years ahead')
  t.equal(readHttpDate('Sunday, 06-Nov-77 00:00:00 GMT', NOW), Date.UTC(1977, 10, 6))
})

t.test('a text that is no HTTP-date is refused', async t => {
  for (const text of [
    'Sun, 31 Feb 2026 08:49:37 GMT',
    'Sun, 00 Nov 1994 08:49:37 GMT',
    'Sun, 06 Nov 1994 24:00:00 GMT',
    'Sun, 06 Foo 1994 08:49:37 GMT',
    'Sun, 06 Nov 1994 08:49:37 +0100',
    'sun, 06 nov 1994 08:49:37 gmt',
    '1994-11-06T08:49:37Z',
    '',
  ])
    t.equal(readHttpDate(text, NOW), undefined, text)
})

t.test('Retry-After is in seconds, or a date relative to the Date of the answer', async t => {
  const late = 'Sat, 21 Nov 2026 12:02:00 GMT'
  t.equal(wait({ 'retry-after': '120' }), 120_000)
  t.equal(wait({ 'retry-after': ' 0.25 ' }), 250)
  t.equal(wait({ 'retry-after': '0' }), 0)
  t.equal(wait({ 'retry-after': late }), 120_000)
  t.equal(wait({ 'retry-after': late }, NOW + 999_000), 0)
  t.equal(wait({ 'retry-after': late, date: 'Sat, 21 Nov 2026 12:01:30 GMT' }, NOW + 999_000), 30_000)
  t.equal(wait({ 'retry-after': late, date: 'yesterday' }), 120_000)
})

t.test('retry-after-ms wins where it is valid', async t => {
  t.equal(wait({ 'retry-after': '2', 'retry-after-ms': '1234.5' }), 1_234.5)
  t.equal(wait({ 'retry-after': '2', 'retry-after-ms': '-1' }), 2_000)
  t.equal(wait({ 'retry-after-ms': '7' }), 7)
})

t.test('Retry-After in the forms of resets, and of an answer that a cache kept', async t => {
  const epoch = NOW / 1_000 + 30
  for (const [fields, expected] of [
    [{ 'retry-after': `${epoch}` }, 30_000],
    [{ 'retry-after': `${epoch}000` }, 30_000],
    [{ 'retry-after': '2026-11-21T12:00:30Z' }, 30_000],
    [{ 'retry-after': '2026-11-21T13:00:30.5+0100' }, 30_500],
    [{ 'retry-after': '2026-11-21 12:00:30' }, 30_000],
    [{ 'retry-after': '30s' }, 30_000],
    [{ 'x-ms-retry-after-ms': '61' }, 61],
    [{ 'retry-after': '30', age: '12' }, 18_000],
    [{ 'retry-after': '30', age: '31' }, 0],
    [{ 'retry-after-ms': '30000', age: '12' }, 18_000],
    [{ 'retry-after': '2026-11-21T12:00:30Z', date: 'Sat, 21 Nov 2026 11:59:50 GMT', age: '10' }, 30_000],
  ] as const)
    t.equal(wait(fields), expected, JSON.stringify(fields))
})

t.test('nonsense is no wait, and no wait is longer than a year', async t => {
  for (const text of ['', '-1', 'soon', 'NaN', 'Infinity', '1e3', '1 2', '9'.repeat(100_000)])
    t.equal(wait({ 'retry-after': text }), undefined, text.slice(0, 20))
  t.equal(wait({}), undefined)
  t.equal(wait({ 'retry-after': '9'.repeat(30) }), LONGEST)
  t.equal(wait({ 'retry-after': 'Fri, 31 Dec 9999 23:59:59 GMT' }), LONGEST)
})

t.test('a pause is that of Retry-After, else of the quota, else the default, and at most the maximum', async t => {
  const rule: PauseRule = { status: [429, 503], default: 1_000, max: 60_000 }
  const pause = (fields: Record<string, string>, status = 429, by = rule): number =>
    pauseAfter(by, status, name => fields[name], NOW)
  const spent = { 'ratelimit-remaining': '0', 'ratelimit-reset': '7' }
  t.equal(pause({ 'retry-after': '5' }, 200), 0)
  t.equal(pause({ 'retry-after': '5', ...spent }), 5_000)
  t.equal(pause({ 'retry-after': '500' }, 503), 60_000)
  t.equal(pause(spent), 7_000)
  t.equal(pause({ ...spent, 'ratelimit-remaining': '3' }), 1_000, 'it was not this quota')
  t.equal(pause({ 'ratelimit-limit': '9', 'ratelimit-reset': '7' }), 7_000, 'what is left is not known')
  t.equal(pause({}), 1_000)
  t.equal(pause({}, 429, { ...rule, default: 90_000 }), 60_000)
  t.equal(pause({}, 429, { ...rule, default: 0 }), 0)
})

t.test('the longest of several Retry-After lines counts', async t => {
  const read = (value: string) => readRetryAfter(name => (name === 'retry-after' ? value : undefined), 0)
  t.equal(read('1, 2'), 2_000)
  t.equal(read('5, 5'), 5_000)
  t.equal(read('1, x'), 1_000)
  t.equal(wait({ 'retry-after': 'Sat, 21 Nov 2026 12:00:01 GMT, Sat, 21 Nov 2026 12:00:02 GMT' }), 2_000)
  t.equal(read(''), undefined)
})
