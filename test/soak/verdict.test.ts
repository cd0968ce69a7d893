import t from 'tap'
// @ts-expect-error: a part of a program without types
import { compareIds, compareOutcomes, judgeIds, judgeMemory } from './verdict.js'

const ROUTE = { known: { forwarded: 3 }, unsure: { 'forwarded|cancelled': 2 }, perhaps: 0, ahead: 0 }

function metrics(counts: Record<string, number>): Map<string, number> {
  return new Map(
    Object.entries(counts).map(([outcome, count]) => [
      `shaper_requests_total{route="api",outcome="${outcome}"}`,
      count,
    ]),
  )
}

t.test('an unsure request may have any of its outcomes, and each request counts once', async t => {
  t.same(compareOutcomes({ api: ROUTE }, metrics({ forwarded: 4, cancelled: 1 })), [])
  t.match(compareOutcomes({ api: ROUTE }, metrics({ forwarded: 4 })), [/clients began 5 requests, 4 were counted/, /5/])
  t.match(compareOutcomes({ api: ROUTE }, metrics({ forwarded: 2, cancelled: 3 })), [
    /2 were counted as forwarded/,
    /3/,
  ])
  t.match(compareOutcomes({}, metrics({ refused: 1 })), [/^unexpected: /])
})

t.test(
  'ids: answered requests were seen, rejected ones were not, and only repeatable ones were sent twice',
  async t => {
    const [once, never, perhaps, repeatable] = [1, 2, 3, 4]
    const expected = Uint8Array.from([0, once, never, perhaps, once + repeatable, once])
    const good = compareIds(expected, Uint8Array.from([0, 1, 0, 1, 2, 1]))
    t.same(judgeIds(good, { forwarded: 3, failed: 1, cancelled: 0 }), [])
    const bad = compareIds(expected, Uint8Array.from([1, 0, 1, 0, 3, 2]))
    t.match(bad, { missing: 1, unwanted: 1, unknown: 1, wronglyRepeated: 2 })
    t.equal(judgeIds(bad, { forwarded: 5, failed: 0, cancelled: 0 }).length, 5)
  },
)

t.test('memory that still grows after its plateau is reported if the run was long enough', async t => {
  const samples = (last: number) => Array.from({ length: 100 }, (_, at) => ({ at, bytes: at < 90 ? 100e6 : last }))
  t.equal(judgeMemory(samples(109e6), { seconds: 100, judgesMemory: true }).growth, undefined)
  t.match(judgeMemory(samples(112e6), { seconds: 100, judgesMemory: true }).growth, /from 100 to 112 MB/)
  t.equal(judgeMemory(samples(112e6), { seconds: 100, judgesMemory: false }).growth, undefined)
})
