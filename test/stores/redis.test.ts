import { createRedisStore } from '../../src/stores/redis/store.js'
import { startCluster, startRedis } from '../servers/redis.js'
import { clock, clockConformance, conformance } from './conformance.js'
import { exchangeConformance, exchangeModelled } from './exchange-conformance.js'

const OPTIONS = { prefix: 'shaper:', timeout: 1_000, clock }

conformance('Redis', async () => {
  const server = await startRedis()
  const [store, other] = [
    createRedisStore({ ...OPTIONS, url: server.url }),
    createRedisStore({ ...OPTIONS, url: server.url }),
  ]
  return {
    store,
    other,
    async close() {
      await Promise.all([store.close(), other.close()])
      await server.stop()
    },
  }
})

conformance('Redis Cluster', async () => {
  const cluster = await startCluster()
  const create = () => createRedisStore({ ...OPTIONS, cluster: cluster.urls })
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

clockConformance('Redis', async () => {
  const server = await startRedis()
  const timeSource =
    "(function() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 + tonumber(redis.call('GET', 'set_by') or 0) end)()"
  const store = createRedisStore({ ...OPTIONS, url: server.url, timeSource })
  return {
    store,
    setClock: ms => server.command('SET', 'set_by', ms),
    async close() {
      await store.close()
      await server.stop()
    },
  }
})

for (const suite of [exchangeConformance, exchangeModelled]) {
  suite('Redis', async () => {
    const server = await startRedis()
    const timeSource = "tonumber(redis.call('GET', 'time') or 0)"
    const stores = [1, 2].map(() => createRedisStore({ ...OPTIONS, url: server.url, timeSource }))
    return {
      stores,
      setTime: ms => server.command('SET', 'time', ms),
      async close() {
        await Promise.all(stores.map(store => store.close()))
        await server.stop()
      },
    }
  })
}
