// @ts-check
/**
 * Makes calls to a simulator, in its own process: `dialects.js DIST WHO TASK URL CALLS LONGEST`. TASK is a dialect, `model`, or
 * `shared` with a Redis as WHO. After LONGEST ms what has not been answered is lost.
 *
 * Each peer is set as its own documentation recommends for such a limit, and told 99 % of it, like shaper. What it cannot say
 * is approximated, and a comment says so. Who can try again does: Bottleneck (its event `failed`) and octokit's plugin.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { Agent, fetch } from 'undici'
import { DIALECTS, MARGIN, MODEL } from '../dialects.js'

const [dist, who, task, url, count, longest] = process.argv.slice(2)
const CALLS = Number(count)

const TRIES = 5

/**
 * @typedef {Record<string, number>} Costs
 * @typedef {(costs: Costs, fn: () => Promise<void>) => Promise<unknown>} Run
 */

class Refused extends Error {
  /** @param {number} ms */
  constructor(ms) {
    super('429')
    this.ms = ms
  }
}

const dispatcher = new Agent()

/** @param {Costs} costs @returns {Promise<void>} */
async function call(costs) {
  const answer = await fetch(`${url}/?${query(costs)}`, { dispatcher })
  await answer.text()
  if (answer.status !== 200) throw new Refused(Number(answer.headers.get('retry-after')) * 1_000)
}

/** @param {Costs} costs */
const query = costs => new URLSearchParams(Object.entries(costs).map(([name, cost]) => [name, String(cost)]))

/** @returns {Promise<Run>} */
async function shaper() {
  const { createShaper } = await import(pathToFileURL(`${dist}/index.js`).href)
  const { told } = DIALECTS[task]
  const shaper = createShaper({
    ...told,
    retry: (/** @type {unknown} */ error, /** @type {number} */ attempt) =>
      error instanceof Refused && attempt < TRIES ? error.ms : undefined,
  })
  const areNamed = told.buckets !== undefined
  return (costs, fn) => shaper.run(fn, areNamed ? { cost: costs } : {})
}

/** Its page on reservoirs has Shopify's limit, 40 and 2/s, as an example, with `minTime` half a period and `maxConcurrent: 5`. @returns {Promise<Run>} */
async function bottleneck() {
  const { default: Bottleneck } = await import('bottleneck')
  /** An increase comes every 250 ms. @param {number} most @param {number} rate per second */
  const growing = (most, rate) => ({
    reservoir: most,
    reservoirIncreaseAmount: (rate * MARGIN) / 4,
    reservoirIncreaseInterval: 250,
    reservoirIncreaseMaximum: most,
  })
  const settings = {
    bucket: [{ ...growing(40, 20), minTime: 25, maxConcurrent: 5 }],
    // "Most APIs have a rate limit": `minTime`.
    sliding: [{ minTime: 100 / MARGIN }],
    // Its example of 100 in 60 s, with `minTime` about half a period. It cannot know when the window begins.
    fixed: [
      {
        reservoir: 100 * MARGIN,
        reservoirRefreshAmount: 100 * MARGIN,
        reservoirRefreshInterval: 6_000,
        maxConcurrent: 1,
        minTime: 33,
      },
    ],
    tokens: [growing(50, 500 / 6), growing(3_000, 5_000)],
    points: [growing(1_000, 500)],
  }[/** @type {'bucket'} */ (task)]
  const limiters = settings.map(each => {
    const limiter = new Bottleneck(each)
    limiter.on('failed', (error, { retryCount }) =>
      error instanceof Refused && retryCount + 1 < TRIES ? error.ms : undefined,
    )
    return limiter
  })
  const [first, second] = limiters
  if (task === 'points') return ({ points }, fn) => first.schedule({ weight: points }, fn)
  // One limiter has one weight, so there are two.
  if (task === 'tokens') return ({ tokens }, fn) => first.schedule(() => second.schedule({ weight: tokens }, fn))
  return (_, fn) => first.schedule(fn)
}

/** It has no burst beside its rate. `strict`: "ensuring the limit is not exceeded for any interval". Weights are its own. @returns {Promise<Run>} */
async function pThrottle() {
  const { default: pThrottle } = await import('p-throttle')
  /** @param {number} limit @param {number} interval @param {(fn: unknown, cost: number) => number} [weight] */
  const throttle = (limit, interval, weight) =>
    pThrottle({ limit, interval: interval / MARGIN, strict: true, ...(weight && { weight }) })(
      (/** @type {() => Promise<void>} */ fn, /** @type {number} */ _cost) => fn(),
    )
  const byCost = (/** @type {unknown} */ _, /** @type {number} */ cost) => cost
  switch (task) {
    case 'bucket': {
      const throttled = throttle(20, 1_000)
      return (_, fn) => throttled(fn, 1)
    }
    case 'tokens': {
      const requests = throttle(50, 600)
      const tokens = throttle(3_000, 600, byCost)
      return (costs, fn) => requests(() => tokens(fn, costs.tokens), 1)
    }
    case 'points': {
      const throttled = throttle(500, 1_000, byCost)
      return ({ points }, fn) => throttled(fn, points)
    }
    default: {
      const throttled = task === 'sliding' ? throttle(10, 1_000) : throttle(100, 6_000)
      return (_, fn) => throttled(fn, 1)
    }
  }
}

/** `strict` is its sliding window, for "APIs that enforce strict rate limits". It has no burst beside its rate, and no weights. @returns {Promise<Run>} */
async function pQueue() {
  const { default: PQueue } = await import('p-queue')
  const [intervalCap, interval] = {
    bucket: [20, 1_000],
    sliding: [10, 1_000],
    fixed: [100, 6_000],
    // It counts calls only: the requests.
    tokens: [50, 600],
    // By the mean of the costs, 25.5.
    points: [20, 1_020],
  }[/** @type {'bucket'} */ (task)]
  const queue = new PQueue({ intervalCap, interval: interval / MARGIN, strict: true })
  return (_, fn) => queue.add(fn)
}

/** `TokenBucket`: "separate burst capacity and refill rate". It starts empty. `RateLimiter`: "a maximum per interval". @returns {Promise<Run>} */
async function limiter() {
  const { RateLimiter, TokenBucket } = await import('limiter')
  /** @param {number} bucketSize @param {number} rate per second */
  const bucket = (bucketSize, rate) => {
    const made = new TokenBucket({ bucketSize, tokensPerInterval: rate * MARGIN, interval: 'second' })
    made.content = bucketSize
    return made
  }
  const [first, second] = {
    bucket: () => [bucket(40, 20)],
    sliding: () => [new RateLimiter({ tokensPerInterval: 10, interval: 1_000 / MARGIN })],
    fixed: () => [new RateLimiter({ tokensPerInterval: 100, interval: 6_000 / MARGIN })],
    // A parent takes the same count as its child. So there are two.
    tokens: () => [bucket(50, 500 / 6), bucket(3_000, 5_000)],
    points: () => [bucket(1_000, 500)],
  }[/** @type {'bucket'} */ (task)]()
  return async (costs, fn) => {
    await first.removeTokens(costs.points ?? 1)
    if (second !== undefined) await second.removeTokens(costs.tokens)
    return fn()
  }
}

/** It has no option for a rate: ten requests at once, and tries again as the answer says if its handlers return true. @returns {Promise<Run>} */
async function octokit() {
  const { Octokit } = await import('@octokit/core')
  const { throttling } = await import('@octokit/plugin-throttling')
  const Throttled = Octokit.plugin(throttling)
  const silent = { debug() {}, info() {}, warn() {}, error() {} }
  const again = () => true
  const client = new Throttled({
    baseUrl: url,
    log: silent,
    request: { fetch: (/** @type {any} */ to, /** @type {any} */ options) => fetch(to, { ...options, dispatcher }) },
    throttle: { onRateLimit: again, onSecondaryRateLimit: again },
  })
  return costs => client.request(`GET /?${query(costs)}`)
}

/** @type {Record<string, () => Promise<Run>>} */
const CLIENTS = { shaper, Bottleneck: bottleneck, 'p-throttle': pThrottle, 'p-queue': pQueue, limiter, octokit }

/** A first call loads what is loaded lazily, and opens connections. @param {number} connections */
async function warmUp(connections) {
  const calls = Array.from({ length: connections }, () => fetch(`${url}/warm-up`, { dispatcher }))
  await Promise.all(calls.map(async answer => (await answer).text()))
  await sleep(500)
}

/** @returns {Promise<{ done: number, took: number }>} `took`: ms until the last answer */
async function dialect() {
  const run = await CLIENTS[who]()
  await warmUp(40)
  let done = 0
  let last = 0
  const began = performance.now()
  const all = DIALECTS[task].costs(CALLS).map(costs =>
    run(costs, () => call(costs)).then(
      () => {
        done += 1
        last = performance.now() - began
      },
      () => {},
    ),
  )
  await Promise.race([Promise.all(all), sleep(Number(longest))])
  return { done, took: last }
}

/** 100 callers without a pause. WHO: `{ margin, estimate, burst }`. */
async function model() {
  const { createShaper } = await import(pathToFileURL(`${dist}/index.js`).href)
  const { margin, estimate, burst } = JSON.parse(who)
  const perMs = margin / MODEL.minute
  const shaper = createShaper({
    buckets: {
      requests: { rate: MODEL.requests * perMs * 1_000 },
      tokens: { rate: MODEL.tokens * perMs * 1_000, burst },
    },
  })
  await warmUp(40)
  const end = performance.now() + Number(longest)
  /** @param {{ charge(costs: Costs): void }} context */
  const ask = async ({ charge }) => {
    const answer = await fetch(url, { dispatcher })
    const { usage } = /** @type {{ usage: { total_tokens: number } }} */ (await answer.json())
    charge({ tokens: usage.total_tokens })
  }
  const caller = async () => {
    while (performance.now() < end) await shaper.run(ask, { cost: { requests: 1, tokens: estimate } })
  }
  await Promise.race([Promise.all(Array.from({ length: CALLS }, caller)), sleep(Number(longest))])
  return {}
}

/** One of several processes on a Redis, 10/s in all. WHO: its URL. */
async function shared() {
  const { createShaper } = await import(pathToFileURL(`${dist}/index.js`).href)
  // Their numbers and patience are told, so that a slow start does not look like an outage.
  const store = { type: 'redis', url: who, prefix: 'bench:', timeout: '2s', instances: 4 }
  const shaper = createShaper({ rate: 10, capacity: 10_000, store })
  let outages = 0
  shaper.on('error', () => {
    outages += 1
  })
  await warmUp(4)
  await Promise.all(Array.from({ length: CALLS }, () => shaper.run(() => call({}))))
  await shaper.drain()
  return { outages }
}

const result = await (task === 'model' ? model() : task === 'shared' ? shared() : dialect())
process.send?.(result, () => process.exit())
