/** The log never holds anybody up, and its lines are whole and in order. */

import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, openSync, readFileSync, readSync } from 'node:fs'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import pino from 'pino'
import t from 'tap'
import { Agent, request } from 'undici'
import { createAccessLog } from '../../src/cli/logging/access-log.js'
import { createLogObserver } from '../../src/cli/serving/serve.js'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import type { SharedBucket } from '../../src/core/queue/lane.js'
import type { Outcome, RejectionCause, RequestRecord } from '../../src/proxy/observe/observer.js'
import { cpuTime } from '../cpu-time.js'
import { runs } from '../runs.js'
import { freePort } from '../servers/free-port.js'
import { until } from '../servers/redis.js'
import { ROOT, shaper } from './command.js'

// Those with a process of their own mostly wait.
t.jobs = 3

/** Starts shaper as a dry run before an upstream that refuses. */
function start(t: { teardown(run: () => unknown): void; testdir(files: Record<string, string>): string }) {
  const directory = t.testdir({
    'shaper.config.json': JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: { url: 'http://127.0.0.1:1', breaker: false },
      buckets: { client: { key: 'ip', rate: '100000/s' } },
      dryRun: true,
    }),
  })
  const child = spawn(process.execPath, [`${ROOT}/bin/shaper.js`, 'start', '-c', `${directory}/shaper.config.json`], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, NODE_V8_COVERAGE: '' },
  })
  t.teardown(() => child.kill('SIGKILL'))
  return child
}

/** Writes lines of these lengths, of a letter that takes two bytes, and ends. */
const LONG_WRITER = `
const [file, lengths] = process.argv.slice(1)
const { createLog, writeLine, closeLog } = await import(file)
createLog(null, { isShared: false })
for (const length of JSON.parse(lengths)) writeLine('\u00e9'.repeat(length) + '\\n')
await closeLog()
`

// These read what is written, so nothing that blocks this process may run beside them.
t.test('long: at the end a slow reader gets all lines, as long as it reads', async t => {
  const lengths = Array.from({ length: 40 }, () => 15_000)
  const args = [
    '--input-type=module',
    '-e',
    LONG_WRITER,
    `${ROOT}/build/src/cli/logging/log.js`,
    JSON.stringify(lengths),
  ]
  const writer = spawn(process.execPath, args, {
    env: { ...process.env, NODE_V8_COVERAGE: '' },
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let bytes = 0
  writer.stderr.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    writer.stderr.pause()
    setTimeout(() => writer.stderr.resume(), 200)
  })
  await once(writer, 'close')
  t.equal(bytes, 40 * 30_001)
})

t.test('long: a line that is longer than a batch keeps its place', async t => {
  const lengths = [10, 20_000, 2_000, 70_000, 10, 30_000, 30_000, 100, 65_535, 1]
  const file = `${t.testdir()}/log`
  for (const stderr of ['pipe', openSync(file, 'w')] as const) {
    const args = [
      '--input-type=module',
      '-e',
      LONG_WRITER,
      `${ROOT}/build/src/cli/logging/log.js`,
      JSON.stringify(lengths),
    ]
    const writer = spawn(process.execPath, args, {
      env: { ...process.env, NODE_V8_COVERAGE: '' },
      stdio: ['ignore', 'ignore', stderr],
    })
    const chunks: Buffer[] = []
    writer.stderr?.on('data', (chunk: Buffer) => chunks.push(chunk))
    await once(writer, 'close')
    const text = stderr === 'pipe' ? Buffer.concat(chunks).toString() : readFileSync(file, 'utf8')
    const lines = text.split('\n')
    t.equal(lines.pop(), '')
    t.same(
      lines.map(line => line.length),
      lengths,
      stderr === 'pipe' ? 'a pipe' : 'a file',
    )
    t.match(text, /^[\u00e9\n]*$/)
    if (stderr !== 'pipe') closeSync(stderr)
  }
})

t.test(
  'long: a reader of the log that reads nothing stops neither requests nor the shutdown',
  { buffered: true },
  async t => {
    const child = start(t)
    child.stderr.pause()
    const [chunk] = (await once(child.stdout, 'data')) as [Buffer]
    const url = /(http\S+) ->/.exec(chunk.toString())![1]!
    const agent = new Agent({ connections: 16 })
    t.teardown(() => agent.close())
    const path = `/${'x'.repeat(400)}`
    // Each writes a line of half a kB, and a pipe holds 64 kB.
    for (let round = 0; round < 40; round += 1) {
      const answers = await Promise.all(
        Array.from({ length: 25 }, async () => {
          const { statusCode, body } = await request(url + path, { dispatcher: agent })
          await body.dump()
          return statusCode
        }),
      )
      t.equal(answers.filter(status => status === 502).length, 25)
    }
    child.kill('SIGTERM')
    const ended = await Promise.race([once(child, 'exit'), sleep(8_000)])
    t.same(ended, [0, null])
  },
)

t.test(
  'long: a stopped terminal stops neither requests nor the shutdown, and tears no line',
  { buffered: true },
  async t => {
    const port = await freePort()
    const command = `${process.execPath} ${ROOT}/bin/shaper.js start --upstream echo: --rate 100000/s --capacity 100000 --listen 127.0.0.1:${port}`
    // A terminal, what is written to it on stdout.
    const terminal = spawn('script', ['-qec', command, '/dev/null'], {
      cwd: t.testdir(),
      stdio: ['ignore', 'pipe', 'ignore'],
      env: { ...process.env, NODE_V8_COVERAGE: '', NO_COLOR: '1' },
    })
    t.teardown(() => terminal.kill('SIGKILL'))
    let text = ''
    terminal.stdout.on('data', (chunk: Buffer) => {
      text += chunk
    })
    await until('it listens', () => / -> echo:/.test(text))
    terminal.stdout.pause()
    const agent = new Agent({ connections: 16 })
    t.teardown(() => agent.close())
    const path = `http://127.0.0.1:${port}/${'x'.repeat(400)}`
    for (let round = 0; round < 40; round += 1) {
      const answers = await Promise.race([
        sleep(5_000),
        Promise.all(
          Array.from({ length: 25 }, async () => {
            const { statusCode, body } = await request(path, { dispatcher: agent })
            await body.dump()
            return statusCode
          }),
        ),
      ])
      if (answers === undefined) return t.fail(`requests wait for the terminal: ${round * 25} were answered`)
    }
    terminal.stdout.resume()
    const lines = () => text.split(/\r?\n/).filter(line => line.includes('GET'))
    await until('all lines are there', () => lines().length === 1_000)
    const torn = lines().filter(
      line =>
        !/^[\d:.]{12} 200 GET \/x{400} {2}default, key [0-9a-f]{12}(, held \S+ \S+)?, answered in \S+ \S+$/.test(line),
    )
    t.same(torn, [])
    terminal.kill('SIGTERM')
    await once(terminal, 'exit')
  },
)

/** Writes lines of 300 bytes, says so on stdout, and ends with its stdin. */
const WRITER = `
const [file, name] = process.argv.slice(1)
const { createLog, writeLine, closeLog } = await import(file)
createLog(null, { isShared: true })
for (let n = 0; n < 1000; n += 1) writeLine(JSON.stringify({ name, n, text: 'x'.repeat(270) }) + '\\n')
// By now the system has what it takes.
let turns = 20
const wait = () => (--turns > 0 ? setImmediate(wait) : process.stdout.write('full'))
wait()
process.stdin.resume().on('end', closeLog)
`

t.test('workers share a pipe that is full: none tears its lines', { buffered: true }, async t => {
  const path = `${t.testdir()}/pipe`
  execFileSync('mkfifo', [path])
  const pipe = openSync(path, constants.O_RDWR | constants.O_NONBLOCK)
  t.teardown(() => closeSync(pipe))
  const args = (name: string) => ['--input-type=module', '-e', WRITER, `${ROOT}/build/src/cli/logging/log.js`, name]
  const env = { ...process.env, NODE_V8_COVERAGE: '' }
  const writers = ['a', 'b'].map(name => spawn(process.execPath, args(name), { env, stdio: ['pipe', 'pipe', pipe] }))
  t.teardown(() => {
    for (const writer of writers) writer.kill('SIGKILL')
  })
  await Promise.all(writers.map(({ stdout }) => once(stdout!, 'data')))
  const buffer = Buffer.alloc(1_000_000)
  const first = buffer.toString('utf8', 0, readSync(pipe, buffer))
  t.ok(first.length > 50_000, `the pipe was full: ${first.length}`)
  t.equal(first.at(-1), '\n', 'what the pipe took at once ends with a line')
  let text = first
  const lines = () => text.split('\n').slice(0, -1)
  await until('all have come', () => {
    try {
      text += buffer.toString('utf8', 0, readSync(pipe, buffer))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error
    }
    return lines().length === 2_000
  })
  const records = lines().map(line => JSON.parse(line) as { name: string; n: number })
  for (const name of ['a', 'b']) {
    const own = records.filter(each => each.name === name)
    t.same(
      own.map(({ n }) => n),
      Array.from({ length: 1_000 }, (_, n) => n),
      'in order',
    )
  }
  for (const writer of writers) writer.stdin!.end()
  await Promise.all(writers.map(writer => once(writer, 'exit')))
})

t.test('long: a slow reader gets whole lines', { buffered: true }, async t => {
  const child = start(t)
  let text = ''
  child.stderr.on('data', (chunk: Buffer) => {
    text += chunk
    child.stderr.pause()
    setTimeout(() => child.stderr.resume(), 5)
  })
  const [chunk] = (await once(child.stdout, 'data')) as [Buffer]
  const url = /(http\S+) ->/.exec(chunk.toString())![1]!
  const agent = new Agent({ connections: 16 })
  t.teardown(() => agent.close())
  for (let round = 0; round < 20; round += 1) {
    await Promise.all(
      Array.from({ length: 25 }, async () => {
        const { body } = await request(`${url}/${'y'.repeat(400)}`, { dispatcher: agent })
        await body.dump()
      }),
    )
  }
  child.kill('SIGTERM')
  await once(child, 'close')
  const lines = text.trimEnd().split('\n')
  const records = lines.map(line => JSON.parse(line) as Record<string, unknown>)
  // One assertion: a thousand block this process, which reads for other tests, for seconds.
  const failed = records.filter(
    ({ level, msg, detail, cause }) =>
      msg === 'request' &&
      level === 40 &&
      detail === 'the upstream refused the connection' &&
      cause === 'connect ECONNREFUSED 127.0.0.1:1',
  )
  t.equal(failed.length, 500, 'a failed request is one line, which says why')
  t.equal(records.filter(({ level, route }) => level === 40 && route !== undefined).length, 500)
})

/** What is written for each request, through pino: what the lines have to look like. */
function withPino(base: Record<string, unknown> | null, write: (line: string) => void) {
  const log = pino({ base }, { write })
  return (request: RequestRecord, outcome: Outcome, status: number): void => {
    const { route, method, target, wait, upstreamTime, retries, coalesced } = request
    log.info(
      {
        route: route || undefined,
        outcome,
        status,
        method,
        path: target,
        waitMs: Math.round(wait * 1_000) / 1_000,
        upstreamMs: upstreamTime === undefined ? undefined : Math.round(upstreamTime * 1_000) / 1_000,
        retries: retries || undefined,
        coalesced: coalesced || undefined,
      },
      'request',
    )
  }
}

const record = (more: Partial<RequestRecord>): RequestRecord => ({
  route: 'api',
  method: 'GET',
  target: '/',
  stack: [],
  keys: [],
  cost: 1,
  costs: undefined,
  settled: undefined,
  isSettling: false,
  priority: 3,
  wait: 0,
  predictedWait: undefined,
  upstreamTime: undefined,
  retries: 0,
  inFlight: false,
  givenUp: undefined,
  rejection: undefined,
  failure: undefined,
  onTrial: false,
  coalesced: false,
  header: () => undefined,
  ...more,
})

/** Any of UTF-16, control characters and halves of surrogate pairs included. */
const CODE_UNIT = fc.nat(0xffff).map(code => String.fromCharCode(code < 0x8000 ? code % 0x100 : code))

t.test('property: a line of the access log equals the line of pino, in valid UTF-8', async () => {
  const lines: string[] = []
  const plain = (line: string): void => {
    lines.push(line.replace(/"time":\d+/, '"time":0'))
  }
  const any = fc.string({
    unit: fc.oneof(fc.constantFrom('"', '\\', '\x7f', '\u2028', '\u00e9'), CODE_UNIT),
    maxLength: 60,
  })
  const ms = fc.double({ min: 0, max: 1e7, noNaN: true })
  for (const base of [null, { worker: 3 }]) {
    const ours = createAccessLog(base ?? {}, plain)
    const theirs = withPino(base, plain)
    fc.assert(
      fc.property(
        fc.record({
          route: any,
          method: any,
          target: any.map(text => `/${text.replaceAll('?', '')}`),
          wait: ms,
          upstreamTime: fc.option(ms, { nil: undefined }),
          retries: fc.nat(3),
          coalesced: fc.boolean(),
        }),
        given => {
          lines.length = 0
          ours.finished(record(given), 'forwarded', 200)
          theirs(record(given), 'forwarded', 200)
          const [our = '', their = ''] = lines.map(line => JSON.stringify(JSON.parse(line)))
          // Valid JSON has no control character in a line; halves of pairs would not survive UTF-8.
          return our === their && Buffer.from(lines[0]!).toString() === lines[0] && lines[0].endsWith('}\n')
        },
      ),
      { numRuns: runs(500) },
    )
  }
})

t.test('a line of a request that was given up says when, and by which times', async t => {
  const lines: string[] = []
  const { finished } = createAccessLog({}, line => lines.push(line))
  const learnt = { patience: 1_940, source: 'learnt', service: 312.5 } as const
  finished(record({ givenUp: { at: 'arrival', ...learnt }, predictedWait: 3_000 }), 'rejected', 429)
  finished(record({ givenUp: { at: 'release', ...learnt, source: 'known' }, wait: 1_700 }), 'expired', 503)
  finished(record({}), 'forwarded', 200)
  const [arrival, release, other] = lines.map(line => JSON.parse(line) as object)
  const times = { patienceMs: 1_940, serviceMs: 312.5 }
  t.match(arrival, { givenUp: 'arrival', patience: 'learnt', ...times, predictedMs: 3_000, waitMs: 0 })
  t.match(release, { givenUp: 'release', patience: 'known', ...times, waitMs: 1_700 })
  t.notHas(release, { predictedMs: Number })
  for (const name of ['givenUp', 'patience', 'patienceMs', 'serviceMs', 'predictedMs']) t.notOk(name in other!, name)
  const page = readFileSync(`${ROOT}/docs/operating.md`, 'utf8')
  for (const name of Object.keys(arrival!)) t.ok(page.includes(`\`${name}\``), `${name} is in docs/operating.md`)
})

t.test('a line says what was reserved and what it cost by bucket, and waits until that is known', async t => {
  const lines: string[] = []
  const { finished, settled } = createAccessLog({}, line => lines.push(line))
  const stack: SharedBucket[] = ['requests', 'tokens'].map(name => new QueuedBucket({ name, rate: 1, capacity: 1 }))
  const costs = { stack, costs: [1, 900.25] }
  finished(record({ ...costs, settled: [undefined, 512] }), 'forwarded', 200)
  finished(record(costs), 'cancelled', 499)
  t.match(JSON.parse(lines[0]!), { costs: { requests: 1, tokens: 900.25 }, settled: { tokens: 512 }, status: 200 })
  t.notOk('settled' in (JSON.parse(lines[1]!) as object))
  const request = record({ ...costs, isSettling: true })
  settled(request, 'answer')
  t.equal(lines.length, 2, 'before it has finished nothing is written')
  finished(request, 'forwarded', 200)
  t.equal(lines.length, 2)
  Object.assign(request, { settled: [undefined, 0] })
  settled(request, 'answer')
  settled(request, 'answer')
  t.equal(lines.length, 3)
  t.match(JSON.parse(lines[2]!), { costs: { requests: 1, tokens: 900.25 }, settled: { tokens: 0 }, msg: 'request' })
  const page = readFileSync(`${ROOT}/docs/operating.md`, 'utf8')
  for (const name of Object.keys(JSON.parse(lines[0]!) as object)) t.ok(page.includes(`\`${name}\``), name)
})

t.test('a line of a rejected request says by which bucket, and why', async t => {
  const lines: string[] = []
  const { finished } = createAccessLog({}, line => lines.push(line))
  finished(record({ rejection: { reason: 'evicted', bucket: 'everyone' }, wait: 120 }), 'rejected', 429)
  finished(record({ rejection: { reason: 'crowded', bucket: '' } }), 'rejected', 503)
  finished(record({}), 'forwarded', 200)
  const [evicted, crowded, other] = lines.map(line => JSON.parse(line) as object)
  t.match(evicted, { reason: 'evicted', bucket: 'everyone', waitMs: 120 })
  t.match(crowded, { reason: 'crowded' })
  for (const name of ['reason', 'bucket']) t.notOk(name in other!, name)
  t.notOk('bucket' in crowded!)
  const page = readFileSync(`${ROOT}/docs/operating.md`, 'utf8')
  const reasons: Record<RejectionCause['reason'], true> = {
    overflow: true,
    evicted: true,
    blocked: true,
    'too-costly': true,
    'max-wait': true,
    patience: true,
    crowded: true,
    'in-flight': true,
    paused: true,
    unavailable: true,
  }
  for (const reason of Object.keys(reasons)) t.ok(page.includes(`\`${reason}\``), `${reason} is in docs/operating.md`)
})

t.test('a line of a refused request says why, and is no warning', async t => {
  const lines: string[] = []
  const { finished } = createAccessLog({}, line => lines.push(line))
  finished(record({ failure: { detail: 'no route matches' } }), 'refused', 404)
  t.match(JSON.parse(lines[0]!), { level: 30, outcome: 'refused', detail: 'no route matches' })
})

t.test('each line of the access log has the time of its request', async t => {
  let line = ''
  const { finished } = createAccessLog({}, text => {
    line = text
  })
  for (let round = 0; round < 3; round += 1) {
    const before = Date.now()
    finished(record({}), 'forwarded', 200)
    const { time } = JSON.parse(line) as { time: number }
    t.ok(time >= before && time <= Date.now(), `${time}, not before ${before}`)
    while (Date.now() < before + 3) await new Promise(setImmediate)
  }
})

t.test('long: a line of the access log costs less than half of what it costs through pino', async t => {
  let length = 0
  const write = (line: string) => {
    length += line.length
  }
  const bucket = {} as SharedBucket
  const requests = Array.from({ length: 1_000 }, (_, i) =>
    record({ target: `/v1/things/${i}`, stack: [bucket], keys: ['a'], wait: (i * 0.37) % 900, upstreamTime: i * 0.11 }),
  )
  const ours = createAccessLog({}, write).finished
  const theirs = withPino(null, write)
  /** us of CPU. */
  const cost = (finished: typeof ours) => {
    const ms = cpuTime(() => {
      for (let round = 0; round < 20; round += 1) for (const each of requests) finished(each, 'forwarded', 200)
    })
    return ms / 20
  }
  const least = { ours: Infinity, theirs: Infinity }
  for (let round = 0; round < 8; round += 1) {
    least.ours = Math.min(least.ours, cost(ours))
    least.theirs = Math.min(least.theirs, cost(theirs))
  }
  t.ok(length > 0)
  t.ok(least.ours < least.theirs / 2, `${least.ours.toFixed(2)} us against ${least.theirs.toFixed(2)} us`)
})

t.test('what a client sends cannot break out of its line', { buffered: true }, async t => {
  const command = shaper(['start', '--upstream', 'echo:', '--rate', '1000/s', '--listen', '127.0.0.1:0'], {
    cwd: t.testdir(),
  })
  t.teardown(() => command.child.kill('SIGKILL'))
  const { port } = new URL(await command.url)
  const path = '/"},\\"level":60,{'
  const socket = connect(Number(port), '127.0.0.1')
  socket.write(`GET ${path}?secret HTTP/1.1\r\nHost: a\r\ntraceparent: 00-"\\"-x\r\nConnection: close\r\n\r\n`)
  socket.resume()
  await once(socket, 'close')
  await until('the line, in a batch that is not full', () => command.stderr().includes('"msg":"request"'))
  const line = command.stderr().trimEnd().split('\n').at(-1)!
  const told = JSON.parse(line) as { path: string }
  t.same(Object.keys(told), [
    'level',
    'time',
    'route',
    'outcome',
    'status',
    'method',
    'path',
    'key',
    'waitMs',
    'upstreamMs',
    'msg',
  ])
  t.match(told, {
    level: 30,
    route: 'default',
    outcome: 'forwarded',
    status: 200,
    method: 'GET',
    key: /^[0-9a-f]{12}$/,
  })
  t.equal(told.path, path)
})

t.test('a change of rates with the time of day is logged, and who expires by it', async t => {
  const told: unknown[] = []
  const log = {
    info: (facts: unknown, text: string) => void told.push([facts, text]),
    warn: (facts: unknown, text: string) => void told.push([facts, text]),
  }
  const { rescheduled } = createLogObserver(log as Parameters<typeof createLogObserver>[0], () => 0)
  rescheduled!(
    [
      { bucket: 'everyone', tier: undefined, rate: 0.05 },
      { bucket: 'client', tier: 'gold', rate: 0.1 },
    ],
    new Map([['api', 3]]),
  )
  t.same(told, [
    [{ rates: ['everyone: 50/s', 'gold of client: 100/s'] }, 'the time of day has changed the rates'],
    [{ route: 'api', count: 3 }, 'route api: 3 waiters now exceed maxWait and are answered 503'],
  ])
})

t.test('several lines of a key header: a warning, at most once a minute for a route', { buffered: true }, async t => {
  const warned: unknown[] = []
  let now = 0
  const { duplicated } = createLogObserver(
    { info() {}, debug() {}, warn: (facts: unknown) => void warned.push(facts) },
    () => now,
  )
  for (const [at, route] of [
    [0, 'a'],
    [1, 'a'],
    [2, 'b'],
    [59_999, 'a'],
    [60_000, 'a'],
    [60_001, 'b'],
  ] as const) {
    now = at
    duplicated!(route, 'x-key')
  }
  t.same(
    warned,
    ['a', 'b', 'a'].map(route => ({ route, header: 'x-key' })),
  )
})

t.test('the warning of several lines of a key header reaches the log', { buffered: true }, async t => {
  const config = {
    upstream: 'echo:',
    listen: '127.0.0.1:0',
    buckets: { client: { key: 'header:x-key', rate: '1000/s' } },
    accessLog: false,
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const command = shaper(['start'], { cwd })
  t.teardown(() => command.child.kill('SIGKILL'))
  const { port } = new URL(await command.url)
  const socket = connect(Number(port), '127.0.0.1')
  const asked = (lines: string) => `GET / HTTP/1.1\r\nHost: a\r\n${lines}\r\n`
  const twice = 'X-Key: a\r\nX-Key: b\r\n'
  socket.write(asked('X-Key: a\r\n') + asked(twice) + asked(twice) + asked('Connection: close\r\n'))
  socket.resume()
  await once(socket, 'close')
  command.child.kill('SIGTERM')
  const { stderr } = await command.finished
  const lines = stderr.split('\n').filter(line => line.includes('several lines'))
  t.equal(lines.length, 1)
  t.match(JSON.parse(lines[0]!), {
    level: 40,
    route: 'default',
    header: 'x-key',
    msg: /the first counts; "duplicates": "reject" refuses such requests$/,
  })
})

t.test(
  'lines that wait for their batch are written when a second signal ends it at once',
  { buffered: true },
  async t => {
    const command = shaper(['start', '--upstream', 'echo:', '--rate', '1000/s', '--listen', '127.0.0.1:0'], {
      cwd: t.testdir(),
    })
    t.teardown(() => command.child.kill('SIGKILL'))
    const url = await command.url
    for (let i = 0; i < 3; i += 1) await (await request(url)).body.dump()
    command.child.kill('SIGTERM')
    command.child.kill('SIGINT')
    const { stderr } = await command.finished
    t.equal(stderr.match(/"msg":"request"/g)?.length, 3)
  },
)
