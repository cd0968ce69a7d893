/** One view of all instances of a store, from any of them; and how fast a pause reaches the others. */
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { Hour } from '../../src/admin/fleet/hour.js'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { freePort } from '../servers/free-port.js'
import { startPostgres } from '../servers/postgres.js'
import { startCluster, startRedis, until } from '../servers/redis.js'
import { Instance } from './system.js'

/** The servers to test with: how to start each, and its store. */
const STORES: Record<string, () => Promise<{ store: object; stop(): Promise<void> }>> = {
  async Redis() {
    const redis = await startRedis()
    return { store: { type: 'redis', url: redis.url, timeout: '2s' }, stop: () => redis.stop() }
  },
  async 'Redis Cluster'() {
    const cluster = await startCluster()
    return { store: { type: 'redis', cluster: cluster.urls, timeout: '2s' }, stop: () => cluster.stop() }
  },
  async PostgreSQL() {
    const postgres = await startPostgres()
    return { store: { type: 'postgres', url: postgres.url, timeout: '2s' }, stop: () => postgres.close() }
  },
}

interface Seen {
  readonly instance: Instance
  /** What `/buckets` with this query answers. */
  buckets(query?: string): Promise<Snapshot>
  history(query?: string): Promise<Hour>
}

async function start(t: Test, config: object, args: readonly string[] = []): Promise<Seen> {
  const port = await freePort()
  const instance = new Instance({ ...config, admin: { listen: `127.0.0.1:${port}` } }, args)
  t.teardown(() => instance.close())
  await instance.ready()
  const get = async (path: string): Promise<unknown> => {
    const answer = await fetch(`http://127.0.0.1:${port}${path}`)
    if (!answer.ok) throw new Error(await answer.text())
    return answer.json()
  }
  return {
    instance,
    buckets: async (query = '?all') => (await get(`/buckets${query}`)) as Snapshot,
    history: async (query = '') => (await get(`/history${query}`)) as Hour,
  }
}

/** What was forwarded in the last hour. */
const inHour = ({ figures }: Hour): number => figures.forwarded.reduce<number>((sum, count) => sum + (count ?? 0), 0)

/** ms. A step of ten seconds is shown five seconds after its end. */
const STEP_SHOWN = 30_000

const names = ({ members = [] }: Snapshot): string[] => members.map(({ name }) => name)
const forwarded = ({ routes }: Snapshot): number => routes.reduce((sum, { outcomes }) => sum + outcomes.forwarded, 0)

for (const [name, serve] of Object.entries(STORES)) {
  t.test(`${name}: any instance shows all of them, once each, and a killed one disappears`, async t => {
    const { store, stop } = await serve()
    t.teardown(stop)
    const config = { upstream: 'echo:', store, buckets: { all: { key: 'all', rate: '500/s', capacity: 100 } } }
    const single = await start(t, config)
    const workers = await start(t, config, ['--workers', '2'])
    const both = [single, workers]
    for (const { buckets } of both) {
      await until('three instances are seen', async () => names(await buckets()).length === 3)
      t.equal(new Set(names(await buckets())).size, 3, 'each by a name of its own')
    }
    const [pid] = [single.instance.child.pid]
    t.equal(names(await single.buckets()).filter(each => each.endsWith(`:${pid}`)).length, 1)
    t.match(
      names(await workers.buckets())
        .slice(0, 2)
        .map(each => each.slice(-2))
        .sort(),
      ['/1', '/2'],
    )

    for (let sent = 0; sent < 30; sent += 1) await (await fetch(both[sent % 2]!.instance.url)).text()
    t.equal(forwarded(await single.buckets('')), 15, 'without ?all its own')
    for (const { buckets } of both) await until('all requests are seen', async () => forwarded(await buckets()) === 30)
    const all = await workers.buckets()
    t.equal(all.processes, 3)
    t.equal(all.buckets[0]!.offered, 30)

    const ofSingle = names(await single.buckets()).find(each => each.endsWith(`:${pid}`))!
    const one = `?instance=${encodeURIComponent(ofSingle)}`
    t.match(await workers.buckets(one), { shown: ofSingle, processes: 1, members: { length: 3 } })
    t.equal(forwarded(await workers.buckets(one)), 15, 'one of them by its name')
    await t.rejects(workers.buckets('?instance=nobody'), /no instance has this name/)
    const hasAll = async ({ history }: Seen) => inHour(await history()) === 30
    await until('the hour of all has all requests', () => hasAll(workers), STEP_SHOWN)

    await single.instance.kill()
    await until('it has disappeared', async () => names(await workers.buckets()).length === 2, STEP_SHOWN)
    t.equal(forwarded(await workers.buckets()), 15)
    const late = await start(t, config)
    await until('one that has come later shows the hour, also of the one that is gone', () => hasAll(late), STEP_SHOWN)
    const hour = await late.history()
    t.ok(hour.instances.some(({ name }) => name === ofSingle))
    t.equal(inHour(await late.history(one)), 15)
    t.equal(hour.buckets.all!.offered.length, hour.figures.forwarded.length)

    // What it shows is missed after 4 s where it crashes.
    const leaves = once(late.instance.child, 'exit')
    late.instance.child.kill('SIGTERM')
    await leaves
    const left = performance.now()
    await until('one that has left is not shown', async () => names(await workers.buckets()).length === 2)
    const after = performance.now() - left
    t.ok(after < 3_000, `after ${after} ms`)
  })

  t.test(`${name}: a pause that one instance hears of stops the other at once`, async t => {
    const { store, stop } = await serve()
    t.teardown(stop)
    const upstream = createServer((req, res) => {
      if (req.url === '/stop') res.writeHead(429, { 'retry-after': '1' }).end()
      else res.end('ok')
    })
    upstream.listen(0, '127.0.0.1')
    await once(upstream, 'listening')
    t.teardown(() => {
      upstream.close()
      upstream.closeAllConnections()
    })
    const url = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`
    const buckets = { all: { key: 'all', rate: '1000/s', capacity: 100 } }
    const config = { upstream: { url, pauseOn: { status: [429] } }, store, buckets }
    const [one, other] = [await start(t, config), await start(t, config)]
    // Both have opened their connections for news.
    await sleep(1_500)
    const delays: number[] = []
    for (let round = 0; round < 5; round += 1) {
      const asked = performance.now()
      await (await fetch(`${one.instance.url}/stop`)).text()
      const from = performance.now()
      // What the admin server says may be 200 ms old, so the requests tell.
      let last = 0
      for (let isPaused = false; !isPaused; ) {
        const answer = fetch(other.instance.url).then(async each => void (await each.text()))
        const isHeld = (await Promise.race([answer, sleep(200, 'held')])) === 'held'
        await answer
        // The pause lasts for a second from when it was told, so a busy machine held what is answered before.
        isPaused = isHeld && performance.now() - asked > 990
        if (!isPaused) last = performance.now() - from
        if (performance.now() - from > 5_000) throw new Error('it never pauses')
      }
      delays.push(last)
      await sleep(1_300)
    }
    t.comment(`${name}: the other went on for ${delays.map(ms => ms.toFixed(1))} ms`)
    t.ok(delays.sort((a, b) => a - b)[2]! < 200, `the median of ${delays} ms`)
  })
}

t.test('workers without a store: all in one view, and the hour of one that has ended stays', async t => {
  const buckets = { all: { key: 'all', rate: '500/s', capacity: 100 } }
  const seen = await start(t, { upstream: 'echo:', buckets }, ['--workers', '2'])
  t.equal(names(await seen.buckets()).length, 2)
  for (let sent = 0; sent < 30; sent += 1) await (await fetch(seen.instance.url)).text()
  // What it shows may be 200 ms old.
  await until('all requests are shown', async () => forwarded(await seen.buckets()) === 30)
  const [name] = names(await seen.buckets())
  const own = forwarded(await seen.buckets(`?instance=${encodeURIComponent(name!)}`))
  t.ok(own >= 0 && own <= 30)
  await until('the hour has all requests', async () => inHour(await seen.history()) === 30, STEP_SHOWN)
  const [worker] = childrenOf(seen.instance.child.pid!)
  process.kill(worker!, 'SIGKILL')
  await until('another worker has taken its place', async () => {
    const now = childrenOf(seen.instance.child.pid!)
    return now.length === 2 && !now.includes(worker!) && names(await seen.buckets()).length === 2
  })
  t.equal(inHour(await seen.history()), 30)
})

function childrenOf(pid: number): number[] {
  const lines = execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8' }).split('\n')
  const pairs = lines.map(line => line.trim().split(/\s+/).map(Number))
  return pairs.filter(([, parent]) => parent === pid).map(([child]) => child!)
}
