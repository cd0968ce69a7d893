/** What a review of the library has found, one test each. */
import { AsyncLocalStorage } from 'node:async_hooks'
import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { Agent, request } from 'undici'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper, StoreError, shape } from '../../src/index.js'
import { serve } from './upstreams.js'

/** Lets what follows from settled promises happen. */
async function settle(): Promise<void> {
  for (let round = 0; round < 20; round += 1) await turn()
}

t.test('an answer whose cost is no number leaves the reservation, and is reported', async t => {
  const { origin } = await serve(t, (_, response) => response.end('ok'))
  const errors: Error[] = []
  const interceptor = shape({ rate: '1000/s', costAfter: (_, headers) => Number(headers['x-cost']) })
  interceptor.shaper.on('error', error => errors.push(error))
  const dispatcher = new Agent().compose(interceptor)
  t.teardown(() => dispatcher.close())
  const answer = await request(origin, { dispatcher })
  t.equal(await answer.body.text(), 'ok')
  t.match(errors, [{ message: /^costAfter: charge: NaN is not a finite number/ }])
})

t.test('a try after a timeout runs in the async context of its caller', async t => {
  const clock = createVirtualClock()
  const tenant = new AsyncLocalStorage<string>()
  const rules: (string | undefined)[] = []
  const shaper = createShaper({
    ...{ rate: '1000/s', clock },
    retry: (_, attempt) => {
      rules.push(tenant.getStore())
      return attempt < 2 ? 10 : undefined
    },
  })
  const queued: string[] = []
  shaper.on('queued', ({ key }) => queued.push(`${key} in ${tenant.getStore()}`))
  const seen: string[] = []
  const names = ['alice', 'bob', 'carol']
  const calls = names.map(name =>
    tenant.run(name, () =>
      shaper.run(
        name,
        ({ attempt }) => {
          seen.push(`${name} ${attempt} in ${tenant.getStore()}`)
          return attempt === 1 ? new Promise(() => {}) : undefined
        },
        { timeout: 50 },
      ),
    ),
  )
  clock.runUntil(200)
  await settle()
  clock.runUntil(400)
  await Promise.all(calls)
  t.same(rules, names)
  t.same(
    seen.filter(entry => entry.includes(' 2 ')).sort(),
    names.map(name => `${name} 2 in ${name}`),
  )
  t.same(
    queued.filter(entry => !names.some(name => entry === `${name} in ${name}`)),
    [],
  )
})

t.test('map ends with an error, an aborted signal or a break while its source has nothing', async t => {
  const waiting = async function* (): AsyncGenerator<number> {
    yield 1
    await new Promise(() => {})
  }
  const shaper = createShaper({ rate: '1000/s' })
  const failing = async (): Promise<void> => {
    for await (const _ of shaper.map(waiting(), () => Promise.reject(new Error('boom')))) t.fail('nothing comes')
  }
  await t.rejects(failing(), { message: 'boom' })
  const stop = new AbortController()
  const aborted = async (): Promise<void> => {
    for await (const _ of shaper.map(waiting(), item => item, { signal: stop.signal })) stop.abort(new Error('enough'))
  }
  await t.rejects(aborted(), { message: 'enough' })
  for await (const item of shaper.map(waiting(), item => item)) {
    t.equal(item, 1)
    break
  }
  await shaper.drain()
})

t.test('room waits for room in front of credentials', async t => {
  const clock = createVirtualClock()
  const credentials = [{ name: 'a' }, { name: 'b' }]
  const shaper = createShaper({ rate: '1/s', capacity: 2, credentials, clock })
  const refused: unknown[] = []
  let left = 0
  const run = (): void => {
    shaper
      .run(() => {
        left += 1
      })
      .catch(error => refused.push(error))
  }
  for (let call = 0; call < 8; call += 1) run()
  let isThere = false
  void shaper.room().then(() => {
    isThere = true
    run()
  })
  await settle()
  t.equal(isThere, false)
  for (let at = 100; at <= 3_000; at += 100) {
    clock.runUntil(at)
    await settle()
  }
  t.equal(isThere, true)
  clock.runAll()
  await settle()
  t.same([refused, left], [[], 9])
})

t.test('room is noticed when it becomes free before its time', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '1/m', capacity: 3, clock })
  const calls = Array.from({ length: 4 }, () => shaper.run(() => {}).catch(() => {}))
  let roomAt: number | undefined
  void shaper.room().then(() => {
    roomAt = clock.now()
  })
  await settle()
  clock.runUntil(1_000)
  t.equal(roomAt, undefined)
  shaper.clear()
  await settle()
  t.equal(roomAt, 1_000)
  await Promise.all(calls)
})

t.test('room is noticed when a call of a full queue leaves, and when a pause is ended early', async t => {
  const clock = createVirtualClock()
  const moments: number[] = []
  const shaper = createShaper({ rate: '10/s', maxQueued: 1, clock })
  for (let call = 0; call < 2; call += 1) void shaper.run(() => {})
  void shaper.room().then(() => moments.push(clock.now()))
  await settle()
  clock.runUntil(99)
  await settle()
  t.same(moments, [])
  clock.runUntil(100)
  await settle()
  t.same(moments, [100])

  const patient = createShaper({ rate: '10/s', maxWait: '1s', clock })
  patient.pause('5s')
  void patient.room().then(() => moments.push(clock.now()))
  await settle()
  clock.runUntil(200)
  await settle()
  t.same(moments, [100])
  patient.resume()
  await settle()
  t.same(moments, [100, 200])
})

t.test('room waits where too many keys are in use', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', maxKeys: 1, clock })
  let end = (): void => {}
  const call = shaper.run('one', () => new Promise<void>(resolve => (end = resolve)))
  let isThere = false
  const room = shaper.room('other').then(() => {
    isThere = true
  })
  clock.runUntil(3_000)
  await settle()
  t.equal(isThere, false)
  end()
  await call
  clock.runUntil(5_000)
  await room
  t.equal(await shaper.run('other', () => 'admitted'), 'admitted')
})

t.test('map takes the characters of a string', async t => {
  const letters: string[] = []
  for await (const letter of createShaper({ rate: '1000/s' }).map('ab', item => item)) letters.push(letter)
  t.same(letters, ['a', 'b'])
})

t.test('an error of the store has the name of its class, as the others', async t => {
  t.equal(String(new StoreError('it does not answer')), 'StoreError: it does not answer')
})
