import t from 'tap'
import type { Quota } from '../../../src/http/quota/field-values.js'
import { LearnedQuotas } from '../../../src/http/quota/learned-quotas.js'

const MINUTE = 60_000

function quota(bucket: 'requests' | 'tokens', remaining: number, reset: number): Quota {
  return { bucket, limit: undefined, window: undefined, remaining, reset, grain: 0 }
}

t.test('requests and tokens are learnt apart, and followed when asked', async t => {
  const learned = new LearnedQuotas()
  const pause = learned.learn([quota('requests', 30, MINUTE), quota('tokens', 600, MINUTE)], 0, { longest: MINUTE })
  t.equal(pause, 0)
  t.equal(learned.rateOf('requests'), Infinity)
  t.same(learned.follow(0), ['requests', 'tokens'])
  t.equal(learned.rateOf('requests'), 30 / MINUTE)
  t.equal(learned.rateOf('tokens'), 600 / MINUTE)
  t.same(learned.follow(1), [], 'nothing new')
  t.same(learned.follow(1, 20 / MINUTE), ['requests'], 'what others tell counts')
  t.equal(learned.rateOf('requests'), 20 / MINUTE)
  t.same(learned.follow(learned.expiresAt('tokens')), ['requests', 'tokens'])
  t.equal(learned.rateOf('tokens'), Infinity)
})

t.test('the tokens of the request itself are not those of others', async t => {
  const rate = (costs: object) => {
    const learned = new LearnedQuotas()
    for (const [now, remaining] of [
      [0, 4_000],
      [1_000, 400],
      [2_000, 40],
    ] as const) {
      learned.learn([quota('tokens', remaining, MINUTE - now)], now, { longest: MINUTE, ...costs })
    }
    learned.follow(2_000)
    return learned.rateOf('tokens') * (MINUTE - 2_000)
  }
  t.equal(rate({ costs: { tokens: 3_600 } }), 40, 'all that is left is ours')
  t.equal(rate({}).toFixed(2), '1.00', 'others take the rest')
})

t.test('where nothing is left a request asks again after the longest pause', async t => {
  const learned = new LearnedQuotas()
  t.equal(learned.learn([quota('tokens', 0, 60 * MINUTE)], 0, { longest: 2_000 }), 2_000)
  t.same(learned.follow(0), ['tokens'])
  t.equal(learned.rateOf('tokens'), 1 / 2_000)
})
