/** Quotas of the library, on a virtual clock with a calendar. */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper, createTestClock, OverflowError } from '../../src/index.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'

function calendar(time: string) {
  const clock = createVirtualClock()
  const start = Date.parse(time)
  return Object.assign(clock, { wallNow: () => start + clock.now() })
}

for (const kind of ['alone', 'with a store']) {
  t.test(`${kind}: a quota beside a rate, anew with the month`, async t => {
    const clock = calendar('2026-11-30T23:59:00Z')
    const shaper = createShaper({
      buckets: { pace: { rate: '10/s', capacity: 5 }, calls: { quota: { limit: 3, per: 'month' } } },
      clock,
      ...(kind === 'alone' ? {} : { store: createMemoryStore({ clock }) as never }),
    })
    const run = async (key: string): Promise<unknown> => {
      const call = shaper.run(key, () => 'done').catch((error: unknown) => error)
      for (let turn = 0; turn < 10; turn += 1) {
        await new Promise(resolve => setImmediate(resolve))
        clock.runUntil(clock.now() + 100)
      }
      return call
    }
    for (let times = 0; times < 3; times += 1) t.equal(await run('a'), 'done')
    const refused = (await run('a')) as OverflowError
    t.ok(refused instanceof OverflowError)
    t.match(refused, { reason: 'overflow', bucket: 'calls' })
    const left = 60_000 - clock.now()
    t.ok(refused.retryAfterMs >= left && refused.retryAfterMs <= left + 1_002, `${refused.retryAfterMs}, ${left}`)
    t.equal(await run('b'), 'done', 'each key has its own')
    clock.runUntil(60_000)
    for (let times = 0; times < 3; times += 1) t.equal(await run('a'), 'done')
    t.ok((await run('a')) instanceof OverflowError)
    shaper.update({ buckets: { calls: { capacity: 4 } } })
    t.equal(await run('a'), 'done', 'a limit that is raised')
    t.ok((await run('a')) instanceof OverflowError)
    t.throws(() => shaper.update({ buckets: { calls: { rate: '1/s' } } }), {
      message: 'buckets.calls.rate: has no effect on a quota; use capacity, its limit',
    })
    await shaper.drain()
  })
}

t.test('what is left of a quota that is spread leaves evenly until the day is over', async t => {
  const clock = calendar('2026-11-30T23:00:00Z')
  const shaper = createShaper({
    buckets: { tokens: { quota: { limit: 60, per: 'day', spread: true }, capacity: 20, key: 'all' } },
    clock,
  })
  const times: number[] = []
  const waiting = new Set<Promise<unknown>>()
  // Each costs 2, so 30 of them pass in the hour that is left: one each two minutes.
  for (let minute = 0; minute < 60; minute += 1) {
    const call = shaper.run(() => times.push(clock.now()), { cost: { tokens: 2 } as never }).catch(() => undefined)
    waiting.add(call)
    for (let step = 0; step < 6; step += 1) {
      clock.runUntil(clock.now() + 10_000)
      for (let turn = 0; turn < 5; turn += 1) await new Promise(resolve => setImmediate(resolve))
    }
  }
  const today = times.filter(at => at < 3_600_000)
  t.equal(today.length, 30)
  for (const [at, time] of today.entries()) t.ok(Math.abs(time - 120_000 * at) <= 10_000, `${at} at ${time} ms`)
  for (let hours = 0; hours < 24; hours += 1) clock.runUntil(clock.now() + 3_600_000)
  await Promise.all(waiting)
})

t.test('one quota in place of a rate', async t => {
  const clock = createTestClock({ date: '2026-11-30T23:59:00Z' })
  const shaper = createShaper({ quota: { limit: 2, per: 'month' }, clock })
  for (const key of ['a', 'a', 'b']) t.equal(await shaper.run(key, async () => 'done'), 'done')
  const refused = await shaper.run('a', async () => 'done').catch((error: unknown) => error)
  t.match(refused, { name: 'OverflowError', retryAfterMs: 60_001 })
  await clock.advance('60s')
  t.equal(await shaper.run('a', async () => 'done'), 'done')
  shaper.update({ capacity: 1 })
  t.throws(() => shaper.update({ rate: '1/s' }), {
    message: /^rate: has no effect on a quota; use capacity, its limit/,
  })
  t.throws(() => createShaper({ quota: { limit: 2, per: 'month' }, rate: '1/s' } as never), {
    message: 'rate: has no effect beside quota; remove it',
  })
  await shaper.drain()
})

t.test('what is wrong with a quota is told', async t => {
  const make = (calls: object) => () => createShaper({ buckets: { pace: { rate: 5 }, calls: calls as never } })
  t.throws(make({ quota: { limit: 5, per: 'week' } }), /buckets\.calls\.quota\.per: .*"hour", "day" or "month"/)
  t.throws(make({ quota: { limit: -5, per: 'day' } }), /buckets\.calls\.quota\.limit: -5 is not a limit/)
  t.throws(make({ quota: { limit: 5, per: 'day', timeZone: 'Mars' } }), /quota\.timeZone: "Mars" is not a time zone/)
  t.throws(make({ quota: { limit: 5, per: 'day' }, rate: 5 }), /buckets\.calls\.rate: has no effect beside quota/)
  t.throws(make({}), /buckets\.calls\.rate: missing/)
})
