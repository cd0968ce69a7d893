/**
 * Small buckets that several instances share: requests that fit are admitted, though room is leased. On a virtual clock. A store that
 * comes back with its data is one that could not be reached.
 */
import t from 'tap'
import { limits } from '../core/run.js'
import { type Simulation, type Source, simulate } from './simulator.js'

const COUNT = 3
/** When the store goes away, in ms. */
const AWAY = 3_000

interface Bucket {
  readonly perSecond: number
  readonly capacity: number
  /** The part of its rate that is asked for. */
  readonly part: number
}

/** How many requests one meter would reject. */
function overflowsOf({ releases, losses }: Simulation, { perSecond, capacity }: Bucket): number {
  const times = [...releases.map(({ arrivedAt }) => arrivedAt), ...losses.map(({ at }) => at)].sort((a, b) => a - b)
  let level = 0
  let last = 0
  let overflows = 0
  for (const at of times) {
    level = Math.max(0, level - ((at - last) * perSecond) / 1_000)
    last = at
    if (level + 1 > capacity) overflows += 1
    else level += 1
  }
  return overflows
}

/** Requests that were rejected although they fit, of all. */
async function rejectedInVain(bucket: Bucket, seed: number, awayFor: number): Promise<readonly [number, number]> {
  const { perSecond, capacity, part } = bucket
  const sources = Array.from({ length: COUNT }, (_, instance): Source => {
    return { instance, keys: ['ann'], load: { kind: 'poisson', ms: (1_000 * COUNT) / (part * perSecond) } }
  })
  const simulation = await simulate({ stack: [limits(perSecond, capacity)], count: COUNT, sources, seed, jitter: 0.5 })
  await simulation.run(AWAY)
  for (const connection of simulation.connections) Object.assign(connection, { down: awayFor > 0, loses: 'cut' })
  await simulation.run(AWAY + awayFor)
  for (const connection of simulation.connections) Object.assign(connection, { down: false, loses: undefined })
  await simulation.run(AWAY + awayFor + 5_000)
  const { releases, losses } = simulation
  return [losses.length - overflowsOf(simulation, bucket), releases.length + losses.length]
}

// In the third the bucket is full for half a second in one of the runs.
for (const { awayFor, most, before, ...bucket } of [
  { perSecond: 20, capacity: 10, part: 0.7, awayFor: 0, most: 4, before: 23 },
  { perSecond: 20, capacity: 10, part: 0.7, awayFor: 300, most: 4, before: 39 },
  { perSecond: 20, capacity: 10, part: 0.7, awayFor: 3_000, most: 14, before: 42 },
  { perSecond: 50, capacity: 10, part: 0.6, awayFor: 1_000, most: 4, before: 39 },
]) {
  const { perSecond, capacity, part } = bucket
  const away = awayFor === 0 ? '' : `, the store is away for ${awayFor / 1_000} s`
  t.test(
    `clients at ${100 * part} % of ${perSecond}/s with ${capacity}${away}: none is rejected that fits`,
    async t => {
      let rejected = 0
      let all = 0
      for (let seed = 1; seed <= 20; seed += 1) {
        const [vain, sent] = await rejectedInVain(bucket, seed, awayFor)
        rejected += vain
        all += sent
      }
      t.ok(rejected <= most, `${rejected} of ${all}, ${before} before`)
    },
  )
}

/** The most that waited at one moment. */
function mostWaiting({ releases }: Simulation): number {
  const changes = releases.flatMap(({ arrivedAt, at }) => [
    { at: arrivedAt, by: 1 },
    { at, by: -1 },
  ])
  changes.sort((one, other) => one.at - other.at || one.by - other.by)
  let waits = 0
  return Math.max(...changes.map(({ by }) => (waits += by)))
}

// Room for less than a few requests was divided among the instances: two of them admitted nothing at all at 20/s with a capacity of 1.
for (const { perSecond, capacity, instances, before, isOwn } of [
  { perSecond: 20, capacity: 1, instances: 2, before: 3 },
  { perSecond: 20, capacity: 2, instances: 3, before: 14 },
  { perSecond: 20, capacity: 5, instances: 4, before: 78 },
  { perSecond: 100, capacity: 1, instances: 4, before: 0 },
  { perSecond: 100, capacity: 5, instances: 4, before: 53 },
  { perSecond: 500, capacity: 2, instances: 2, before: 17 },
  { perSecond: 20, capacity: 2, instances: 3, before: 15, isOwn: true },
  { perSecond: 100, capacity: 2, instances: 2, before: 26, isOwn: true },
]) {
  const of = isOwn ? 'of its own' : 'in common'
  t.test(`${instances} instances, ${perSecond}/s with ${capacity} ${of}: what one process sends`, async t => {
    const sources = Array.from({ length: instances }, (_, instance): Source => {
      return { instance, keys: ['ann', 'all'], load: { kind: 'poisson', ms: (1_000 * instances) / (3 * perSecond) } }
    })
    const stack = [limits(perSecond, capacity), ...(isOwn ? [limits(10 * perSecond, 40 * perSecond, 'everyone')] : [])]
    const simulation = await simulate({ stack, count: instances, sources, seed: 1, jitter: 0.5 })
    await simulation.run(10_000)
    const { releases, losses } = simulation
    const fits = releases.length + losses.length - overflowsOf(simulation, { perSecond, capacity, part: 3 })
    const part = Math.round((100 * releases.length) / fits)
    t.ok(part >= 97 && part <= 103, `${part} % of what fits one meter, ${before} % of the rate before`)
    // One for each instance whose question is on its way.
    t.ok(mostWaiting(simulation) <= capacity + instances, `${mostWaiting(simulation)} waited at once`)
  })
}
