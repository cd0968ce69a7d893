/** The count of a quota in the core, beside a naive one, on a virtual clock whose steps cross the ends of periods. */
import fc from 'fast-check'
import t from 'tap'
import { QUOTA_RATE } from '../../src/config/derived/default-capacity.js'
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { runs } from '../runs.js'

const PERIOD = 3_600_000
const START = 1_800_000_000_000

function limitsAt(now: number, capacity: number): BucketLimits {
  const index = Math.floor(now / PERIOD)
  const quota = { from: index * PERIOD, until: (index + 1) * PERIOD, end: START + (index + 1) * PERIOD }
  return { name: 'calls', rate: QUOTA_RATE, capacity, quota }
}

const step = fc.record({
  gap: fc.constantFrom(0, 0, 0, 1, 1_000, PERIOD / 2, PERIOD - 1, PERIOD, 5 * PERIOD),
  cost: fc.constantFrom(0, 0.1, 0.3, 1, 1, 1, 2, 7),
  /** The new period may be noticed late. */
  isNoticed: fc.boolean(),
  settles: fc.constantFrom(undefined, undefined, -0.5, 1),
})

type Step = typeof step extends fc.Arbitrary<infer S> ? S : never

/** A bucket of the core and one of the decider, beside a number. */
class Beside {
  now = 10.5
  count = 0
  #period = 0
  readonly #capacity: number
  readonly #bucket: QueuedBucket
  readonly #store = createMemoryStore({ clock: { now: () => this.now } })

  constructor(capacity: number) {
    this.#capacity = capacity
    this.#bucket = new QueuedBucket(limitsAt(this.now, capacity))
  }

  /** Whether all three say the same. */
  take({ gap, cost, isNoticed, settles }: Step): boolean {
    this.#pass(gap, isNoticed)
    const bucket = this.#bucket
    const fits = this.count + cost <= this.#capacity + 1e-9
    const stack = [{ limits: limitsAt(this.now, this.#capacity), key: 'a', group: '' }]
    const { admitted } = this.#store.admit({ stack, cost, maxWait: 0, claim: true }) as { admitted: boolean }
    if ((bucket.excess(cost, this.now) === 0) !== fits || admitted !== fits) return false
    if (fits) {
      // Nothing delays it.
      if (bucket.freeAt > this.now + 1e-3) return false
      bucket.pass(cost, this.now)
      this.count += cost
      if (settles !== undefined) {
        this.count += bucket.settle(settles, this.now)
        this.#store.settle!({ stack, cost: settles })
      }
    }
    return Math.abs(bucket.level(this.now) - this.count) < 1e-9
  }

  #pass(gap: number, isNoticed: boolean): void {
    this.now += gap
    const period = Math.floor(this.now / PERIOD)
    if (period !== this.#period) this.count = 0
    this.#period = period
    const bucket = this.#bucket
    // At the latest before the one after it begins.
    if (isNoticed || this.now >= bucket.limits.quota!.until + PERIOD)
      bucket.setLimits(limitsAt(this.now, this.#capacity), this.now)
  }
}

t.test('property: the core and the decider admit what a naive count admits', async () => {
  fc.assert(
    fc.property(fc.constantFrom(1, 5, 8), fc.array(step, { maxLength: 60 }), (capacity, steps) => {
      const beside = new Beside(capacity)
      return steps.every(each => beside.take(each))
    }),
    { numRuns: runs(10_000) },
  )
})

t.test('a rate that becomes a quota keeps what has not drained, and a quota that becomes a rate drains', async t => {
  const rate: BucketLimits = { name: 'calls', rate: 0.001, capacity: 10 }
  const bucket = new QueuedBucket(rate)
  bucket.pass(4, 0)
  bucket.setLimits(limitsAt(2_000, 10), 2_000)
  t.equal(bucket.level(2_000), 2)
  t.equal(bucket.level(PERIOD - 1), 2)
  t.equal(bucket.level(PERIOD), 0)
  bucket.setLimits(rate, 3_000)
  t.equal(bucket.level(3_000), 2)
  t.equal(bucket.level(4_000), 1)
})
