import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import type { UpstreamState } from '../../src/sharing/board.js'
import { SharedPause } from '../../src/sharing/shared-pause.js'
import type { Store } from '../../src/sharing/store.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'

/** Two instances that share a pause. Each has a list of the pauses that it has heard of, in ms. */
function twoInstances() {
  const clock = createVirtualClock()
  const store: Store = createMemoryStore({ clock })
  const instance = () => {
    const heard: number[] = []
    const pause = new SharedPause({
      store,
      clock,
      name: 'a',
      received: ({ pausedFor }) => void heard.push(pausedFor),
    })
    return { pause, heard }
  }
  return { clock, one: instance(), other: instance() }
}

t.test('a pause reaches the other instance when it asks', async t => {
  const { clock, one, other } = twoInstances()
  one.pause.send(5_000)
  t.same([one.heard, other.heard], [[], []], 'telling is not asking')
  clock.runUntil(2_000)
  other.pause.exchange()
  t.same(other.heard, [3_000])
  clock.runUntil(5_000)
  other.pause.exchange()
  t.same(other.heard, [3_000, 0])
})

t.test('an exchange tells and asks', async t => {
  const { one, other } = twoInstances()
  one.pause.send(5_000)
  other.pause.exchange({ pausedFor: 9_000, rate: undefined, rateFor: 0 })
  one.pause.exchange()
  t.same([one.heard, other.heard], [[9_000], [9_000]])
})

t.test('a pause that was ended here does not come back, a longer one does', async t => {
  const { clock, one, other } = twoInstances()
  one.pause.send(5_000)
  one.pause.resumed(5_000)
  one.pause.exchange()
  t.same(one.heard, [0])
  other.pause.send(5_250)
  one.pause.exchange()
  t.same(one.heard, [0, 0], 'it is the same pause, whose end has moved on its way')
  other.pause.send(5_251)
  one.pause.exchange()
  t.same(one.heard, [0, 0, 5_251])
  other.pause.exchange()
  t.same(other.heard, [5_251], 'other instances keep it')

  clock.runUntil(1_000)
  one.pause.resumed(5_251)
  one.pause.send(1_000)
  one.pause.exchange()
  t.same(one.heard.at(-1), 4_251, 'a new pause of our own ends the exception')
})

t.test('what the store tells counts like an answer', async t => {
  const { clock, one } = twoInstances()
  one.pause.told({ pausedFor: 5_000, rate: undefined, rateFor: 0 })
  t.same(one.heard, [5_000])
  one.pause.resumed(5_000)
  one.pause.told({ pausedFor: 5_000, rate: undefined, rateFor: 0 })
  t.same(one.heard, [5_000, 0], 'the news of a pause that was ended here comes late')
  t.ok(one.pause.isDue(clock.now()), 'it was not asked')
})

t.test('a question is due once a second', async t => {
  const { clock, one } = twoInstances()
  t.ok(one.pause.isDue(0))
  one.pause.send(100)
  t.ok(one.pause.isDue(0))
  clock.runUntil(500)
  one.pause.exchange()
  t.notOk(one.pause.isDue(1_499))
  t.ok(one.pause.isDue(1_500))
})

t.test('without an answer nothing is learned', async t => {
  const heard: UpstreamState[] = []
  const exchange = () => Promise.reject(new Error('away'))
  const store = { exchange } as unknown as Store
  const clock = createVirtualClock()
  const pause = new SharedPause({ store, clock, name: 'a', received: state => void heard.push(state) })
  pause.send(5_000)
  pause.exchange()
  await new Promise(setImmediate)
  t.same(heard, [])
})
