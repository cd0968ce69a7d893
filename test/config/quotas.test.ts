/** Quotas: how they are written, and when their periods begin and end. */
import fc from 'fast-check'
import t from 'tap'
import { periodAt } from '../../src/config/periods.js'
import { effective } from '../../src/config/report/effective-config.js'
import { longestWaits, summary } from '../../src/config/report/longest-waits.js'
import { periodEnds, settingsAt } from '../../src/config/schedule.js'
import { warnings } from '../../src/config/warnings/index.js'
import { runs } from '../runs.js'
import { faults, parse } from './sample.js'

const MINUTE = 60_000
const file = (bucket: object, route: object = {}) => ({
  upstream: 'echo:',
  buckets: { calls: { key: 'header:x-key', ...bucket } },
  routes: [{ name: 'api', ...route }],
})
const MONTHLY = { quota: { limit: 100_000, per: 'month', timeZone: 'Europe/Berlin' } }

t.test('a quota has its limit as capacity, and tiers have limits of their own', async t => {
  const config = file({ ...MONTHLY, tiers: [{ name: 'gold', keys: ['g'], quota: 1_000_000 }] })
  const settings = parse(config)
  const [calls] = settings.buckets
  t.equal(calls!.limits.capacity, 100_000)
  t.equal(calls!.tiers[0]!.limits.capacity, 1_000_000)
  t.strictSame(parse(effective(settings, 'clear')), settings, 'what check prints means the same')
  t.same(warnings(settings), [])
  t.match(longestWaits(settings)[0], { rate: '100000 a month', longestWaitMs: 0, tiers: [{ rate: '1000000 a month' }] })
  t.match(summary(settings)[0], /calls 100000 a month/)
  const [now] = settingsAt(settings, { wall: Date.parse('2026-11-15T12:00:00Z'), now: 5_000 }).buckets
  const end = Date.parse('2026-11-30T23:00:00Z')
  t.equal(now!.limits.quota!.end, end)
  t.equal(now!.limits.quota!.until, 5_000 + end - Date.parse('2026-11-15T12:00:00Z'))
  t.same(now!.tiers[0]!.limits.quota, now!.limits.quota)
  t.same(periodEnds(settings, Date.parse('2026-12-01T00:00:00Z')), [Date.parse('2026-12-31T23:00:00Z')])
})

t.test('a quota that is spread has a bucket that paces it, which the file does not name', async t => {
  const quota = { limit: 720, per: 'month', spread: true }
  const config = file(
    { quota, capacity: 5, tiers: [{ name: 'gold', keys: ['g'], quota: 1_440 }] },
    { buckets: ['calls'] },
  )
  const settings = parse(config)
  t.same(
    settings.routes[0]!.buckets.map(({ name }) => name),
    ['calls', 'calls.pace'],
  )
  const [, pace] = settings.buckets
  t.match(pace, {
    paces: true,
    capacity: 5,
    limits: { rate: 1 / 3_600_000, paces: true },
    tiers: [{ limits: { capacity: 5 } }],
  })
  t.equal(pace!.tiers[0]!.limits.rate, 2 / 3_600_000)
  t.strictSame(parse(effective(settings, 'clear')), settings)
  t.same(warnings(settings), [])
  const twice = { upstream: 'echo:', buckets: { calls: { quota }, 'calls.pace': { rate: '5/s' } } }
  t.match(faults(twice), [/calls\.pace.*: this is the name of the bucket that paces "calls"/])
  t.match(faults(file({ quota: { ...quota, spread: false }, capacity: 5 })), [/capacity: has no effect beside "quota"/])
})

t.test('what has no effect beside a quota is told, each with its path', async t => {
  const config = file({
    ...{ ...MONTHLY, rate: '5/s', capacity: 5, burst: 2, overflow: 'fill', blockFor: '1s', grace: '5ms' },
    tiers: [{ name: 'gold', keys: ['g'], rate: '1/s', capacity: 4 }],
  })
  const beside =
    'has no effect beside "quota"; remove it, or put it into a bucket of its own that the route names as well'
  const ofTier = 'has no effect where the bucket is a quota; write e.g. "quota": 1000000, its limit for this tier'
  t.same(
    faults(config).sort(),
    [
      ...['rate', 'capacity', 'burst', 'grace', 'blockFor', 'overflow'].map(key => `buckets.calls.${key}: ${beside}`),
      ...['rate', 'capacity'].map(key => `buckets.calls.tiers[0].${key}: ${ofTier}`),
    ].sort(),
  )
  t.same(faults(file({ rate: '5/s', tiers: [{ name: 'gold', keys: ['g'], quota: 4 }] })), [
    'buckets.calls.tiers[0].quota: has no effect, as the bucket has no "quota"; remove it, or use "rate" and "capacity"',
  ])
  const quota = (value: unknown) => faults(file({ quota: value }))
  t.match(quota({ per: 'month' }), [/^buckets\.calls\.quota\.limit: missing/])
  t.match(quota({ limit: 0, per: 'month' }), [/quota\.limit: 0 is not a limit.*use a number/])
  t.match(quota({ limit: 5, per: 'week' }), [/quota\.per: "week".*"hour", "day" or "month"/])
  t.match(quota({ limit: 5, per: 'day', timeZone: 'Berlin' }), [/quota\.timeZone: "Berlin" is not a time zone/])
  t.match(quota({ limit: 5, per: 'day', spred: true }), [/quota\.spred: /])
  t.match(quota('5/month'), [/quota: .*use e\.g\. \{ "limit": 100000, "per": "month" \}/])
  t.match(faults(file(MONTHLY, { cost: 200_000 })), [/can never fit|calls/], 'a cost above the limit')
})

t.test('a slow rate that is meant as a quota gets the advice that is right', async t => {
  const messages = (bucket: object, route: object = {}) =>
    warnings(parse(file(bucket, route))).map(({ message }) => message)
  for (const rate of ['100000/30d', '50/h', '6/5m']) {
    const [message, ...more] = messages({ rate })
    t.match(
      message,
      /one request leaves every .*"quota": \{ "limit": \d+, "per": "month" \}.*"burst".*"mode": "meter"/,
      rate,
    )
    t.notMatch(message, /raise it to at least/)
    t.same(more, [])
  }
  t.match(messages({ rate: '1/s' }), [/raise it to at least 2/], 'a rate for seconds is a pace')
  t.match(messages({ rate: '60/m', capacity: 1 }), [/raise it to at least 2/])
})

/** The period of a moment, found minute by minute. */
function naive(per: 'hour' | 'day' | 'month', timeZone: string, wall: number): [from: number, until: number] {
  const numeric = 'numeric' as const
  const day = per === 'month' ? {} : { day: numeric }
  const hour = per === 'hour' ? { hour: numeric } : {}
  const format = new Intl.DateTimeFormat('en-CA', { timeZone, year: numeric, month: numeric, ...day, ...hour })
  const name = format.format(wall)
  let [from, until] = [Math.floor(wall / MINUTE) * MINUTE, Math.floor(wall / MINUTE) * MINUTE]
  // Far away an hour is fine enough.
  const step = (at: number, by: number): number => (format.format(at + 60 * by) === name ? 60 * by : by)
  while (format.format(from - MINUTE) === name) from += step(from, -MINUTE)
  while (format.format(until) === name) until += step(until, MINUTE)
  return [from, until]
}

const ZONES = [
  'UTC',
  'Europe/Berlin',
  'America/Sao_Paulo',
  'Asia/Kolkata',
  'Africa/Cairo',
  'Pacific/Apia',
  'Asia/Beirut',
]
const EDGES = [
  '2024-02-28T23:30:00Z',
  '2026-03-28T23:59:59Z',
  '2026-10-25T00:30:00Z',
  '2026-12-31T23:30:00Z',
  '2027-03-01T00:00:00Z',
]

t.test('property: days and months are those of a naive calendar, over summer time and leap days', async () => {
  const near = fc.tuple(fc.constantFrom(...EDGES), fc.integer({ min: -90, max: 90 })).map(([edge, by]) => {
    return Date.parse(edge) + by * 37 * MINUTE + 123
  })
  const any = fc.integer({ min: Date.UTC(2024, 0, 1), max: Date.UTC(2030, 0, 1) })
  fc.assert(
    fc.property(
      fc.constantFrom('day' as const, 'month' as const),
      fc.constantFrom(...ZONES),
      fc.oneof(near, any),
      (per, timeZone, wall) => {
        const { from, until, end } = periodAt({ per, timeZone }, { wall, now: 0 })
        const [wantedFrom, wantedUntil] = naive(per, timeZone, wall)
        return from + wall === wantedFrom && until + wall === wantedUntil && end === wantedUntil
      },
    ),
    { numRuns: runs(300) },
  )
})

t.test('an hour begins with the clock, also where zones are half an hour off', async t => {
  const hour = (timeZone: string, time: string) => {
    const wall = Date.parse(time)
    const { from, end } = periodAt({ per: 'hour', timeZone }, { wall, now: 0 })
    return [new Date(wall + from).toISOString(), new Date(end).toISOString()]
  }
  t.same(hour('UTC', '2026-11-15T12:34:56.789Z'), ['2026-11-15T12:00:00.000Z', '2026-11-15T13:00:00.000Z'])
  t.same(hour('Asia/Kolkata', '2026-11-15T12:34:56.789Z'), ['2026-11-15T12:30:00.000Z', '2026-11-15T13:30:00.000Z'])
  t.same(hour('UTC', '2026-11-15T13:00:00Z'), ['2026-11-15T13:00:00.000Z', '2026-11-15T14:00:00.000Z'])
})
