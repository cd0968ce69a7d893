/** The store of workers: the memory of their primary, over pipes. */

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { Duplex, duplexPair } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import t from 'tap'
import type { BucketRef } from '../../src/decider/record.js'
import { type ClaimRequest, type Store, StoreError } from '../../src/sharing/store.js'
import { Decoder, Encoder, openFrames } from '../../src/stores/workers/frames.js'
import { createPrimary, type Primary } from '../../src/stores/workers/primary.js'
import { MACHINE } from '../../src/stores/workers/protocol.js'
import { createWorkerStore } from '../../src/stores/workers/store.js'
import { until } from '../servers/redis.js'
import { boardConformance } from './board-conformance.js'
import { bucket, clock, conformance } from './conformance.js'
import { endsWithin } from './ends-within.js'
import { exchangeConformance, exchangeModelled } from './exchange-conformance.js'
import { modelled } from './model.js'

const TIMEOUT = 5_000

/** A worker's store, and the memory of a primary behind it. */
function connect(primary: Primary, timeout = TIMEOUT, clock = MACHINE): { store: Store; pipe: Duplex } {
  const [here, there] = duplexPair()
  primary.serve(there)
  return { store: createWorkerStore({ pipe: here, timeout, clock }), pipe: here }
}

async function inOneProcess() {
  const primary = createPrimary()
  const [store, other] = [connect(primary).store, connect(primary).store]
  return { store, other, close: async () => void (await Promise.all([store.close(), other.close()])) }
}

async function inAnotherProcess() {
  const program = fileURLToPath(new URL('../../build/test/stores/primary-process.js', import.meta.url))
  const child: ChildProcess = spawn(process.execPath, [program], {
    stdio: ['ignore', 'inherit', 'inherit', 'pipe', 'pipe'],
  })
  const [store, other] = [3, 4].map(fd => createWorkerStore({ pipe: child.stdio[fd] as Duplex, timeout: TIMEOUT }))
  const ended = once(child, 'exit')
  return {
    store: store!,
    other: other!,
    async close() {
      await Promise.all([store!.close(), other!.close()])
      // Its pipes have ended.
      await ended
    },
  }
}

for (const suite of [conformance, boardConformance]) {
  suite('workers', inOneProcess)
  suite('long: workers of a primary in another process', inAnotherProcess)
}

function ignore(): void {}

/** Two workers of a primary whose clock is set. */
function settable() {
  let now = 0
  const primary = createPrimary(() => now)
  // Theirs stands still.
  const clock = { now: () => now, ours: (theirs: number) => theirs - now, theirs: (ours: number) => ours + now }
  const stores = [connect(primary, TIMEOUT, clock).store, connect(primary, TIMEOUT, clock).store]
  return {
    stores,
    store: stores[0]!,
    setTime: async (ms: number) => {
      now = ms
    },
    close: async () => void (await Promise.all(stores.map(store => store.close()))),
  }
}

modelled('workers', async () => settable())
exchangeConformance('workers', async () => settable())
exchangeModelled('workers', async () => settable())

const LIMITS = fc.constantFrom(...[0, 1, 2].map(rate => ({ name: 'a', rate })))

const value = fc.letrec(tie => ({
  value: fc.oneof(
    fc.constant(undefined),
    fc.boolean(),
    fc.double(),
    fc.string({ unit: 'binary' }),
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(fc.constantFrom('a', 'b', 'key', 'stack', 'é'), tie('value'), { maxKeys: 4, noNullPrototype: true }),
    fc.record({ limits: LIMITS }, { noNullPrototype: true }),
  ),
})).value

t.test('what is sent arrives, however the bytes are cut', async t => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(value, { minLength: 1, maxLength: 6 }),
      fc.integer({ min: 1, max: 40 }),
      async (values, size) => {
        const sent: Buffer[] = []
        const out = new Duplex({
          read() {},
          write(chunk, _, done) {
            sent.push(chunk)
            done()
          },
        })
        const frames = openFrames(
          out,
          () => undefined,
          () => undefined,
        )
        for (const each of values) frames.send(each)
        const bytes = Buffer.concat(sent)
        const got: unknown[] = []
        const inward = new Duplex({ read() {}, write: (_chunk, _, done) => done() })
        openFrames(
          inward,
          each => void got.push(each),
          () => undefined,
        )
        for (let at = 0; at < bytes.length; at += size) inward.emit('data', bytes.subarray(at, at + size))
        t.strictSame(got, values)
      },
    ),
  )
})

t.test('a failure of who receives is not taken for a message that cannot be read', async t => {
  const sender = duplexPair()
  const bytes: Buffer[] = []
  sender[1].on('data', chunk => void bytes.push(chunk))
  openFrames(sender[0], ignore, ignore).send('a')
  await until('it is sent', () => bytes.length > 0)
  const [here] = duplexPair()
  let closed = 0
  const fail = (): never => {
    throw new Error('a bug')
  }
  openFrames(here, fail, () => (closed += 1))
  t.throws(() => here.emit('data', bytes[0]), new Error('a bug'))
  t.equal(closed, 0)
  here.emit('data', Buffer.from([0, 0, 0, 1, 255]))
  t.equal(closed, 1, 'what cannot be read ends the pipe')
})

t.test('an answer that cannot be read fails its question, and no other one', async t => {
  const [here, there] = duplexPair()
  const store = createWorkerStore({ pipe: here, timeout: TIMEOUT })
  const primary = openFrames(there, () => primary.send([5, { count: 1, left: 0, rank: 0, epoch: 0 }]), ignore)
  const one = bucket(1, 10)
  const [refused, roll] = await Promise.allSettled([store.claim({ stack: [one], cost: 1, since: 0 }), store.beat('me')])
  t.match(refused, { status: 'rejected', reason: new StoreError('the answer of the primary cannot be read') })
  t.match(roll, { status: 'fulfilled', value: { count: 1 } })
  await store.close()
})

t.test('limits are sent once, and again after many others', async t => {
  const [encoder, decoder] = [new Encoder(), new Decoder()]
  const limitsOf = (index: number) => ({ name: 'a bucket', rate: index, capacity: 10 })
  const all = Array.from({ length: 1_500 }, (_, index) => limitsOf(index))
  const send = (limits: object): number => {
    const bytes = encoder.encode({ limits }, 0)
    t.strictSame(decoder.decode(bytes), { limits })
    return bytes.length
  }
  const first = send(all[0]!)
  t.ok(send(all[0]!) < first / 4)
  for (const limits of all.slice(1, 1_024)) send(limits)
  t.ok(send(all[0]!) < 16, 'the first of 1024 is known')
  for (const limits of all.slice(1_024)) send(limits)
  t.ok(send(all[0]!) > 16, 'and sent again')
  t.ok(send(all[1_499]!) < 16)
})

t.test('questions of one tick go in one message, and so do their answers', async t => {
  const [here, there] = duplexPair()
  const counts = { there: 0, here: 0 }
  there.on('data', () => (counts.there += 1))
  here.on('data', () => (counts.here += 1))
  createPrimary().serve(there)
  const store = createWorkerStore({ pipe: here, timeout: TIMEOUT })
  const one = bucket(1, 10)
  const answers = await Promise.all(
    Array.from({ length: 12 }, () => store.admit({ stack: [one], cost: 1, maxWait: Infinity, claim: false })),
  )
  t.strictSame(
    answers.map(({ admitted }) => admitted),
    [...Array(10).fill(true), false, false],
    'in order',
  )
  t.strictSame(counts, { there: 1, here: 1 })
  await store.close()
})

t.test('a busy worker collects its questions for a millisecond, and a lone one goes at once', async t => {
  const [here, there] = duplexPair()
  let messages = 0
  there.on('data', () => (messages += 1))
  createPrimary().serve(there)
  const store = createWorkerStore({ pipe: here, timeout: TIMEOUT })
  const begin = performance.now()
  let asked = 0
  while (performance.now() - begin < 50) {
    void Promise.all([store.beat('me'), store.beat('me')])
    asked += 2
    await new Promise(resolve => setImmediate(resolve))
  }
  await store.beat('me')
  const most = performance.now() - begin + 1
  t.ok(messages <= most && messages < asked, `${messages} messages for ${asked} questions in ${most} ms`)
  await store.close()
})

t.test('a primary that is gone: what waits fails, and so does what comes', async t => {
  const { store, pipe } = connect(createPrimary())
  await store.beat('me')
  const waiting = Promise.resolve(store.beat('me'))
  pipe.destroy()
  await t.rejects(waiting, new StoreError('the primary is gone'))
  await t.rejects(Promise.resolve(store.beat('me')), new StoreError('the primary is gone'))
})

t.test('a primary that stands still: what is not answered in time fails, and is not done later', async t => {
  const [here, there] = duplexPair()
  const primary = createPrimary()
  const store = createWorkerStore({ pipe: here, timeout: 400 })
  const one = bucket(1, 10)
  const admit = async () => store.admit({ stack: [one], cost: 1, maxWait: Infinity, claim: false })
  await t.rejects(Promise.all([admit(), admit()]), new StoreError('the primary did not answer in time'))
  primary.serve(there)
  t.match(await admit(), { admitted: true, levels: [1] }, 'it goes on, and the others were not counted')
  await store.close()
})

t.test('a question that waits for another answer fails after its own timeout', async t => {
  const [here] = duplexPair()
  const store = createWorkerStore({ pipe: here, timeout: 1_000 })
  const late = new StoreError('the primary did not answer in time')
  const first = t.rejects(Promise.resolve(store.beat('me')), late)
  await sleep(200)
  const asked = performance.now()
  const second = t.rejects(Promise.resolve(store.beat('me')), late)
  const isInTime = await endsWithin(1_500, second)
  const took = performance.now() - asked
  t.ok(took >= 999 && isInTime, `it took ${took} ms`)
  await Promise.all([first, second])
  await store.close()
})

t.test('the instances of a worker that ends leave at once', async t => {
  const primary = createPrimary()
  const [one, other] = [connect(primary), connect(primary)]
  await one.store.beat('one')
  t.match(await other.store.beat('other'), { count: 2, left: 0, rank: 1 })
  one.pipe.end()
  // It hears of that a little later.
  while ((await other.store.beat('other')).count !== 1) await new Promise(resolve => setImmediate(resolve))
  t.match(await other.store.beat('other'), { count: 1, left: 1, rank: 0 }, 'the rank is among those that are there')
  await other.store.close()
})

t.test('a reset is told to the other workers, and to no worker that is gone', async t => {
  const primary = createPrimary()
  const [one, other, third] = [connect(primary), connect(primary), connect(primary)]
  const heard: Record<string, unknown[]> = { one: [], other: [] }
  for (const [name, { store }] of Object.entries({ one, other })) store.listen!(news => void heard[name]!.push(news))
  const ref = bucket(1, 10)
  await third.store.close()
  await Promise.all([one.store.reset(ref), one.store.exchange('a', { pausedFor: 5_000, rate: undefined, rateFor: 0 })])
  await other.store.beat('other')
  const reset = { about: 'reset', bucket: ref.limits.name, key: ref.key }
  const pause = { about: 'upstream', name: 'a', state: { pausedFor: 5_000, rate: undefined, rateFor: 0 } }
  t.same(heard, { one: [pause], other: [reset, pause] })
  await Promise.all([one.store.close(), other.store.close()])
})

t.test('a question that the store fails at is answered, and so are the next ones', async t => {
  const { store } = connect(createPrimary())
  const broken = { stack: undefined, cost: 1, since: 0 } as unknown as ClaimRequest
  await t.rejects(Promise.resolve(store.claim(broken)), /^the primary has failed: /)
  t.match(await store.beat('one'), { count: 1 })
  await store.close()
})

t.test('a worker that reads nothing is told no more news than fits', async t => {
  const primary = createPrimary()
  const [, there] = duplexPair()
  primary.serve(there)
  const { store } = connect(primary)
  const name = 'x'.repeat(100_000)
  for (let ms = 1; ms <= 60; ms += 1) await store.exchange(name, { pausedFor: 1_000 * ms, rate: undefined, rateFor: 0 })
  t.ok(there.writableLength < 2_000_000, `${there.writableLength} bytes`)
  there.destroy()
  await store.close()
})

t.test('moments are by the clock of the worker', async t => {
  const { store } = connect(createPrimary())
  const one = bucket(3_600, 10)
  const before = clock.now()
  const { claim } = (await store.admit({ stack: [one], cost: 1, maxWait: Infinity, claim: true })) as {
    claim: { slot: { at: number } }
  }
  t.ok(claim.slot.at >= before && claim.slot.at <= clock.now(), 'a slot')
  const refused = (await store.claim({ stack: [one], cost: 1, since: 0 })) as { freeAt: readonly number[] }
  t.ok(Math.abs(refused.freeAt[0]! - claim.slot.at - 1_000) < 1, 'and when a bucket is free')
  const { epoch } = await store.beat('one')
  const machine = Number(process.hrtime.bigint()) / 1e6
  t.ok(Math.abs(clock.now() - epoch - machine) < 20, 'and when the clock of the machine showed 0')
  await store.close()
})

t.test('slots of one lane go to the oldest request, by the clock of the machine', async t => {
  let now = 1_000
  const primary = createPrimary(() => now)
  // Theirs start at different times.
  const [one, other] = [300, 700].map(start => {
    const clock = { now: () => now, ours: (theirs: number) => theirs - start, theirs: (ours: number) => ours + start }
    return { start, store: connect(primary, TIMEOUT, clock).store }
  }) as [{ start: number; store: Store }, { start: number; store: Store }]
  const ref = bucket(3_600, 10)
  const report = async ({ store, start }: typeof one, came: readonly number[], lane = 'api\0ann') => {
    const arrivals = { lane, costs: came.map((_, place) => place), times: came.map(at => at - start) }
    const demand = [{ priority: 3, weight: 1, cost: came.length, ...(came.length > 0 && { arrivals }) }]
    const instance = start
    const rest = { largest: 1, lead: 6, late: 0, pace: Infinity, lacks: 0 }
    const room = { held: 0, drained: 0, kept: 0, want: -1, ahead: 0, returned: [] }
    const { slots } = await store.lease!({ bucket: ref, instance, demand, ...rest, ...room })
    return slots.map(({ at }) => at + start)
  }
  const late = await report(one, [500, 600])
  t.same(late, [1_006], 'a slot of 1/s that it can be there for')
  now = 1_010
  t.same(await report(other, [100, 110, 550]), [])
  now = 1_890
  t.same(await report(one, [600]), [], 'the next one is not for the request of 600')
  t.same(await report(other, [100, 110, 550]), [2_006], 'but for that of 100')
  now = 2_890
  t.same(await report(other, [550], 'another lane'), [], 'the turns of other lanes are equal')
  t.same(await report(one, [600]), [3_006])
  await Promise.all([one.store.close(), other.store.close()])
})

t.test(
  'two that begin at once, as after a restart: slots in the order of arrival, and none of those before is lost',
  async t => {
    let now = 1_000
    const clock = { now: () => now, ours: (ms: number) => ms, theirs: (ms: number) => ms }
    const { store } = connect(
      createPrimary(() => now),
      TIMEOUT,
      clock,
    )
    type Slots = Awaited<ReturnType<NonNullable<Store['lease']>>>['slots']
    /** 40/s */
    const ref = bucket(144_000, 100)
    const report = async (instance: number, times: readonly number[], returned: Slots = []) => {
      const arrivals = { lane: 'api\0ann', costs: times.map((_, place) => place), times }
      const demand = times.length === 0 ? [] : [{ priority: 3, weight: 1, cost: times.length, arrivals }]
      const rest = { largest: 1, lead: 6, late: 0, pace: Infinity, lacks: times.length }
      const room = { held: 0, drained: 0, kept: 0, want: -1, ahead: 0, returned }
      const { slots } = await store.lease!({ bucket: ref, instance, demand, ...rest, ...room })
      return slots
    }
    const at = (slots: Slots): number[] => slots.map(slot => slot.at)
    const even = [0, 20, 40, 60, 80, 100]
    const odd = [10, 30, 50, 70, 90, 110]
    t.same(at(await report(1, even)), [1_006], 'what it needs until the other one has told what waits there')
    now = 1_002
    t.same(at(await report(2, odd)), [])
    now = 1_015
    const first = await report(1, even.slice(1))
    now = 1_017
    const second = await report(2, odd)
    t.same(at(first), [1_056, 1_106])
    t.same(at(second), [1_031, 1_081, 1_131], 'in turns')
    now = 1_150
    const last = await report(1, even.slice(3))
    t.same(at(last), [1_156, 1_206, 1_256])
    t.same(await report(1, [], last), [])
    t.same(await report(2, []), [], 'it has not fetched its own')
    t.same(at(await report(3, odd)), [1_156], 'others have them')
    await store.close()
  },
)

/** A primary, another one that follows it, and a worker of each. */
function following() {
  const [old, fresh] = [createPrimary(), createPrimary()]
  const [before, after] = [connect(old).store, connect(fresh).store]
  const follow = (): Duplex => {
    const [here, there] = duplexPair()
    for (const part of [...old.store.parts()].map(part => structuredClone(part))) fresh.store.add(part)
    old.follow(here)
    fresh.serve(there)
    return there
  }
  return { before, after, follow, close: () => Promise.all([before.close(), after.close()]) }
}

const ask = (store: Store, one: BucketRef) =>
  store.admit({ stack: [one], cost: 1, maxWait: Infinity, claim: true }) as Promise<{
    admitted: boolean
    claim: { slot?: { at: number }; freeAt?: number[] }
  }>

t.test('a primary that follows: there is one schedule, and all hear the same news', async t => {
  const { before, after, follow, close } = following()
  const override = { bucket: 'a', key: 'b', rate: 1, endsIn: 60_000 }
  const pause = { pausedFor: 60_000, rate: undefined, rateFor: 0 }
  await Promise.all([before.board!.setOverride(override), before.exchange('up', pause)])
  const one = bucket(3_600, 3)
  const first = await ask(before, one)
  await before.beat('one')
  follow()
  t.match(await after.beat('other'), { count: 2 }, 'who is there is known at once')
  t.match(await after.board!.overrides(), [{ bucket: 'a', key: 'b', rate: 1 }], 'overrides have gone over')
  t.ok((await after.exchange('up')).pausedFor > 50_000, 'and pauses')
  t.equal(Math.round((await ask(after, one)).claim.freeAt![0]! - first.claim.slot!.at), 1_000, 'its slot counts')
  t.ok((await ask(before, one)).admitted, 'the last room')
  t.notOk((await ask(after, one)).admitted)
  const heard: unknown[] = []
  before.listen!(news => void heard.push(news))
  await after.exchange('other', pause)
  await until('news has come', () => heard.length > 0)
  t.match(heard, [{ about: 'upstream', name: 'other' }])
  await before.beat('one')
  await before.close()
  while ((await after.beat('other')).count !== 1) await new Promise(resolve => setImmediate(resolve))
  await close()
})

t.test(
  'the primary that is followed is gone: who waits is answered, and no slot is where it may have given one',
  async t => {
    const { before, follow, close } = following()
    const one = bucket(36_000, 3)
    await ask(before, one)
    const pipe = follow()
    await ask(before, one)
    pipe.pause()
    const waiting = ask(before, bucket(3_600, 3))
    const gone = clock.now()
    pipe.end()
    t.ok((await waiting).admitted)
    const { claim } = await ask(before, one)
    t.ok(claim.freeAt![0]! >= gone + 220, 'after all that may be leased, and one period')
    await close()
  },
)
