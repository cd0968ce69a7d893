/** Parts of the sequence of promises that an instance has of a store, in ms and cost units. */
import t from 'tap'
import { Gate } from '../../src/core/queue/lane.js'
import { FRAME } from '../../src/decider/constants.js'
import { costBehind, PromisingBucket, type WaitingClient } from '../../src/sharing/promising-bucket.js'

const RATE = 0.1

function waiting(client: string, cost = 1, fitAt = 0): WaitingClient {
  const arrival = { route: { name: 'route', gate: new Gate() }, stack: [], cost, client }
  return { asks: { arrival, rejection: { reason: 'overflow', buckets: [], retryAfterMs: 1 } }, cost, fitAt }
}

t.test('a quiet bucket may ask twice at once, and then once in a frame', async t => {
  const promising = new PromisingBucket()
  const calls: number[] = []
  for (let now = 5_000; now < 9_000; now += 1) {
    promising.wait(waiting('client'))
    while (promising.waiting > 0 && promising.nextCallAt <= now) {
      calls.push(now)
      promising.takeAll(now)
    }
  }
  t.same(calls.slice(0, 4), [5_000, 5_001, 5_000 + FRAME, 5_000 + 2 * FRAME])
})

t.test('the cost behind the first: each client once, and what does not fit earlier is a gap', async t => {
  t.equal(costBehind([waiting('one', 5)], RATE), 0)
  t.equal(costBehind([waiting('one', 5), waiting('two', 2), waiting('one', 5), waiting('two', 2)], RATE), 2)
  t.equal(costBehind([waiting('one', 1, 10), waiting('two', 1, 70)], RATE), 6)
  t.equal(costBehind([waiting('one', 1, 10), waiting('two', 1, 9_000)], RATE), 1, 'others do not wait for it')
})

t.test('asks ahead for what was needed in each of the last two periods', async t => {
  const promising = new PromisingBucket()
  t.equal(promising.expect(250), 0, 'a crowd asks for nobody else')
  t.equal(promising.expect(3), 3)
  t.equal(promising.expect(8), 3)
  t.equal(promising.expect(8), 8)
  promising.keepSpare({ first: 0, until: 100, rate: RATE }, 0, 0)
  t.same(promising.spareFor(waiting('one', 2), 0, -Infinity), { place: 20, at: 20 })
  t.equal(promising.expect(7), 8, 'what was told of it counts')
  t.equal(promising.expect(20), 9)
})

t.test(
  'of what is left each moment is told once, none that has passed, and none that is not promised any more',
  async t => {
    const promising = new PromisingBucket()
    const spare = (now: number, client = waiting('one'), changedAt = -Infinity) =>
      promising.spareFor(client, now, changedAt)?.place
    t.equal(spare(0), undefined)
    promising.keepSpare({ first: 100, until: 200, rate: RATE }, 130, 50)
    t.equal(spare(60), 140)
    t.equal(spare(60), 150)
    t.equal(spare(60, waiting('large', 6)), undefined, 'too short')
    t.equal(spare(175), 185, 'its moments before have passed')
    t.equal(spare(175, waiting('one'), 60), undefined, 'the bucket was reset, or its rate changed')
    promising.wait(waiting('earlier'))
    t.equal(spare(175), undefined, 'another came before it')
    promising.takeAll(175)
    t.equal(spare(195), undefined)
  },
)
