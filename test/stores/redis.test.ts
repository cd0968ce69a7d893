import { createRedisStore } from '../../src/stores/redis.js'
import { startCluster, startRedis } from '../servers/redis.js'
import { clock, conformance } from './conformance.js'

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
