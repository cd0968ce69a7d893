/** How many instances there are, by what the shards of a store tell. */
import t from 'tap'
import { Headcount } from '../../src/sharing/headcount.js'

const roll = (count: number, left: number) => ({ count, left, rank: 0, epoch: 0 })

function counted() {
  const headcount = new Headcount({}, () => {})
  return {
    headcount,
    seen: (shard: string, count: number, left: number, at: number) => headcount.seen(shard, roll(count, left), at),
  }
}

t.test('the assumed number holds until the store has answered for 30 s', async t => {
  const told: number[] = []
  const headcount = new Headcount({ assumed: 3 }, () => told.push(headcount.instances))
  t.equal(headcount.instances, 3)
  for (const [count, at, wanted] of [
    [1, 5_000, 3],
    [2, 34_999, 3],
    [4, 34_999, 4],
    [2, 35_000, 4],
    [2, 65_000, 2],
  ] as const) {
    headcount.seen('', roll(count, 0), at)
    t.equal(headcount.instances, wanted, `${at}`)
  }
  t.same(told, [4, 2])
})

t.test('those who leave are not counted by a name that a shard had before', async t => {
  const { headcount, seen } = counted()
  // Before the shards are known there is one without a name.
  seen('', 4, 0, 0)
  headcount.gone('', 'a')
  for (const shard of ['a', 'b']) seen(shard, 4, 0, 100)
  for (const shard of ['a', 'b']) seen(shard, 2, 2, 1_000)
  t.equal(headcount.instances, 2)
})

t.test('each change of the number is told, whichever shard brought it', async t => {
  const told: number[] = []
  const headcount = new Headcount({}, () => told.push(headcount.instances))
  // The numbers of two shards come while both are being asked.
  for (const [shard, count, left, at] of [
    ['a', 3, 0, 0],
    ['b', 3, 0, 0],
    ['a', 2, 1, 100],
    ['b', 2, 1, 100],
    ['a', 3, 1, 200],
    ['b', 3, 1, 200],
  ] as const) {
    headcount.seen(shard, roll(count, left), at)
  }
  t.same(told, [3, 2, 3])
})

t.test('who left before this instance came is not taken off', async t => {
  const { headcount, seen } = counted()
  seen('old', 4, 0, 0)
  headcount.gone('old', 'a')
  // Its data is lost: it tells of one, and of three that left long ago.
  seen('a', 1, 3, 100)
  t.equal(headcount.instances, 4)
})
