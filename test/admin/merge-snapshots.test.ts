import t from 'tap'
import { mergeSnapshots, mergeWatched, watchedWithOthers } from '../../src/admin/snapshot/merge-snapshots.js'
import type { Snapshot, WatchedSnapshot } from '../../src/admin/snapshot/snapshot.js'

const quantiles = (count: number, value: number) => ({ count, p50: value, p90: value, p99: value, max: value })

function part(seed: number): Snapshot {
  const outcomes = { forwarded: seed, rejected: 0, cancelled: 0, expired: 0, failed: 0, refused: 0, accepted: 0 }
  return {
    at: 1_000 + seed,
    uptime: seed,
    processes: 1,
    draining: seed === 1,
    store: { type: 'redis', ready: seed !== 1, instances: seed },
    queued: seed,
    inFlight: 1,
    buckets: [
      {
        name: 'a',
        key: 'ip',
        rate: 5,
        configured: 5,
        capacity: 10,
        routes: ['api'],
        keys: 1 + seed,
        offered: 3,
        released: 2,
        rejected: 1,
        queued: 1,
        waiting: 1,
        fullest: [
          { key: 'x', rate: 5, capacity: 10, level: 4 + seed, waiting: 1, queued: 1, predictedWaitMs: seed },
          { key: `own${seed}`, rate: 5, capacity: 10, level: seed, waiting: 0, queued: 0, predictedWaitMs: 0 },
        ],
        focus: { key: 'x', watchers: 1, arrivals: [seed, seed + 10], releases: [], rejections: [] },
      },
    ],
    routes: [
      {
        ...{
          name: 'api',
          mode: 'shape',
          dryRun: true,
          queued: 1,
          outcomes,
          rehearsed: { would_reject: 1, would_delay: 2 },
        },
        upstreamResponses: { '2xx': seed, '3xx': 0, '4xx': 0, '5xx': 1 },
        rejections: seed === 1 ? { overflow: 1 } : { overflow: 2, crowded: seed },
      },
    ],
    upstreams: [{ url: 'http://u', inFlight: seed, pausedMs: seed * 100 }],
    wait: quantiles(seed, seed * 10),
    lateness: quantiles(0, 0),
    dryRun: {
      since: 500 - seed,
      keys: [
        { route: 'api', bucket: 'a', key: 'x', agent: 'bot', wouldReject: seed, wouldDelay: 0, longestWait: seed },
      ],
      agents: {
        browser: { would_reject: 0, would_delay: 0 },
        bot: { would_reject: seed, would_delay: 0 },
        library: { would_reject: 0, would_delay: 0 },
        empty: { would_reject: 0, would_delay: 0 },
      },
    },
  }
}

t.test('the snapshot of one process is unchanged', async t => {
  const only = part(2)
  t.equal(mergeSnapshots([only]), only)
})

t.test('counts add up, shared values stay, and the worst key stays the worst', async t => {
  const merged = mergeSnapshots([part(1), part(3)])
  t.match(merged, {
    at: 1_003,
    processes: 2,
    draining: false,
    store: { type: 'redis', ready: true, instances: 3 },
    queued: 4,
    inFlight: 2,
    routes: [{ queued: 2, outcomes: { forwarded: 4 }, rehearsed: { would_reject: 2, would_delay: 4 } }],
    upstreams: [{ url: 'http://u', inFlight: 4, pausedMs: 300 }],
    wait: { count: 4, p50: 25, p99: 30, max: 30 },
    dryRun: { since: 497, keys: [{ wouldReject: 4, longestWait: 3 }], agents: { bot: { would_reject: 4 } } },
  })
  t.same(merged.routes[0]!.upstreamResponses, { '2xx': 4, '3xx': 0, '4xx': 0, '5xx': 2 })
  t.same(merged.routes[0]!.rejections, { overflow: 3, crowded: 3 })
  t.notOk('coalesced' in merged.routes[0]!)
  const [bucket] = merged.buckets
  t.match(bucket, { keys: 4, offered: 6, released: 4, rejected: 2, queued: 2 })
  t.same(
    bucket!.fullest.map(({ key, level, waiting }) => [key, level, waiting]),
    [
      ['x', 7, 2],
      ['own3', 3, 0],
      ['own1', 1, 0],
    ],
  )
  t.same(bucket!.focus!.arrivals, [1, 3, 11, 13])
  t.equal(bucket!.focus!.watchers, 2)
})

t.test('shared answers add up, also where a process knows of none', async t => {
  const of = (coalesced?: number) => {
    const one = part(1)
    return { ...one, routes: one.routes.map(route => ({ ...route, ...(coalesced && { coalesced }) })) }
  }
  t.equal(mergeSnapshots([of(2), of(), of(5)]).routes[0]!.coalesced, 7)
})

t.test(
  'what waits in all processes is in the bucket, and the picture is of the fullest key that is watched',
  async t => {
    const of = (key: string, waiting: number) => {
      const [bucket] = part(1).buckets
      const instance = { ...bucket!.fullest[0]!, level: Math.max(0.5, 3 * waiting), queued: 3 * waiting, waiting }
      const focus = { key, watchers: 1, arrivals: [waiting], releases: [], rejections: [] }
      return { ...part(1), buckets: [{ ...bucket!, fullest: [{ ...instance, key }], focus }] }
    }
    const { buckets } = mergeSnapshots([of('a', 1), of('b', 1), of('c', 0), of('b', 1)])
    t.match(buckets[0]!.fullest, [
      { key: 'b', level: 6, queued: 6, waiting: 2 },
      { key: 'a', level: 3, queued: 3, waiting: 1 },
      { key: 'c', level: 0.5, queued: 0, waiting: 0 },
    ])
    t.match(buckets[0]!.focus, { key: 'b', watchers: 2, arrivals: [1, 1] })
  },
)

t.test('a block that one process knows of is the block of the key', async t => {
  const blockOf = (...blocks: (number | undefined)[]): number | undefined => {
    const all = blocks.map(blockedMs => {
      const [bucket] = part(1).buckets
      const fullest = [{ ...bucket!.fullest[0]!, ...(blockedMs !== undefined && { blockedMs }) }]
      return { ...part(1), buckets: [{ ...bucket!, fullest }] }
    })
    return mergeSnapshots(all).buckets[0]!.fullest[0]!.blockedMs
  }
  t.equal(blockOf(undefined, undefined), undefined)
  t.equal(blockOf(undefined, 300, 200), 300)
  t.equal(blockOf(5_000, -1), -1)
})

t.test(
  'patience: each process learns for itself, so times are means of those that know, and counts are sums',
  async t => {
    const of = (patience: object) => {
      const [route] = part(2).routes
      return { ...part(2), routes: [{ ...route!, patience: { givenUp: 0, lastMinute: 0, ...patience } }] }
    }
    const merged = mergeSnapshots([
      of({ learntMs: 2_000, serviceMs: 100, givenUp: 7, lastMinute: 3 }),
      of({ learntMs: 1_000, givenUp: 1, lastMinute: 1 }),
      part(3),
    ])
    t.same(merged.routes[0]!.patience, { learntMs: 1_500, serviceMs: 100, givenUp: 8, lastMinute: 4 })
    t.notOk('patience' in mergeSnapshots([part(2), part(3)]).routes[0]!)
  },
)

t.test('a watched key: its counts are those of all workers, its level is that of the store', async t => {
  const of = (seed: number): WatchedSnapshot => ({
    ...{ bucket: 'a', offered: seed, released: seed, rejected: 0 },
    instance: { key: 'x', rate: 5, capacity: 10, level: 4 + seed, waiting: seed, queued: seed },
    focus: { key: 'x', watchers: 1, arrivals: [seed, seed + 10], releases: [], rejections: [] },
  })
  t.equal(mergeWatched([]), undefined)
  const both = mergeWatched([of(1), of(2)])!
  t.match(both, {
    ...{ bucket: 'a', offered: 3, released: 3, rejected: 0 },
    instance: { key: 'x', level: 6, waiting: 3, queued: 3 },
    focus: { watchers: 2, arrivals: [1, 2, 11, 12] },
  })
  const others = watchedWithOthers(both, [{ ...both.instance, level: 9, waiting: 6, queued: 6, predictedWaitMs: 0 }])
  t.match(others, { offered: 3, instance: { level: 9, waiting: 9, queued: 9 }, focus: both.focus })
})

t.test('what holds a newcomer at any of the processes holds it in all of them', async t => {
  const full = 'upstream full (5 of 5 in flight)'
  const own = 'maxInFlight of bucket a (1 of 1 in flight)'
  const of = (...heldBy: string[]) => {
    const [bucket] = part(1).buckets
    const [route] = part(1).routes
    const held = heldBy.length > 0 && { heldBy }
    return {
      ...part(1),
      buckets: [{ ...bucket!, fullest: [{ ...bucket!.fullest[0]!, ...held }] }],
      routes: [{ ...route!, predictedWaitMs: 7, ...held }],
    }
  }
  const merged = (...parts: Snapshot[]) => {
    const { buckets, routes } = mergeSnapshots(parts)
    return [buckets[0]!.fullest[0]!.heldBy, routes[0]!.heldBy]
  }
  t.same(merged(of(), of(full, own), of(full)), [
    [full, own],
    [full, own],
  ])
  t.same(merged(of(full), of('breaker')), [
    [full, 'breaker'],
    [full, 'breaker'],
  ])
  t.same(merged(of(), of()), [undefined, undefined])
})
