/** A gate that closes while a store is asked (contract 8.4). On the virtual clock. */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type LaneRoute, type Rejection } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { shareBy } from '../../src/sharing/shared-room.js'
import type { Store } from '../../src/sharing/store.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { shardIn } from '../sharing/shard.js'
import { limits } from './run.js'

/** Promises have been told. */
async function settled(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await Promise.resolve()
}

/** One instance on a store whose answers wait for `answer`. */
function instance() {
  const clock = createVirtualClock()
  const memory = createMemoryStore({ clock })
  let open: (() => void)[] = []
  const later = <T>(ask: () => T): Promise<T> => new Promise(resolve => open.push(() => resolve(ask())))
  const store: Store = {
    ...memory,
    horizon: 0,
    admit: request => later(() => memory.admit(request)) as ReturnType<Store['admit']>,
    claim: request => later(() => memory.claim(request)) as ReturnType<Store['claim']>,
  }
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const log: string[] = []
  const callbacks = (name: string) => ({
    decided: () => undefined,
    release: () => void log.push(name),
    expire: () => undefined,
    reject: ({ reason }: Rejection) => void log.push(`${name} ${reason}`),
  })
  const bucket = (key: string, perSecond = 10) =>
    new StoredBucket(limits(perSecond, 10, 'client'), key, (name, of) => `${name}:${of}`, shardIn('claimed'))
  return {
    clock,
    shaper,
    log,
    send: (name: string, route: LaneRoute, own = bucket(name)) =>
      shaper.arrive({ route, stack: [own], cost: 1 }, callbacks(name), 'shape', Infinity),
    bucket,
    async answer() {
      const now = open
      open = []
      for (const each of now) each()
      await settled()
    },
  }
}

t.test('an admission that was asked for before the gate was blocked brings no slot', async t => {
  const { clock, shaper, log, send, answer } = instance()
  const route = { name: 'api', gate: new Gate() }
  send('a', route)
  send('b', route)
  shaper.engine.block(route.gate)
  await answer()
  clock.runUntil(100)
  await answer()
  t.same(log, [], 'nothing passes')
  t.equal(route.gate.inFlight, 0)
  t.equal(route.gate.probe, false)
  shaper.engine.allowProbe(route.gate)
  for (let time = 200; time < 300; time += 10) {
    await answer()
    clock.runUntil(time)
  }
  t.same(log, ['a'], 'the probe')
  t.equal(route.gate.inFlight, 1)
})

t.test('nor does a claim', async t => {
  const { clock, shaper, log, send, bucket, answer } = instance()
  const route = { name: 'api', gate: new Gate() }
  const own = bucket('a', 2)
  send('a', route, own)
  send('b', route, own)
  await answer()
  clock.runUntil(10)
  t.same(log, ['a'])
  clock.runUntil(450)
  t.equal(route.gate.inFlight, 2, 'b claims a slot')
  shaper.engine.block(route.gate)
  await answer()
  clock.runUntil(800)
  await answer()
  clock.runUntil(1_000)
  t.same(log, ['a'], 'nothing more passes')
  t.equal(route.gate.inFlight, 1)
})

t.test('admissions that are asked for together do not exceed maxInFlight', async t => {
  const { clock, log, send, answer } = instance()
  const route = { name: 'api', gate: new Gate(1) }
  for (const name of ['a', 'b', 'c']) send(name, route)
  await answer()
  clock.runUntil(100)
  await answer()
  t.equal(route.gate.inFlight, 1)
  t.same(log, ['a'])
})
