/** Quotas: counts that start anew with the calendar (contract 16.3), on a virtual clock. */
import t from 'tap'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, get, httpUpstream, passBoth, post, type Rig, type RigOptions, startRig } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const SHARED: RigOptions = { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' as const }) }
const KINDS: readonly [name: string, options: RigOptions][] = [
  ['alone', {}],
  ['with a store', SHARED],
]

async function timedRig(
  t: Teardown,
  time: string,
  config: object,
  { sent, ...options }: RigOptions & { readonly sent?: number[] },
): Promise<Rig> {
  let rig: Rig | undefined
  const upstream = await httpUpstream(t, (_req, res) => {
    sent?.push(rig!.pacer.now())
    res.end('ok')
  })
  const start = Date.parse(time)
  const wallNow = () => start + (rig?.clock.now() ?? 0)
  rig = await startRig(t, { upstream: upstream.url, ...config }, { ...options, virtualClock: true, wallNow })
  return rig
}

const passTo = (rig: Rig, until: number, step: number) => passBoth(rig, until - rig.pacer.now(), step)

const calls = (limit: number, more: object = {}) => ({
  key: 'header:x-key',
  quota: { limit, per: 'month', timeZone: 'Europe/Berlin' },
  ...more,
})
const ask = (t: Teardown, rig: Rig, key: string, path = '/') => askOnce(t, rig, get(path, `X-Key: ${key}`))

for (const [name, options] of KINDS) {
  for (const mode of ['shape', 'meter']) {
    t.test(
      `${name}, ${mode}: exactly the limit passes until the month is over, and all that is over is told when`,
      async t => {
        const config = { buckets: { calls: calls(3) }, routes: [{ name: 'api', mode }] }
        // A minute before midnight in Berlin.
        const rig = await timedRig(t, '2026-11-30T22:59:00Z', config, options)
        for (let left = 2; left >= 0; left -= 1) {
          const answer = await ask(t, rig, 'a')
          t.equal(answer.status, 200)
          t.equal(answer.header('ratelimit'), `"calls";r=${left};t=60`)
        }
        for (let times = 0; times < 3; times += 1) {
          const refused = await ask(t, rig, 'a')
          t.equal(refused.status, 429)
          t.equal(refused.header('retry-after'), '60', 'all are told the same moment')
          t.equal(refused.header('ratelimit-policy'), `"calls";q=3;w=${30 * 86_400}`)
          const detail = 'the quota of bucket "calls" is used up until 2026-11-30T23:00:00Z: 3 of 3'
          t.match(JSON.parse(refused.text), { detail, retryAfterMs: 60_000, 'violated-policies': ['calls'] })
        }
        t.equal((await ask(t, rig, 'b')).status, 200, 'each key has its own')
        await passTo(rig, 59_999, 20_000)
        t.equal((await ask(t, rig, 'a')).status, 429)
        await passTo(rig, 60_000, 1)
        for (const status of [200, 200, 200, 429]) t.equal((await ask(t, rig, 'a')).status, status, 'it has begun anew')
        await passTo(rig, 61_000, 1_000)
        t.equal((await ask(t, rig, 'a')).header('retry-after'), String(31 * 86_400 - 1))
      },
    )
  }

  t.test(`${name}: a request that waits over the end of a month counts once`, async t => {
    const config = {
      buckets: { pace: { key: 'all', rate: '1/s', capacity: 5 }, calls: calls(5) },
      routes: [{ name: 'api' }],
    }
    const rig = await timedRig(t, '2026-11-30T22:59:58.000Z', config, options)
    const answers = [0, 1, 2, 3, 4].map(() => ask(t, rig, 'a'))
    await rig.until(({ queued, released }) => queued.length + released.length >= 5)
    t.equal((await ask(t, rig, 'a')).status, 429, 'five are there')
    await passTo(rig, 5_000, 50)
    for (const answer of answers) t.equal((await answer).status, 200)
    // Two left in November. A store has counted all five as they came.
    const left = (await ask(t, rig, 'a')).header('ratelimit')
    t.match(left, name === 'alone' ? /"calls";r=[12];/ : /"calls";r=4;/)
  })

  t.test(`${name}: a rate and a quota take from both or from none`, async t => {
    const config = {
      buckets: { pace: { key: 'all', rate: '1/h', capacity: 2 }, calls: calls(5) },
      routes: [{ name: 'api', mode: 'meter' }],
    }
    const rig = await timedRig(t, '2026-11-12T10:00:00Z', config, options)
    for (const status of [200, 200, 429, 429]) t.equal((await ask(t, rig, 'a')).status, status)
    t.match((await ask(t, rig, 'a')).header('ratelimit'), /^"pace"/, 'the rate refuses')
    await passTo(rig, 3 * 3_600_000, 600_000)
    for (const status of [200, 200, 429]) t.equal((await ask(t, rig, 'a')).status, status)
    await passTo(rig, 6 * 3_600_000, 600_000)
    for (const status of [200, 429]) t.equal((await ask(t, rig, 'a')).status, status, 'what was refused did not count')
  })

  t.test(`${name}: costs, tiers and an answer that says what it cost`, async t => {
    const config = {
      buckets: { calls: calls(10, { tiers: [{ name: 'gold', keys: ['g'], quota: 20 }] }) },
      routes: [
        { name: 'post', match: { method: ['POST'] }, cost: 4, mode: 'meter' },
        { name: 'get', mode: 'meter' },
      ],
    }
    const rig = await timedRig(t, '2026-11-12T10:00:00Z', config, options)
    const send = (key: string) => askOnce(t, rig, post('', '/', `X-Key: ${key}`))
    for (const status of [200, 200, 429]) t.equal((await send('a')).status, status)
    t.match(JSON.parse((await send('a')).text).detail, /: 8 of 10, and this request costs 4$/)
    for (const status of [200, 200, 429]) t.equal((await ask(t, rig, 'a')).status, status)
    for (const status of [200, 200, 200, 200, 200, 429]) t.equal((await send('g')).status, status)
  })
}

for (const [name, options] of KINDS) {
  t.test(
    `${name}: what is left of a quota that is spread leaves evenly, and all of it, for a client that comes late`,
    async t => {
      const quota = { limit: 60, per: 'hour', spread: true }
      const config = { buckets: { calls: { key: 'all', quota, capacity: 4 } }, routes: [{ name: 'api' }] }
      const times: number[] = []
      const rig = await timedRig(t, '2026-11-12T12:30:00Z', config, { ...options, sent: times })
      const answers: Promise<{ status: number }>[] = []
      // Nobody asks for the first five minutes. Then somebody does every 7 s.
      await passTo(rig, 300_000, 60_000)
      for (let at = 300_000; at < 1_800_000; at += 7_000) {
        const before = rig.queued.length + rig.released.length + rig.rejections.length
        answers.push(ask(t, rig, 'a'))
        await rig.until(
          ({ queued, released, rejections }) => queued.length + released.length + rejections.length > before,
        )
        await passTo(rig, at + 7_000, 500)
      }
      const inHour = times.filter(at => at < 1_800_000)
      t.ok(inHour.length === 60, `${inHour.length} of 60, never more`)
      // Time passes in steps of 500 ms. With a store a slot is asked for.
      const slack = name === 'alone' ? 500 : 2_000
      const gaps = inHour.slice(1).map((at, index) => at - inHour[index]!)
      t.ok(
        Math.min(...gaps) >= 25_000 - slack && Math.max(...gaps) <= 25_000 + slack,
        `60 in 25 minutes: ${Math.min(...gaps)} to ${Math.max(...gaps)} ms`,
      )
      t.ok(times[0]! < 301_000, 'the first at once')
      await passTo(rig, 2_100_000, 5_000)
      const statuses = (await Promise.all(answers)).map(({ status }) => status)
      t.ok(statuses.includes(429), 'four may wait')
      // In the next hour the rate is that of a whole one.
      const next = times.filter(at => at >= 1_800_000)
      for (const [index, at] of next.slice(1).entries()) t.ok(at - next[index]! >= 24_000, `${at - next[index]!} ms`)
    },
  )
}
