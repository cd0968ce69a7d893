/** How moments of a store's clock are mapped, and how late they are. */
import t from 'tap'
import { Offset } from '../../src/stores/timing.js'

/** An answer of a store whose clock is behind ours by 1 s. Ways in ms. */
function answer(offset: Offset, at: number, [there, back]: readonly [number, number], behind = 1_000): void {
  offset.learn(at, at + there + back, at + there - behind)
}

t.test('a moment is late by the fastest way back, and half of the fastest round trip is told', async t => {
  const offset = new Offset()
  t.equal(offset.lateness, 0, 'nothing is known')
  answer(offset, 0, [4, 4])
  answer(offset, 10, [2, 3])
  t.equal(offset.ours(0), 1_003)
  t.ok(Math.abs(offset.lateness - 2.5) < 0.01, `${offset.lateness}`)
})

t.test('slow answers, as after a stall, do not count', async t => {
  const offset = new Offset()
  answer(offset, 0, [15, 15])
  for (let at = 100; at <= 1_000; at += 100) answer(offset, at, [15, 165])
  t.ok(offset.lateness >= 15 && offset.lateness < 15.3, `${offset.lateness}: it loosens, as clocks drift apart`)
})

t.test('a clock that was set forward or back is known anew', async t => {
  for (const behind of [-5_000, 9_000]) {
    const offset = new Offset()
    answer(offset, 0, [1, 1])
    answer(offset, 10, [6, 6], behind)
    t.equal(offset.ours(0), behind + 6)
    t.equal(offset.lateness, 6)
  }
})
