/** What is wrong, in words, and when it is told. */
import t from 'tap'
import { mergeSnapshots } from '../../src/admin/snapshot/merge-snapshots.js'
import type { ServerSnapshot, Snapshot, UpstreamSnapshot } from '../../src/admin/snapshot/snapshot.js'
import { upstreamSnapshot, withTroubles } from '../../src/admin/snapshot/troubles.js'
import { topLines } from '../../src/cli/commands/top.js'
import { Screen } from '../../src/cli/top/screen.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate } from '../../src/core/queue/lane.js'
import { Deadlines, type Watched } from '../../src/proxy/deadlines.js'
import type { Upstream } from '../../src/proxy/upstream/upstream.js'
import { isRefusal } from '../../src/stores/describe-error.js'
import { quiet } from './dashboard-sample.js'

const URL = 'http://127.0.0.1:9000'
const upstream = (more: Partial<UpstreamSnapshot>): UpstreamSnapshot => ({
  url: URL,
  inFlight: 0,
  pausedMs: 0,
  ...more,
})

const server = (host: string, more: Partial<ServerSnapshot> = {}): ServerSnapshot => ({
  url: `http://${host}`,
  isUp: true,
  inFlight: 0,
  weight: 1,
  backup: false,
  ...more,
})
const down = (host: string, probeMs: number, failure?: string): ServerSnapshot =>
  server(host, { isUp: false, probeMs, ...(failure !== undefined && { failure }) })
const several = (...servers: ServerSnapshot[]) => ({ url: servers.map(({ url }) => url).join(' '), servers })

/** What is told of snapshots with this. Undefined: nothing. */
const TROUBLES: readonly [what: string, more: Partial<Snapshot>, told: string | undefined][] = [
  ['all is well', {}, undefined],
  [
    'a dead upstream',
    { upstreams: [upstream({ probeMs: 1_500, failure: 'refused (connect ECONNREFUSED)' })] },
    `${URL} fails: refused (connect ECONNREFUSED); tried again in 1.5 s`,
  ],
  [
    'a probe on its way',
    { upstreams: [upstream({ probeMs: 0, failure: 'refused', inFlight: 1 })] },
    `${URL} fails: refused; being tried now`,
  ],
  [
    'nobody to try it',
    { upstreams: [upstream({ probeMs: 0, failure: 'refused', isFull: true, pausedMs: 5 })] },
    `${URL} fails: refused; tried again with the next request`,
  ],
  [
    'a pause',
    { upstreams: [upstream({ pausedMs: 30_000 })] },
    `${URL} has asked for a pause; nothing is sent to it for 30 s more`,
  ],
  [
    'a hanging upstream',
    { upstreams: [upstream({ inFlight: 20, silent: { ms: 12_000, givenUpMs: 48_000 } })] },
    `${URL} has answered nothing for 12 s, with 20 in flight; the first of these requests is given up in 48 s`,
  ],
  [
    'a full upstream',
    { upstreams: [upstream({ inFlight: 20, maxInFlight: 20, isFull: true })] },
    `${URL} is full, with 20 of 20 in flight; a request is sent when one of these is answered`,
  ],
  [
    'one of several servers that is down',
    { upstreams: [upstream(several(server('a'), down('b', 1_500, 'refused'), server('c'), server('d')))] },
    '1 of 4 servers is down: http://b (refused); tried again in 1.5 s',
  ],
  [
    'most of several servers that are down',
    {
      upstreams: [
        upstream(several(down('a', 900), down('b', 0, 'refused'), down('c', 1, 'x'), down('d', 1), server('e'))),
      ],
    },
    '4 of 5 servers are down: http://a (its last check passed), http://b (refused), http://c (x), 1 more; being tried, or tried again with the next request',
  ],
  [
    'all of several servers that are down',
    { upstreams: [upstream({ ...several(down('a', 900), down('b', 500)), probeMs: 500, failure: 'refused' })] },
    'http://a (and 1 more) fails: all 2 servers are down; refused; tried again in 500 ms',
  ],
  [
    'a pause of several servers',
    { upstreams: [upstream({ ...several(server('a'), server('b'), server('c')), pausedMs: 5_000 })] },
    'http://a (and 2 more) has asked for a pause; nothing is sent to it for 5 s more',
  ],
  [
    'a lost store',
    { store: { type: 'redis', ready: false, instances: 3, onOutage: 'local', reason: 'connect ECONNREFUSED' } },
    'the store redis does not answer (connect ECONNREFUSED): going on alone, at 1/3 of the rates; tried again all the time',
  ],
  [
    'a store that refuses',
    { store: { type: 'redis', ready: false, instances: 1, onOutage: 'local', reason: 'Redis: NOPERM no permissions' } },
    'the store redis refuses (Redis: NOPERM no permissions): going on alone, at 1/1 of the rates; tried again all the time',
  ],
  [
    'a lost shard',
    { store: { type: 'redis', ready: true, instances: 3, onOutage: 'closed', reason: 'no answer' } },
    'a part of the store redis does not answer (no answer): rejecting what has limits; tried again all the time',
  ],
]

t.test('each trouble is told with its cause and what comes next, as the first line of top', async t => {
  for (const [what, more, told] of TROUBLES) {
    const snapshot = withTroubles(quiet(1_000, more))
    t.same(snapshot.troubles, told && [told], what)
    const [first] = topLines(snapshot, undefined)
    t.equal(first, told ?? '0 queued; 0 in flight', what)
  }
  const both = withTroubles(
    quiet(61_000, { upstreams: [upstream({ pausedMs: 5_000 }), upstream({ pausedMs: 5_000 })] }),
    { at: 21_000, problems: ['a: is bad', 'b: is worse'] },
  )
  t.same(both.troubles, [
    `${URL} has asked for a pause; nothing is sent to it for 5 s more`,
    'the configuration was not reloaded 40 s ago (a: is bad; b: is worse); the former one stays until the file changes',
  ])
  t.equal(both.upstreams[0]!.trouble, 'has asked for a pause; nothing is sent to it for 5 s more')
})

t.test('an upstream that is full because a server is down tells both', async t => {
  const servers = several(server('a', { inFlight: 5, maxInFlight: 5 }), down('b', 500, 'refused'))
  const full = upstream({ ...servers, inFlight: 5, maxInFlight: 5, isFull: true })
  const { troubles, upstreams } = withTroubles(quiet(1, { upstreams: [full] }))
  const [first, second] = [
    'is full, with 5 of 5 in flight; a request is sent when one of these is answered',
    '1 of 2 servers is down: http://b (refused); tried again in 500 ms',
  ]
  t.same(troubles, [`http://a (and 1 more) ${first}`, second])
  t.equal(upstreams[0]!.trouble, `${first}. ${second}`)
})

t.test('the screen of top has the troubles in red on top, in a low terminal one of them', async t => {
  const screen = new Screen()
  const upstreams = ['a', 'b', 'c', 'd'].map(host => upstream({ url: `http://${host}`, pausedMs: 5_000 }))
  screen.update(withTroubles(quiet(1_000, { upstreams })), undefined)
  const red = (rows: number) => screen.draw({ columns: 40, rows }).filter(line => line.startsWith('\x1b[1;31m'))
  t.same(screen.draw({ columns: 40, rows: 24 }).slice(0, 3), red(24))
  t.equal(red(24)[0], '\x1b[1;31mhttp://a has asked for a pause; nothing~\x1b[0m')
  t.same([red(24).length, red(15).length], [3, 1])
})

t.test('an upstream hangs when it has answered nothing for 5 s, and for twice its usual time', async t => {
  const clock = createVirtualClock()
  const answer = new Deadlines(clock, 60_000)
  const request = { expired: () => undefined } as unknown as Watched
  const hanging = {
    settings: { url: URL },
    servers: [],
    gate: new Gate(),
    answer,
    answeredAt: 3_000,
    clock,
  } as unknown as Upstream
  const silentAt = (at: number, usual?: number, answeredAt = 3_000) => {
    clock.runUntil(at)
    return upstreamSnapshot({ ...hanging, answeredAt } as Upstream, at, usual).silent
  }
  t.equal(silentAt(10_000), undefined, 'nothing was asked')
  answer.watch(request)
  t.equal(silentAt(14_999), undefined)
  t.same(silentAt(15_000), { ms: 5_000, givenUpMs: 55_000 })
  t.equal(silentAt(15_000, 4_000), undefined, 'it usually takes 4 s')
  t.equal(silentAt(16_000, 0, 15_900), undefined, 'it answers others')
  t.same(silentAt(18_000, 4_000), { ms: 8_000, givenUpMs: 52_000 })
  answer.unwatch(request)
  t.equal(silentAt(19_000), undefined)
})

t.test('of several processes', async t => {
  const merged = (...parts: UpstreamSnapshot[]) =>
    withTroubles(mergeSnapshots(parts.map(part => quiet(1_000, { upstreams: [part] })))).troubles?.[0]
  const full = upstream({ inFlight: 5, maxInFlight: 5, isFull: true })
  t.match(merged(full, full), 'is full, with 10 of 10 in flight')
  t.equal(merged(full, upstream({ inFlight: 1, maxInFlight: 5 })), undefined, 'one has places')
  t.equal(merged(upstream({ inFlight: 1, maxInFlight: 5 }), full), undefined)
  const parts = [
    several(server('a', { inFlight: 1, maxInFlight: 4 }), server('b')),
    several(server('a', { inFlight: 2, maxInFlight: 4 }), down('b', 700, 'refused')),
    several(server('a', { maxInFlight: 4 }), down('b', 300)),
  ].map(servers => quiet(1_000, { upstreams: [upstream(servers)] }))
  t.same(mergeSnapshots(parts).upstreams[0]!.servers, [
    server('a', { inFlight: 3, maxInFlight: 12 }),
    down('b', 300, 'refused'),
  ])
  const silent = (ms: number) => upstream({ inFlight: 1, silent: { ms, givenUpMs: 60_000 - ms } })
  t.match(
    merged(silent(9_000), silent(6_000)),
    'answered nothing for 6 s, with 2 in flight; the first of these requests is given up in 54 s',
  )
  const store = { type: 'redis', ready: true, instances: 2 } as const
  const alone = { ...store, ready: false, onOutage: 'local', reason: 'gone' } as const
  const both = mergeSnapshots([quiet(1, { store }), quiet(1, { store: alone })])
  t.match(withTroubles(both).troubles, ['a part of the store redis does not answer (gone)'])
  const oldest = mergeSnapshots([quiet(1, { oldestMs: 5 }), quiet(1, {}), quiet(1, { oldestMs: 7 })])
  t.equal(oldest.oldestMs, 7)
})

t.test('a store that answers and does not serve refuses', t => {
  for (const reason of [
    'Redis: NOAUTH Authentication required.',
    'Redis: OOM command not allowed when used memory > maxmemory',
    'Redis: MISCONF Redis is configured to save RDB snapshots, but is unable to',
    "Redis: READONLY You can't write against a read only replica.",
    'Redis: LOADING Redis is loading the dataset in memory',
    'PostgreSQL does not answer: password authentication failed for user "shaper"',
  ])
    t.ok(isRefusal(reason), reason)
  for (const reason of [undefined, 'no answer', 'connect ECONNREFUSED 127.0.0.1:6379']) t.notOk(isRefusal(reason))
  t.end()
})
