/** A slot of a store that lies ahead: when the request leaves, and when the slot is too late. On the virtual clock. */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { shareBy } from '../../src/sharing/shared-room.js'
import type { ClaimAnswer, ClaimRequest, GiveBackRequest, Slot, Store } from '../../src/sharing/store.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { enqueue, shardIn } from '../sharing/shard.js'
import { limits } from './run.js'

/** One instance on a store that answers each claim after a delay in ms, with the next slot of a list. */
function instance(slots: (Pick<Slot, 'at' | 'from'> & { after: number })[], perSecond = 20) {
  const clock = createVirtualClock()
  const claims: { at: number; request: ClaimRequest }[] = []
  const givenBack: GiveBackRequest[] = []
  const store: Store = {
    horizon: 75,
    admit: () => ({ admitted: true, levels: [1] }),
    claim(request) {
      claims.push({ at: clock.now(), request })
      return new Promise<ClaimAnswer>(resolve => {
        const { after, at, from } = slots.shift()!
        const slot = { at, from, token: at }
        clock.at(clock.now() + after, () => resolve({ granted: true, slot }))
      })
    },
    giveBack: request => void givenBack.push(request),
    reset: () => undefined,
    beat: () => ({ count: 1, left: 0, rank: 0, epoch: 0 }),
    exchange: () => ({ pausedFor: 0, rate: undefined, rateFor: 0 }),
    close: async () => undefined,
  }
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const bucket = new StoredBucket(limits(perSecond, 10), 'key', () => 'group', shardIn('claimed'))
  const released: { at: number; slot: number }[] = []
  const route = { name: 'route', gate: new Gate() }
  const waiter = {
    release: (slot: number) => void released.push({ at: clock.now(), slot }),
    expire: () => undefined,
    reject: () => undefined,
  }
  return {
    claims,
    givenBack,
    released,
    send(count: number) {
      for (let sent = 0; sent < count; sent += 1)
        enqueue(shaper, { arrival: { route, stack: [bucket], cost: 1 }, waiter, maxWait: Infinity, arrivedAt: 0 })
      shaper.wake()
    },
    async run(until: number) {
      while (clock.now() < until) {
        clock.runUntil(clock.now() + 1)
        for (let turn = 0; turn < 4; turn += 1) await Promise.resolve()
      }
    },
  }
}

t.test('a request leaves when its slot arrives, not one more round trip later', async t => {
  const { released, send, run } = instance([{ after: 30, from: 15, at: 41 }])
  send(1)
  await run(100)
  t.same(released, [{ at: 30, slot: 30 }])
})

t.test('it does not leave before its slot may be used', async t => {
  const { released, send, run } = instance([{ after: 30, from: 37, at: 41 }])
  send(1)
  await run(100)
  t.same(released, [{ at: 37, slot: 37 }])
})

t.test('lateness counts from the slot itself', async t => {
  const late = instance([{ after: 49, from: 15, at: 41 }])
  late.send(1)
  await late.run(100)
  t.same(late.released, [{ at: 49, slot: 41 }], 'by 8 ms')
  t.same(late.givenBack, [])

  const tooLate = instance([
    { after: 50, from: 15, at: 41 },
    { after: 30, from: 65, at: 91 },
  ])
  tooLate.send(1)
  await tooLate.run(100)
  t.same(tooLate.released, [{ at: 80, slot: 80 }], 'by 9 ms it is forfeited')
  t.match(tooLate.givenBack, [{ cost: 0, slotCost: 1, slot: { at: 41, token: 41 } }])
})

t.test('the next claim counts from the slot, however early that was used', async t => {
  const { claims, released, send, run } = instance(
    [
      { after: 30, from: 15, at: 41 },
      { after: 30, from: 141, at: 141 },
    ],
    10,
  )
  send(2)
  await run(300)
  // 41 ms and a period, less the horizon of 75 ms.
  t.same(
    claims.map(({ at }) => at),
    [0, 66],
  )
  t.same(released, [
    { at: 30, slot: 30 },
    { at: 141, slot: 141 },
  ])
})
