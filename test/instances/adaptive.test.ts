/** Instances on one Redis, and workers without a server, find one rate for an upstream that can take 200/s. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { startRedis } from '../servers/redis.js'
import { Load } from './load.js'
import { Instance } from './system.js'

/** It does so many requests at once, and each takes this many ms. */
const WORKERS = 10
const SERVICE = 50
const CAPACITY = (WORKERS * 1_000) / SERVICE

type Test = Pick<typeof t, 'teardown' | 'ok'>

/** An upstream with a queue before its workers, and when it served what. */
async function fragile(test: Test) {
  const served: number[] = []
  const waiting: (() => void)[] = []
  let busy = 0
  const work = (): void => {
    while (busy < WORKERS && waiting.length > 0) {
      busy += 1
      waiting.shift()!()
    }
  }
  const server = createServer((_, response) => {
    waiting.push(() => {
      setTimeout(() => {
        busy -= 1
        served.push(performance.now())
        response.end()
        work()
      }, SERVICE)
    })
    work()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  test.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { served, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}

async function checkRate(test: Test, store: object | undefined, count: number, args: readonly string[]) {
  const { served, url } = await fragile(test)
  const adapt = { min: '20/s', max: '2000/s', latency: { p90: '300ms' } }
  const config = { upstream: { url, adapt }, routes: [{ name: 'api', patience: 'none' }], ...(store && { store }) }
  const instances = Array.from({ length: count }, () => new Instance(config, args))
  test.teardown(async () => void (await Promise.all(instances.map(instance => instance.close()))))
  await Promise.all(instances.map(instance => instance.ready()))
  const load = new Load({})
  for (const instance of instances) load.add(instance.url, 'client', 160 / count)
  await new Promise(resolve => setTimeout(resolve, 16_000))
  const end = performance.now()
  await load.stop()
  const last = served.filter(at => at >= end - 8_000 && at < end).length / 8
  test.ok(last > 0.6 * CAPACITY && last < 1.02 * CAPACITY, `${last}/s of ${CAPACITY}/s are served`)
  const shares = instances.map(instance => instance.notes().flatMap(({ sent }) => sent).length)
  test.ok(Math.min(...shares) > 0.7 * Math.max(...shares), `${shares}`)
}

t.test('two instances on one Redis', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  await checkRate(t, { type: 'redis', url: redis.url, timeout: '2s' }, 2, [])
})

t.test('two workers without a server', async t => checkRate(t, undefined, 1, ['--workers', '2']))
