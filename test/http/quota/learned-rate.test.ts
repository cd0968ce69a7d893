import t from 'tap'
import type { Quota } from '../../../src/http/quota/field-values.js'
import { LearnedRate } from '../../../src/http/quota/learned-rate.js'
import { fixedWindow, leakyBucket, pace, refilling, slidingWindow, type Upstream } from './upstreams.js'

const S = 1_000
const M = 60_000
const H = 3_600_000

function quota(told: Partial<Quota>): Quota {
  return { limit: undefined, window: undefined, remaining: undefined, reset: undefined, grain: 1_000, ...told }
}

t.test('without any knowledge everything is allowed', async t => {
  const learned = new LearnedRate()
  t.equal(learned.allowed(0), Infinity)
  t.equal(learned.pausedUntil, -Infinity)
  t.equal(learned.expiresAt, Infinity)
})

t.test('the remaining quota is spread until the reset, then the base rate holds for ten windows', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ limit: 60, window: M, remaining: 15, reset: 30 * S }), 0)
  t.equal(learned.allowed(0), 15 / (30 * S))
  t.equal(learned.expiresAt, 30 * S)
  t.equal(learned.allowed(30 * S - 1), 15 / (30 * S))
  t.equal(learned.allowed(30 * S), 60 / M)
  t.equal(learned.expiresAt, 10 * M)
  t.equal(learned.allowed(10 * M - 1), 60 / M)
  t.equal(learned.allowed(10 * M), Infinity)
  t.equal(learned.expiresAt, Infinity)
})

t.test('a large remaining quota does not raise the rate above the base', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ limit: 60, window: M, remaining: 60, reset: 10 * S }), 0)
  t.equal(learned.allowed(0), 60 / M)
  t.equal(learned.expiresAt, 10 * M)
})

t.test('an undeclared window is the longest reset seen for its limit', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ limit: 60, remaining: 59, reset: 20 * S }), 0)
  t.equal(learned.allowed(0), 59 / (20 * S))
  learned.learn(quota({ limit: 60, remaining: 60, reset: 58 * S }), 20 * S)
  t.equal(learned.allowed(20 * S), 60 / (58 * S))
  learned.learn(quota({ limit: 60, remaining: 60, reset: 30 * S }), 48 * S)
  t.equal(learned.allowed(48 * S), 60 / (58 * S))
  learned.learn(quota({ limit: 90, remaining: 90, reset: 30 * S }), 48 * S)
  t.equal(learned.allowed(48 * S), 90 / (30 * S), 'another limit has another window')
})

t.test('without a limit only the remaining quota counts, until the reset', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ remaining: 4, reset: 2 * S }), 0)
  t.equal(learned.allowed(0), 4 / (2 * S))
  t.equal(learned.allowed(2 * S), Infinity)
})

t.test('an empty quota pauses until the reset, and the rate is never 0', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ limit: 60, window: M, remaining: 0, reset: 30 * S }), 5)
  t.equal(learned.pausedUntil, 30 * S + 5)
  t.equal(learned.allowed(5), 1 / (30 * S))
  t.equal(learned.expiresAt, 30 * S + 5)
  t.equal(learned.allowed(30 * S + 5), 60 / M)
})

t.test('resets in whole seconds tell nothing about a window of 1 s, and little about one of 5 s', async t => {
  const short = new LearnedRate()
  short.learn(quota({ limit: 10, window: S, remaining: 1, reset: S }), 0)
  t.equal(short.allowed(0), 10 / S)
  short.learn(quota({ limit: 10, window: S, remaining: 0, reset: S }), 1)
  t.equal(short.pausedUntil, S + 1, 'others have taken most of it: until the reset')
  t.equal(short.allowed(S + 1), 10 / S)
  const burst = new LearnedRate()
  for (let left = 9; left >= 0; left -= 1)
    burst.learn(quota({ limit: 10, window: S, remaining: left, reset: S }), 200 - 10 * left)
  t.equal(burst.pausedUntil, S + 110, 'a burst of our own: one window after its first')
  const empty = new LearnedRate()
  empty.learn(quota({ limit: 10, window: S, remaining: 0, reset: S }), 5)
  t.equal(empty.pausedUntil, S + 5, 'nothing left in the first answer: until the reset')
  const five = new LearnedRate()
  five.learn(quota({ limit: 10, window: 5 * S, remaining: 2, reset: 3 * S }), 0)
  t.equal(five.allowed(0), 2 / (2 * S))
  five.learn(quota({ limit: 10, window: 5 * S, remaining: 0, reset: 3 * S }), 0)
  t.equal(five.pausedUntil, 3 * S)
})

t.test('the last second of a window of an hour is not taken for a window of 1 s', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ limit: 5_000, remaining: 0, reset: S }), 0)
  t.equal(learned.pausedUntil, S)
  const still = new LearnedRate()
  still.learn(quota({ limit: 10, remaining: 10, reset: S }), 0)
  still.learn(quota({ limit: 10, remaining: 0, reset: S }), S)
  t.equal(still.pausedUntil, 2 * S, 'a window that has passed as a whole was one')
})

t.test('without a known reset the pause is one window, at most a minute', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ limit: 100, window: 10 * S, remaining: 3 }), 0)
  t.equal(learned.allowed(0), 100 / (10 * S))
  learned.learn(quota({ limit: 100, window: 10 * S, remaining: 0 }), 0)
  t.equal(learned.pausedUntil, 10 * S)
  learned.learn(quota({ limit: 100, window: H, remaining: 0 }), 0)
  t.equal(learned.pausedUntil, M)
})

t.test('when others use the quota, too, the last requests are left to them', async t => {
  const learned = new LearnedRate()
  learned.learn(quota({ limit: 100, window: M, remaining: 100, reset: M }), 0)
  learned.learn(quota({ limit: 100, window: M, remaining: 3, reset: 20 * S }), 40 * S)
  t.equal(learned.allowed(40 * S), 1 / (20 * S), '96 were taken by others, 48 more are to be expected')
  const alone = new LearnedRate()
  for (let left = 100; left >= 3; left -= 1)
    alone.learn(quota({ limit: 100, window: M, remaining: left, reset: 20 * S }), 40 * S)
  t.equal(alone.allowed(40 * S), 3 / (20 * S))
})

interface Case {
  name: string
  create: () => Upstream
  window: number
  least: number
}

const ALONE: Case[] = (['declared', 'undeclared'] as const).flatMap(told => [
  { name: `10 in 1 s, ${told}`, create: () => fixedWindow(10, S, told), window: S, least: 0.999 },
  { name: `100 in 5 s, ${told}`, create: () => fixedWindow(100, 5 * S, told), window: 5 * S, least: 0.999 },
  { name: `100 in 60 s, ${told}`, create: () => fixedWindow(100, M, told), window: M, least: 0.975 },
  { name: `5,000 in 1 h, ${told}`, create: () => fixedWindow(5_000, H, told), window: H, least: 0.999 },
  { name: `10 in 1 s, sliding, ${told}`, create: () => slidingWindow(10, S, told), window: S, least: 0.95 },
  { name: `100 in 60 s, sliding, ${told}`, create: () => slidingWindow(100, M, told), window: M, least: 0.975 },
])
ALONE.push(
  { name: 'a leaky bucket of 10 at 5/s', create: () => leakyBucket(5, 10), window: 2 * S, least: 0.999 },
  { name: 'a leaky bucket of 100 at 5/s', create: () => leakyBucket(5, 100), window: 20 * S, least: 0.999 },
)

for (const { name, create, window, least } of ALONE) {
  t.test(`a client alone uses its quota and is not rejected: ${name}`, async t => {
    for (const start of [0, 0.5, 0.99]) {
      const from = start * window
      const { rejectedAt, used } = pace(create(), { from, until: 15 * window })
      t.same(rejectedAt, [], `from ${start}`)
      t.ok(used(2 * window, 12 * window) >= least, `from ${start} it uses ${used(2 * window, 12 * window)}`)
      t.ok(used(2 * window, 12 * window) <= 1 + 1 / (create().rate * 10 * window))
    }
  })

  t.test(`answers that take 30 ms cost no more than the first burst: ${name}`, async t => {
    const { rejectedAt, used } = pace(create(), { until: 15 * window, latency: 30, atMost: 1.5 * create().rate })
    t.ok(rejectedAt.length <= 1, `rejected at ${rejectedAt}`)
    t.ok(rejectedAt.every(at => at < window))
    t.ok(used(2 * window, 12 * window) >= 0.975)
  })
}

/** Paces beside another client. Says what is wrong, if anything is. */
function faultBeside(others: number[], latency: number): string | undefined {
  const upstream = fixedWindow(100, M, 'undeclared')
  const { rejectedAt, used } = pace(upstream, { until: 20 * M, others, latency, atMost: 4 * upstream.rate })
  if (rejectedAt.length > 0) return `rejected at ${rejectedAt}`
  return used(M, 19 * M) < 0.45 ? `used ${used(M, 19 * M)}` : undefined
}

t.test(
  'nothing is rejected beside another client that takes half of the quota, evenly, in threes or at the start of a window',
  async t => {
    for (const group of [1, 2, 3, 50]) {
      for (let phase = 0; phase < (group === 50 ? 1 : 1_200 * group); phase += 75 * group) {
        const others = Array.from({ length: 1_000 }, (_, i) => Math.floor(i / group) * group * 1_200 + phase)
        for (const latency of [0, 30]) {
          const fault = faultBeside(others, latency)
          if (fault !== undefined) t.fail(`${group} at once, phase ${phase}, latency ${latency}: ${fault}`)
        }
      }
    }
    t.pass()
  },
)

t.test('a sliding window that always reports its whole length is used by half', async t => {
  const { rejectedAt, used } = pace(slidingWindow(100, M, 'declared', 'length'), { until: 15 * M })
  t.same(rejectedAt, [])
  t.ok(used(2 * M, 12 * M) > 0.49)
})

t.test('a quota that refills evenly, as of model APIs, is used up without a rejection', async t => {
  for (const [limit, grain] of [
    [500, 1],
    [60, 1],
    [50, S],
    [10, S],
  ] as const) {
    for (const latency of [0, 500, 5 * S]) {
      const name = `${limit} a minute, resets in ${grain} ms, answers after ${latency} ms`
      const { rejectedAt, used } = pace(refilling(limit, grain), { until: 10 * M, latency, atMost: (2 * limit) / M })
      t.same(rejectedAt, [], name)
      const share = used(M, 10 * M)
      t.ok(share > 0.99 && share < 1.01, `${name}: ${share}`)
    }
  }
})
