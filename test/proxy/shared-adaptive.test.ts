/** Instances on one store share the adaptive rate of an upstream. */
import t from 'tap'
import { AdaptiveLimit, SharedAdaptive } from '../../src/proxy/upstream/adaptive-limit.js'
import type { News, Override } from '../../src/sharing/board.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'

const TARGETS = { min: 0.005, max: 0.5, start: 0.01, errors: 0.02 }

function instanceOn(store: ReturnType<typeof createMemoryStore>, now: () => number) {
  let changes = 0
  let shared: SharedAdaptive | undefined
  const limit: AdaptiveLimit = new AdaptiveLimit('adaptive', TARGETS, {
    ...{ now, isShared: true },
    changed: () => {
      changes += 1
    },
    found: found => shared!.tell(found),
  })
  shared = new SharedAdaptive(store, () => [limit])
  return { limit, shared, changes: () => changes }
}

t.test('what one finds the others use, also those that start later', async t => {
  let now = 0
  const store = createMemoryStore({ clock: { now: () => now } })
  const [one, other] = [instanceOn(store, () => now), instanceOn(store, () => now)]
  one.shared.join()
  other.shared.join()
  const heard: Override[] = []
  store.listen((news: News) => void (news.about === 'override' && heard.push(news.override)))
  for (; now < 2_000; now += 50) {
    const request = one.limit.sent({ cost: 1, client: `${now}`, isTimed: true, isHeld: true }, now)
    one.limit.answered(request, 200)
  }
  t.ok(one.limit.state.rate > TARGETS.start)
  t.same(other.limit.state, one.limit.state)
  t.equal(other.limit.limits.rate, one.limit.limits.rate)
  t.equal(other.changes(), one.changes())
  t.equal(heard.length, one.changes(), 'each change is told once, and nobody repeats it')
  const late = instanceOn(store, () => now)
  late.shared.join()
  t.same(late.limit.state, one.limit.state)
  other.shared.close()
  one.limit.heard({ rate: 0.02, phase: 'draining', falls: 5 })
  t.not(other.limit.state.falls, 5, 'one that has left hears nothing')
})

t.test('a fall that an older state has overwritten is told once more', async t => {
  const store = createMemoryStore({ clock: { now: () => 0 } })
  const one = instanceOn(store, () => 0)
  one.shared.join()
  const fallen = { rate: 0.007, phase: 'climbing', falls: 3 } as const
  one.limit.heard(fallen)
  await store.board.setOverride({ bucket: 'adaptive', key: 'all', rate: 0.4, capacity: 1, endsIn: 1_000 })
  t.same(one.limit.state, fallen)
  const late = instanceOn(store, () => 0)
  late.shared.join()
  t.same(late.limit.state, fallen)
  await store.board.setOverride({ bucket: 'other', key: 'all', rate: 0.4, capacity: 100, endsIn: 1_000 })
  t.same(one.limit.state, fallen, 'other buckets have other rates')
})

t.test('a state that an instance has told is news when another finds it again', async t => {
  const store = createMemoryStore({ clock: { now: () => 0 } })
  const [one, other] = [instanceOn(store, () => 0), instanceOn(store, () => 0)]
  one.shared.join()
  other.shared.join()
  const find = ({ limit, shared }: ReturnType<typeof instanceOn>, rate: number): void => {
    limit.heard({ rate, phase: 'climbing', falls: 0 })
    shared.tell(limit)
  }
  find(one, 0.2)
  find(other, 0.15)
  t.equal(one.limit.state.rate, 0.15)
  find(other, 0.2)
  t.equal(one.limit.state.rate, 0.2)
})
