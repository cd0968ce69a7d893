/** The end of a shaper. */
import t from 'tap'
import { Agent, request } from 'undici'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper, shape } from '../../src/index.js'
import { serve } from './upstreams.js'

const settled = () => new Promise(resolve => setImmediate(resolve))

t.test('a second drain may shorten the time of the first, not lengthen it', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 100, clock })
  const fates: string[] = []
  for (let at = 0; at < 10; at += 1) {
    shaper
      .run(() => 1)
      .then(
        () => fates.push('sent'),
        (error: Error) => fates.push(error.name),
      )
  }
  const job = shaper.drain()
  clock.runUntil(150)
  t.equal(shaper.drain({ timeout: 200 }), job)
  shaper.drain({ timeout: 10_000 })
  shaper.drain()
  clock.runUntil(349)
  await settled()
  t.match(shaper.status(), { queued: 6 })
  clock.runUntil(350)
  await job
  await settled()
  t.same(fates, [...Array(4).fill('sent'), ...Array(6).fill('ClosedError')])
  await shaper.drain({ timeout: 5 })
})

t.test('an admitted request is sent again during a drain', async t => {
  let asked = 0
  const { origin } = await serve(t, (_, res) => {
    asked += 1
    res.writeHead(asked <= 3 ? 503 : 200).end()
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const limit = shape({ rate: '50/s', capacity: 100, pauseOn: false, retry: { status: [503], max: 5 } })
  const dispatcher = agent.compose(limit)
  const answers = [1, 2, 3].map(() => request(origin, { dispatcher }))
  const drained = limit.shaper.drain()
  t.same(
    (await Promise.all(answers)).map(({ statusCode }) => statusCode),
    [200, 200, 200],
  )
  await Promise.all((await Promise.all(answers)).map(({ body }) => body.dump()))
  await drained
  t.match(shaper(limit), { queued: 0, inFlight: 0, closed: true })
})

const shaper = (limit: ReturnType<typeof shape>) => limit.shaper.status()
