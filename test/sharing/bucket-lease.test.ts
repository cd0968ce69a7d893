/** What an instance has of a bucket that it leases, and what it reports. */
import t from 'tap'
import { FORECAST, SLOT_GRACE } from '../../src/decider/constants.js'
import type { ClassDemand, LeaseAnswer } from '../../src/decider/record.js'
import { BucketLease } from '../../src/sharing/bucket-lease.js'

/** 100/s: a slot for a cost of 1 is 10 ms long. */
const QUICK = { rate: 0.1 }
/** 10/s. */
const SLOW = { rate: 0.01 }

const nothing = { slots: [], nextAt: 120, until: 0, room: 0, filled: 0, roomRate: 0, roomFrom: 0, roomUntil: 480 }
const alone = { spare: 0, level: 0, instances: 1, lateBy: 2, others: [] }

function answer(more: Partial<LeaseAnswer>): LeaseAnswer {
  return { ...nothing, ...alone, ...more }
}

function waiting(cost: number): ClassDemand[] {
  return [{ priority: 3, weight: 1, cost }]
}

/** A lease with slots of this cost at these times. */
function leased(limits: { rate: number }, moments: readonly number[], more: Partial<LeaseAnswer> = {}, cost = 1) {
  const lease = new BucketLease(limits, 1)
  lease.report(waiting(moments.length), 0, {
    lead: 5,
    late: 2,
    now: 0,
    waits: 0,
    couldClaim: false,
    isBefore: false,
    capacity: Infinity,
  })
  lease.answered(answer({ slots: moments.map(at => ({ at, cost, token: at })), ...more }), 0)
  return lease
}

t.test('room is leased from when a quick bucket is full, or from its second report; of a slow one never', async t => {
  const times = { lead: 5, late: 2, now: 0, waits: 0, couldClaim: false, isBefore: false, capacity: Infinity }
  for (const [limits, second] of [
    [QUICK, 4],
    // 16/s: a frame has less than two requests.
    [{ rate: 0.016 }, -1],
  ] as const) {
    const lease = new BucketLease(limits, 1)
    lease.askStore(1)
    t.equal(lease.leasesRoom, false, 'the store is asked about each request of a burst')
    t.equal(lease.report(waiting(5), 0, times).want, -1)
    lease.answered(answer({}), 0)
    lease.askStore(1.5)
    t.equal(lease.report(waiting(5), 0, times).want, second, 'twice of what the store was asked about, and one')
    lease.answered(answer({}), 0)
    lease.openRoom()
    t.equal(lease.leasesRoom, limits === QUICK)
    t.equal(lease.report(waiting(5), 0, times).want >= 0, limits === QUICK)
  }
  const blocking = new BucketLease({ ...QUICK, blockFor: 1_000 }, 1)
  blocking.openRoom()
  t.equal(blocking.leasesRoom, false, 'all have to know of a bucket that blocks')
})

t.test('what has passed of a slot for many requests can be used', async t => {
  const lease = leased({ rate: 10 }, [0, 20, 40], { instances: 2 }, 10)
  t.equal(lease.pastFor(1), 2, 'between two slots of one instance there is one of the other')
  t.equal(lease.pastFor(5), 0)
  t.equal(leased({ rate: 0.01 }, [0, 20], { instances: 9 }, 10).pastFor(1), SLOT_GRACE)
  t.equal(new BucketLease(QUICK, 1).pastFor(1), 0)
})

t.test('the first report has no room and has used what was admitted', async t => {
  const lease = new BucketLease(QUICK, 2)
  lease.openRoom()
  t.equal(lease.roomAt(1_000), 0)
  lease.ask(1)
  lease.use(1, 1_000)
  const report = lease.report(waiting(5), 0, {
    lead: 10,
    late: 2,
    now: 1_000,
    waits: 0,
    couldClaim: false,
    isBefore: false,
    capacity: Infinity,
  })
  t.match(report, { held: 1, kept: 0, want: 4, largest: 2 })
  const many = new BucketLease(QUICK, 1, { asked: 60 })
  many.openRoom()
  many.ask(1)
  t.equal(
    many.report([], 0, { lead: 10, late: 2, now: 0, waits: 0, couldClaim: false, isBefore: false, capacity: Infinity })
      .want,
    120,
    'twice of what has asked before it was leased',
  )
})

t.test('where much waits it is leased on, also if the bucket has drained', async t => {
  const lease = new BucketLease(QUICK, 1)
  t.equal(lease.leavesWithin(waiting(1), 100), false, 'nor before the first answer')
  lease.answered(answer({ level: 0 }), 0)
  t.equal(lease.leavesWithin(waiting(9), 100), true)
  t.equal(lease.leavesWithin(waiting(10), 100), false)
  lease.answered(answer({ level: 10 }), 0)
  t.equal(lease.leavesWithin(waiting(1), 100), false, 'nor if much is admitted anywhere')
  lease.answered(answer({ level: 0 }), 0)
  lease.refuse()
  t.equal(lease.leavesWithin(waiting(1), 100), false, 'nor if there was no room')
  lease.report([], 0, { lead: 5, late: 2, now: 0, waits: 0, couldClaim: false, isBefore: false, capacity: Infinity })
  t.equal(lease.leavesWithin(waiting(1), 100), true, 'since the last report')
})

t.test('claims are granted where nobody else leases or has slots far ahead', async t => {
  const lease = new BucketLease(QUICK, 1)
  lease.answered(answer({ until: 1_000 }), 0)
  t.equal(lease.grantsClaims(50), true)
  lease.answered(answer({ until: 49, instances: 2, lateBy: 0 }), 0)
  t.equal(lease.grantsClaims(50), true)
  lease.answered(answer({ until: 50, instances: 2, lateBy: 0 }), 0)
  t.equal(lease.grantsClaims(50), false)
})

t.test('an instance that could do without slots says so, and asks once it needs one', async t => {
  const lease = new BucketLease(QUICK, 1)
  const { demand } = lease.report(waiting(1), 0, {
    lead: 5,
    late: 2,
    now: 0,
    waits: 0,
    couldClaim: true,
    isBefore: false,
    capacity: Infinity,
  })
  t.same(demand, [...waiting(1), { priority: FORECAST, weight: 0, cost: 1 }])
  lease.answered(answer({ slots: [{ at: 50, cost: 1, token: 50 }] }), 0)
  t.equal(lease.isOutOfSlots(50), false, 'there is one')
  lease.take(1, 50)
  t.equal(lease.isOutOfSlots(51), true)
  lease.report(waiting(1), 0, {
    lead: 5,
    late: 2,
    now: 60,
    waits: 0,
    couldClaim: false,
    isBefore: false,
    capacity: Infinity,
  })
  t.equal(lease.isOutOfSlots(61), false, 'it waits for slots')
})

t.test('what is expected is what was admitted, whatever slots are there', async t => {
  const lease = leased(QUICK, [100, 110, 120, 130])
  lease.ask(3)
  lease.use(3, 50)
  const { demand } = lease.report(waiting(2), 0, {
    lead: 5,
    late: 2,
    now: 50,
    waits: 0,
    couldClaim: false,
    isBefore: false,
    capacity: Infinity,
  })
  t.same(demand, [...waiting(0), { priority: FORECAST, weight: 1, cost: 3 }])
})

t.test('as many as came in the last frame are expected from the first report on', async t => {
  const lease = new BucketLease(QUICK, 1, { asked: 150 })
  const report = () =>
    lease
      .report([], 0, { lead: 5, late: 2, now: 50, waits: 0, couldClaim: false, isBefore: false, capacity: Infinity })
      .demand.map(({ cost }) => cost)
  t.same(report(), [150])
  lease.answered(answer({}), 50)
  t.same(report(), [], 'but only once')
})

t.test('a slot of a slow bucket can be used until another one is due, of a quick one for the grace', async t => {
  const [quick, slow] = [leased(QUICK, [1_000, 1_010]), leased(SLOW, [1_000, 1_100])]
  t.equal(quick.next(1_000 + SLOT_GRACE), 1_000)
  t.equal(quick.next(1_012), 1_002, 'with the time that is left')
  t.equal(slow.next(1_099), 1_000)
  t.same([slow.lastUse, quick.lastUse], [1_200, 1_020])
  const among = (instances: number) => leased(SLOW, [1_000], { instances }).lastUse
  t.same([2, 3, 4, 9].map(among), [1_100, 1_200, 1_300, 1_300], 'where several lease, some slots may be late')
})

t.test('of a slot that others follow not less than half is used', async t => {
  const next = (now: number, instances: number) => {
    const lease = leased(SLOW, [1_000, 1_200], { instances })
    // A request of one slot.
    lease.ask(1)
    return lease.next(now)
  }
  t.same([next(1_149, 2), next(1_151, 2)], [1_049, 1_200])
  t.equal(next(1_151, 1), 1_051, 'one that is alone uses all of it')
})

t.test('a slot that is used late does not move those behind it, as long as the bound has room for that', async t => {
  const next = (now: number, instances: number) => {
    const lease = leased(QUICK, [1_000, 1_030, 1_060], { instances })
    lease.cut(now - 5)
    const taken = lease.take(1, now)
    const after = lease.next(0)
    lease.giveBack(taken, 1)
    t.equal(lease.next(0), now - 5, 'it is there again')
    lease.take(1, now)
    t.equal(lease.next(0), after)
    return after
  }
  t.same([next(1_008, 3), next(1_010, 3), next(1_010, 2)], [1_030, 1_030, 1_030])
  t.equal(next(1_010, 1), 1_035, 'one that is alone is as exact as one bucket')
  const late = leased(QUICK, [1_000, 1_030], { instances: 2 })
  late.cutLate(1_014)
  late.take(1, 1_014)
  t.equal(Math.round(late.next(0)), 1_034, 'later than one slot: the rest is made up for')
})

t.test('the rest of a slot is not used where a request has what comes behind it', async t => {
  const next = (cuts: readonly number[]) => {
    const lease = leased(SLOW, [1_000, 1_100])
    const taken = lease.take(1, 1_000)
    lease.take(1, 1_000)
    // The request of the first slot hangs up.
    lease.giveBack(taken, 1)
    for (const moment of cuts) lease.cut(moment)
    return lease.next(0)
  }
  t.equal(next([1_040]), 1_040)
  t.equal(next([1_060]), Infinity, 'less than half is left')
  t.equal(next([1_040, 1_060]), Infinity, 'it was lost piece by piece')
})

t.test('a new lease pays first for what has left by the last one without a slot', async t => {
  const lease = new BucketLease(SLOW, 1, { debt: 1.5 })
  t.equal(lease.available, -1.5)
  lease.report(waiting(3), 0, {
    lead: 5,
    late: 2,
    now: 0,
    waits: 0,
    couldClaim: false,
    isBefore: false,
    capacity: Infinity,
  })
  lease.answered(answer({ slots: [1_000, 1_100, 1_200].map(at => ({ at, cost: 1, token: at })) }), 0)
  t.same([lease.next(0), lease.available], [1_150, 1.5])
})

t.test('what cannot be used any more at a later moment is lost', async t => {
  const lease = leased(SLOW, [1_000, 1_100])
  lease.cutLate(1_090)
  t.equal(lease.next(0), 1_000, 'it can be used for a slot longer')
  lease.cutLate(1_150)
  t.equal(lease.next(0), 1_050)
})

t.test('time before a moment is cut off', async t => {
  const lease = leased(QUICK, [1_000, 1_010, 1_020])
  lease.cut(1_000)
  t.same([lease.next(0), lease.available], [1_000, 3])
  lease.cut(1_013)
  t.same([lease.next(0), Math.round(10 * lease.available) / 10], [1_013, 1.7])
  lease.cut(1_030)
  t.same([lease.next(0), lease.isEmpty], [Infinity, true])
})

t.test('a slot can be used late, at any rate by a grace', async t => {
  t.equal(leased(SLOW, [1_000]).half, 50)
  t.match(leased({ rate: 1 }, [1_000]).take(1, 1_000), { at: 1_000, until: 1_000 + SLOT_GRACE })
})

t.test('all times are later by the way to the farthest instance', async t => {
  const lease = leased(QUICK, [1_000], { lateBy: 22, until: 1_010 })
  t.equal(lease.next(0), 1_020)
  t.equal(lease.until, 1_030)
  t.equal(leased(QUICK, [1_000], { lateBy: 2, until: 1_010 }).next(0), 1_000, 'which is this one')
})

t.test('who asks for room before its time asks for twice as much', async t => {
  const lease = new BucketLease(QUICK, 1)
  lease.answered(answer({ nextAt: 0 }), 0)
  const asks = (cost: number, now: number) => {
    lease.ask(cost)
    const { want } = lease.report([], 0, {
      lead: 5,
      late: 2,
      now,
      waits: 0,
      couldClaim: false,
      isBefore: false,
      capacity: Infinity,
    })
    lease.answered(answer({ nextAt: now + 120 }), now)
    return want
  }
  t.equal(asks(4, 0), 8)
  t.equal(asks(1, 20), 16)
  t.equal(asks(1, 40), 32)
  t.equal(asks(1, 200), 2, 'until it is in time again')
})

t.test('it asks for more room if the store has enough, and not again at once', async t => {
  const lease = new BucketLease(QUICK, 1)
  const report = () =>
    lease.report([], 0, { lead: 5, late: 2, now: 0, waits: 0, couldClaim: false, isBefore: false, capacity: Infinity })
  t.equal(lease.canRefill(100, 0), true, 'before the first answer nothing is known')
  lease.answered(answer({ nextAt: 0 }), 0)
  lease.ask(1)
  t.equal(report().want, 2)
  lease.answered(answer({ spare: 6, instances: 2, room: 2 }), 0)
  lease.refilled(4, 0)
  t.equal(lease.canRefill(4, 0), true, 'this request came after the report, which got all that it asked for')
  lease.use(1, 0)
  lease.ask(4)
  t.equal(report().want, 8)
  lease.answered(answer({ spare: 6, instances: 2, room: 0 }), 0)
  const costs = [1, 4, 5]
  t.same(
    costs.map(cost => lease.canRefill(cost, 0)),
    [false, true, false],
    'half of what is left',
  )
  lease.refilled(4, 0)
  t.same([lease.canRefill(4, 99), lease.canRefill(4, 100)], [false, true], 'others have it')
  lease.answered(answer({ spare: 6, room: 1 }), 0)
  t.equal(lease.canRefill(6, 100), true, 'who is alone gets as much as a request needs')
})

t.test('what has left drains from its slot on', async t => {
  const lease = leased(QUICK, [1_000, 1_010, 1_020])
  t.equal(lease.drainedAt, -Infinity)
  lease.take(1, 1_005)
  t.equal(lease.drainedAt, 1_010)
  lease.take(2, 1_015)
  t.equal(lease.drainedAt, 1_030)
  t.equal(lease.isEmpty, true, 'it has used two slots')
})

t.test('a request that is larger than a slot is paid for by the next ones', async t => {
  const lease = leased(QUICK, [1_000, 1_010, 1_020, 1_030])
  const taken = lease.take(2.5, 1_000)
  t.equal(taken.at, 1_000)
  t.equal(lease.next(1_000), 1_025)
  lease.giveBack(taken, 2.5)
  t.equal(lease.next(1_000), 1_000)
  t.equal(lease.available, 4)
})

t.test('a slot that is given back after the report of its use does not make later demand negative', async t => {
  const lease = leased({ rate: 0.1 }, [0, 10])
  const taken = lease.take(1, 0)
  lease.report(waiting(1), 0, {
    lead: 5,
    late: 2,
    now: 1,
    waits: 0,
    couldClaim: false,
    isBefore: false,
    capacity: Infinity,
  })
  lease.giveBack(taken, 1)
  // All slots lapse, so no more is asked for than has been used lately.
  const { demand } = lease.report(waiting(5), 0, {
    lead: 5,
    late: 2,
    now: 500,
    waits: 0,
    couldClaim: false,
    isBefore: false,
    capacity: Infinity,
  })
  t.ok(
    demand.every(({ cost }) => cost >= 0),
    `${demand.map(({ cost }) => cost)}`,
  )
})
