/** One signal for many calls. */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper } from '../../src/index.js'

t.test('one listener on a signal for any number of calls; no warning', async t => {
  const clock = createVirtualClock()
  const shapers = [1, 2].map(() => createShaper({ rate: '10/s', capacity: Infinity, clock }))
  const warnings: Error[] = []
  const warn = (warning: Error) => warnings.push(warning)
  process.on('warning', warn)
  t.teardown(() => process.off('warning', warn))
  const controller = new AbortController()
  const { signal } = controller
  const added = t.capture(signal, 'addEventListener', signal.addEventListener)
  const removed = t.capture(signal, 'removeEventListener', signal.removeEventListener)
  const calls = shapers.flatMap(shaper => Array.from({ length: 3_000 }, () => shaper.admit('k', { signal })))
  clock.runUntil(100)
  controller.abort(new Error('enough'))
  const outcomes = await Promise.allSettled(calls)
  t.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, 4, 'the calls that had left')
  t.match(outcomes[5_999], { reason: { message: 'enough' } })
  for (const shaper of shapers) t.match(shaper.status('k'), { queued: 0 })
  await new Promise(resolve => setImmediate(resolve))
  t.same([added.args().length, removed.args().length, warnings.length], [1, 1, 0])
})

t.test('the listener goes with the last call, and comes again with the next', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 10, clock })
  const controller = new AbortController()
  const { signal } = controller
  for (let round = 0; round < 2; round += 1) {
    const calls = [shaper.admit('k', { signal }), shaper.admit('k', { signal }), shaper.admit('k', { signal })]
    clock.runAll()
    await Promise.all(calls)
  }
  void shaper.admit('k')
  const late = shaper.admit('k', { signal })
  controller.abort(new Error('enough'))
  await t.rejects(late, { message: 'enough' })
  clock.runAll()
})

t.test('a signal that is aborted in the queued event of its call', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 10, clock })
  const controller = new AbortController()
  shaper.on('queued', () => controller.abort(new Error('not worth it')))
  await shaper.admit()
  await t.rejects(shaper.admit('', { signal: controller.signal }), { message: 'not worth it' })
  t.match(shaper.status(), { queued: 0 })
})
