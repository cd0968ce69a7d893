/** All instances of a store as one. */
import t from 'tap'
import { createFleet } from '../../src/admin/fleet/fleet.js'
import {
  type FleetMember,
  LARGEST_VIEW,
  passedOf,
  readView,
  startShowing,
  writeView,
} from '../../src/admin/fleet/member.js'
import type { BucketSnapshot, Snapshot } from '../../src/admin/snapshot/snapshot.js'
import type { Board, View } from '../../src/sharing/board.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { startAdminRig } from './rig.js'

const NONE = { count: 0, p50: 0, p90: 0, p99: 0, max: 0 }
const OUTCOMES = { forwarded: 3, rejected: 1, cancelled: 0, expired: 0, failed: 0, refused: 0, accepted: 0 }

function bucketOf(name: string, keys: number, moments: number, at: number): BucketSnapshot {
  const all = Array.from({ length: moments }, (_, index) => at - moments + index + 0.123456)
  const fullest = Array.from({ length: Math.min(20, keys) }, (_, index) => ({
    key: `${'€'.repeat(120)} ${index}`,
    rate: 5,
    capacity: 10,
    level: 10 - index / 3,
    waiting: index,
    queued: index,
    predictedWaitMs: 1 / 3,
  }))
  return {
    ...{ name, key: 'ip', rate: 5, configured: 5, capacity: 10, routes: ['api'], keys },
    ...{ offered: 4, released: 3, rejected: 1, queued: 0, waiting: 0, fullest },
    focus: { key: fullest[0]?.key ?? '', watchers: 1, arrivals: all, releases: all, rejections: all },
  }
}

function snapshotOf(at: number, buckets: readonly BucketSnapshot[], routes = 1): Snapshot {
  return {
    ...{ at, uptime: 9, processes: 1, draining: false, store: { type: 'redis', ready: true, instances: 2 } },
    ...{ queued: 0, inFlight: 0, buckets, upstreams: [], wait: NONE, lateness: NONE },
    routes: Array.from({ length: routes }, (_, index) => ({
      ...{ name: `api ${index}`, mode: 'shape' as const, dryRun: false, queued: 0, outcomes: OUTCOMES },
      ...{ upstreamResponses: { '2xx': 1, '3xx': 0, '4xx': 0, '5xx': 2 }, rejections: { overflow: 1 } },
      rehearsed: { would_reject: 0, would_delay: 0 },
    })),
  }
}

const member = (id: string, snapshot: Snapshot): FleetMember => ({
  ...{
    id,
    name: `host:${id}`,
    age: 0,
    snapshot,
    passed: passedOf(snapshot.routes, ({ upstreamResponses }) => upstreamResponses['5xx']),
    cpu: 1.5,
  },
})

const NOTHING = { hours: async () => [], views: async () => [] }

t.test('a view is bounded whatever the number of keys, buckets and routes, and keeps the totals', async t => {
  for (const [buckets, keys, routes] of [
    [1, 1, 1],
    [1, 100_000, 1],
    [20, 100_000, 20],
    [60, 100_000, 20],
    [2_000, 100_000, 2_000],
  ] as const) {
    const all = Array.from({ length: buckets }, (_, index) => bucketOf(`bucket ${index}`, keys, 256, 5_000))
    const text = writeView(member('a', snapshotOf(5_000, all, routes)))!
    const size = Buffer.byteLength(text)
    t.ok(size <= LARGEST_VIEW, `${buckets} buckets, ${keys} keys: ${size} bytes`)
    const read = readView({ id: 'a', text, age: 0 }, 5_000)!
    t.match(read, { id: 'a', name: 'host:a', snapshot: { processes: 1, store: { instances: 2 } } })
    t.same(
      read.passed,
      { forwarded: 3 * routes, rejected: routes, errors: 2 * routes },
      'also where its routes are left out',
    )
    t.equal(read.snapshot.routes.length, routes < 2_000 ? routes : 0)
    if (buckets < 2_000) t.equal(read.snapshot.buckets.length, buckets)
    if (buckets === 1 && keys > 1) t.equal(read.snapshot.buckets[0]!.fullest.length, 10)
  }
})

t.test('times of another machine are moved to our clock', async t => {
  const text = writeView(member('a', snapshotOf(5_000, [bucketOf('b', 1, 2, 5_000)])))!
  const { snapshot } = readView({ id: 'a', text, age: 300 }, 90_000)!
  t.equal(snapshot.at, 89_700)
  t.same(snapshot.buckets[0]!.focus!.arrivals, [89_698.1, 89_699.1])
})

t.test('own instances are asked, the others are those on the store, once each', async t => {
  let views: View[] = []
  const own = member('a', snapshotOf(1_000, [bucketOf('b', 1, 0, 1_000)]))
  const take = () => createFleet({ ...NOTHING, members: async () => [own], views: async () => views }).all()
  t.same(
    (await take()).members!.map(({ name, isHere }) => [name, isHere]),
    [['host:a', true]],
  )
  const view = (id: string): View => ({
    id,
    text: writeView(member(id, snapshotOf(7_000, [bucketOf('b', 1, 0, 7_000)])))!,
    age: 100,
  })
  const foreign = ['{', 'null', '{"format":99}', '[]'].map((text, index) => ({ id: `x${index}`, text, age: 0 }))
  views = [view('c'), view('a'), ...foreign, view('b')]
  const all = await take()
  t.same(
    all.members!.map(({ name, isHere, age, forwarded, rejected }) => [name, isHere, age, forwarded, rejected]),
    [
      ['host:a', true, 0, 3, 1],
      ['host:b', false, 100, 3, 1],
      ['host:c', false, 100, 3, 1],
    ],
  )
  t.match(all, { at: 1_000, processes: 3, buckets: [{ offered: 12, released: 9, rejected: 3 }] })
})

t.test('an instance that leaves takes along what it shows, also if a view is on its way', async t => {
  const { board } = createMemoryStore({ clock: { now: () => performance.now() } })
  const taken: (() => void)[] = []
  const stop = startShowing(board as Board, async () => {
    await new Promise<void>(resolve => taken.push(resolve))
    return member('leaving', snapshotOf(0, []))
  })
  const gone = stop()
  taken[0]!()
  await gone
  const fleet = createFleet({
    members: async () => [member('own', snapshotOf(0, []))],
    hours: async () => [],
    views: async kind => board.views(kind),
  })
  const { members } = await fleet.all()
  t.equal(board.views('present').length, 1, 'it has shown itself')
  t.same(
    members!.map(({ name }) => name),
    ['host:own'],
  )
})

t.test('one instance is shown by its name, and each has a name of its own', async t => {
  const own = member('a', snapshotOf(1_000, [bucketOf('b', 1, 0, 1_000)]))
  const same = (id: string, queued: number): View => {
    const other = { ...member(id, { ...snapshotOf(7_000, []), queued }), name: 'host:a' }
    return { id, text: writeView(other)!, age: 0 }
  }
  const views = [same('c', 3), same('b', 2)]
  const fleet = createFleet({ ...NOTHING, members: async () => [own], views: async () => views })
  t.same(
    (await fleet.all()).members!.map(({ name }) => name),
    ['host:a', 'host:a (2)', 'host:a (3)'],
  )
  t.match(await fleet.one('host:a (3)'), { queued: 3, processes: 1, shown: 'host:a (3)', members: { length: 3 } })
  t.match(await fleet.one('host:a'), { at: 1_000, buckets: [{ offered: 4 }], shown: 'host:a' })
  t.equal(await fleet.one('host:b'), undefined)
})

t.test('while the store is away only our own are seen', async t => {
  const own = member('a', snapshotOf(1_000, []))
  const fleet = createFleet({ ...NOTHING, members: async () => [own], views: () => Promise.reject(new Error('away')) })
  t.equal((await fleet.all()).members!.length, 1)
})

t.test('without a store ?all is this process', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: { client: { key: 'ip', rate: '5/s', capacity: 10 } },
  })
  const all = (await (await rig.get('/buckets?all')).json()) as Snapshot
  t.match(all.members, [{ name: new RegExp(`:${process.pid}$`), isHere: true, storeReady: true }])
  const { members, ...rest } = all
  t.same(Object.keys(rest), Object.keys(await rig.snapshot()))
  const one = (await (await rig.get('/buckets')).json()) as Snapshot
  t.equal(one.members, undefined)
})
