import t from 'tap'
import { shaper } from './command.js'

t.test('the demo tells what goes in and what comes out, in plain lines when not on a terminal', async t => {
  const { code, stdout } = await shaper(['demo']).finished
  t.equal(code, 0)
  const out = stdout.match(/out: request \d+ reaches the upstream/g) ?? []
  const spilled = stdout.match(/spilled: 429, Retry-After: \d+/g) ?? []
  t.equal(out.length + spilled.length, 20)
  t.equal(spilled.length, 4)
  t.match(stdout, /20 in, 16 out one every 200 ms .* 4 told to come back; the upstream broke 0 times\./)
  t.notOk(stdout.includes('\u001b'), 'no control sequences')
})
