/** Costs that differ in the buckets of a stack, and costs that are known only after the release. */

import fc from 'fast-check'
import t from 'tap'
import { predictedWait } from '../../src/core/admission/predicted-wait.js'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type SharedBucket, type Source, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { often, runs } from '../runs.js'
import { limits } from './run.js'

interface Sent {
  readonly at: number
  readonly costs: readonly number[]
}

/** One lane with buckets of its own. */
function world(all: readonly BucketLimits[]) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const stack: SharedBucket[] = all.map(each => new QueuedBucket<Source, Lane>(each))
  const route = { name: 'route', gate: new Gate() }
  const sent: Sent[] = []
  function send(costs: readonly number[], onSent: (at: number) => void = () => {}, maxWait?: number) {
    const release = (): void => {
      sent.push({ at: clock.now(), costs })
      onSent(clock.now())
    }
    const arrival = { route, stack, cost: costs.at(-1)!, ...(costs.length > 1 && { costs }) }
    const verdict = shaper.admit(arrival, { release, expire() {}, reject() {} }, maxWait)
    if (verdict === 'released') release()
    return verdict
  }
  const settle = (differences: readonly number[]) =>
    shaper.engine.settleCost({ stack, cost: differences.at(-1)! || 1, costs: differences })
  return { clock, shaper, stack, route, sent, send, settle, times: () => sent.map(({ at }) => at) }
}

const cost = fc.integer({ min: 0, max: 20 }).map(quarters => quarters / 4)
const pair = fc.tuple(cost, cost)

t.test('each bucket delays by its own costs', async t => {
  const { clock, send, times } = world([limits(10, 1_000), limits(10, 1_000, 'tokens')])
  for (const costs of [
    [1, 5],
    [2, 1],
    [4, 0],
    [1, 1],
  ])
    send(costs)
  clock.runAll()
  t.same(times(), [0, 500, 700, 1_100])
})

t.test('all buckets admit a cost or none does', async t => {
  const { send, stack, clock } = world([limits(10, 3), limits(10, 10, 'tokens')])
  t.equal(send([1, 4]), 'released')
  t.ok(send([1, 4]) instanceof Ticket)
  const verdict = send([1, 4])
  t.match(verdict, { reason: 'overflow', buckets: [stack[1]], retryAfterMs: 200 })
  t.same(
    stack.map(bucket => bucket.level(clock.now())),
    [2, 8],
  )
  t.match(send([4, 1]), { reason: 'too-costly', buckets: [stack[0]] })
})

t.test('property: the predicted wait of a newcomer is exact, and so is the time until its cost fits', async t => {
  let rejected = 0
  const burst = fc.constantFrom(undefined, undefined, 2, 6)
  const capacities = fc.tuple(fc.integer({ min: 5, max: 20 }), fc.integer({ min: 5, max: 20 }))
  fc.assert(
    fc.property(
      fc.array(pair, { maxLength: 12, size: 'max' }),
      pair,
      capacities,
      fc.tuple(burst, burst),
      (before, costs, most, bursts) => {
        const all = [limits(10, most[0]), limits(7, most[1], 'tokens')].map((each, place) => {
          const allowed = bursts[place]
          return allowed === undefined ? each : { ...each, burst: allowed }
        })
        const { clock, route, send, stack } = world(all)
        for (const each of before) send(each)
        const wait = predictedWait({ route, stack, cost: costs[1], costs }, clock.now(), 0)
        let left: number | undefined
        const verdict = send(costs, at => {
          left = at
        })
        if (verdict !== 'released' && 'reason' in verdict) {
          const { retryAfterMs } = verdict
          if (retryAfterMs === undefined) return
          rejected += 1
          clock.runUntil(retryAfterMs + 1e-6)
          const again = send(costs)
          if (again !== 'released' && 'reason' in again) throw new Error(`rejected again after ${retryAfterMs}`)
          return
        }
        clock.runAll()
        if (Math.abs(left! - Math.max(0, wait)) > 1e-3) throw new Error(`left at ${left}, predicted ${wait}`)
      },
    ),
    { numRuns: runs(500) },
  )
  t.ok(rejected > often(50), `${rejected}`)
})

t.test(
  'a newcomer that would wait for too long is rejected at once, where no bucket alone delays it so long',
  async t => {
    const { send } = world([limits(10, 100), limits(10, 100, 'tokens')])
    send([10, 1])
    send([1, 10])
    // 1 s for the first bucket, then 1 s for the second one.
    t.match(send([1, 1], undefined, 1_500), { reason: 'max-wait' })
    t.ok(send([1, 1], undefined, 2_001) instanceof Ticket)
  },
)

t.test('a cost that is known while its bucket still drains: as if it had been known before', async () => {
  fc.assert(
    fc.property(
      fc.array(fc.tuple(fc.double({ min: 1, max: 5, noNaN: true }), fc.double({ min: 0.5, max: 6, noNaN: true })), {
        minLength: 2,
        maxLength: 20,
      }),
      calls => {
        const knowing = world([limits(10, 1_000)])
        for (const [, actual] of calls) knowing.send([actual])
        knowing.clock.runAll()
        const learning = world([limits(10, 1_000)])
        for (const [reserved, actual] of calls) {
          learning.send([reserved], at => {
            // Before what it has reserved or what it costs has drained.
            learning.clock.at(at + 100 * Math.min(reserved, actual, 0.5), () => learning.settle([actual - reserved]))
          })
        }
        learning.clock.runAll()
        for (const [place, at] of knowing.times().entries()) {
          if (Math.abs(at - learning.times()[place]!) > 1e-6)
            throw new Error(`${learning.times()}, not ${knowing.times()}`)
        }
      },
    ),
  )
})

t.test('what has been reserved in vain and has drained is lost: nothing leaves sooner for it', async t => {
  const { clock, send, settle, times } = world([limits(10, 1_000)])
  send([5])
  clock.runUntil(500)
  send([1])
  clock.runUntil(550)
  // 5 were reserved and drained. Of the second one half is held.
  settle([-4])
  send([1])
  send([1])
  clock.runAll()
  t.same(times(), [0, 500, 550, 650])
})

t.test('a debt is at most a capacity, so nobody waits for longer', async t => {
  const { clock, send, settle, stack, times } = world([limits(10, 20)])
  send([1])
  send([1])
  settle([1e12])
  t.equal(stack[0]!.hold(0), 20)
  clock.runAll()
  t.same(times(), [0, 2_000])
})

t.test('settling answers what it has really added or taken out', async t => {
  const { clock, send, settle } = world([limits(10, 20), limits(10, 1_000, 'tokens')])
  send([1, 5])
  t.same(settle([50, 50]), [19, 50])
  clock.runUntil(100)
  t.same(settle([-50, -50]), [-19, -50])
  clock.runUntil(10_000)
  t.same(settle([-1, 2]), [0, 2])
})

interface Entry {
  readonly at: number
  readonly passed: number
  added: number
}

const RATE = 0.01

function checkBound(log: readonly Entry[], burst: number): void {
  const most = Math.max(burst, ...log.map(({ passed }) => passed))
  for (const [first, from] of log.entries()) {
    let total = 0
    for (const to of from.passed === 0 ? [] : log.slice(first)) {
      total += to.passed + to.added
      if (to.passed > 0 && total > most + RATE * (to.at - from.at) + 1e-6) {
        throw new Error(`${total} in ${to.at - from.at} ms, ${most} besides the rate`)
      }
    }
  }
}

t.test('property: the bound: what passes, with what is added and without what is taken off', async () => {
  const step = fc.record({
    gap: fc.double({ min: 0, max: 300, noNaN: true }),
    cost,
    settled: fc.constantFrom(0, 0, -3, -1, 1, 4),
  })
  const bursts = fc.constantFrom(undefined, 3, 8)
  fc.assert(
    fc.property(fc.array(step, { minLength: 2, maxLength: 40 }), bursts, (steps, burst) => {
      const one = { ...limits(10, 30), ...(burst !== undefined && { burst }) }
      const { clock, send, settle, stack } = world([one])
      /** What has passed, and what has been added or taken off, in order. */
      const log: Entry[] = []
      let at = 0
      for (const { gap, cost, settled } of steps) {
        at += gap
        clock.at(at, () => {
          send([cost], at => log.push({ at, passed: cost, added: 0 }))
          if (settled === 0) return
          const before = stack[0]!.hold(clock.now())
          // What waits may leave at once then: it is counted after this.
          const entry = { at: clock.now(), passed: 0, added: 0 }
          log.push(entry)
          const places = log.length
          settle([settled])
          const passed = log.slice(places).reduce((sum, { passed }) => sum + passed, 0)
          entry.added = stack[0]!.hold(clock.now()) - passed - before
        })
      }
      clock.runAll()
      checkBound(log, burst ?? 0)
    }),
    { numRuns: runs(500) },
  )
})
