import fc from 'fast-check'
import t from 'tap'
import { formatDuration, formatRate, parseDuration, parseRate } from '../../src/core/units.js'
import { runs } from '../runs.js'

t.test('every form of a rate', async t => {
  const forms: [string | number, number][] = [
    ['5/s', 5 / 1_000],
    ['90/m', 90 / 60_000],
    ['6/30s', 6 / 30_000],
    ['1000/30d', 1_000 / (30 * 86_400_000)],
    ['0.5/s', 0.5 / 1_000],
    ['.5/s', 0.5 / 1_000],
    ['2/h', 2 / 3_600_000],
    ['3/d', 3 / 86_400_000],
    ['1/ms', 1],
    ['1/250ms', 1 / 250],
    ['1.5/1.5m', 1.5 / 90_000],
    [' 5 / s ', 5 / 1_000],
    ['6 / 30 s', 6 / 30_000],
    ['5/sec', 5 / 1_000],
    ['5/second', 5 / 1_000],
    ['6/30seconds', 6 / 30_000],
    ['10/min', 10 / 60_000],
    ['10 / 5 minutes', 10 / 300_000],
    ['2/hr', 2 / 3_600_000],
    ['2/hour', 2 / 3_600_000],
    ['3/day', 3 / 86_400_000],
    ['1/250milliseconds', 1 / 250],
    [5, 5 / 1_000],
    [0.25, 0.25 / 1_000],
  ]
  for (const [text, perMs] of forms) t.equal(parseRate(text), perMs, `${text}`)
})

t.test('a text that is no rate is refused and quoted', async t => {
  const refused: [string | number, RegExp][] = [
    ['', /"" is not a rate/],
    ['5', /"5" is not a rate/],
    ['0/s', /"0\/s" is not a rate/],
    ['0.0/m', /"0.0\/m" is not a rate/],
    ['5/0s', /"5\/0s" is not a rate/],
    ['-5/s', /"-5\/s"/],
    ['+5/s', /"\+5\/s"/],
    ['5/x', /"5\/x"/],
    ['5/S', /"5\/S"/],
    ['5/-1s', /"5\/-1s"/],
    ['5/secd', /"5\/secd"/],
    ['5/mo', /"5\/mo"/],
    ['5/w', /"5\/w"/],
    ['5//s', /"5\/\/s"/],
    ['/s', /"\/s"/],
    ['5/', /"5\/"/],
    ['1e3/s', /"1e3\/s"/],
    ['5./s', /"5.\/s"/],
    ['1,000/s', /"1,000\/s"/],
    ['5/s/s', /"5\/s\/s"/],
    ['5\n/s\nx', /is not a rate/],
    [`${'9'.repeat(400)}/s`, /is not a rate/],
    [0, /0 is not a rate/],
    [-1, /-1 is not a rate/],
    [Number.NaN, /is not a rate/],
    [Infinity, /is not a rate/],
  ]
  for (const [text, message] of refused) {
    t.throws(() => parseRate(text), { name: 'RangeError', message }, `${text}`.slice(0, 20))
    t.throws(() => parseRate(text), { message: /use e\.g\. "5\/s"|did you mean "5\/s"\?/ }, 'with a hint')
  }
})

t.test('every form of a duration', async t => {
  const forms: [string, number][] = [
    ['250ms', 250],
    ['10s', 10_000],
    ['1.5m', 90_000],
    ['2h', 7_200_000],
    ['30d', 30 * 86_400_000],
    ['.5s', 500],
    ['0s', 0],
    [' 10 s ', 10_000],
    ['10 sec', 10_000],
    ['5min', 300_000],
    ['2 hours', 7_200_000],
  ]
  for (const [text, ms] of forms) t.equal(parseDuration(text), ms, text)
  for (const text of ['', '10', 's', '-1s', '1e3s', '10 sek', '10S', '1:30', '1m30s', `${'9'.repeat(400)}s`]) {
    t.throws(
      () => parseDuration(text),
      { name: 'RangeError', message: /is not a duration; use e\.g\./ },
      text.slice(0, 20),
    )
  }
})

t.test('rates are written with the smallest unit that keeps the count at 1 or more', async t => {
  const written: [number, string][] = [
    [parseRate('5/s'), '5/s'],
    [parseRate('90/m'), '1.5/s'],
    [parseRate('6/30s'), '12/m'],
    [0.0002, '12/m'],
    [parseRate('1/s'), '1/s'],
    [parseRate('60/m'), '1/s'],
    [parseRate('1/m'), '1/m'],
    [parseRate('1/h'), '1/h'],
    [parseRate('24/d'), '1/h'],
    [parseRate('1/d'), '1/d'],
    [parseRate('1000/30d'), '1.38889/h'],
    [parseRate('1/30d'), '0.0333333/d'],
    [parseRate('2/ms'), '2000/s'],
    [parseRate('1/3s'), '20/m'],
  ]
  for (const [perMs, text] of written) t.equal(formatRate(perMs), text)
})

t.test('durations are written with a unit that suits their size', async t => {
  const written: [number, string][] = [
    [0, '0ms'],
    [1, '1ms'],
    [187.25, '187.25ms'],
    [999, '999ms'],
    [1_000, '1s'],
    [1_800, '1.8s'],
    [60_000, '60s'],
    [119_999, '119.999s'],
    [120_000, '2m'],
    [3_600_000, '1h'],
    [5_400_000, '90m'],
    [7_200_000, '2h'],
    [86_400_000, '24h'],
    [172_800_000, '2d'],
    [30 * 86_400_000, '30d'],
  ]
  for (const [ms, text] of written) t.equal(formatDuration(ms), text)
})

t.test('property: written values can be parsed, and are the same to six digits', async () => {
  const close = (a: number, b: number): boolean => Math.abs(a - b) <= 5.1e-6 * Math.abs(b)
  const size = fc.double({ min: -5, max: 10, noNaN: true }).map(exponent => 10 ** exponent)
  fc.assert(
    fc.property(size, value => close(parseRate(formatRate(value / 1e6)), value / 1e6)),
    { seed: 3, numRuns: runs(2000) },
  )
  fc.assert(
    fc.property(size, value => close(parseDuration(formatDuration(value)), value)),
    { seed: 4, numRuns: runs(2000) },
  )
})

t.test('property: a written value stays the same when it is parsed and written again', async () => {
  const count = fc.integer({ min: 1, max: 99_999 }).map(value => value / 10)
  const unit = fc.constantFrom('ms', 's', 'm', 'h', 'd')
  fc.assert(
    fc.property(count, unit, (value, name) => {
      const rate = formatRate(parseRate(`${value}/${name}`))
      const duration = formatDuration(parseDuration(`${value}${name}`))
      return formatRate(parseRate(rate)) === rate && formatDuration(parseDuration(duration)) === duration
    }),
    { seed: 5, numRuns: runs(2000) },
  )
})

t.test('very small values can be parsed again, too', async t => {
  t.equal(parseDuration(formatDuration(5e-7)), 5e-7)
  t.equal(parseRate(formatRate(parseRate('0.0003/d'))), parseRate('0.0003/d'))
})

t.test('a rate that is surely a mistake', async t => {
  for (const rate of [1e-320, '1/99999999999d', '1/3653d'])
    t.throws(() => parseRate(rate), /less than one in ten years/)
  t.equal(parseRate('1/3650d') > 0, true)
})
