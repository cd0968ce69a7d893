/** When the timetable of rates looks at the clock. */
import t from 'tap'
import { type Clock, createVirtualClock } from '../../src/core/clock.js'
import { Timetable } from '../../src/proxy/timetable.js'
import { parse } from '../config/sample.js'

const settings = (rate: unknown) => parse({ upstream: 'echo:', buckets: { a: { rate } } })
const NOON = settings([{ from: '12:00', to: '13:00', rate: '5/s' }, { rate: '1/s' }])

function timetable(time: string) {
  const virtual = createVirtualClock()
  const start = Date.parse(time)
  const planned = new Set<object>()
  const looks: number[] = []
  const clock: Clock = {
    now: () => virtual.now(),
    at(due, run) {
      const entry = {}
      planned.add(entry)
      const cancel = virtual.at(due, () => {
        planned.delete(entry)
        looks.push(virtual.now())
        run()
      })
      return () => planned.delete(entry) && cancel()
    },
  }
  const changes: [at: number, rate: number][] = []
  const table = new Timetable({
    clock,
    now: () => virtual.now(),
    wallNow: () => start + virtual.now(),
    changed: ({ buckets }) => changes.push([virtual.now(), Math.round(buckets[0]!.rate * 1_000)]),
  })
  return { table, virtual, planned, looks, changes }
}

t.test('it looks at each whole minute, once, and tells of changes alone', async t => {
  const { table, virtual, planned, looks, changes } = timetable('2026-11-23T11:57:30.250Z')
  t.equal(table.follow(NOON).buckets[0]!.rate, 0.001)
  virtual.runUntil(300_000)
  t.same(looks, [29_750, 89_750, 149_750, 209_750, 269_750])
  t.same(changes, [[149_750, 5]])
  t.equal(planned.size, 1)
})

t.test('it looks no more for another configuration, for one without times, and when closed', async t => {
  const { table, virtual, planned, looks } = timetable('2026-11-23T11:57:30Z')
  table.follow(NOON)
  t.equal(table.follow(NOON).buckets[0]!.rate, 0.001)
  t.equal(planned.size, 1)
  const plain = settings('7/s')
  t.equal(table.follow(plain), plain)
  t.equal(planned.size, 0)
  table.follow(NOON)
  table.close()
  table.close()
  virtual.runUntil(600_000)
  t.same(looks, [])
})

t.test('a wake-up before the minute changes nothing, and the next look is at the minute', async t => {
  const virtual = createVirtualClock()
  // The clock of the system is 3 ms behind after half a minute.
  const wallNow = () => Date.parse('2026-11-23T11:59:30Z') + virtual.now() - (virtual.now() >= 30_000 ? 3 : 0)
  const changes: number[] = []
  const table = new Timetable({
    clock: virtual,
    now: () => virtual.now(),
    wallNow,
    changed: () => changes.push(virtual.now()),
  })
  table.follow(NOON)
  virtual.runUntil(60_000)
  t.same(changes, [30_003])
})

t.test('limits know when their rate changes next, also after the clock was set', async t => {
  const virtual = createVirtualClock()
  let start = Date.parse('2026-11-23T09:00:30Z')
  const told: string[] = []
  const nextOf = ({ buckets }: ReturnType<typeof settings>) => buckets[0]!.limits.next
  const table = new Timetable({
    clock: virtual,
    now: () => virtual.now() + 1_000_000,
    wallNow: () => start + virtual.now(),
    changed: (present, what) => told.push(`${what} ${nextOf(present)!.at}`),
  })
  const minute = 60_000
  t.same(nextOf(table.follow(NOON)), { at: 1_000_000 + 179.5 * minute, rate: 0.005, capacity: 1 })
  virtual.runUntil(10 * minute)
  t.same(told, [])
  start += 60 * minute
  virtual.runUntil(20 * minute)
  t.same(told, [`moment ${1_000_000 + 119.5 * minute}`])
  virtual.runUntil(120 * minute)
  t.same(told.slice(1), [`rates ${1_000_000 + 179.5 * minute}`])
})
