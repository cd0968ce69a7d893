/** A store of two shards, of which one is away: the buckets on the other are shared as before. On the virtual clock. */
import t from 'tap'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import type { OnOutage } from '../../src/sharing/shard.js'
import { random } from '../core/run.js'
import { createWorld, type Request, type World } from '../proxy/instances.js'

const limits: BucketLimits = { name: 'client', rate: 0.1, capacity: 40 }
const SHARDS = ['a', 'b']

/** Two instances. Clients on both shards ask for more than their rate. The shard `b` is away from 2 s until 7 s. */
async function play(onOutage: OnOutage, stack: BucketLimits[], stacks: readonly string[][]) {
  const next = random(3)
  const world = createWorld(stack, 2, () => 0.1 + next() * 0.9, { onOutage, shards: SHARDS })
  const requests: { at: number; key: string; request: Request }[] = []
  const arrive = (): void => {
    for (const keys of stacks) {
      const request = world.instances[Math.floor(next() * 2)]!.request(keys)
      requests.push({ at: world.clock.now(), key: keys[0]!, request })
    }
    if (world.clock.now() < 12_000) world.clock.at(world.clock.now() + next() * 12, arrive)
  }
  arrive()
  await world.run(2_000)
  world.lost.add('b')
  await world.run(4_000)
  const during = world.instances.map(({ sharing }) => [sharing.state, sharing.ready, sharing.instances])
  await world.run(7_000)
  world.lost.delete('b')
  await world.run(12_000)
  const unavailable = (key: string): number =>
    requests.filter(({ key: of, request: { verdict } }) => {
      return of === key && typeof verdict === 'object' && 'reason' in verdict && verdict.reason === 'unavailable'
    }).length
  return { world, during, unavailable }
}

/** Requests of a client per second. */
function rateOf({ sent }: World, key: string, from: number, to: number): number {
  return (sent.filter(one => one.key === key && one.at >= from && one.at < to).length * 1_000) / (to - from)
}

t.test('local: the clients of the other shard keep the whole rate', async t => {
  const { world, during, unavailable } = await play('local', [limits], [['a1'], ['b1']])
  t.same(
    during,
    [
      ['alone', true, 2],
      ['alone', true, 2],
    ],
    'the store is there, and the number of instances is known',
  )
  t.ok(Math.abs(rateOf(world, 'a1', 2_000, 12_000) - 100) <= 1, `a: ${rateOf(world, 'a1', 2_000, 12_000)}`)
  t.ok(Math.abs(rateOf(world, 'b1', 3_000, 7_000) - 100) <= 2, `b alone: ${rateOf(world, 'b1', 3_000, 7_000)}`)
  t.ok(Math.abs(rateOf(world, 'b1', 9_000, 12_000) - 100) <= 1, `b again: ${rateOf(world, 'b1', 9_000, 12_000)}`)
  t.equal(unavailable('a1') + unavailable('b1'), 0)
  t.same(
    world.instances.map(({ sharing }) => sharing.state),
    ['shared', 'shared'],
  )
})

t.test('closed: only the clients of the shard that is away are rejected', async t => {
  const { world, unavailable } = await play('closed', [limits], [['a1'], ['b1']])
  t.ok(Math.abs(rateOf(world, 'a1', 2_000, 12_000) - 100) <= 1, `a: ${rateOf(world, 'a1', 2_000, 12_000)}`)
  t.equal(unavailable('a1'), 0)
  t.equal(rateOf(world, 'b1', 3_000, 7_000), 0)
  t.ok(unavailable('b1') > 300, `${unavailable('b1')} are rejected`)
  t.ok(Math.abs(rateOf(world, 'b1', 9_000, 12_000) - 100) <= 1, 'b again')
})

t.test('long: a stack over both follows the one that is away', async t => {
  const wide: BucketLimits = { name: 'everyone', rate: 0.2, capacity: 80 }
  for (const onOutage of ['local', 'closed'] as const) {
    const { world, unavailable } = await play(
      onOutage,
      [limits, wide],
      [
        ['a1', 'a-all'],
        ['a2', 'b-all'],
      ],
    )
    // While its shard is in doubt, twice, what is leased for a frame and a lead is lost: 15 slots of 1,000.
    t.ok(Math.abs(rateOf(world, 'a1', 2_000, 12_000) - 100) <= 2, `${onOutage}: ${rateOf(world, 'a1', 2_000, 12_000)}`)
    t.equal(unavailable('a1'), 0)
    const rate = rateOf(world, 'a2', 3_000, 7_000)
    if (onOutage === 'closed') t.equal(rate, 0)
    else t.ok(rate > 95 && rate <= 102, `goes on at ${rate}`)
    t.equal(unavailable('a2') > 0, onOutage === 'closed')
    t.ok(Math.abs(rateOf(world, 'a2', 9_000, 12_000) - 100) <= 1, 'as before when it is back')
  }
})

t.test('instances that come while a shard is away are counted by the other', async t => {
  const world = createWorld([limits], 3, () => 0.5, { shards: SHARDS })
  world.lost.add('b')
  await world.run(4_000)
  t.same(
    world.instances.map(({ sharing }) => [sharing.state, sharing.ready, sharing.instances]),
    Array(3).fill(['alone', true, 3]),
  )
  world.lost.delete('b')
  await world.run(6_000)
  t.same(
    world.instances.map(({ sharing }) => sharing.state),
    Array(3).fill('shared'),
  )
})
