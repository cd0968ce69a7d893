/** What an instance reports of a bucket that it leases. */
import t from 'tap'
import { BucketLease } from '../../src/core/shared/bucket-lease.js'

t.test('the first report has no room and has used what was admitted', async t => {
  const lease = new BucketLease({ rate: 0.1 }, 2)
  t.equal(lease.roomAt(1_000), 0)
  lease.ask(1)
  lease.use(1)
  t.match(lease.report([{ priority: 3, weight: 1, cost: 5 }], 0, 10, 1_000), { used: 1, want: 4, largest: 2 })
})

t.test('where much waits it is leased on, also if the bucket has drained', async t => {
  const lease = new BucketLease({ rate: 0.1 }, 1)
  const times = { nextAt: 120, until: 0, roomFrom: 0, roomUntil: 480 }
  lease.answered({ slots: [], ...times, room: 0, roomRate: 0, spare: 0, level: 0, instances: 2 })
  t.equal(lease.isEasy([{ priority: 3, weight: 1, cost: 60 }]), false)
  t.equal(lease.isEasy([{ priority: 3, weight: 1, cost: 5 }]), true)
})
