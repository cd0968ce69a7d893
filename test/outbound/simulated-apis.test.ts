/**
 * The limits of simulated APIs, on the virtual clock: nothing is refused, and little is left unused. In real time: the suite
 * `dialects` of the benchmark.
 */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper, type ShaperOptions } from '../../src/index.js'
import { modelCalls } from '../bench/model-calls.js'

interface Dialect {
  readonly title: string
  /** 99 % of its rates. */
  readonly told: ShaperOptions
  costs(calls: number): Record<string, number>[]
}
// @ts-expect-error: it has no declarations
const { createJudge, DIALECTS, idealTime } = await import('../bench/dialects.js')

const CALLS = 600

for (const dialect of Object.values<Dialect>(DIALECTS)) {
  t.test(`${CALLS} calls to a strict API, ${dialect.title}: none refused, within 2 % of the ideal time`, async t => {
    const clock = createVirtualClock()
    const shaper = createShaper({ ...dialect.told, clock })
    const judge = createJudge(dialect)
    let refused = 0
    let last = 0
    for (const costs of dialect.costs(CALLS)) {
      const ask = (): void => {
        last = clock.now()
        if (judge(last, costs) > 0) refused += 1
      }
      void shaper.run(ask, dialect.told.buckets === undefined ? {} : { cost: costs })
    }
    clock.runAll()
    t.equal(refused, 0)
    const part = last / idealTime(dialect, CALLS)
    t.ok(part >= 1 && part <= 1.02, `${part}`)
    t.match(shaper.status(), { queued: 0 })
  })
}

/** 100 callers for 5 minutes: 96 % of the rate is told, and the most that a call can cost is reserved. */
const ADVISED = { margin: 0.96, estimate: 550, burst: 1_100 }

/** The most by which an estimate is wrong, in tokens. */
const ERROR = 500

t.test('answers of unknown lengths: 95 % of the tokens used, and no more over than an estimate is wrong', async t => {
  for (const seed of [1, 2, 3]) {
    const { used, overMinute, overBucket, overRequests } = await modelCalls({ ...ADVISED, seed })
    t.ok(used >= 0.95 && used < 1, `${used} used`)
    t.ok(overMinute <= ERROR, `${overMinute} over in a minute`)
    t.ok(overBucket <= 0, `${overBucket} over in a bucket that refills evenly`)
    t.ok(overRequests <= 0, `${overRequests} requests over`)
  }
})

t.test('answers of unknown lengths: what a burst of tokens and the true costs are good for', async t => {
  const spaced = await modelCalls({ ...ADVISED, burst: undefined })
  t.ok(spaced.used < 0.85, `${spaced.used} used without a burst`)
  const untold = await modelCalls({ ...ADVISED, charges: false })
  t.ok(untold.used < 0.6, `${untold.used} used without charge`)
})

t.test('answers of unknown lengths: nothing is over in a bucket of a minute with 99 % of the rate', async t => {
  const { used, overBucket } = await modelCalls({ ...ADVISED, margin: 0.99, burst: 1_650 })
  t.ok(used >= 0.98, `${used} used`)
  t.ok(overBucket <= 0, `${overBucket} over`)
})
