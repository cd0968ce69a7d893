/** Help and usage errors of the command line, in the process of the test. */
import { readFileSync, writeFileSync } from 'node:fs'
import { posix } from 'node:path'
import t from 'tap'
import { ROOT, shaperHere } from './command.js'

t.test('a wrong configuration: exit 2, a line for each problem, nothing started', async t => {
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({
      upstream: 'echo:',
      buckets: { client: { rate: '5/w', capacity: 10 }, other: { rat: '5/s' } },
      routes: [{ name: 'a', buckets: ['clint'] }],
    }),
  })
  const { stderr, stdout, code } = await shaperHere(['start'], { cwd })
  t.equal(code, 2)
  t.equal(stdout, '')
  const lines = stderr.trim().split('\n')
  t.ok(lines.includes('shaper: buckets.client.rate: "5/w" is not a rate; use e.g. "5/s", "6/30s"'), stderr)
  t.ok(
    lines.some(line => /buckets\.other\.rat: .*did you mean "rate"/.test(line)),
    stderr,
  )
  t.ok(
    lines.some(line => /routes\[0\]\.buckets\[0\]: .*"client"/.test(line)),
    stderr,
  )
  t.notMatch(stderr, /\n\s+at /, 'no stack')
})

t.test('usage errors: exit 2, one line', async t => {
  const cwd = t.testdir()
  const cases: [string[], RegExp][] = [
    [['start'], /shaper start --upstream/],
    [['start', '--upstream', 'echo:', '--rate', '5/w'], /--rate: "5\/w" is not a rate/],
    [['start', '--upstream', 'nowhere', '--rate', '5/s'], /--upstream/],
    [['start', '--colour'], /unknown option '--colour'/],
    [['strat'], /unknown command 'strat'/],
    [['start', '-c', 'missing.json'], /missing\.json/],
    [['check', '--rate'], /option '--rate <rate>' argument missing/],
    [['start', 'here', 'too'], /^shaper: too many arguments for 'start': 'here', 'too'; try --help\n$/],
    [['start', '--upstream', 'echo:', '--rate', '5/s', '--capacity', '0.5'], /0\.5/],
  ]
  for (const [args, message] of cases) {
    const { code, stderr, stdout } = await shaperHere(args, { cwd })
    t.equal(code, 2, args.join(' '))
    t.match(stderr, message)
    t.match(stderr, /^shaper: /)
    t.notMatch(stderr, /\n\s+at /)
    t.equal(stdout, '')
  }
})

t.test('flags that do not name their bucket are refused', async t => {
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({
      upstream: 'echo:',
      buckets: { a: { rate: '5/s', capacity: 10 }, b: { rate: '5/s', capacity: 10 } },
      routes: [{ buckets: ['a', 'b'] }],
    }),
  })
  const { code, stderr } = await shaperHere(['start', '--rate', '1/s'], { cwd })
  t.equal(code, 2)
  t.match(stderr, /--rate: .*2 buckets/)
})

t.test('help shows an example for each command', async t => {
  for (const args of [
    ['--help'],
    ['start', '--help'],
    ['check', '--help'],
    ['migrate', '--help'],
    ['demo', '--help'],
  ]) {
    const { code, stdout } = await shaperHere(args)
    t.equal(code, 0)
    t.match(stdout, /Example:\n {2}shaper /, args.join(' '))
  }
})

t.test('check prints what start would use as JSON on stdout, and the longest wait on stderr', async t => {
  const { code, stdout, stderr } = await shaperHere(['check'])
  t.equal(code, 0)
  t.match(JSON.parse(stdout), { listen: '0.0.0.0:8080' })
  t.match(stderr, /bucket "client" \(5\/s, capacity 10\): the longest wait is 1\.8 s/)
  t.notMatch(stderr, /warning: /, 'the configuration of npm start warns of nothing')
  const file = `${t.testdir()}/effective.json`
  writeFileSync(file, stdout)
  const again = await shaperHere(['check', '-c', file])
  t.equal(again.stdout, stdout, 'which reads as itself')
})

/** What a file of src imports before it runs, and what that imports, with no types: files by their path in src, packages by their name. */
function loadedWith(path: string, found = new Set<string>()): Set<string> {
  if (found.has(path)) return found
  found.add(path)
  const text = readFileSync(`${ROOT}/build/src/${path}`, 'utf8')
  for (const [, name = ''] of text.matchAll(
    /^(?:import |import \{[^}]*\} from |import \* as \w+ from |import \w+(?:, \{[^}]*\})? from |export [^'";]* from )['"]([^'"]+)['"]/gm,
  )) {
    if (name.startsWith('.')) loadedWith(posix.join(posix.dirname(path), name), found)
    else found.add(name)
  }
  return found
}

t.test('help loads a parser of arguments and names to show, nothing else', async t => {
  const others = [...loadedWith('cli/main.js')].filter(name => !name.startsWith('node:') && !name.startsWith('cli/'))
  t.same(others, ['commander', 'replay/formats/format-names.js'])
})

t.test('a command reads its configuration before it loads what serves', async t => {
  const packages = ['undici', 'pino', 'prom-client', 'ioredis', 'pg', 'isbot']
  for (const command of ['start', 'check', 'migrate', 'top']) {
    const loaded = loadedWith(`cli/commands/${command}.js`)
    t.ok(loaded.has('config/load.js'), command)
    t.same(
      [...loaded].filter(name => packages.includes(name) || /^(proxy|admin|stores|pacing)\//.test(name)),
      [],
      command,
    )
  }
  t.ok(loadedWith('cli/serving/serve.js').has('pino'), 'which the check would find')
})

t.test('the proxy loads Prometheus only for an admin server, and the primary of workers no proxy', async t => {
  t.notOk(loadedWith('cli/serving/serve.js').has('prom-client'))
  for (const name of ['cli/serving/service.js', 'cli/serving/worker-pool.js']) {
    const loaded = loadedWith(name)
    t.notOk(loaded.has('undici') || loaded.has('prom-client'), name)
  }
})
