/** What every real clock owes its users. Only lower bounds on time are exact; the machine may be busy. */
import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import t from 'tap'
import type { Clock } from '../../src/core/clock.js'
import { CONTROLS } from '../../src/pacing/armed-writes.js'
import { createPreciseClock } from '../../src/pacing/precise.js'
import { createTimerClock } from '../../src/pacing/timer.js'

type Closing = Clock & { close?(): void }

/** A precise clock whose thread has been taken away. */
function createBereftClock(): Closing {
  const clock = createPreciseClock()
  clock.close()
  return clock
}

const clocks: [name: string, create: () => Closing][] = [
  ['timer', createTimerClock],
  ['precise', createPreciseClock],
  ['precise, fallen back', createBereftClock],
]

/** Runs at each of these distances from now; returns when each ran, less its due time. */
function latenesses(clock: Clock, distances: readonly number[]): Promise<number[]> {
  const start = clock.now()
  return Promise.all(
    distances.map(
      distance =>
        new Promise<number>(resolve => clock.at(start + distance, () => resolve(clock.now() - start - distance))),
    ),
  )
}

for (const [name, create] of clocks) {
  t.test(`${name}: never before due, however near or far, and all of them`, async t => {
    const clock = create()
    t.teardown(() => clock.close?.())
    const distances = [-5, 0, 0.01, 0.05, 0.1, 0.2, 0.31, 0.7, 1, 1.3, 2.9, 5.5, 5.5, 11.1, 40.7, 120.3]
    const late = await latenesses(clock, distances)
    t.equal(late.length, distances.length)
    t.same(
      late.filter(lateness => lateness < 0),
      [],
    )
  })

  t.test(`${name}: in the order of their due times`, async t => {
    const clock = create()
    t.teardown(() => clock.close?.())
    const start = clock.now()
    const ran: number[] = []
    const distances = [30, 10, 20, 5, 25, 15]
    await new Promise<void>(resolve => {
      for (const distance of distances) {
        clock.at(start + distance, () => {
          ran.push(distance)
          if (ran.length === distances.length) resolve()
        })
      }
    })
    t.same(
      ran,
      [...distances].sort((a, b) => a - b),
    )
  })

  t.test(`${name}: a cancelled one does not run, and cancelling tells whether it was in time`, async t => {
    const clock = create()
    t.teardown(() => clock.close?.())
    let ran = false
    const cancel = clock.at(clock.now() + 5, () => {
      ran = true
    })
    t.equal(cancel(), true)
    t.equal(cancel(), false)
    let cancelLate = (): boolean => true
    await new Promise<void>(resolve => {
      cancelLate = clock.at(clock.now() + 20, resolve)
    })
    t.equal(ran, false)
    t.equal(cancelLate(), false, 'too late')
  })

  t.test(`${name}: what is planned while another runs`, async t => {
    const clock = create()
    t.teardown(() => clock.close?.())
    const late: number[] = []
    const start = clock.now()
    await new Promise<void>(resolve => {
      const step = (count: number): void => {
        const due = start + count * 2.5
        late.push(clock.now() - due)
        if (count === 40) resolve()
        else clock.at(start + (count + 1) * 2.5, () => step(count + 1))
      }
      clock.at(start + 2.5, () => step(1))
    })
    t.equal(late.length, 40)
    t.ok(Math.min(...late) >= 0)
  })
}

t.test('precise: closer to the due time than timers', async t => {
  // Of the best of them: a busy machine delays the rest.
  const best = async (clock: Closing, first: number): Promise<number> => {
    const late = await latenesses(
      clock,
      Array.from({ length: 60 }, (_, index) => first + index * 4.3),
    )
    clock.close?.()
    return late.sort((a, b) => a - b)[12]!
  }
  // In turn, so that what else the machine does delays both alike.
  const [timer, precise] = await Promise.all([best(createTimerClock(), 50), best(createPreciseClock(), 52.15)])
  t.ok(precise < timer, `${precise.toFixed(3)} ms against ${timer.toFixed(3)} ms`)
})

t.test('precise: goes on when its thread falls silent', async t => {
  const clock = createPreciseClock()
  t.teardown(() => clock.close())
  t.equal(clock.precise, true)
  // Nothing that the thread posts arrives while the loop is kept busy; the timer behind it steps in.
  const start = performance.now()
  const ran = await new Promise<number>(resolve => {
    clock.at(start + 10, () => resolve(performance.now()))
    while (performance.now() < start + 30);
  })
  t.ok(ran >= start + 10)
})

t.test('precise: the thread tells when it has written the last of a lane, or finds it taken back', async t => {
  const clock = createPreciseClock()
  t.teardown(() => clock.close())
  const descriptor = openSync(join(t.testdir({}), 'written'), 'w')
  t.teardown(() => closeSync(descriptor))
  const alive = setInterval(() => undefined, 1_000)
  t.teardown(() => clearInterval(alive))
  const writes = clock.writes!
  while (!writes.running) await new Promise(resolve => setImmediate(resolve))
  let tell: () => void = () => undefined
  const news = (): Promise<void> =>
    new Promise(resolve => {
      tell = resolve
    })
  writes.onNews = () => tell()
  const slot = clock.now() + 5
  const first = writes.arm({ text: 'first ', descriptor, slot, latest: Infinity, after: undefined })!
  const second = writes.arm({ text: 'second ', descriptor, slot: slot + 5, latest: Infinity, after: first })!
  await news()
  t.ok(second.sentAt !== undefined, 'not before the last of them')
  const third = writes.arm({ text: 'third ', descriptor, slot: clock.now() + 1_000, latest: Infinity, after: second })!
  const next = news()
  // What is taken back before the thread has read it, it never sees.
  const { controls } = writes.memory
  const isRead = (): boolean => Atomics.load(controls, CONTROLS.read) === Atomics.load(controls, CONTROLS.armed)
  while (!isRead()) await new Promise(resolve => setImmediate(resolve))
  t.equal(third.revoke(), true)
  await next
  for (const write of [third, second, first]) write.free()
})

t.test('precise: the thread writes at the slot, and leaves what comes behind a late one', async t => {
  const clock = createPreciseClock()
  t.teardown(() => clock.close())
  const file = join(t.testdir({}), 'written')
  const descriptor = openSync(file, 'w')
  t.teardown(() => closeSync(descriptor))
  // The thread does not keep the process alive.
  const alive = setInterval(() => undefined, 1_000)
  t.teardown(() => clearInterval(alive))
  const writes = clock.writes!
  while (!writes.running) await new Promise(resolve => setImmediate(resolve))
  const left = new Promise<void>(resolve => {
    writes.onNews = resolve
  })
  const slot = clock.now() + 5
  const first = writes.arm({ text: 'first ', descriptor, slot, latest: slot + 1_000, after: undefined })!
  // Whenever it is written, that is too late.
  const second = writes.arm({ text: 'second ', descriptor, slot: slot + 1, latest: slot, after: first })!
  const third = writes.arm({ text: 'third ', descriptor, slot: slot + 2, latest: slot + 1_000, after: second })!
  await left
  t.equal(readFileSync(file, 'latin1'), 'first second ')
  t.ok(first.sentAt! >= slot && second.sentAt! >= slot + 1, 'never before the slot')
  t.equal(third.revoke(), true)
  t.equal(first.revoke(), false)
  for (const write of [third, second, first]) write.free()
})
