import fc from 'fast-check'
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { runs } from '../runs.js'

t.test('the virtual clock moves only when it is told to', async t => {
  const clock = createVirtualClock()
  t.equal(clock.now(), 0)
  clock.runUntil(12.5)
  t.equal(clock.now(), 12.5)
  clock.runUntil(3)
  t.equal(clock.now(), 12.5, 'never backwards')
  t.equal(createVirtualClock({ start: 1e9 }).now(), 1e9)
})

t.test('callbacks run in order of time, those of the same time in order of planning', async t => {
  const clock = createVirtualClock()
  const ran: string[] = []
  for (const [due, name] of [
    [30, 'c'],
    [10, 'a'],
    [20, 'b'],
    [10, 'a2'],
  ] as const) {
    clock.at(due, () => ran.push(`${name}@${clock.now()}`))
  }
  clock.runUntil(20)
  t.same(ran, ['a@10', 'a2@10', 'b@20'], 'those due at the end are run too')
  t.equal(clock.runAll(), 30)
  t.same(ran.slice(3), ['c@30'])
  t.equal(clock.runAll(), 30, 'nothing is left')
})

t.test('a callback for a past time runs as soon as possible, but not synchronously', async t => {
  const clock = createVirtualClock({ start: 100 })
  let ranAt = -1
  clock.at(5, () => {
    ranAt = clock.now()
  })
  t.equal(ranAt, -1)
  clock.runUntil(100)
  t.equal(ranAt, 100)
})

t.test('a callback may plan others', async t => {
  const clock = createVirtualClock()
  const ran: number[] = []
  const tick = (): void => {
    ran.push(clock.now())
    if (ran.length < 5) clock.at(clock.now() + 10, tick)
  }
  clock.at(10, tick)
  clock.runUntil(30)
  t.same(ran, [10, 20, 30])
  t.equal(clock.runAll(), 50)
})

t.test('cancel', async t => {
  const clock = createVirtualClock()
  let ran = 0
  const run = (): void => {
    ran += 1
  }
  const cancel = clock.at(10, run)
  const cancelLater = clock.at(10, run)
  t.equal(cancel(), true)
  t.equal(cancel(), false, 'only once')
  clock.runAll()
  t.equal(ran, 1, 'the same function planned twice is two plans')
  t.equal(cancelLater(), false, 'too late')
})

t.test('property: a wake-up is as late as configured, and never early', async () => {
  fc.assert(
    fc.property(
      fc.array(fc.record({ due: fc.integer({ min: 0, max: 50 }), late: fc.integer({ min: 0, max: 30 }) })),
      plans => {
        const latenesses = plans.map(plan => plan.late)
        const clock = createVirtualClock({ lateness: () => latenesses.shift()! })
        const wakes: number[] = []
        const expected = plans.map(({ due, late }) => due + late)
        for (const { due, late } of plans) {
          clock.at(due, () => {
            wakes.push(clock.now())
            if (clock.now() !== due + late) throw new Error('not at its time')
          })
        }
        clock.runAll()
        return wakes.join() === expected.sort((a, b) => a - b).join()
      },
    ),
    { seed: 6, numRuns: runs(500) },
  )
})
