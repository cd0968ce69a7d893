/** createTestClock: what users test their own code with. */
import t from 'tap'
import { createShaper, createTestClock, LeakyBucket } from '../../src/index.js'

t.test('time stands still until it is moved, and calls go on between its steps', async t => {
  const clock = createTestClock()
  const shaper = createShaper({ rate: '1/s', clock, retry: (_error, attempt) => (attempt < 2 ? '5s' : undefined) })
  const seen: string[] = []
  const call = async (name: string) => {
    await shaper.run(async ({ attempt }) => {
      await null
      seen.push(`${name} at ${clock.now()}`)
      if (name === 'b' && attempt === 1) throw new Error('again')
    })
    // Made by a call that has ended.
    if (name === 'a') await call('c')
  }
  const calls = ['a', 'b'].map(call)
  await clock.advance(999)
  t.same(seen, ['a at 0'])
  await clock.advance('1ms')
  t.same(seen, ['a at 0', 'b at 1000'])
  await clock.advance('1h')
  t.same(seen, ['a at 0', 'b at 1000', 'c at 2000', 'b at 6000'])
  t.equal(clock.now(), 1_000 + 3_600_000)
  await Promise.all(calls)
})

t.test('timeouts, pauses and levels follow it', async t => {
  const clock = createTestClock()
  const shaper = createShaper({ rate: '10/s', capacity: 10, clock })
  const slow = shaper.run(() => new Promise(() => {}), { timeout: '30s' }).catch((error: Error) => error.name)
  shaper.pause('1m')
  const paused = shaper.run(() => clock.now())
  const bucket = new LeakyBucket({ rate: '1/s', capacity: 5, clock })
  bucket.tryAdd(5)
  await clock.advance('2m')
  t.equal(await slow, 'TimeoutError')
  t.equal(await paused, 60_000)
  t.equal(bucket.level, 0)
})

t.test('a time that is none is refused', async t => {
  for (const time of [-1, 'soon', undefined, Infinity])
    await t.rejects(createTestClock().advance(time as never), RangeError)
})
