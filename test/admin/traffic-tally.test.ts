import t from 'tap'
import { Fullest } from '../../src/admin/counters/fullest.js'
import { SlidingQuantiles } from '../../src/admin/counters/sliding-quantiles.js'
import {
  DryRunTally,
  RecentRates,
  RecentSum,
  RecentTimes,
  WatchedKeys,
} from '../../src/admin/counters/traffic-tally.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { combineObservers, type RequestRecord } from '../../src/proxy/observe/observer.js'

const LIMITS = { name: 'user', rate: 0.001, capacity: 10 }

t.test('quantiles of the last ten seconds only', async t => {
  const recent = new SlidingQuantiles()
  t.same(recent.quantiles(0), { count: 0, p50: 0, p90: 0, p99: 0, max: 0 })
  const near = (now: number, count: number, ...wanted: number[]) => {
    const { p50, p90, p99, max, ...rest } = recent.quantiles(now)
    t.equal(rest.count, count)
    for (const [place, value] of [p50, p90, p99, max].entries()) {
      t.ok(Math.abs(value - wanted[place]!) <= wanted[place]! * 0.011, `${value}, not ${wanted[place]}`)
    }
  }
  for (let value = 1; value <= 100; value += 1) recent.add(value, value)
  near(100, 100, 51, 91, 100, 100)
  for (let value = 0; value < 50; value += 1) recent.add(0, 5_000)
  near(10_999, 150, 26, 86, 99, 100)
  near(11_000, 50, 0, 0, 0, 0)
  for (let value = 0; value < 20_000; value += 1) recent.add(7.77, 20_000)
  near(20_000, 20_000, 7.77, 7.77, 7.77, 7.77)
  recent.add(1e30, 20_000)
  t.equal(recent.quantiles(20_000).max, 1e30)
})

t.test('moments: the latest, oldest first', async t => {
  const moments = new RecentTimes()
  for (let time = 0; time < 1_000; time += 1) moments.add(time)
  t.equal(moments.list().length, 256)
  t.same([moments.list()[0], moments.list().at(-1)], [744, 999])
})

t.test('watched keys: counted since they were asked for first, few, and only while somebody asks', async t => {
  const watched = new WatchedKeys()
  t.equal(watched.find('user', 'a'), undefined)
  const own = watched.ask('user', 'a', 0)
  watched.find('user', 'a')!.add('offered', 3, 10)
  watched.find('user', 'a')!.add('released', 2, 11)
  watched.find('user', 'a')!.add('rejected', 1, 12)
  t.equal(watched.find('other', 'a'), undefined)
  t.equal(watched.ask('user', 'a', 29_000), own)
  t.match(own, { offered: 3, released: 2, rejected: 1 })
  t.same(own.focus('a'), { key: 'a', watchers: 1, arrivals: [10], releases: [11], rejections: [12] })
  watched.ask('user', 'b', 58_000)
  t.equal(watched.find('user', 'a'), own)
  watched.ask('user', 'b', 60_000)
  t.equal(watched.find('user', 'a'), undefined, 'nobody has asked for 30 s')
  for (let id = 0; id < 40; id += 1) watched.ask('user', `${id}`, 60_001 + id)
  const kept = Array.from({ length: 40 }, (_, id) => id).filter(id => watched.find('user', `${id}`))
  t.same([kept.length, kept[0]], [32, 8], 'the latest 32')
})

t.test('the fullest of very many are found without one long scan', async t => {
  const bucketTable = new BucketTable(1e6)
  const fullest = new Fullest('user', bucketTable)
  for (let id = 0; id < 50_000; id += 1) bucketTable.find(LIMITS, `k${id}`, 0)!.fill(0.01, 0)
  for (const [id, cost] of [
    [40_000, 9],
    [30_000, 8],
    [10, 1],
  ] as const) {
    bucketTable.find(LIMITS, `k${id}`, 0)!.fill(cost, 0)
  }
  let looked = 0
  const { entries } = bucketTable
  bucketTable.entries = name => {
    const all = entries.call(bucketTable, name)
    return {
      *[Symbol.iterator]() {
        for (const entry of all) {
          looked += 1
          yield entry
        }
      },
    }
  }
  const first = (count: number, now = 0) =>
    fullest
      .list(now)
      .slice(0, count)
      .map(([key]) => key)
  t.equal(first(1)[0], 'k10')
  t.ok(looked <= 501)
  for (let time = 0; time < 100; time += 1) fullest.list(0)
  t.same(first(3), ['k40000', 'k30000', 'k10'])
  const fresh = bucketTable.find(LIMITS, 'k20000', 0)!
  fresh.fill(5, 0)
  fullest.hint('k20000')
  t.same(first(4), ['k40000', 'k30000', 'k20000', 'k10'], 'one of which something is heard is there at once')
  t.same(first(20, 20_000), [], 'those that have drained are no more')
})

t.test('dry runs: a flood of keys does not displace a key that is hit repeatedly', async t => {
  const rehearsals = new DryRunTally(0)
  const request = (key: string): RequestRecord => ({
    route: 'api',
    method: 'GET',
    target: '/',
    stack: [],
    keys: [key],
    cost: 1,
    costs: undefined,
    settled: undefined,
    isSettling: false,
    priority: 3,
    wait: 0,
    predictedWait: undefined,
    upstreamTime: undefined,
    retries: 0,
    inFlight: false,
    givenUp: undefined,
    rejection: undefined,
    failure: undefined,
    onTrial: false,
    coalesced: false,
    header: () => 'curl/8',
  })
  for (let hit = 0; hit < 20; hit += 1) rehearsals.add(request('worst'), 'would_reject', 'user', 0)
  for (let key = 0; key < 50_000; key += 1) rehearsals.add(request(`k${key}`), 'would_delay', 'user', key)
  const { keys, agents } = rehearsals.snapshot()
  t.match(keys[0], { key: 'worst', wouldReject: 20 })
  t.equal(keys.length, 50)
  t.same(agents.library, { would_reject: 20, would_delay: 50_000 })
})

t.test('observers are called in order, each for its own events only', async t => {
  const told: string[] = []
  const all = combineObservers([
    { queued: () => told.push('first queued') },
    { queued: () => told.push('second queued'), tunnelClosed: () => told.push('closed') },
  ])
  t.same(Object.keys(all).sort(), ['queued', 'tunnelClosed'])
  all.queued!({} as RequestRecord)
  all.tunnelClosed!('api', 'why')
  t.same(told, ['first queued', 'second queued', 'closed'])
  class Counting {
    count = 0
    queued(): void {
      this.count += 1
    }
  }
  const one = new Counting()
  combineObservers([one, {}]).queued!({} as RequestRecord)
  t.equal(one.count, 1, 'with what it is')
})

t.test('a count of the last minute forgets second by second', async t => {
  const minute = new RecentSum(60)
  t.equal(minute.sum(0), 0)
  for (let second = 0; second < 90; second += 1) {
    minute.add(second * 1_000)
    minute.add(second * 1_000 + 999)
    t.equal(minute.sum(second * 1_000 + 999), 2 * Math.min(60, second + 1))
  }
  t.equal(minute.sum(100_000), 2 * 49)
  t.equal(minute.sum(148_999), 2)
  t.equal(minute.sum(149_000), 0)
  minute.add(1e9)
  t.equal(minute.sum(1e9), 1)
})

t.test('rates cover the last seconds: a burst is seen right after it and until five seconds later', async t => {
  const lately = new RecentRates(10_200)
  t.same(lately.rates(10_300), { offered: 0, released: 0, rejected: 0 })
  for (let number = 0; number < 10; number += 1) lately.offered.add(10_300)
  t.equal(lately.rates(10_301).offered, 10, 'over no less than a second')
  t.equal(lately.rates(12_700).offered, 4, 'since the start')
  t.equal(lately.rates(14_999).offered, 2.084)
  t.equal(lately.rates(15_000).offered, 0)
  // A steady rate is told exactly, at any time within a second.
  for (let time = 20_000; time < 30_000; time += 10) {
    lately.released.add(time, 0.5)
    if (time >= 25_000) t.equal(Math.round(lately.rates(time + 10 - 1e-6).released), 50)
  }
})
