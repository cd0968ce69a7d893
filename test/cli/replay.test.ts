import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import type { ReplayReport } from '../../src/replay/report/report.js'
import { combined, FIXTURE, fixtureText } from '../replay/logs.js'
import { shaper, shaperHere } from './command.js'

const START = 1_431_857_103

/** Runs `shaper replay` with this on its standard input; in a process of its own where it is to be in a directory. */
async function replay(args: string[], input: string | Buffer = '', cwd?: string) {
  if (cwd === undefined) return shaperHere(['replay', ...args], { input })
  const { child, finished } = shaper(['replay', ...args], { cwd })
  child.stdin.on('error', () => undefined)
  child.stdin.end(input)
  return finished
}

t.test('a log, limits, and what they would have done', async t => {
  const { code, stdout, stderr } = await replay([FIXTURE, '--rate', '1/s', '--capacity', '5'])
  t.equal(stderr, '')
  t.equal(code, 0)
  t.match(stdout, /^10000 requests of 1753 clients in 10000 lines \(combined\)$/m)
  t.match(stdout, /^limits: 1\/s, capacity 5, key ip$/m)
  t.match(stdout, /^times: .* spread over it, at places that --seed 1 decides$/m)
  t.match(stdout, /^rejected +\d+ +[\d.]+ %$/m)
  t.match(stdout, /^delayed +\d+ +[\d.]+ % +wait p50 .*, p90 .*, p99 .*, max 4 s$/m)
  t.match(stdout, /^browser +\d+/m)
  t.match(stdout, /^busiest second \(2015-05-\S+Z\): 9 came/m)
})

t.test('as JSON, from a file, a pipe, and gzip in a pipe', async t => {
  const limits = ['--rate', '1/s', '--capacity', '5', '--json']
  const whole = await replay([FIXTURE, ...limits])
  const report = JSON.parse(whole.stdout) as ReplayReport
  t.match(report, {
    requests: 10_000,
    bad: 0,
    admitted: Number,
    delayed: Number,
    rejected: Number,
    wait: { p50: Number, p90: Number, p99: Number, max: Number },
  })
  t.equal(report.admitted + report.rejected, report.requests)
  t.equal(report.atOnce + report.delayed, report.admitted)
  for (const [args, input] of [
    [[], fixtureText()],
    [['-'], fixtureText()],
    [['-'], readFileSync(FIXTURE)],
  ] as const) {
    const piped = await replay([...args, ...limits], input)
    t.equal(piped.code, 0, piped.stderr)
    t.same({ ...JSON.parse(piped.stdout), logs: [] }, { ...report, logs: [] })
  }
})

t.test('limits of a file, of flags, of the file that is there', async t => {
  const config = (rate: string) => JSON.stringify({ buckets: { client: { key: 'ip', rate, capacity: 5 } } })
  const cwd = t.testdir({ 'shaper.config.json': config('1/s'), 'other.json': config('2/s'), empty: {} })
  const rejected = async (args: string[], where = cwd) => {
    const { code, stdout, stderr } = await replay([FIXTURE, '--json', ...args], undefined, where)
    t.equal(code, 0, stderr)
    return (JSON.parse(stdout) as ReplayReport).rejected
  }
  const one = await rejected(['--rate', '1/s', '--capacity', '5'])
  const two = await rejected(['--rate', '2/s', '--capacity', '5'])
  t.ok(one > two && two > 0)
  t.equal(await rejected([]), one)
  t.equal(await rejected(['-c', 'other.json']), two)
  t.equal(await rejected(['-c', 'other.json', '--rate', '1/s']), one)
  const none = await replay([FIXTURE], undefined, join(cwd, 'empty'))
  t.equal(none.code, 2)
  t.match(none.stderr, /^shaper: which limits\? give --rate R and --capacity B, .*\n$/)
})

t.test('a sweep, a target, and the page', async t => {
  const page = join(t.testdir({}), 'report.html')
  const { code, stdout, stderr } = await replay([FIXTURE, '--target', 'reject<=0.1%,p99<=2s', '--html', page])
  t.equal(code, 0, stderr)
  t.match(stdout, /^rejected: rate \\ b +1 +2/m)
  t.match(stdout, /^the smallest that meets the target: rate 2\/s, capacity 5: /m)
  t.match(stdout, /^ {2}"buckets": \{ "client": \{ "key": "ip", "rate": "2\/s", "capacity": 5 \} \}$/m)
  t.match(readFileSync(page, 'utf8'), /^<!doctype html>/)
  const swept = await replay([FIXTURE, '--sweep', 'rate=1/s|2/s,capacity=5|10', '--json'])
  t.equal((JSON.parse(swept.stdout) as ReplayReport).sweep?.points.length, 4)
  const unwritable = await replay([FIXTURE, '--rate', '1/s', '--html', '/nowhere/report.html'])
  t.equal(unwritable.code, 1)
  t.match(unwritable.stderr, /^shaper: "\/nowhere\/report.html" cannot be written \(ENOENT\); .*\n$/)
})

t.test('a page that cannot be written is refused before any log is read', async t => {
  const folder = t.testdir({ file: '' })
  for (const [page, code] of [
    ['/nowhere/report.html', 'ENOENT'],
    [folder, 'EISDIR'],
    [join(folder, 'file', 'report.html'), 'ENOTDIR'],
  ] as const) {
    // Its standard input stays open: a run that reads it first never ends.
    const { child, finished } = shaper(['replay', '--rate', '1/s', '--html', page])
    const { code: status, stdout, stderr } = await finished
    child.stdin.destroy()
    t.equal(status, 1)
    t.equal(stdout, '')
    t.equal(
      stderr,
      `shaper: ${JSON.stringify(page)} cannot be written (${code}); name a file that can, with --html FILE\n`,
    )
  }
})

t.test('odd and duplicate values of --sweep and --target are refused', async t => {
  const refused = async (flag: string, value: string, message: string) => {
    const { code, stderr } = await replay(['--rate', '1/s', flag, value], combined(START))
    t.equal(code, 2, value)
    t.ok(stderr.startsWith(`shaper: ${flag}: ${message}`), stderr)
  }
  await refused('--sweep', 'rate=1/s,rate=2/s', 'rate is given twice; remove one\n')
  await refused('--sweep', 'capacity=5|7|5', '"5" is listed twice; remove one\n')
  await refused('--sweep', 'capacity=0x10', '"0x10" is no capacity; use e.g.')
  await refused('--sweep', 'capacity=1..9 x99999999999', '"1..9 x99999999999" has more than 1024 points; use fewer')
  await refused('--target', 'reject<=1%,reject<=2%', 'reject is bounded twice; remove one\n')
  await refused('--target', 'reject<=0.1', '"0.1" is no share; write "0.1%", or "10%" if 1 stands for all\n')
  await refused('--target', 'reject<=101%', '"101%" is no share; use e.g.')
  await refused('--target', 'p99<=2', '"2" is not a duration; use e.g.')
})

t.test('two configurations compared, and two reports', async t => {
  const config = (rate: string) => JSON.stringify({ buckets: { client: { key: 'ip', rate, capacity: 5 } } })
  const cwd = t.testdir({
    'a.json': config('1/s'),
    'b.json': config('2/s'),
    'base.json': '{ "routes": [{ "name": "all", "mode": "meter" }] }',
  })
  const of = (args: string[]) => replay(['--diff', ...args], undefined, cwd)
  const { code, stdout, stderr } = await of(['a.json', 'b.json', FIXTURE])
  t.equal(code, 0, stderr)
  t.match(stdout, /^ +a\.json +b\.json$/m)
  t.match(stdout, /^clients: 0 newly rejected, \d+ no longer; 0 newly delayed, \d+ no longer$/m)
  const unused = await of(['a.json', 'b.json', FIXTURE, '--field', 'time=when'])
  t.equal(unused.code, 2)
  t.match(unused.stderr, /^shaper: --field: time=when has no effect on /)
  const metered = await of(['a.json', 'b.json', 'base.json', FIXTURE, '--json'])
  t.match(JSON.parse(metered.stdout), { a: { delayed: 0, requests: 10_000 }, b: { delayed: 0 } })
  for (const [name, rate] of [
    ['1.json', '1/s'],
    ['2.json', '2/s'],
  ] as const) {
    const report = await replay([FIXTURE, '--rate', rate, '--capacity', '5', '--json'])
    writeFileSync(join(cwd, name), report.stdout)
  }
  const reports = await of(['1.json', '2.json'])
  t.equal(reports.code, 0, reports.stderr)
  t.match(reports.stdout, /^rejected +94 \(0\.94 %\) +\d+ \(/m)
  const mixed = await of(['1.json', 'b.json', FIXTURE])
  t.equal(mixed.code, 2)
  t.match(mixed.stderr, /^shaper: --diff: one is a report and the other is not; name two of the same kind\n$/)
})

t.test('two configurations compared: the problems of both are told at once, each with its file', async t => {
  const cwd = t.testdir({
    'a.json': '{ "buckets": { "client": { "key": "ip", "rate": "fast" } } }',
    'b.json': '{ "buckets": { "client": { "key": "cheese", "rate": "1/s" } } }',
    'list.json': '[]',
    'cut.json': '{',
    'good.json':
      '{ // with a comment, and a comma at the end\n "buckets": { "client": { "key": "ip", "rate": "1/s" } }, }',
    'base.json': '{ "routes": [{ "mode": "odd" }] }',
  })
  const told = async (...args: string[]) => {
    const { code, stdout, stderr } = await replay(['--diff', ...args, FIXTURE], undefined, cwd)
    t.same([code, stdout], [2, ''])
    return stderr
  }
  const remedy = 'does not exist; name a configuration that can be read'
  t.equal(await told('nob.json', 'noa.json'), `shaper: "nob.json" ${remedy}\nshaper: "noa.json" ${remedy}\n`)
  t.match(
    await told('a.json', 'b.json'),
    /^shaper: a\.json: buckets\.client\.rate: "fast" .*\nshaper: b\.json: buckets\.client\.key: "cheese" .*\n$/,
  )
  t.match(
    await told('list.json', 'cut.json'),
    /^shaper: list\.json: a list is not an object; .*\nshaper: cut\.json is not JSON: .*\n$/,
  )
  t.match(await told('good.json', 'good.json', 'base.json'), /^shaper: base\.json: routes\[0\]\.mode: "odd" .*\n$/)
})

t.test('bad lines are counted and shown, and never fatal', async t => {
  const log = `${combined(START)}garbage \u001b[2J\n${combined(START + 1)}`
  const { code, stdout } = await replay(['--rate', '5/s'], log)
  t.equal(code, 0)
  t.match(stdout, /^1 bad line: no time 1\n {2}line 2, no time: garbage \?\[2J$/m)
  const { stdout: json } = await replay(['--rate', '5/s', '--json'], log)
  t.match(JSON.parse(json), { requests: 2, bad: 1, badLines: { reasons: { 'no time': 1 } } })
})

t.test('an unreadable log: status 1 after a report on the rest', async t => {
  const packed = gzipSync(fixtureText())
  const cwd = t.testdir({ 'cut.gz': packed.subarray(0, packed.length >> 1) })
  const cut = await replay(['cut.gz', '--rate', '5/s'], undefined, cwd)
  t.equal(cut.code, 1)
  t.match(cut.stdout, /^\d{4} requests of/)
  t.match(cut.stderr, /^shaper: "cut\.gz" is cut off: its gzip data ends too early; what could be read is reported\n$/)
  const missing = await replay(['nowhere.log', '--rate', '5/s', '--json'], undefined, cwd)
  t.equal(missing.code, 1)
  t.equal(missing.stdout, '')
  t.match(missing.stderr, /^shaper: "nowhere\.log" does not exist; name a log that does\n$/)
  const odd = await replay(['--rate', '5/s'], 'no log\nat all\n')
  t.same([odd.code, odd.stdout], [1, ''])
  t.match(
    odd.stderr,
    /^shaper: standard input is not a log of a known format: .* line 1: no log; name .* --format .*\n$/,
  )
})

t.test('an empty log: status 1 after its report, and when two configurations are compared', async t => {
  const empty = await replay(['--rate', '5/s', '--json'], '')
  t.equal(empty.code, 1)
  t.match(JSON.parse(empty.stdout), { requests: 0, bad: 0, admitted: 0, delayed: 0, rejected: 0 })
  t.match(empty.stderr, /^shaper: the log is empty, .*\n$/)
  const config = '{ "buckets": { "client": { "key": "ip", "rate": "1/s" } } }'
  const cwd = t.testdir({ 'a.json': config, 'b.json': config, log: '' })
  const diff = await replay(['--diff', 'a.json', 'b.json', 'log', '--json'], undefined, cwd)
  t.equal(diff.code, 1)
  t.match(JSON.parse(diff.stdout), { a: { requests: 0 }, b: { requests: 0 } })
  t.match(diff.stderr, /^shaper: the log is empty, .*\n$/)
})

t.test('usage: status 2, a line for everything that is wrong', async t => {
  const refused = async (args: string[], ...told: RegExp[]) => {
    const { code, stdout, stderr } = await replay([FIXTURE, ...args])
    t.equal(code, 2, args.join(' '))
    t.equal(stdout, '')
    const lines = stderr.trim().split('\n')
    t.equal(lines.length, told.length, stderr)
    for (const [at, pattern] of told.entries()) t.match(lines[at], pattern)
  }
  await refused(['--rate', '5'.repeat(3), '--capacity', '-1'], /^shaper: --capacity: /)
  await refused(
    [
      '--rate',
      'fast',
      '--format',
      'xml',
      '--seed',
      'x',
      '--spread',
      'odd',
      '--field',
      'x',
      '--sweep',
      'rate',
      '--target',
      'p99',
    ],
    /--format: "xml" is not a format; use auto, common, combined, vhost, json, alb/,
    /--seed: /,
    /--spread: "odd" is no rule; use even or none/,
    /--field: "x" names no field; use e\.g\. ip=remote_addr/,
    /--sweep: "rate" is no axis; use e\.g\./,
    /--target: "p99" is no target; use e\.g\./,
    /--rate: "fast" is not a rate/,
  )
  await refused(
    ['--key', 'header:x-api-key', '--rate', '5/s'],
    /--key: .* does not contain the header "x-api-key"; use --key ip, or add it to the log/,
  )
  await refused(['--key', 'cheese', '--rate', '5/s'], /--key: "cheese" is not a key/)
  await refused(['--ratee', '5/s'], /unknown option '--ratee'.*try --help/)
  await refused(['--diff'], /--diff: two files to compare are needed/)
})

t.test('--help has examples', async t => {
  const { code, stdout } = await replay(['--help'])
  t.equal(code, 0)
  t.match(stdout, /Example:\n {2}shaper replay \/var\/log\/nginx\/access\.log --rate 5\/s --capacity 10/)
})

t.test('a time that is far off is reported as late, and takes no time', async t => {
  const at = (time: string) => `192.0.2.1 - - [${time} +0000] "GET / HTTP/1.1" 200 5\n`
  const usual = at('17/May/2015:10:05:03').repeat(200)
  const cwd = t.testdir({ log: usual + at('01/Jan/1970:00:00:00') + at('31/Dec/9999:23:59:59') })
  const { code, stdout, stderr } = await replay(['log', '--rate', '1/s', '--capacity', '5', '--json'], undefined, cwd)
  t.equal(code, 0, stderr)
  t.match(JSON.parse(stdout), { requests: 202, late: 1 })
})

t.test('one of several logs is missing: one line, and nothing is left open', async t => {
  const { code, stdout, stderr } = await replay([FIXTURE, 'nofile', '--rate', '1/s', '--json'])
  t.equal(code, 1)
  t.match(JSON.parse(stdout), { requests: 10_000 })
  t.equal(stderr, 'shaper: "nofile" does not exist; name a log that does\n')
  const off = await replay([FIXTURE, '--rate', '1/s', '--mode', 'off'])
  t.equal(off.code, 2)
  t.equal(off.stderr, 'shaper: --mode: "off" limits nothing; use shape or meter\n')
})

t.test('a log that went through syslog: its clients, and no months', async t => {
  const lines = Array.from({ length: 4 }, (_, at) => combined(START, `192.0.2.${at % 2}`))
  const after = (...prefixes: string[]) => prefixes.flatMap(prefix => lines.map(line => prefix + line)).join('')
  const good = after('Feb  3 10:00:00 host nginx: ', '2026-02-03T10:00:00.123456+00:00 host nginx[12]: ')
  const { code, stdout, stderr } = await replay(['--rate', '5/s', '--json'], good)
  t.equal(code, 0, stderr)
  const { requests, bad, clients } = JSON.parse(stdout) as ReplayReport
  t.same({ requests, bad, total: clients.total }, { requests: 8, bad: 0, total: 2 })

  const odd = after('Feb  3 10:00:00 ', '2026-02-03T10:00:00.123456+00:00 host ')
  const refused = await replay(['--rate', '5/s', '--json'], odd)
  t.same([refused.code, refused.stdout], [1, ''], 'what comes before a request is not known')
  t.match(
    refused.stderr,
    /^shaper: standard input is not a log of a known format: .* what stands before each request, .*\n$/,
  )
  const given = await replay(['--rate', '5/s', '--json', '--format', 'combined'], odd)
  t.same([given.code, given.stdout], [1, ''])
  t.match(given.stderr, /: 8 of 8 lines \(100 %\) are bad; the first is line 1, unknown prefix: Feb {2}3 10:/)
})

t.test(
  'R10: a log of which most lines are bad ends with status 1 and the reason, however few; each of several by name',
  async t => {
    const good = (count: number) => combined(START).repeat(count)
    const tls = (count: number) => combined(START, '192.0.2.1', '"-" "-"', '\\x16\\x03\\x01').repeat(count)
    const other = (count: number) => `(web) ${combined(START)}`.repeat(count)
    const cwd = t.testdir({ half: good(7) + other(7), most: good(1) + other(13), tls: good(1) + tls(2), one: other(1) })
    const run = (...args: string[]) => replay([...args, '--rate', '5/s', '--json'], undefined, cwd)
    const half = await run('half')
    t.equal(half.code, 0)
    t.match(JSON.parse(half.stdout), { requests: 7, bad: 7 })
    const refused = await run('most', 'half', 'tls', 'one', '--format', 'combined')
    t.same([refused.code, refused.stdout], [1, ''])
    const lines = refused.stderr.split('\n')
    t.equal(lines.length, 4)
    for (const [at, start] of [
      '"most" cannot be read as combined: 13 of 14 lines (93 %) are bad; the first is line 2, no address: (web) 192.0.2.1',
      '"tls" cannot be read as combined: 2 of 3 lines (67 %) are bad; the first is line 2, not an HTTP request: 192.0.2.1',
      '"one" cannot be read as combined: 1 of 1 lines (100 %) are bad; the first is line 1, no address: (web)',
    ].entries()) {
      t.ok(lines[at]?.startsWith(`shaper: ${start}`), refused.stderr)
    }
  },
)

t.test('R11: without a rate, the report of a target is about what it found', async t => {
  const log = Array.from({ length: 40 }, (_, at) => combined(START + (at >> 1), `192.0.2.${at % 3}`)).join('')
  const of = async (...args: string[]) => JSON.parse((await replay([...args, '--json'], log)).stdout) as ReplayReport
  const { sweep, ...found } = await of('--target', 'reject<=0%,p99<=1s')
  const { rate, capacity, ...outcome } = sweep!.recommended!
  t.match(found.limits, { rate, capacity, chosen: 'smallest' })
  const { sweep: _, limits, ...same } = await of('--rate', rate, '--capacity', String(capacity))
  t.match(limits, { rate, capacity, chosen: undefined })
  t.same({ ...found, limits }, { ...same, limits }, 'the same figures as a replay of these limits')
  t.same([found.rejected, found.wait], [outcome.rejected, outcome.wait])
  const named = await of('--target', 'reject<=0%', '--rate', '7/s')
  t.match(named.limits, { rate: '7/s', chosen: undefined }, 'a rate that is given is asked for')

  const none = ['--target', 'reject<=0%,max<=1ms', '--sweep', 'rate=1/m|2/m,capacity=1|3']
  const { limits: largest, notes } = await of(...none)
  t.match(
    [largest, notes],
    [{ rate: '2/m', capacity: 3, chosen: 'largest' }, [/^no rate and capacity within the sweep/]],
  )
  for (const args of [none, ['--sweep']]) {
    const { stdout } = await replay(args, log)
    t.match(stdout, /^rejected: rate/m)
    t.notMatch(stdout, /^limits:|^admitted|5\/s, capacity 10/m, 'nobody asked for any limits')
  }
})

t.test("the log of a shaper that has run: each request, by the client's key", async t => {
  const config = {
    listen: '127.0.0.1:0',
    upstream: 'echo:',
    buckets: { client: { key: 'header:x-api-key', rate: '1/m', capacity: 3 } },
    routes: [
      { name: 'health', match: { path: '/healthz' }, mode: 'off' },
      { name: 'api', match: { path: '/api/*' }, mode: 'meter', buckets: ['client'] },
    ],
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const running = shaper(['start'], { cwd })
  const url = await running.url
  const status = async (path: string, key: string) => {
    const response = await fetch(url + path, { headers: { 'x-api-key': key } })
    await response.arrayBuffer()
    return response.status
  }
  const answers: number[] = []
  for (const key of ['alice', 'bob', 'alice', 'alice', 'alice', 'alice']) answers.push(await status('/api/x?a=1', key))
  t.same(answers, [200, 200, 200, 200, 429, 429])
  t.equal(await status('/healthz', 'alice'), 200)
  t.equal(await status('/nowhere', 'alice'), 404)
  running.child.kill('SIGTERM')
  const { stderr: log } = await running.finished
  const { code, stdout, stderr } = await replay(['-c', 'shaper.config.json', '--json'], log, cwd)
  t.equal(code, 0, stderr)
  const report = JSON.parse(stdout) as ReplayReport
  t.match(report, { formats: ['shaper'], requests: 6, bad: 0, admitted: 4, rejected: 2, clients: { total: 2 } })
  t.match(report.clients.hardest[0], { client: /^[0-9a-f]{12}$/, requests: 5, rejected: 2 })
  t.match(report.notes, [/does not contain the header "x-api-key"/])
  const text = await replay(['--rate', '1/m'], log)
  t.match(text.stdout, /^6 requests of 2 clients in \d+ lines \(shaper\)$/m)
  t.match(text.stdout, /^\d+ records left out: not about requests that reached a bucket$/m)
})

t.test('the quoted field behind the user agent is X-Forwarded-For', async t => {
  const line = (agent: string, forwarded: string) =>
    `10.0.0.1 - - [03/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 512 "-" "${agent}" ${forwarded}\n`
  const log = [
    line('a', '"198.51.100.9, 10.0.0.7"'),
    line('198.51.100.9', '0.120 "10.0.0.9:80" "198.51.100.10"'),
    line('c', '"-"'),
    line('d', ''),
  ].join('')
  const clients = async (...args: string[]) => {
    const { code, stdout, stderr } = await replay(['--rate', '1/d', '--capacity', '1', '--json', ...args], log)
    t.equal(code, 0, stderr)
    const report = JSON.parse(stdout) as { clients: { total: number; hardest: { client: string }[] } }
    return [report.clients.total, ...report.clients.hardest.map(({ client }) => client)]
  }
  t.same(await clients(), [1, '10.0.0.1'])
  t.same(await clients('--field', 'ip=http_x_forwarded_for'), [3, '10.0.0.1'])
  t.same((await clients('--key', 'header:x-forwarded-for'))[0], 3)
  const refused = async (text: string, field: string) => {
    const { code, stdout, stderr } = await replay(['--rate', '1/s', '--field', field], text)
    t.same([code, stdout], [2, ''])
    t.match(stderr, `shaper: --field: ${field} has no effect on standard input (combined); `)
  }
  await refused(log, 'time=when')
  await refused(log, 'ip=remote_addr')
  await refused(combined(START), 'ip=x_forwarded_for')
})

t.test('one address for all: a note', async t => {
  const of = async (count: number) => (await replay(['--rate', '5/s'], combined(START).repeat(count))).stdout
  t.match(await of(100), 'note: all 100 requests have the same address, perhaps that of a balancer; ')
  t.notMatch(await of(99), 'the same address')
})

t.test('--target: the answer comes first, and a log of shaper has no key to name', async t => {
  const target = ['--target', 'reject<=50%']
  t.match(
    (await replay(target, combined(START).repeat(9))).stdout,
    /^the smallest .*\n {2}"buckets": \{ "client": \{ "key": "ip"/,
  )
  const record = { level: 30, time: 1770112800600, route: 'api', outcome: 'forwarded', status: 200, method: 'GET' }
  const line = JSON.stringify({ ...record, path: '/', key: '2bd806c97f0e', waitMs: 0, upstreamMs: 1, msg: 'request' })
  t.match(
    (await replay(target, `${line}\n`.repeat(9))).stdout,
    /^the smallest .*\n {2}"rate": "[^"]+", "capacity": \d+\n/,
  )
})
