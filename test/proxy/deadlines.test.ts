import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { Deadlines, type Watched } from '../../src/proxy/deadlines.js'

t.test('a deadline that starts while another ends does not delay those that are left', async t => {
  const clock = createVirtualClock()
  const deadlines = new Deadlines(clock, 1_000)
  const expired: [string, number][] = []
  const entry = (name: string, then?: () => void): Watched => ({
    list: undefined,
    previous: undefined,
    next: undefined,
    dueAt: 0,
    expired() {
      expired.push([name, clock.now()])
      then?.()
    },
  })
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
