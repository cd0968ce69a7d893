/** What a bucket in a store keeps apart: when the store may grant a claim, and what has passed here alone. */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { BucketLease } from '../../src/sharing/bucket-lease.js'
import { shareBy } from '../../src/sharing/shared-room.js'
import type { ClaimRequest, Store } from '../../src/sharing/store.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { limits } from '../core/run.js'
import { shardIn } from './shard.js'

const NOBODY = { release() {}, expire() {}, reject() {} }

function storedBucket(perSecond: number, shard = shardIn('direct')): StoredBucket {
  return new StoredBucket(limits(perSecond, 10), 'key', () => 'group', shard)
}

t.test('the time of the next claim is no part of the level', async t => {
  const bucket = storedBucket(5)
  bucket.fill(3, 1_000)
  bucket.claimableAt = 5_000
  t.equal(bucket.level(1_000), 3)
  t.equal(bucket.freeAt, 5_000)
  bucket.claimableAt = 1_100
  t.equal(bucket.freeAt, 1_600, 'what passed here alone counts as well')
  t.equal(bucket.level(1_200), 2)
})

t.test('a rate that changes moves the next claim, and a reset makes it possible at once', async t => {
  const bucket = storedBucket(5)
  bucket.claimableAt = 2_000
  bucket.setLimits(limits(10, 10), 1_000)
  t.equal(bucket.freeAt, 1_500)
  t.equal(bucket.changedAt, 1_000)
  bucket.setLimits(limits(10, 20), 1_100)
  t.equal(bucket.freeAt, 1_500, 'another capacity does not')
  bucket.reset(1_200)
  t.equal(bucket.freeAt, 1_200)
})

t.test('what a lease owes at its end is known for a second after it has drained, and a reset forgets it', async t => {
  const leasedAndEnded = (instances = 2) => {
    const bucket = storedBucket(5, shardIn('claimed'))
    const lease = new BucketLease(bucket.limits, 2)
    bucket.lease = lease
    lease.report([], 0, { lead: 5, late: 0, now: 0, waits: 0, couldClaim: false, isBefore: false, capacity: Infinity })
    const room = { room: 0, filled: 0, roomRate: 0, roomFrom: 0, roomUntil: 0, spare: 0 }
    const others = { level: 0, instances, lateBy: 0, others: [] }
    lease.answered({ slots: [{ at: 1_000, cost: 1, token: 1 }], nextAt: 120, until: 1_200, ...room, ...others }, 0)
    lease.take(2, 1_000)
    bucket.endLease()
    return bucket
  }
  const bucket = leasedAndEnded()
  t.same(
    [1_000, 2_399, 2_400].map(at => bucket.leaseDebtAt(at)),
    [1, 1, 0],
    'the slot was for one cost unit of two, at 5/s: until 1,400. For another second others may have used what has drained',
  )
  const alone = leasedAndEnded(1)
  t.same(
    [1_000, 1_300, 1_400].map(at => alone.leaseDebtAt(at)),
    [1, 0.5, 0],
    'nobody else has used it',
  )
  const again = leasedAndEnded()
  again.lease = new BucketLease(again.limits, 2, { debt: again.leaseDebtAt(1_000) })
  again.endLease()
  t.equal(again.leaseDebtAt(1_000), 1, 'a lease that gets no slots pays nothing')
  t.equal(again.claimableFrom(1_000), 1_400)
  t.equal(again.claimableFrom(1_500), 1_500)
  again.giveBackLeased(2)
  t.equal(again.leaseDebtAt(1_000), 0, 'the request does not leave')
  t.equal(again.claimableFrom(1_000), 1_000)
  const faster = leasedAndEnded()
  faster.setLimits({ ...faster.limits, rate: 4 * faster.limits.rate }, 1_000)
  t.equal(faster.claimableFrom(1_000), 1_100)
  const forgotten = leasedAndEnded()
  forgotten.reset(1_000)
  t.equal(forgotten.leaseDebtAt(1_000), 0)
})

t.test('an outage during which others were metered leaves no bucket that is always free', async t => {
  const clock = createVirtualClock({ start: 1_000 })
  const claims: ClaimRequest[] = []
  const store: Store = {
    horizon: 8,
    admit: () => ({ admitted: true, levels: [1] }),
    claim(request) {
      claims.push(request)
      if (claims.length > 100) throw new Error('claims without end')
      return { granted: false, freeAt: [clock.now() + 1_000] }
    },
    giveBack: () => undefined,
    reset: () => undefined,
    beat: () => ({ count: 1, left: 0, rank: 0, epoch: 0 }),
    exchange: () => ({ pausedFor: 0, rate: undefined, rateFor: 0 }),
    close: async () => undefined,
  }
  const shaper = new Shaper({ clock, share: shareBy({ store, clock }) })
  const route = { name: 'route', gate: new Gate() }
  const shard = shardIn('direct')
  const bucket = storedBucket(5, shard)
  const arrival = { route, stack: [bucket], cost: 1 }
  shaper.admit(arrival, NOBODY)
  shaper.admit(arrival, NOBODY)
  shaper.meter(arrival)
  t.equal(bucket.extras?.pinnedDrainedAt, 1_200, 'the metered one does not delay the one that waits')
  shard.mode = 'claimed'
  clock.runUntil(1_900)
  t.equal(claims.length, 1, 'the store has said when to ask again')
})

t.test(
  'where a store keeps the order a newcomer stands behind all that wait elsewhere, unless they may be of another lane',
  async t => {
    const inOrder = shardIn('claimed', { keepsOrder: true })
    const one = storedBucket(10, inOrder)
    const mixed = storedBucket(10, shardIn('claimed', { keepsOrder: true, hasSeveralLanes: () => true }))
    const urgent = storedBucket(10, inOrder)
    urgent.hasPriorities = true
    for (const bucket of [one, mixed, urgent]) bucket.levelReported(9, 0)
    t.equal(one.aheadElsewhere(0, 0), 9)
    t.equal(one.waitBetweenOthers(1, 0, 0), undefined)
    for (const bucket of [mixed, urgent]) {
      t.equal(bucket.aheadElsewhere(0, 0), 0)
      t.equal(bucket.waitBetweenOthers(1, 0, 0), 160, 'half a frame, and its own period')
    }
  },
)
