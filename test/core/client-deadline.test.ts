/** Until when clients of waiting requests have a use for their release (contract 9.1), whatever keeps their gate shut. */
import t from 'tap'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'

/** A gate with one place behind a bucket of 10/s. The fates of its requests, in order. */
function world() {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gate = new Gate(1)
  const route = { name: 'api', gate }
  const bucket = new BucketTable(10).find({ name: 'all', rate: 0.01, capacity: 10 }, 'a', 0)!
  const arrival = { route, stack: [bucket], cost: 1 }
  const fate: string[] = []
  const waiter = (name: string, deadline?: number) => ({
    ...(deadline !== undefined && { deadline }),
    release: (slot: number) => fate.push(`${name} at ${slot}`),
    expire: (now: number) => fate.push(`${name} expired ${now}`),
    reject: () => fate.push(`${name} rejected`),
  })
  const admit = (name: string, deadline?: number, maxWait = Infinity) =>
    shaper.admit(arrival, waiter(name, deadline), maxWait)
  return { clock, shaper, gate, arrival, bucket, fate, waiter, admit }
}

t.test('a full upstream: each expires at its deadline or after its maxWait, whichever is first', async t => {
  const { clock, shaper, bucket, fate, admit } = world()
  t.equal(admit('hangs'), 'released')
  admit('patient')
  admit('deadline', 2_000)
  admit('maxWait', 2_000, 1_500)
  admit('both', 1_200.5, 1_500)
  clock.runUntil(1_200.4)
  t.same(fate, [])
  clock.runAll()
  t.same(fate, ['both expired 1200.5', 'maxWait expired 1500', 'deadline expired 2000'])
  t.equal(shaper.queued, 1)
  t.equal(bucket.waiting, 1)
})

t.test('a blocked upstream, and one that pauses from after the arrival on', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  shaper.engine.block(gate)
  admit('first', 700)
  admit('second', 900)
  admit('third', 5_000)
  clock.runUntil(800)
  t.same(fate, ['first expired 700'])
  shaper.engine.pause(gate, 200)
  t.same(
    fate.slice(1),
    ['second expired 800'],
    'one that cannot leave by its deadline expires at once, as with maxWait',
  )
  shaper.engine.unblock(gate)
  clock.runAll()
  t.same(fate.slice(2), ['third at 1000'])
})

t.test('a release before the deadline ends it, and one at that very moment', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  gate.maxInFlight = 3
  admit('first')
  admit('second', 150)
  admit('third', 200)
  admit('fourth', 250)
  clock.runAll()
  t.same(fate, ['second at 100', 'third at 200', 'fourth expired 250'])
  t.equal(shaper.queued, 0)
})

t.test('a deadline that moves: later by itself, earlier once that is told', async t => {
  const { clock, shaper, gate, fate, admit, arrival, waiter } = world()
  admit('hangs')
  const later = waiter('later', 500) as { deadline: number } & ReturnType<typeof waiter>
  const sooner = waiter('sooner', 2_000) as typeof later
  const past = waiter('past', 2_000) as typeof later
  for (const each of [later, sooner, past]) shaper.admit(arrival, each)
  clock.runUntil(400)
  later.deadline = 800
  clock.runUntil(799)
  t.same(fate, [])
  sooner.deadline = 1_000
  past.deadline = 600
  shaper.engine.deadlinesMoved(gate)
  t.same(fate, ['past expired 799'])
  clock.runAll()
  t.same(fate.slice(1), ['later expired 800', 'sooner expired 1000'])
})

t.test('a shorter maxWait after a reload does not forget the deadline, nor a longer one', async t => {
  const { clock, shaper, gate, fate, admit } = world()
  admit('hangs')
  admit('deadline', 1_000, 5_000)
  admit('maxWait', 9_000, 5_000)
  shaper.engine.replan([gate], () => 3_000)
  shaper.engine.replan([gate], () => 8_000)
  clock.runAll()
  t.same(fate, ['deadline expired 1000', 'maxWait expired 3000'])
})

t.test('a request that is put back expires at its deadline, too', async t => {
  const { clock, shaper, gate, arrival, fate, waiter } = world()
  shaper.admit(arrival, waiter('sent', 1_000))
  shaper.leave(gate, arrival.stack)
  gate.enter()
  shaper.requeue(arrival, waiter('again', 1_000), Infinity, 0)
  shaper.wake()
  clock.runAll()
  t.same(fate, ['again expired 1000'])
})
