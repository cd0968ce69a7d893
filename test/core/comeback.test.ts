/** What the client of a rejected request is told that waits to come again. */
import t from 'tap'
import { comebackOf } from '../../src/core/admission/comeback.js'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { type Arrival, Gate, type Lane, type Rejection, type ShareNode, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { limits } from './run.js'

interface Options {
  readonly mode?: 'shape' | 'meter'
  readonly maxWait?: number
  readonly books?: boolean
}

function world(allowed: BucketLimits, { mode = 'shape', maxWait = Infinity, books = false }: Options = {}) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const bucket = new QueuedBucket<Lane | ShareNode, Lane>(allowed)
  const route = { name: 'api', gate: new Gate() }
  const waiter = { release: () => undefined, expire: () => undefined, reject: () => undefined }
  const arrivalOf = (client: string, claim?: number): Arrival => ({
    ...{ route, stack: [bucket], cost: 1, client },
    ...(books && { appointment: { redeems: claim } }),
  })
  const told = (arrival: Arrival, rejection: Rejection) => {
    const promised = shaper.promise(arrival, rejection, maxWait)
    const { until, wait, position } = comebackOf(arrival, promised, promised.retryAfterMs!, {
      now: clock.now(),
      mode,
      maxWait,
    })
    return [Math.round(until), Math.round(wait), position]
  }
  return {
    clock,
    shaper,
    bucket,
    ask(client: string, claim?: number) {
      const arrival = arrivalOf(client, claim)
      const verdict = mode === 'shape' ? shaper.admit(arrival, waiter, maxWait) : shaper.meter(arrival)
      return verdict === 'released' || verdict instanceof Ticket ? 'admitted' : told(arrival, verdict)
    },
    again(client: string) {
      const claim = books ? shaper.bookingOf(arrivalOf(client), client) : undefined
      const arrival = arrivalOf(client, claim)
      const rejection = shaper.askAgain(arrival, mode, maxWait)
      return rejection === undefined ? 'go' : told(arrival, rejection)
    },
    bookingOf: (client: string) => shaper.bookingOf(arrivalOf(client), client),
  }
}

t.test('shape: until there is room, then the queue', async t => {
  const { clock, ask, again } = world(limits(5, 10))
  for (let number = 0; number < 10; number += 1) t.equal(ask(`first-${number}`), 'admitted')
  t.same(ask('a'), [200, 2_000, 10])
  t.same(ask('b'), [400, 2_200, 11])
  t.same(again('a'), [200, 2_000, 10], 'to ask again changes nothing')
  clock.runUntil(100)
  t.same(again('a'), [100, 1_900, 10])
  t.same(again('b'), [300, 2_100, 11])
  clock.runUntil(200)
  t.equal(again('a'), 'go')
  t.equal(ask('a'), 'admitted')
  t.same(again('b'), [200, 2_000, 10])
})

t.test('meter: until there is room', async t => {
  const { clock, ask, again } = world(limits(5, 10), { mode: 'meter' })
  for (let number = 0; number < 10; number += 1) ask(`first-${number}`)
  t.same(ask('a'), [200, 200, 1])
  t.same(ask('b'), [400, 400, 2])
  clock.runUntil(200)
  t.equal(again('a'), 'go')
  t.same(again('b'), [200, 200, 1])
})

t.test('maxWait: until the wait is short enough, then that wait', async t => {
  const { ask } = world(limits(5, 100), { maxWait: 2_000 })
  for (let number = 0; number < 11; number += 1) t.equal(ask(`first-${number}`), 'admitted')
  t.same(ask('a'), [200, 2_200, 11])
})

t.test('a block is no line', async t => {
  const { ask, again } = world({ ...limits(5, 10), blockFor: 30_000 })
  for (let number = 0; number < 10; number += 1) ask(`first-${number}`)
  ask('a')
  t.same(ask('a'), [30_000, 30_000, undefined])
  t.same(again('a'), [30_000, 30_000, undefined])
})

t.test('who was promised a later moment waits for it, though there is room now', async t => {
  const { clock, shaper, bucket, ask, again } = world(limits(5, 10), { mode: 'meter' })
  for (let number = 0; number < 10; number += 1) ask(`first-${number}`)
  for (const client of ['a', 'b', 'c']) ask(client)
  shaper.engine.setLimits(bucket, limits(5, 20))
  t.same(again('c'), [600, 600, 3])
  t.equal(again('d'), 'go', 'one that was promised nothing')
  clock.runUntil(600)
  t.equal(again('c'), 'go')
})

t.test('a moment that passes without room: the page is promised another one, and need not ask in vain', async t => {
  const { clock, ask, again } = world(limits(5, 10), { mode: 'meter' })
  for (let number = 0; number < 10; number += 1) ask(`first-${number}`)
  for (const client of ['a', 'b']) ask(client)
  clock.runUntil(200)
  t.equal(ask('newcomer'), 'admitted')
  t.same(again('a'), [400, 400, 2], 'behind b')
  t.same(again('b'), [200, 200, 1])
})

t.test('what a client has booked is found by its client, from its moment on, and claimed once', async t => {
  const { clock, ask, again, bookingOf } = world(limits(10, 10), { mode: 'meter', books: true })
  for (let number = 0; number < 10; number += 1) ask(`first-${number}`)
  t.same(ask('a'), [100, 100, 1])
  t.equal(bookingOf('a'), undefined, 'too early')
  clock.runUntil(100)
  t.equal(bookingOf('a'), 1)
  t.equal(bookingOf('b'), undefined)
  t.not(ask('b'), 'admitted', 'its room is kept')
  t.equal(again('a'), 'go')
  t.equal(ask('a', bookingOf('a')), 'admitted')
  t.equal(bookingOf('a'), undefined)
})
