/** Of b + 1 requests that come together to an idle bucket exactly b are admitted, where no room is leased. On a virtual clock. */
import t from 'tap'
import { limits } from '../core/run.js'
import { ReturningWorld } from './returning.js'

/** ms one way: mostly, and while the machine is busy. */
const QUICK = 0.25
const SLOW = 12
/**
 * ms. How much later than the one before each request comes, and how late the answers to the first two, then at once, are. Where that is
 * more than the grace the first slot is missed and claimed again, and the others come as soon as these answers are there.
 */
const BURSTS = [0, 0.3, 1, 2.5, 4].flatMap(apart => [0, 35].map(late => ({ apart, late })))

interface Counts {
  /** Bursts by how many of their requests were admitted. */
  readonly admitted: Record<number, number>
  /** Clients that came back when they were told to, and 30 ms, and how many of these were refused again. */
  returned: number
  refused: number
}

/** Bursts of b + 1. Before each some answers are late: so its first slot lies ahead. The rejected clients come back one after another. */
async function bursts(perSecond: number, capacity: number, count: number): Promise<Counts> {
  let way = QUICK
  const world = await ReturningWorld.start({ limits: limits(perSecond, capacity), count, distance: () => way })
  const { clock } = world
  const counts: Counts = { admitted: {}, returned: 0, refused: 0 }
  const drains = (capacity * 1_000) / perSecond + 500
  for (const { apart, late } of BURSTS) {
    way = SLOW
    for (let before = 0; before < 8 * count; before += 1) {
      world.ask('before', undefined, { instance: before % count })
      await world.pass(drains)
    }
    way = QUICK
    let admitted = 0
    const come = (place: number): void =>
      world.ask(
        `client-${place}`,
        answer => {
          if (answer === 'admitted') admitted += 1
          else clock.at(clock.now() + answer.retryAfterMs! + 30, () => comeBack(place))
        },
        { instance: place % count },
      )
    const comeBack = (place: number): void => {
      counts.returned += 1
      world.ask(`client-${place}`, answer => {
        if (answer !== 'admitted') counts.refused += 1
      })
    }
    const start = clock.now()
    for (let place = 0; place <= capacity; place += 1)
      clock.at(start + (late > 0 && place < 2 ? 0 : late + apart * place), () => come(place))
    // Their questions are on the way then, and their answers are not.
    clock.at(start + QUICK / 2, () => {
      way = QUICK + late
    })
    clock.at(start + 1.5 * QUICK, () => {
      way = QUICK
    })
    await world.pass(apart * capacity + late + 50)
    counts.admitted[admitted] = (counts.admitted[admitted] ?? 0) + 1
    await world.pass(2 * drains)
  }
  return counts
}

for (const [perSecond, capacity] of [
  [0.4, 3],
  [1, 2],
  [5, 4],
  [10, 5],
] as const) {
  for (const count of [1, 2, 4]) {
    t.test(`b + 1 at ${perSecond}/s with b = ${capacity}, ${count} instances: exactly b`, async t => {
      const { admitted, returned, refused } = await bursts(perSecond, capacity, count)
      t.same(admitted, { [capacity]: BURSTS.length })
      t.same([returned, refused], [BURSTS.length, 0], 'who comes back when told is admitted')
    })
  }
}
