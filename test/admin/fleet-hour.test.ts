/** The last hour of each instance, and of all of them as one. */
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import t from 'tap'
import { createFleet } from '../../src/admin/fleet/fleet.js'
import {
  fleetHour,
  type HourList,
  HourRing,
  LARGEST_PART,
  PARTS,
  readHours,
  recordHour,
  STEP,
  STEPS,
  type Totals,
  writeHour,
} from '../../src/admin/fleet/hour.js'
import { createVirtualClock } from '../../src/core/clock.js'
import type { Board } from '../../src/sharing/board.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { ROOT } from '../cli/command.js'

/** A step begins here. */
const START = 170_000_000 * STEP

function totals(count: number, buckets: readonly string[] = ['client']): Totals {
  const bucket = { offered: count, released: count / 2, rejected: count / 4, waiting: count % 7 }
  return {
    ...{ forwarded: count, rejected: count / 4, errors: count / 8, waiting: count % 7, cpu: count / 1_000 },
    buckets: new Map(buckets.map(name => [name, bucket])),
  }
}

const sum = (list: HourList): number => list.reduce<number>((all, value) => all + (value ?? 0), 0)

t.test('a ring keeps an hour, and spreads what was counted while the process was stopped', async t => {
  const ring = new HourRing(START + 3_000)
  ring.end(START + 9_999, totals(5))
  t.same(ring.points, [], 'no step has ended')
  ring.end(START + STEP, totals(8))
  t.match(ring.points, [{ step: START / STEP, forwarded: 8, rejected: 2, errors: 1, waiting: 1, cpu: 0.008 }])
  t.same(ring.points[0]!.buckets.get('client'), { offered: 8, released: 4, rejected: 2, waiting: 1 })
  ring.end(START + STEP + 1, totals(9))
  t.equal(ring.points.length, 1, 'the same step')
  ring.end(START + 4 * STEP + 1, totals(38))
  t.same(
    ring.points.map(({ forwarded }) => forwarded),
    [8, 10, 10, 10],
  )
  for (let step = 5; step < 500; step += 1) ring.end(START + step * STEP, totals(34 + step))
  t.equal(ring.points.length, STEPS)
  t.equal(ring.points.at(-1)!.step, START / STEP + 498)
  ring.end(START + 3_000 * STEP, totals(10_000))
  t.equal(ring.points.length, STEPS, 'also after more than an hour')
  t.equal(ring.points[0]!.step, START / STEP + 3_000 - STEPS)
})

t.test('of many buckets the busiest are kept, and a part is bounded', async t => {
  const ring = new HourRing(START)
  const names = Array.from({ length: 2_000 }, (_, at) => `bucket ${at} ${'€'.repeat(40)}`)
  for (let step = 1; step <= STEPS; step += 1) {
    const buckets = new Map(
      names.map((name, at) => [name, { offered: step * at, released: step * at, rejected: 0, waiting: 9_999 }]),
    )
    ring.end(START + step * STEP, { ...totals(step * 1e6), buckets })
  }
  const views = writeHour({ id: 'i', name: 'host:1' }, ring.points, START)
  t.ok(views.length >= PARTS - 1 && views.length <= PARTS)
  t.equal(new Set(views.map(({ id }) => id)).size, views.length)
  for (const { text } of views) t.ok(Buffer.byteLength(text) <= LARGEST_PART, `${Buffer.byteLength(text)} bytes`)
  const kept = Object.keys(fleetHour(readHours(views, START), START + STEPS * STEP + 6_000).buckets)
  t.ok(kept.length >= 4, `${kept.length} buckets`)
  t.same([...kept].sort(), names.slice(-kept.length).sort(), 'those with the most requests')
})

t.test('parts that are another version, or no parts, are left out', async t => {
  for (const text of ['{', 'null', '[]', '{"format":99}', '{"format":1}'])
    t.same(readHours([{ id: 'a/0', text, age: 0 }], START), [], text)
})

t.test('nothing is lost or counted twice, whatever the clocks of the instances say', async () => {
  const instance = fc.record({
    /** How far its clock is ahead of ours, in ms. */
    ahead: fc.integer({ min: -10_000_000, max: 10_000_000 }),
    age: fc.integer({ min: 0, max: 60_000 }),
    counts: fc.array(fc.integer({ min: 0, max: 99 }), { minLength: 1, maxLength: 200 }),
  })
  await fc.assert(
    fc.property(fc.array(instance, { minLength: 1, maxLength: 4 }), instances => {
      const now = START + 12 * STEP + 7_654
      const views = instances.flatMap(({ ahead, age, counts }, place) => {
        const wall = now - age + ahead
        const first = Math.floor(wall / STEP) - counts.length
        const ring = new HourRing(first * STEP)
        let count = 0
        for (const [at, more] of counts.entries()) {
          count += more
          ring.end((first + at + 1) * STEP, totals(count))
        }
        const parts = writeHour({ id: `${place}`, name: `host:${place}` }, ring.points, wall)
        return parts.map(part => ({ ...part, age }))
      })
      // A minute later, so that all steps have ended by our clock, too.
      const hour = fleetHour(readHours(views, now), now + 60_000)
      const all = instances.reduce((total, { counts }) => total + counts.reduce((a, b) => a + b, 0), 0)
      if (Math.abs(sum(hour.figures.forwarded) - all) > 1e-6)
        throw new Error(`${sum(hour.figures.forwarded)} of ${all}`)
      // A bucket in which nothing has happened is left out.
      if (Math.abs(sum(hour.buckets.client?.offered ?? []) - all) > 1e-6) throw new Error('the bucket differs')
      for (const [place, { counts }] of instances.entries()) {
        const own = fleetHour(readHours(views, now), now + 60_000, `host:${place}`)
        const known = own.figures.forwarded.filter(value => value !== null).length
        if (known !== counts.length) throw new Error(`${known} of ${counts.length} steps of one instance`)
      }
    }),
  )
})

t.test('long: an instance that is new shows the hour of the others, also of those that have ended', async t => {
  const clock = createVirtualClock()
  const { board } = createMemoryStore({ clock })
  const wallNow = (): number => START + clock.now()
  const later = (ms: number, run: () => void): void => void clock.at(clock.now() + ms, run)
  const begin = (id: string, perStep: number, until: number): void => {
    const from = clock.now()
    recordHour({
      ...{ id, name: `host:${id}`, wallNow, board },
      later: (ms, run) => {
        if (clock.now() < until) later(ms, run)
      },
      totals: () => totals(Math.round(((clock.now() - from) / STEP) * perStep)),
    })
  }
  begin('a', 10, Infinity)
  begin('b', 1, 100 * STEP)
  clock.runUntil(150 * STEP)
  begin('c', 100, Infinity)
  clock.runUntil(170 * STEP + 6_000)
  const seen = fleetHour(readHours(await board.views('hour'), wallNow()), wallNow())
  t.same(seen.instances, [
    { name: 'host:a', since: START },
    { name: 'host:b', since: START },
    { name: 'host:c', since: START + 150 * STEP },
  ])
  t.equal(seen.from, START)
  t.equal(seen.figures.forwarded.length, 170)
  t.equal(sum(seen.figures.forwarded), 170 * 10 + 100 + 20 * 100)
  t.same(seen.figures.forwarded.slice(98, 102), [11, 11, 10, 10])
  t.equal(sum(seen.buckets.client!.offered), 170 * 10 + 100 + 20 * 100)
  clock.runUntil(600 * STEP + 6_000)
  const then = fleetHour(readHours(await board.views('hour'), wallNow()), wallNow())
  t.same(
    then.instances.map(({ name }) => name),
    ['host:a', 'host:c'],
    'what is older than an hour is forgotten',
  )
  t.equal(then.figures.forwarded.length, STEPS)
  t.ok((await board.views('hour')).length <= 2 * PARTS)
})

t.test('a store that has lost everything has it again after some minutes', async t => {
  const clock = createVirtualClock()
  const wallNow = (): number => START + clock.now()
  let { board } = createMemoryStore({ clock })
  recordHour({
    ...{ id: 'a', name: 'host:a', wallNow },
    board: { show: (...view) => board.show(...view) } as Board,
    later: (ms, run) => void clock.at(clock.now() + ms, run),
    totals: () => totals(Math.round(clock.now() / STEP)),
  })
  clock.runUntil(400 * STEP)
  board = createMemoryStore({ clock }).board
  clock.runUntil(414 * STEP + 6_000)
  const seen = fleetHour(readHours(await board.views('hour'), wallNow()), wallNow())
  t.equal(sum(seen.figures.forwarded), STEPS)
})

t.test('while the store is away the others are shown as they were, each at its time', async t => {
  const wall = (): number => performance.timeOrigin + performance.now()
  const first = Math.floor(wall() / STEP) - 60
  const ring = new HourRing(first * STEP)
  for (let step = 1; step <= 50; step += 1) ring.end((first + step) * STEP, totals(step * 10))
  let isAway = false
  const fleet = createFleet({
    members: async () => [],
    hours: async () => [],
    views: async () => {
      if (isAway) throw new Error('away')
      return writeHour({ id: 'b', name: 'host:b' }, ring.points, wall())
    },
  })
  const before = await fleet.hour()
  t.equal(before.from, first * STEP)
  t.equal(sum(before.figures.forwarded), 500)
  t.equal(before.figures.forwarded.filter(value => value === null).length >= 8, true, 'unknown since then')
  isAway = true
  const { figures, from } = await fleet.hour()
  t.equal(from, before.from)
  t.equal(sum(figures.forwarded), 500)
  t.same((await fleet.hour('host:c')).figures.forwarded, [], 'nothing is known of another')
})

t.test('the example in docs/operating.md has the keys of the real answer', async t => {
  const page = readFileSync(`${ROOT}/docs/operating.md`, 'utf8')
  const example = JSON.parse(/^```\n(\{\n {2}"from"[\s\S]*?)^```$/m.exec(page)![1]!)
  const ring = new HourRing(START)
  for (let step = 1; step <= 2; step += 1) ring.end(START + step * STEP, totals(step))
  const now = START + 2 * STEP
  const real = fleetHour(readHours(writeHour({ id: 'a', name: 'web-1:4711' }, ring.points, now), now), now + STEP)
  t.same(shapeOf(example), shapeOf(JSON.parse(JSON.stringify(real))))
})

/** What a value is made of: its keys, the lengths of its lists, the types in them. */
function shapeOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(shapeOf)
  if (typeof value !== 'object' || value === null) return typeof value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, shapeOf(inner)]))
}
