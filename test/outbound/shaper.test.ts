/** createShaper on a virtual clock: every moment is exact. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { ClosedError, createShaper, ExpiredError, OverflowError, type ShaperOptions } from '../../src/index.js'

/** A shaper, by default 10/s, and a record of the outcome and time of each call. */
function world(options: Partial<ShaperOptions> = {}) {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 100, clock, ...options } as ShaperOptions)
  const record: string[] = []
  const note = (name: string, promise: Promise<unknown>) =>
    promise.then(
      () => record.push(`${name} done`),
      (error: Error) => record.push(`${name} ${error.name}`),
    )
  /** Runs something that only notes when it is called. */
  const send = (name: string, ...[key = '', more = {}]: [key?: string, more?: object]) =>
    shaper.run(key, () => void record.push(`${name} at ${clock.now()}`), more)
  return { clock, shaper, record, note, send }
}

/** Why a promise is rejected. */
const failure = (promise: Promise<unknown>) =>
  promise.then(
    () => new Error('it was not rejected'),
    (error: Error) => error,
  )

/** Lets promises settle. */
const settled = () => new Promise(resolve => setImmediate(resolve))

t.test('calls go one after another, in order, each in its slot', async t => {
  const { clock, record, send } = world()
  for (const name of ['a', 'b', 'c', 'd']) void send(name)
  t.same(record, ['a at 0'], 'the first at once')
  clock.runAll()
  t.same(record, ['a at 0', 'b at 100', 'c at 200', 'd at 300'])
})

t.test('admit resolves at the release, with the wait', async t => {
  const { clock, shaper } = world()
  t.same(await shaper.admit(), { waitMs: 0 })
  const second = shaper.admit()
  clock.runAll()
  t.same(await second, { waitMs: 100 })
})

t.test('a cost delays the queue like that many calls of cost 1', async t => {
  const { clock, record, send } = world()
  void send('a', '', { cost: 2.5 })
  void send('b', '', { cost: 0 })
  void send('c')
  clock.runAll()
  t.same(record, ['a at 0', 'b at 250', 'c at 250'])
})

t.test('each key has a queue of its own', async t => {
  const { clock, record, send } = world()
  for (const name of ['a', 'b']) for (const key of ['x', 'y']) void send(`${key}${name}`, key)
  clock.runAll()
  t.same(record.toSorted(), ['xa at 0', 'xb at 100', 'ya at 0', 'yb at 100'])
})

t.test('run returns the result of the function, and throws its errors', async t => {
  const { shaper, clock } = world()
  t.equal(await shaper.run(() => 1), 1)
  const results = [
    shaper.run(() => Promise.resolve('later')),
    shaper.run('key', () => {
      throw new Error('at once')
    }),
    shaper.run('key', async () => {
      throw new Error('later')
    }),
    shaper.run('key', () => 4),
  ] as const
  // Rejections are handled before the clock moves.
  const outcomes = Promise.allSettled(results)
  clock.runAll()
  const [later, thrown, rejected, four] = await outcomes
  t.match(later, { value: 'later' })
  t.match(thrown, { reason: { message: 'at once' } })
  t.match(rejected, { reason: { message: 'later' } })
  t.match(four, { value: 4 }, 'nothing else breaks')
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('wrap: the same function in its slot, with key and cost from its arguments', async t => {
  const { shaper, clock } = world()
  const calls: unknown[] = []
  const api = {
    name: 'api',
    get: shaper.wrap(
      function (this: { name: string }, user: string, count: number) {
        calls.push([this.name, user, clock.now()])
        return Promise.resolve(count * 2)
      },
      { key: user => user, cost: (_user, count) => count },
    ),
  }
  const results = [api.get('ann', 3), api.get('bob', 1), api.get('ann', 1)]
  clock.runAll()
  t.same(await Promise.all(results), [6, 2, 2])
  t.same(calls, [
    ['api', 'ann', 0],
    ['api', 'bob', 0],
    ['api', 'ann', 300],
  ])
  const broken = shaper.wrap(() => 1, {
    key: () => {
      throw new Error('no key')
    },
  })
  await t.rejects(broken(), { message: 'no key' })
})

t.test('a full queue: OverflowError has a retryAfterMs of 1 ms more than needed', async t => {
  const { shaper, clock, send } = world({ capacity: 3 })
  for (const name of ['a', 'b', 'c']) void send(name)
  const error = await send('d').catch(error => error)
  t.ok(error instanceof OverflowError)
  t.match(error, { code: 'SHAPER_OVERFLOW', reason: 'overflow', key: '', retryAfterMs: 101 })
  t.match(error.message, /^the queue is full; try again in 101 ms$/)
  clock.runUntil(99)
  await t.rejects(send('d'), OverflowError)
  clock.runUntil(100)
  void send('d')
  t.equal(shaper.status().queued, 2)
  t.match(await failure(shaper.admit('k', { cost: 4 })), { reason: 'too-costly', retryAfterMs: Infinity, key: 'k' })
  clock.runAll()
})

t.test('a queue without a limit', async t => {
  const { clock, shaper, send, record } = world({ capacity: Infinity })
  for (let at = 0; at < 1_000; at += 1) void send(`${at}`)
  t.equal(shaper.status().queued, 999)
  clock.runAll()
  t.equal(record.at(-1), '999 at 99900')
})

t.test('maxWait: on arrival, while waiting, of the shaper and of a call', async t => {
  const { clock, shaper, record, note, send } = world({ maxWait: '150ms' })
  void send('a')
  void send('b')
  const error = await send('c').catch(error => error)
  t.match(error, { code: 'SHAPER_OVERFLOW', reason: 'max-wait', retryAfterMs: 51 })
  void note('patient', shaper.admit('', { maxWait: 200 }))
  t.match(await failure(shaper.admit('', { maxWait: 50 })), { reason: 'max-wait' })
  clock.runAll()
  await settled()
  t.same(record, ['a at 0', 'b at 100', 'patient done'])
})

t.test('waiting past maxWait: ExpiredError', async t => {
  const { clock, shaper } = world({ maxInFlight: 1 })
  let end = (): void => undefined
  const long = shaper.run(() => new Promise<void>(resolve => (end = resolve)))
  const short = shaper.admit('', { maxWait: 1_000 }).catch(error => error)
  clock.runUntil(1_001)
  const error = await short
  t.ok(error instanceof ExpiredError)
  t.match(error, { code: 'SHAPER_EXPIRED', key: '', retryAfterMs: 0 })
  end()
  await long
})

t.test('a slot that falls on maxWait is kept if a call before it is sent a little late', async t => {
  // Of the end of the tick, and of the slot of the second call.
  const lateness = [0, 0.9]
  const clock = createVirtualClock({ lateness: () => lateness.shift() ?? 0 })
  const shaper = createShaper({ rate: '20/s', maxWait: 100, clock })
  const sent: number[] = []
  const calls = [1, 2, 3].map(() => shaper.run(() => void sent.push(clock.now())))
  t.match(await failure(shaper.run(() => 4)), { reason: 'max-wait', retryAfterMs: 51 })
  clock.runAll()
  await Promise.all(calls)
  t.equal(sent.length, 3)
  t.ok(sent[2]! > 100 && sent[2]! <= 101, `${sent}`)
})

t.test('done comes after released, also for a function that returns at once', async t => {
  const { shaper } = world()
  const told: string[] = []
  for (const name of ['released', 'done', 'failed'] as const) {
    shaper.on(name, (event: { readonly id?: string }) => void told.push(`${name} ${event.id}`))
  }
  await shaper.run(() => 1, { id: 'value', cost: 0 })
  await shaper.run(async () => 1, { id: 'promise', cost: 0 })
  const thrown = shaper.run(
    () => {
      throw new Error('at once')
    },
    { id: 'error', cost: 0 },
  )
  await t.rejects(thrown, { message: 'at once' })
  t.same(told, ['released value', 'done value', 'released promise', 'done promise', 'released error', 'failed error'])
})

t.test('maxInFlight limits the running calls of a key; admit takes no place', async t => {
  const { clock, shaper, record, send } = world({ maxInFlight: 2 })
  const ends: (() => void)[] = []
  const long = (key: string) => shaper.run(key, () => new Promise<void>(resolve => ends.push(resolve)))
  void long('x')
  void long('x')
  void send('third', 'x')
  void send('other', 'y')
  clock.runUntil(1_000)
  t.same(record, ['other at 0'])
  t.match(shaper.status('x'), { queued: 1, inFlight: 2 })
  ends[0]!()
  await settled()
  t.same(record, ['other at 0', 'third at 1000'])
  for (let at = 0; at < 3; at += 1) void shaper.admit('z')
  clock.runUntil(2_000)
  t.match(shaper.status('z'), { queued: 0, inFlight: 0 })
  ends[1]!()
})

t.test('abort while queued: the calls behind move up, and no listener stays', async t => {
  const { clock, shaper, record, note, send } = world()
  const { signal, abort } = controller()
  const added = t.capture(signal, 'addEventListener', signal.addEventListener)
  const removed = t.capture(signal, 'removeEventListener', signal.removeEventListener)
  void send('a')
  const b = send('b', '', { signal })
  void send('c')
  void note('b', b)
  clock.runUntil(50)
  t.equal(shaper.status().queued, 2)
  abort(new Error('enough'))
  await t.rejects(b, { message: 'enough' })
  t.match(shaper.status(''), { queued: 1, level: 1.5 })
  clock.runAll()
  t.same(record, ['a at 0', 'b Error', 'c at 100'])
  t.equal(added.args().length, removed.args().length)
  await t.rejects(shaper.admit('', { signal }), { message: 'enough' }, 'aborted already')
  t.match(shaper.status(), { queued: 0 })
})

t.test('a signal that is aborted after the release changes nothing', async t => {
  const { clock, shaper } = world()
  const { signal, abort } = controller()
  const results = [shaper.admit('', { signal }), shaper.admit('', { signal })]
  clock.runAll()
  abort(new Error('too late'))
  t.same(await Promise.all(results), [{ waitMs: 0 }, { waitMs: 100 }])
})

t.test('pause and resume, of one key and of all', async t => {
  const { clock, shaper, record, send } = world()
  for (const key of ['x', 'y']) for (const name of ['1', '2', '3']) void send(`${key}${name}`, key)
  shaper.pause(1_000, 'x')
  clock.runUntil(150)
  t.same(record, ['x1 at 0', 'y1 at 0', 'y2 at 100'])
  t.match(shaper.status('x'), { pausedForMs: 850, nextReleaseMs: 850 })
  shaper.pause(250)
  void send('z1', 'z')
  clock.runUntil(399)
  t.equal(record.length, 3)
  t.equal(shaper.status().pausedForMs, 1)
  clock.runUntil(500)
  t.same(record.slice(3), ['y3 at 400', 'z1 at 400'])
  shaper.resume('x')
  t.same(record.slice(5), ['x2 at 500'])
  shaper.pause(10_000)
  shaper.resume()
  clock.runAll()
  t.same(record.slice(6), ['x3 at 600'])
  await send('later', 'new')
  t.equal(record.at(-1), 'later at 600', 'nothing of the pause of all is left')
})

t.test('a pause is kept while its key has no calls, and rejects calls that cannot wait for its end', async t => {
  const { clock, shaper, record, send } = world({ maxKeys: 4 })
  shaper.pause(5_000, 'x')
  for (let at = 0; at < 50; at += 1) {
    await shaper.admit(`k${at}`)
    clock.runUntil(clock.now() + 40)
  }
  t.equal(shaper.status('x').pausedForMs, 3_000)
  const impatient = send('impatient', 'x', { maxWait: 1_000 })
  t.match(await failure(impatient), { reason: 'max-wait', retryAfterMs: 2_001 })
  void send('patient', 'x', { maxWait: 3_000 })
  clock.runAll()
  t.same(record, ['patient at 5000'])
})

t.test('a pause of all includes keys whose own pause was ended before', async t => {
  const { clock, shaper, record, send } = world()
  await shaper.admit('k')
  const told: unknown[] = []
  shaper.pause(10_000)
  shaper.resume('k')
  shaper.on('paused', event => told.push(event))
  shaper.pause(5_000)
  t.equal(shaper.status('k').pausedForMs, 5_000)
  t.equal(shaper.status('other').pausedForMs, 10_000, 'a longer one stays')
  t.same(told, [{ key: 'k', ms: 5_000 }])
  void send('a', 'k')
  clock.runAll()
  t.same(record, ['a at 5000'])
})

t.test('pausing a new key throws if all places are taken', async t => {
  const { shaper } = world({ maxKeys: 2 })
  shaper.pause(1_000, 'a')
  shaper.pause(1_000, 'b')
  t.throws(() => shaper.pause(1_000, 'c'), { name: 'OverflowError', reason: 'crowded', key: 'c' })
  shaper.pause(2_000, 'b')
  t.equal(shaper.status('b').pausedForMs, 2_000)
})

t.test('queued calls that would now wait too long expire at once', async t => {
  const { clock, shaper, record, note, send } = world()
  void send('a')
  void note('b', send('b', '', { maxWait: 500 }))
  void send('c')
  shaper.pause(1_000, '')
  await settled()
  t.same(record, ['a at 0', 'b ExpiredError'])
  clock.runAll()
  t.equal(record.at(-1), 'c at 1000')
})

t.test('update: levels stay, and queued calls leave at the new rate', async t => {
  const { clock, shaper, record, note, send } = world({ capacity: 5 })
  for (const name of ['a', 'b', 'c', 'd']) void send(name)
  void note('e', send('e'))
  clock.runUntil(100)
  shaper.update({ rate: '2/s', capacity: 3, maxWait: '1200ms' })
  await settled()
  t.same(record, ['a at 0', 'b at 100', 'e ExpiredError'])
  await t.rejects(send('f'), OverflowError)
  clock.runAll()
  t.same(record.slice(3), ['c at 600', 'd at 1100'])
  t.throws(() => shaper.update({ rate: '5/w' }), /^rate: "5\/w" is not a rate; use e\.g\. "5\/s", "6\/30s"$/)
})

t.test('update: a shorter maxWait leaves waiting calls their own', async t => {
  const { clock, shaper, record, note, send } = world({ rate: '1/s', maxWait: '30s' })
  const names = ['first', 'long', 'longer', 'longest', 'plain']
  for (const name of names) {
    void note(name, send(name, '', name.startsWith('long') ? { maxWait: '60s' } : {}))
  }
  clock.runUntil(0)
  shaper.update({ maxWait: '2s' })
  await settled()
  t.same(record, ['first at 0', 'first done', 'plain ExpiredError'])
  clock.runAll()
  t.same(record.slice(3), ['long at 1000', 'longer at 2000', 'longest at 3000'])
  const pausedCall = note('own', send('own', '', { maxWait: '1s' }))
  shaper.pause(3_000)
  await pausedCall
  t.equal(record.at(-1), 'own ExpiredError', 'its own still holds')
})

t.test('drain: new calls are rejected, queued calls run, running calls end', async t => {
  const { clock, shaper, record, note, send } = world()
  void send('a')
  void send('b')
  let end = (): void => undefined
  void shaper.run('other', () => new Promise<void>(resolve => (end = resolve)))
  const drained = shaper.drain()
  void note('drained', drained)
  t.equal(shaper.drain(), drained, 'once')
  await t.rejects(send('c'), ClosedError)
  t.match(shaper.status(), { closed: true, queued: 1, inFlight: 1 })
  clock.runAll()
  await settled()
  t.same(record, ['a at 0', 'b at 100'])
  end()
  await drained
  await createShaper({ rate: 1, capacity: 1 }).drain()
})

t.test('drain with a timeout: the rest are rejected', async t => {
  const { clock, shaper, record, note, send } = world()
  for (const name of ['a', 'b', 'c', 'd']) void note(name, send(name))
  const drained = shaper.drain({ timeout: 150 })
  clock.runUntil(150)
  await drained
  await settled()
  t.same(record.toSorted(), ['a at 0', 'a done', 'b at 100', 'b done', 'c ClosedError', 'd ClosedError'])
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('events', async t => {
  const { clock, shaper } = world({ capacity: 3 })
  const told: unknown[] = []
  for (const name of ['queued', 'released', 'rejected', 'expired', 'cancelled', 'paused', 'resumed', 'idle'] as const) {
    shaper.on(name, (...event: object[]) => told.push([name, clock.now(), ...event]))
  }
  const { signal, abort } = controller()
  const quiet = (promise: Promise<unknown>) => void promise.catch(() => undefined)
  quiet(shaper.admit('k'))
  quiet(shaper.admit('k', { signal }))
  quiet(shaper.admit('k', { maxWait: 500 }))
  quiet(shaper.admit('k', { cost: 2 }))
  abort(new Error('enough'))
  shaper.pause(1_000, 'k')
  clock.runAll()
  shaper.pause(10)
  shaper.resume()
  t.match(told, [
    ['released', 0, { key: 'k', cost: 1, waitMs: 0 }],
    ['idle', 0],
    ['queued', 0, { key: 'k', cost: 1, queued: 1 }],
    ['queued', 0, { queued: 2 }],
    ['rejected', 0, { cost: 2, error: OverflowError }],
    ['cancelled', 0, { key: 'k', cost: 1, waitMs: 0, reason: { message: 'enough' } }],
    ['expired', 0, { waitMs: 0, error: ExpiredError }],
    ['idle', 0],
    ['paused', 0, { key: 'k', ms: 1_000 }],
    ['resumed', 1_000, { key: 'k' }],
    ['paused', 1_000, { key: undefined, ms: 10 }],
    ['resumed', 1_000, { key: undefined }],
  ])
})

t.test('idle() resolves at once where no call waits or runs, else when the last has ended', async t => {
  const { clock, shaper, send } = world()
  await shaper.idle()
  for (const name of ['a', 'b']) void send(name)
  let isIdle = false
  const idle = shaper.idle().then(() => {
    isIdle = true
  })
  clock.runUntil(99)
  await settled()
  t.equal(isIdle, false)
  clock.runUntil(100)
  await idle
  await shaper.idle()
})

t.test('limits of single keys: rates, capacities, and new ones after update', async t => {
  let gold = 50
  const { clock, shaper, record, send } = world({
    limits: key => (key === 'gold' ? { rate: `${gold}/s`, capacity: 3 } : undefined),
  })
  for (let count = 0; count < 3; count += 1) for (const key of ['gold', 'usual']) void send(key, key)
  t.match(await failure(send('gold', 'gold', { cost: 2 })), { reason: 'overflow' })
  clock.runUntil(20)
  gold = 10
  shaper.update({})
  clock.runAll()
  t.same(record, ['gold at 0', 'usual at 0', 'gold at 20', 'usual at 100', 'gold at 120', 'usual at 200'])
})

t.test('limits of single keys, of several buckets: those that are common stay', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({
    buckets: { own: { rate: '1/s' }, all: { rate: '100/s', key: 'all' } },
    limits: key => (key === 'fast' ? { buckets: { own: { rate: '20/s' } } } : undefined),
    clock,
  })
  const times: Record<string, number[]> = { fast: [], slow: [] }
  for (let count = 0; count < 2; count += 1)
    for (const key of ['fast', 'slow']) void shaper.run(key, () => void times[key]!.push(clock.now()))
  clock.runAll()
  t.same(times, { fast: [0, 50], slow: [10, 1_010] })
})

t.test('limits that are wrong reject the calls of their key, and no others', async t => {
  const { shaper, send } = world({
    limits: key =>
      key === 'e'
        ? (Promise.reject(new Error('unseen')) as never)
        : ({ a: { rate: 'x' }, b: { burts: 5 }, c: { buckets: { d: {} } } }[key] as never),
  })
  for (const [key, message] of [
    ['a', /^limits of "a": rate: "x" is not a rate/],
    ['b', /^limits of "b": burts: unknown key; did you mean "burst"\?/],
    ['c', /^limits of "c": buckets: there is only one bucket/],
  ] as const) {
    await t.rejects(send('', key), { name: 'RangeError', message })
    t.throws(() => shaper.pause(5, key), { name: 'RangeError' })
  }
  await t.rejects(send('', 'e'), { name: 'TypeError', message: /^limits: it returned a promise/ })
  await send('', 'other')
  t.equal(shaper.status().keys, 1)
  t.throws(() => createShaper({ rate: 5, credentials: [{ name: 'one' }], limits: () => undefined }), {
    message: /^limits: /,
  })
})

t.test('a listener that throws is reported, and has no effect on others', async t => {
  const { clock, shaper, record, send } = world()
  const thrown: Error[] = []
  t.intercept(process, 'nextTick', { value: (report: () => void) => thrown.push(t.throws(report) as Error) })
  shaper.on('released', () => {
    throw new Error('mine')
  })
  void send('a')
  void send('b')
  clock.runAll()
  t.same(record, ['a at 0', 'b at 100'])
  t.equal(thrown.length, 2)
})

t.test('status', async t => {
  const { clock, shaper, send } = world()
  t.same(shaper.status('x'), { key: 'x', level: 0, queued: 0, inFlight: 0, pausedForMs: 0, nextReleaseMs: 0 })
  for (const name of ['a', 'b', 'c']) void send(name, 'x')
  void send('a', 'y')
  clock.runUntil(150)
  t.same(shaper.status(), {
    queued: 1,
    inFlight: 0,
    keys: 2,
    pausedForMs: 0,
    closed: false,
    fullest: [
      { key: 'x', level: 1.5, queued: 1, inFlight: 0, pausedForMs: 0, nextReleaseMs: 50 },
      { key: 'y', level: 0, queued: 0, inFlight: 0, pausedForMs: 0, nextReleaseMs: 0 },
    ],
  })
  clock.runAll()
})

t.test('a slow send delays the next ones', async t => {
  // Of the end of the tick, and of the slots of the second call and those after it.
  const lateness = [0, 0, 0, 7, 0]
  const clock = createVirtualClock({ lateness: () => lateness.shift() ?? 0 })
  const shaper = createShaper({ rate: '10/s', capacity: 10, clock })
  const sent: number[] = []
  for (let at = 0; at < 5; at += 1) void shaper.run(() => void sent.push(clock.now()))
  clock.runAll()
  t.same(sent, [0, 100, 200, 307, 407])
})

t.test('maxKeys bounds the number of keys', async t => {
  const { clock, shaper } = world({ maxKeys: 3 })
  for (const key of ['a', 'a', 'b', 'b', 'c', 'c']) void shaper.admit(key)
  t.match(await failure(shaper.admit('d')), { reason: 'crowded', retryAfterMs: 1_000 })
  clock.runAll()
  clock.runUntil(1_000)
  await shaper.admit('d')
  for (let at = 0; at < 10_000; at += 1) {
    void shaper.admit(`${at}`)
    clock.runUntil(clock.now() + 101)
  }
  t.ok(shaper.status().keys <= 3)
})

t.test('above maxKeys no key leaves faster than its rate: one that still owes time is not forgotten', async t => {
  const { clock, shaper } = world({ rate: '1/s', maxKeys: 3 })
  const ran: Record<string, number[]> = {}
  let crowded = 0
  for (let at = 0; at < 400; at += 1) {
    const key = `k${at % 4}`
    const call = shaper.run(
      key,
      () => {
        ran[key] = [...(ran[key] ?? []), clock.now()]
      },
      { maxWait: 0 },
    )
    call.catch(error => {
      crowded += error.reason === 'crowded' ? 1 : 0
    })
    await settled()
    clock.runUntil(clock.now() + 50)
  }
  t.ok(crowded > 0)
  for (const times of Object.values(ran)) {
    t.notOk(
      times.slice(1).some((time, at) => time - times[at]! < 999.5),
      `${times}`,
    )
  }
  t.ok(Object.values(ran).flat().length >= 3 * 17, 'places are used again as soon as nothing is owed')
})

t.test('a debt is not forgotten among any number of other keys, in each of several buckets', async t => {
  const { clock, shaper } = world({
    rate: undefined as never,
    capacity: undefined as never,
    maxKeys: 20,
    buckets: { requests: { rate: '10/s' }, tokens: { rate: '1/s' }, all: { rate: '10000/s', key: 'all' } },
  })
  await shaper.run('debtor', ({ charge }) => charge({ tokens: 500 }), { cost: { tokens: 1 } })
  void shaper.run('late', ({ charge }) => void clock.at(40_000, () => charge({ tokens: 500 })))
  let admitted = 0
  for (let at = 0; at < 2_000; at += 1) {
    void shaper.admit(`${at}`, { cost: { tokens: 0.05 } }).then(
      () => {
        admitted += 1
      },
      () => undefined,
    )
    clock.runUntil(clock.now() + 25)
  }
  await settled()
  t.ok(admitted > 500, `${admitted} others were admitted`)
  t.ok(shaper.status().keys <= 20)
  t.equal(Math.round(shaper.status('debtor').nextReleaseMs), 450_000)
  const owed = await failure(shaper.admit('late', { maxWait: '1s' }))
  t.match(owed, { reason: 'max-wait' }, 'what is charged after its key was forgotten')
})

t.test('maxQueued bounds the queued calls of all keys', async t => {
  const { clock, shaper } = world({ maxQueued: 2 })
  for (const key of ['a', 'b', 'a', 'b']) void shaper.admit(key)
  t.match(await failure(shaper.admit('a')), { reason: 'crowded' })
  await shaper.admit('c')
  clock.runAll()
})

t.test('all bad options are reported together, each with a good value', async t => {
  const bad = { rate: '5/w', capcity: 3, capacity: 0, maxWait: 'soon', maxInFlight: 0.5, store: { type: 'redis' } }
  t.throws(() => createShaper(bad as never), {
    name: 'RangeError',
    message: [
      'rate: "5/w" is not a rate; use e.g. "5/s", "6/30s"',
      'capacity: 0 is not a capacity; use a number of cost units above 0, e.g. 100',
      'maxWait: "soon" is not a duration; use e.g. "10s", or a number of ms',
      'maxInFlight: 0.5 is not a number of calls; use e.g. 10',
      'store.url: missing; give url or cluster',
      'capcity: unknown key; did you mean "capacity"?',
    ].join('\n'),
  })
  t.throws(() => createShaper({} as never), { message: /^rate: missing; [^\n]*$/ })
  t.throws(() => createShaper(5 as never), TypeError)
  t.throws(() => createShaper({ rate: 5, capacity: Infinity, store: { type: 'redis', url: 'redis://a' } }), /capacity/)
  t.throws(() => createShaper({ rate: 5, capacity: 5, clock: {} as never }), /^clock: /)
  t.throws(() => createShaper({ rate: 5, capacity: 5, store: { type: 'reds' } as never }), /store\.type: "reds" is not/)
  const shaper = createShaper({ rate: 5, capacity: 5, maxWait: undefined } as never)
  await t.rejects(shaper.admit('', { cost: -1 }), RangeError)
  await t.rejects(shaper.admit('', { maxWait: Number.NaN }), RangeError)
  await t.rejects(shaper.admit(5 as never), TypeError)
  await t.rejects(shaper.run('key' as never), TypeError)
  t.throws(() => shaper.pause(Number.NaN), RangeError)
  t.match(shaper.status(), { queued: 0, inFlight: 0, keys: 0 })
})

function controller() {
  const controller = new AbortController()
  return { signal: controller.signal, abort: (reason: Error) => controller.abort(reason) }
}

t.test('retryAfterMs is enough: a timer of that length, and nothing else, and the call is let in', async t => {
  const shapers = [
    createShaper({ rate: '130/s', capacity: 1 }),
    createShaper({ rate: '130/s', capacity: 100, maxWait: 0 }),
  ]
  for (const shaper of shapers) {
    let again = 0
    const times: number[] = []
    for (let tries = 0; tries < 200 && times.length < 40; tries += 1) {
      await shaper.admit().catch(() => (again += 1))
      const error = await failure(shaper.admit())
      // After a stall of 8 ms there is room for the second call. Then there is nothing to wait for.
      if (error instanceof OverflowError) times.push(error.retryAfterMs)
      await sleep(error instanceof OverflowError ? error.retryAfterMs : 20)
    }
    t.equal(times.length, 40)
    t.equal(again, 0, `${again} of 40 were rejected again`)
    t.ok(times.every(Number.isInteger), `whole: ${times}`)
    t.ok(Math.max(...times) <= 9, `not more than it takes: ${times}`)
  }
})
