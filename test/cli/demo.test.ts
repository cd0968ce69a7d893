import t from 'tap'
import { shaper } from './command.js'

/** ms. A gap that is off by more tells of a busy machine. */
const CALM = 50

t.test('the demo reports what goes in and out, in plain lines without a terminal', async t => {
  const { code, stdout } = await shaper(['demo']).finished
  t.equal(code, 0)
  const out = stdout.match(/out: request \d+ reaches the upstream/g) ?? []
  const spilled = stdout.match(/spilled: 429, Retry-After: \d+/g) ?? []
  t.equal(out.length + spilled.length, 20)
  const [text] = /^20 in, .*$/m.exec(stdout) ?? []
  t.match(text, new RegExp(`^20 in, ${out.length} out one every 200 ms .* ${spilled.length} told to come back;`))
  const broke = Number(/the upstream broke (\d+) times\.$/.exec(text!)?.[1])
  const worst = Number(/the worst was ([\d.]+) ms off/.exec(text!)?.[1])
  if (worst < CALM) t.same([spilled.length, broke], [4, 0], `${text}`)
  else {
    // The burst took longer than the 200 ms of a release, or a release was late and the next one was not.
    t.ok(spilled.length >= 1 && spilled.length <= 4, `${spilled.length} spilled`)
    t.ok(broke <= 3, `${broke} came too soon; a burst would be 13`)
  }
  t.notOk(stdout.includes('\u001b'), 'no control sequences')
})
