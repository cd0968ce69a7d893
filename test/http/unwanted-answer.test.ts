import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { DISCARD_LIMIT, UnwantedAnswer } from '../../src/http/unwanted-answer.js'
import { ROOT } from '../cli/command.js'

function discard() {
  const clock = createVirtualClock({ start: 5_000 })
  const aborts: [at: number, message: string][] = []
  const answer = new UnwantedAnswer(clock, {
    abort: ({ message }) => {
      aborts.push([clock.now(), message])
    },
  })
  return { answer, clock, aborts }
}

function checkIsOver(t: Test, { answer, clock, aborts }: ReturnType<typeof discard>): void {
  const count = aborts.length
  answer.read(DISCARD_LIMIT.bytes + 1)
  answer.stop()
  t.equal(clock.runAll(), clock.now(), 'no timer is left')
  t.equal(aborts.length, count)
}

t.test('an answer within the bounds is read to its end', async t => {
  const discarded = discard()
  const { answer, clock, aborts } = discarded
  for (let piece = 0; piece < 4; piece += 1) answer.read(DISCARD_LIMIT.bytes / 4)
  clock.runUntil(5_999)
  answer.ended()
  t.same(aborts, [])
  checkIsOver(t, discarded)
  t.equal(clock.now(), 5_999)
})

t.test('the first byte beyond the bound aborts it, once', async t => {
  const discarded = discard()
  discarded.answer.read(DISCARD_LIMIT.bytes)
  t.same(discarded.aborts, [])
  discarded.answer.read(1)
  t.same(discarded.aborts, [[5_000, 'the rest of the answer is not wanted']])
  checkIsOver(t, discarded)
})

t.test('it is aborted after a second, however little comes', async t => {
  const discarded = discard()
  discarded.clock.runUntil(5_999)
  t.same(discarded.aborts, [])
  discarded.clock.runUntil(6_000)
  t.same(discarded.aborts, [[6_000, 'the rest of the answer is not wanted']])
  checkIsOver(t, discarded)
})

t.test('its reader may give it up earlier', async t => {
  const discarded = discard()
  discarded.answer.stop()
  t.equal(discarded.aborts.length, 1)
  checkIsOver(t, discarded)
})

t.test('the documents name these bounds', async t => {
  t.equal(DISCARD_LIMIT.ms, 1_000)
  const bounds = new RegExp(`a\\s+second\\s+and\\s+${DISCARD_LIMIT.bytes / 1_024}\\s+kB`)
  for (const page of ['configuration', 'outbound']) {
    t.match(readFileSync(`${ROOT}/docs/${page}.md`, 'utf8'), bounds, page)
  }
})
