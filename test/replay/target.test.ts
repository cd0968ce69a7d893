/** Compares the recommendation of `--target` with a search of the whole grid of docs/replay.md. */
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { parseGrid } from '../../src/replay/plan/sweep-grid.js'
import { parseTarget } from '../../src/replay/plan/target.js'
import { replay } from '../../src/replay/replay.js'
import type { ReplayReport } from '../../src/replay/report/report.js'
import { shaper } from '../cli/command.js'
import { bytes, combined, planOf } from './logs.js'

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

/** Each client's queue as the time at which its last request leaves. It shares no code with the replay. */
function model(arrivals: readonly Arrival[], perSecond: number, capacity: number, cost = 1) {
  const freeAt = new Map<number, number>()
  const waits: number[] = []
  let rejected = 0
  for (const { at, client } of arrivals) {
    const wait = Math.max(0, (freeAt.get(client) ?? -Infinity) - at)
    if ((wait * perSecond) / 1_000 + cost > capacity + 1e-6) {
      rejected += 1
      continue
    }
    freeAt.set(client, at + wait + (cost * 1_000) / perSecond)
    if (wait > 1e-5) waits.push(Math.round(wait * 1_000) / 1_000)
  }
  waits.sort((a, b) => a - b)
  const quantile = (q: number) => waits[Math.max(0, Math.ceil(q * waits.length) - 1)] ?? 0
  const all = arrivals.length
  const figures = { p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99), max: waits.at(-1) ?? 0 }
  return { reject: rejected / all, delay: waits.length / all, ...figures }
}

type Metric = keyof ReturnType<typeof model>
type Bounds = readonly (readonly [Metric, number])[]

/** The first rate and capacity that keep the bounds, in ascending order of rate, then of capacity. */
function smallest(arrivals: readonly Arrival[], bounds: Bounds, cost: number) {
  for (const perSecond of RATES) {
    for (let capacity = 1; capacity <= MOST_CAPACITY; capacity += 1) {
      const found = model(arrivals, perSecond, capacity, cost)
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
const waitOf = fc.constantFrom(0, 50, 100, 250, 500, 1_000, 1_500, 2_000, 4_000)
const boundsOf: fc.Arbitrary<Bounds> = fc.uniqueArray(
  fc.oneof(
    fc.tuple(fc.constant('reject' as const), shareOf),
    fc.tuple(fc.constantFrom('delay' as const), shareOf),
    fc.tuple(fc.constantFrom('p50' as const, 'p90' as const, 'p99' as const, 'max' as const), waitOf),
  ),
  { minLength: 1, maxLength: 3, selector: ([metric]) => metric },
)

/** 0.5/s to 4/s in two digits. */
const RATES = [
  ...Array.from({ length: 50 }, (_, at) => (50 + at) / 100),
  ...Array.from({ length: 31 }, (_, at) => (10 + at) / 10),
]
const MOST_CAPACITY = 12

for (const cost of [1, 2.5]) {
  t.test(`the recommendation is the smallest of the grid, at a cost of ${cost}`, async t => {
    const settings = {
      upstream: 'echo:',
      buckets: { client: { key: 'ip', rate: '1/s', capacity: 9 } },
      routes: [{ mode: 'shape', buckets: ['client'], cost }],
    }
    const limits = { settings: parseConfig(JSON.stringify(settings)), name: 'file', plain: false }
    const seen = { some: 0, none: 0 }
    await fc.assert(
      fc.asyncProperty(arrivalsOf, boundsOf, async (arrivals, bounds) => {
        const expected = smallest(arrivals, bounds, cost)
        const { sweep } = await replay(
          planOf(bytes(logOf(arrivals)), limits, {
            target: parseTarget(written(bounds)),
            sweep: parseGrid(`rate=0.5/s..4/s,capacity=1..${MOST_CAPACITY}`),
          }),
        )
        const found = sweep!.recommended
        const pair = found && { perSecond: Number(found.rate.replace('/s', '')), capacity: found.capacity }
        assert.deepEqual(
          pair,
          expected && { perSecond: expected.perSecond, capacity: expected.capacity },
          written(bounds),
        )
        seen[expected === undefined ? 'none' : 'some'] += 1
        if (expected === undefined || found === undefined) return
        assert.equal(found.rejected / arrivals.length, expected.found.reject)
        for (const figure of ['p50', 'p90', 'p99', 'max'] as const) {
          assert.ok(Math.abs(found.wait[figure] - expected.found[figure]) < 2e-3, `${figure} is exact`)
        }
      }),
      { numRuns: 150 },
    )
    t.ok(seen.some > 20 && seen.none > 5, JSON.stringify(seen))
  })
}

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

t.test('a target without a bound on rejections, or at the lowest rate, says so', async t => {
  const log = Array.from({ length: 100 }, (_, at) => combined(START + Math.floor(at / 5))).join('')
  const notes = async (...args: string[]) => {
    const { child, finished } = shaper(['replay', '--json', ...args])
    child.stdin.end(log)
    const { notes, sweep } = JSON.parse((await finished).stdout) as ReplayReport
    return { notes, rate: sweep!.recommended!.rate }
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
