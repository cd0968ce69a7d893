/** What rejected clients are told by a store at a distance, on the virtual clock. */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate } from '../../src/core/queue/lane.js'
import { keptIn } from '../../src/core/structures/maps.js'
import { FRAME } from '../../src/decider/constants.js'
import type { AppointmentAnswer, AppointmentRequest } from '../../src/decider/record.js'
import { SharedPromises } from '../../src/sharing/promises.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { limits } from '../core/run.js'
import { shardIn } from './shard.js'

/** ms that a message to the store or from it takes. */
const WAY = 40

/** ms */
const FAR = 5_000

t.test('a client that another bucket delays a little longer is told by the first answer', async t => {
  const clock = createVirtualClock()
  const memory = createMemoryStore({ clock })
  const bucket = new StoredBucket(limits(1_000, 10_000), 'all', () => '', shardIn('claimed'))
  let calls = 0
  const appoint = (request: AppointmentRequest): Promise<AppointmentAnswer> => {
    calls += 1
    return new Promise(resolve => {
      clock.at(clock.now() + WAY, () => {
        const answer = memory.appoint!(request) as AppointmentAnswer
        clock.at(clock.now() + WAY, () => resolve(answer))
      })
    })
  }
  const promises = new SharedPromises({ store: { appoint }, clock })
  const route = { name: 'route', gate: new Gate() }
  // Others were promised all moments of the next seconds.
  const others = { cost: 1, more: FAR - 1, client: 0, booking: 0, maxWait: Infinity, fit: 0 }
  await memory.appoint!({ bucket: bucket.ref, ...others })
  // The store makes it a promise before it fits. Once the answer is here that is less than a frame before.
  const retryAfterMs = FAR + FRAME
  const told: number[] = []
  promises.ask(
    {
      arrival: { route, stack: [bucket], cost: 1, client: 'ann' },
      rejection: { reason: 'overflow', buckets: [bucket], retryAfterMs },
      maxWait: Infinity,
      tell: rejection => told.push(clock.now(), rejection.retryAfterMs!),
    },
    () => t.fail('the store answers'),
  )
  for (let at = 0; at <= FAR && told.length === 0; at += 10) {
    clock.runUntil(at)
    await new Promise(resolve => setImmediate(resolve))
  }
  t.same(told, [2 * WAY, retryAfterMs - 2 * WAY])
  t.equal(calls, 1)
})

t.test(
  'a client that asks two instances in turn has one promise, and the next client is told one slot later',
  async t => {
    const clock = createVirtualClock()
    const store = createMemoryStore({ clock })
    const route = { name: 'route', gate: new Gate() }
    const instances = [0, 1].map(() => {
      const bucket = new StoredBucket(limits(0.2, 10), 'all', () => '', shardIn('claimed'))
      return { bucket, promises: new SharedPromises({ store, clock }) }
    })
    await store.admit({ stack: [instances[0]!.bucket.ref], cost: 10, maxWait: Infinity, claim: false })
    const told = new Map<string, number[]>()
    const ask = (client: string, { bucket, promises }: (typeof instances)[number]): void =>
      promises.ask(
        {
          arrival: { route, stack: [bucket], cost: 1, client },
          rejection: { reason: 'overflow', buckets: [bucket], retryAfterMs: 5_000 - clock.now() },
          maxWait: Infinity,
          tell: ({ retryAfterMs }) => keptIn(told, client, () => []).push(Math.round(clock.now() + retryAfterMs!)),
        },
        () => t.fail('the store answers'),
      )
    const clients = ['ann', 'bob', 'cho', 'dan']
    for (const [number, client] of clients.entries()) {
      for (let asked = 0; asked < 4; asked += 1) {
        ask(client, instances[(number + asked) % 2]!)
        // They come closer together than calls of one instance.
        clock.runUntil(clock.now() + 60)
      }
    }
    clock.runUntil(clock.now() + 2 * FRAME)
    for (const [number, client] of clients.entries())
      t.same(told.get(client), Array(4).fill(5_000 * (number + 1)), client)
  },
)

t.test('after a reset nobody is told the last moment from before it', async t => {
  const clock = createVirtualClock()
  const bucket = new StoredBucket(limits(5, 10), 'all', () => '', shardIn('claimed'))
  const promises = new SharedPromises({ store: createMemoryStore({ clock }), clock })
  const route = { name: 'route', gate: new Gate() }
  const told: number[] = []
  const ask = (client: string): void =>
    promises.ask(
      {
        arrival: { route, stack: [bucket], cost: 1, client },
        rejection: { reason: 'overflow', buckets: [bucket], retryAfterMs: 10 },
        maxWait: Infinity,
        tell: rejection => told.push(rejection.retryAfterMs!),
      },
      () => t.fail('the store answers'),
    )
  bucket.promising.last = 9_000
  bucket.promising.fullUntil = 100
  ask('ann')
  t.same(told.splice(0), [9_000], 'as much is promised as may be')
  bucket.reset(0)
  ask('bob')
  bucket.promising.fullUntil = 100
  ask('cid')
  t.same(told, [10, 10])
})
