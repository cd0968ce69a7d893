/** The three ways to apply limits (one bucket as a meter, the shaper, many limits at once) give the same results. */

import fc from 'fast-check'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { parseRate } from '../../src/core/units.js'
import { slackOf } from '../../src/decider/costs.js'
import type { LineParser } from '../../src/replay/formats/line-parser.js'
import { CommonLogParser } from '../../src/replay/formats/parsers/common-log.js'
import { RouteDirectory } from '../../src/replay/input/client-directory.js'
import { parseGrid, pointsOf } from '../../src/replay/plan/sweep-grid.js'
import { parseTarget } from '../../src/replay/plan/target.js'
import { replay } from '../../src/replay/replay.js'
import { type Bound, type PointOutcome, SweepRun } from '../../src/replay/runs/level-rows.js'
import { MeterRun } from '../../src/replay/runs/meter-run.js'
import { ShaperRun } from '../../src/replay/runs/shaper-run.js'
import { runs } from '../runs.js'
import { FIXTURE, planOf } from './logs.js'

const arrivalsOf = fc
  .array(
    fc.record({ gap: fc.constantFrom(0, 0, 0, 1, 7.25, 50, 100, 333.25, 1_000, 60_000), client: fc.nat({ max: 3 }) }),
    {
      minLength: 1,
      maxLength: 120,
      size: 'max',
    },
  )
  .map(gaps => {
    let at = -5_000
    return gaps.map(({ gap, client }) => {
      at += gap
      return { at, client }
    })
  })
const limitsOf = fc.record({
  rate: fc.constantFrom(0.5, 1, 2, 3, 7, 10, 100),
  capacity: fc.constantFrom(1, 2, 3, 5, 10, 2.5),
  burst: fc.constantFrom(null, null, 0.5, 2, 3.5, 8),
  cost: fc.constantFrom(1, 1, 2, 0.5),
  mode: fc.constantFrom('shape' as const, 'meter' as const),
})

function parserOf(client: number): LineParser {
  const parser = new CommonLogParser('common')
  const line = Buffer.from(`192.0.2.${client} - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5`)
  parser.parse(line, 0, line.length)
  return parser
}

t.test('property: a bucket as a meter, the shaper with its queues, and a row of levels agree', async t => {
  await fc.assert(
    fc.asyncProperty(arrivalsOf, limitsOf, async (arrivals, { rate, capacity, burst, cost, mode }) => {
      fc.pre(cost <= capacity)
      const settings = parseConfig(
        JSON.stringify({
          upstream: 'echo:',
          buckets: { client: { key: 'ip', rate: `${rate}/s`, capacity, ...(burst !== null && { burst }) } },
          routes: [{ name: 'all', mode, buckets: ['client'], cost }],
        }),
      )
      const ways = new RouteDirectory(settings)
      const core = new ShaperRun(settings, ways)
      const bucket = settings.buckets[0]!
      const meter = new MeterRun(bucket.limits, cost, mode)
      const sweep = new SweepRun([{ rate: 1, capacity: 1e6 }, bucket], {
        cost,
        slack: slackOf(bucket.limits, cost),
      })
      // Clients are numbered in the order in which they first appear.
      const whoOf = new Map<number, number>()
      for (const { at, client } of arrivals) {
        const who = whoOf.get(client) ?? ways.identify(parserOf(client))
        whoOf.set(client, who)
        core.arrive(at, who, 0)
        meter.arrive(at, who, 0)
        sweep.arrive(at, who)
      }
      core.end()
      meter.end()
      const { tally: a } = core
      const { tally: b } = meter
      const of = ({ requests, atOnce, delayed, rejected }: typeof a) => ({ requests, atOnce, delayed, rejected })
      t.same(of(b), of(a))
      for (const figure of ['p50', 'p90', 'p99', 'max'] as const) {
        if (Math.abs(a.waits.summary()[figure] - b.waits.summary()[figure]) > 1e-3) throw new Error(figure)
      }
      t.same(b.series.toPoints(), a.series.toPoints())
      const swept = sweep.outcomes()[1]!
      t.equal(swept.rejected, b.rejected)
      if (mode === 'shape') {
        t.equal(swept.delayed, b.delayed)
        if (Math.abs(swept.wait.max - b.waits.max) > 1e-3) throw new Error('max of the sweep')
      }
    }),
    { numRuns: runs(200) },
  )
})

t.test('each point of a sweep has the result of a single run', async t => {
  const sweep = parseGrid('rate=0.05/s..5/s x4,capacity=1|2|3.5|20')
  const { sweep: swept } = await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5' }, { sweep }))
  t.equal(swept!.points.length, 16)
  for (const point of swept!.points) {
    const name = `${point.rate}, ${point.capacity}`
    const single = await replay(planOf([FIXTURE], { rate: point.rate, capacity: String(point.capacity) }))
    t.equal(point.rejected, single.rejected, name)
    t.equal(point.delayed, single.delayed, name)
    t.ok(Math.abs(point.wait.max - single.wait.max) < 0.01, `${name}: longest ${point.wait.max}`)
    for (const figure of ['p50', 'p90', 'p99'] as const) {
      const [binned, exact] = [point.wait[figure], single.wait[figure]]
      t.ok(binned >= exact - 0.01 && binned <= exact * 1.016 + 0.01, `${name}: ${figure} ${binned} of ${exact}`)
    }
  }
})

/** The result of a single run, with exact quantiles. */
function meets({ requests, rejected, delayed, wait }: Omit<PointOutcome, 'rate'>, bounds: readonly Bound[]): boolean {
  const figures = { reject: rejected / requests, delay: delayed / requests, ...wait }
  return bounds.every(({ metric, most }) => figures[metric] <= most)
}

t.test('the recommendation meets its target, and nothing smaller does', async t => {
  for (const text of ['reject<=0.1%,p99<=2s', 'reject<=1%,max<=5s', 'reject<=0%,p50<=1s', 'reject<=2%']) {
    const target = parseTarget(text)
    const report = await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5' }, { target }))
    const found = report.sweep?.recommended
    t.ok(found, text)
    const { rate, capacity, config } = found!
    const of = async (rate: string, capacity: number) => {
      const { requests, rejected, delayed, wait } = await replay(
        planOf([FIXTURE], { rate, capacity: String(capacity) }),
      )
      return meets({ capacity, requests, rejected, delayed, wait }, target)
    }
    t.ok(await of(rate, capacity), `${text}: ${rate}, ${capacity}`)
    if (capacity > 1) t.notOk(await of(rate, capacity - 1), `${text}: a capacity of ${capacity - 1} is not enough`)
    const perSecond = Number(rate.replace('/s', ''))
    const slower = Number((perSecond - 10 ** (Math.floor(Math.log10(perSecond) + 1e-9) - 1)).toPrecision(2))
    if (perSecond > Number(report.sweep!.rates[0]!.replace('/s', ''))) {
      const all = Array.from({ length: report.sweep!.capacities.at(-1)! }, (_, at) => ({
        rate: slower / 1_000,
        capacity: at + 1,
      }))
      const { sweep } = await replay(
        planOf(
          [FIXTURE],
          { rate: '1/s', capacity: '5' },
          { sweep: { rates: [slower / 1_000], capacities: all.map(each => each.capacity) } },
        ),
      )
      t.same(
        sweep!.points.filter(point => meets(point, target)),
        [],
        `${text}: ${slower}/s never`,
      )
    }
    const { buckets } = parseConfig(`{ "upstream": "echo:", ${config} }`)
    t.match(buckets[0], { rate: perSecond / 1_000, capacity }, 'it can be pasted')
  }
})

t.test('the printed configuration has exactly the limits that were tried, also at slow rates', async t => {
  const target = parseTarget('reject<=1%,p99<=20s')
  const sweep = parseGrid('rate=1/m..5/s,capacity=1..60')
  const { sweep: swept } = await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5' }, { target, sweep }))
  const { config, rate, rejected, wait } = swept!.recommended!
  t.match(rate, /\/m$/, 'two digits per second are not enough for it')
  const [bucket] = parseConfig(`{ "upstream": "echo:", ${config} }`).buckets
  t.equal(bucket!.rate, parseRate(rate), config)
  const run = await replay(
    planOf([FIXTURE], { rate: `${bucket!.rate * 60_000}/m`, capacity: String(bucket!.capacity) }),
  )
  t.equal(run.rejected, rejected, config)
  t.ok(Math.abs(run.wait.max - wait.max) < 0.01, `${config}: ${run.wait.max} ms, not ${wait.max}`)
})

t.test('a target that no limits meet is reported', async t => {
  const target = parseTarget('reject<=0%,max<=1ms')
  const { sweep, notes } = await replay(
    planOf([FIXTURE], { rate: '1/s', capacity: '5' }, { target, sweep: parseGrid('rate=0.1/s..1/s') }),
  )
  t.equal(sweep!.recommended, undefined)
  t.match(notes.join(), /no rate and capacity within the sweep meets the target/)
})

t.test('grids and targets are parsed', async t => {
  t.same(parseGrid('rate=1/s|90/m,capacity=5|10'), { rates: [0.001, 0.0015], capacities: [5, 10] })
  const { rates, capacities } = parseGrid('rate=1/s..20/s, capacity=5..100 x4')
  t.equal(rates!.length, 8)
  t.same([rates![0], rates!.at(-1)], [0.001, 0.02])
  t.same(capacities, [5, 14, 37, 100])
  t.equal(pointsOf({ rates: rates!, capacities: capacities! }).length, 32)
  for (const text of [
    'rate=5',
    'rates=1/s',
    'rate=20/s..1/s',
    'capacity=0',
    'capacity=x',
    'access.log',
    'capacity=1..5000 x2000',
  ]) {
    t.throws(() => parseGrid(text), RangeError, text)
  }
  t.same(parseTarget('reject<=0.1%, p99<=2s'), [
    { metric: 'reject', most: 0.001 },
    { metric: 'p99', most: 2_000 },
  ])
  t.equal(parseTarget('reject<=0.7%')[0]!.most, 7 / 1_000)
  for (const text of ['reject<=1', 'p99<=5', 'p98<=1s', 'x', '']) t.throws(() => parseTarget(text), RangeError, text)
})
