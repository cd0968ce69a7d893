// @ts-check
/**
 * Measures one figure of one store in its own process: `store.js DIST KIND URL WHAT NUMBER`.
 *
 * KIND is a kind of store, or `no-op`: a script that does nothing, called once for each decision by the same client with
 * the same options. WHAT is `rate` (decisions/s with NUMBER asking at once), `latency` (NUMBER one after the other) or
 * `keys` (one decision for each of NUMBER keys).
 */
import { pathToFileURL } from 'node:url'

const [dist, kind, url, what, number] = process.argv.slice(2)
const NUMBER = Number(number)

const KEYS = 10_000

/** ms */
const WARM_UP = 700
const MEASURED = 2_000

const clock = { now: () => performance.now(), at: () => () => false }

/** Limits that admit everything. @param {string} name */
const limits = name => ({ name, rate: 1_000, capacity: 1e12 })

/** @typedef {(at: number) => Promise<void>} Ask decides on the request of a key */

/** @type {Record<string, () => Promise<Ask>>} */
const participants = {
  async 'no-op'() {
    const { Redis } = await import('ioredis')
    const redis = new Redis(url, { protocol: 2, enableOfflineQueue: true, maxRetriesPerRequest: 0 })
    const sha = await redis.script('LOAD', 'return 1')
    return async at => {
      if ((await redis.evalsha(String(sha), 1, `shaper:{client}client:10.0.${at >> 8}.${at & 255}`)) !== 1)
        throw new Error('?')
    }
  },
  redis: () => store('redis', 'createRedisStore', { prefix: 'shaper:' }, 1),
  'redis, two buckets': () => store('redis', 'createRedisStore', { prefix: 'shaper:' }, 2),
  postgres: () => store('postgres', 'createPostgresStore', { table: 'shaper_bench' }, 1),
}

/** @param {string} file @param {string} create @param {object} options @param {number} buckets @returns {Promise<Ask>} */
async function store(file, create, options, buckets) {
  const module = await import(pathToFileURL(`${dist}/stores/${file}/store.js`).href)
  const made = module[create]({ url, timeout: 10_000, clock, ...options })
  const [client, everyone] = [limits('client'), limits('everyone')]
  return async at => {
    const stack = [{ limits: client, key: `10.0.${at >> 8}.${at & 255}`, group: 'client' }]
    if (buckets === 2) stack.push({ limits: everyone, key: '', group: 'client' })
    const answer = await made.admit({ stack, cost: 1, maxWait: Infinity, claim: true })
    if (!answer.admitted) throw new Error(`not admitted: ${JSON.stringify(answer)}`)
  }
}

/** @param {Ask} ask @param {number} callers @param {number} ms @returns {Promise<number>} decisions per second */
async function rate(ask, callers, ms) {
  const began = performance.now()
  let count = 0
  const caller = async () => {
    while (performance.now() < began + ms) {
      count += 1
      await ask(count % KEYS)
    }
  }
  await Promise.all(Array.from({ length: callers }, caller))
  return (count / (performance.now() - began)) * 1_000
}

/** @type {Record<string, (ask: Ask) => Promise<unknown>>} */
const measurements = {
  async rate(ask) {
    await rate(ask, NUMBER, WARM_UP)
    return rate(ask, NUMBER, MEASURED)
  },
  async latency(ask) {
    await rate(ask, 1, WARM_UP)
    const times = new Float64Array(NUMBER)
    for (let at = 0; at < NUMBER; at += 1) {
      const began = performance.now()
      await ask(at % KEYS)
      times[at] = performance.now() - began
    }
    return times
  },
  async keys(ask) {
    for (let at = 0; at < NUMBER; at += 100) {
      await Promise.all(Array.from({ length: 100 }, (_, more) => ask(at + more)))
    }
    return NUMBER
  },
}

const ask = await participants[kind]()
process.send?.(await measurements[what](ask), () => process.exit())
