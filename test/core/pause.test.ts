import t from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'

const TEN = { name: 'client', rate: 0.01, capacity: 10 }

/** A gate behind a bucket of 10/s, and the outcomes of its requests. */
function world({ maxInFlight = Infinity, limits = TEN } = {}) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gate = new Gate(maxInFlight)
  const route = { name: 'api', gate }
  const bucket = new BucketTable(10).find(limits, 'a', 0)!
  const fate: string[] = []
  const admit = (name: string, maxWait = Infinity) =>
    shaper.admit(
      { route, stack: [bucket], cost: 1 },
      {
        release: slot => fate.push(`${name} at ${slot}`),
        expire: now => fate.push(`${name} expired ${now}`),
        reject: () => fate.push(`${name} rejected`),
      },
      maxWait,
    )
  return { clock, shaper, gate, route, bucket, fate, admit }
}

t.test('nothing passes while an upstream pauses, and releases are spaced afterwards', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  for (const name of ['a', 'b', 'c', 'd']) admit(name)
  clock.runUntil(150)
  t.same(fate, ['b at 100'])
  shaper.engine.pause(gate, 2_000)
  clock.runUntil(2_149.999)
  t.same(fate, ['b at 100'])
  clock.runAll()
  t.same(fate, ['b at 100', 'c at 2150', 'd at 2250'])
})

t.test('requests that would now exceed maxWait expire at once, the others stay', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  admit('first')
  admit('patient', 5_000)
  admit('impatient', 1_000)
  admit('last', 2_200)
  t.same([...shaper.engine.pause(gate, 2_000)], [['api', 1]])
  t.same(fate, ['impatient expired 0'])
  t.same(shaper.queued, 2)
  clock.runAll()
  t.same(fate.slice(1), ['patient at 2000', 'last at 2100'])
})

t.test('a longer pause replaces a shorter one, and a new pause can follow an old one', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  admit('first')
  admit('a')
  shaper.engine.pause(gate, 1_000)
  shaper.engine.pause(gate, 300)
  t.equal(gate.pausedFor(0), 1_000)
  shaper.engine.pause(gate, 1_500)
  clock.runUntil(1_499)
  t.same(fate, [])
  clock.runUntil(1_500)
  t.same(fate, ['a at 1500'])
  admit('b')
  shaper.engine.pause(gate, 400)
  clock.runAll()
  t.same(fate, ['a at 1500', 'b at 1900'])
})

t.test('a pause can be ended early', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  admit('first')
  admit('a')
  admit('b')
  shaper.engine.pause(gate, 10_000)
  clock.runUntil(500)
  shaper.engine.resume(gate)
  shaper.engine.resume(gate)
  t.same(fate, ['a at 500'])
  clock.runAll()
  t.same(fate, ['a at 500', 'b at 600'])
})

t.test('a new request waits for the end of the pause, and its predicted wait includes it', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  shaper.engine.pause(gate, 1_000)
  t.not(admit('a', 1_000), 'released')
  t.match(admit('b', 1_050), { reason: 'max-wait', retryAfterMs: 50 })
  clock.runUntil(49)
  t.match(admit('b', 1_050), { reason: 'max-wait' })
  clock.runUntil(51)
  t.notMatch(admit('b', 1_050), { reason: 'max-wait' })
  clock.runAll()
  t.same(fate, ['a at 1000', 'b at 1100'])
})

t.test('a full bucket drains in a pause only what has passed, so Retry-After is true', async t => {
  const { clock, shaper, gate, admit } = world({ limits: { ...TEN, capacity: 3 } })
  for (const name of ['a', 'b', 'c']) admit(name)
  shaper.engine.pause(gate, 5_000)
  const verdict = admit('d')
  // What request a holds drains within 100 ms.
  t.match(verdict, { reason: 'overflow', retryAfterMs: 100 })
  clock.runUntil(100)
  t.notMatch(admit('d'), { reason: 'overflow' })
  // b leaves at 5000 and has drained at 5100.
  t.match(admit('e'), { reason: 'overflow', retryAfterMs: 5_000 })
  clock.runUntil(5_100)
  t.notMatch(admit('e'), { reason: 'overflow' })
})

t.test('a request that is put back goes before later ones', async t => {
  const { clock, shaper, gate, route, bucket, fate, admit } = world()
  admit('first')
  admit('second')
  admit('third')
  clock.runUntil(50)
  shaper.engine.pause(gate, 1_000)
  const waiter = {
    release: (slot: number) => fate.push(`again at ${slot}`),
    expire: () => fate.push('again expired'),
    reject() {},
  }
  t.ok(shaper.requeue({ route, stack: [bucket], cost: 1 }, waiter, 5_000, 0))
  t.equal(
    shaper.requeue({ route, stack: [bucket], cost: 1 }, waiter, 900, 0),
    undefined,
    'not one that must wait too long',
  )
  clock.runAll()
  t.same(fate, ['again at 1050', 'second at 1150', 'third at 1250'])
})

t.test('limits with a grace: a late release counts at its real time and is never made up for', async t => {
  const lateness = [0, 0.4, 3, 0]
  const clock = createVirtualClock({ lateness: () => lateness.shift() ?? 0 })
  const shaper = new Shaper({ clock })
  const bucket = new BucketTable(10).find({ ...TEN, grace: 0.5 }, 'a', 0)!
  const route = { name: 'api', gate: new Gate() }
  const sent: number[] = []
  const waiter = { release: () => sent.push(clock.now()), expire() {}, reject() {} }
  for (let place = 0; place < 6; place += 1) shaper.admit({ route, stack: [bucket], cost: 1 }, waiter)
  clock.runAll()
  t.same(sent, [100, 200.4, 303, 403, 503])
})

t.test('a gate that waits for the send: the next slot counts from the time of sending', async t => {
  const { clock, shaper, gate, bucket, fate, admit } = world({ limits: { ...TEN, grace: 0.5 } as typeof TEN })
  t.equal(admit('first'), 'released')
  gate.closed = true
  admit('a')
  admit('b')
  clock.runUntil(340)
  t.same(fate, [])
  shaper.engine.sent(gate, { stack: [bucket], cost: 1 })
  clock.runUntil(439)
  t.same(fate, [])
  clock.runAll()
  t.same(fate, ['a at 440', 'b at 540'])
})
