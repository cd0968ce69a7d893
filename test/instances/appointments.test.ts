/** Promises and bookings of several instances on one store, on the virtual clock (docs/decisions/appointments.md). */
import t from 'tap'
import type { Rejection } from '../../src/core/queue/lane.js'
import { limits } from '../core/run.js'
import { crowdOf, mostInSecond, type Returning, ReturningWorld, shareAt } from './returning.js'

const RATE = 100
const COUNT = 4
/** ms that a message takes. */
const DISTANCES = {
  near: () => 0.25,
  apart: (instance: number) => [0.25, 2, 15, 50][instance]!,
}

/** 1,000 clients are rejected at once, by any of the instances. Each comes back when it was told to, up to `late` ms late, to any. */
async function rejectThousand(world: ReturningWorld, late: number): Promise<Returning[]> {
  await world.fill(1_000)
  const clients = crowdOf(1_000)
  for (const client of clients) world.visit(client, () => late * world.chance())
  await world.pass(600)
  return clients.filter(({ toldAt }) => toldAt.length > 0)
}

for (const [title, distance] of Object.entries(DISTANCES)) {
  const options = { limits: limits(RATE, 1_000), count: COUNT, distance }
  // What a window may have beyond r times its length: 10 ms of it, and a request for each instance.
  const most = RATE * 0.01 + COUNT

  t.test(`${title}: without tickets clients of all instances are told one sequence of moments`, async t => {
    const world = await ReturningWorld.start(options)
    const clients = await rejectThousand(world, 50)
    t.ok(clients.length > 950, `${clients.length} were rejected`)
    await world.pass(60_000)
    const first = shareAt(clients, 2)
    t.ok(first >= 0.95, `admitted at their first return: ${first}`)
    t.ok(world.excess() <= most, `${world.excess()}`)
    const moments = clients.map(({ toldAt }) => toldAt[0]!).sort((one, other) => one - other)
    t.ok(moments.at(-1)! - moments[0]! < 10_200, `from ${moments[0]} to ${moments.at(-1)}`)
    const gaps = moments.slice(1).map((at, place) => at - moments[place]!)
    if (title === 'near') t.ok(Math.min(...gaps) > 10 - 1e-6, `${Math.min(...gaps)} ms apart: no two are told the same`)
  })

  t.test(`${title}: a flood of ever new clients asks for promises at most ten times in a second`, async t => {
    for (const times of [1.5, 30]) {
      const world = await ReturningWorld.start({ ...options, limits: limits(RATE, 200) })
      await world.fill(200)
      world.live(times * RATE, 8_000)
      await world.pass(9_000)
      const longest = Math.max(...world.processes.flatMap(({ tellingTook }) => tellingTook))
      // Two frames at most until a call, and the calls before it and for it, of 100 ms each where the instances are apart.
      t.ok(longest <= (title === 'near' ? 241 : 441), `${times} r: ${longest} ms until a rejection is told`)
      for (const { promisesAskedAt } of world.processes) {
        // What is asked at one moment is one message.
        const most = mostInSecond([...new Set(promisesAskedAt)])
        t.ok(most <= 10, `${times} r: ${most} in a second`)
      }
      const used =
        world.left.filter(({ at }) => at > world.clock.now() - 7_000 && at <= world.clock.now() - 1_000).length /
        (6 * RATE)
      t.ok(used >= 0.95, `${used} of r`)
    }
  })

  t.test(`${title}: clients of mixed costs are admitted at their first return`, async t => {
    const world = await ReturningWorld.start(options)
    for (let count = 0; count < 195; count += 1) world.ask(`first-${count}`, undefined, { cost: 5 })
    await world.pass(150)
    const clients = crowdOf(180).map(client => ({ ...client, cost: 1 + Math.floor(9 * world.chance()) }))
    for (const client of clients) world.visit(client, () => 50 * world.chance())
    await world.pass(900)
    const rejected = clients.filter(({ toldAt }) => toldAt.length > 0)
    t.ok(rejected.length > 150, `${rejected.length} were rejected`)
    await world.pass(60_000)
    // Room is leased in parts, and one for a large cost may not be in one piece.
    t.ok(shareAt(rejected, 2) >= 0.9, `admitted at their first return: ${shareAt(rejected, 2)}`)
  })

  t.test(`${title}: clients of all instances that book are told one sequence of moments, a slot apart`, async t => {
    const world = await ReturningWorld.start({ ...options, books: true })
    const clients = await rejectThousand(world, 50)
    t.ok(clients.length > 950, `${clients.length} were rejected`)
    const moments = clients.map(({ toldAt }) => toldAt[0]!).sort((one, other) => one - other)
    // What is known of the way to the store is at most 100 ms wrong.
    t.ok(moments.at(-1)! - moments[0]! < 10_200, `from ${moments[0]} to ${moments.at(-1)}`)
    const gaps = moments.slice(1).map((at, place) => at - moments[place]!)
    if (title === 'near') t.ok(Math.min(...gaps) > 10 - 1e-6, `${Math.min(...gaps)} ms apart`)
    await world.pass(30_000)
    t.equal(shareAt(clients, 2), 1, 'admitted at their first return')
    t.ok(world.excess() <= most, `${world.excess()}`)
  })

  for (const mode of ['shape', 'meter'] as const) {
    if (mode === 'meter' && title === 'apart') continue
    t.test(
      `${title}, ${mode}: all come with their tickets, to any instance, among live traffic of twice the rate`,
      async t => {
        const world = await ReturningWorld.start({ ...options, mode, books: true })
        const clients = await rejectThousand(world, 900)
        let live = 0
        world.live(2 * RATE, 25_000, () => {
          live += 1
        })
        await world.pass(40_000)
        t.ok(clients.length > 950, `${clients.length} were rejected`)
        t.equal(shareAt(clients, 2), 1)
        t.ok(live > 500, `${live} of the others were admitted`)
        if (mode === 'shape') t.ok(world.excess() <= most, `${world.excess()}`)
      },
    )
  }

  t.test(`${title}: what nobody claims leaves no gap`, async t => {
    for (const capacity of [60, 200]) {
      const world = await ReturningWorld.start({ ...options, limits: limits(RATE, capacity), books: true })
      await world.fill(capacity)
      // All of them book, and nobody comes again.
      world.live(1.5 * RATE, 20_000)
      await world.pass(5_000)
      const before = world.left.length
      await world.pass(15_000)
      const used = (world.left.length - before) / (15 * RATE)
      t.ok(used >= 0.99, `capacity ${capacity}: ${used} of r`)
      t.ok(world.excess() <= most, `${world.excess()}`)
    }
  })

  t.test(`${title}: a flood of clients that never come back books nobody out`, async t => {
    const world = await ReturningWorld.start({ ...options, limits: limits(RATE, 1_000), books: true })
    await world.fill(1_000)
    const clients = crowdOf(100)
    for (const client of clients) world.visit(client, () => 900 * world.chance())
    await world.pass(200)
    world.live(10 * RATE, 20_000)
    await world.pass(20_000)
    const rejected = clients.filter(({ toldAt }) => toldAt.length > 0)
    t.ok(rejected.length > 80)
    t.equal(shareAt(rejected, 2), 1, 'who had booked before it')
    const used = world.left.filter(({ at }) => at > world.clock.now() - 15_000).length / (15 * RATE)
    t.ok(used >= 0.95, `${used} of r`)
    // Each instance rejects 4,500.
    for (const { connection } of world.processes)
      t.ok(connection.calls.verbs.get('appoint')! < 2_500, `${connection.calls.verbs.get('appoint')} questions in 20 s`)
  })
}

t.test(
  'a client that asks each instance again and again is told one moment, and the store is asked once by each',
  async t => {
    const world = await ReturningWorld.start({ limits: limits(RATE, 1_000), count: COUNT, books: true })
    await world.fill(1_000)
    const told: number[] = []
    await world.pass(1)
    for (let again = 0; again < 40; again += 1) {
      world.ask(
        'client',
        answer => {
          if (answer !== 'admitted') told.push(world.clock.now() + answer.retryAfterMs!)
        },
        { instance: again % COUNT },
      )
    }
    await world.pass(10)
    t.ok(told.length >= 10, `${told.length} rejections`)
    t.ok(Math.max(...told) - Math.min(...told) < 5, `${Math.min(...told)} to ${Math.max(...told)}`)
  },
)

t.test('the first client that a quiet bucket rejects waits for one call; who rejects nobody asks nothing', async t => {
  const world = await ReturningWorld.start({ limits: limits(RATE, 1_000), count: COUNT })
  await world.fill(900)
  const rejected: number[] = []
  const answered = (answer: 'admitted' | Rejection): void => {
    if (answer !== 'admitted') rejected.push(answer.retryAfterMs!)
  }
  world.ask('client', answered, { instance: 0, cost: 500 })
  await world.pass(10)
  t.equal(rejected.length, 1)
  t.same(
    world.processes.map(({ promisesAskedAt, tellingTook }) => [promisesAskedAt.length, ...tellingTook]),
    [[1, 0.5], [0], [0], [0]],
  )
})

t.test(
  'a crowd leaves a gap of one slot in the sequence, and a flow of clients one of what it needs in a frame',
  async t => {
    const told = async (world: ReturningWorld): Promise<number> => {
      let at = Number.NaN
      const answered = (answer: 'admitted' | Rejection): void => {
        if (answer !== 'admitted') at = world.clock.now() + answer.retryAfterMs!
      }
      world.ask('after', answered, { instance: 1, cost: 60 })
      await world.pass(200)
      return at
    }
    const options = { limits: limits(RATE, 1_000), count: 2 }
    const world = await ReturningWorld.start(options)
    await world.fill(1_000)
    const crowd = crowdOf(500)
    for (const client of crowd) world.visit(client, () => 60_000, 0)
    await world.pass(600)
    const last = Math.max(...crowd.flatMap(({ toldAt }) => toldAt))
    // The first call was for one client, so the second asked for one ahead.
    const gap = (await told(world)) - last - 600
    t.ok(gap >= -1 && gap <= 11, `${gap} ms behind a crowd`)

    const flowing = await ReturningWorld.start(options)
    await flowing.fill(1_000)
    const clients = crowdOf(300)
    for (const client of clients) {
      flowing.visit(client, () => 60_000, 0)
      await flowing.pass(3)
    }
    await flowing.pass(300)
    const { tellingTook } = flowing.processes[0]!
    const atOnce = tellingTook.filter(took => took === 0).length / tellingTook.length
    t.ok(atOnce > 0.5, `${atOnce} are told at once`)
    const behind = (await told(flowing)) - Math.max(...clients.flatMap(({ toldAt }) => toldAt)) - 600
    // 333/s in 120 ms are 40 clients, of 10 ms.
    t.ok(behind >= -1 && behind <= 401, `${behind} ms behind a flow`)
  },
)

t.test('a client that asks again while it is asked for is promised one moment', async t => {
  const world = await ReturningWorld.start({ limits: limits(RATE, 1_000), count: 1 })
  await world.fill(1_000)
  const told = new Map<string, number[]>()
  for (let again = 0; again < 50; again += 1) {
    for (const name of ['one', 'two', 'three']) {
      const answered = (answer: 'admitted' | Rejection): void => {
        if (answer !== 'admitted') told.set(name, [...(told.get(name) ?? []), world.clock.now() + answer.retryAfterMs!])
      }
      world.ask(name, answered, { cost: 20 })
    }
  }
  await world.pass(300)
  const moments = [...told.values()].map(all => [...new Set(all.map(Math.round))])
  t.same(
    moments.map(all => all.length),
    [1, 1, 1],
  )
  const [one, two, three] = moments.flat() as [number, number, number]
  t.same([two - one, three - two], [200, 200], 'nothing is promised in between')
})

t.test('in an outage those that wait for their moments are spread by their instance', async t => {
  const world = await ReturningWorld.start({ limits: limits(RATE, 1_000), count: COUNT, distance: () => 15 })
  await world.fill(1_000)
  const told: number[] = []
  for (let count = 0; count < 40; count += 1) {
    world.ask(
      `client-${count}`,
      answer => {
        if (answer !== 'admitted') told.push(world.clock.now() + answer.retryAfterMs!)
      },
      { instance: 0 },
    )
  }
  // They are rejected, and the store is being asked for the first of them.
  await world.pass(40)
  t.equal(told.length, 0)
  for (const { connection } of world.processes) connection.down = true
  await world.pass(2_000)
  t.ok(told.length > 30, `${told.length} were rejected`)
  t.equal(new Set(told.map(Math.round)).size, told.length, 'all are told different moments')
})

t.test('more than a thousand at once: the further ones are told the last moment that is known', async t => {
  const world = await ReturningWorld.start({ limits: limits(RATE, 3_000), count: 1, distance: () => 15 })
  await world.fill(3_000)
  const told: number[] = []
  for (let count = 0; count < 2_500; count += 1) {
    world.ask(`client-${count}`, answer => {
      if (answer !== 'admitted') told.push(world.clock.now() + answer.retryAfterMs!)
    })
  }
  await world.pass(1_000)
  const { tellingTook } = world.processes[0]!
  const waited = told.filter((_, place) => tellingTook[place]! > 0)
  t.ok(told.length > 2_400, `${told.length} were rejected`)
  t.ok(waited.length >= 1_000 && waited.length <= 1_001, `${waited.length} waited`)
  t.equal(new Set(waited.map(Math.round)).size, waited.length, 'a moment each')
})
