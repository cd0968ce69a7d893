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
    routes: [{ name: 'plain', match: { path: '/plain' }, mode: 'off' }, { name: 'all' }],
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

  const ask = async (path: string): Promise<void> => {
    const answer = await request(url + path)
    t.equal(answer.statusCode, 200)
    await answer.body.dump()
  }
  const trips: number[] = []
  const plain: number[] = []
  const waits: number[] = []
  for (let sent = 0; sent < 50; sent += 1) {
    trips.push(await timeOf(() => client.ping()))
    plain.push(await timeOf(() => ask('/plain')))
    waits.push(await timeOf(() => ask('/')))
    await sleep(130)
  }
  const [trip, itself, wait] = [trips, plain, waits].map(times => quantile(times, 0.5)) as [number, number, number]
  t.comment(`round trip ${trip} ms, request ${wait} ms, without a bucket ${itself} ms`)
  t.ok(trip >= 2 * WAY, `a round trip takes ${trip} ms`)
  // On a busy machine each process that is woken up takes some ms more.
  t.ok(wait < 1.2 * trip + itself + 4, `half of the requests take ${wait} ms, without a bucket ${itself} ms`)
})
