/** `onOutage: "closed"`: how long requests wait for the store to come back, on the virtual clock. */
import t, { type Test } from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { Sharing } from '../../src/sharing/sharing.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { turns } from '../proxy/harness.js'

/** One instance, and one request that waits for a bucket of one a minute. */
async function start(t: Test) {
  const clock = createVirtualClock()
  const memory = createMemoryStore({ clock })
  const outage = { away: false }
  const store = new Proxy(memory, {
    get(target, name, receiver) {
      const value = Reflect.get(target, name, receiver)
      if (typeof value !== 'function') return value
      return async (...values: unknown[]) => {
        if (outage.away) throw new Error('the store is away')
        return value.apply(target, values)
      }
    },
  })
  const states: string[] = []
  const sharing = new Sharing({ store, onOutage: 'closed', clock, id: 'a', changed: ({ state }) => states.push(state) })
  const shaper = new Shaper({ clock, share: sharing.shareBy(clock) })
  const table = new BucketTable(10, (limits, key) => sharing.createBucket(limits, key))
  const gate = new Gate()
  const run = async (until: number): Promise<void> => {
    while (clock.now() < until) {
      clock.runUntil(Math.min(until, clock.now() + 50))
      await turns(3)
    }
  }
  const joined = sharing.join({
    shaper,
    clock,
    buckets: () => table.all(),
    peek: (name, key) => table.peek(name, key),
    gates: () => [gate],
  })
  await run(10)
  await joined
  const limits = { name: 'all', rate: 1 / 60_000, capacity: 10 }
  const route = { name: 'route', gate }
  const expired: number[] = []
  for (let count = 0; count < 2; count += 1) {
    const bucket = table.find(sharing.limitsOf(limits, 'all'), 'all', clock.now())!
    const callbacks = {
      decided: () => undefined,
      release: () => undefined,
      expire: (now: number) => expired.push(now),
      reject: () => undefined,
    }
    shaper.arrive({ route, stack: [bucket], cost: 1 }, callbacks, 'shape', Infinity)
  }
  await run(5_000)
  t.equal(shaper.queued, 1)
  t.equal(sharing.state, 'shared')
  return { memory, outage, sharing, shaper, states, expired, run }
}

t.test('those who wait stay when the store is back in time, also if an instance has joined meanwhile', async t => {
  const { memory, outage, sharing, shaper, states, expired, run } = await start(t)
  outage.away = true
  await run(6_500)
  t.equal(sharing.state, 'alone')
  await memory.beat('b')
  outage.away = false
  await run(12_000)
  t.equal(sharing.state, 'shared')
  t.equal(sharing.instances, 2)
  t.same(states.slice(-3), ['alone', 'returning', 'shared'])
  t.same(expired, [])
  t.equal(shaper.queued, 1)
})

t.test('those who wait expire two seconds after the store was given up', async t => {
  const { outage, shaper, expired, run } = await start(t)
  outage.away = true
  await run(12_000)
  t.equal(expired.length, 1)
  t.ok(expired[0]! >= 7_000 && expired[0]! <= 8_500, `at ${expired[0]}`)
  t.equal(shaper.queued, 0)
})
