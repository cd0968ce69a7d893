/**
 * `maxWait` on a shared bucket: a newcomer is judged by its turn, whatever waits of others, here and in other instances. On the virtual
 * clock.
 */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type SharedBucket, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { limits } from '../core/run.js'
import { type Simulation, type Source, simulate } from './simulator.js'

/** Instances keep so many requests of route `a` waiting. */
function flood(instances: readonly number[], depth: number, more: Partial<Source> = {}): Source[] {
  return instances.map(instance => ({
    ...{ instance, keys: ['all'], route: 'a', load: { kind: 'saturated', depth } },
    ...more,
  }))
}

/** A request of route `b` now and then. */
function newcomers(instance: number, ms: number, maxWait: number, more: Partial<Source> = {}): Source {
  return { instance, keys: ['all'], route: 'b', from: 1_500, maxWait, load: { kind: 'every', ms }, ...more }
}

function poisson(instances: number, perSecond: number, more: Partial<Source> = {}): Source[] {
  return Array.from({ length: instances }, (_, instance) => ({
    ...{ instance, keys: ['all'], route: 'a', load: { kind: 'poisson', ms: (instances * 1_000) / perSecond } },
    ...more,
  }))
}

function operations({ connections }: Simulation): number {
  let sum = 0
  for (const { calls } of connections) for (const [verb, count] of calls.verbs) if (verb !== 'beat') sum += count
  return sum
}

/** How long the requests of a route waited, and how often they were lost for each reason. */
function outcomes({ releases, losses }: Simulation, route: string) {
  const lost = losses.filter(({ source }) => source.route === route)
  return {
    waits: releases.filter(({ source }) => source.route === route).map(({ at, arrivedAt }) => at - arrivedAt),
    rejected: lost.filter(({ reason }) => reason === 'max-wait'),
    expired: lost.filter(({ reason }) => reason === 'expired').length,
  }
}

t.test('one process without a store: a request of another route has its turn, however many wait', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gate = new Gate()
  const stack: SharedBucket[] = [new QueuedBucket(limits(5, 1_000, 'everyone'))]
  let left = Infinity
  const ignored = { release() {}, expire() {}, reject() {} }
  const waiter = {
    ...ignored,
    release() {
      left = clock.now()
    },
  }
  const route = { name: 'a', gate }
  for (let count = 0; count < 100; count += 1) shaper.admit({ route, stack, cost: 1 }, ignored)
  clock.runUntil(1_000)
  t.ok(shaper.admit({ route: { name: 'b', gate }, stack, cost: 1 }, waiter, 5_000) instanceof Ticket)
  clock.runUntil(5_000)
  t.ok(left - 1_000 <= 400, `after ${left - 1_000} ms`)
})

const everyone = (perSecond: number, more: Partial<BucketLimits> = {}): BucketLimits => ({
  ...limits(perSecond, 1_000, 'everyone'),
  ...more,
})

/** Of a bucket of 5 or 50/s before which 100 or 400 requests wait. `most`: ms until a newcomer leaves. */
const worlds = [
  { title: 'at the same instance', perSecond: 50, floods: flood([0], 400), at: 0, most: 50 },
  { title: 'at the same instance', perSecond: 5, floods: flood([0], 100), at: 0, most: 400 },
  { title: 'at another instance', perSecond: 50, floods: flood([0], 400), at: 1, most: 200 },
  { title: 'at another instance', perSecond: 5, floods: flood([0], 100), at: 1, most: 600 },
  { title: 'at all four', perSecond: 50, floods: flood([0, 1, 2, 3], 100), at: 1, most: 200 },
  { title: 'at all four', perSecond: 5, floods: flood([0, 1, 2, 3], 25), at: 1, most: 1_200 },
  { title: 'at all, blockFor', perSecond: 50, floods: flood([0, 1], 200), at: 1, most: 200, blockFor: 1 },
  {
    title: 'of class 7 elsewhere',
    perSecond: 5,
    floods: flood([0], 100, { priority: 7 }),
    at: 1,
    priority: 0,
    most: 600,
  },
  {
    title: 'of class 0 elsewhere',
    perSecond: 50,
    floods: flood([0], 400, { priority: 0 }),
    at: 1,
    priority: 7,
    most: 1_000,
  },
]

for (const keepsOrder of [false, true]) {
  const by = keepsOrder ? 'workers' : 'store'
  for (const { title, perSecond, floods, at, most, blockFor, priority } of worlds) {
    t.test(`${by}: a flood ${title} at ${perSecond}/s keeps nobody else from its turn`, async t => {
      const maxWait = perSecond === 5 ? 5_000 : 2_000
      const newcomer = newcomers(at, maxWait / 3, maxWait, priority === undefined ? {} : { priority })
      const stack = [everyone(perSecond, blockFor === undefined ? {} : { blockFor })]
      const simulation = await simulate({ stack, count: 4, sources: [...floods, newcomer], keepsOrder })
      await simulation.run(20_000)
      const { waits, rejected, expired } = outcomes(simulation, 'b')
      t.same([rejected.length, expired], [0, 0])
      t.ok(
        waits.length >= 10 && Math.max(...waits) <= most,
        `${waits.length} left after at most ${Math.max(...waits)} ms`,
      )
    })
  }

  t.test(`${by}: what comes for a shared bucket behind clients' own has its turn`, async t => {
    const clients = [0, 1, 2, 3].map((instance): Source => {
      return { instance, keys: [`client ${instance}`, 'all'], route: 'a', load: { kind: 'saturated', depth: 100 } }
    })
    const newcomer = newcomers(1, 700, 2_000, { keys: ['new', 'all'] })
    const stack = [limits(20, 500, 'client'), everyone(50)]
    const simulation = await simulate({ stack, count: 4, sources: [...clients, newcomer], keepsOrder })
    await simulation.run(20_000)
    const { waits, rejected } = outcomes(simulation, 'b')
    t.equal(rejected.length, 0)
    t.ok(waits.length >= 25 && Math.max(...waits) <= 200, `after at most ${Math.max(...waits)} ms`)
  })

  t.test(`${by}: who has its turn too late is rejected, and is told a time at which it is not`, async t => {
    // Class 7 has 5 % of 5/s: a request in 4 s.
    const sources = [
      ...flood([0], 100, { priority: 0, to: 3_000 }),
      newcomers(1, 900, 3_000, { priority: 7, to: 5_000 }),
    ]
    const simulation = await simulate({ stack: [everyone(5)], count: 2, sources, keepsOrder })
    await simulation.run(5_000)
    const { rejected, expired } = outcomes(simulation, 'b')
    t.equal(expired, 0)
    t.ok(rejected.length >= 2)
    for (const { retryAfterMs, at } of rejected) {
      // 100 wait until the load ends, and then 5 leave in each second.
      const fits = 3_000 + 17_000 - at
      t.ok(retryAfterMs! >= Math.min(17_000, fits) - 1_000 && retryAfterMs! <= 20_000, `${retryAfterMs} at ${at}`)
    }
  })

  t.test(`${by}: at twice the rate few that are admitted wait too long, and no more is asked of the store`, async t => {
    const sources = [...poisson(4, 90, { maxWait: 2_000 }), ...poisson(4, 10, { maxWait: 2_000, route: 'b' })]
    const simulation = await simulate({ stack: [everyone(50)], count: 4, sources, keepsOrder })
    await simulation.run(20_000)
    const [a, b] = ['a', 'b'].map(route => outcomes(simulation, route)) as [Outcomes, Outcomes]
    t.same([b.rejected.length, b.expired], [0, 0])
    t.equal(a.waits.length + b.waits.length, 1_000, 'all slots are used')
    // One process alone: 0.19 of them, as those that come later have their turns as well.
    const part = a.expired / (a.waits.length + a.expired)
    t.ok(part < 0.25, `${part} of those that are admitted`)
    t.ok(operations(simulation) <= 700, `${operations(simulation)} operations`)
  })

  t.test(`${by}: of clients with buckets of their own few that are admitted wait too long`, async t => {
    const sources = Array.from({ length: 32 }, (_, place): Source => {
      const keys = [`client ${Math.floor(place / 4)}`, 'all']
      return { instance: place % 4, keys, route: 'a', maxWait: 2_000, load: { kind: 'poisson', ms: 320 } }
    })
    const stack = [limits(20, 500, 'client'), everyone(50)]
    const simulation = await simulate({ stack, count: 4, sources, keepsOrder })
    await simulation.run(20_000)
    const { waits, expired } = outcomes(simulation, 'a')
    t.ok(waits.length >= 990, `${waits.length} left`)
    // What the others have admitted since their last reports is not known: the level is 2 % too low.
    t.ok(expired < 0.33 * waits.length, `${expired} waited too long`)
  })

  t.test(`${by}: a newcomer of a lower class is told its own wait, not that of all`, async t => {
    for (const at of [3_000, 3_450, 4_020]) {
      const newcomer: Source = {
        ...{ instance: 0, keys: ['all'], route: 'a', priority: 1, from: at },
        load: { kind: 'at-once', count: 1 },
      }
      const sources = [...flood([0, 1], 20), newcomer]
      const simulation = await simulate({ stack: [everyone(5)], count: 2, sources, keepsOrder })
      await simulation.run(at - 1e-3)
      const told = simulation.told(newcomer)
      await simulation.run(at + 10_000)
      const release = simulation.releases.find(({ source }) => source === newcomer)!
      const waited = release.at - release.arrivedAt
      for (const [what, wait] of Object.entries(told))
        t.ok(Math.abs(wait - waited) <= 201, `${what}: told ${wait} ms, waited ${waited} ms`)
    }
  })
}

type Outcomes = ReturnType<typeof outcomes>
