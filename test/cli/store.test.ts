/** Outages of a store, instances that start and stop, and what the log says. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { request } from 'undici'
import { hashSlot, hashTag, SLOTS } from '../../src/stores/redis/keys.js'
import { Load } from '../instances/load.js'
import { freePort } from '../servers/free-port.js'
import { startPostgres } from '../servers/postgres.js'
import { RedisServer, startCluster, startRedis, until } from '../servers/redis.js'
import { watchStalls } from '../stalls.js'
import { type Command, shaper } from './command.js'

interface Line {
  readonly msg: string
  readonly [key: string]: unknown
}

/** A directory with a configuration. */
function configure(t: Test, store: object): string {
  const file = {
    listen: '127.0.0.1:0',
    upstream: 'echo:',
    trustProxy: ['loopback'],
    store,
    buckets: { all: { key: 'all', rate: '40/s', capacity: 200 } },
    accessLog: false,
  }
  return t.testdir({ 'shaper.config.json': JSON.stringify(file) })
}

function start(t: Test, cwd: string, args: readonly string[] = []): Command {
  const command = shaper(['start', ...args], { cwd })
  t.teardown(async () => {
    command.child.kill('SIGKILL')
    await command.finished
  })
  return command
}

/** Records of the log that match, in order. */
function logged(command: Command, pattern = /./): Line[] {
  const lines = command.stderr().split('\n').slice(0, -1)
  return lines.map(line => JSON.parse(line) as Line).filter(({ msg }) => pattern.test(msg))
}

const AWAY = /^the store does not answer/
const BACK = /^the store answers again/

/** What a user of shaper has not chosen, and cannot set. */
const INTERNALS = /maxRetries|OfflineQueue|ioredis|writeable|Connection (is closed|terminated)|SENTINEL|EVALSHA/i

/** The key of a client whose bucket lives on the first, second or third master. */
function keyOn(master: number): string {
  for (let number = 0; ; number += 1) {
    const key = `key ${number}`
    if (Math.floor(hashSlot(hashTag(`client:${key}`)) / Math.ceil(SLOTS / 3)) === master) return key
  }
}

/** Sends requests until the test ends. Resolves when the first has been answered. */
async function load(t: Test, url: string): Promise<void> {
  const load = new Load()
  load.add(url, 'client', 4)
  t.teardown(() => load.stop())
  await until('a request is answered', () => load.count('ok') > 0)
}

/** An outage of three seconds, under load: what is logged from its start on, until some time after its end. */
async function outage(t: Test, command: Command, away: () => unknown, back: () => unknown): Promise<Line[]> {
  await load(t, await command.url)
  const before = logged(command).length
  await away()
  await sleep(3_000)
  const told = logged(command).slice(before)
  t.equal(told.length, 1, `one line while it lasts: ${JSON.stringify(told)}`)
  t.match(told[0]?.msg, AWAY)
  await back()
  await until('it is back', () => logged(command, BACK).length > 0)
  await sleep(1_000)
  return logged(command).slice(before)
}

t.test('an outage is one line at its start and one at its end', async t => {
  const check = (t: Test, lines: readonly Line[]): void => {
    t.equal(lines.length, 2, JSON.stringify(lines, null, 1))
    t.match(lines[0]?.msg, AWAY)
    t.match(lines[1]?.msg, BACK)
    const alone = `${lines[1]?.decidedAlone} request${lines[1]?.decidedAlone === 1 ? '' : 's'}`
    t.match(lines[1]?.msg, /after \d+(\.\d)? s, with/)
    t.match(lines[1]?.msg, `, with ${alone} decided without it: the limits are shared`)
    t.ok(Number(lines[1]?.seconds) >= 2.5 && Number(lines[1]?.decidedAlone) > 0, 'how long, and how many')
    t.notMatch(JSON.stringify(lines), INTERNALS)
  }
  t.test('Redis is killed', async t => {
    const redis = await startRedis()
    t.teardown(() => redis.stop())
    const command = start(t, configure(t, { type: 'redis', url: redis.url }))
    const lines = await outage(
      t,
      command,
      () => redis.kill(),
      () => redis.start(),
    )
    check(t, lines)
    t.match(
      lines[0]?.reason,
      /^Redis at 127\.0\.0\.1:\d+: (connect ECONNREFUSED|(read|write) (ECONNRESET|EPIPE)|the connection was closed)/,
      'it says why',
    )
  })
  t.test('Redis stands still', async t => {
    const redis = await startRedis()
    t.teardown(() => redis.stop())
    const command = start(t, configure(t, { type: 'redis', url: redis.url }))
    check(
      t,
      await outage(
        t,
        command,
        () => redis.signal('SIGSTOP'),
        () => redis.signal('SIGCONT'),
      ),
    )
  })
  t.test('all servers of a cluster are killed', async t => {
    const cluster = await startCluster()
    t.teardown(() => cluster.stop())
    const command = start(t, configure(t, { type: 'redis', cluster: cluster.urls }))
    const all = (what: (server: RedisServer) => Promise<void>) => Promise.all(cluster.masters.map(what))
    check(
      t,
      await outage(
        t,
        command,
        () => all(server => server.kill()),
        () => all(server => server.start()),
      ),
    )
  })
  t.test('one server of a cluster is killed: clients of the others notice nothing', async t => {
    const cluster = await startCluster()
    t.teardown(() => cluster.stop())
    for (const server of cluster.masters) await server.command('CONFIG', 'SET', 'cluster-require-full-coverage', 'no')
    const file = {
      listen: '127.0.0.1:0',
      upstream: 'echo:',
      store: { type: 'redis', cluster: cluster.urls, onOutage: 'closed' },
      buckets: { client: { key: 'header:x-key', rate: '1000/s', capacity: 1_000 } },
      accessLog: false,
    }
    const command = start(t, t.testdir({ 'shaper.config.json': JSON.stringify(file) }))
    const url = await command.url
    const keys = [0, 1, 2].map(keyOn)
    const ask = async (key: string): Promise<number> => {
      const { statusCode, body } = await request(url, { headers: { 'x-key': key } })
      await body.dump()
      return statusCode
    }
    for (const key of keys) t.equal(await ask(key), 200)
    const before = logged(command).length
    // The registry of instances was on this one only.
    const server = cluster.masters[2]!
    await server.kill()
    await until('it is noticed', async () => (await ask(keys[2]!)) === 503)
    for (let count = 0; count < 20; count += 1) t.same(await Promise.all(keys.map(ask)), [200, 200, 503])
    await sleep(2_000)
    await server.start()
    await until('it is back', () => logged(command, BACK).length > 0)
    t.same(await Promise.all(keys.map(ask)), [200, 200, 200])
    const lines = logged(command).slice(before)
    check(t, lines)
    t.same(
      lines.map(({ shards }) => shards),
      [[`127.0.0.1:${server.port}`], [`127.0.0.1:${server.port}`]],
    )
  })
  t.test('PostgreSQL is killed', async t => {
    const postgres = await startPostgres()
    t.teardown(() => postgres.close())
    const command = start(t, configure(t, { type: 'postgres', url: postgres.url, timeout: '1s' }))
    check(
      t,
      await outage(
        t,
        command,
        () => postgres.kill(),
        () => postgres.start(),
      ),
    )
  })
  t.end()
})

t.test('repeated outages of a store do not flood the log, and its last line is right', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const command = start(t, configure(t, { type: 'redis', url: redis.url }))
  await load(t, await command.url)
  const outages = 4
  for (let count = 0; count < outages; count += 1) {
    redis.signal('SIGSTOP')
    await sleep(600)
    redis.signal('SIGCONT')
    await sleep(1_400)
  }
  const ofStore = () => logged(command, /^the store /)
  t.ok(ofStore().length <= 2, JSON.stringify(ofStore(), null, 1))
  redis.signal('SIGSTOP')
  await until('the log says that it is away', () => AWAY.test(logged(command).at(-1)!.msg))
  redis.signal('SIGCONT')
  await until('the log says that it is back', () => BACK.test(logged(command).at(-1)!.msg))
  t.ok(ofStore().length <= 5, JSON.stringify(ofStore(), null, 1))
  t.notMatch(command.stderr(), INTERNALS)
})

const SHARED = /the limits are shared by (\d+) instance/

const shares = (command: Command) => Number(SHARED.exec(logged(command, SHARED).at(-1)?.msg ?? '')?.[1] ?? 1)

/** A store of a kind, and what names it in a configuration. */
async function startStore(t: Test, kind: 'redis' | 'cluster' | 'postgres'): Promise<object> {
  if (kind === 'cluster') {
    const cluster = await startCluster()
    t.teardown(() => cluster.stop())
    return { type: 'redis', cluster: cluster.urls }
  }
  const server = kind === 'redis' ? await startRedis() : await startPostgres()
  t.teardown(() => ('stop' in server ? server.stop() : server.close()))
  return { type: kind, url: server.url }
}

for (const kind of ['redis', 'cluster', 'postgres'] as const) {
  t.test(`an instance that is stopped leaves at once: ${kind}`, async t => {
    const cwd = configure(t, { ...(await startStore(t, kind)), timeout: '2s' })
    const instances = [1, 2, 3, 4].map(() => start(t, cwd))
    await Promise.all(instances.map(({ url }) => url))
    await until('all know all', () => instances.every(one => shares(one) === 4))
    for (const { child } of instances.slice(2)) child.kill('SIGTERM')
    for (const { finished } of instances.slice(2)) t.equal((await finished).code, 0)
    const left = performance.now()
    await until('the others know', () => instances.slice(0, 2).every(one => shares(one) === 2), 10_000)
    const ms = Math.round(performance.now() - left)
    t.ok(ms < 5_000, `after ${ms} ms`)
    const next = start(t, cwd)
    await next.url
    await until('a new instance is the third', () => shares(next) > 1)
    t.equal(shares(next), 3)
  })
}

t.test('an instance that is stopped while the store is away does not wait for it', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const command = start(t, configure(t, { type: 'redis', url: redis.url }))
  await command.url
  redis.signal('SIGSTOP')
  const before = performance.now()
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
  const ms = Math.round(performance.now() - before)
  t.ok(ms < 2_000, `after ${ms} ms`)
  redis.signal('SIGCONT')
})

/** What passes while the store is away from the start on, per second. */
async function rateAlone(t: Test, url: string): Promise<number> {
  let passed = 0
  let isOver = false
  const ask = async (): Promise<void> => {
    while (!isOver) {
      // On a connection of its own, so that the workers take turns.
      const { statusCode, body } = await request(url, { reset: true })
      await body.dump()
      if (statusCode === 200) passed += 1
    }
  }
  const all = Array.from({ length: 40 }, ask)
  // The first of each worker go at once.
  await sleep(1_000)
  const stalls = watchStalls(t)
  const before = passed
  const began = performance.now()
  await sleep(3_000)
  // What has passed before it is noticed in it if this process stood still then.
  const rate = ((passed - before) / (performance.now() - began + stalls.longest())) * 1_000
  isOver = true
  await Promise.all(all)
  return rate
}

t.test('started without the store: workers know how many they are', async t => {
  const cwd = configure(t, { type: 'redis', url: `redis://127.0.0.1:${await freePort()}` })
  const command = start(t, cwd, ['--workers', '4'])
  const rate = await rateAlone(t, await command.url)
  t.ok(rate <= 40 * 1.05, `${rate}/s of 40/s`)
  // For any distribution of the connections.
  t.ok(rate >= 10 * 0.9, `${rate}/s of 40/s`)
  const lines = logged(command, AWAY)
  t.same(
    lines.map(({ worker, instances }) => [worker, instances]).sort(),
    [1, 2, 3, 4].map(worker => [worker, 4]),
  )
  t.same(logged(command, /shared by/), [], 'no line says that anything is shared')
})

t.test(
  'started without the store: the file gives the least number of instances, also just after the store has answered',
  async t => {
    const port = await freePort()
    const command = start(t, configure(t, { type: 'redis', url: `redis://127.0.0.1:${port}`, instances: 4 }))
    const rate = await rateAlone(t, await command.url)
    t.ok(rate <= 10 * 1.05 && rate >= 10 * 0.9, `${rate}/s of a quarter of 40/s`)
    t.match(logged(command, AWAY), [{ instances: 4, msg: /at 1\/4 of the rates$/ }])
    const redis = new RedisServer(port, ['--save', '', '--appendonly', 'no'])
    t.teardown(() => redis.stop())
    await redis.start()
    await until('it shares', () => logged(command, BACK).length === 1)
    t.equal(shares(command), 4)
    await redis.kill()
    await until('the log says that it is away', () => logged(command, AWAY).length === 2)
    t.match(logged(command, AWAY)[1], { instances: 4, msg: /at 1\/4 of the rates$/ })
  },
)

t.test('a Redis that answers and refuses: the start says so, and why', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  await redis.command('ACL', 'SETUSER', 'member', 'on', '>secret', '+@all', '~other:*')
  const url = redis.url.replace('//', '//member:secret@')
  const command = start(t, configure(t, { type: 'redis', url, onOutage: 'closed' }))
  t.equal((await command.finished).code, 1)
  t.match(
    command.stderr(),
    /the store redis refuses \(.*NOPERM.*\); give its user the rights that docs\/scaling\.md names/,
  )
})
