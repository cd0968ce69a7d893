// @ts-check
/** Makes calls through limiters of the same kind, in its own process: `outbound.js DIST TASK WHO [URL]`. */
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'

const [dist, task, who, url = ''] = process.argv.slice(2)

/** The limits for the comparison against an API with a hard limit. */
const RATE = 100
const CALLS = 500

/** The limits for measuring the cost of a call that does not wait. */
const ALL_AT_ONCE = 100
/** ms */
const WARM_UP = 300
const MEASURED = 1_000
const UNLIMITED = 1e9

/** @typedef {<T>(fn: () => Promise<T>) => Promise<T>} Run */

/** @param {number} rate per second @returns {Promise<Run>} */
async function limiter(rate) {
  switch (who) {
    case 'Bottleneck': {
      const { default: Bottleneck } = await import('bottleneck')
      const bottleneck = new Bottleneck(rate === UNLIMITED ? {} : { minTime: 1_000 / rate })
      return fn => bottleneck.schedule(fn)
    }
    case 'p-throttle': {
      const { default: pThrottle } = await import('p-throttle')
      const throttled = pThrottle({ limit: rate, interval: 1_000 })((/** @type {() => Promise<any>} */ fn) => fn())
      return fn => throttled(fn)
    }
    case 'limiter': {
      const { RateLimiter } = await import('limiter')
      const bucket = new RateLimiter({ tokensPerInterval: rate, interval: 'second' })
      return async fn => {
        await bucket.removeTokens(1)
        return fn()
      }
    }
    default: {
      const { createShaper } = await import(pathToFileURL(`${dist}/index.js`).href)
      const shaper = createShaper({ rate, capacity: Infinity })
      return fn => shaper.run(fn)
    }
  }
}

/** 500 calls at once, as `fetch`. @returns {Promise<{ rejected: number, took: number }>} took in ms */
async function calls() {
  const { Agent, fetch } = await import('undici')
  let dispatcher = /** @type {import('undici').Dispatcher} */ (new Agent())
  /** @type {Run} */
  let run = fn => fn()
  if (who === 'shape') {
    const { shape } = await import(pathToFileURL(`${dist}/index.js`).href)
    dispatcher = dispatcher.compose(shape({ rate: RATE, capacity: CALLS, pauseOn: false }))
  } else {
    run = await limiter(RATE)
  }
  // A first call on another server loads everything that is loaded lazily.
  await fetch('data:,').then(answer => answer.text())
  await sleep(1_000)
  const began = performance.now()
  const statuses = await Promise.all(
    Array.from({ length: CALLS }, () =>
      run(async () => {
        const answer = await fetch(url, { dispatcher })
        await answer.text()
        return answer.status
      }),
    ),
  )
  const took = performance.now() - began
  return { rejected: statuses.filter(status => status !== 200).length, took }
}

/** @returns {Promise<number>} ns per call that passes at once */
async function overhead() {
  const run = who === 'nothing' ? (/** @type {() => Promise<any>} */ fn) => fn() : await limiter(UNLIMITED)
  const work = async () => 1
  const during = async (/** @type {number} */ ms) => {
    const began = performance.now()
    let done = 0
    for (; performance.now() - began < ms; done += ALL_AT_ONCE) {
      await Promise.all(Array.from({ length: ALL_AT_ONCE }, () => run(work)))
    }
    return ((performance.now() - began) * 1e6) / done
  }
  await during(WARM_UP)
  return during(MEASURED)
}

const result = task === 'calls' ? await calls() : await overhead()
process.send?.(result, () => process.exit())
