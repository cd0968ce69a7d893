/** The time between a release and its sending counts: the bound holds for the times of sending. */

import fc from 'fast-check'
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { type Clock, createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type ShareNode } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import { limits } from './run.js'

/** Sends `count` requests at `rate` per second; sending the nth takes `takes(nth)` ms of the process. */
function send(rate: number, count: number, takes: (nth: number) => number): number[] {
  const virtual = createVirtualClock()
  let paused = 0
  const now = (): number => virtual.now() + paused
  // The process does nothing in a pause, so callbacks that are due run after it.
  const clock: Clock = { now, at: (due, run) => virtual.at(Math.max(virtual.now(), due - paused), run) }
  const shaper = new Shaper({ clock })
  const bucket = new QueuedBucket<ShareNode, Lane>(limits(rate, count))
  const route = { name: 'route', gate: new Gate() }
  const sent: number[] = []
  const waiter = {
    release: () => {
      paused += takes(sent.length)
      sent.push(now())
    },
    expire: () => t.fail('no request expires'),
    reject: () => t.fail('no request is rejected'),
  }
  for (let at = 0; at < count; at += 1) shaper.admit({ route, stack: [bucket], cost: 1 }, waiter)
  virtual.runAll()
  return sent
}

/** By how many requests the worst window exceeds rate * (W + max(1 / rate, 5 ms)) + 1. */
function worstExcess(sent: readonly number[], rate: number): number {
  let worst = -Infinity
  for (const [from, begin] of sent.entries()) {
    for (let to = from; to < sent.length; to += 1) {
      const allowed = (rate * (sent[to]! - begin + Math.max(1_000 / rate, 5))) / 1_000 + 1
      worst = Math.max(worst, to - from + 1 - allowed)
    }
  }
  return worst
}

t.test('property: no window exceeds the bound, however long sending takes', t => {
  const rate = fc.constantFrom(100, 500, 1_000, 5_000)
  const pauses = fc.array(fc.constantFrom(0, 0, 0, 0, 0, 0.05, 0.3, 1.1, 2.2, 4.5, 30), {
    minLength: 60,
    maxLength: 60,
  })
  fc.assert(
    fc.property(rate, pauses, (rate, pauses) => {
      const sent = send(rate, pauses.length + 1, nth => pauses[nth]!)
      if (sent.length !== pauses.length) throw new Error(`${sent.length} sent of ${pauses.length} that waited`)
      const excess = worstExcess(sent, rate)
      if (excess > 1e-6) throw new Error(`${excess} above the bound`)
    }),
    { numRuns: runs(500) },
  )
  t.end()
})

t.test('a pause in sending within the grace costs no rate', t => {
  const sent = send(1_000, 101, nth => (nth % 10 === 0 ? 1.5 : 0))
  t.ok(sent.at(-1)! <= 100 + 2, `the last of 100 at 1000/s was sent at ${sent.at(-1)} ms`)
  t.end()
})

t.test('property: no window exceeds the bound, however long requests wait for their connections', t => {
  const rate = fc.constantFrom(100, 500, 1_000, 5_000)
  const waits = fc.array(fc.constantFrom(0, 0, 0, 0.05, 0.3, 1.1, 2.2, 4.5, 30), { minLength: 60, maxLength: 60 })
  fc.assert(
    fc.property(rate, waits, (rate, waits) => {
      const clock = createVirtualClock()
      const shaper = new Shaper({ clock })
      const route = { name: 'route', gate: new Gate() }
      const everyone = new QueuedBucket<ShareNode, Lane>(limits(rate, 1_000))
      const sent: number[] = []
      const passed: string[] = []
      const queue = (client: string, own: QueuedBucket<ShareNode, Lane>): void => {
        const request = { route, stack: [own, everyone], cost: 1 }
        const release = (): void => {
          const wait = waits[passed.length]!
          passed.push(client)
          if (wait === 0) return void sent.push(clock.now())
          shaper.engine.hold(request)
          clock.at(clock.now() + wait, () => {
            sent.push(clock.now())
            shaper.engine.unhold(request, 'sent')
          })
        }
        const waiter = { release, expire: () => t.fail('expired'), reject: () => t.fail('rejected') }
        if (shaper.admit(request, waiter) === 'released') release()
      }
      const own = [
        new QueuedBucket<ShareNode, Lane>(limits(1e6, 1e6)),
        new QueuedBucket<ShareNode, Lane>(limits(1e6, 1e6)),
      ]
      for (let nth = 0; nth < waits.length; nth += 1) queue(`client ${nth % 2}`, own[nth % 2]!)
      clock.runAll()
      if (sent.length !== waits.length) throw new Error(`${sent.length} sent of ${waits.length}`)
      const excess = worstExcess(sent, rate)
      if (excess > 1e-6) throw new Error(`${excess} above the bound`)
    }),
    { numRuns: runs(300) },
  )
  t.end()
})

t.test('a request that is never sent after all holds its buckets no longer', t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const stack = [new QueuedBucket<ShareNode, Lane>(limits(10, 10))]
  const released: number[] = []
  const waiter = {
    release: () => released.push(clock.now()),
    expire: () => t.fail('expired'),
    reject: () => t.fail('rejected'),
  }
  const first = { route, stack, cost: 1 }
  t.equal(shaper.admit(first, waiter), 'released')
  shaper.engine.hold(first)
  shaper.admit({ route, stack, cost: 1 }, waiter)
  shaper.admit({ route, stack, cost: 1 }, waiter)
  clock.runUntil(900)
  t.same(released, [], 'nothing passes')
  t.equal(stack[0]!.freeAt, 100, 'the forecast stays finite')
  shaper.engine.unhold(first, 'never-sent')
  clock.runUntil(900)
  t.same(released, [900, 900], 'what was due while they were held, up to a period of it')
  shaper.admit({ route, stack, cost: 1 }, waiter)
  clock.runUntil(999)
  t.equal(released.length, 2)
  clock.runUntil(1_000)
  t.equal(released.length, 3)
  t.end()
})
