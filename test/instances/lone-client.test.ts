/** One client of several instances on one store, on the virtual clock. It sends the next request when the one before was admitted. */
import t from 'tap'
import { limits } from '../core/run.js'
import { ReturningWorld } from './returning.js'

interface Case {
  /** Cost units per second. */
  readonly rate: number
  readonly capacity: number
  /** Cost units of its requests, by chance. */
  readonly costs: readonly number[]
}

/** A frame has no room for any of them. */
const SLOW: readonly Case[] = [
  { rate: 5, capacity: 10, costs: [1] },
  { rate: 5, capacity: 10, costs: [3] },
  { rate: 5, capacity: 10, costs: [5] },
  { rate: 5, capacity: 10, costs: [10] },
  { rate: 5, capacity: 10, costs: [1, 2, 5] },
  { rate: 100, capacity: 200, costs: [50] },
  { rate: 1_000, capacity: 1_000, costs: [300] },
  { rate: 1, capacity: 100, costs: [30] },
]

interface Options extends Case {
  readonly mode: 'shape' | 'meter'
  readonly count: number
  /** ms that a message to the store or from it takes. */
  readonly way: number
  /** ms between an admission and the next request, on average. */
  readonly think: number
  readonly requests: number
}

async function run({ mode, rate, capacity, costs, count, way, think, requests }: Options) {
  const world = await ReturningWorld.start({ ...{ limits: limits(rate, capacity), count, mode }, distance: () => way })
  const { clock } = world
  const began = clock.now()
  let admitted = 0
  let rejected = 0
  let atFirst = 0
  let left = requests
  const next = (): void => {
    if (left === 0) return
    left -= 1
    const cost = costs[Math.floor(world.chance() * costs.length)]!
    let visits = 0
    const visit = (): void => {
      visits += 1
      const answered: Parameters<typeof world.ask>[1] = answer => {
        if (answer !== 'admitted') return void clock.at(clock.now() + answer.retryAfterMs!, visit)
        admitted += cost
        if (visits > 1) rejected += 1
        if (visits === 2) atFirst += 1
        clock.at(clock.now() + think * (0.5 + world.chance()), next)
      }
      world.ask('client', answered, { cost })
    }
    visit()
  }
  next()
  while (left > 0) await world.pass(1_000)
  const used = admitted / (capacity + ((clock.now() - began) * rate) / 1_000)
  return { first: atFirst / rejected, rejected, used, excess: world.excess() }
}

/** One and four instances, near and far, at once after an admission and after the time in which a request drains. */
function casesOf(mode: Options['mode']): Options[] {
  const places = [1, 4].flatMap(count => [0.5, 30].map(way => ({ count, way })))
  return SLOW.flatMap(each => {
    const period = (1_000 * each.costs[0]!) / each.rate
    return places.flatMap(place => [5, period].map(think => ({ ...each, ...place, mode, think, requests: 100 })))
  })
}

for (const mode of ['shape', 'meter'] as const) {
  t.test(`${mode}: it is admitted at its first return`, async t => {
    for (const options of casesOf(mode)) {
      const { rate, capacity, costs, count, way, think } = options
      const { first, rejected, excess } = await run(options)
      const what = `${costs} of ${capacity} at ${rate}/s, ${count} instances, ${way} ms away, after ${think} ms`
      if (rejected > 0) t.equal(first, 1, `${what}: ${rejected} rejected`)
      // What the store has admitted leaves up to a way later.
      const most = mode === 'meter' ? capacity + (rate * 2 * way) / 1_000 : rate * 0.01 + count * Math.max(...costs)
      t.ok(excess <= most, `${what}: ${excess} beyond r times the window`)
    }
  })
}

t.test('shape: it uses the rate', async t => {
  for (const way of [0.5, 30]) {
    const { used } = await run({ ...SLOW[1]!, mode: 'shape', count: 4, way, think: 5, requests: 200 })
    t.ok(used > 0.98, `${used} of r, ${way} ms away`)
  }
})
