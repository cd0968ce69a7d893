/** Requests that have passed and are not on the wire yet: nothing else passes their buckets towards their upstream. */
import t from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { type ArmedSend, Gate, type ReleasePlan, type SharedBucket, type Waiter } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { limits } from './run.js'

/** Two routes to different upstreams, and a bucket that both pass. */
function stage() {
  const clock = createVirtualClock()
  // Nobody wakes the core where some ms do not matter.
  const timer = { now: clock.now, at: () => () => false }
  const shaper = new Shaper({ clock, timer })
  const stack: SharedBucket[] = [new QueuedBucket(limits(100, 100))]
  const [slow, quick] = ['slow', 'quick'].map(name => ({ route: { name, gate: new Gate() }, stack, cost: 1 }))
  /** `name slot`, in order. */
  const left: string[] = []
  function waiter(name: string, arm?: (plan: ReleasePlan) => ArmedSend): Waiter {
    return {
      release: slot => left.push(`${name} ${slot}`),
      expire: () => left.push(`${name} expired`),
      reject: () => left.push(`${name} rejected`),
      ...(arm && { arm }),
    }
  }
  return { clock, shaper, slow: slow!, quick: quick!, left, waiter }
}

t.test('an upstream that takes no connection does not keep requests to another waiting', t => {
  const { clock, shaper, slow, quick, left, waiter } = stage()
  t.equal(shaper.admit(slow, waiter('slow')), 'released')
  shaper.engine.hold(slow)
  shaper.admit(slow, waiter('slow'))
  for (let count = 0; count < 3; count += 1) shaper.admit(quick, waiter('quick'))
  clock.runUntil(900)
  t.same(left, ['quick 10', 'quick 20', 'quick 30'])
  t.equal(shaper.admit(quick, waiter('quick')), 'released', 'also one that need not wait')
  clock.runUntil(990)
  t.equal(left.length, 3)
  shaper.engine.unhold(slow, 'sent')
  clock.runUntil(999)
  t.same(left.slice(3), ['slow 990'])
  t.end()
})

t.test('of two requests to one upstream that are not on the wire, each counts', t => {
  const { clock, shaper, slow, left, waiter } = stage()
  const free = { ...slow, cost: 0 }
  // Both pass before it is known that there is no connection.
  for (const request of [free, slow]) t.equal(shaper.admit(request, waiter('first')), 'released')
  for (const request of [free, slow]) shaper.engine.hold(request)
  shaper.admit(slow, waiter('next'))
  shaper.engine.unhold(free, 'sent')
  clock.runUntil(900)
  t.same(left, [])
  shaper.engine.unhold(slow, 'sent')
  clock.runUntil(910)
  t.same(left, ['next 900'])
  t.end()
})

t.test('a request holds nobody up for longer than a second', t => {
  const { clock, shaper, slow, left, waiter } = stage()
  t.equal(shaper.admit(slow, waiter('first')), 'released')
  shaper.engine.hold(slow)
  for (const name of ['second', 'third']) shaper.admit(slow, waiter(name))
  clock.runUntil(999)
  t.same(left, [])
  clock.runUntil(1_005)
  t.equal(left.length, 2, 'what was due while they were held, up to a period of it')
  clock.runUntil(3_000)
  shaper.admit(slow, waiter('fourth'))
  shaper.admit(slow, waiter('fifth'))
  clock.runUntil(3_008)
  shaper.engine.unhold(slow, 'sent')
  clock.runUntil(3_020)
  t.same(left.slice(2), ['fifth 3010'], 'the end of a hold that is over changes little')
  t.equal(slow.stack[0]!.extras, undefined)
  t.end()
})

t.test('what is armed towards another upstream follows what is sent late', t => {
  const { clock, shaper, slow, quick, waiter } = stage()
  const costly = { ...slow, cost: 2 }
  t.equal(shaper.admit(costly, waiter('slow')), 'released')
  shaper.engine.hold(costly)
  const armed = new Set<number>()
  const arm = ({ slot }: ReleasePlan): ArmedSend => {
    armed.add(slot)
    return { slot, sentAt: undefined, revoke: () => armed.delete(slot), close: () => undefined }
  }
  shaper.admit(quick, waiter('quick', arm))
  t.same([...armed], [20])
  clock.runUntil(11)
  shaper.engine.unhold(costly, 'sent')
  t.same([...armed], [21], 'its lateness beyond the grace is forfeited')
  t.end()
})
