import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { ConfigError, type Flags, loadConfig } from '../../src/config/load.js'
import { exampleConfig, faults, least, linesOf, parse } from './sample.js'

const one = { rate: '5/s', capacity: 10 }
const merged = (file: object, flags: Flags) => parse({ ...least(), ...file }, { flags })

t.test('flags that always override', async t => {
  t.same(merged({ listen: ':1' }, { listen: '0.0.0.0:2' }).listen, [{ host: '0.0.0.0', port: 2 }])
  const tls = { cert: 'c', key: 'k' }
  t.same(merged({ listen: [':1', { address: ':3', tls }] }, { listen: ':2' }).listen, [{ host: '127.0.0.1', port: 2 }])
  t.same(merged({ listen: { address: ':1', tls } }, { listen: ':2' }).listen, [{ host: '127.0.0.1', port: 2, tls }])
  t.equal(merged({}, { upstream: 'http://h' }).routes[0]?.upstream.url, 'http://h')
  const kept = merged({ upstream: { url: 'http://a', maxInFlight: 3 } }, { upstream: 'http://b' }).routes[0]?.upstream
  t.match(kept, { url: 'http://b', maxInFlight: 3 })
  t.same(
    merged({ routes: [{ dryRun: false }] }, { dryRun: true }).routes.map(route => route.dryRun),
    [true],
  )
  t.equal(merged({ dryRun: true }, { dryRun: false }).dryRun, true, 'an absent flag says nothing')
})

t.test('flags on the one bucket and the one route', async t => {
  t.match(merged({}, { rate: '9/s' }).buckets[0], { rate: 0.009, capacity: 9 }, 'a default capacity follows the rate')
  t.match(merged({}, { rate: '9' }).buckets[0], { rate: 0.009 }, 'a bare number is per second')
  t.match(merged({ buckets: { a: one } }, { rate: '9/s' }).buckets[0], { rate: 0.009, capacity: 10 })
  t.match(merged({ buckets: { a: { rate: 1, maxDelay: '3s' } } }, { rate: '2/s' }).buckets[0], { capacity: 6 })
  t.match(merged({ buckets: { a: { rate: 1, maxDelay: '3s' } } }, { capacity: '4' }).buckets[0], { capacity: 4 })
  t.strictSame(merged({}, { key: 'ip, header:X' }).buckets[0]?.key.parts, [
    { kind: 'ip' },
    { kind: 'header', name: 'x' },
  ])
  t.strictSame(merged({}, { key: 'all' }).buckets[0]?.key.parts, [{ kind: 'all' }])
  t.match(merged({}, { mode: 'meter' }).routes, [{ name: 'default', mode: 'meter', buckets: [{ name: 'client' }] }])
  t.match(merged({ routes: [{ name: 'api', mode: 'off' }] }, { mode: 'meter' }).routes, [
    { name: 'api', mode: 'meter' },
  ])
})

t.test('flags that are ambiguous', async t => {
  const line = (flag: string, has: string) =>
    `${flag}: ambiguous: the file has ${has}, and this flag needs one of each; change the file instead`
  t.same(faults(exampleConfig(), { flags: { rate: '1/s', mode: 'meter' } }), [
    line('--rate', '3 buckets and 3 routes'),
    line('--mode', '3 buckets and 3 routes'),
  ])
  t.same(faults({ ...least(), routes: [{}, {}] }, { flags: { capacity: '1', key: 'ip' } }), [
    line('--capacity', '1 bucket and 2 routes'),
    line('--key', '1 bucket and 2 routes'),
  ])
  t.same(faults({ ...least(), buckets: { a: one, b: one } }, { flags: { rate: '1/s' } }), [
    line('--rate', '2 buckets and 1 route'),
  ])
  t.same(faults(exampleConfig(), { flags: { listen: ':1', upstream: 'echo:', dryRun: true } }), [])
  t.same(faults({ ...least(), routes: [{ upstream: 'echo:' }] }, { flags: { upstream: 'http://h' } }), [
    '--upstream: no effect: every route of the file names its own upstream; change the file instead',
  ])
})

t.test('invalid flags are reported by their own names', async t => {
  const flags = { listen: 'x', upstream: 'me:pw@h', rate: '5/w', capacity: 'many', key: 'ip,hots', mode: 'on' }
  const expected = [
    '--listen: "x" has no port; write "x:8080"',
    '--upstream: "***@h" is not an upstream\'s URL; use e.g. "http://127.0.0.1:9000", "https://api.example.com" or "echo:"',
    '--key: "hots" is not a key; did you mean "host"?',
    '--rate: "5/w" is not a rate; use e.g. "5/s", "6/30s"',
    '--capacity: "many" is not a capacity; use a number above 0, e.g. 10',
    '--mode: "on" is not a mode; use "shape", "meter" or "off"',
  ]
  t.same(faults(least(), { flags }), expected)
  t.same(
    linesOf(() => loadConfig({ flags, env: {}, cwd: t.testdir() })),
    expected,
  )
  t.same(faults(least(), { flags: { capacity: '0' } }), [
    '--capacity: 0 is not a capacity; use a number above 0, e.g. 10',
  ])
  t.same(faults(least(), { flags: { capacity: '0.5' } }), [
    '--capacity: a capacity of 0.5 can never fit a request of cost 1; raise it',
  ])
  t.same(faults(least(), { flags: { admin: ':9090' } }), [])
  t.same(parse(least(), { flags: { admin: ':9090' } }).admin, { listen: { host: '127.0.0.1', port: 9090 } })
  t.same(faults({ ...least(), admin: { listen: ':1', token: '' } }, { flags: { admin: 'x' } }), [
    '--admin: "x" has no port; write "x:9090"',
    `admin.token: not a token; use at least 16 letters, digits and -._~+/ without spaces, e.g. "\${SHAPER_TOKEN}" with the output of: openssl rand -hex 32`,
  ])
  t.same(faults({ ...least(), listen: { address: ':1', tls: 5 } }, { flags: { listen: '9' } }), [
    'listen.tls: 5 is not an object; use { "cert": "FILE", "key": "FILE" }',
  ])
})

t.test('--listen several times is a list', async t => {
  const flags = { listen: ['127.0.0.1:1', 'unix:/run/a.sock'] }
  const list = [{ host: '127.0.0.1', port: 1 }, { path: '/run/a.sock' }]
  t.same(parse(least(), { flags }).listen, list)
  t.same(parse({ ...least(), listen: [':3', { address: ':4' }] }, { flags }).listen, list)
  t.same(faults(least(), { flags: { listen: [':1', 'x'] } }), ['--listen: "x" has no port; write "x:8080"'])
  t.same(faults(least(), { flags: { listen: [':1', ':1'] } }), ['--listen: "127.0.0.1:1" is listed twice; remove one'])
  const object = { ...least(), listen: { address: ':4', proxyProtocol: ['loopback'] } }
  t.match(parse(object, { flags: { listen: [':5'] } }).listen, [{ port: 5, proxyProtocol: ['loopback'] }])
  t.same(faults(object, { flags }), [
    '--listen: "listen" of the file is an object, and several addresses would lose what else is in it; change the file instead',
  ])
  const admin = { listen: { address: 'unix:/run/a.sock', mode: '0600' } }
  t.match(parse({ ...least(), admin }, { flags: { admin: 'unix:/run/b.sock' } }).admin, {
    listen: { path: '/run/b.sock', mode: 0o600 },
  })
})

t.test('faults of --workers and of the file come with those of all other flags', async t => {
  const cwd = t.testdir({ 'bad.json': '{', 'list.json': '[]', 'redis.json': JSON.stringify({ ...least(), store: 5 }) })
  const pathsOf = (workers: string, flags: Flags, file?: string) =>
    linesOf(() => loadConfig({ flags, env: {}, cwd, workers, ...(file !== undefined && { file }) })).map(line =>
      line.replace(/: .*| is not JSON.*|there is no .*|; .*/s, ''),
    )
  const five = { listen: 'x', upstream: 'e', rate: 'a', capacity: 'b', admin: 'd' }
  const flags = ['--listen', '--upstream', '--rate', '--capacity', '--admin', '--workers']
  t.same(pathsOf('c', five).sort(), flags.toSorted())
  t.same(pathsOf('2', { upstream: 'echo:', rate: '5/x' }), ['--rate'])
  t.same(pathsOf('c', five, 'none.json').sort(), ['-c', ...flags].sort())
  t.same(pathsOf('c', five, 'bad.json').sort(), ['bad.json', ...flags].sort())
  t.same(pathsOf('c', five, 'list.json').sort(), [...flags, 'a list is not an object'].sort())
  t.same(pathsOf('c', { rate: '5/x' }), ['', '--rate', '--workers'], 'without a file and --upstream')
  // What a file may say makes these valid, or not.
  const unsure = { upstream: 'http://127.0.0.1:8080', admin: '0.0.0.0:9', capacity: '0.5' }
  t.same(pathsOf('2', unsure, 'none.json'), ['-c'])
  t.same(pathsOf('2', {}, 'redis.json'), ['store'], 'an invalid store is not judged')
})

t.test('--admin that other machines can reach says what to set', async t => {
  t.same(faults(least(), { flags: { admin: '0.0.0.0:9099' } }), [
    `--admin: other machines can reach 0.0.0.0:9099, so a token is needed; set "admin": { "listen": "0.0.0.0:9099", "token": "\${SHAPER_TOKEN}" } in the file, or listen on 127.0.0.1`,
  ])
})

t.test('without a file', async t => {
  const cwd = t.testdir()
  const { settings, file } = loadConfig({
    flags: { upstream: 'http://127.0.0.1:9000', rate: '7/s', mode: 'meter', dryRun: true },
    env: {},
    cwd,
  })
  t.equal(file, undefined)
  t.match(settings.buckets, [{ name: 'client', key: { parts: [{ kind: 'ip' }] }, rate: 0.007, capacity: 7 }])
  t.match(settings.routes, [{ name: 'default', mode: 'meter', dryRun: true, buckets: [{ name: 'client' }] }])
  const line = (missing: string) =>
    `there is no ./shaper.config.json here, and without a file ${missing} must be given; type e.g. shaper start --upstream http://127.0.0.1:9000 --rate 5/s, or name a file with -c FILE`
  t.same(
    linesOf(() => loadConfig({ flags: {}, env: {}, cwd })),
    [line('--upstream URL and --rate R')],
  )
  t.same(
    linesOf(() => loadConfig({ flags: { rate: '1/s' }, env: {}, cwd })),
    [line('--upstream URL')],
  )
  t.same(
    linesOf(() => loadConfig({ flags: { upstream: 'echo:' }, env: {}, cwd })),
    [line('--rate R')],
  )
})

t.test('with a file', async t => {
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({ ...least(), listen: ':1' }),
    'other.json': JSON.stringify({ ...least(), listen: `:\${PORT}` }),
    'bad.json': '{',
  })
  const found = loadConfig({ flags: {}, env: {}, cwd })
  t.equal(found.file, join(cwd, 'shaper.config.json'))
  t.match(found.settings.listen, [{ port: 1 }])
  const given = loadConfig({ file: 'other.json', flags: { rate: '2/s' }, env: { PORT: '2' }, cwd })
  t.equal(given.file, join(cwd, 'other.json'))
  t.match(given.settings.listen, [{ port: 2 }])
  t.equal(given.settings.buckets[0]?.rate, 0.002)
  t.same(
    linesOf(() => loadConfig({ file: 'bad.json', flags: {}, env: {}, cwd })),
    ['bad.json is not JSON: line 1, column 2: expected "}", but the text ends'],
  )
  const flags = { upstream: 'echo:', rate: '1/s' }
  t.same(
    linesOf(() => loadConfig({ file: 'none.json', flags, env: {}, cwd })),
    ['-c: "none.json" does not exist; name a file that exists, e.g. -c shaper.config.json'],
  )
  mkdirSync(join(cwd, 'folder'))
  t.same(
    linesOf(() => loadConfig({ file: 'folder', flags, env: {}, cwd })),
    ['-c: "folder" cannot be read (EISDIR); name a file that can be read, e.g. -c shaper.config.json'],
  )
})

t.test('the error has a code and its problems one by one', async t => {
  const cwd = t.testdir()
  writeFileSync(join(cwd, 'shaper.config.json'), '{ "upstream": 5, "buckets": { "a": { "rate": "x" } } }')
  try {
    loadConfig({ flags: {}, env: {}, cwd })
    t.fail('must throw')
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    t.equal(error.code, 'SHAPER_CONFIG')
    t.equal(error.name, 'ConfigError')
    t.same(
      error.problems.map(problem => problem.path),
      ['upstream', 'buckets.a.rate'],
    )
    t.equal(error.message, error.problems.map(({ path, message }) => `${path}: ${message}`).join('\n'))
  }
})

t.test('a variable in a flag: it is for the shell to expand', async t => {
  const line = (flag: string) =>
    `${flag}: "$HOST" is not replaced in a flag; let the shell expand it: use double quotes, and set the variable`
  const table: [flags: Flags, flag: string][] = [
    [{ listen: '$HOST:1' }, '--listen'],
    [{ listen: `\${HOST}:1` }, '--listen'],
    [{ upstream: 'http://$HOST:9000' }, '--upstream'],
    [{ upstream: `http://\${HOST}:9000` }, '--upstream'],
    [{ admin: '$HOST:9090' }, '--admin'],
    [{ admin: `\${HOST}:9090` }, '--admin'],
    [{ key: 'ip,header:$HOST' }, '--key'],
    [{ rate: '$HOST' }, '--rate'],
  ]
  for (const [flags, flag] of table) {
    t.same(faults(least(), { flags, env: { HOST: 'a' } }), [line(flag)], flag)
    t.same(
      faults('{', { flags }).filter(each => each.startsWith('--')),
      [line(flag)],
      flag,
    )
  }
})
