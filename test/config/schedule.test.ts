/** Rates by the time of day: how they are written, and which holds when. */

import fc from 'fast-check'
import t from 'tap'
import { effective } from '../../src/config/report/effective-config.js'
import { longestWaits } from '../../src/config/report/longest-waits.js'
import { nextChange, presentRates, settingsAt, unreachedEntries } from '../../src/config/schedule.js'
import { warnings } from '../../src/config/warnings/index.js'
import { often, runs } from '../runs.js'
import { faults, parse } from './sample.js'

const NIGHTS = [{ from: '22:00', to: '06:00', rate: '50/s' }, { rate: '10/s' }]

const file = (rate: unknown, more: object = {}) => ({
  upstream: 'echo:',
  buckets: { a: { key: 'header:k', rate, capacity: 20, ...more } },
})

/** The rates per second at a time. */
const at = (config: object, time: string) =>
  presentRates(parse(config), Date.parse(time)).map(({ rate }) => Number((rate * 1_000).toFixed(6)))

t.test('the first entry whose time it is counts, across midnight', async t => {
  const config = file(NIGHTS)
  for (const [time, rate] of [
    ['21:59:59.999', 10],
    ['22:00:00', 50],
    ['23:59:59', 50],
    ['00:00:00', 50],
    ['05:59:59.999', 50],
    ['06:00:00', 10],
    ['12:00:00', 10],
  ] as const) {
    t.same(at(config, `2026-11-23T${time}Z`), [rate], time)
  }
  const overlapping = file([
    { from: '08:00', to: '09:00', rate: 1 },
    { from: '07:00', to: '24:00', rate: 2 },
    { from: '08:30', to: '07:30', rate: 3 },
    { rate: 4 },
  ])
  for (const [time, rate] of [
    ['08:15', 1],
    ['08:45', 1],
    ['09:00', 2],
    ['23:59', 2],
    ['00:00', 3],
    ['07:15', 2],
  ] as const) {
    t.same(at(overlapping, `2026-11-23T${time}:00Z`), [rate], time)
  }
})

t.test('the wall clock of the time zone decides, on days with a change of summer time, too', async t => {
  const zoned = (timeZone: string, list: object[] = NIGHTS) => file(list, { timeZone })
  t.same(at(zoned('Europe/Berlin'), '2026-01-15T21:00:00Z'), [50], '22:00 in winter')
  t.same(at(zoned('Europe/Berlin'), '2026-07-15T20:00:00Z'), [50], '22:00 in summer')
  t.same(at(zoned('Europe/Berlin'), '2026-07-15T19:59:00Z'), [10])
  t.same(at(zoned('Asia/Kathmandu'), '2026-07-15T16:15:00Z'), [50], '5:45 ahead')
  t.same(at(zoned('Asia/Kathmandu'), '2026-07-15T16:14:59Z'), [10])
  // On 29 March 2026 the clock goes from 02:00 to 03:00 at 01:00 UTC. On 25 October it goes from 03:00 to 02:00.
  const early = [{ from: '02:30', to: '03:30', rate: 5 }, { rate: 1 }]
  const berlin = zoned('Europe/Berlin', early)
  t.same(at(berlin, '2026-03-29T00:59:59Z'), [1])
  t.same(at(berlin, '2026-03-29T01:00:00Z'), [5], 'it is 03:00: 02:30 has been skipped')
  t.same(at(berlin, '2026-03-29T01:30:00Z'), [1])
  t.same(at(berlin, '2026-10-25T00:30:00Z'), [5], '02:30 for the first time')
  t.same(at(berlin, '2026-10-25T01:00:00Z'), [1], '02:00 again')
  t.same(at(berlin, '2026-10-25T01:30:00Z'), [5], '02:30 again')
  t.same(at(berlin, '2026-10-25T02:30:00Z'), [1])
})

t.test('what is derived: the slowest rate for waits and capacity, the present one for the rest', async t => {
  const tiers = [
    { name: 'gold', keys: ['g'], rate: [{ from: '00:00', to: '12:00', rate: '100/s' }, { rate: '40/s' }] },
    { name: 'wide', keys: ['w'], capacity: 30 },
    { name: 'fixed', keys: ['f'], rate: '7/s' },
  ]
  const settings = parse({ upstream: 'echo:', buckets: { a: { key: 'header:k', rate: NIGHTS, tiers } } })
  const [bucket] = settings.buckets
  t.equal(bucket!.rate, 0.01)
  t.equal(bucket!.capacity, 10, "one second's worth of the slowest")
  t.same(
    bucket!.tiers.map(({ limits }) => [limits.rate, limits.capacity]),
    [
      [0.04, 40],
      [0.01, 30],
      [0.007, 7],
    ],
  )
  t.equal(parse(file(NIGHTS, { capacity: undefined, maxDelay: '3s' })).buckets[0]!.capacity, 30)
  t.equal(longestWaits(settings)[0]!.rate, '10/s at the slowest')
  t.equal(longestWaits(settings)[0]!.longestWaitMs, 900)
  const night = settingsAt(settings, { wall: Date.parse('2026-11-23T23:00:00Z'), now: 0 })
  t.same([night.buckets[0]!.rate, night.buckets[0]!.limits.rate, night.buckets[0]!.capacity], [0.05, 0.05, 10])
  t.same(
    night.buckets[0]!.tiers.map(({ limits }) => limits.rate),
    [0.04, 0.05, 0.007],
  )
  t.equal(night.routes[0]!.buckets[0], night.buckets[0])
  t.equal(bucket!.limits.rate, 0.01, 'the configuration stays as it is')
  const plain = parse(file('5/s'))
  t.equal(settingsAt(plain, { wall: 0, now: 0 }), plain)
})

t.test(
  'property: the next change is the first minute with another rate, on days with a change of summer time, too',
  async t => {
    const border = fc.integer({ min: 0, max: 24 * 60 }).map(minute => {
      const two = (count: number): string => String(count).padStart(2, '0')
      return `${two(Math.floor(minute / 60))}:${two(minute % 60)}`
    })
    const entry = fc.record({ from: border, to: border, rate: fc.integer({ min: 1, max: 3 }) })
    const days = ['2026-03-28', '2026-03-29', '2026-10-24', '2026-10-25', '2026-11-23'].map(day =>
      Date.parse(`${day}T00:00Z`),
    )
    const zones = ['UTC', 'Europe/Berlin', 'Asia/Kathmandu', 'Australia/Lord_Howe']
    let changes = 0
    fc.assert(
      fc.property(
        fc.array(
          entry.filter(({ from, to }) => from !== to && from !== '24:00'),
          { minLength: 1, maxLength: 3 },
        ),
        fc.constantFrom(...zones),
        fc.constantFrom(...days),
        fc.integer({ min: 0, max: 86_399_999 }),
        (entries, timeZone, day, time) => {
          const { schedule } = parse(file([...entries, { rate: 2 }], { timeZone })).buckets[0]!
          const config = parse(file([...entries, { rate: 2 }], { timeZone }))
          const rateAt = (wall: number): number => presentRates(config, wall)[0]!.rate
          const wall = day + time
          const found = nextChange(schedule!, wall)
          if (found === undefined) return
          changes += 1
          const minutes = Math.floor(found.wall / 60_000) - Math.floor(wall / 60_000)
          for (let back = 1; back < Math.min(minutes, 90); back += 1)
            if (rateAt(found.wall - back * 60_000) !== rateAt(wall)) throw new Error(`earlier by ${back} minutes`)
          if (
            minutes < 1 ||
            found.wall % 60_000 !== 0 ||
            rateAt(found.wall) !== found.rate ||
            found.rate === rateAt(wall)
          )
            throw new Error(`at ${new Date(found.wall).toISOString()}`)
        },
      ),
      { numRuns: runs(200) },
    )
    t.ok(changes > often(100), `${changes} changes`)
    const always = parse(file([{ from: '10:00', to: '11:00', rate: 2 }, { rate: 2 }])).buckets[0]!
    t.equal(nextChange(always.schedule!, Date.parse('2026-11-23T00:00:00Z')), undefined)
  },
)

t.test('the effective configuration says all of it, and parses to the same', async t => {
  const config = file(NIGHTS, { timeZone: 'Europe/Berlin', tiers: [{ name: 'x', keys: ['y'], weight: 2 }] })
  const shown = effective(parse(config)) as { buckets: { a: object } }
  t.match(shown.buckets.a, { rate: NIGHTS, timeZone: 'Europe/Berlin', tiers: [{ rate: NIGHTS }] })
  t.same(effective(parse(shown)), shown)
  t.match(effective(parse(file(NIGHTS))), { buckets: { a: { timeZone: 'UTC' } } })
  t.notOk('timeZone' in (effective(parse(file('5/s'))) as typeof shown).buckets.a)
})

t.test('errors', async t => {
  const of = (rate: unknown, more: object = {}) => faults(file(rate, more))
  const times = 'use "00:00" to "23:59"'
  t.same(of([NIGHTS[0]]), [
    'buckets.a.rate[0]: the last entry must be without "from" and "to", as it holds at all other times; add e.g. { "rate": "10/s" }',
  ])
  t.same(of([]), [
    'buckets.a.rate: the list is empty; use e.g. [{ "from": "22:00", "to": "06:00", "rate": "50/s" }, { "rate": "10/s" }]',
  ])
  t.same(of([{ from: '22:00', rate: 5 }, { rate: 1 }]), ['buckets.a.rate[0].to: missing; say until when, e.g. "06:00"'])
  t.same(of([{ to: '22:00', rate: 5 }, { rate: 1 }]), [
    'buckets.a.rate[0].from: missing; say from when on, e.g. "22:00"',
  ])
  t.same(of([{ from: '06:00', to: '06:00', rate: 5 }, { rate: 1 }]), [
    'buckets.a.rate[0].to: the same as "from"; for the whole day leave both out',
  ])
  for (const time of ['24:00', '6:00', '12:60', '25:00', 'noon', '']) {
    t.same(of([{ from: time, to: '06:00', rate: 5 }, { rate: 1 }]), [
      `buckets.a.rate[0].from: "${time}" is not a time of day; ${times}`,
    ])
  }
  t.same(of([{ from: '22:00', to: '24:01', rate: 5 }, { rate: 1 }]), [
    `buckets.a.rate[0].to: "24:01" is not a time of day; ${times}, or "24:00"`,
  ])
  t.match(of([{ from: '22:00', to: '06:00' }, { rate: 1 }]), [/^buckets\.a\.rate\[0\]\.rate: missing; /])
  t.match(of([{ rate: 'fast' }]), [/^buckets\.a\.rate\[0\]\.rate: "fast" is not a rate; /])
  t.same(of(NIGHTS, { timeZone: 'Europe/Berln' }), [
    'buckets.a.timeZone: "Europe/Berln" is not a time zone; did you mean "Europe/Berlin"?',
  ])
  for (const zone of ['+02:00', 'somewhere far away', '']) {
    t.same(of(NIGHTS, { timeZone: zone }), [
      `buckets.a.timeZone: "${zone}" is not a time zone; use the name of an IANA time zone, e.g. "Europe/Berlin"`,
    ])
  }
  t.match(faults(file('fast')), [/^buckets\.a\.rate: "fast" is not a rate; /])
  t.match(
    of(NIGHTS, { capacity: undefined, maxDelay: '1s', tiers: [{ name: 'x', keys: ['y'], rate: [{ rate: 0 }] }] }),
    [/^buckets\.a\.tiers\[0\]\.rate\[0\]\.rate: 0 is not a rate; /],
  )
})

t.test('warnings: entries that never hold, and a time zone without times', async t => {
  const lines = (config: object) => warnings(parse(config)).map(({ path, message }) => `${path}: ${message}`)
  t.same(lines(file(NIGHTS)), [])
  const never = 'never holds, as the entries before it take all of its time; move it before them, or remove it'
  const list = [
    { from: '06:00', to: '12:00', rate: 1 },
    { from: '12:00', to: '18:00', rate: 2 },
    { from: '07:00', to: '17:00', rate: 3 },
    { from: '17:59', to: '18:01', rate: 4 },
    { rate: 5 },
    { rate: 6 },
  ]
  const tiers = [{ name: 'same', keys: ['s'], weight: 2 }]
  t.same(lines(file(list, { capacity: 20, tiers })), [`buckets.a.rate[2]: ${never}`, `buckets.a.rate[5]: ${never}`])
  const whole = [{ from: '00:00', to: '12:00', rate: 1 }, { from: '12:00', to: '24:00', rate: 2 }, { rate: 3 }]
  const needed = never.replace(/;.*/, '; remove it, and "from" and "to" of the entry before it')
  t.same(lines(file(whole, { capacity: 20 })), [`buckets.a.rate[2]: ${needed}`])
  t.same(lines(file([{ from: '00:00', to: '12:00', rate: 1 }, { rate: 2 }], { capacity: 20 })), [], 'as it says')
  const own = [{ name: 'own', keys: ['s'], rate: [{ rate: 1 }, { rate: 2 }] }]
  t.same(lines(file('5/s', { capacity: 20, tiers: own })), [`buckets.a.tiers[0].rate[1]: ${never}`])
  t.same(lines(file('5/s', { timeZone: 'Europe/Berlin' })), [
    'buckets.a.timeZone: has no effect, as no rate has a time of day; remove it, or write the rate as a list',
  ])
  t.match(
    lines(file(NIGHTS, { capacity: 400 })),
    [/^buckets\.a\.capacity: a request can wait 39\.9 s/],
    'the slowest counts',
  )
  const everyone = { key: 'all', rate: NIGHTS, capacity: 100, overflow: 'fair' }
  const stack = (rate: string) => ({
    upstream: 'echo:',
    buckets: { a: { key: 'header:k', rate, capacity: 20 }, everyone },
  })
  t.same(lines(stack('20/s')), [], 'it can be reached at night')
  t.match(lines(stack('60/s')), [/60\/s can never be reached: .* lets 50\/s pass/])
})

t.test('property: an entry is reached if some minute of the day is its own', async () => {
  const minute = fc.integer({ min: 0, max: 1_439 })
  const entry = fc
    .tuple(minute, minute)
    .filter(([from, to]) => from !== to)
    .map(([from, to]) => ({ from, to, rate: 1 }))
  fc.assert(
    fc.property(fc.array(entry, { maxLength: 5 }), list => {
      const entries = [...list, { rate: 2 }]
      const holds = (at: number, { from = 0, to = 1_440 }: { from?: number; to?: number; rate: number }) =>
        (at - from + 1_440) % 1_440 < ((to - from + 1_440) % 1_440 || 1_440)
      const unreached = entries.flatMap((one, place) => {
        for (let at = 0; at < 1_440; at += 1) {
          if (holds(at, one) && !entries.slice(0, place).some(other => holds(at, other))) return []
        }
        return [place]
      })
      return JSON.stringify(unreachedEntries(entries)) === JSON.stringify(unreached)
    }),
    { numRuns: runs(300) },
  )
})
