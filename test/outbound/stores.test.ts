/** Shapers that share a store: one rate, one pause. */
import t from 'tap'
import type { Dispatcher } from 'undici'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import { createShaper, type RunContext, type ShaperOptions, StoreError, shape } from '../../src/index.js'
import type { GiveBackRequest, Store } from '../../src/sharing/store.js'
import { deferredStore } from '../../src/stores/deferred.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { startRedis } from '../servers/redis.js'
import { through } from '../stores/through.js'
import { gaps } from './upstreams.js'

const settled = () => new Promise(resolve => setImmediate(resolve))

/** Two shapers on one store in memory, and the time of each call. */
async function pair(options: Partial<ShaperOptions> = {}) {
  const clock = createVirtualClock()
  const store = createMemoryStore({ clock })
  const record: string[] = []
  const shapers = [0, 1].map(() =>
    createShaper({ rate: '10/s', capacity: 20, clock, store, ...options } as ShaperOptions),
  )
  const send = (place: number, name: string, key = '', more = {}) =>
    shapers[place]!.run(key, () => void record.push(`${name} at ${clock.now()}`), more)
  return { clock, store, shapers: shapers as [(typeof shapers)[0], (typeof shapers)[0]], record, send }
}

/** Lets time pass, and promises settle on the way. */
async function pass(clock: ReturnType<typeof createVirtualClock>, until: number) {
  while (clock.now() < until) {
    clock.runUntil(Math.min(until, clock.now() + 5))
    await settled()
  }
}

/** The same store behind a network delay of `ms` each way. */
function distant(store: Store, clock: VirtualClock, ms: number): Store {
  return through(
    store,
    run =>
      new Promise(resolve => {
        clock.at(clock.now() + ms, () => {
          const value = run()
          clock.at(clock.now() + ms, () => resolve(value))
        })
      }),
  )
}

// These tests wait more than they compute.
t.jobs = 4

t.test('calls wait in order until the store is ready; then two shapers share one rate', async t => {
  const { clock, record, send, shapers } = await pair()
  for (const place of [0, 1]) for (const name of ['a', 'b', 'c', 'd']) void send(place, `${place}${name}`)
  t.same(record, [], 'the store has had no call yet')
  t.match(shapers[0].status(), { queued: 4, store: 'shared' })
  await pass(clock, 1_000)
  const times = record.map(line => Number(line.split(' at ')[1]))
  t.equal(times.length, 8)
  t.ok(Math.min(...gaps(times)) >= 99.5, `${times}`)
  t.ok(times.at(-1)! <= 705, `${times}`)
  for (const place of [0, 1]) {
    const own = record.filter(line => line.startsWith(`${place}`)).map(line => line[1])
    t.same(own, ['a', 'b', 'c', 'd'])
  }
})

t.test('one capacity', async t => {
  const { clock, send, shapers } = await pair({ capacity: 5 })
  await settled()
  const calls = [0, 1, 0, 1, 0, 1].map((place, at) => send(place, `${at}`))
  const last = await calls[5]!.catch((error: Error) => error)
  t.match(last, { code: 'SHAPER_OVERFLOW', retryAfterMs: 101 })
  await pass(clock, 600)
  await Promise.all(calls.slice(0, 5))
  t.match(shapers[0].status(), { queued: 0 })
})

t.test('with a store, too, two releases are never closer than a period less 0.5 ms, even if one was late', async t => {
  let wakes = 0
  const clock = createVirtualClock({ lateness: () => (wakes++ % 5 === 0 ? 6 : 0) })
  const store = createMemoryStore({ clock })
  const shaper = createShaper({ rate: '20/s', capacity: 200, clock, store: store as never })
  const times: number[] = []
  const calls = Array.from({ length: 100 }, () => shaper.run(() => void times.push(clock.now())))
  await pass(clock, 5_200)
  await Promise.all(calls)
  t.ok(Math.min(...gaps(times)) >= 49.5 - 1e-6, `the least gap is ${Math.min(...gaps(times))} ms`)
  t.ok(times.at(-1)! - times[0]! < 5_000, 'and the rate is kept')
})

t.test('a call that is aborted during such a delay does not run, and costs the others nothing', async t => {
  let late = 0
  const clock = createVirtualClock({ lateness: () => late })
  const shaper = createShaper({ rate: '10/s', capacity: 200, clock, store: createMemoryStore({ clock }) as never })
  await shaper.admit()
  const times: number[] = []
  const note = () => void times.push(clock.now())
  const controller = new AbortController()
  const calls = [shaper.run(note), shaper.run(note, { signal: controller.signal }), shaper.run(note)]
  await pass(clock, 90)
  late = 6
  await pass(clock, 110)
  late = 0
  await pass(clock, 203)
  t.same(times, [106], 'the second has its slot at 200, and may go at 205.5')
  controller.abort(new Error('enough'))
  await t.rejects(calls[1]!, { message: 'enough' })
  await pass(clock, 400)
  await calls[2]
  t.equal(times.length, 2)
  t.ok(times[1]! >= 205.4 && times[1]! <= 306, `${times}`)
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

for (const [maxWait, costsBack] of [
  ['30s', []],
  ['10ms', [1]],
] as const) {
  t.test(`a call that is put back behind a slow connection counts in the store while it waits: ${maxWait}`, async t => {
    const clock = createVirtualClock()
    const memory = createMemoryStore({ clock })
    const given: GiveBackRequest[] = []
    const store: Store = {
      ...through(memory, run => run()),
      // Two slots are under way at once.
      claim: async request => {
        await new Promise<void>(resolve => clock.at(clock.now() + 3, resolve))
        return memory.claim({ ...request, ahead: 8 })
      },
      giveBack: request => {
        given.push(request)
        return memory.giveBack(request)
      },
    }
    const intercept = shape({ rate: '1000/s', capacity: 2, maxWait, key: 'all', store: store as never, clock })
    await settled()
    intercept.shaper.pause(5)
    const failed: string[] = []
    const handler = {
      onRequestStart: () => undefined,
      onResponseError: (_: unknown, error: Error) => void failed.push(error.name),
    }
    // Its connection never opens.
    const send = intercept(() => true)
    for (const path of ['/first', '/second']) send({ origin: 'http://127.0.0.1', path, method: 'GET' }, handler)
    await pass(clock, 40)
    const slots = given.filter(({ slot }) => slot !== undefined)
    const costs = given.map(({ cost }) => cost).filter(cost => cost > 0)
    t.ok(slots.length > 0, 'the second has had a slot, and gave it back')
    t.same(costs, costsBack, 'its cost leaves the level only if it expires')
    t.same(failed, costsBack.length > 0 ? ['ExpiredError'] : [])
    // A waiting call would keep the process alive.
    const drained = intercept.shaper.drain({ timeout: 0 })
    await pass(clock, 45)
    await drained
  })
}

t.test('with a store, too, a charge above the capacity and then the true one leave what the call costs', async t => {
  for (const distance of [0, 1.5]) {
    const clock = createVirtualClock()
    const store = distant(createMemoryStore({ clock }), clock, distance)
    const shaper = createShaper({ rate: '1/s', capacity: 10, clock, store: store as never })
    const wait = (ms: number) => new Promise<void>(resolve => clock.at(clock.now() + ms, resolve))
    let runs = 0
    async function loop(): Promise<void> {
      const call = shaper.run(async ({ charge }) => {
        runs += 1
        charge(50)
        await wait(2)
        // The first one may not be answered yet.
        charge(70)
        charge(1)
      })
      await call.catch(() => wait(10))
      if (clock.now() < 10_000) await loop()
    }
    const loops = [loop(), loop()]
    await pass(clock, 13_000)
    await Promise.all(loops)
    t.ok(runs >= 9 && runs <= 13, `${runs} with answers after ${2 * distance} ms`)
  }
})

t.test(
  'a call that the store told to wait for a debt leaves when that is taken out while the answer is on its way',
  async t => {
    const clock = createVirtualClock()
    const shaper = createShaper({
      rate: '1/s',
      capacity: 20,
      clock,
      store: distant(createMemoryStore({ clock }), clock, 2) as never,
    })
    const step = async (until: number) => {
      for (let at = clock.now() + 1; at <= until; at += 1) {
        clock.runUntil(at)
        await settled()
      }
    }
    await step(10)
    const charges: RunContext['charge'][] = []
    void shaper.run(({ charge }) => void charges.push(charge))
    await step(30)
    charges[0]!(15)
    await step(50)
    const times: number[] = []
    const call = shaper.run(() => void times.push(clock.now()))
    // The store has decided.
    await step(53)
    charges[0]!(1)
    await step(20_000)
    await call
    t.ok(times[0]! >= 1_000 && times[0]! < 1_100, `${times}`)
  },
)

t.test('a store that opens after the end is closed', async t => {
  const late = deferredStore()
  await late.close()
  const memory = createMemoryStore({ clock: createVirtualClock() })
  const closed = t.capture(memory, 'close', memory.close)
  await late.opened(memory)
  t.equal(closed.args().length, 1)
  await t.rejects(async () => late.beat('a'), { code: 'SHAPER_STORE_UNAVAILABLE' })
})

for (const [rate, capacity, cost] of [
  [97, 5, 2],
  [100, 10, 4],
  [50, 3, 0.7],
] as const) {
  t.test(`with a store, too, retryAfterMs is enough for a cost of ${cost}, of ${capacity}`, async t => {
    const clock = createVirtualClock()
    const shaper = createShaper({ rate, capacity, clock, store: createMemoryStore({ clock }) as never })
    const offer = async (): Promise<number> => {
      let retryAfterMs = 0
      shaper.admit('', { cost }).catch(error => {
        retryAfterMs = error.retryAfterMs
      })
      await settled()
      return retryAfterMs
    }
    await settled()
    const again: string[] = []
    for (let round = 0; round < 60; round += 1) {
      let retryAfterMs = await offer()
      for (; retryAfterMs === 0; retryAfterMs = await offer()) await pass(clock, clock.now() + 1.7)
      await pass(clock, clock.now() + retryAfterMs)
      const then = await offer()
      if (then > 0) again.push(`${then} after ${retryAfterMs}`)
    }
    t.same(again, [], 'no call is refused again')
    await pass(clock, clock.now() + 500)
    t.equal(shaper.status().queued, 0)
  })
}

t.test('with a store, too, calls that a pause holds count in retryAfterMs', async t => {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 3, clock, store: createMemoryStore({ clock }) as never })
  await settled()
  shaper.pause('5s')
  for (let at = 0; at < 3; at += 1) void shaper.admit()
  await pass(clock, 2_000)
  const error = await shaper.admit().catch((error: { retryAfterMs: number }) => error)
  t.match(error, { code: 'SHAPER_OVERFLOW' })
  const { retryAfterMs } = error as { retryAfterMs: number }
  t.ok(retryAfterMs >= 3_000 && retryAfterMs <= 3_120, `${retryAfterMs}`)
  await pass(clock, clock.now() + retryAfterMs)
  const last = shaper.admit()
  await pass(clock, 6_000)
  await last
})

t.test('a drained shaper is no longer registered', async t => {
  const { clock, shapers, store } = await pair()
  await pass(clock, 10)
  t.equal(store.beat('witness').count, 3)
  await shapers[0].drain()
  t.equal(store.beat('witness').count, 2)
  await shapers[1].drain()
  t.equal(store.beat('witness').count, 1)
})

t.test('before the store is ready a call can be aborted or expire', async t => {
  const { clock, record, send } = await pair()
  const controller = new AbortController()
  const first = send(0, 'a', '', { signal: controller.signal }).catch((error: Error) => error)
  controller.abort(new Error('enough'))
  void send(0, 'b')
  t.match(await first, { message: 'enough' })
  await pass(clock, 10)
  t.same(
    record.map(line => line[0]),
    ['b'],
  )
})

t.test('a pause of one shaper is a pause of all within a second', async t => {
  const { clock, shapers, record, send } = await pair()
  await settled()
  const paused: unknown[] = []
  shapers[1].on('paused', event => paused.push(event))
  shapers[0].pause(5_000, 'k')
  void send(1, 'a', 'k')
  void send(1, 'free', 'other')
  await pass(clock, 3_000)
  t.same(record, ['free at 0'])
  t.equal(paused.length, 1)
  t.match(paused[0], { key: 'k' })
  shapers[0].pause(5_000)
  await pass(clock, 4_900)
  void send(1, 'late', 'third')
  await pass(clock, 7_990)
  t.same(record, ['free at 0'], 'those of all, too')
  await pass(clock, 8_200)
  t.same(
    record
      .slice(1)
      .map(line => line.split(' ')[0])
      .toSorted(),
    ['a', 'late'],
  )
})

t.test('with a store, requests leave at the whole rate, also where connections open late', async t => {
  for (const connectMs of [0, 30]) {
    const clock = createVirtualClock()
    const intercept = shape({
      rate: '20/s',
      capacity: 40,
      key: 'all',
      store: createMemoryStore({ clock }) as never,
      clock,
    })
    const controller = { abort: () => undefined } as unknown as Dispatcher.DispatchController
    const times: number[] = []
    const send = intercept((_, handler) => {
      clock.at(clock.now() + connectMs, () => {
        times.push(clock.now())
        handler.onRequestStart!(controller, {})
        handler.onResponseStart!(controller, 200, {})
        handler.onResponseEnd!(controller, {})
      })
      return true
    })
    await settled()
    for (let at = 0; at < 20; at += 1)
      send({ origin: 'http://127.0.0.1', path: '/', method: 'GET' }, { onRequestStart() {} })
    await pass(clock, 4_000)
    t.equal(times.length, 20)
    t.ok(Math.min(...gaps(times)) >= 48, `with ${connectMs} ms to connect: ${gaps(times)}`)
    t.ok(times.at(-1)! - times[0]! <= 19 * (50 + connectMs) + 20, `with ${connectMs} ms to connect: ${times}`)
  }
})

t.test('two hundred answers that ask for one pause move its end a few times, and tell the store as often', async t => {
  const clock = createVirtualClock()
  const memory = createMemoryStore({ clock })
  let told = 0
  const exchange: Store['exchange'] = (name, news) => {
    if (news !== undefined) told += 1
    return memory.exchange(name, news)
  }
  const store = { ...through(memory, run => run()), exchange }
  const intercept = shape({ rate: '1000/s', capacity: 400, key: 'all', store: store as never, clock })
  const { shaper } = intercept
  const answers: (() => void)[] = []
  const controller = { abort: () => undefined } as unknown as Dispatcher.DispatchController
  const send = intercept((_, handler) => {
    handler.onRequestStart!(controller, {})
    answers.push(() => {
      handler.onResponseStart!(controller, 429, { 'retry-after': '1' })
      handler.onResponseEnd!(controller, {})
    })
    return true
  })
  await settled()
  for (let at = 0; at < 200; at += 1)
    send({ origin: 'http://127.0.0.1', path: '/', method: 'GET' }, { onRequestStart() {} })
  for (let at = 1; answers.length < 200; at += 1) {
    clock.runUntil(at)
    await settled()
  }
  const ends = new Set<number>()
  for (const answer of answers) {
    clock.runUntil(clock.now() + 1)
    answer()
    ends.add(Math.round(clock.now() + shaper.status('').pausedForMs))
    t.ok(shaper.status('').pausedForMs >= 1_000, 'no answer is ignored')
  }
  t.equal(ends.size, 3, 'it grows in steps of 100 ms')
  t.equal(told, 3)
})

t.test('a pause that was ended here is not learned again', async t => {
  const { clock, shapers, record, send } = await pair()
  await settled()
  shapers[0].pause(10_000, 'k')
  void send(0, 'a', 'k')
  void send(0, 'b', 'k')
  await pass(clock, 1_500)
  shapers[0].resume('k')
  await pass(clock, 4_000)
  t.equal(record.length, 2)
})

t.test('a store of one\u2019s own is not closed; one that is gone leaves each its share', async t => {
  const clock = createVirtualClock()
  const memory = createMemoryStore({ clock })
  let closed = false
  let gone = false
  const store: Store = {
    ...through(memory, run => (gone ? Promise.reject(new StoreError('gone')) : run())),
    close: async () => {
      closed = true
    },
  }
  const shaper = createShaper({ rate: '10/s', capacity: 20, clock, store: store as never })
  await shaper.admit()
  gone = true
  await pass(clock, 1_500)
  t.equal(shaper.status().store, 'alone')
  const sent: number[] = []
  for (let at = 0; at < 3; at += 1) void shaper.run(() => void sent.push(clock.now()))
  await pass(clock, 2_000)
  t.equal(sent.length, 3)
  await shaper.drain()
  t.equal(closed, false)
})

for (const kind of ['without a store', 'with a store', 'with a store 3 ms away']) {
  const create = (clock: VirtualClock, options: Partial<ShaperOptions>) => {
    const memory = createMemoryStore({ clock })
    const store = kind.endsWith('away') ? distant(memory, clock, 1.5) : memory
    return createShaper({
      rate: '10/s',
      clock,
      ...(kind !== 'without a store' && { store }),
      ...options,
    } as ShaperOptions)
  }

  t.test(`${kind}: a burst leaves together, and then the rate holds`, async t => {
    const clock = createVirtualClock()
    const shaper = create(clock, { burst: 20, capacity: 40 })
    await pass(clock, 200)
    const times: number[] = []
    for (let at = 0; at < 30; at += 1) void shaper.run(() => void times.push(clock.now() - 200))
    await pass(clock, 5_000)
    t.equal(times.length, 30)
    t.ok(times[19]! <= 100, `the first twenty at ${times.slice(0, 20)}`)
    t.ok(Math.min(...gaps(times.slice(21))) >= 99, `then at ${times.slice(20)}`)
  })

  t.test(`${kind}: a call that has cost less than reserved lets the next one leave sooner`, async t => {
    const clock = createVirtualClock()
    const shaper = create(clock, { capacity: 100 })
    await pass(clock, 200)
    const times: number[] = []
    const call = ({ charge }: RunContext): void => {
      times.push(clock.now() - 200)
      charge(1)
    }
    for (let at = 0; at < 4; at += 1) void shaper.run(call, { cost: 10 })
    await pass(clock, 6_000)
    t.equal(times.length, 4)
    // Each reserves a second, and costs a tenth of it.
    t.ok(times[3]! <= 300 + 20 && Math.min(...gaps(times)) >= 98, `at ${times}`)
  })
}

for (const kind of ['without a store', 'with a store', 'with a store 3 ms away']) {
  const rates = [
    { from: '3/m', at: 500, to: '10/s', wanted: [0, 597.5, 697.5] },
    { from: '3/m', at: 2, to: '10/s', wanted: [0, 102, 202] },
  ]
  for (const { from, at, to, wanted } of rates) {
    t.test(`${kind}: update from ${from} to ${to} after ${at} ms reaches the calls that wait`, async t => {
      const clock = createVirtualClock()
      const memory = createMemoryStore({ clock })
      const distance = kind.endsWith('away') ? 1.5 : 0
      const store = distance > 0 ? distant(memory, clock, distance) : memory
      const shaper = createShaper({
        rate: from,
        capacity: 10,
        clock,
        ...(kind !== 'without a store' && { store: store as never }),
      })
      await pass(clock, 200)
      const start = clock.now()
      const times: number[] = []
      const calls = wanted.map(() => shaper.run(() => void times.push(clock.now() - start)))
      await pass(clock, start + at)
      shaper.update({ rate: to })
      await pass(clock, start + 30_000)
      await Promise.all(calls)
      // An answer of the store comes later by the way there and back.
      const late = times.map((time, place) => time - wanted[place]!)
      t.ok(Math.min(...late) >= -0.5 && Math.max(...late) <= 5 + 2 * 2 * distance, `at ${times}, wanted ${wanted}`)
    })
  }

  t.test(`${kind}: update to a slower rate reaches the calls that wait`, async t => {
    const clock = createVirtualClock()
    const memory = createMemoryStore({ clock })
    const store = kind.endsWith('away') ? distant(memory, clock, 1.5) : memory
    const shaper = createShaper({
      rate: '10/s',
      capacity: 10,
      clock,
      ...(kind !== 'without a store' && { store: store as never }),
    })
    await pass(clock, 200)
    const times: number[] = []
    const calls = Array.from({ length: 4 }, () => shaper.run(() => void times.push(clock.now() - 200)))
    await pass(clock, 250)
    shaper.update({ rate: '1/s' })
    await pass(clock, 4_000)
    await Promise.all(calls)
    // With a store the next one keeps a whole new period from the one that was sent last.
    t.ok(times[1]! >= 549.5 && times[1]! <= 1_010, `at ${times}`)
    t.ok(Math.min(...gaps(times.slice(1))) >= 999 && times[3]! <= times[1]! + 2_010, `at ${times}`)
  })

  t.test(`${kind}: calls that would now wait too long expire at once`, async t => {
    const clock = createVirtualClock()
    const memory = createMemoryStore({ clock })
    const store = kind.endsWith('away') ? distant(memory, clock, 1.5) : memory
    const shaper = createShaper({
      rate: '10/s',
      capacity: 10,
      clock,
      ...(kind !== 'without a store' && { store: store as never }),
    })
    await pass(clock, 200)
    void shaper.run(() => undefined)
    const expired: number[] = []
    for (let at = 0; at < 2; at += 1) {
      const call = shaper.run(() => undefined, { maxWait: '5s' })
      call.catch(({ code }: { code: string }) => {
        t.equal(code, 'SHAPER_EXPIRED')
        expired.push(clock.now())
      })
    }
    await pass(clock, 250)
    shaper.update({ rate: '2/m' })
    await settled()
    t.same(expired, [250, 250])
  })
}

t.test('Redis: two shapers share one rate, and no call is lost', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.kill())
  const store = { type: 'redis', url: redis.url, prefix: 'test:' } as const
  const shapers = [0, 1].map(() => createShaper({ rate: '100/s', capacity: 100, store }))
  const spent = async (key: string, senders: typeof shapers): Promise<number> => {
    const times: number[] = []
    const send = (shaper: (typeof shapers)[0]) => shaper.run(key, () => void times.push(performance.now()))
    await Promise.all(senders.flatMap(shaper => Array.from({ length: 80 / senders.length }, () => send(shaper))))
    t.equal(times.length, 80)
    const took = times.at(-1)! - times[0]!
    t.ok(took >= 780, `79 slots of ${key} took ${took} ms`)
    return took
  }
  // On a busy machine slots are lost, also by one alone.
  const [alone, both] = await Promise.all([spent('alone', shapers.slice(0, 1)), spent('both', shapers)])
  t.ok(both < 2 * alone, `79 slots took ${both} ms, and one shaper alone ${alone} ms`)
  await Promise.all(shapers.map(shaper => shaper.drain()))
})

const nowhere = { type: 'redis', url: 'redis://127.0.0.1:1', timeout: '50ms' } as const

t.test('an unreachable store, onOutage "closed": the call gets an error, and so does a listener', async t => {
  const closed = createShaper({ rate: '100/s', capacity: 10, store: { ...nowhere, onOutage: 'closed' } })
  const errors: Error[] = []
  closed.on('error', error => errors.push(error))
  t.match(await closed.admit().catch((error: Error) => error), { code: 'SHAPER_STORE_UNAVAILABLE' })
  t.ok(errors.length > 0)
  await closed.drain()
})

t.test('an unreachable store, onOutage "local": calls run at its share of the rate', async () => {
  const local = createShaper({ rate: '100/s', capacity: 10, store: nowhere })
  await Promise.all([local.admit(), local.admit()])
  await local.drain()
})
