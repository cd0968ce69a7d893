import { Redis } from 'ioredis'
import t from 'tap'
import { CLOCK_ORIGIN } from '../../src/stores/constants.js'
import { createRedisStore } from '../../src/stores/redis/store.js'
import { startCluster, startRedis } from '../servers/redis.js'
import { boardConformance } from './board-conformance.js'
import { clock, clockConformance, conformance } from './conformance.js'
import { exchangeConformance, exchangeModelled } from './exchange-conformance.js'
import { modelled, standing } from './model.js'

const OPTIONS = { timeout: 1_000, clock }
/** The first answer may take more than a second where other tests run. How long is the subject of redis-failure.test. */
const PATIENT = { timeout: 10_000 }

/** One for all suites: each has a prefix of its own. */
const server = await startRedis()
t.teardown(() => server.stop())

const client = new Redis(server.url, { protocol: 2 })
t.teardown(() => client.disconnect())

function create(prefix: string, more: object = {}) {
  return createRedisStore({ ...OPTIONS, url: server.url, prefix: `${prefix}:`, ...more })
}

conformance('Redis', async () => {
  const [store, other] = [create('plain', PATIENT), create('plain', PATIENT)]
  return { store, other, close: async () => void (await Promise.all([store.close(), other.close()])) }
})

conformance('long: Redis Cluster', async () => {
  const cluster = await startCluster()
  const create = () => createRedisStore({ ...OPTIONS, ...PATIENT, prefix: 'shaper:', cluster: cluster.urls })
  const [store, other] = [create(), create()]
  return {
    store,
    other,
    async close() {
      await Promise.all([store.close(), other.close()])
      await cluster.stop()
    },
  }
})

let boards = 0
boardConformance('Redis', async () => {
  boards += 1
  const [store, other] = [create(`board ${boards}`), create(`board ${boards}`)]
  return { store, other, close: async () => void (await Promise.all([store.close(), other.close()])) }
})

const nodes = await startCluster()
t.teardown(() => nodes.stop())
boardConformance('long: Redis Cluster', async () => {
  const prefix = `board ${++boards}:`
  const [store, other] = [1, 2].map(() => createRedisStore({ ...OPTIONS, prefix, cluster: nodes.urls }))
  return { store: store!, other: other!, close: async () => void (await Promise.all([store!.close(), other!.close()])) }
})

clockConformance('Redis', async () => {
  const timeSource =
    "(function() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 + tonumber(redis.call('GET', 'set_by') or 0) end)()"
  const store = create('clock', { timeSource })
  return { store, setClock: ms => server.command('SET', 'set_by', ms), close: () => store.close() }
})

t.test('a NaN in Redis counts as 0', async t => {
  const store = create('healed')
  t.teardown(() => store.close())
  const limits = { name: 'client', rate: 1e-6, capacity: 10 }
  const stack = [{ limits, key: 'k', group: 'g' }]
  const ask = (cost: number) => store.admit({ stack, cost, maxWait: Infinity, claim: true })
  t.match(await ask(4), { admitted: true })
  // As older versions have left it: level, at, free, blocked, rate.
  const keys = await client.keys('healed:*client:k')
  t.equal(keys.length, 1)
  const state = Buffer.from(new Float64Array([NaN, 0, NaN, 0, limits.rate]).buffer)
  await client.set(keys[0]!, state)
  t.match(await ask(10), { admitted: true, levels: [10], claim: { granted: true } })
  t.match(await ask(1), { admitted: false, reason: 'overflow' })
})

modelled('Redis', async () => {
  const timeSource = "tonumber(redis.call('GET', 'model_time') or 0)"
  const store = create('model', { timeSource, clock: standing })
  return {
    store,
    // The script counts from there.
    setTime: ms => server.command('SET', 'model_time', ms + CLOCK_ORIGIN * 1_000),
    close: () => store.close(),
  }
})

for (const suite of [exchangeConformance, exchangeModelled]) {
  suite('Redis', async () => {
    const timeSource = "tonumber(redis.call('GET', 'time') or 0)"
    const stores = [1, 2].map(() => create(suite.name, { timeSource }))
    return {
      stores,
      setTime: ms => client.set('time', ms),
      close: async () => void (await Promise.all(stores.map(store => store.close()))),
    }
  })
}
