import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { ROOT, shaperHere } from './command.js'

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
  limits: { maxQueued: 500, maxKeys: 1000, maxConnections: 100 },
}

t.test('check prints the configuration, its effect, and warnings', async t => {
  const file = join(t.testdir({ 'a.json': JSON.stringify(config) }), 'a.json')
  const { code, stdout, stderr } = await shaperHere(['check', '-c', file])
  t.equal(code, 0)
  t.same(parseConfig(stdout), parseConfig(JSON.stringify(config)), 'JSON that reads the same')
  t.equal(
    stderr,
    `route   mode   buckets           longest wait
health  off    -                 -
login   meter  client            -
quick   shape  client            500ms (maxWait)
api     shape  client, everyone  2.95 s

memory: up to about 4 MB for 500 held requests (maxQueued), 0.2 MB for 1000 keys (maxKeys) and 67 MB for bodies (bufferMemory)
bucket "client" (5/s, capacity 10): the longest wait is 1.8 s
  tier "gold" (50/s, capacity 10): the longest wait is 180 ms
bucket "everyone" (20/s, capacity 60): the longest wait is 2.95 s
bucket "spare" (1/s, capacity 5): the longest wait is 0 ms
warning: buckets.spare: no route uses it; name it in "buckets" of one, or remove it
warning: buckets.client.tiers[0].rate: 50/s can never be reached: bucket "everyone", which comes with it on route "api", lets 20/s pass for all its keys together; raise that one or lower this
${file}: valid
`,
  )
})

t.test('check does not call a wait the longest where slow answers make it longer', async t => {
  const waitsOf = async (upstream: object, client: object): Promise<string[]> => {
    const own = {
      ...config,
      upstream: { url: 'echo:', ...upstream },
      buckets: { ...config.buckets, client: { ...config.buckets.client, ...client } },
    }
    const file = join(t.testdir({ 'a.json': JSON.stringify(own) }), 'a.json')
    const { stderr } = await shaperHere(['check', '-c', file])
    return stderr.split('\n').filter(line => /^(?:quick|api|login) |longest wait is/.test(line))
  }
  const more = ' by the rate alone; slow answers make it longer (maxInFlight)'
  const expected = [
    'login   meter  client            -',
    'quick   shape  client            500ms (maxWait)',
    'api     shape  client, everyone  2.95 s by the rate alone',
    `bucket "client" (5/s, capacity 10): the longest wait is 1.8 s${more}`,
    `  tier "gold" (50/s, capacity 10): the longest wait is 180 ms${more}`,
    `bucket "everyone" (20/s, capacity 60): the longest wait is 2.95 s${more}`,
    'bucket "spare" (1/s, capacity 5): the longest wait is 0 ms',
  ]
  t.same(await waitsOf({ maxInFlight: 5 }, {}), expected, 'maxInFlight of the upstream')
  t.same(await waitsOf({ connections: 5 }, {}), expected, 'connections')
  t.same(await waitsOf({}, { maxInFlight: 5 }), expected, 'maxInFlight of a bucket')
})

t.test('check: a bucket with maxInFlight alone has no wait for a rate', async t => {
  const own = { upstream: 'echo:', buckets: { key: { key: 'ip', maxInFlight: 5 } } }
  const file = join(t.testdir({ 'a.json': JSON.stringify(own) }), 'a.json')
  const { stderr } = await shaperHere(['check', '-c', file])
  t.match(stderr, /^bucket "key" \(.*\): nobody waits for the rate, but for slow answers \(maxInFlight\)$/m)
  t.match(stderr, /^\S+ +shape +key +for answers only$/m)
})

t.test(
  'long: check and start warn where fewer files may be open than configured connections need, and lower the default',
  async t => {
    const text = (limits: object): string => JSON.stringify({ ...config, listen: '127.0.0.1:0', limits })
    const dir = t.testdir({ 'set.json': text({ maxConnections: 20_000 }), 'default.json': text({}) })
    const command = `cd ${dir} && ulimit -n 5000 && exec ${process.execPath} ${ROOT}/bin/shaper.js`
    const check = (file: string) => spawnSync('sh', ['-c', `${command} check -c ${file}`], { encoding: 'utf8' })
    const start = async (file: string): Promise<string> => {
      const started = spawn('sh', ['-c', `${command} start -c ${file} --log-level debug`], {
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      t.teardown(() => started.kill())
      let log = ''
      started.stderr.on('data', chunk => {
        log += chunk
      })
      await once(started.stdout, 'data')
      started.kill()
      await once(started, 'close')
      return log
    }
    const expected =
      'limits.maxConnections: 20000 needs up to 40320 open files, and this process may open 5000: raise that with "ulimit -n 40320", or lower this to 2340'
    const { stderr } = check('set.json')
    t.ok(stderr.includes(`warning: ${expected}\n`), stderr)
    const log = await start('set.json')
    t.ok(log.includes(JSON.stringify(expected)), log)

    const checked = check('default.json')
    t.notMatch(checked.stderr, 'ulimit')
    t.equal(JSON.parse(checked.stdout).limits.maxConnections, 2_340)
    const lowered = await start('default.json')
    t.notMatch(lowered, 'ulimit')
    t.match(lowered, /"maxConnections":2340,"openFiles":5000/)
  },
)

t.test('flags alone', async t => {
  const flags = ['--upstream', 'echo:', '--rate', '5/s', '--listen', '0.0.0.0:1']
  const { code, stdout, stderr } = await shaperHere(['check', ...flags], { cwd: t.testdir() })
  t.equal(code, 0)
  t.match(JSON.parse(stdout), { buckets: { client: { rate: '5/s' } } })
  t.ok(stderr.includes('\ndefault  shape  client   800 ms\n'))
  t.match(stderr, /the longest wait is 800 ms\nthe flags: valid\n$/)
})

t.test('problems are reported: exit 2, and nothing on stdout', async t => {
  const file = join(t.testdir({ 'a.json': '{ "upstream": "echo:" }' }), 'a.json')
  t.match(await shaperHere(['check', '-c', file]), { code: 2, stdout: '', stderr: /^shaper: / })
})

t.test('--json: the configuration on stdout, and warnings only on stderr; --quiet: errors only', async t => {
  const file = join(t.testdir({ 'a.json': JSON.stringify(config), 'bad.json': '{}' }), 'a.json')
  const plain = await shaperHere(['check', '-c', file])
  const warned = plain.stderr
    .split('\n')
    .filter(line => line.startsWith('warning: '))
    .map(line => `${line}\n`)
  t.equal(warned.length, 2)
  const json = { code: 0, stdout: plain.stdout, stderr: warned.join('') }
  t.same(await shaperHere(['check', '--json', '-c', file]), json)
  t.same(await shaperHere(['check', '--quiet', '-c', file]), { code: 0, stdout: '', stderr: '' })
  t.same(await shaperHere(['check', '--quiet', '--json', '-c', file]), { ...json, stderr: '' })
  const bad = await shaperHere(['check', '--quiet', '-c', join(file, '../bad.json')])
  t.equal(bad.code, 2)
  t.match(bad.stderr, /^shaper: upstream: missing; /)
  const badJson = await shaperHere(['check', '--json', '-c', join(file, '../bad.json')])
  t.same(badJson, bad)
})

t.test('a template of a waiting page that cannot be used ends check and start with 2', async t => {
  const cwd = t.testdir({ 'bare.html': '<h1>Wait</h1>' })
  const file = (template: string): string => {
    const name = join(cwd, `${template}.json`)
    writeFileSync(name, JSON.stringify({ ...config, waitingPage: { template: join(cwd, template) } }))
    return name
  }
  for (const command of ['check', 'start']) {
    const none = await shaperHere([command, '-c', file('none.html')])
    t.equal(none.code, 2)
    t.match(none.stderr, /waitingPage\.template: ".*none\.html" does not exist; name an HTML file\n$/)
    const bare = await shaperHere([command, '-c', file('bare.html')])
    t.equal(bare.code, 2)
    t.match(bare.stderr, /waitingPage\.template: ".*bare\.html" has no \{\{script\}\}, .*; add it before <\/head>\n$/)
  }
})
