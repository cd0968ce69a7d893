import { readFileSync } from 'node:fs'
import t from 'tap'
import { shaperHere } from './command.js'

t.test('init writes a valid configuration, and leaves one alone that is there', async t => {
  const cwd = t.testdir()
  const first = await shaperHere(['init', '--upstream', 'http://127.0.0.1:3000'], { cwd })
  t.same([first.code, first.stderr], [0, ''])
  t.equal(first.stdout, 'wrote shaper.config.json; edit it, then: shaper check && shaper start\n')
  const checked = await shaperHere(['check'], { cwd })
  t.equal(checked.code, 0, checked.stderr)
  t.notMatch(checked.stderr, /warning: (?!limits)/)
  t.match(JSON.parse(checked.stdout), { upstream: { url: 'http://127.0.0.1:3000' } })
  const text = readFileSync(`${cwd}/shaper.config.json`, 'utf8')
  const again = await shaperHere(['init'], { cwd })
  t.equal(again.code, 2)
  t.equal(again.stderr, 'shaper: shaper.config.json is there already; name another file with -c FILE\n')
  t.equal(readFileSync(`${cwd}/shaper.config.json`, 'utf8'), text)
  const other = await shaperHere(['init', '-c', 'b.json'], { cwd })
  t.equal(other.stdout, 'wrote b.json; edit it, then: shaper check -c b.json && shaper start -c b.json\n')
  t.equal((await shaperHere(['init', '-c', 'no/b.json'], { cwd })).code, 1)
  t.equal((await shaperHere(['init', '-c', 'c.json', '--upstream', 'nowhere'], { cwd })).code, 2)
})
