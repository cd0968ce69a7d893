import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import t, { type Test } from 'tap'
import { request } from 'undici'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { until } from '../servers/redis.js'
import { ROOT, shaper } from './command.js'

t.test('flags alone are enough', async t => {
  const { child, ready, url, finished } = shaper(
    ['start', '--upstream', 'echo:', '--rate', '5/s', '--listen', '127.0.0.1:0'],
    { cwd: t.testdir() },
  )
  t.match(await ready, /^shaper listening on http:\/\/127\.0\.0\.1:\d+ -> echo:$/)
  const answers = await Promise.all(Array.from({ length: 6 }, async () => request(await url)))
  t.same(answers.map(({ statusCode }) => statusCode).sort(), [200, 200, 200, 200, 200, 429], "one second's worth")
  await Promise.all(answers.map(({ body }) => body.dump()))
  child.kill('SIGTERM')
  t.equal((await finished).code, 0)
})

t.test("the repository's own configuration", async t => {
  const { child, url, finished } = shaper(['start', '--listen', '127.0.0.1:0'])
  const answer = await request(`${await url}/any?thing`, { method: 'POST', body: 'hello' })
  t.match(await answer.body.json(), { method: 'POST', path: '/any?thing', bytes: 5 })
  t.equal(answer.headers['ratelimit-policy'], '"client";q=10;w=2')
  child.kill('SIGINT')
  t.equal((await finished).code, 0)
})

t.test('a wrong configuration: exit 2, a line for each problem, nothing started', async t => {
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({
      upstream: 'echo:',
      buckets: { client: { rate: '5/w', capacity: 10 }, other: { rat: '5/s' } },
      routes: [{ name: 'a', buckets: ['clint'] }],
    }),
  })
  const { stderr, stdout, code } = await shaper(['start'], { cwd }).finished
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
    [['start', '--upstream', 'echo:', '--rate', '5/s', '--capacity', '0.5'], /0\.5/],
  ]
  for (const [args, message] of cases) {
    const { code, stderr, stdout } = await shaper(args, { cwd }).finished
    t.equal(code, 2, args.join(' '))
    t.match(stderr, message)
    t.match(stderr, /^shaper: /)
    t.notMatch(stderr, /\n\s+at /)
    t.equal(stdout, '')
  }
})

t.test('flags that do not say which bucket are refused', async t => {
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({
      upstream: 'echo:',
      buckets: { a: { rate: '5/s', capacity: 10 }, b: { rate: '5/s', capacity: 10 } },
      routes: [{ buckets: ['a', 'b'] }],
    }),
  })
  const { code, stderr } = await shaper(['start', '--rate', '1/s'], { cwd }).finished
  t.equal(code, 2)
  t.match(stderr, /--rate: .*2 buckets/)
})

t.test('an address that cannot be listened on: exit 1, one line with the remedy', async t => {
  const taken = createTcpServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.teardown(() => taken.close())
  const { port } = taken.address() as AddressInfo
  const flags = ['start', '--upstream', 'echo:', '--rate', '5/s', '--listen']
  const busy = await shaper([...flags, `127.0.0.1:${port}`], { cwd: t.testdir() }).finished
  t.equal(busy.code, 1)
  t.equal(busy.stderr, `shaper: 127.0.0.1:${port} is in use; choose another address with --listen HOST:PORT\n`)
  const foreign = await shaper([...flags, '192.0.2.1:8080'], { cwd: t.testdir() }).finished
  t.equal(foreign.code, 1)
  t.match(foreign.stderr, /^shaper: 192\.0\.2\.1:8080 is not an address of this machine.*\n$/)
})

t.test('help shows an example for each command', async t => {
  for (const args of [
    ['--help'],
    ['start', '--help'],
    ['check', '--help'],
    ['migrate', '--help'],
    ['demo', '--help'],
  ]) {
    const { code, stdout } = await shaper(args).finished
    t.equal(code, 0)
    t.match(stdout, /Example:\n {2}shaper /, args.join(' '))
  }
})

t.test('help costs little more than Node and a parser of arguments', async t => {
  const told =
    "process.on('exit', () => { const { user, system } = process.cpuUsage(); console.error('cpu', user + system) })"
  const hook = `${t.testdir({ 'hook.cjs': told })}/hook.cjs`
  /** The least CPU of a few runs, in ms. */
  const cost = (args: readonly string[]) => {
    const runs = Array.from({ length: 6 }, () => {
      const env = { ...process.env, NODE_V8_COVERAGE: '', NODE_OPTIONS: '' }
      const { stderr } = spawnSync(process.execPath, ['--require', hook, ...args], { env, encoding: 'utf8' })
      return Number(/cpu (\d+)/.exec(stderr)![1]) / 1_000
    })
    return Math.min(...runs)
  }
  const plain = cost([`${ROOT}/node_modules/commander/esm.mjs`])
  const help = cost([`${ROOT}/bin/shaper.js`, '--help'])
  t.ok(help < 1.6 * plain, `${help.toFixed(0)} ms against ${plain.toFixed(0)} ms`)
})

t.test('npm start passes SIGTERM on: nothing is left running', async t => {
  const { group: npm, url } = await npmStart(t)
  await (await request(url)).body.dump()
  npm.kill('SIGTERM')
  await once(npm, 'exit')
  await until('the port is free', () =>
    request(url).then(
      () => false,
      (error: NodeJS.ErrnoException) => error.code === 'ECONNREFUSED',
    ),
  )
  await until('no process is left', () => {
    try {
      return !process.kill(-npm.pid!, 0)
    } catch {
      return true
    }
  })
})

t.test('Ctrl-C in npm start is one signal, though npm passes on a second one: who waits is answered', async t => {
  const { group, url } = await npmStart(t)
  const waiting = Array.from({ length: 4 }, () => answered(url))
  await Promise.race(waiting)
  process.kill(-group.pid!, 'SIGINT')
  t.same(await Promise.all(waiting), [200, 200, 200, 200])
  t.same(await once(group, 'exit'), [0, null])
})

t.test('Ctrl-C again in npm start ends it at once', async t => {
  const { group, url } = await npmStart(t)
  const waiting = Array.from({ length: 10 }, () => answered(url))
  await Promise.race(waiting)
  const start = performance.now()
  process.kill(-group.pid!, 'SIGINT')
  await new Promise(resolve => setTimeout(resolve, 400))
  process.kill(-group.pid!, 'SIGINT')
  await once(group, 'exit')
  t.ok(performance.now() - start < 1_200, 'before the queue was empty')
  t.ok((await Promise.all(waiting)).includes(undefined))
})

/** `npm start` in a group of its own, as in a terminal. */
async function npmStart(t: Test): Promise<{ group: ChildProcess; url: string }> {
  const group = spawn('npm', ['start', '--', '--listen', '127.0.0.1:0'], { cwd: ROOT, detached: true, stdio: 'pipe' })
  t.teardown(() => {
    try {
      process.kill(-group.pid!, 'SIGKILL')
    } catch {
      // Nothing is left.
    }
  })
  let output = ''
  group.stdout.on('data', (chunk: Buffer) => {
    output += chunk
  })
  group.stderr.resume()
  await until('it listens', () => / -> echo:/.test(output))
  return { group, url: /(http\S+) ->/.exec(output)![1]! }
}

/** The status of an answer; undefined: there was none. */
async function answered(url: string): Promise<number | undefined> {
  try {
    const { statusCode, body } = await request(url)
    await body.dump()
    return statusCode
  } catch {
    return undefined
  }
}

t.test('check prints what start would use as JSON on stdout, and the longest wait on stderr', async t => {
  const { code, stdout, stderr } = await shaper(['check']).finished
  t.equal(code, 0)
  t.match(JSON.parse(stdout), { listen: '0.0.0.0:8080' })
  t.match(stderr, /bucket "client" \(5\/s, capacity 10\): the longest wait is 1\.8s/)
  t.notMatch(stderr, /warning/, 'the configuration of npm start warns of nothing')
  const file = `${t.testdir()}/effective.json`
  writeFileSync(file, stdout)
  const again = await shaper(['check', '-c', file]).finished
  t.equal(again.stdout, stdout, 'which reads as itself')
})

t.test('SIGTERM under load: every request has an answer, exit 0', async t => {
  const upstream = createServer((_req, res) => res.end('ok')).listen(0, '127.0.0.1')
  await once(upstream, 'listening')
  t.teardown(() => upstream.close())
  const { port } = upstream.address() as AddressInfo
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: `http://127.0.0.1:${port}`,
      buckets: { all: { key: 'all', rate: '20/s', capacity: 100 } },
      limits: { shutdownTimeout: '1s' },
      admin: { listen: '127.0.0.1:0' },
    }),
  })
  const { child, url, finished, stderr } = shaper(['start'], { cwd })
  const target = await url
  const start = performance.now()
  const answers = Array.from({ length: 60 }, async () => {
    const { statusCode, body } = await request(target)
    await body.dump()
    return statusCode
  })
  // Who is not there yet when it stops accepting is refused.
  const admin = (): string => /"url":"(http[^"]+)"/.exec(stderr())![1]!
  await until('all have come', async () => {
    const { buckets } = (await (await request(`${admin()}/buckets`)).body.json()) as Snapshot
    return buckets[0]!.offered === 60
  })
  const before = (performance.now() - start) / 1_000
  child.kill('SIGTERM')
  const statuses = await Promise.all(answers)
  t.equal((await finished).code, 0)
  const served = statuses.filter(status => status === 200).length
  t.ok(served >= 15 && served <= 20 * (before + 1) + 10, `released on for about a second: ${served}`)
  t.equal(statuses.filter(status => status === 503).length, 60 - served, 'the rest is told')
  await t.rejects(request(target), { code: 'ECONNREFUSED' })
})

t.test('a second signal ends it at once', async t => {
  const { child, url, finished, stderr } = shaper(
    ['start', '--upstream', 'echo:', '--rate', '1/m', '--capacity', '5', '--listen', '127.0.0.1:0'],
    {
      cwd: t.testdir(),
    },
  )
  const target = await url
  await (await request(target)).body.dump()
  const waiting = request(target).catch((error: Error) => error)
  await request(`${target}/`, { headers: { prefer: 'wait=0' } }).then(({ body }) => body.dump())
  child.kill('SIGTERM')
  await until('the first is heard', () => /shutting down/.test(stderr()))
  child.kill('SIGTERM')
  t.equal((await finished).code, 1)
  t.ok((await waiting) instanceof Error)
})

t.test('a store that does not answer: exit 1 where that is to be the end, else it goes on alone', async t => {
  const config = (onOutage: string) => ({
    'shaper.config.json': JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: 'echo:',
      store: { type: 'redis', url: 'redis://me:s3cret@127.0.0.1:1', onOutage },
      buckets: { client: { rate: '5/s' } },
    }),
  })
  const closed = await shaper(['start'], { cwd: t.testdir(config('closed')) }).finished
  t.equal(closed.code, 1)
  t.equal(closed.stdout, '')
  t.match(
    closed.stderr,
    /^shaper: the store redis does not answer( \([^\n]*\))?; start it, or set "onOutage" to "local" or "open"\n$/,
  )
  t.notMatch(closed.stderr, /s3cret/)
  const { child, url, finished } = shaper(['start'], { cwd: t.testdir(config('local')) })
  const { statusCode, body } = await request(await url)
  await body.dump()
  t.equal(statusCode, 200)
  child.kill('SIGTERM')
  const { code, stderr } = await finished
  t.equal(code, 0)
  t.match(stderr, /the store does not answer: going on alone, at 1\/1 of the rates/)
  t.notMatch(stderr, /s3cret/)
})
