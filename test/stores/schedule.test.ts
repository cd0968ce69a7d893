/** A rate that changes with the time of day, in a proxy on a real store: it counts from its moment on, also for those who wait. */
import t from 'tap'
import type { Clock } from '../../src/core/clock.js'
import type { Store } from '../../src/sharing/store.js'
import { createPostgresStore } from '../../src/stores/postgres/store.js'
import { createRedisStore } from '../../src/stores/redis/store.js'
import { connect, get, httpUpstream, startRig } from '../proxy/harness.js'
import { startPostgres } from '../servers/postgres.js'
import { startRedis } from '../servers/redis.js'
import { clock } from './conformance.js'

const TIMEOUT = 2_000

/** ms from the start to the change, which comes with a full minute. */
const BEFORE = 2_000

/** Stores of two instances. */
interface Server {
  create(clock: Clock): Store
  stop(): Promise<unknown>
}

const SERVERS: Record<string, () => Promise<Server>> = {
  async Redis() {
    const server = await startRedis()
    return {
      create: clock => createRedisStore({ url: server.url, prefix: 'schedule:', timeout: TIMEOUT, clock }),
      stop: () => server.stop(),
    }
  },
  async PostgreSQL() {
    const server = await startPostgres()
    return {
      create: clock => createPostgresStore({ url: server.url, table: 'schedule', timeout: TIMEOUT, clock }),
      stop: () => server.close(),
    }
  },
}

for (const [name, start] of Object.entries(SERVERS)) {
  t.test(`${name === 'Redis' ? '' : 'long: '}${name}: the rate changes at its minute, on both instances`, async t => {
    const server = await start()
    t.teardown(() => server.stop())
    const arrivals: number[] = []
    const upstream = await httpUpstream(t, (_req, res) => {
      arrivals.push(performance.now())
      res.end()
    })
    const changesAt = performance.now() + BEFORE
    const wallNow = () => Date.parse('2026-11-24T00:00:00Z') + performance.now() - changesAt
    const rigs = []
    for (let number = 0; number < 2; number += 1) {
      const store = server.create(clock)
      const shared = () => ({ store, onOutage: 'local' as const })
      const rate = [{ from: '00:00', to: '12:00', rate: '50/s' }, { rate: '0.5/s' }]
      const config = { upstream: upstream.url, buckets: { all: { key: 'all', rate, capacity: 100 } } }
      rigs.push(await startRig(t, { ...config, routes: [{ name: 'api' }] }, { realPacer: true, wallNow, shared }))
      t.teardown(() => store.close())
    }
    const answers = []
    for (let sent = 0; sent < 30; sent += 1) {
      const client = await connect(t, rigs[sent % 2]!)
      client.send(get())
      answers.push(client.answer())
    }
    for (const { status } of await Promise.all(answers)) t.equal(status, 200)
    // A release may come a little before its arrival, and the timer of the change a little late.
    const before = arrivals.filter(at => at < changesAt).length
    t.ok(before <= 1 + (0.5 * BEFORE) / 1_000 + 1, `${before} at the old rate`)
    const last = arrivals.at(-1)! - changesAt
    t.ok(last < 20_000, `the rest in ${last.toFixed(0)} ms; at the old rate it would take 56 s`)
    t.ok(last > ((30 - before - 2) * 1_000) / 50 - 100, 'and no faster than at the new one')
  })
}
