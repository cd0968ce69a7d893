import { join } from 'node:path'
import t from 'tap'
import { runCheck } from '../../src/cli/commands/check.js'
import type { CommandOptions } from '../../src/cli/commands/common-options.js'
import { parseConfig } from '../../src/config/load.js'

function check(options: CommandOptions): { out: string; aside: string } {
  const told = { out: '', aside: '' }
  runCheck(options, { write: more => (told.out += more) }, { write: more => (told.aside += more) })
  return told
}

const config = {
  listen: '0.0.0.0:8080',
  upstream: 'echo:',
  buckets: {
    client: { rate: '5/s', capacity: 10, tiers: [{ name: 'gold', keys: ['192.0.2.1'], rate: '50/s', weight: 2 }] },
    everyone: { key: 'all', rate: '20/s', maxDelay: '3s' },
    spare: { rate: '1/s', capacity: 5 },
  },
  routes: [
    { name: 'health', match: { path: '/healthz' }, mode: 'off' },
    { name: 'login', match: { path: '/login' }, mode: 'meter', buckets: ['client'] },
    { name: 'quick', match: { path: '/quick/*' }, buckets: ['client'], maxWait: '500ms' },
    { name: 'api', buckets: ['client', 'everyone'] },
  ],
  limits: { maxQueued: 500, maxKeys: 1000 },
}

t.test('check prints what there is, what it means, and what to think about again', async t => {
  const file = join(t.testdir({ 'a.json': JSON.stringify(config) }), 'a.json')
  const { out, aside } = check({ config: file })
  t.same(parseConfig(out), parseConfig(JSON.stringify(config)), 'JSON that reads the same')
  t.equal(
    aside,
    `route   mode   buckets           longest wait
health  off    -                 -
login   meter  client            -
quick   shape  client            500ms (maxWait)
api     shape  client, everyone  2.95s

memory: up to about 5.5 MB for 500 held requests (maxQueued) and 0.2 MB for 1000 keys (maxKeys)
bucket "client" (5/s, capacity 10): the longest wait is 1.8s
  tier "gold" (50/s, capacity 10): the longest wait is 180ms
bucket "everyone" (20/s, capacity 60): the longest wait is 2.95s
bucket "spare" (1/s, capacity 5): the longest wait is 0ms
warning: buckets.spare: no route uses it; name it in "buckets" of one, or remove it
warning: buckets.client.tiers[0].rate: 50/s can never be reached: bucket "everyone", which comes with it on route "api", lets 20/s pass for all its keys together; raise that one or lower this
${file}: valid
`,
  )
})

t.test('flags alone', async t => {
  const back = process.cwd()
  process.chdir(t.testdir())
  t.teardown(() => process.chdir(back))
  const { out, aside } = check({ upstream: 'echo:', rate: '5/s', listen: '0.0.0.0:1' })
  t.match(JSON.parse(out), { buckets: { client: { rate: '5/s' } } })
  t.ok(aside.includes('\ndefault  shape  client   800ms\n'))
  t.ok(aside.endsWith('the longest wait is 800ms\nthe flags: valid\n'))
})

t.test('what is wrong is thrown', async t => {
  const file = join(t.testdir({ 'a.json': '{ "upstream": "echo:" }' }), 'a.json')
  t.throws(() => check({ config: file }), { code: 'SHAPER_CONFIG' })
})
