/** Work that has a time to be done in. */

import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { inTime } from '../../src/stores/timing.js'

t.test('work that is late fails, and does not go on', async t => {
  const done: string[] = []
  let release = (): void => undefined
  const held = new Promise<void>(resolve => {
    release = resolve
  })
  const late = new Error('late')
  const answer = inTime(
    5,
    () => late,
    async check => {
      check()
      done.push('begun')
      await held
      check()
      done.push('gone on')
    },
  )
  await t.rejects(answer, late)
  release()
  await sleep(1)
  t.same(done, ['begun'])
})

t.test('work that is done in time answers, or fails for its own reason', async t => {
  const late = () => new Error('late')
  t.equal(await inTime(10_000, late, async () => 5), 5)
  const own = new Error('its own')
  await t.rejects(
    inTime(10_000, late, () => Promise.reject(own)),
    own,
  )
})
