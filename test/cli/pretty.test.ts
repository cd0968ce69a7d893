/** The log for people: as lines, on a terminal, in colours, and how much of it. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { request } from 'undici'
import { createPrettyPrinter } from '../../src/cli/logging/pretty.js'
import { createLogObserver } from '../../src/cli/serving/serve.js'
import { freePort } from '../servers/free-port.js'
import { until } from '../servers/redis.js'
import { ROOT, shaper } from './command.js'

t.jobs = 3

const TIME = Date.UTC(2026, 10, 25, 22, 3, 4, 56)

/** As a clock on this machine shows it. */
const SHOWN = `${new Date(TIME).toLocaleTimeString('en-GB')}.056`

t.test('records as lines', async t => {
  const print = createPrettyPrinter('none')
  const line = (record: object) => print(`${JSON.stringify({ level: 30, time: TIME, ...record })}\n`)
  const asked = { route: 'api', status: 200, method: 'GET', path: '/a', waitMs: 0, msg: 'request' }
  for (const [record, text] of [
    [{ ...asked, outcome: 'forwarded', upstreamMs: 25.042 }, '200 GET /a  api, answered in 25 ms'],
    [
      { ...asked, key: '81b637d8fcd2', outcome: 'forwarded', upstreamMs: 25.042 },
      '200 GET /a  api, key 81b637d8fcd2, answered in 25 ms',
    ],
    [
      { ...asked, outcome: 'forwarded', waitMs: 192.829, upstreamMs: 0.4, retries: 1 },
      '200 GET /a  api, held 193 ms, answered in 0.4 ms, sent again once',
    ],
    [
      { ...asked, outcome: 'forwarded', waitMs: 5, coalesced: true },
      '200 GET /a  api, held 5 ms, answered with one like it',
    ],
    [
      { ...asked, outcome: 'rejected', status: 429, reason: 'overflow', bucket: 'client' },
      '429 GET /a  api, rejected: overflow of client',
    ],
    [{ ...asked, outcome: 'rejected', status: 503, reason: 'crowded' }, '503 GET /a  api, rejected: crowded'],
    [
      { ...asked, outcome: 'expired', status: 503, givenUp: 'release', waitMs: 12_345.6 },
      '503 GET /a  api, expired: its client would have left, held 12.3 s',
    ],
    [{ ...asked, outcome: 'cancelled', status: 499, waitMs: 61_000 }, '499 GET /a  api, cancelled, held 61 s'],
    [
      {
        ...{ ...asked, level: 40, outcome: 'failed', status: 502, detail: 'the upstream refused the connection' },
        cause: 'connect ECONNREFUSED 127.0.0.1:1',
      },
      '502 GET /a  api, failed: the upstream refused the connection: connect ECONNREFUSED 127.0.0.1:1',
    ],
    [{ ...asked, route: undefined, outcome: 'refused', status: 404 }, '404 GET /a  refused'],
    [{ url: 'http://127.0.0.1:9090', msg: 'the admin server listens' }, 'the dashboard is at http://127.0.0.1:9090/'],
    ...['0.0.0.0', '[::]'].map(
      host =>
        [
          { url: `http://${host}:9090`, msg: 'the admin server listens' },
          'the dashboard is at http://127.0.0.1:9090/, and at all other addresses of this machine',
        ] as const,
    ),
    [
      { level: 50, problems: ['a: is bad', 'b: is worse'], msg: 'not reloaded: the configuration stays as it was' },
      'error not reloaded: the configuration stays as it was: a: is bad; b: is worse',
    ],
    [{ level: 40, upstream: 'http://a', pauseMs: 5, msg: 'pause' }, 'warn pause  upstream=http://a pauseMs=5'],
    [
      { worker: 2, route: 'api', decision: 'would_delay', msg: 'dry run' },
      '[2] dry run  route=api decision=would_delay',
    ],
    [{ level: 20, msg: 'why' }, 'debug why'],
  ] as const) {
    t.equal(line(record), `${SHOWN} ${text}\n`)
  }
})

t.test('what a client sends moves nothing on the terminal', async () => {
  const texts = fc.string({ unit: 'binary', maxLength: 30 })
  for (const colours of ['none', 'ansi'] as const) {
    const print = createPrettyPrinter(colours)
    fc.assert(
      fc.property(texts, texts, texts, fc.boolean(), (path, method, other, isRequest) => {
        const record = { level: 30, time: TIME, path, method, detail: other, outcome: 'failed', status: 502, waitMs: 0 }
        const line = print(JSON.stringify({ ...record, list: [other], msg: isRequest ? 'request' : other }))
        // biome-ignore lint/suspicious/noControlCharactersInRegex: colours
        const bare = colours === 'ansi' ? line.replace(/\x1b\[\d+m/g, '') : line
        return /^[^\p{Cc}\p{Zl}\p{Zp}\u202a-\u202e\u2066-\u2069]*\n$/u.test(bare)
      }),
    )
  }
})

t.test('colours', async t => {
  const print = createPrettyPrinter('ansi')
  const line = (record: object) => print(JSON.stringify({ time: TIME, ...record }))
  const asked = { level: 30, outcome: 'forwarded', method: 'GET', path: '/', waitMs: 0, msg: 'request' }
  t.ok(line({ ...asked, status: 200 }).startsWith(`\x1b[2m${SHOWN}\x1b[0m \x1b[32m200\x1b[0m GET /`))
  t.match(line({ ...asked, status: 429 }), '\x1b[33m429')
  t.match(line({ ...asked, status: 502 }), '\x1b[31m502')
  t.match(line({ level: 40, msg: 'a' }), '\x1b[33mwarn\x1b[0m a')
  t.match(line({ level: 50, msg: 'a' }), '\x1b[31merror\x1b[0m a')
})

/** Runs shaper on a terminal until it has answered one request. Returns what was to be seen. */
async function onTerminal(t: Test, flags: string, env: NodeJS.ProcessEnv): Promise<string> {
  const port = await freePort()
  const given = `--upstream echo: --rate 5/s --capacity 10 --listen 127.0.0.1:${port} --admin 127.0.0.1:0 ${flags}`
  const terminal = spawn('script', ['-qec', `${process.execPath} ${ROOT}/bin/shaper.js start ${given}`, '/dev/null'], {
    cwd: t.testdir(),
    stdio: ['pipe', 'pipe', 'ignore'],
    // Whether there are colours depends on NO_COLOR, CI and others.
    env: { PATH: process.env.PATH, TERM: 'xterm-256color', ...env },
  })
  t.teardown(() => terminal.kill('SIGKILL'))
  let text = ''
  terminal.stdout.on('data', (chunk: Buffer) => {
    text += chunk
  })
  await until('it listens', () => / -> echo:/.test(text))
  await (await request(`http://127.0.0.1:${port}/seen?secret`)).body.dump()
  await until('the request is logged', () => text.includes('/seen'))
  // Ctrl-C.
  terminal.stdin.write('\x03')
  await once(terminal, 'exit')
  return text.replace('^C', '').replaceAll('\r\n', '\n')
}

t.test('on a terminal: lines, in colours', { buffered: true }, async t => {
  const text = await onTerminal(t, '', {})
  // biome-ignore lint/suspicious/noControlCharactersInRegex: colours
  t.match(text, /^\x1b\[2m\d\d:\d\d:\d\d\.\d{3}\x1b\[0m \x1b\[32m200\x1b\[0m GET \/seen {2}\x1b\[2mdefault, /m)
})

t.test('NO_COLOR: without colours, and one line each for limits, wait and dashboard', { buffered: true }, async t => {
  const text = await onTerminal(t, '', { NO_COLOR: '1' })
  t.notMatch(text, '\x1b')
  const time = '\\d\\d:\\d\\d:\\d\\d\\.\\d{3}'
  for (const line of [
    `${time} the dashboard is at http://127\\.0\\.0\\.1:\\d+/`,
    `${time} configuration: the flags alone`,
    `${time} limits: client 5/s, capacity 10`,
    `${time} longest wait: 1\\.8 s, of route default`,
    'shaper listening on http://127\\.0\\.0\\.1:\\d+ -> echo:',
    `${time} 200 GET /seen  default, key [0-9a-f]{12}, answered in \\S+ ms`,
  ]) {
    t.match(text, new RegExp(`^${line}$`, 'm'))
  }
})

t.test('--log json on a terminal', { buffered: true }, async t => {
  const text = await onTerminal(t, '--log json', {})
  for (const line of text.trim().split('\n')) if (!line.startsWith('shaper listening')) JSON.parse(line)
})

t.test('--log pretty elsewhere has no colours, with workers too', { buffered: true }, async t => {
  const flags = [
    '--upstream',
    'echo:',
    '--rate',
    '100/s',
    '--listen',
    '127.0.0.1:0',
    '--workers',
    '2',
    '--log',
    'pretty',
  ]
  const command = shaper(['start', ...flags], { cwd: t.testdir() })
  t.teardown(() => command.child.kill('SIGKILL'))
  await (await request(await command.url)).body.dump()
  await until('the request is logged', () => /^[\d:.]{12} \[[12]\] 200 GET \/ {2}default/m.test(command.stderr()))
  for (const text of ['{', '\x1b']) t.notOk(command.stderr().includes(text), JSON.stringify(text))
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('--log-level, and formats and levels that there are not', { buffered: true }, async t => {
  const upstream = `http://127.0.0.1:1`
  const config = {
    listen: '127.0.0.1:0',
    upstream: { url: upstream, breaker: false },
    routes: [
      { name: 'fine', match: { path: '/fine' }, mode: 'off', upstream: 'echo:' },
      { name: 'api', mode: 'off' },
    ],
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  for (const [level, shown] of [
    ['error', []],
    ['warn', ['/failed']],
    ['info', ['/fine', '/failed']],
  ] as const) {
    const command = shaper(['start', '--log-level', level], { cwd })
    t.teardown(() => command.child.kill('SIGKILL'))
    const url = await command.url
    for (const path of ['/fine', '/failed']) await (await request(url + path)).body.dump()
    command.child.kill('SIGTERM')
    const { stderr } = await command.finished
    t.same(
      [...stderr.matchAll(/"path":"([^"]+)"/g)].map(([, path]) => path),
      shown,
      level,
    )
    if (level !== 'info') t.notMatch(stderr, '"level":30')
  }
  for (const [flag, value] of [
    ['--log', 'text'],
    ['--log-level', 'trace'],
  ] as const) {
    const { code, stderr } = await shaper(['start', flag, value], { cwd }).finished
    t.equal(code, 2)
    t.match(
      stderr,
      new RegExp(`^shaper: option '${flag} <\\w+>' argument '${value}' is invalid\\. Allowed choices are .*\\n$`),
    )
  }
})

t.test('without an access log a failed request is a warning', { buffered: true }, async t => {
  const config = { listen: '127.0.0.1:0', upstream: { url: 'http://127.0.0.1:1', breaker: false }, accessLog: false }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify({ ...config, routes: [{ name: 'api', mode: 'off' }] }) })
  const command = shaper(['start'], { cwd })
  t.teardown(() => command.child.kill('SIGKILL'))
  t.equal((await request(await command.url)).statusCode, 502)
  command.child.kill('SIGTERM')
  const { stderr } = await command.finished
  const warned = stderr.split('\n').filter(line => line.includes('"route":"api"'))
  t.match(
    warned.map(line => JSON.parse(line)),
    [
      {
        level: 40,
        route: 'api',
        cause: 'connect ECONNREFUSED 127.0.0.1:1',
        msg: 'the upstream refused the connection',
      },
    ],
  )
})

t.test('an upstream that cannot be reached: a request that waits for it is one line', { buffered: true }, async t => {
  const config = {
    listen: '127.0.0.1:0',
    upstream: { url: 'http://127.0.0.1:1', breaker: { failures: 3, hold: '200ms', probe: '50ms' } },
    buckets: { client: { key: 'ip', rate: '1000/s' } },
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify({ ...config, routes: [{ name: 'api' }] }) })
  const command = shaper(['start'], { cwd })
  t.teardown(() => command.child.kill('SIGKILL'))
  t.equal((await request(await command.url)).statusCode, 503)
  command.child.kill('SIGTERM')
  const { stderr } = await command.finished
  const records = stderr
    .split('\n')
    .filter(line => line !== '')
    .map(line => JSON.parse(line) as Record<string, unknown>)
  const told = { detail: 'the upstream refused the connection', cause: 'connect ECONNREFUSED 127.0.0.1:1' }
  t.match(
    records.filter(({ msg }) => msg === 'request'),
    [{ level: 40, outcome: 'failed', status: 503, ...told }],
  )
  const about = records.filter(({ msg }) => msg === told.detail)
  t.match(about, [{ level: 40, route: 'api', cause: told.cause }], 'that the upstream is away is told once')
})

t.test(
  'requests that an open breaker refuses, and its own line, name the cause; clients are not told',
  { buffered: true },
  async t => {
    const config = {
      listen: '127.0.0.1:0',
      upstream: { url: 'http://127.0.0.1:1', breaker: { failures: 1, probe: '10s' } },
      routes: [{ name: 'api', mode: 'off' }],
    }
    for (const accessLog of [true, false]) {
      const cwd = t.testdir({ 'shaper.config.json': JSON.stringify({ ...config, accessLog }) })
      const command = shaper(['start'], { cwd })
      t.teardown(() => command.child.kill('SIGKILL'))
      t.equal((await request(await command.url)).statusCode, 502)
      const refused = await request(await command.url)
      t.equal(refused.statusCode, 503)
      t.notMatch(await refused.body.text(), /127\.0\.0\.1|ECONN/)
      command.child.kill('SIGTERM')
      const { stderr } = await command.finished
      const records = stderr
        .split('\n')
        .filter(line => line !== '')
        .map(line => JSON.parse(line) as Record<string, unknown>)
      const told = { detail: 'the upstream refused the connection', cause: 'connect ECONNREFUSED 127.0.0.1:1' }
      t.match(
        records.filter(({ msg }) => msg === 'request'),
        accessLog
          ? [
              { status: 502, ...told },
              { status: 503, ...told },
            ]
          : [],
      )
      t.match(
        records.filter(({ upstream }) => upstream !== undefined),
        [{ level: 40, cause: `${told.detail} (${told.cause})` }],
      )
      const failed = records.filter(({ msg }) => msg === told.detail)
      t.equal(failed.length, accessLog ? 0 : 1, 'what others have met is no warning of its own')
    }
  },
)

t.test('an upstream that cannot be reached is a warning once in ten seconds, and else for debugging', async t => {
  const told: string[] = []
  let now = 0
  const write = (level: string) => (facts: { route: string }) => void told.push(`${now} ${level} ${facts.route}`)
  const log = { info: write('info'), warn: write('warn'), debug: write('debug') }
  const { unreachable } = createLogObserver(log as Parameters<typeof createLogObserver>[0], () => now)
  for (const [at, route] of [
    [0, 'a'],
    [1, 'a'],
    [2, 'b'],
    [9_999, 'a'],
    [10_000, 'a'],
  ] as const) {
    now = at
    unreachable!(route, { detail: 'refused' })
  }
  t.same(told, ['0 warn a', '1 debug a', '2 warn b', '9999 debug a', '10000 warn a'])
})
