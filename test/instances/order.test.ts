/** A store that keeps the order of arrival, as that of workers does: requests of one key leave as they came, wherever they wait. */
import t from 'tap'
import { FRAME } from '../../src/decider/constants.js'
import { limits, random } from '../core/run.js'
import { runs } from '../runs.js'
import { type Simulation, type SimulationOptions, type Source, simulate } from './simulator.js'
import { allowedBurst, longestOvertaking, overtakers, ratePerSecond, worstBurst } from './spacing.js'

/** ms from a report until its slots can be used: the pipe is near. */
const LEAD = 6

/** Requests that come at these times in ms, for each instance. */
function comeAt(times: readonly (readonly number[])[], keys: readonly string[] = ['all']): Source[] {
  const load = { kind: 'at-once', count: 1 } as const
  return times.flatMap((list, instance) => list.map(from => ({ instance, keys, load, from })))
}

function every(ms: number, count: number, from = 0): number[] {
  return Array.from({ length: count }, (_, place) => from + place * ms)
}

async function run(options: Omit<SimulationOptions, 'keepsOrder'>, until: number): Promise<Simulation> {
  const simulation = await simulate({ ...options, keepsOrder: true })
  await simulation.run(until)
  return simulation
}

function bucket(rate: number, name = 'client') {
  return limits(rate, 1e6, name)
}

for (const { what, rate, times } of [
  { what: '13 and 7 at 5/s', rate: 5, times: [every(15.3, 13), every(29, 7, 3)] },
  { what: '7 and 13 at 5/s', rate: 5, times: [every(29, 7, 3), every(15.3, 13)] },
  { what: '8 at one, later 3 at the other, at 5/s', rate: 5, times: [every(1, 8), [781, 831, 1_081]] },
  { what: '13, 4, 2 and 1 at 5/s', rate: 5, times: [every(11, 13), every(40, 4, 2), [5, 90], [60]] },
  {
    what: '6 and 7 at 1/s',
    rate: 1,
    times: [
      [...every(10, 4), 5_000, 6_000],
      [40, 50, 60, 2e3, 5_500, 6_500, 6_600],
    ],
  },
  {
    what: '5 and 4 at 6/m',
    rate: 0.1,
    times: [
      [0, 10, 15e3, 20e3, 33e3],
      [1e3, 16e3, 25e3, 28e3],
    ],
  },
]) {
  t.test(`in the order of arrival: ${what}`, async t => {
    const count = times.length
    const total = times.flat().length
    const { releases } = await run(
      { stack: [bucket(rate)], count, sources: comeAt(times) },
      (total + 1) * (1_000 / rate),
    )
    t.equal(longestOvertaking(releases), 0)
    const [first] = releases
    const late = releases.map(({ at }, place) => at - first!.at - (place * 1_000) / rate)
    t.equal(releases.length, total)
    t.ok(Math.max(...late.map(Math.abs)) < 1, `all slots of ${rate}/s are used`)
  })
}

/** Requests that come at random, 1.5 times as many as leave: 70 % at the first instance. Times in ms, for each instance. */
function atRandom({ count, rate, seconds, seed = 0 }: Arrivals): number[][] {
  const chance = random(count + rate + 1_000 * seed)
  const times = Array.from({ length: count }, (): number[] => [])
  for (let at = 0; at < seconds * 1_000; at += (-Math.log(1 - chance()) * 1_000) / (1.5 * rate)) {
    const instance = chance() < 0.7 ? 0 : 1 + Math.floor(chance() * (count - 1))
    times[instance]!.push(at)
  }
  return times
}

interface Arrivals {
  readonly count: number
  /** Of the bucket, per second. */
  readonly rate: number
  readonly seconds: number
  readonly seed?: number
}

for (const count of [2, 4]) {
  for (const rate of [20, 100, 200, 1_000]) {
    t.test(`${count} instances at ${rate}/s, one with 70 %, 1.5 r come at random`, async t => {
      const seconds = rate > 200 ? 3 : 10
      const times = atRandom({ count, rate, seconds })
      const simulation = await run({ stack: [bucket(rate)], count, sources: comeAt(times) }, 1_000 * seconds)
      const { releases, connections } = simulation
      const left = releases.map(({ at }) => at)
      // By then more waits than leaves in two frames.
      const queued = releases.filter(({ arrivedAt }) => arrivedAt > 1_000)
      const overtaking = longestOvertaking(queued)
      t.comment(
        `by ${overtaking.toFixed(1)} ms at most; ${longestOvertaking(releases).toFixed(1)} while the queue forms`,
      )
      t.ok(overtaking <= FRAME / 2, `a request overtakes one that came ${overtaking} ms before`)
      t.ok(longestOvertaking(releases) <= 2 * (FRAME + LEAD), 'and not much more while the queue forms')
      const reached = ratePerSecond(left, 1_000, 1_000 * seconds)
      t.ok(Math.abs(reached - rate) <= 1 / (seconds - 1), `${reached} of ${rate} per second`)
      t.ok(worstBurst(left, rate / 1_000) <= allowedBurst(rate / 1_000, count), 'the bound')
      const most = Math.max(...connections.map(({ calls }) => calls.verbs.get('lease') ?? 0))
      t.ok(most <= 10 * seconds, `${most} reports in ${seconds} s`)
    })
  }
}

t.test('a part of a slot that is left lets nobody overtake', async t => {
  for (const [count, rate, seed, before] of [
    [4, 100, 0, 203],
    [4, 200, 15, 83],
    [2, 200, 3, 17],
  ] as const) {
    const times = atRandom({ count, rate, seconds: 12, seed })
    const { releases } = await run({ stack: [bucket(rate)], count, sources: comeAt(times) }, 12_000)
    const overtaking = longestOvertaking(releases.filter(({ arrivedAt }) => arrivedAt > 1_000))
    t.ok(overtaking <= 10, `${overtaking} ms of ${count} at ${rate}/s, ${before} before`)
  }
})

t.test('four instances at 2000/s whose shares change every 300 ms', async t => {
  const chance = random(1)
  const times = Array.from({ length: 4 }, (): number[] => [])
  for (let at = 0; at < 2_000; at += -Math.log(1 - chance()) / 3) {
    const place = 0.6 * chance() + 0.2 * (Math.floor(at / 300) % 3)
    times[place < 0.7 ? 0 : 1 + Math.floor(10 * (place - 0.7))]!.push(at)
  }
  const { releases } = await run({ stack: [bucket(2_000)], count: 4, sources: comeAt(times) }, 2_000)
  const overtaking = longestOvertaking(releases.filter(({ arrivedAt }) => arrivedAt > 600))
  t.ok(overtaking <= FRAME / 4, `${overtaking} ms`)
  t.ok(
    worstBurst(
      releases.map(({ at }) => at),
      2,
    ) <= allowedBurst(2, 4),
    'the bound',
  )
})

t.test('requests of one key that come in gusts, with pauses of seconds between them', async t => {
  const chance = random(7)
  const gusts = Array.from({ length: 3 }, (_, gust) => Array.from({ length: 100 }, () => gust * 3_000 + 100 * chance()))
  const times = [0, 1, 2].map(instance => gusts.flatMap(gust => gust.filter((_, place) => place % 3 === instance)))
  const sources = comeAt(times.map(list => list.toSorted((one, other) => one - other)))
  const { releases } = await run({ stack: [bucket(20)], count: 3, sources }, 20_000)
  t.equal(releases.length, 300)
  t.ok(longestOvertaking(releases) < 100, 'no gust is mixed with another')
})

t.test('one key in a stack where the bucket for everyone is the narrow one', async t => {
  const stack = [bucket(1_000), bucket(5, 'everyone')]
  const times = [every(15.3, 13), every(29, 7, 3)]
  const { releases } = await run({ stack, count: 2, sources: comeAt(times, ['ann', 'all']) }, 5_000)
  t.equal(releases.length, 20)
  t.equal(longestOvertaking(releases), 0)
})

t.test('different keys of a shared bucket have their turns', async t => {
  const stack = [bucket(1_000), bucket(50, 'everyone')]
  const sources = [comeAt([every(1, 300), []], ['ann', 'all']), comeAt([[], every(1, 100, 500)], ['bob', 'all'])].flat()
  const { releases } = await run({ stack, count: 2, sources }, 4_000)
  const late = releases.filter(({ at }) => at > 1_000 && at <= 3_000)
  const ofBob = late.filter(({ source }) => source.keys[0] === 'bob').length
  t.ok(Math.abs(ofBob - late.length / 2) <= 2, `${ofBob} of ${late.length} are of the one who came last`)
})

t.test('hang-ups, and an instance that is killed: the others keep their order', async t => {
  const chance = random(3)
  const times = [0, 1, 2].map(() => every(20, 100).map(at => at + 10 * chance()))
  const sources = comeAt(times).map(source => ({ ...source, hangUp: { part: 0.3, after: 1_500 } }))
  const simulation = await run({ stack: [bucket(50)], count: 3, sources }, 2_500)
  t.ok(simulation.cancelled > 20)
  simulation.kill(0)
  await simulation.run(8_000)
  const { releases } = simulation
  t.ok(
    releases.filter(({ source, at }) => source.instance > 0 && at > 2_500).length > 20,
    'what waits elsewhere leaves',
  )
  t.ok(longestOvertaking(releases.filter(({ at }) => at < 2_500)) <= FRAME)
  t.ok(longestOvertaking(releases.filter(({ at }) => at > 3_000)) <= FRAME)
})

/** 20 requests at 5/s, of which the first has the oldest 10. What an instance has fetched when it stops is lost: one slot. */
const OLDEST_AT_FIRST = { stack: [bucket(5)], sources: comeAt([every(1, 10), every(1, 10, 10)]) }

t.test(
  'the oldest wait at an instance that stands still for 300 ms in each second: it loses one slot each time',
  async t => {
    for (let from = 150; from < 1_150; from += 50) {
      const stillUntil = (instance: number, at: number): number => {
        const into = (at - from) % 1_000
        return instance === 0 && at >= from && into < 300 ? at - into + 300 : -Infinity
      }
      const { releases } = await run({ ...OLDEST_AT_FIRST, count: 2, stillUntil }, 4_000)
      const left = releases.map(({ at }) => at)
      t.ok(left.length >= 20 - 4, `${left.length} of 20 leave, stopped at ${from} ms`)
      t.ok(worstBurst(left, 5e-3) <= allowedBurst(5e-3, 2), 'the bound')
    }
  },
)

t.test('an instance that stands still for up to 60 ms now and then loses at most one slot each time', async t => {
  let worst = 0
  for (let seed = 0; seed < runs(200); seed += 1) {
    const chance = random(seed)
    const pauses = [0, 1].map(() => {
      const list: { from: number; until: number }[] = []
      for (let from = 100 * chance(); from < 5_000; from += 20 + 500 * chance())
        list.push({ from, until: from + 20 + 40 * chance() })
      return list
    })
    const stillUntil = (instance: number, at: number): number =>
      pauses[instance]!.find(({ from, until }) => at >= from && at < until)?.until ?? -Infinity
    const times = [every(52, 13), every(52, 8, 13 * 52)]
    const options = { stack: [bucket(5)], count: 2, sources: comeAt(times), stillUntil }
    const { releases } = await run(options, 6_000)
    const ahead = overtakers(releases, FRAME).length
    t.equal(releases.length, 21, 'all leave, none of the slots is lost')
    worst = Math.max(worst, ahead)
  }
  t.ok(worst <= 2, `${worst} overtake, in some ten pauses`)
})

t.test('the oldest wait at an instance that is killed: the next slot but one goes to another', async t => {
  for (let at = 1_000; at < 1_200; at += 10) {
    const simulation = await run({ ...OLDEST_AT_FIRST, count: 2 }, at)
    simulation.kill(0)
    await simulation.run(5_000)
    const next = simulation.releases.find(release => release.at > at)!.at - at
    t.ok(next <= FRAME + LEAD + 200, `the next request leaves after ${next} ms, killed at ${at} ms`)
  }
})

for (const { at, rate, counts } of [
  { at: 300, rate: 5, counts: [7, 13] },
  { at: 1_110, rate: 5, counts: [7, 13] },
  { at: 700, rate: 5, counts: [13, 7] },
  { at: 300, rate: 5, counts: [7, 13, 5] },
  { at: 300, rate: 20, counts: [10, 30] },
  { at: 1_500, rate: 20, counts: [10, 30] },
]) {
  t.test(`what a newcomer is told at ${at} ms, with ${counts} waiting at ${rate}/s, is what it waits`, async t => {
    const sources = comeAt([...counts.map(count => every(1, count))])
    const newcomer = comeAt([[at]])[0]!
    const options = { stack: [bucket(rate)], count: counts.length, sources: [...sources, newcomer] }
    const simulation = await run(options, at - 1e-3)
    const told = simulation.told(newcomer)
    await simulation.run(20_000)
    const { at: left } = simulation.releases.find(({ arrivedAt }) => Math.abs(arrivedAt - at) < 1e-6)!
    const total = counts.reduce((sum, count) => sum + count)
    t.ok(Math.abs(left - (total * 1_000) / rate) < 1, 'all that came before it leaves first')
    for (const [name, ms] of Object.entries(told))
      t.ok(Math.abs(ms - (left - at)) < (2 * FRAME) / 3, `${name}: told ${ms} ms, waited ${left - at} ms`)
  })
}

t.test('nobody waits here: what is told is the level of the others, once it is known', async t => {
  const waiting = comeAt([[], every(1, 20)])
  const newcomers = comeAt([[300, 320], []])
  const simulation = await run({ stack: [bucket(5)], count: 2, sources: [...waiting, ...newcomers] }, 310)
  const { arrival } = simulation.told(newcomers[0]!)
  t.ok(Math.abs(arrival - (21 * 200 - 310)) < 2, `the first has asked: ${arrival}`)
})
