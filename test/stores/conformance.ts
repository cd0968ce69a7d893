/**
 * Rules for every store, on a real server in real time. Levels are exact because buckets leak one unit an hour. Tests wait
 * for conditions, not for times.
 */

import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { QUOTA_RATE } from '../../src/config/derived/default-capacity.js'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import type { Clock } from '../../src/core/clock.js'
import { FORECAST, FRAME, LEASE_LIFE, SLOT_GRACE } from '../../src/decider/constants.js'
import type { AppointmentRequest, BucketRef, LeaseAnswer, LeaseRequest } from '../../src/decider/record.js'
import {
  type Admission,
  type ClaimAnswer,
  HORIZON,
  IDLE_REPORT,
  longestBackDate,
  type Slot,
  type Store,
  StoreError,
} from '../../src/sharing/store.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { RoundTrip } from '../../src/stores/timing.js'
import { exchangesInRealTime } from './exchange-conformance.js'
import { askAll, shapeOf } from './samples.js'

/** The clock for the stores under test. */
export const clock: Clock = {
  now: () => performance.now(),
  at(due, run) {
    let open = true
    const timer = setTimeout(
      () => {
        open = false
        run()
      },
      Math.max(0, Math.ceil(due - performance.now())),
    )
    return () => {
      clearTimeout(timer)
      const was = open
      open = false
      return was
    }
  },
}

const HOUR = 3_600_000

/** How long the steps of one test may take, in ms: levels and waits are lower by that much. */
const SLACK = 10_000

/** The tolerance between two times of one store that are mapped at different moments, in ms. */
const MAPPING = 5

let keys = 0

/** A new instance by default. */
export function bucket(
  perHour: number,
  capacity: number,
  more: Partial<BucketLimits & { key: string; group: string }> = {},
): BucketRef {
  const { key = `key ${keys++} of ${process.pid}`, group = 'one', ...limits } = more
  return { limits: { name: 'client', rate: perHour / HOUR, capacity, ...limits }, key, group }
}

export function perSecond(rate: number, capacity = 1_000_000): BucketRef {
  return bucket(rate * 3_600, capacity)
}

async function admit(
  store: Store,
  stack: readonly BucketRef[],
  cost = 1,
  { maxWait = Infinity, claim = false } = {},
): Promise<Admission> {
  return store.admit({ stack, cost, maxWait, claim })
}

async function claim(store: Store, stack: readonly BucketRef[], cost = 1, since = 0): Promise<ClaimAnswer> {
  return store.claim({ stack, cost, since })
}

/** What is left out is nothing. */
async function ask(store: Store, request: Partial<AppointmentRequest> & Pick<AppointmentRequest, 'bucket' | 'client'>) {
  return store.appoint!({ cost: 1, more: 0, booking: 0, maxWait: Infinity, fit: 0, ...request })
}

/** The report of an instance that has nothing and needs nothing. */
export const IDLE: Omit<LeaseRequest, 'bucket'> = { ...IDLE_REPORT, instance: 0.1, largest: 1 }

/** What is left out is nothing. */
async function lease(store: Store, bucket: BucketRef, request: Partial<LeaseRequest>): Promise<LeaseAnswer> {
  return store.lease!({ bucket, ...IDLE, ...request })
}

function slotOf(answer: ClaimAnswer | undefined): number {
  if (answer?.granted !== true) throw new Error(`not granted: ${JSON.stringify(answer)}`)
  return answer.slot.at
}

function horizonOf(store: Store, stack: readonly BucketRef[]): number {
  return store.horizonOf?.(stack) ?? store.horizon
}

/** Asks until the answer is the expected one. */
async function until<T>(ask: () => Promise<T>, wished: (answer: T) => boolean, pause = 5): Promise<T> {
  const deadline = performance.now() + SLACK
  for (;;) {
    const answer = await ask()
    if (wished(answer)) return answer
    if (performance.now() > deadline) throw new Error(`in vain: ${JSON.stringify(answer)}`)
    await sleep(pause)
  }
}

/** Claims until there is a slot. */
async function wholeSlot(store: Store, stack: readonly BucketRef[], cost = 1): Promise<Slot> {
  const answer = await until(
    () => claim(store, stack, cost),
    ({ granted }) => granted,
    1,
  )
  if (!answer.granted) throw new Error('not granted')
  return answer.slot
}

async function nextSlot(store: Store, stack: readonly BucketRef[], cost: number): Promise<number> {
  return (await wholeSlot(store, stack, cost)).at
}

function expectLevels(t: Test, answer: Admission, levels: number[], what: string): void {
  t.equal(answer.levels.length, levels.length, `${what}: a level for each bucket`)
  for (const [place, level] of levels.entries()) {
    const got = answer.levels[place]!
    t.ok(got <= level + 1e-9 && got >= level - SLACK / HOUR, `${what}: level ${got} in ${place}, wanted ${level}`)
  }
}

/** The expected answer to an admission of cost 1; `hours` is its Retry-After. */
type Step = [
  stack: readonly BucketRef[],
  cost: number,
  maxWaitHours: number,
  wanted: 'admitted' | [reason: string, refusing: number[], hours: number | undefined],
  levels: number[],
]

async function play(t: Test, store: Store, steps: Step[]): Promise<void> {
  for (const [index, [stack, cost, maxWaitHours, wanted, levels]] of steps.entries()) {
    const what = `step ${index}`
    const answer = await admit(store, stack, cost, { maxWait: maxWaitHours * HOUR })
    if (wanted === 'admitted') {
      t.equal(answer.admitted, true, `${what}: ${JSON.stringify(answer)}`)
    } else if (answer.admitted) {
      t.fail(`${what}: admitted, not ${wanted[0]}`)
    } else {
      const [reason, refusing, hours] = wanted
      t.equal(answer.reason, reason, what)
      t.same(answer.refusing, refusing, `${what}: the refusing`)
      const { retryAfterMs } = answer
      if (hours === undefined || retryAfterMs === undefined) t.equal(retryAfterMs, hours, `${what}: no retry`)
      else
        t.ok(
          retryAfterMs <= hours * HOUR + 0.01 && retryAfterMs >= hours * HOUR - SLACK,
          `${what}: retry after ${retryAfterMs} ms, wanted ${hours} h`,
        )
    }
    expectLevels(t, answer, levels, what)
  }
}

/**
 * Takes steps again, with new buckets, if they have taken longer than `ms`: what they check holds only for that time. On a busy machine
 * they may.
 */
async function within(t: Test, ms: number, steps: (t: Test) => Promise<unknown>): Promise<void> {
  for (let attempt = 1; ; attempt += 1) {
    const checks: (() => void)[] = []
    const later = (name: 'ok' | 'equal' | 'same' | 'match' | 'fail') => {
      return (...args: never[]) => void checks.push(() => (t[name] as (...args: never[]) => boolean)(...args))
    }
    const names = ['ok', 'equal', 'same', 'match', 'fail'] as const
    const noted = Object.fromEntries(names.map(name => [name, later(name)]))
    const begun = clock.now()
    const failure = await steps(noted as unknown as Test).then(
      () => undefined,
      (error: Error) => error,
    )
    if (clock.now() - begun > ms && attempt < 10) continue
    for (const check of checks) check()
    if (failure !== undefined) throw failure
    return
  }
}

/**
 * @param create makes two clients of one server, or one object twice, with the `clock` above; called once
 */
export function conformance(
  name: string,
  create: () => Promise<{ store: Store; other: Store; close(): Promise<void> }>,
): void {
  t.test(`${name} keeps the rules of stores`, async t => {
    const { store, other, close } = await create()
    t.teardown(close)
    // Afterwards both know the clock of the server well.
    for (let count = 0; count < 20; count += 1) {
      await claim(store, [perSecond(1)])
      await claim(other, [perSecond(1)])
    }
    const test = (title: string, run: (t: Test) => Promise<unknown>) => t.test(title, run)
    t.jobs = 2

    await test('promises: one sequence of moments for the clients of all instances, many in one call, at most a capacity', async t => {
      const ref = bucket(1, 10)
      await admit(store, [ref], 10)
      const told = async (client: number, from: Store, cost = 1): Promise<[hours: number, made: boolean]> => {
        const { after, booking, made } = await ask(from, { bucket: ref, client, cost })
        t.equal(booking, 0)
        return [Math.round((after + SLACK / 4) / HOUR), made]
      }
      for (let client = 1; client <= 8; client += 1)
        t.same(await told(client, client % 2 === 0 ? store : other), [client, true])
      t.same(await told(9, store, 3), [8, false], 'it does not fit')
      t.same(await told(9, store, 2), [10, true], 'two slots later')
      t.same(await told(10, other), [10, false])
      await store.reset(ref)
      await admit(store, [ref], 10)
      t.same(await told(10, other), [1, true])
      const { after } = await ask(store, { bucket: ref, client: 11, fit: 5 * HOUR })
      t.equal(Math.round(after / HOUR), 2, 'its place in the sequence, though something else delays it')
      t.same(await told(12, store), [3, true], 'and not those after it')
      const many = async (
        from: Store,
        more: number,
        cost = 1,
      ): Promise<[hours: number, more: number, made: boolean]> => {
        const { after, more: promised, made } = await ask(from, { bucket: ref, client: 0, cost, more })
        return [Math.round((after + SLACK / 4) / HOUR), promised, made]
      }
      t.same(await many(other, 2, 2), [5, 2, true], 'the moment of the first, and cost units behind it')
      t.same(await told(13, store), [8, true], 'behind all of them')
      const [hours, promised, made] = await many(store, 100)
      t.same([hours, made], [9, true])
      t.ok(promised >= 1 && promised < 1.1, `as many as fit: ${promised}`)
      t.same((await many(other, 100)).slice(1), [0, false])
    })

    await test('promises without bookings: a client that is named is told the same by all instances, the next one a slot later', async t => {
      const one = bucket(360, 10)
      await admit(store, [one], 10)
      const begun = clock.now()
      const momentOf = async (client: number, at: Store): Promise<number> => {
        const { after, made, booking } = await ask(at, {
          bucket: one,
          client,
          fit: Math.max(0, begun + 10_000 - clock.now()),
        })
        t.same([made, booking], [true, 0])
        return clock.now() + after
      }
      const first = await momentOf(1, store)
      const second = await momentOf(2, other)
      t.ok(Math.abs(second - first - 10_000) < 100, `${second - first} ms later`)
      for (const at of [store, other]) {
        t.ok(Math.abs((await momentOf(1, at)) - first) < 100)
        t.ok(Math.abs((await momentOf(2, at)) - second) < 100)
      }
      const many = await ask(store, { bucket: one, client: 3, more: 4, fit: 0 })
      t.equal(many.more, 4)
      const third = clock.now() + many.after
      t.ok(Math.abs((await momentOf(4, other)) - third - 50_000) < 100, 'behind all that were told at once')
      t.ok(Math.abs((await momentOf(3, other)) - third) < 100)
    })

    await test('promises without bookings: what is over before the rate rises is over at the new rate', async t => {
      const slow = bucket(1, 10)
      const first = await ask(store, { bucket: slow, client: 0, cost: 0.5, more: 100 })
      t.same([first.made, first.more], [true, 9.5], 'its moment is now, and 9.5 hours of what follows it are left')
      t.match(await ask(other, { bucket: slow, client: 1, cost: 2 }), { made: false })
      const fast = { ...slow, limits: { ...slow.limits, rate: 128 / HOUR } }
      await store.giveBack({ stack: [fast], cost: 0 })
      const next = await ask(other, { bucket: fast, client: 1, cost: 0.5 })
      t.ok(next.made && Math.abs(next.after - (9.5 + 0.5 / 128) * HOUR) < SLACK, `${next.made}: ${next.after}`)
    })

    await test('bookings: claimed at any instance, in time, once, by its client at its cost; newcomers are kept out', async t => {
      // One booking is due every 100 ms, and a newcomer fits beside the room that is kept for all after 10 s.
      const ref = perSecond(20, 4_000)
      await admit(store, [ref], 4_000)
      const full = await ask(store, { bucket: ref, client: 1, booking: 71, cost: 2 })
      const second = await ask(other, { bucket: ref, client: 2, booking: 72, cost: 2 })
      t.match(full, { booking: 71, made: true })
      t.match(second, { booking: 72, made: true })
      // A window is a difference of moments, so it is rounded.
      t.ok(full.window > 9_000 && full.window < 10_000.001, `${full.window}`)
      t.match(await ask(other, { bucket: ref, client: 1, booking: 73, cost: 2 }), { booking: 71 }, 'again')
      t.match(await ask(other, { bucket: ref, client: 1, booking: 74, cost: 1 }), { booking: 0 }, 'for its cost')
      const others = Array.from({ length: 98 }, (_, at) => 100 + at)
      const all = await Promise.all(
        others.map(number => ask(other, { bucket: ref, client: number, booking: number, cost: 2 })),
      )
      t.ok(
        all.every(({ made, booking }) => made && booking > 0),
        '98 others',
      )
      const redeem = async (from: Store, client: number, booking: number, cost = 2) =>
        from.admit({ stack: [ref], cost, maxWait: Infinity, claim: false, booked: { place: 0, client, booking } })
      await until(
        () => admit(store, [ref], 0),
        ({ levels }) => levels[0]! <= 3_998,
      )
      t.equal((await redeem(other, 2, 71)).admitted, false, 'not by another')
      t.equal((await redeem(other, 1, 71, 3)).admitted, false, 'not at another cost')
      await until(
        () => redeem(other, 1, 71),
        ({ admitted }) => admitted,
      )
      // There is room for a newcomer, were it not kept.
      await until(
        () => admit(store, [ref], 0),
        ({ levels }) => levels[0]! <= 3_998,
      )
      t.equal((await admit(store, [ref], 1)).admitted, false, 'not a newcomer')
      t.equal((await redeem(store, 1, 71, 2)).admitted, false, 'once')
      await until(
        () => redeem(store, 2, 72),
        ({ admitted }) => admitted,
      )
    })

    await test('bookings: none where a full bucket blocks or fills, nor in a small one', async t => {
      const refs = [
        bucket(3_600_000, 1_000, { blockFor: 1_000 }),
        bucket(3_600_000, 1_000, { overflow: 'fill' }),
        bucket(3_600_000, 100),
      ]
      for (const ref of refs) {
        await admit(store, [ref], ref.limits.capacity)
        t.match(await ask(store, { bucket: ref, client: 1, booking: 1 }), { booking: 0, window: 0, made: true })
      }
    })

    await test('bookings: what is kept is leased to nobody, and no room grows', async t => {
      // It leaks as much in 10 s.
      const ref = perSecond(10, 1_000)
      await admit(store, [ref], 1_000)
      for (let client = 1; client <= 100; client += 1) await ask(other, { bucket: ref, client, booking: client })
      const answer = await lease(store, ref, { instance: 0.2, demand: [], want: 1_000 })
      t.ok(answer.room <= 1, `${answer.room}`)
      t.equal(answer.roomRate, 0)
      const others = perSecond(100, 1_000)
      await admit(store, [others], 500)
      await ask(other, { bucket: others, client: 1, booking: 1 })
      const { room, spare } = await lease(store, others, { instance: 0.2, demand: [], want: 1_000 })
      t.ok(room < 500 + SLACK / 10 && spare >= 0)
    })

    await test('one that leaves is not there any more, and the others are told', async t => {
      const [one, two, three] = [1, 2, 3].map(number => `leaver ${number} of ${process.pid}`) as [
        string,
        string,
        string,
      ]
      const { count, left } = await store.beat(one)
      const before = count - 1
      await other.beat(two)
      t.equal((await other.beat(three)).count, before + 3)
      await other.leave!(two)
      t.match(await store.beat(one), { count: before + 2, left: left + 1 })
      await other.leave!(two)
      await other.leave!(`nobody of ${process.pid}`)
      t.match(await store.beat(one), { count: before + 2, left: left + 1 }, 'once, and only who was there')
      await other.leave!(three)
      await store.leave!(one)
      t.match(await other.beat(two), { count: before + 1, left: left + 3 }, 'it may come again')
      await other.leave!(two)
    })

    // It is three seconds of waiting, so the others run meanwhile. None of them beats.
    const beats = t.test('instances are counted by their beats', { buffered: true }, async t => {
      const [one, two] = [`one of ${process.pid}`, `two '"{\\ of ${process.pid}`]
      const { count: alone, rank } = await store.beat(one)
      t.match(await other.beat(two), { count: alone + 1, rank: rank + 1 })
      t.match(await store.beat(one), { count: alone + 1, rank })
      const before = performance.now()
      t.equal((await other.beat(two)).count, alone + 1, 'nobody counts twice')
      const after = performance.now()
      let [last, asked] = [after, after]
      await until(
        () => {
          last = asked
          asked = performance.now()
          return Promise.resolve(store.beat(one))
        },
        ({ count }) => count === 1,
        50,
      )
      t.ok(performance.now() - before >= 2_900, `forgotten after ${performance.now() - before} ms`)
      t.ok(last - after < 3_100, `still there ${last - after} ms later`)
    })

    await test('of b + 1 at once exactly b are admitted', async t => {
      const one = bucket(1, 10)
      const answers = await Promise.all(Array.from({ length: 11 }, () => admit(store, [one])))
      t.same(
        answers.map(({ admitted }) => admitted),
        [...Array(10).fill(true), false],
      )
      const fraction = bucket(1, 1)
      const tenths = await Promise.all(Array.from({ length: 11 }, () => admit(store, [fraction], 0.1)))
      t.equal(tenths.filter(({ admitted }) => admitted).length, 10, 'also of fractions')
      const [third, two] = [bucket(1, 1), bucket(1, 2.5)]
      await play(t, store, [
        [[third], 1 / 3, Infinity, 'admitted', [1 / 3]],
        [[third], 1 / 3, Infinity, 'admitted', [2 / 3]],
        [[third], 1 / 3, Infinity, 'admitted', [1]],
        [[third], 0.01, Infinity, ['overflow', [0], 0.01], [1]],
        [[two], 2.25, Infinity, 'admitted', [2.25]],
        [[two], 0.5, Infinity, ['overflow', [0], 0.25], [2.25]],
        [[two], 0.25, Infinity, 'admitted', [2.5]],
        [[two], 0, Infinity, 'admitted', [2.5]],
      ])
    })

    await test('all buckets of a stack take the cost or none does', async t => {
      const [small, wide, other] = [bucket(1, 2), bucket(2, 10), bucket(1, 2)]
      await play(t, store, [
        [[small, wide], 2, Infinity, 'admitted', [2, 2]],
        [[small, wide], 1, Infinity, ['overflow', [0], 1], [2, 2]],
        [[wide, small], 1, Infinity, ['overflow', [1], 1], [2, 2]],
        [[other, wide], 1, Infinity, 'admitted', [1, 3]],
        [[wide], 7, Infinity, 'admitted', [10]],
        [[other, wide], 1, Infinity, ['overflow', [1], 0.5], [1, 10]],
        [[small, wide], 1, Infinity, ['overflow', [0, 1], 1], [2, 10]],
        [[other], 1, Infinity, 'admitted', [2]],
      ])
    })

    await test('a stack of several groups as well', async t => {
      const [small, wide] = [bucket(1, 2, { group: 'a' }), bucket(2, 10, { group: 'b' })]
      await play(t, store, [
        [[small, wide], 2, Infinity, 'admitted', [2, 2]],
        [[small, wide], 1, Infinity, ['overflow', [0], 1], [2, 2]],
        [[wide, small], 1, Infinity, ['overflow', [1], 1], [2, 2]],
        [[wide], 8, Infinity, 'admitted', [10]],
      ])
    })

    await test('buckets are told apart by name and key, not by tier', async t => {
      const key = `shared ${process.pid}`
      const [one, two] = [bucket(1, 2, { key }), bucket(1, 2, { key, name: 'everyone' })]
      const gold = bucket(1, 5, { key, tier: 'gold' })
      await play(t, store, [
        [[one], 2, Infinity, 'admitted', [2]],
        [[two], 1, Infinity, 'admitted', [1]],
        [[gold], 1, Infinity, 'admitted', [3]],
      ])
      const names = ['a', 'a:b', 'a}b', '{a', '"a"', "a'b", 'a\\', 'a%', 'ä€😀', 'a\nb', ' ', '']
      for (const name of names) {
        for (const key of [...names, 'k'.repeat(9_000), `${'k'.repeat(8_999)}l`, '\0', '\u0001', '\ud800', '\udc00']) {
          const answer = await admit(store, [bucket(1, 1, { key, name, group: name })])
          t.equal(answer.admitted, true, `${JSON.stringify(name)} and ${JSON.stringify(key.slice(0, 20))}`)
        }
      }
    })

    await test('the reasons and their order', async t => {
      const [a, b] = [bucket(1, 10), bucket(2, 5)]
      const blocking = bucket(1, 10, { blockFor: 2 * HOUR })
      const tiny = bucket(1, 1)
      await play(t, store, [
        [[a, b], 6, Infinity, ['too-costly', [1], undefined], [0, 0]],
        [[a, b], 11, Infinity, ['too-costly', [0, 1], undefined], [0, 0]],
        [[a], 9, Infinity, 'admitted', [9]],
        [[a, b], 2, 0, ['overflow', [0], 9], [9, 0]],
        [[a, b], 1, 8, ['max-wait', [0], 1], [9, 0]],
        [[a], 2, Infinity, ['overflow', [0], 1], [9]],
        [[a, tiny], 2, 0, ['too-costly', [1], undefined], [9, 0]],
        [[blocking], 4, Infinity, 'admitted', [4]],
        [[blocking], 7, Infinity, ['overflow', [0], 2], [4]],
        [[blocking], 1, Infinity, ['blocked', [0], 2], [4]],
        [[a, blocking], 2, Infinity, ['blocked', [1], 2], [9, 4]],
        [[a, blocking], 4, Infinity, ['blocked', [1], 3], [9, 4]],
        [[blocking, tiny], 2, Infinity, ['too-costly', [1], undefined], [4, 0]],
        [[blocking], 1, 1, ['blocked', [0], 3], [4]],
        [[blocking], 11, Infinity, ['too-costly', [0], undefined], [4]],
      ])
    })

    await test('maxWait', async t => {
      const [slow, quick] = [bucket(1, 10), bucket(4, 10)]
      await play(t, store, [
        [[slow, quick], 2, 0, 'admitted', [2, 2]],
        [[slow, quick], 1, 1.5, ['max-wait', [0], 0.5], [2, 2]],
        [[slow, quick], 1, 0.25, ['max-wait', [0, 1], 1.75], [2, 2]],
        [[slow, quick], 1, 2, 'admitted', [3, 3]],
        [[quick], 7, 0.5, ['max-wait', [0], 0.25], [3]],
        [[quick], 8, 0.5, ['overflow', [0], 0.25], [3]],
        [[quick], 7, 0.75, 'admitted', [10]],
      ])
    })

    await test('overflow "fill" fills the buckets that refuse; "fair" is "reject"', async t => {
      const [filling, plain] = [bucket(1, 10, { overflow: 'fill' }), bucket(1, 10, { overflow: 'fair' })]
      await play(t, store, [
        [[filling, plain], 8, Infinity, 'admitted', [8, 8]],
        [[filling, plain], 3, Infinity, ['overflow', [0, 1], 3], [10, 8]],
        [[filling], 1, Infinity, ['overflow', [0], 1], [10]],
        [[plain], 2, Infinity, 'admitted', [10]],
      ])
      const [spared, full] = [bucket(1, 10, { overflow: 'fill' }), bucket(1, 3)]
      await play(t, store, [
        [[spared, full], 3, Infinity, 'admitted', [3, 3]],
        [[spared, full], 3, Infinity, ['overflow', [1], 3], [3, 3]],
        [[spared], 11, Infinity, ['too-costly', [0], undefined], [3]],
        [[spared], 1, 1, ['max-wait', [0], 2], [3]],
      ])
    })

    await test('a timed block is not extended', async t => {
      let one = bucket(1, 10)
      let [before, after] = [0, 0]
      await within(t, 399, async t => {
        one = bucket(1, 10, { blockFor: 400 })
        await play(t, store, [[[one], 9, Infinity, 'admitted', [9]]])
        before = performance.now()
        t.equal((await admit(store, [one], 2)).admitted, false)
        after = performance.now()
        const blocked = await admit(other, [one], 1)
        t.ok(!blocked.admitted && blocked.reason === 'blocked' && blocked.retryAfterMs! <= 400, JSON.stringify(blocked))
      })
      let [last, asked] = [after, after]
      await until(
        () => {
          last = asked
          asked = performance.now()
          return admit(store, [one], 1)
        },
        ({ admitted }) => admitted,
      )
      t.ok(performance.now() - before >= 400 - 1, `lifted after ${performance.now() - before} ms`)
      t.ok(last - after < 400 + MAPPING, `still blocked ${last - after} ms later`)
      await play(t, store, [[[one], 0.5, Infinity, ['overflow', [0], 0.5], [10]]])
    })

    await test('a block until drained', async t => {
      let one = bucket(1, 10)
      let before = 0
      await within(t, 499, async t => {
        one = bucket(20 * 3_600, 10, { blockFor: 'drain' })
        before = performance.now()
        t.equal((await admit(store, [one], 10)).admitted, true)
        const answer = await admit(store, [one], 10)
        t.ok(!answer.admitted && answer.reason === 'overflow', JSON.stringify(answer))
        t.ok(!answer.admitted && Math.abs(answer.retryAfterMs! - answer.levels[0]! * 50) < 0.01, 'retry when drained')
        const blocked = await admit(other, [one], 0.01)
        t.ok(!blocked.admitted && blocked.reason === 'blocked', JSON.stringify(blocked))
        const { levels } = blocked
        t.ok(!blocked.admitted && Math.abs(blocked.retryAfterMs! - levels[0]! * 50) < 0.01, 'retry when drained')
      })
      const admitted = await until(
        () => admit(store, [one], 1),
        answer => answer.admitted,
      )
      t.ok(performance.now() - before >= 499, `lifted after ${performance.now() - before} ms`)
      t.ok(Math.abs(admitted.levels[0]! - 1) < 1e-6, 'empty')
    })

    await test('a changed rate or capacity applies from now on', async t => {
      const key = `changing ${process.pid}`
      const [slow, quick] = [bucket(1, 10, { key }), bucket(100 * 3_600, 10, { key })]
      await play(t, store, [
        [[slow], 10, Infinity, 'admitted', [10]],
        [[bucket(1, 20, { key })], 5, Infinity, 'admitted', [15]],
        [[bucket(2, 10, { key })], 1, Infinity, ['overflow', [0], 3], [15]],
      ])
      await until(
        () => admit(store, [quick], 9),
        ({ admitted }) => admitted,
      )
      // At once: it drains within 100 ms.
      const [now, answer] = await Promise.all([admit(store, [quick], 0), admit(store, [slow], 9.5)])
      const [kept] = answer.levels
      t.equal(answer.admitted, now.levels[0]! <= 0.5)
      t.ok(
        Math.abs(kept! - now.levels[0]! - (answer.admitted ? 9.5 : 0)) < 0.5,
        `kept its level: ${now.levels}, ${kept}`,
      )
    })

    await test('a raised rate shortens what is left until the next slot', async t => {
      const key = `hurried ${process.pid}`
      slotOf(await claim(store, [bucket(1, 10, { key })], 1))
      const hurried = bucket(100 * 3_600, 10, { key })
      const claimed = await until(
        () => claim(other, [hurried], 1),
        ({ granted }) => granted,
      )
      t.equal(claimed.granted, true, 'not after an hour')
    })

    await test('giving nothing back makes the rate count from then on', async t => {
      const key = `told ${process.pid}`
      slotOf(await claim(store, [bucket(1, 10, { key })], 1))
      const hurried = bucket(3_600, 10, { key })
      await store.giveBack({ stack: [hurried], cost: 0 })
      const told = clock.now()
      await sleep(300)
      const asked = clock.now()
      const answer = await claim(store, [hurried], 1)
      const free = answer.granted ? answer.slot.at : answer.freeAt[0]!
      const most = answer.granted ? clock.now() + HORIZON.most : told + 1_050
      t.ok(free <= most, `free ${free - told} ms after that, and ${free - asked} ms after the next claim, not a second`)
    })

    await test('the level leaks at the rate', async t => {
      const one = perSecond(100, 50)
      const before = performance.now()
      t.equal((await admit(store, [one], 50)).admitted, true)
      const answer = await until(
        () => admit(other, [one], 20),
        ({ admitted }) => admitted,
      )
      const elapsed = performance.now() - before
      t.ok(elapsed >= 199, `20 units after ${elapsed} ms`)
      t.ok(answer.levels[0]! <= 50 + 1e-9 && answer.levels[0]! >= 70 - elapsed / 10 - 1e-6, `${answer.levels}`)
    })

    await test('a request that costs nothing is told the level and changes nothing', async t => {
      const one = perSecond(0.01, 3)
      for (const level of [0, 1, 2, 3]) {
        for (let times = 0; times < 2; times += 1) {
          const { levels } = await admit(other, [one], 0)
          t.ok(Math.abs(levels[0]! - level) < 0.1, `${levels} of ${level}`)
        }
        t.equal((await admit(store, [one], 1)).admitted, level < 3)
      }
    })

    await test('a claim is granted at once, then the buckets are busy', async t => {
      const [slow, quick] = [bucket(1, 10), bucket(4, 10)]
      const before = clock.now()
      const slot = slotOf(await claim(store, [slow, quick], 2))
      // Where answers are slow a slot lies ahead, so that its answer comes in time.
      t.ok(slot >= before && slot <= clock.now() + HORIZON.most, `${slot - before} ms after the call`)
      const refused = await claim(other, [quick, slow], 1)
      t.equal(refused.granted, false)
      const wanted = [slot + HOUR / 2, slot + 2 * HOUR]
      if (!refused.granted) {
        t.equal(refused.freeAt.length, 2)
        for (const [place, moment] of wanted.entries())
          t.ok(Math.abs(refused.freeAt[place]! - moment) < MAPPING, `free ${refused.freeAt[place]! - moment} off`)
      }
      const idle = bucket(1, 10)
      const half = await claim(store, [idle, slow], 1)
      t.ok(!half.granted && half.freeAt[0]! <= clock.now(), 'one that is free is told so')
      t.equal((await claim(store, [idle], 1)).granted, true, 'and has not been claimed')
      await play(t, store, [[[slow, quick], 10, Infinity, 'admitted', [10, 10]]])
    })

    await test('a refused claim is granted when the buckets are free', async t => {
      const one = perSecond(1)
      const first = slotOf(await claim(store, [one]))
      const refused = await claim(store, [one])
      t.ok(!refused.granted && Math.abs(refused.freeAt[0]! - first - 1_000) < MAPPING, JSON.stringify(refused))
      const granted = await until(
        () => claim(other, [one]),
        ({ granted }) => granted,
        1,
      )
      const second = slotOf(granted)
      t.ok(second >= first + 1_000 - MAPPING, `${second - first} ms after the first`)
      t.ok(second - clock.now() <= HORIZON.most + MAPPING, 'no further ahead than the horizon')
    })

    await test('a burst is granted at once, then slots are apart', async t => {
      const stack = [bucket(1, 100, { burst: 3 })]
      const slots: number[] = []
      for (const cost of [1, 1, 0.5]) slots.push(slotOf(await claim(store, stack, cost)))
      const [first, last] = [slots[0]!, slots.at(-1)!]
      t.ok(last - first < SLACK, `${last - first} ms between them`)
      for (const [cost, hours] of [
        [1, 0.5],
        [0.6, 0.1],
        [5, 2.5],
      ] as const) {
        const refused = await claim(other, stack, cost)
        const free = refused.granted ? Number.NaN : refused.freeAt[0]! - first
        t.ok(Math.abs(free - hours * HOUR) < MAPPING, `cost ${cost}: free ${free} ms after the first`)
      }
      // The first slots may lie a few ms further ahead than this one could; half a unit drains in half an hour.
      const rest = await until(
        () => claim(other, stack, 0.5),
        ({ granted }) => granted,
      )
      t.equal(rest.granted, true, 'there is room for this')
      t.equal((await claim(other, stack, 0.5)).granted, false)
    })

    await test('a slot of a burst that is given back is free again, whichever it was', async t => {
      const stack = [bucket(1, 100, { burst: 3 })]
      const first = await claim(store, stack, 2)
      slotOf(await claim(store, stack, 1))
      t.equal((await claim(other, stack, 1)).granted, false)
      if (first.granted) await store.giveBack({ stack, cost: 0, slot: first.slot, slotCost: 2 })
      for (let count = 0; count < 2; count += 1) {
        // What the give-back came later has drained meanwhile.
        t.equal((await claim(other, stack, 0.99)).granted, true, `${count}`)
      }
      t.equal((await claim(other, stack, 0.99)).granted, false)
    })

    await test('a slot of a burst that is given back while later ones lie ahead moves none of them', async t => {
      // Further apart than the calls take.
      const stack = [bucket(360, 100, { burst: 2 })]
      const ahead = () => store.claim({ stack, cost: 1, since: 0, ahead: 600_000 })
      const answers: ClaimAnswer[] = []
      for (let count = 0; count < 6; count += 1) answers.push(await ahead())
      const slots = answers.map(slotOf)
      for (const place of [3, 4])
        await store.giveBack({ stack, cost: 0, slot: (answers[place] as { slot: Slot }).slot, slotCost: 1 })
      const next = slotOf(await ahead())
      t.ok(next >= slots[5]! + 10_000 - MAPPING, `${next - slots[5]!} ms after the last`)
      // The last one is free again.
      const last = await ahead()
      if (last.granted) await store.giveBack({ stack, cost: 0, slot: last.slot, slotCost: 1 })
      const again = slotOf(await ahead()) - slotOf(last)
      t.ok(Math.abs(again) < MAPPING, `${again} ms after the one that was given back`)
    })

    await test('a slot that is given back once the lateness of those who lease has fallen is free again', async t => {
      const one = bucket(1, 10)
      const first = await claim(store, [one])
      for (const late of [5, 0]) await lease(other, one, { instance: 0.2, late, want: 1 })
      await store.giveBack({ stack: [one], cost: 0, slot: (first as { slot: Slot }).slot, slotCost: 1 })
      await lease(other, one, { instance: 0.2 })
      const again = await nextSlot(store, [one], 1)
      t.ok(again < slotOf(first) + SLACK, `${again - slotOf(first)} ms after the one that was given back, not an hour`)
    })

    await test('a burst shortens the predicted wait', async t => {
      const stack = [bucket(1, 100, { burst: 3 })]
      await play(t, store, [
        [stack, 2, 0, 'admitted', [2]],
        [stack, 1, 0, 'admitted', [3]],
        [stack, 1, 0.9, ['max-wait', [0], 0.1], [3]],
        [stack, 1, 1, 'admitted', [4]],
        [stack, 5, 3.5, ['max-wait', [0], 0.5], [4]],
      ])
    })

    await test('slots of a stack are as far apart as its slowest bucket wants', async t => {
      const [a, b] = [perSecond(25), perSecond(40)]
      const slots: number[] = []
      for (const cost of [1, 1, 2, 0.5, 1, 1]) slots.push(await nextSlot(store, [a, b], cost))
      const own = await nextSlot(store, [b], 1)
      const gaps = slots.slice(1).map((slot, index) => slot - slots[index]!)
      for (const [index, gap] of [40, 40, 80, 20, 40].entries())
        t.ok(gaps[index]! >= gap - MAPPING, `${gaps[index]} ms, wanted ${gap}`)
      t.ok(own - slots.at(-1)! >= 25 - MAPPING, `${own - slots.at(-1)!} ms after the last in the quicker one`)
    })

    await test('slots within the horizon are granted ahead', async t => {
      const one = perSecond(1_000)
      const answers = await Promise.all(Array.from({ length: 60 }, () => claim(store, [one])))
      const slots = answers.flatMap(answer => (answer.granted ? [answer.slot.at] : [])).sort((x, y) => x - y)
      t.ok(slots.length >= 2, `${slots.length} granted`)
      t.ok(slots.at(-1)! - clock.now() <= HORIZON.most + MAPPING, 'not beyond')
      for (const [index, slot] of slots.entries())
        t.ok(slot - slots[0]! >= index - MAPPING, `${index}: ${slot - slots[0]!} ms`)
    })

    await test('a claim that comes late is dated back, so far that its answer comes in time', async t => {
      const fresh = () => bucket(1, 10)
      for (const since of [0, 1, SLOT_GRACE, 60_000]) {
        const before = clock.now()
        const slot = slotOf(await claim(store, [fresh()], 1, since))
        const back = Math.min(since, longestBackDate(0))
        t.ok(slot >= before - back && slot <= clock.now() + HORIZON.most, `${slot - before} ms, wanted ${-back}`)
        if (since === 0) t.ok(slot >= before, 'not at all where nothing was waited for')
      }
      // 51 ms, and the answers of a machine that is not busy.
      await within(t, 80, async t => {
        const one = perSecond(20)
        const first = slotOf(await claim(store, [one]))
        await sleep(first + 51 - clock.now())
        const second = slotOf(await claim(store, [one], 1, 60_000))
        const late = clock.now() - (first + 50)
        if (late < SLOT_GRACE) t.ok(Math.abs(second - first - 50) < MAPPING + SLOT_GRACE, `${second - first} ms`)
        t.ok(second - first >= 50 - MAPPING, 'not before it was free')
      })
    })

    await test('an admission claims in one go', async t => {
      const [a, b] = [bucket(1, 2), bucket(2, 10)]
      const before = clock.now()
      const first = await admit(store, [a, b], 1, { claim: true })
      t.ok(first.admitted && first.claim !== undefined)
      const slot = slotOf(first.admitted ? first.claim : undefined)
      t.ok(slot >= before && slot <= clock.now() + HORIZON.most, 'at once')
      const second = await admit(other, [a, b], 1, { claim: true })
      expectLevels(t, second, [2, 2], 'second')
      const answer = second.admitted ? second.claim : undefined
      const freeAt = answer?.granted === false ? answer.freeAt : []
      // Moments of the store are known as well as it has answered so far. These are hours.
      t.ok(Math.abs(freeAt[0]! - slot - HOUR) < SLACK, `admitted without a slot: ${freeAt[0]! - slot} ms`)
      t.ok(Math.abs(freeAt[1]! - slot - HOUR / 2) < SLACK, `${freeAt[1]! - slot} ms`)
      const third = await admit(store, [bucket(1, 10), a], 1, { claim: true })
      t.equal(third.admitted, false, 'a refused one claims nothing')
      const alone = await admit(store, [bucket(1, 10)], 1)
      t.ok(alone.admitted && alone.claim === undefined, 'nothing is claimed where that is not asked for')
    })

    await test('settling moves level and schedule by what it answers', async t => {
      const [one, two] = [bucket(1, 10), bucket(1, 1_000)]
      const stack = [one, two]
      const near = (got: readonly number[], wanted: readonly number[]): void => {
        t.ok(
          wanted.every((cost, place) => Math.abs(got[place]! - cost) <= SLACK / HOUR),
          `${got}, wanted ${wanted}`,
        )
      }
      const settle = async (costs: readonly number[], wanted: readonly number[]): Promise<void> => {
        const differences = stack.map((ref, place) => ({ ...ref, cost: costs[place]! }))
        near(await store.settle!({ stack: differences, cost: 1 }), wanted)
      }
      await admit(store, stack, 1, { claim: true })
      await settle([49, 49], [9, 49])
      await settle([-20, -20], [-10, -20])
      await settle([-20, 5], [0, 5])
      near((await admit(store, stack, 0)).levels, [0, 35])
    })

    await test('a cost that no bucket can count changes nothing', async t => {
      const [one, two] = [bucket(1, 10), bucket(1, 10, { burst: 5 })]
      await play(t, store, [[[one, two], 4, Infinity, 'admitted', [4, 4]]])
      for (const cost of [NaN, Infinity, -1, -Infinity]) {
        const what = `cost ${cost}`
        const refused = { admitted: false, reason: 'too-costly', retryAfterMs: undefined }
        t.match(await admit(store, [one, two], cost), { ...refused, refusing: [0, 1] }, what)
        t.match(await admit(store, [one, two], cost, { claim: true }), { ...refused, refusing: [0, 1] }, what)
        t.match(await admit(store, [one, { ...two, cost }], 1), { ...refused, refusing: [1] }, `${what} of its own`)
        t.match(await claim(store, [one, two], cost), { granted: false }, what)
        t.match(await claim(store, [one, { ...two, cost }], 1), { granted: false }, `${what} of its own`)
        await store.giveBack({ stack: [one, two], cost })
        const slot = { at: clock.now(), from: clock.now(), token: 0 }
        await store.giveBack({ stack: [one, two], cost: 0, slot, slotCost: cost })
        if (cost !== -1) t.same(await store.settle!({ stack: [one, two], cost }), [0, 0], what)
        t.match(await ask(store, { bucket: one, client: 7, cost }), { made: false }, what)
        await play(t, other, [[[one, two], 0, Infinity, 'admitted', [4, 4]]])
      }
      for (const each of [{ held: NaN }, { want: NaN }, { lacks: NaN }, { largest: NaN }]) {
        const answer = await lease(store, one, { instance: 0.7, ...each })
        t.ok(Object.values(answer).flat().every(Number.isFinite), JSON.stringify([each, answer]))
      }
      await play(t, other, [
        [[one, two], 6, Infinity, 'admitted', [10, 10]],
        [[one, two], 1, Infinity, ['overflow', [0, 1], 1], [10, 10]],
      ])
      t.equal((await claim(store, [one, two])).granted, true)
    })

    await test('a quota counts, and starts anew with each period', async t => {
      const key = `quota ${process.pid}`
      const period = (hour: number) => ({ from: 0, until: HOUR, end: 1_800_000_000_000 + hour * HOUR })
      const quota = (hour: number, capacity = 5): BucketRef => {
        return bucket(0, capacity, { key, rate: QUOTA_RATE, quota: period(hour) })
      }
      const counts = async (store: Store, hour: number, cost: number) => {
        const { admitted, levels } = await admit(store, [quota(hour)], cost, { claim: true })
        return [admitted, levels[0]]
      }
      t.same(await counts(store, 1, 3), [true, 3])
      await sleep(20)
      t.same(await counts(other, 1, 2), [true, 5], 'nothing drains, to the last digit')
      t.match(await admit(store, [quota(1)]), { admitted: false, reason: 'overflow', refusing: [0], levels: [5] })
      await store.giveBack({ stack: [quota(1)], cost: 1 })
      t.same(await store.settle!({ stack: [quota(1)], cost: -0.5 }), [-0.5])
      t.same(await counts(other, 1, 1.5), [true, 5])
      t.same(await counts(other, 1, 0), [true, 5])
      t.same(
        await store.settle!({ stack: [quota(1)], cost: 3 }),
        [3],
        'what it really cost counts, also above the limit',
      )
      t.same(await store.settle!({ stack: [quota(1)], cost: -3 }), [-3])
      t.same(await counts(other, 1, 0), [true, 5])
      t.same(await counts(other, 2, 1), [true, 1], 'the next hour has begun')
      t.same(await counts(store, 1, 1), [true, 2], 'an instance that is behind counts in it')
      t.same(await counts(store, 2, 3), [true, 5])
      t.same(await counts(store, 2, 1), [false, 5])
      t.same((await admit(other, [quota(2, 10)], 4)).levels, [9], 'a limit that is raised')
      await other.reset(quota(2))
      t.same(await counts(store, 2, 4), [true, 4])
      const rate = bucket(1, 10, { key })
      await play(t, other, [
        [[rate], 2, Infinity, 'admitted', [2]],
        [[rate, bucket(1, 1)], 2, Infinity, ['too-costly', [1], undefined], [2, 0]],
      ])
      t.same(await counts(store, 2, 1), [true, 1], 'a bucket that becomes a quota counts from 0')
    })

    await test('a quota delays nothing, and a stack takes from both or from none', async t => {
      const key = `quota of a stack ${process.pid}`
      const quota = bucket(0, 3, {
        ...{ key, rate: QUOTA_RATE },
        quota: { from: 0, until: HOUR, end: 1_800_000_000_000 },
      })
      const pace = perSecond(50, 2)
      t.match(await admit(store, [pace, quota], 2), { admitted: true, levels: [2, 2] })
      const refused = await admit(store, [pace, quota], 2)
      t.match([refused.admitted, refused.levels[1]], [false, 2])
      const before = clock.now()
      const slots = [await nextSlot(store, [pace, quota], 1), await nextSlot(other, [pace, quota], 1)]
      t.ok(slots[1]! - slots[0]! >= 20 - MAPPING && slots[1]! - before < SLACK, `${slots}`)
      for (let times = 0; times < 20; times += 1) t.equal((await claim(store, [quota])).granted, true)
    })

    await test('a slot far ahead in a paced bucket does not delay others that share its quota', async t => {
      const key = `quota of two stacks ${process.pid}`
      const quota = bucket(0, 30, {
        ...{ key, rate: QUOTA_RATE },
        quota: { from: 0, until: HOUR, end: 1_800_000_000_000 },
      })
      const slow = [quota, perSecond(5, 9)]
      slotOf(await store.claim({ stack: slow, cost: 1, since: 0, ahead: 400 }))
      const ahead = slotOf(await store.claim({ stack: slow, cost: 1, since: 0, ahead: 400 }))
      t.ok(ahead > clock.now() + 50, `${ahead - clock.now()} ms ahead`)
      t.equal((await claim(other, [quota])).granted, true)
    })

    await test('giveBack of a cost', async t => {
      const [a, b] = [bucket(1, 10), bucket(1, 3)]
      await play(t, store, [[[a, b], 3, Infinity, 'admitted', [3, 3]]])
      await store.giveBack({ stack: [a, b], cost: 2 })
      await play(t, other, [[[a, b], 1, Infinity, 'admitted', [2, 2]]])
      await store.giveBack({ stack: [b], cost: 50 })
      await play(t, store, [[[a, b], 3, Infinity, 'admitted', [5, 3]]])
      await store.giveBack({ stack: [bucket(1, 10)], cost: 1 })
    })

    await test('giveBack of a slot', async t => {
      const [a, b] = [bucket(1, 10), bucket(3, 10)]
      const first = await claim(store, [a, b], 2)
      if (!first.granted) return t.fail('not granted')
      await store.giveBack({ stack: [a, b], cost: 0, slot: first.slot, slotCost: 2 })
      // It may lie a little ahead; were it not free, the next would be hours away.
      const at = await nextSlot(other, [a, b], 2)
      const admitted = await admit(store, [a, b], 4, { claim: true })
      t.equal(admitted.admitted, true)
      // A slot that is still to come counts from its moment.
      await until(
        async () => clock.now(),
        now => now > at,
        1,
      )
      await store.giveBack({ stack: [a, b], cost: 3, slot: first.slot, slotCost: 1 })
      t.equal((await claim(store, [a])).granted, false, 'one that is not the last stays')
      expectLevels(t, await admit(store, [a, b], 0), [2, 2], 'with its cost, down to what others were granted')
    })

    await test('giveBack of the last slot of a stack, not of an earlier one', async t => {
      // Further apart than slots are granted ahead, however slow the answers are.
      const both = [perSecond(1_000), perSecond(2)]
      const early = await claim(store, both)
      const late = await until(
        () => claim(store, both),
        ({ granted }) => granted,
        1,
      )
      if (!early.granted || !late.granted) return t.fail('not granted')
      await store.giveBack({ stack: both, cost: 0, slot: early.slot, slotCost: 1 })
      const next = await claim(store, both)
      if (next.granted) {
        // A busy machine has taken that long.
        t.ok(next.slot.at >= slotOf(late) + 500 - MAPPING, 'nor an earlier one')
      } else {
        await store.giveBack({ stack: both, cost: 0, slot: late.slot, slotCost: 1 })
        // It may lie a little ahead, too. The one behind it is 500 ms later.
        const again = await claim(store, both)
        const after = (again.granted ? again.slot.at : again.freeAt[1]!) - slotOf(late)
        t.ok(after >= -MAPPING && (again.granted || after < MAPPING), `taken again, not earlier: ${after} ms later`)
      }
    })

    await test('giveBack of a slot is for each bucket by itself', async t => {
      const [shared, mine] = [bucket(1, 1_000), bucket(1, 1_000)]
      const slot = await claim(store, [shared, mine])
      if (!slot.granted) return t.fail('not granted')
      await store.reset(shared)
      t.equal((await claim(store, [shared])).granted, true)
      await store.giveBack({ stack: [shared, mine], cost: 0, slot: slot.slot, slotCost: 500 })
      t.equal((await claim(store, [mine])).granted, false, 'of another cost it is another')
      await store.giveBack({ stack: [shared, mine], cost: 0, slot: slot.slot, slotCost: 1 })
      t.equal((await claim(store, [mine])).granted, true, 'each bucket by itself')
    })

    await test('reset forgets level, slots and block', async t => {
      const one = bucket(1, 10, { blockFor: HOUR })
      await admit(store, [one], 10, { claim: true })
      await play(t, store, [
        [[one], 1, Infinity, ['overflow', [0], 1], [10]],
        [[one], 1, Infinity, ['blocked', [0], 1], [10]],
      ])
      t.equal((await claim(store, [one])).granted, false)
      await other.reset(one)
      t.equal((await claim(store, [one])).granted, true)
      await play(t, store, [[[one], 10, Infinity, 'admitted', [10]]])
      await store.reset(bucket(1, 10))
    })

    await test('after a reset who has waited for long gets no slots of the time before', async t => {
      const stack = [bucket(1, 10), perSecond(1_000)]
      const claimOwn = () => store.claim({ stack, cost: 1, since: 2 * HOUR, own: 1 })
      t.equal((await claimOwn()).granted, true)
      await other.reset(stack[0]!)
      const reset = clock.now()
      t.equal((await claimOwn()).granted, true, 'the first leaves at once')
      const second = await claimOwn()
      if (second.granted) return t.fail('the second leaves at once as well')
      const after = second.freeAt[0]! - reset
      t.ok(after > HOUR - SLACK && after <= HOUR + SLACK, `the second leaves after ${after} ms`)
    })

    await test('a slot that lies ahead is used when its buckets are free', async t => {
      const far = { horizon: 75, back: -26 }
      for (const name of ['horizon', 'back'] as const) t.intercept(RoundTrip.prototype, name, { value: far[name] })
      for (const groups of [['a'], ['a', 'b', 'c']]) {
        const stack = groups.map(group => bucket(50 * 3_600, 1_000, { group }))
        const before = clock.now()
        const first = await wholeSlot(store, stack)
        t.ok(first.from >= before && first.from <= clock.now(), `at once: ${first.from - before} ms after the call`)
        // Memory has no way to it.
        const ahead = horizonOf(store, stack) === far.horizon ? 26 : 0
        t.ok(first.at - first.from >= ahead - MAPPING, `${first.at - first.from} ms before the slot`)
        const next = await wholeSlot(store, stack)
        t.ok(next.from >= first.at + 20 - MAPPING, `the next one ${next.from - first.at} ms after that slot`)
        t.ok(next.from <= next.at, 'not after the slot')
      }
    })

    await test('a claim is not before its time', async t => {
      const fresh = () => perSecond(1_000)
      const stack = [fresh(), fresh()]
      const notBefore = clock.now() + horizonOf(store, stack) / 2
      const slot = slotOf(await store.claim({ stack, cost: 1, since: 60_000, notBefore }))
      t.ok(slot >= notBefore - 1, `${slot - notBefore} ms after it`)
      const later = clock.now() + HORIZON.most + FRAME + SLACK
      const refused = await store.claim({ stack: [fresh()], cost: 1, since: 60_000, notBefore: later })
      t.equal(refused.granted, false, 'nor is one granted that is beyond the longest horizon')
      const busy = perSecond(100, 10)
      const ahead = clock.now() + horizonOf(store, [busy]) + 60
      slotOf(await store.claim({ stack: [busy], cost: 1, since: 0, notBefore: ahead, within: 5 }))
      const behind = slotOf(await store.claim({ stack: [busy], cost: 1, since: 0, notBefore: ahead, within: 15 }))
      t.ok(
        behind >= ahead + 9,
        `beyond its horizon one is granted at the moment asked for, or ${behind - ahead} ms after it`,
      )
      const late = await store.claim({ stack: [busy], cost: 1, since: 0, notBefore: ahead, within: 15 })
      t.equal(late.granted, false, 'but no later than was asked for')
      const before = clock.now()
      const passed = await store.claim({ stack: [fresh()], cost: 1, since: 0, notBefore: before - 60_000 })
      t.ok(slotOf(passed) >= before, 'nor in the past')
    })

    await test('because of the last bucket a slot may be ahead by as much as is asked for, unless that is leased', async t => {
      const slow = () => bucket(3_600_000 / (HORIZON.most + FRAME + SLACK), 10)
      let freeAt = 0
      // It is free that much later, less what has passed since.
      const busy = async (more: number) => {
        const one = perSecond(1, 10)
        const ms = horizonOf(store, [one]) + more
        const claimed = await nextSlot(store, [one], ms / 1_000)
        t.ok(claimed <= clock.now() + HORIZON.most)
        freeAt = claimed + ms
        return one
      }
      /** Whether the last one is still further ahead than the horizon, which slow answers make longer. */
      const isAhead = (horizon: number): boolean => freeAt - clock.now() > horizon + MAPPING
      const ahead = async (stack: BucketRef[]) => store.claim({ stack, cost: 1, since: 60_000, ahead: FRAME })
      const admission = async (stack: BucketRef[]) => {
        const answer = await store.admit({ stack, cost: 1, maxWait: Infinity, claim: true, ahead: FRAME })
        return answer.admitted && answer.claim?.granted
      }
      t.equal((await ahead([await busy(FRAME / 2)])).granted, true)
      t.equal((await ahead([slow(), await busy(FRAME / 2)])).granted, true)
      t.equal(await admission([slow(), await busy(FRAME / 2)]), true, 'also with an admission')
      t.equal((await ahead([await busy(SLACK)])).granted, false, 'no more')
      const plain = await busy(FRAME / 2)
      const horizon = horizonOf(store, [plain])
      const alone = await claim(store, [plain])
      if (isAhead(horizon)) t.equal(alone.granted, false, 'nor if nothing is asked for')
      for (const ask of [async (stack: BucketRef[]) => (await ahead(stack)).granted, admission]) {
        const first = await busy(FRAME / 2)
        const others = [first, slow()]
        const reach = horizonOf(store, others)
        const answer = await ask(others)
        if (isAhead(reach)) t.equal(answer, false, 'not because of another one')
        const leased = await busy(FRAME / 2)
        await lease(other, leased, { want: 1 })
        const stack = [slow(), leased]
        const last = horizonOf(store, stack)
        const denied = await ask(stack)
        if (isAhead(last)) t.equal(denied, false, 'not where somebody leases it')
      }
    })

    await test('a bucket before the last of a stack counts a slot from before it, by four periods at most', async t => {
      const [own, shared] = [perSecond(50, 100), perSecond(20, 100)]
      const stack = [own, shared]
      const claimOwn = (bucket: BucketRef[], more: object) =>
        store.claim({ stack: bucket, cost: 1, since: 1_000, ahead: FRAME, ...more })
      // The second waits for the shared bucket until 50 ms later. Its own was free all the time. All are asked in one call.
      const claims = [claimOwn([shared], {}), claimOwn(stack, { own: 1 }), claimOwn([own], {})]
      const [, first, next] = (await Promise.all(claims)).map(slotOf) as [number, number, number]
      t.ok(next <= first - 10 + MAPPING, `${next - first} ms: its own was free before`)
      const late = perSecond(50, 100)
      const at = clock.now() + 110
      const ahead = [claimOwn([late], { notBefore: at, within: 1, own: 1 }), claimOwn([late], {})]
      const [far, after] = (await Promise.all(ahead)).map(slotOf) as [number, number]
      t.ok(
        after >= far - 60 - MAPPING && after <= far - 60 + MAPPING,
        `${after - far} ms: 80 ms before, and its length`,
      )
    })

    await test('two instances lease the slots of one schedule', async t => {
      const one = perSecond(100)
      const slots: number[] = []
      const start = clock.now()
      const report = async (store: Store, instance: number) => {
        const before = clock.now()
        const answer = await lease(store, one, { instance, demand: [{ priority: 3, weight: 1, cost: 8 }], lead: 20 })
        t.ok(answer.nextAt >= before + FRAME - 1e-3, 'it is asked again after a frame')
        slots.push(...answer.slots.map(({ at }) => at))
        return answer
      }
      for (let round = 0; round < 5; round += 1) {
        const [first, second] = await Promise.all([report(store, 0.1), report(other, 0.2)])
        t.equal(Math.max(first.instances, second.instances), 2)
        await sleep(Math.max(first.nextAt, second.nextAt) - clock.now())
      }
      slots.sort((x, y) => x - y)
      t.ok(slots[0]! >= start + 20, 'none is before its instance can use it')
      t.ok(slots.length >= 5, `${slots.length} slots`)
      for (const [index, slot] of slots.entries())
        t.ok(slot - slots[0]! >= index * 10 - MAPPING, `${index}: ${slot - slots[0]!} ms after the first`)
    })

    await test('a lease deals a burst at once to what waits, and slots that are apart to what is expected', async t => {
      const slotsFor = async (priority: number): Promise<number[]> => {
        const one = bucket(360_000, 100, { burst: 5 })
        const demand = [{ priority, weight: 1, cost: 8 }]
        const { slots } = await lease(store, one, { instance: 0.1, demand, largest: 1, lead: 20 })
        return slots.map(({ at }) => at)
      }
      const waiting = await slotsFor(3)
      t.equal(waiting.length, 8)
      t.ok(waiting[4]! - waiting[0]! <= MAPPING, `${waiting[4]! - waiting[0]!} ms`)
      for (const place of [5, 6, 7]) t.ok(waiting[place]! - waiting[place - 1]! >= 10 - MAPPING, `slot ${place}`)
      const expected = await slotsFor(FORECAST)
      t.ok(expected.length >= 5, `${expected.length} slots`)
      for (let place = 1; place < expected.length; place += 1)
        t.ok(expected[place]! - expected[place - 1]! >= 10 - MAPPING, `slot ${place} of what is expected`)
    })

    await test('slots are dealt out no faster than the pace of an instance, and others have those between them', async t => {
      const one = perSecond(100)
      const demand = [{ priority: 3, weight: 1, cost: 30 }]
      const report = async (instance: number, pace: number): Promise<number[]> => {
        const { slots } = await lease(store, one, { instance, pace, demand, lead: 20 })
        return slots.map(({ at }) => at)
      }
      const gapsOf = (times: readonly number[]): number[] => times.slice(1).map((at, place) => at - times[place]!)
      const slow = await report(0.1, 0.025)
      t.ok(slow.length >= 3, `${slow.length} slots`)
      for (const gap of gapsOf(slow))
        t.ok(gap >= 35 - MAPPING && gap <= 40 + MAPPING, `${gap} ms, half of a slot early at most`)
      await store.reset(one)
      const first = await report(0.1, 0.025)
      const other = await report(0.2, Infinity)
      t.ok(other.length >= 3 && first.length >= 1, `${first.length} and ${other.length} slots`)
      const all = [...first, ...other].sort((x, y) => x - y)
      for (const gap of gapsOf(all)) t.ok(gap >= 10 - MAPPING, `${gap} ms between slots of all`)
      await store.reset(one)
    })

    await test('a report tells a store that has lost its data how far the schedule reaches', async t => {
      const one = perSecond(100)
      const waiting = [{ priority: 3, weight: 1, cost: 8 }]
      const before = clock.now()
      const first = await lease(store, one, { instance: 0.1, demand: waiting, ahead: 2_000 })
      t.same(first.slots, [], 'nothing before what is leased has drained')
      t.ok(first.until >= before + 2_000 - MAPPING, `${first.until - before} ms`)
      const later = await lease(store, one, { instance: 0.1, demand: waiting, ahead: 9_000 })
      t.ok(later.until < before + 3_000, 'one that the store knows does not move it')
      await store.reset(one)
    })

    await test('slots that are returned go to another instance', async t => {
      const one = perSecond(10)
      const waiting = [{ priority: 3, weight: 1, cost: 5 }]
      const begun = clock.now()
      const mine = await lease(store, one, { instance: 0.1, demand: waiting, lead: 1_000 })
      t.ok(mine.slots.length >= 1)
      await lease(store, one, { instance: 0.1, returned: mine.slots })
      const theirs = await lease(other, one, { instance: 0.2, demand: waiting, lead: 1_000 })
      const late = theirs.slots[0]!.at - mine.slots[0]!.at
      t.ok(late > -MAPPING && late < 1_000 + clock.now() - begun, `${late} ms later`)
      t.equal(theirs.instances, 1, 'and who needs nothing has left')
    })

    await test('a report is told what waits in the other instances and has no slot, by class', t =>
      within(t, FRAME + LEASE_LIFE, async t => {
        const one = bucket(1, 1_000)
        const lead = 1_000
        await admit(store, [one], 1)
        await claim(store, [one])
        const urgent = { priority: 0, weight: 1, cost: 2 }
        const usual = { priority: 3, weight: 2, cost: 7 }
        await lease(store, one, { instance: 0.1, demand: [urgent, usual], lead })
        const second = await lease(other, one, { instance: 0.2, demand: [usual], lead })
        t.same(second.others, [urgent, usual])
        const look = await lease(other, one, { instance: 0.3, lead })
        t.same(look.others, [urgent, { priority: 3, weight: 4, cost: 14 }], 'who leases nothing is told as well')
        await lease(store, one, { instance: 0.1 })
        t.same((await lease(store, one, { instance: 0.3, lead })).others, [usual], 'of one that has left nothing waits')
      }))

    await test('room that is leased counts in the level', t =>
      within(t, FRAME + LEASE_LIFE, async t => {
        const one = bucket(1, 100)
        const level = async (wanted: number, what: string) =>
          expectLevels(t, await admit(store, [one], 0), [wanted], what)
        const near = (got: number, wanted: number, what: string) =>
          t.ok(Math.abs(got - wanted) <= SLACK / HOUR, `${what}: ${got}`)
        const first = await lease(store, one, { instance: 0.1, want: 10 })
        near(first.room, 10, 'as much as it wants')
        near(first.spare, 90, 'left for all')
        near(first.level, 0, 'admitted')
        near(first.roomRate * HOUR, 1, 'and the rate')
        await level(10, 'set apart')
        const second = await lease(other, one, { instance: 0.2, want: 1_000 })
        near(second.room, 45, 'half of what is left')
        t.equal(second.roomRate, 0, 'the rate is leased already')
        await level(55, 'both')
        t.match(await admit(store, [one], 50), { reason: 'overflow' })
        const later = await lease(store, one, { instance: 0.1, held: 4, want: -1 })
        near(later.room, 0, 'it asks for each')
        near(later.level, 4, 'what it has used counts')
        t.equal(later.instances, 1)
        await level(49, 'the rest is back')
        await lease(store, one, { instance: 0.2 })
        await level(4, 'they have left')
      }))

    await test('what waits counts in the level, though the meter says less', t =>
      within(t, FRAME + LEASE_LIFE, async t => {
        const one = bucket(1, 100)
        const demand = [{ priority: 3, weight: 1, cost: 1 }]
        const look = () => admit(store, [one], 0)
        await admit(store, [one], 10)
        const full = await lease(store, one, { demand, lacks: 130, want: 10 })
        t.ok(Math.abs(full.level - 130) < SLACK / HOUR && full.spare < -29, `${full.level} wait, ${full.spare} fit`)
        t.same([full.room, full.roomRate], [0, 0], 'nothing is admitted before it fits')
        t.match(await admit(other, [one]), { reason: 'overflow' })
        const [level] = (await look()).levels
        t.ok(Math.abs(level! - 130) < SLACK / HOUR, `${level}, though it is not leased by who asks`)
        // A slot of the schedule has been dealt for one of them.
        const rest = await lease(store, one, { demand: [], lacks: 39, want: 0.5 })
        t.ok(
          Math.abs(rest.level - 10) < SLACK / HOUR,
          `${rest.level}: who has the room that it asks for is told the meter's`,
        )
        // PostgreSQL decides a report for the moment at which it ends, so the bucket has drained a moment less when it is asked at once.
        const [left] = (await look()).levels
        t.ok(left! < 40.5 + MAPPING / HOUR && left! > 40.5 - SLACK / HOUR, `they have left: ${left}`)
        const looks = await lease(other, one, { instance: -1 })
        t.ok(Math.abs(looks.level - 40) < SLACK / HOUR, `${looks.level}: who only looks is told what waits`)
        await lease(store, one, { lacks: 0, held: rest.filled })
        expectLevels(t, await look(), [10], 'the meter is as before')
        const filling = bucket(1, 100, { overflow: 'fill' })
        await lease(store, filling, { demand, lacks: 30, want: -1 })
        expectLevels(t, await admit(store, [filling], 0), [0], 'but a bucket that a rejected request fills')
      }))

    await test('a slot that lies ahead of an idle bucket is not more that waits: of b + 1 exactly b are admitted', t =>
      within(t, LEASE_LIFE, async t => {
        const one = perSecond(0.4, 3)
        await admit(store, [one])
        const notBefore = clock.now() + FRAME / 2
        slotOf(await store.claim({ stack: [one], cost: 1, since: 0, notBefore, within: FRAME }))
        await admit(other, [one])
        const answer = await lease(other, one, { lacks: 1, demand: [{ priority: 3, weight: 1, cost: 1 }] })
        t.ok(answer.level <= 2, `${answer.level} after two`)
        t.equal((await admit(store, [one])).admitted, true, 'the third')
        t.match(await admit(store, [one]), { admitted: false, reason: 'overflow' }, 'and no more')
        await lease(other, one, { lacks: 2, demand: [{ priority: 3, weight: 1, cost: 2 }] })
        t.match(await admit(store, [one]), { admitted: false, reason: 'overflow' }, 'nor after a report')
      }))

    await test('who leases nothing is told the level without leased room and its growth, and leaves no trace', t =>
      within(t, FRAME + LEASE_LIFE, async t => {
        const one = perSecond(100, 1_000)
        const look = async (): Promise<LeaseAnswer> => lease(other, one, { instance: -1, largest: 0 })
        t.match(await look(), { level: 0, room: 0, instances: 0, slots: [] })
        const before = clock.now()
        await admit(store, [one], 500)
        const admitted = clock.now()
        await lease(store, one, { instance: 0.1, want: 10 })
        await sleep(100)
        const asked = clock.now()
        const { level, instances } = await look()
        const answered = clock.now()
        const drained = [(asked - admitted - MAPPING) / 10, (answered - before + MAPPING) / 10] as const
        t.ok(500 - level >= drained[0] && 500 - level <= drained[1], `${level}, after ${drained}`)
        t.equal(instances, 1, 'the other one')
        const { room } = await lease(store, one, { instance: 0.1, want: 10 })
        t.equal(Math.round(room), 10)
      }))

    await test('reset of a leased bucket forgets its leases', async t => {
      const one = bucket(1, 10, { blockFor: HOUR })
      await admit(store, [one], 10)
      t.match(await admit(store, [one]), { reason: 'overflow' })
      const demand = [{ priority: 3, weight: 1, cost: 1 }]
      const { slots } = await lease(store, one, { demand })
      t.equal(slots.length, 1)
      t.equal((await claim(other, [one])).granted, false)
      await other.reset(one)
      await play(t, store, [[[one], 7, Infinity, 'admitted', [7]]])
      t.equal((await claim(other, [one])).granted, true, 'its schedule begins anew')
      const { instances, room, level, until } = await lease(store, one, { held: 1, want: 1, returned: slots })
      t.same([instances, room], [1, 1], 'an instance that has not heard of it is a new one')
      t.ok(Math.abs(level - 8) < SLACK / HOUR, 'what it has admitted counts')
      t.ok(until - slots[0]!.at > HOUR / 2, 'and a slot of before does not shorten the schedule')
      t.equal((await lease(store, one, {})).instances, 0)
    })

    await test('two clients at once admit exactly b', async t => {
      const [all, wide] = [bucket(1, 100), bucket(1, 1_000_000)]
      const answers = await Promise.all(
        Array.from({ length: 500 }, (_, index) =>
          admit(index % 2 === 0 ? store : other, index % 3 === 0 ? [all, wide] : [wide, all]),
        ),
      )
      t.equal(answers.filter(({ admitted }) => admitted).length, 100)
      expectLevels(t, await admit(store, [all, wide], 0), [100, 100], 'and nothing else is in')
    })

    await test('slots of two clients are distinct and spaced, none is early', async t => {
      const one = perSecond(200)
      const start = clock.now()
      const take = async (store: Store): Promise<number[]> => {
        const slots: number[] = []
        while (slots.length < 25) {
          const before = clock.now()
          const answer = await claim(store, [one])
          if (answer.granted) {
            t.ok(answer.slot.at >= before - 1e-3, `${answer.slot.at - before} ms after the call`)
            slots.push(answer.slot.at)
          } else {
            await sleep(Math.max(0, answer.freeAt[0]! - HORIZON.least - clock.now()))
          }
        }
        return slots
      }
      const slots = (await Promise.all([take(store), take(other)])).flat().sort((x, y) => x - y)
      t.ok(slots[0]! >= start)
      for (const [index, slot] of slots.entries())
        t.ok(slot - slots[0]! >= index * 5 - MAPPING, `${index}: ${slot - slots[0]!} ms after the first`)
    })

    await test('instances tell each other of an upstream', t => exchangesInRealTime(t, store, other))
    await beats

    await test('each verb is answered as in memory', async t => {
      const model = new Map(askAll(createMemoryStore({ clock })))
      for (const [verb, ask] of askAll(store)) t.same(shapeOf(await ask()), shapeOf(await model.get(verb)!()), verb)
    })

    await store.close()
    if (store !== other)
      for (const [verb, ask] of askAll(store)) await t.rejects(ask(), StoreError, `${verb}: it is closed`)
  })
}

/**
 * Sets the clock of a store.
 *
 * @param create makes a client of a server; `setClock` sets its offset from the real time in ms, 0 at first; called once
 */
export function clockConformance(
  name: string,
  create: () => Promise<{ store: Store; setClock(ms: number): Promise<unknown>; close(): Promise<void> }>,
): void {
  t.test(`${name}: a clock that is set back or forward by an hour`, async t => {
    const { store, setClock, close } = await create()
    t.teardown(close)
    const [one, slow, blocking] = [bucket(1, 10), perSecond(2), bucket(1, 10, { blockFor: HOUR / 6 })]
    const level = async () => (await admit(store, [one], 0)).levels[0]!
    const near = (got: number, wanted: number, what: string) => t.ok(Math.abs(got - wanted) < 0.01, `${what}: ${got}`)
    const granted = async (what: string) => {
      const start = performance.now()
      let [last, asked] = [start, start]
      await until(
        () => {
          last = asked
          asked = performance.now()
          return claim(store, [slow])
        },
        ({ granted }) => granted,
      )
      t.ok(last - start < 1_500, what)
    }
    await admit(store, [one], 5)
    await admit(store, [blocking], 10)
    await admit(store, [blocking], 10)
    t.equal((await claim(store, [slow])).granted, true)

    await setClock(-HOUR)
    near(await level(), 5, 'back: as if no time had passed')
    t.match(await admit(store, [blocking]), { reason: 'blocked' }, 'still blocked')
    await granted('no claim waits for an hour, also with claims all the time')
    const before = clock.now()
    const slot = slotOf(await claim(store, [perSecond(1)]))
    t.ok(slot >= before && slot <= clock.now() + HORIZON.most, 'slots are in our time')

    await setClock(HOUR)
    near(await level(), 3, 'forth by two hours: as if they had passed')
    t.match(await admit(store, [blocking]), { admitted: true }, 'and the block is over')
    await granted('free')
    await setClock(0)
    near(await level(), 3, 'and back')
    await granted('no claim waits')
  })
}
