/** Changing limits while requests wait. */

import fc from 'fast-check'
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import { limits } from './run.js'

const KEYS = ['a', 'b', 'c']

interface Sent {
  key: string
  place: number
  fate: string[]
  ticket?: Ticket
}

const step = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      verb: fc.constant('send' as const),
      key: fc.constantFrom(...KEYS),
      cost: fc.constantFrom(1, 1, 2, 0.5),
    }),
  },
  { weight: 2, arbitrary: fc.record({ verb: fc.constant('cancel' as const), which: fc.nat(200) }) },
  {
    weight: 3,
    arbitrary: fc.record({ verb: fc.constant('wait' as const), ms: fc.constantFrom(1, 10, 100, 250, 1_000) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      verb: fc.constant('reload' as const),
      client: fc.tuple(fc.constantFrom(1, 2, 5, 20), fc.constantFrom(2, 5, 10)),
      everyone: fc.tuple(fc.constantFrom(2, 5, 10, 50), fc.constantFrom(4, 10, 30)),
      gold: fc.constantFrom(5, 40),
      burst: fc.constantFrom(undefined, undefined, 1, 3, 8),
      maxWait: fc.constantFrom(500, 3_000, Infinity),
    }),
  },
)

t.test('property: random reloads, cancels and tiers: no request is lost, notified twice, or out of order', async () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 80, size: 'max' }), steps => {
      const clock = createVirtualClock()
      const shaper = new Shaper({ clock })
      const bucketTable = new BucketTable(1_000)
      const gate = new Gate()
      const route = { name: 'api', gate }
      let client: BucketLimits = limits(5, 5, 'client')
      let gold: BucketLimits = { ...limits(20, 5, 'client'), tier: 'gold' }
      let everyone: BucketLimits = limits(10, 10, 'everyone')
      let maxWait = Infinity
      const sent: Sent[] = []
      const released: Sent[] = []
      const expired = { count: 0 }

      const check = (): void => {
        const waiting = sent.filter(({ ticket, fate }) => ticket !== undefined && fate.length === 0)
        if (waiting.length !== shaper.queued) throw new Error(`${waiting.length} wait, ${shaper.queued} are queued`)
        if (sent.some(({ fate }) => fate.length > 1)) throw new Error('one request ended twice')
        for (const key of KEYS) {
          const order = released.filter(each => each.key === key).map(({ place }) => place)
          if (order.some((place, index) => index > 0 && place <= order[index - 1]!)) throw new Error(`${key}: ${order}`)
          const bucket = bucketTable.find(key === 'c' ? gold : client, key, clock.now())!
          const mine = waiting.filter(each => each.key === key).reduce((sum, { ticket }) => sum + ticket!.cost, 0)
          if (Math.abs(bucket.queued - mine) > 1e-9) throw new Error(`${key}: ${bucket.queued} queued, not ${mine}`)
        }
      }

      for (const each of steps) {
        if (each.verb === 'send') {
          const mine: Sent = { key: each.key, place: sent.length, fate: [] }
          const stack = [
            bucketTable.find(each.key === 'c' ? gold : client, each.key, clock.now())!,
            bucketTable.find(everyone, 'all', clock.now())!,
          ]
          const release = (): void => {
            mine.fate.push('released')
            released.push(mine)
          }
          const waiter = {
            release,
            expire: () => {
              mine.fate.push('expired')
              expired.count += 1
            },
            reject: () => mine.fate.push('dropped'),
          }
          sent.push(mine)
          const verdict = shaper.admit({ route, stack, cost: each.cost }, waiter, maxWait)
          if (verdict === 'released') release()
          else if (verdict instanceof Ticket) mine.ticket = verdict
          else mine.fate.push('rejected')
        } else if (each.verb === 'cancel') {
          const victim = sent[each.which % Math.max(1, sent.length)]
          if (victim?.ticket !== undefined && shaper.cancel(victim.ticket)) victim.fate.push('cancelled')
        } else if (each.verb === 'wait') {
          clock.runUntil(clock.now() + each.ms)
        } else {
          const bursts = each.burst === undefined ? {} : { burst: each.burst }
          client = { ...limits(each.client[0], each.client[1], 'client'), ...bursts }
          gold = { ...limits(each.gold, each.client[1], 'client'), tier: 'gold' }
          everyone = { ...limits(each.everyone[0], each.everyone[1], 'everyone'), ...bursts }
          maxWait = each.maxWait
          const before = new Map(
            [...bucketTable.entries('client')].map(([key, bucket]) => [key, bucket.level(clock.now())]),
          )
          for (const [key, bucket] of bucketTable.entries('client')) {
            shaper.engine.setLimits(bucket, key === 'c' ? gold : client)
            if (bucket.level(clock.now()) > before.get(key)! + 1e-9) throw new Error(`${key}: a reload filled it`)
          }
          for (const [, bucket] of bucketTable.entries('everyone')) shaper.engine.setLimits(bucket, everyone)
          const told = expired.count
          const counted = [...shaper.engine.replan([gate], () => maxWait).values()].reduce(
            (sum, count) => sum + count,
            0,
          )
          if (expired.count - told !== counted) throw new Error('expired requests are counted and notified')
        }
        check()
      }
      clock.runAll()
      check()
      return shaper.queued === 0
    }),
    { seed: 77, numRuns: runs(1_500), includeErrorInReport: true },
  )
})

t.test('a lower rate: requests that would now exceed maxWait expire at once, earlier ones stay', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const bucketTable = new BucketTable(10)
  const gate = new Gate()
  const route = { name: 'api', gate }
  const fate: string[] = []
  for (let place = 0; place < 6; place += 1) {
    const stack = [bucketTable.find(limits(10, 10), 'a', 0)!]
    const tell = (what: string) => (): void => {
      fate.push(`${place} ${what} ${clock.now()}`)
    }
    shaper.admit(
      { route, stack, cost: 1 },
      { release: tell('released'), expire: tell('expired'), reject: tell('dropped') },
      1_000,
    )
  }
  clock.runUntil(100)
  for (const [, bucket] of bucketTable.entries('client')) shaper.engine.setLimits(bucket, limits(2, 10))
  t.same([...shaper.engine.replan([gate], () => 1_000)], [['api', 3]])
  t.same(fate, ['1 released 100', '3 expired 100', '4 expired 100', '5 expired 100'])
  clock.runAll()
  t.equal(fate.at(-1), '2 released 600')
})

t.test('a higher rate: waiting requests leave earlier, from the current level', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const bucketTable = new BucketTable(10)
  const route = { name: 'api', gate: new Gate() }
  const bucket = bucketTable.find(limits(1, 10), 'a', 0)!
  const slots: number[] = []
  const waiter = { release: (slot: number) => slots.push(slot), expire() {}, reject() {} }
  for (let place = 0; place < 4; place += 1) shaper.admit({ route, stack: [bucket], cost: 1 }, waiter)
  clock.runUntil(500)
  shaper.engine.setLimits(bucket, limits(10, 10))
  t.equal(bucket.level(500), 3.5)
  clock.runAll()
  t.same(slots, [550, 650, 750])
})

t.test('reset: the past is forgotten, and waiting requests may leave', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const bucket = new BucketTable(10).find({ ...limits(1, 2), blockFor: 'drain' }, 'a', 0)!
  const route = { name: 'api', gate: new Gate() }
  const slots: number[] = []
  const waiter = { release: (slot: number) => slots.push(slot), expire() {}, reject() {} }
  for (let place = 0; place < 3; place += 1) shaper.admit({ route, stack: [bucket], cost: 1 }, waiter)
  t.equal(bucket.blockedFor(0), Infinity)
  clock.runUntil(200)
  shaper.engine.reset(bucket)
  t.equal(bucket.blockedFor(200), 0)
  clock.runUntil(201)
  t.equal(slots.length, 1)
})
