/** A real instance whose Redis is far away: what an idle system adds to a request. */
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import t from 'tap'
import { request } from 'undici'
import { shaper } from '../cli/command.js'
import { startRelay } from '../servers/distance.js'
import { startRedis } from '../servers/redis.js'
import { quantile } from './spacing.js'

/** ms each way, up to 1 ms more. */
const WAY = 15

async function timeOf(ask: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  await ask()
  return performance.now() - began
}

t.test('an idle system adds one round trip to a request, not two', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const relay = await startRelay(redis.port, WAY)
  t.teardown(() => relay.close())
  const config = {
    listen: '127.0.0.1:0',
    upstream: 'echo:',
    store: { type: 'redis', url: `redis://127.0.0.1:${relay.port}`, timeout: '2s' },
    buckets: { all: { key: 'all', rate: '200/s', capacity: 200 } },
    accessLog: false,
  }
  const command = shaper(['start'], { cwd: t.testdir({ 'shaper.config.json': JSON.stringify(config) }) })
  t.teardown(async () => {
    command.child.kill('SIGKILL')
    await command.finished
  })
  const url = await command.url
  const client = new Redis(relay.port, '127.0.0.1')
  t.teardown(() => client.disconnect())

  const trips: number[] = []
  const waits: number[] = []
  for (let sent = 0; sent < 50; sent += 1) {
    trips.push(await timeOf(() => client.ping()))
    waits.push(
      await timeOf(async () => {
        const answer = await request(url)
        t.equal(answer.statusCode, 200)
        await answer.body.dump()
      }),
    )
    await sleep(130)
  }
  const [trip, wait] = [quantile(trips, 0.5), quantile(waits, 0.5)]
  t.comment(`round trip ${trip} ms, request ${wait} ms`)
  t.ok(trip >= 2 * WAY, `a round trip takes ${trip} ms`)
  // The request itself takes some ms.
  t.ok(wait < 1.2 * trip + 4, `half of the requests take ${wait} ms`)
})
