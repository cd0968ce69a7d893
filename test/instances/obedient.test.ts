/** What rejected clients are told holds at any instance, and rooms are whole requests. On a virtual clock. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { limits, mostHeld } from '../core/run.js'
import { runs } from '../runs.js'
import { type ReturningOptions, ReturningWorld } from './returning.js'
import { type Source, simulate } from './simulator.js'

const PER_30_S = limits(0.2, 6)

interface Loop {
  readonly clients: number
  readonly seconds: number
  /** ms from a rejection until it asks again. Absent: when it was told to, and 30 ms. */
  readonly again?: (world: ReturningWorld) => number
}

interface Seen {
  /** Those that were told a moment, or have a ticket for it where tickets are given. */
  returns: number
  /** Of these: were rejected once more. */
  refused: number
  /** Were rejected though the request fits, by one meter. */
  inVain: number
  /** ms. The longest that anybody was told. */
  longest: number
  left: number
}

/** Clients each ask again as soon as they were served, at any instance. */
async function loop(options: ReturningOptions, { clients, seconds, again }: Loop): Promise<Seen> {
  const world = await ReturningWorld.start(options)
  const { rate, capacity } = options.limits
  const seen: Seen = { returns: 0, refused: 0, inVain: 0, longest: 0, left: 0 }
  const end = world.clock.now() + seconds * 1_000
  let level = 0
  let at = 0
  let asking = 0
  const levelNow = (): number => {
    const now = world.clock.now()
    level = Math.max(0, level - (now - at) * rate)
    at = now
    return level
  }
  function visit(name: string, claim: number | undefined, isReturn: boolean): void {
    if (world.clock.now() >= end) return
    // Those that are being asked about may be admitted before it.
    const fits = levelNow() + asking + 1 <= capacity
    asking += 1
    const answered = (answer: Parameters<NonNullable<Parameters<ReturningWorld['ask']>[1]>>[0]): void => {
      const now = world.clock.now()
      asking -= 1
      if (isReturn) seen.returns += 1
      if (answer === 'admitted') {
        level = levelNow() + 1
        world.clock.at(now + 1, () => visit(name, undefined, false))
        return
      }
      if (isReturn) seen.refused += 1
      if (fits) seen.inVain += 1
      const { retryAfterMs = Infinity, booking } = answer
      seen.longest = Math.max(seen.longest, retryAfterMs)
      const wait = again?.(world) ?? Math.ceil(retryAfterMs) + 30
      const isTold = again === undefined && (options.books !== true || booking !== undefined)
      world.clock.at(now + wait, () => visit(name, booking, isTold))
    }
    world.ask(name, answered, { claim })
  }
  for (let at = 0; at < clients; at += 1)
    world.clock.at(world.clock.now() + 1 + 17 * at, () => visit(`client-${at}`, undefined, false))
  await world.pass(seconds * 1_000)
  seen.left = world.left.length
  return seen
}

for (const mode of ['shape', 'meter'] as const) {
  for (const [title, bucket, clients, seconds] of [
    ['6/30s, b 6', PER_30_S, 3, 400],
    ['1/4s, b 1', limits(0.25, 1), 1, 300],
    ['2/s, b 4', limits(2, 4), 2, 150],
    ['10/s, b 2', limits(10, 2), 1, 60],
  ] as const) {
    t.test(
      `${mode}, ${title}: who comes when it was told to is not refused again, at two and four instances`,
      async t => {
        for (const count of [2, 4]) {
          const seen = await loop({ limits: bucket, count, mode }, { clients, seconds })
          t.ok(seen.returns > 30, `${seen.returns} came back`)
          t.equal(seen.refused, 0, `of ${seen.returns}, ${count} instances`)
          t.ok(seen.longest <= bucket.capacity / bucket.rate + 1, `${seen.longest} ms, the bucket drains in less`)
          t.equal(seen.inVain, 0, 'no room is there that nobody can use')
        }
      },
    )
  }
}

for (const perSecond of [0.25, 1, 4]) {
  t.test(
    `${perSecond}/s, b 1, clients that poll: as much as one instance, and Retry-After is the bucket's`,
    async t => {
      const again = (world: ReturningWorld): number => 25 + 50 * world.chance()
      const left: number[] = []
      for (const count of [1, 2, 4]) {
        const seen = await loop(
          { limits: limits(perSecond, 1), count },
          { clients: 3, seconds: 120 / perSecond, again },
        )
        left.push(seen.left)
        t.ok(seen.longest <= 1_000 / perSecond + 1, `${count} instances: told ${seen.longest} ms at most`)
        t.equal(seen.inVain, 0, 'rejected only when it is full')
      }
      const [one, ...several] = left as [number, ...number[]]
      t.ok(one >= 0.9 * 120, `${one} of 120`)
      for (const more of several) t.ok(Math.abs(more - one) <= 0.02 * one, `${more} of ${one}`)
    },
  )
}

t.test('a flood of new clients at a full slow bucket asks the store once in a frame, not for each', async t => {
  for (const mode of ['shape', 'meter'] as const) {
    for (const bucket of [limits(0.25, 1), limits(2, 4), limits(10, 12)]) {
      const world = await ReturningWorld.start({ limits: bucket, count: 4, mode })
      world.live(400, 5_000)
      await world.pass(1_000)
      for (const { connection } of world.processes) connection.countAgain()
      await world.pass(4_000)
      for (const { connection } of world.processes) {
        const admits = connection.calls.verbs.get('admit')! / 4
        t.ok(admits <= 11, `${mode}, ${bucket.rate * 1_000}/s: ${admits} of 100 in a second`)
      }
    }
  }
})

for (const mode of ['shape', 'meter'] as const) {
  for (const [title, bucket, seconds] of [
    ['6/30s, b 6', PER_30_S, 600],
    ['2/s, b 12', limits(2, 12), 150],
    ['20/s, b 20', limits(20, 20), 20],
    ['100/s, b 60', limits(100, 60), 6],
  ] as const) {
    t.test(
      `${mode}, ${title}: a ticket is good at its moment at any instance, also one that had told another`,
      async t => {
        for (const count of [2, 4]) {
          const clients = Math.ceil(1.5 * bucket.capacity)
          const seen = await loop({ limits: bucket, count, mode, books: true }, { clients, seconds })
          t.ok(seen.returns > 100, `${seen.returns} came back`)
          t.equal(seen.refused, 0)
        }
      },
    )
  }
}

/** Requests that come in bursts, with pauses as long as a lease or its end. Returns what was admitted beyond r times the time. */
async function irregular(options: ReturningOptions, seed: number): Promise<number> {
  const world = await ReturningWorld.start({ ...options, mode: 'meter', seed, distance: () => 0.1 })
  const { clock, left, processes, chance } = world
  const { capacity, rate } = options.limits
  for (let phase = 0; phase < 60; phase += 1) {
    const only = world.any()
    const count = Math.ceil(chance() * 2 * capacity)
    const span = chance() < 0.5 ? 0 : chance() * 200
    for (let at = 0; at < count; at += 1)
      clock.at(clock.now() + chance() * span, () =>
        world.ask(`${phase} ${at}`, undefined, phase % 3 === 0 ? { instance: only } : {}),
      )
    await world.pass(span + chance() * (chance() < 0.7 ? 150 : (2 * capacity) / rate))
  }
  t.ok(left.length > capacity && processes.length > 1)
  return world.excess() - capacity
}

for (const [perSecond, capacity] of [
  [20, 10],
  [100, 12],
  [200, 40],
  [1_000, 100],
] as const) {
  t.test(
    `meter, ${perSecond}/s, b ${capacity}: no more than b passes beyond r in any time, at 2 to 4 instances`,
    async t => {
      let worst = -Infinity
      for (let seed = 1; seed <= runs(80); seed += 1) {
        const excess = await irregular({ limits: limits(perSecond, capacity), count: 2 + (seed % 3) }, seed)
        worst = Math.max(worst, excess)
      }
      // An answer takes 0.1 ms more or less than another.
      t.ok(worst <= 0.2 * (perSecond / 1_000) + 1e-3, `${worst} beyond b`)
    },
  )
}

/** An instance stands still while the answers to the first requests of a burst arrive. */
async function burstAfterStall(bucket: BucketLimits, count: number, [from, still]: readonly [number, number]) {
  const start = 1_000
  const sources = Array.from({ length: 20 }, (_, at): Source => {
    return { instance: at % count, keys: ['k'], from: start, load: { kind: 'at-once', count: 1 } }
  })
  const end = start + from + still
  const simulation = await simulate({
    ...{ stack: [bucket], count, sources, distance: () => 0.2, isReal: true },
    stillUntil: (_, at) => (at >= start + from && at < end ? end : -Infinity),
  })
  await simulation.run(4_000)
  return simulation.releases.map(({ at }) => at - end)
}

t.test('a burst whose slots were missed leaves together a moment later, and not one by one', async t => {
  const bucket = { ...limits(10, 40), burst: 5 }
  for (const count of [1, 2]) {
    for (const stall of [
      [0.1, 9],
      [0.3, 12],
      [0.6, 20],
    ] as const) {
      const times = await burstAfterStall(bucket, count, stall)
      t.ok(times[4]! < 5, `${count} instances, ${stall}: ${times.slice(0, 6).map(Math.round)}`)
      t.ok(times[5]! > 50, 'and the next one at its slot')
    }
  }
})

t.test('k of n instances are cut off: r (1 + k / n) passes at most', async t => {
  for (const [count, cut] of [
    [4, 2],
    [4, 3],
    [3, 2],
  ] as const) {
    const sources = Array.from({ length: count }, (_, instance): Source => {
      return { instance, keys: ['k'], load: { kind: 'saturated', depth: 20 } }
    })
    const bucket = limits(100, 200)
    const simulation = await simulate({ stack: [bucket], count, sources, distance: () => 0.5, jitter: 0.2 })
    await simulation.run(2_000)
    const away = simulation.connections.slice(0, cut)
    for (const connection of away) Object.assign(connection, { down: true, loses: 'cut' })
    await simulation.run(6_000)
    for (const connection of away) Object.assign(connection, { down: false, loses: undefined })
    await simulation.run(10_000)
    const left = simulation.releases.map(({ at }) => ({ at, cost: 1 }))
    const excess = mostHeld({ ...bucket, rate: bucket.rate * (1 + cut / count) }, left)
    t.ok(excess <= 1 + count, `${cut} of ${count}: ${excess} beyond`)
  }
})

t.test('a client at its own limit beside light ones gets it, also where the store is far away', async t => {
  for (const count of [1, 2, 4]) {
    for (const distance of [0.1, 2.5, 7.5, 20]) {
      for (const [own, shared, light] of [
        [50, 100, 20],
        [20, 60, 20],
        [50, 200, 60],
        [10, 30, 10],
      ] as const) {
        const heavy: Source = { instance: 0, keys: ['heavy', 'all'], load: { kind: 'saturated', depth: 20 } }
        const others = Array.from({ length: 8 }, (_, at): Source => {
          return { instance: at % count, keys: [`light ${at}`, 'all'], load: { kind: 'poisson', ms: 8_000 / light } }
        })
        const stack = [limits(own, 100, 'client'), limits(shared, 200, 'everyone')]
        const simulation = await simulate({ stack, count, sources: [heavy, ...others], distance: () => distance })
        await simulation.run(20_000)
        const mine = simulation.releases.filter(({ source }) => source === heavy)
        const part = mine.filter(({ at }) => at > 4_000).length / 16 / own
        const what = `${own}/s behind ${shared}/s, ${light}/s beside it, ${count} instances, ${distance} ms: ${part}`
        t.ok(part >= (distance === 20 && own < 50 ? 0.8 : 0.97), what)
        const times = mine.map(({ at }) => ({ at, cost: 1 }))
        t.ok(mostHeld(stack[0]!, times) <= 1 + 4 + 1e-3, `${what}: ${mostHeld(stack[0]!, times)} together`)
      }
    }
  }
})
