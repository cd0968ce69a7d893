import t from 'tap'
import { mergeSnapshots } from '../../src/admin/snapshot/merge-snapshots.js'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'

const quantiles = (count: number, value: number) => ({ count, p50: value, p90: value, p99: value, max: value })

function part(seed: number): Snapshot {
  const outcomes = { forwarded: seed, rejected: 0, cancelled: 0, expired: 0, failed: 0, refused: 0 }
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
          { key: 'x', rate: 5, capacity: 10, level: 4 + seed, waiting: 1, nextReleaseMs: 0 },
          { key: `own${seed}`, rate: 5, capacity: 10, level: seed, waiting: 0, nextReleaseMs: 0 },
        ],
        focus: { key: 'x', arrivals: [seed, seed + 10], releases: [], rejections: [] },
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
        responses: { '2xx': seed, '3xx': 0, '4xx': 0, '5xx': 1 },
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
  t.same(merged.routes[0]!.responses, { '2xx': 4, '3xx': 0, '4xx': 0, '5xx': 2 })
  t.same(merged.routes[0]!.rejections, { overflow: 3, crowded: 3 })
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
