import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import {
  Gate,
  type Lane,
  type LaneRoute,
  type SharedBucket,
  type ShareNode,
  Ticket,
} from '../../src/core/queue/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { burst, limits, run, slots, worstExcess } from './run.js'

t.test('twenty requests 25 ms apart at 5/s and b = 10', async t => {
  const outcome = run([limits(5, 10)], burst(20, 25))
  t.same(
    outcome.admitted.map(index => index + 1),
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17],
  )
  t.equal(outcome.outcomes.filter(({ rejection }) => rejection?.reason === 'overflow').length, 8)
  t.same(
    slots(outcome),
    Array.from({ length: 12 }, (_, index) => 200 * index),
  )
  for (const { slot, releasedAt } of outcome.released) t.equal(releasedAt, slot)
})

t.test('1000/s for a second at 100/s and b = 20', async t => {
  for (const gap of [1, 1.0007, 0.9991]) {
    const outcome = run([limits(100, 20)], burst(Math.ceil(1_000 / gap), gap))
    t.match(`${outcome.admitted.length}`, /^(119|120)$/, `${gap} ms apart`)
    const released = outcome.released.map(({ releasedAt }) => releasedAt!)
    let worst = 0
    for (let from = 0; from < released.length; from += 1) {
      for (let to = from; to < released.length; to += 1) {
        worst = Math.max(worst, to - from + 1 - 0.1 * (released[to]! - released[from]!))
      }
    }
    t.ok(worst <= 1 + 1e-6, `at most the first beyond the rate in any window: ${worst}`)
  }
})

t.test('eleven at once at 5/s and b = 10', async t => {
  const outcome = run([limits(5, 10)], burst(11))
  t.same(slots(outcome), [0, 200, 400, 600, 800, 1_000, 1_200, 1_400, 1_600, 1_800])
  const { rejection } = outcome.outcomes[10]!
  t.equal(rejection?.reason, 'overflow')
  t.equal(rejection?.retryAfterMs, 200)
  const again = (at: number): string | undefined => run([limits(5, 10)], [...burst(11), { at }]).outcomes[11]!.verdict
  t.equal(again(200), 'queued', 'sent that much later it is admitted')
  t.equal(again(199), 'rejected', 'a millisecond earlier it is not')
})

t.test('the first request of an idle bucket leaves at once, at any time', async t => {
  const outcome = run([limits(5, 10)], [{ at: 0 }, { at: 200 }, { at: 399.999 }, { at: 10_000.5 }])
  t.same(
    outcome.outcomes.map(({ verdict }) => verdict),
    ['released', 'released', 'queued', 'released'],
  )
  t.same(slots(outcome), [0, 200, 400, 10_000.5])
})

t.test('a cost that no bucket can count is too costly, and changes nothing', async t => {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const stack = [10, Infinity].map(
    capacity => new QueuedBucket({ name: `${capacity}`, rate: 1e-3, capacity }) as SharedBucket,
  )
  const route = { name: 'r', gate: new Gate() }
  const waiter = { release: () => {}, reject: () => {}, expire: () => {} } as never
  const levels = () => stack.map(bucket => bucket.level(clock.now()))
  shaper.meter({ route, stack, cost: 4, weight: 1 } as never)
  for (const cost of [NaN, Infinity, -1]) {
    for (const costs of [{ cost }, { cost: 1, costs: [1, cost] }]) {
      const arrival = { route, stack, weight: 1, ...costs } as never
      t.match(shaper.admit(arrival, waiter), { reason: 'too-costly', retryAfterMs: undefined }, `${cost}`)
      t.match(shaper.meter(arrival), { reason: 'too-costly', retryAfterMs: undefined }, `${cost}`)
    }
    for (const bucket of stack) shaper.count(bucket, cost)
    t.same(levels(), [4, 4], `after ${cost}`)
  }
})

t.test('a request holds its bucket for cost / rate', async t => {
  const outcome = run(
    [limits(5, 10)],
    [
      { at: 0, cost: 2 },
      { at: 0, cost: 0.5 },
      { at: 0, cost: 3 },
      { at: 0, cost: 1 },
    ],
  )
  t.same(slots(outcome), [0, 400, 500, 1_100])
})

t.test('the longest wait of an admitted request is (b - c) / r', async t => {
  const outcome = run([limits(5, 10)], [...burst(100, 7), ...burst(100, 31, 1_000)])
  const waits = outcome.released.map(({ slot, arrival }) => slot! - arrival.at)
  t.ok(Math.max(...waits) <= 1_800 + 1e-6)
  t.ok(Math.max(...waits) > 1_700, 'and it comes near')
})

t.test('late wake-ups do not move slots', async t => {
  const latenesses = [1.9, 0.2, 150, 3, 199, 0, 7, 12]
  const outcome = run([limits(5, 10)], burst(9), { lateness: () => latenesses.shift() ?? 0 })
  t.same(slots(outcome), [0, 200, 400, 600, 800, 1_000, 1_200, 1_400, 1_600])
  t.same(
    outcome.released.slice(0, 6).map(({ releasedAt }) => releasedAt),
    [0, 201.9, 400.2, 750, 803, 1_199],
  )
})

t.test('a stall is not followed by a burst', async t => {
  const latenesses = [5_000]
  const outcome = run([limits(5, 10)], burst(10), { lateness: () => latenesses.shift() ?? 0 })
  const releases = outcome.released.map(({ releasedAt }) => Math.round(releasedAt! * 1e6) / 1e6)
  t.same(releases, [0, 5_200, 5_200, 5_400, 5_600, 5_800, 6_000, 6_200, 6_400, 6_600])
  t.ok(worstExcess(limits(5, 10), outcome.released) <= 1e-9)
})

t.test('a cost above the capacity never passes', async t => {
  const outcome = run(
    [limits(5, 10)],
    [
      { at: 0, cost: 10.5 },
      { at: 0, cost: 10 },
      { at: 0, cost: 11 },
    ],
  )
  t.same(
    outcome.outcomes.map(({ rejection }) => [rejection?.reason, rejection?.retryAfterMs]),
    [
      ['too-costly', undefined],
      [undefined, undefined],
      ['too-costly', undefined],
    ],
  )
  t.same(
    outcome.outcomes[0]!.rejection!.buckets.map(bucket => bucket.limits.name),
    ['client'],
  )
})

interface Bench {
  clock: VirtualClock
  shaper: Shaper
  gate: Gate
  route: LaneRoute
  bucket: SharedBucket
  /** Sends a request, and records its name and slot when it is released. */
  send(name: string, options?: { cost?: number; maxWait?: number; after?: () => void }): Verdict
  log: string[]
}

function bench(
  options: { rate?: number; capacity?: number; maxQueued?: number; maxInFlight?: number; lateness?: () => number } = {},
): Bench {
  const clock = createVirtualClock(options.lateness === undefined ? {} : { lateness: options.lateness })
  const shaper = new Shaper({ clock, ...(options.maxQueued === undefined ? {} : { maxQueued: options.maxQueued }) })
  const gate = new Gate(options.maxInFlight)
  const route = { name: 'route', gate }
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>(limits(options.rate ?? 5, options.capacity ?? 10))
  const log: string[] = []
  return {
    clock,
    shaper,
    gate,
    route,
    bucket,
    log,
    send(name, { cost = 1, maxWait, after } = {}) {
      const release = (slot: number, now: number): void => {
        log.push(slot === now ? `${name}@${now}` : `${name}@${now} for ${slot}`)
        after?.()
      }
      const expire = (now: number): void => {
        log.push(`${name} expired@${now}`)
      }
      const verdict = shaper.admit({ route, stack: [bucket], cost }, { release, expire, reject() {} }, maxWait)
      if (verdict === 'released') release(clock.now(), clock.now())
      return verdict
    },
  }
}

t.test('cancel: later requests move up', async t => {
  const { clock, shaper, send, log, bucket } = bench()
  const [a, b, c, d] = ['a', 'b', 'c', 'd'].map(name => send(name))
  t.equal(a, 'released')
  clock.runUntil(100)
  t.equal(shaper.cancel(b as Ticket), true)
  t.equal(shaper.cancel(b as Ticket), false, 'only once')
  t.equal(bucket.level(100), 2.5, 'its cost has left the bucket')
  t.equal(shaper.queued, 2)
  clock.runUntil(200)
  t.equal(shaper.cancel(c as Ticket), false, 'too late: released')
  t.equal(shaper.cancel(d as Ticket), true)
  clock.runAll()
  t.same(log, ['a@0', 'c@200'])
})

t.test('maxWait: a longer predicted wait is rejected', async t => {
  const { clock, send, log } = bench()
  t.equal(send('a', { maxWait: 600 }), 'released')
  for (const name of ['b', 'c', 'd']) t.ok(send(name, { maxWait: 600 }) instanceof Ticket, `${name} waits`)
  const verdict = send('e', { maxWait: 600 }) as Rejection
  t.equal(verdict.reason, 'max-wait')
  t.equal(verdict.retryAfterMs, 200)
  clock.runUntil(199)
  t.equal((send('f', { maxWait: 600 }) as Rejection).reason, 'max-wait')
  clock.runUntil(200)
  t.ok(send('g', { maxWait: 600 }) instanceof Ticket, 'a wait of exactly maxWait is fine')
  clock.runAll()
  t.same(log, ['a@0', 'b@200', 'c@400', 'd@600', 'g@800'], 'and a slot at the deadline is used')
})

t.test('maxWait: a predicted wait of maxWait and a rounding error is not longer', async t => {
  for (const rate of [3, 6, 7, 9, 11, 13, 30]) {
    const { clock, send } = bench({ rate, capacity: 100 })
    const period = 1_000 / rate
    for (const name of ['a', 'b', 'c']) send(name)
    let refused = 0
    // Each arrives when exactly two are ahead of it.
    for (let place = 1; place <= 60; place += 1) {
      clock.runUntil(place * period)
      const verdict = send(`${place}`, { maxWait: 2 * period })
      if (verdict !== 'released' && 'reason' in verdict) refused += 1
      else continue
      send('instead')
    }
    t.equal(refused, 0, `${rate}/s`)
  }
})

t.test('maxWait 0 admits only requests that can leave at once', async t => {
  const { clock, send, log } = bench({ rate: 3 })
  let at = 0
  for (let place = 0; place < 20; place += 1) {
    clock.runUntil(at)
    send(`${place}`, { maxWait: 0 })
    t.match(send('x', { maxWait: 0 }), { reason: 'max-wait' })
    at += 1_000 / 3
  }
  t.equal(log.length, 20)
})

t.test('maxQueued: one request more is rejected', async t => {
  const { clock, shaper, send, log } = bench({ maxQueued: 2 })
  t.equal(send('a'), 'released')
  t.ok(send('b') instanceof Ticket)
  t.ok(send('c') instanceof Ticket)
  t.match(send('d'), { reason: 'crowded', retryAfterMs: undefined })
  t.match(send('e', { cost: 11 }), { reason: 'too-costly' }, 'a full bucket says so first')
  t.equal(shaper.queued, 2)
  clock.runUntil(200)
  t.ok(send('f') instanceof Ticket, 'there is room again')
  clock.runAll()
  t.same(log, ['a@0', 'b@200', 'c@400', 'f@600'])
})

t.test('giveBack: the next request leaves at once, in the same slot', async t => {
  const { clock, shaper, send, log } = bench()
  const [, b] = ['a', 'b', 'c', 'd'].map(name => send(name))
  clock.runUntil(250)
  shaper.giveBack(b as Ticket)
  clock.runAll()
  t.same(log, ['a@0', 'b@200', 'c@250 for 200', 'd@400'])
})

t.test('giveBack: nothing changes if another request has used the bucket since', async t => {
  const { clock, shaper, send, log, bucket } = bench()
  const [, b] = ['a', 'b', 'c', 'd'].map(name => send(name))
  clock.runUntil(450)
  shaper.giveBack(b as Ticket)
  t.equal(bucket.freeAt, 600)
  clock.runAll()
  t.same(log, ['a@0', 'b@200', 'c@400', 'd@600'])
})

t.test('giveBack: without waiting requests the bucket is free', async t => {
  const { clock, shaper, send } = bench()
  const [, b] = ['a', 'b'].map(name => send(name))
  clock.runUntil(210)
  shaper.giveBack(b as Ticket)
  t.equal(send('c'), 'released')
})

t.test('giveBack: only a released request has an effect', async t => {
  const { shaper, send } = bench()
  const [, b] = ['a', 'b'].map(name => send(name))
  t.throws(() => shaper.giveBack(b as Ticket), TypeError)
})

t.test('giveBack: a slot is given back once', async t => {
  const { clock, shaper, send, log } = bench()
  const [, b] = ['a', 'b', 'c', 'd'].map(name => send(name))
  clock.runUntil(250)
  shaper.giveBack(b as Ticket)
  try {
    shaper.giveBack(b as Ticket)
  } catch {}
  clock.runAll()
  t.same(log, ['a@0', 'b@200', 'c@250 for 200', 'd@400'], 'the slot is no longer its own')
})

t.test('giveBack: also after a stall', async t => {
  const latenesses = [1_000]
  const { clock, shaper, send, log, bucket } = bench({ lateness: () => latenesses.shift() ?? 0 })
  send('a')
  const b = send('b', { cost: 5 }) as Ticket
  clock.runUntil(1_200)
  t.same(log, ['a@0', 'b@1200 for 200'])
  shaper.giveBack(b)
  t.equal(bucket.level(1_200), 0)
  t.equal(send('c'), 'released')
})

t.test('meter: forwards at once what shape would queue', async t => {
  const outcome = run([limits(5, 10)], burst(20, 25), { mode: 'meter' })
  t.same(
    outcome.admitted.map(index => index + 1),
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17],
  )
  for (const { arrival, releasedAt } of outcome.released) t.equal(releasedAt, arrival.at)
})

t.test('a waiter may call back in', async t => {
  const { clock, shaper, send, log } = bench()
  let last: Verdict | undefined
  send('a')
  send('b', { after: () => t.equal(shaper.cancel(last as Ticket), true) })
  send('c', { after: () => send('e') })
  last = send('d')
  clock.runAll()
  t.same(log, ['a@0', 'b@200', 'c@400', 'e@600'])
})

t.test('releases are notified in order, also when a waiter calls back in while time passes', async t => {
  // A wake-up at 2.5 finds the slots of b and c. The callback of b takes until the slot of d.
  const latenesses = [1.5]
  const virtual = createVirtualClock({ lateness: () => latenesses.shift() ?? 0 })
  let spent = 0
  const shaper = new Shaper({ clock: { now: () => virtual.now() + spent, at: virtual.at } })
  const route = { name: 'route', gate: new Gate() }
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>(limits(1_000, 10))
  const log: string[] = []
  const send = (name: string, then = (): void => {}): Verdict =>
    shaper.admit(
      { route, stack: [bucket], cost: 1 },
      {
        release() {
          log.push(name)
          then()
        },
        expire() {},
        reject() {},
      },
    )
  t.equal(send('a'), 'released')
  send('b', () => {
    spent = 1
    shaper.wake()
  })
  send('c')
  send('d')
  virtual.runAll()
  t.same(log, ['b', 'c', 'd'])
})

t.test('thousands of waiters that call back in do not pile up on the stack', async t => {
  const { clock, shaper, gate, send, log } = bench({ rate: 1e9, capacity: 1e6, maxInFlight: 1 })
  const after = (): void => {
    gate.leave()
    shaper.wake(gate)
  }
  send('first')
  for (let sent = 0; sent < 20_000; sent += 1) send('next', { after })
  clock.runUntil(10)
  after()
  clock.runAll()
  t.equal(log.length, 20_001)
})

t.test('ten days of uptime change nothing', async t => {
  const start = 86_400_000 * 10 + 0.3
  const outcome = run([limits(5, 10)], burst(20, 25, start), { start })
  t.same(
    outcome.admitted.map(index => index + 1),
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17],
  )
  for (const [index, { slot }] of outcome.released.entries()) t.ok(Math.abs(slot! - start - 200 * index) < 1e-5)
})
