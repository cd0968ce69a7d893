/** Two instances on one Redis: what an answer says at one of them moves what waits at the other. */
import type { ServerResponse } from 'node:http'
import { performance } from 'node:perf_hooks'
import t from 'tap'
import { askOnce, httpUpstream, post, type RigOptions, startRig } from '../proxy/harness.js'
import { startRedis } from '../servers/redis.js'
import { createStore } from './redis-sample.js'

const BODY = `{"max_tokens":900,"prompt":"${'x'.repeat(370)}"}`

const redis = await startRedis()
t.teardown(() => redis.stop())

// 1,000 tokens are reserved, which take 2 s. The most leaves time to a busy machine, and is less than any other cost would take.
// What waits already has been told when to ask again. So it is not moved to an earlier time, as what comes later is.
for (const [what, total, comes, least, most] of [
  ['sooner if it cost less', 50, 'after', 0, 1_500],
  ['in its time if it cost as much', 1_000, 'before', 1_900, 2_900],
  ['later if it cost more', 1_600, 'before', 3_000, 5_000],
] as const) {
  t.test(`the other instance's request leaves ${what}`, async t => {
    let first: ServerResponse | undefined
    const upstream = await httpUpstream(t, (_req, res) => {
      if (first === undefined) first = res
      else res.end()
    })
    const config = {
      upstream: upstream.url,
      buckets: { tokens: { key: 'all', rate: '500/s', capacity: 30_000 } },
      routes: [
        {
          name: 'chat',
          cost: { buckets: { tokens: { estimate: 100, max: 'max_tokens', after: 'usage.total_tokens' } } },
        },
      ],
    }
    const shared: RigOptions['shared'] = () => ({
      store: createStore(t, { url: redis.url, prefix: `${total}:` }),
      onOutage: 'closed',
    })
    const one = await startRig(t, config, { realPacer: true, shared })
    const other = await startRig(t, config, { realPacer: true, shared })
    const asked = performance.now()
    const answer = askOnce(t, one, post(BODY))
    await upstream.until(({ requests }) => requests.length === 1)
    const start = performance.now()
    const ask = () => askOnce(t, other, post(BODY))
    let second = comes === 'before' ? ask() : undefined
    await other.until(({ queued }) => queued.length === (comes === 'before' ? 1 : 0))
    first!.writeHead(200, { 'content-type': 'application/json' }).end(`{"usage":{"total_tokens":${total}}}`)
    t.equal((await answer).status, 200)
    await one.until(({ settled }) => settled.length === 1)
    second ??= ask()
    t.equal((await second).status, 200)
    const end = performance.now()
    // The first one has left after it was asked and before it came to the upstream.
    t.ok(end - asked >= least && end - start <= most, `${end - start} ms, ${start - asked} ms after the first`)
    t.same(one.settled, [`answer tokens=${total}`])
  })
}
