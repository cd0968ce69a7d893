import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { Deadlines, type Watched } from '../../src/proxy/deadlines.js'

function watcher(expired: [string, number][], now: () => number) {
  return (name: string, then?: () => void): Watched => ({
    list: undefined,
    previous: undefined,
    next: undefined,
    dueAt: 0,
    expired() {
      expired.push([name, now()])
      then?.()
    },
  })
}

t.test('a deadline that is started again begins anew, the newest too', async t => {
  const clock = createVirtualClock()
  const deadlines = new Deadlines(clock, 1_000)
  const expired: [string, number][] = []
  const entry = watcher(expired, clock.now)
  const [older, newer] = [entry('older'), entry('newer')]
  deadlines.watch(older)
  deadlines.watch(newer)
  clock.runUntil(300)
  deadlines.watch(newer)
  clock.runUntil(600)
  deadlines.watch(older)
  t.equal(deadlines.size, 2)
  clock.runUntil(5_000)
  t.same(expired, [
    ['newer', 1_300],
    ['older', 1_600],
  ])
})

t.test('a deadline that starts while another ends does not delay those that are left', async t => {
  const clock = createVirtualClock()
  const deadlines = new Deadlines(clock, 1_000)
  const expired: [string, number][] = []
  const entry = watcher(expired, clock.now)
  const late = entry('late')
  deadlines.watch(entry('first', () => deadlines.watch(late)))
  clock.runUntil(1)
  deadlines.watch(entry('second'))
  t.equal(deadlines.size, 2)
  clock.runUntil(5_000)
  t.same(expired, [
    ['first', 1_000],
    ['second', 1_001],
    ['late', 2_000],
  ])
  t.equal(deadlines.takeNewest(), undefined)
})
