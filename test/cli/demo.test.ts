import t from 'tap'
import { shaper } from './command.js'

t.test('the demo reports what goes in and out, in plain lines without a terminal', async t => {
  const { code, stdout } = await shaper(['demo']).finished
  t.equal(code, 0)
  const out = stdout.match(/out: request \d+ reaches the upstream/g) ?? []
  const spilled = stdout.match(/spilled: 429, Retry-After: \d+/g) ?? []
  t.equal(out.length + spilled.length, 20)
  // Four, unless the machine is so busy that the burst takes longer than the 200 ms of a release.
  t.ok(spilled.length >= 1 && spilled.length <= 4, `${spilled.length} spilled`)
  const [told] = /^20 in, .*$/m.exec(stdout) ?? []
  t.match(told, new RegExp(`^20 in, ${out.length} out one every 200 ms .* ${spilled.length} told to come back;`))
  // Two within half a period: a release may be late on a busy machine, and the next one is not. A burst would be 13.
  const broke = Number(/the upstream broke (\d+) times\.$/.exec(told!)?.[1])
  t.ok(broke <= 3, `${broke} came too soon`)
  t.notOk(stdout.includes('\u001b'), 'no control sequences')
})
