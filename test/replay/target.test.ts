/** Compares the recommendation of `--target` with a search of the whole grid of docs/replay.md. */

import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { parseRate } from '../../src/core/units.js'
import { timeInSecond } from '../../src/replay/input/reorder.js'
import { parseGrid, rateText } from '../../src/replay/plan/sweep-grid.js'
import { parseTarget } from '../../src/replay/plan/target.js'
import { replay } from '../../src/replay/replay.js'
import type { ReplayReport } from '../../src/replay/report/report.js'
import { shaper, shaperHere } from '../cli/command.js'
import { runs } from '../runs.js'
import { bytes, combined, FIXTURE, fixtureText, planOf } from './logs.js'

const START = 1_431_857_103

interface Arrival {
  /** ms since `START`. */
  readonly at: number
  readonly client: number
}

/** A log with exact times. */
function logOf(arrivals: readonly Arrival[]): string {
  return arrivals
    .map(({ at, client }) => {
      const time = new Date(START * 1_000 + at).toISOString().replace('Z', '+00:00')
      return `192.0.2.${client} - - [${time}] "GET / HTTP/1.1" 200 5\n`
    })
    .join('')
}

/** What every request has to pass. */
interface Shape {
  readonly cost: number
  readonly burst: number | undefined
  readonly mode: 'shape' | 'meter'
}

/** Each client's queue as the time at which its last request leaves. It shares no code with the replay. */
function model(clients: readonly (readonly number[])[], perSecond: number, capacity: number, shape: Shape) {
  const { cost, burst, mode } = shape
  const slackMs = burst === undefined ? 0 : (Math.max(0, burst - cost) / perSecond) * 1_000
  const waits: number[] = []
  let [all, rejected] = [0, 0]
  for (const times of clients) {
    let emptyAt = -Infinity
    for (const at of times) {
      all += 1
      const before = Math.max(0, emptyAt - at)
      if ((before * perSecond) / 1_000 + cost > capacity + 1e-6) {
        rejected += 1
        continue
      }
      emptyAt = at + before + (cost * 1_000) / perSecond
      const wait = before - slackMs
      if (mode === 'shape' && wait > 1e-5) waits.push(Math.round(wait * 1_000) / 1_000)
    }
  }
  waits.sort((a, b) => a - b)
  const quantile = (q: number) => waits[Math.max(0, Math.ceil(q * waits.length) - 1)] ?? 0
  const figures = { p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99), max: waits.at(-1) ?? 0 }
  return { reject: rejected / all, delay: waits.length / all, ...figures }
}

type Figures = ReturnType<typeof model>
type Metric = keyof Figures
type Bounds = readonly (readonly [Metric, number])[]

/** Limits to choose from, as a sweep names them and as it means them. */
interface Choice {
  readonly sweep: string
  /** Per second. */
  readonly rates: readonly number[]
  readonly capacities: readonly number[]
}

/** The first rate and capacity that keep the bounds, in ascending order of rate, then of capacity. */
function smallest({ rates, capacities }: Choice, bounds: Bounds, of: (rate: number, capacity: number) => Figures) {
  for (const perSecond of rates) {
    for (const capacity of capacities) {
      const found = of(perSecond, capacity)
      if (bounds.every(([metric, bound]) => found[metric] <= bound + 1e-12)) return { perSecond, capacity, found }
    }
  }
  return undefined
}

const written = (bounds: Bounds) =>
  bounds
    .map(([metric, bound]) =>
      metric === 'reject' || metric === 'delay' ? `${metric}<=${bound * 100}%` : `${metric}<=${bound}ms`,
    )
    .join()

const arrivalsOf = fc
  .array(
    fc.record({
      gap: fc.constantFrom(0, 0, 0, 0, 50, 250, 333, 500, 950, 1_000, 2_000, 60_000),
      client: fc.nat({ max: 2 }),
    }),
    { minLength: 1, maxLength: 60, size: 'max' },
  )
  .map(gaps => {
    let at = 0
    return gaps.map(({ gap, client }): Arrival => {
      at += gap
      return { at, client }
    })
  })

const shareOf = fc.constantFrom(0, 0.05, 0.125, 0.25, 0.5)
const waitOf = fc.constantFrom(0, 50, 100, 250, 500, 1_000, 1_500, 2_000, 4_000, 20_000)
const boundsOf: fc.Arbitrary<Bounds> = fc.uniqueArray(
  fc.oneof(
    fc.tuple(fc.constant('reject' as const), shareOf),
    fc.tuple(fc.constantFrom('delay' as const), shareOf),
    fc.tuple(fc.constantFrom('p50' as const, 'p90' as const, 'p99' as const, 'max' as const), waitOf),
  ),
  { minLength: 1, maxLength: 3, selector: ([metric]) => metric },
)

const steps = (first: number, last: number, per: number) =>
  Array.from({ length: last - first + 1 }, (_, at) => (first + at) / per)

const CHOICES: readonly Choice[] = [
  {
    sweep: 'rate=0.5/s..4/s,capacity=1..12',
    rates: [...steps(50, 99, 100), ...steps(10, 40, 10)],
    capacities: steps(1, 12, 1),
  },
  {
    sweep: 'rate=3/m..12/m,capacity=1..7',
    rates: [...steps(30, 99, 600), ...steps(10, 12, 60)],
    capacities: steps(1, 7, 1),
  },
  {
    sweep: 'rate=1.25/s|1.333/s|1.72/s,capacity=2.5|4|6.25',
    rates: [1.25, 1.3, 1.333, 1.4, 1.5, 1.6, 1.7, 1.72],
    capacities: [2.5, 3, 4, 5, 6, 6.25],
  },
]

const shapeOf: fc.Arbitrary<Shape> = fc.record({
  cost: fc.constantFrom(1, 1, 1, 0.5, 2.5, 4),
  burst: fc.constantFrom(undefined, undefined, undefined, 3, 5.5),
  mode: fc.constantFrom('shape' as const, 'shape' as const, 'meter' as const),
})

t.test('property: the recommendation is the smallest of all limits', async t => {
  const seen = { some: 0, none: 0 }
  const check = async (arrivals: readonly Arrival[], bounds: Bounds, choice: Choice, shape: Shape) => {
    const settings = {
      upstream: 'echo:',
      buckets: { client: { key: 'ip', rate: '1/s', capacity: 50, ...(shape.burst && { burst: shape.burst }) } },
      routes: [{ mode: shape.mode, buckets: ['client'], cost: shape.cost }],
    }
    const clients = [0, 1, 2].map(own => arrivals.filter(({ client }) => client === own).map(({ at }) => at))
    const expected = smallest(choice, bounds, (rate, capacity) => model(clients, rate, capacity, shape))
    const limits = { settings: parseConfig(JSON.stringify(settings)), name: 'file', plain: false }
    const { sweep } = await replay(
      planOf(bytes(logOf(arrivals)), limits, { target: parseTarget(written(bounds)), sweep: parseGrid(choice.sweep) }),
    )
    const found = sweep!.recommended
    assert.equal(found === undefined, expected === undefined, written(bounds))
    seen[expected === undefined ? 'none' : 'some'] += 1
    if (expected === undefined || found === undefined) return
    const { perSecond, capacity } = expected
    assert.equal(found.capacity, capacity, written(bounds))
    assert.ok(Math.abs(parseRate(found.rate) * 1_000 - perSecond) < 1e-12, `${found.rate}: ${written(bounds)}`)
    assert.equal(found.rejected / arrivals.length, expected.found.reject)
    for (const figure of ['p50', 'p90', 'p99', 'max'] as const) {
      assert.ok(Math.abs(found.wait[figure] - expected.found[figure]) < 2e-3, `${figure} is exact`)
    }
  }
  await fc.assert(fc.asyncProperty(arrivalsOf, boundsOf, fc.constantFrom(...CHOICES), shapeOf, check), {
    numRuns: runs(300),
  })
  t.ok(seen.some > 80 && seen.none > 20, JSON.stringify(seen))
})

/** The arrivals of each client of a combined log, in ms from its first second, by the rule of docs/replay.md. */
function clientsOf(log: string, isSpread: boolean): number[][] {
  const lines = log
    .trimEnd()
    .split('\n')
    .map(line => {
      const [, address = '', day, month, year, time] =
        /^(\S+) [^[]*\[(\d+)\/(\w+)\/(\d+):([\d:]+) \+0000\]/.exec(line) ?? []
      return { address, second: Date.parse(`${day} ${month} ${year} ${time} UTC`) / 1_000 }
    })
  const origin = lines[0]!.second
  const seconds = new Map<number, string[]>()
  for (const { address, second } of lines) seconds.set(second, [...(seconds.get(second) ?? []), address])
  const clients = new Map<string, number[]>()
  for (const [second, addresses] of [...seconds].sort(([a], [b]) => a - b)) {
    for (const [k, address] of addresses.entries()) {
      const offset = isSpread ? timeInSecond(1, second, k, addresses.length) : 0
      const times = clients.get(address) ?? []
      clients.set(address, times)
      times.push((second - origin) * 1_000 + offset)
    }
  }
  return [...clients.values()]
}

t.test('on the sample log the recommendation is the smallest of all limits', async t => {
  const choice: Choice = {
    sweep: 'rate=1/s..12/s,capacity=1..40',
    rates: [...steps(10, 99, 10), ...steps(10, 12, 1)],
    capacities: steps(1, 40, 1),
  }
  const targets = [
    'p99<=2s',
    'reject<=0.1%,p99<=2s',
    'delay<=5%,reject<=1%',
    'p90<=1s,reject<=1%',
    'max<=3s,reject<=0%',
    'p50<=100ms,reject<=0.5%',
    'p50<=2s,p90<=3s,reject<=0%',
    'p99<=250ms,reject<=2%',
    'delay<=15%,p50<=1s,reject<=0%',
  ]
  const shape: Shape = { cost: 1, burst: undefined, mode: 'shape' }
  const answers = new Set<string>()
  for (const rule of ['even', 'none']) {
    const clients = clientsOf(fixtureText(), rule === 'even')
    const known = new Map<string, Figures>()
    const of = (rate: number, capacity: number): Figures => {
      const figures = known.get(`${rate} ${capacity}`) ?? model(clients, rate, capacity, shape)
      known.set(`${rate} ${capacity}`, figures)
      return figures
    }
    for (const target of targets) {
      const bounds = parseTarget(target).map(({ metric, most }) => [metric, most] as const)
      const expected = smallest(choice, bounds, of)
      const args = ['replay', FIXTURE, '--json', '--spread', rule, '--sweep', choice.sweep, '--target', target]
      const { stdout } = await shaperHere(args)
      const found = (JSON.parse(stdout) as ReplayReport).sweep!.recommended
      const answer = expected && `${rateText(expected.perSecond / 1_000)} ${expected.capacity}`
      t.equal(found && `${found.rate} ${found.capacity}`, answer, `${target}, spread ${rule}`)
      answers.add(String(answer))
    }
  }
  t.ok(answers.size > 8, [...answers].join())
})

/** Runs the command. Returns its recommendation, if any. */
async function recommended(log: string, args: string[]): Promise<NonNullable<ReplayReport['sweep']>['recommended']> {
  const { child, finished } = shaper(['replay', '--json', ...args])
  child.stdin.end(log)
  const { code, stdout, stderr } = await finished
  t.equal(code, 0, stderr)
  return (JSON.parse(stdout) as ReplayReport).sweep!.recommended
}

t.test('a wait equal to the bound keeps it', async t => {
  // Pages of five requests each, all logged in one second, and one of six.
  const log = Array.from({ length: 1_001 }, (_, at) =>
    combined(START + 100 * Math.floor(Math.max(0, at - 1) / 5)),
  ).join('')
  const of = (target: string) => recommended(log, ['--spread', 'none', '--target', target])
  t.match(await of('reject<=0%,p99<=2s'), { rate: '2/s', capacity: 6, wait: { p99: 2_000, max: 2_500 } })
  t.match(await of('reject<=0%,p99<=4s'), { rate: '1/s', capacity: 6, wait: { p99: 4_000, max: 5_000 } })
})

t.test('a burst across the end of a second is within the rates that are tried, as any other', async t => {
  const target = ['--target', 'reject<=0.1%,p99<=1s']
  for (const begin of [0, 950, 980]) {
    const log = logOf(Array.from({ length: 10 }, (_, count) => ({ at: begin + 5 * count, client: 1 })))
    t.match(await recommended(log, target), { rate: '8.7/s', capacity: 10 }, `from ${begin} ms on`)
  }
})

t.test('a target without a bound on rejections, or at the lowest rate, says so', async t => {
  const log = Array.from({ length: 100 }, (_, at) => combined(START + Math.floor(at / 5))).join('')
  const notes = async (...args: string[]) => {
    const { child, finished } = shaper(['replay', '--json', ...args])
    child.stdin.end(log)
    const { notes, sweep } = JSON.parse((await finished).stdout) as ReplayReport
    const [sameAddress, ...others] = notes
    t.match(sameAddress, /^all 100 requests have the same address/)
    return { notes: others, rate: sweep!.recommended!.rate }
  }
  const wide = ['--sweep', 'rate=1/s..9/s,capacity=1..50']
  const unbounded = await notes('--target', 'p99<=2s', ...wide)
  t.equal(unbounded.rate, '1/s')
  t.match(unbounded.notes, [
    /^the target does not bound rejections, .* add e\.g\. reject<=0\.1%/,
    /^the recommended rate/,
  ])
  const bounded = await notes('--target', 'reject<=0%,p99<=2s', ...wide)
  t.not(bounded.rate, '1/s')
  t.same(bounded.notes, [])
  const edge = await notes('--target', 'reject<=0%', '--sweep', 'rate=6/s..9/s,capacity=1..50')
  t.match(edge, { rate: '6/s', notes: [/^the recommended rate is the lowest of the sweep, .* wider range$/] })
})

t.test('the values of a range stay inside it', t => {
  const { rates = [] } = parseGrid('rate=1.04/s..1.06/s')
  t.same([Math.min(...rates), Math.max(...rates)], [1.04 / 1_000, 1.06 / 1_000])
  t.end()
})

t.test('a share equal to the bound keeps it', async t => {
  // 7 of 1000 come while one is there: 0.7 % as a number is not 0.7 / 100.
  const log = Array.from({ length: 1_000 }, (_, at) => combined(START + 100 * Math.max(0, at - 7))).join('')
  const found = await recommended(log, [
    ...['--spread', 'none', '--target', 'reject<=0.7%'],
    ...['--sweep', 'rate=1/s..9/s,capacity=1..9'],
  ])
  t.match(found, { rate: '1/s', capacity: 1, rejected: 7 })
})

t.test('a higher rate can lengthen the median wait', async t => {
  const pairs = Array.from({ length: 20 }, (_, at) => [
    { at: at * 60_000, client: 1 },
    { at: at * 60_000 + 950, client: 1 },
  ]).flat()
  const bursts = Array.from({ length: 10 }, () => ({ at: 20 * 60_000, client: 2 }))
  const found = await recommended(logOf([...pairs, ...bursts]), [
    ...['--target', 'reject<=0%,p50<=100ms'],
    ...['--sweep', 'rate=1/s..100/s,capacity=1..50'],
  ])
  // At 1/s all pairs are delayed by 50 ms. At 1.1/s only the burst is left, and its median is 5 periods.
  t.match(found, { rate: '1/s', capacity: 10, wait: { p50: 50 } })
})
