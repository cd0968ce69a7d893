// @ts-check
/** Measures ns per decision in its own process: `decisions.js DIST WHAT`. */
import { pathToFileURL } from 'node:url'

const [dist, what, keyCount] = process.argv.slice(2)
const KEYS = Number(keyCount)

/** @param {string} path @returns {Promise<any>} */
const ours = path => import(pathToFileURL(`${dist}/${path}`).href)

/** Keys in random order, as in a proxy. */
function shuffledKeys() {
  // Flat strings, as from a socket.
  const keys = Array.from({ length: KEYS }, (_, at) =>
    Buffer.from(`10.${at >> 16}.${(at >> 8) & 255}.${at & 255}`).toString('latin1'),
  )
  let seed = 1
  for (let at = keys.length - 1; at > 0; at -= 1) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0
    const other = seed % (at + 1)
    const key = keys[at]
    keys[at] = keys[other]
    keys[other] = key
  }
  return keys
}

/** @param {number} count @param {bigint} began */
const each = (count, began) => Number(process.hrtime.bigint() - began) / count

/** @type {Record<string, () => Promise<number>>} */
const measurements = {
  /** LeakyBucket.tryAdd on one bucket that admits everything. */
  async tryAdd() {
    const { LeakyBucket } = await ours('index.js')
    const bucket = new LeakyBucket({ rate: 1e6, capacity: 1e12 })
    const run = (/** @type {number} */ count) => {
      let admitted = 0
      for (let at = 0; at < count; at += 1) if (bucket.tryAdd(1).admitted) admitted += 1
      return admitted
    }
    run(1e6)
    const began = process.hrtime.bigint()
    const admitted = run(5e6)
    const figure = each(5e6, began)
    if (admitted !== 5e6) throw new Error('not admitted')
    return figure
  },

  /** The same on a full bucket. */
  async 'tryAdd, full'() {
    const { LeakyBucket } = await ours('index.js')
    const bucket = new LeakyBucket({ rate: '1/h', capacity: 1 })
    bucket.tryAdd(1)
    const run = (/** @type {number} */ count) => {
      let admitted = 0
      for (let at = 0; at < count; at += 1) if (bucket.tryAdd(1).admitted) admitted += 1
      return admitted
    }
    run(1e6)
    const began = process.hrtime.bigint()
    const admitted = run(5e6)
    const figure = each(5e6, began)
    if (admitted !== 0) throw new Error('admitted')
    return figure
  },

  /** The cost of reading the clock. No decision in real time is faster. */
  async clock() {
    const run = (/** @type {number} */ count) => {
      let sum = 0
      for (let at = 0; at < count; at += 1) sum += performance.now()
      return sum
    }
    run(1e6)
    const began = process.hrtime.bigint()
    run(5e6)
    return each(5e6, began)
  },

  /** A metered decision as the proxy makes it: find the bucket of a key, ask the shaper, let the bucket rest. */
  async meter() {
    const { BucketTable } = await ours('core/bucket-table.js')
    const { Shaper } = await ours('core/shaper.js')
    const { Gate } = await ours('core/queue/lane.js')
    const { createTimerClock } = await ours('pacing/timer.js')
    const clock = createTimerClock()
    const shaper = new Shaper({ clock })
    const bucketTable = new BucketTable(2 * KEYS)
    const limits = { name: 'client', rate: 1e-6, capacity: 1e9 }
    const route = { name: 'route', gate: new Gate() }
    const keys = shuffledKeys()
    const count = Math.max(KEYS, 1_000_000)
    const run = () => {
      for (let at = 0; at < count; at += 1) {
        const key = keys[at % KEYS]
        const bucket = bucketTable.peek(limits.name, key) ?? bucketTable.find(limits, key, clock.now())
        bucketTable.hold(bucket)
        if (shaper.meter({ route, stack: [bucket], cost: 1 }) !== 'released') throw new Error('not admitted')
        bucketTable.rest(bucket)
      }
    }
    // The second decision warms up, too: the number in a bucket then becomes mutable in place.
    run()
    run()
    const began = process.hrtime.bigint()
    run()
    run()
    return each(2 * count, began)
  },

  async RateLimiterMemory() {
    const { RateLimiterMemory } = await import('rate-limiter-flexible')
    const limiter = new RateLimiterMemory({ points: 1e9, duration: 3600 })
    const keys = shuffledKeys()
    const count = Math.max(KEYS, 300_000)
    const run = async () => {
      for (let at = 0; at < count; at += 1) await limiter.consume(keys[at % KEYS])
    }
    await run()
    const began = process.hrtime.bigint()
    await run()
    return each(count, began)
  },

  async 'RateLimiterMemory, full'() {
    const { RateLimiterMemory } = await import('rate-limiter-flexible')
    const limiter = new RateLimiterMemory({ points: 1, duration: 3600 })
    await limiter.consume('key')
    let rejected = 0
    const run = async (/** @type {number} */ count) => {
      for (let at = 0; at < count; at += 1) {
        try {
          await limiter.consume('key')
        } catch {
          rejected += 1
        }
      }
    }
    await run(300_000)
    const began = process.hrtime.bigint()
    await run(300_000)
    const figure = each(300_000, began)
    if (rejected !== 600_000) throw new Error('admitted')
    return figure
  },
}

process.send?.(await measurements[what](), () => process.exit())
