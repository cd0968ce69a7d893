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
  // Four of the first burst find no room, less one for each 200 ms that a busy machine takes to send it.
  t.ok(spilled.length >= 1 && spilled.length <= 4, `${spilled.length} spilled`)
  // A release that was late may be followed too soon by the next, which is not. A burst would break it 13 times.
  t.ok(broke <= (worst < CALM ? 0 : 3), `${text}`)
  t.notOk(stdout.includes('\u001b'), 'no control sequences')
})
