import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, realpathSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import t from 'tap'
import { request } from 'undici'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { until } from '../servers/redis.js'
import { ROOT, shaper } from './command.js'

// They are independent, and mostly wait.
t.jobs = 3

t.test('flags alone are enough', { buffered: true }, async t => {
  const { child, ready, url, finished } = shaper(
    ['start', '--upstream', 'echo:', '--rate', '5/s', '--listen', '127.0.0.1:0'],
    { cwd: t.testdir() },
  )
  t.match(await ready, /^shaper listening on http:\/\/127\.0\.0\.1:\d+ -> echo:$/)
  // More than are released while they are sent, also on a busy machine.
  const answers = await Promise.all(Array.from({ length: 60 }, async () => request(await url)))
  const passed = answers.filter(({ statusCode }) => statusCode === 200).length
  t.ok(passed >= 5 && answers.length - passed > 0, `${passed} passed`)
  t.equal(answers.filter(({ statusCode }) => statusCode === 429).length, answers.length - passed)
  t.match(answers[0]!.headers['ratelimit-policy'], /;q=5;/, "one second's worth")
  await Promise.all(answers.map(({ body }) => body.dump()))
  child.kill('SIGTERM')
  t.equal((await finished).code, 0)
})

t.test('the start says on which address it listens, and which file it has found', { buffered: true }, async t => {
  const file = JSON.stringify({ listen: '0.0.0.0:0', upstream: 'echo:', buckets: { all: { key: 'all', rate: '5/s' } } })
  const cwd = realpathSync(t.testdir({ 'shaper.config.json': file }))
  for (const [args, told] of [
    [[], `configuration: ${cwd}/shaper.config.json, found in the working directory; -c FILE names another`],
    [['-c', 'shaper.config.json'], `configuration: ${cwd}/shaper.config.json`],
  ] as const) {
    const command = shaper(['start', ...args], { cwd })
    t.match(await command.ready, /^shaper listening on http:\/\/0\.0\.0\.0:\d+ -> echo:$/)
    t.ok(command.stderr().includes(`"msg":"${told}"}`), command.stderr())
    command.child.kill('SIGTERM')
    t.equal((await command.finished).code, 0)
  }
})

t.test('a checkout that is not built: exit 1, and one line says what to run', { buffered: true }, async t => {
  const folder = t.testdir({ 'package.json': '{ "type": "module" }', bin: {} })
  copyFileSync(`${ROOT}/bin/shaper.js`, `${folder}/bin/shaper.js`)
  const { status, stdout, stderr } = spawnSync(process.execPath, ['bin/shaper.js', 'start'], {
    cwd: folder,
    encoding: 'utf8',
  })
  t.equal(status, 1)
  t.equal(stdout, '')
  t.equal(stderr, `shaper is not built; run npm ci in ${realpathSync(folder)}\n`)
})

for (const [name, args] of [
  ['one process', []],
  ['two workers', ['--workers', '2']],
] as const) {
  t.test(`long: the end of ${name} is logged, with how many were answered and cut`, { buffered: true }, async t => {
    const held: ServerResponse[] = []
    const upstream = createServer((_, res) => void held.push(res)).listen(0, '127.0.0.1')
    t.teardown(() => upstream.close())
    await once(upstream, 'listening')
    const config = {
      listen: '127.0.0.1:0',
      upstream: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`,
      buckets: { all: { key: 'all', rate: '1/m', capacity: 3 } },
      routes: [{ buckets: ['all'], patience: 'none' }],
      limits: { shutdownTimeout: '1s' },
    }
    const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
    const { child, url, stderr, finished } = shaper(['start', ...args], { cwd })
    t.teardown(() => child.kill('SIGKILL'))
    const target = await url
    const answers = Array.from({ length: 4 }, () => request(target))
    await until('one is sent', () => held.length === 1)
    t.equal((await Promise.race(answers)).statusCode, 429, 'all are decided')
    child.kill('SIGTERM')
    await until('the end has begun', () => /"shutting down"/.test(stderr()))
    held[0]!.end()
    t.equal((await finished).code, 0)
    t.same((await Promise.all(answers)).map(({ statusCode }) => statusCode).sort(), [200, 429, 503, 503])
    t.match(stderr().trimEnd().split('\n').at(-1), /"answered":1,"cut":2,"msg":"shut down"/)
  })
}

t.test("the repository's own configuration", { buffered: true }, async t => {
  const { child, url, finished } = shaper(['start', '--listen', '127.0.0.1:0'])
  const answer = await request(`${await url}/any?thing`, { method: 'POST', body: 'hello' })
  t.match(await answer.body.json(), { method: 'POST', path: '/any?thing', bytes: 5 })
  t.equal(answer.headers['ratelimit-policy'], '"client";q=10;w=2')
  child.kill('SIGINT')
  t.equal((await finished).code, 0)
})

t.test('a usage error: exit 2, one line on stderr', { buffered: true }, async t => {
  const { code, stdout, stderr } = await shaper(['start', '--colour'], { cwd: t.testdir() }).finished
  t.same({ code, stdout, stderr }, { code: 2, stdout: '', stderr: "shaper: unknown option '--colour'; try --help\n" })
})

t.test('an address that cannot be listened on: exit 1, one line with the remedy', { buffered: true }, async t => {
  const taken = createTcpServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.teardown(() => taken.close())
  const { port } = taken.address() as AddressInfo
  const flags = ['start', '--upstream', 'echo:', '--rate', '5/s', '--listen']
  const cwd = t.testdir()
  const [busy, foreign, unknown] = await Promise.all(
    [`127.0.0.1:${port}`, '192.0.2.1:8080', 'name.invalid:8080'].map(
      address => shaper([...flags, address], { cwd }).finished,
    ),
  )
  t.equal(busy!.code, 1)
  t.equal(busy!.stderr, `shaper: 127.0.0.1:${port} is in use; choose another address with --listen HOST:PORT\n`)
  t.equal(foreign!.code, 1)
  t.match(foreign!.stderr, /^shaper: 192\.0\.2\.1:8080 is not an address of this machine.*\n$/)
  t.equal(unknown!.code, 1)
  t.match(
    unknown!.stderr,
    /^shaper: listen: the name in name\.invalid:8080 does not resolve \(\w+\); use .*--listen 0\.0\.0\.0:8080\n$/,
  )
})

t.test('SIGTERM under load: every request has an answer, exit 0', { buffered: true }, async t => {
  const upstream = createServer((_req, res) => res.end('ok')).listen(0, '127.0.0.1')
  await once(upstream, 'listening')
  t.teardown(() => upstream.close())
  const { port } = upstream.address() as AddressInfo
  const cwd = t.testdir({
    'shaper.config.json': JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: `http://127.0.0.1:${port}`,
      buckets: { all: { key: 'all', rate: '20/s', capacity: 200 } },
      limits: { shutdownTimeout: '1s' },
      admin: { listen: '127.0.0.1:0' },
    }),
  })
  const { child, url, finished, stderr } = shaper(['start'], { cwd })
  const target = await url
  const start = performance.now()
  // Those that wait would take 10 s.
  const answers = Array.from({ length: 200 }, async () => {
    const { statusCode, body } = await request(target)
    await body.dump()
    return statusCode
  })
  // Later connections are refused.
  const admin = (): string | undefined => /"url":"(http[^"]+)"/.exec(stderr())?.[1]
  await until('all have come', async () => {
    if (admin() === undefined) return false
    const { buckets } = (await (await request(`${admin()}/buckets`)).body.json()) as Snapshot
    return buckets[0]!.offered === 200
  })
  const killedAt = performance.now()
  child.kill('SIGTERM')
  const statuses = await Promise.all(answers)
  const endedAt = performance.now()
  t.equal((await finished).code, 0)
  const served = statuses.filter(status => status === 200).length
  const [whole, rest] = [endedAt - start, endedAt - killedAt].map(ms => ms / 1_000) as [number, number]
  t.ok(served >= 15 && served <= 20 * whole + 1, `released on: ${served} in ${whole} s`)
  t.ok(rest >= 0.99, `for a second: ${rest} s`)
  const cut = statuses.filter(status => status === 503).length
  t.equal(cut, 200 - served, 'the rest get 503')
  t.ok(cut > 0, 'but no longer')
  await t.rejects(request(target), { code: 'ECONNREFUSED' })
})

t.test('a second signal ends it at once', { buffered: true }, async t => {
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

t.test('a store that does not answer: exit 1 or alone, as configured', { buffered: true }, async t => {
  const config = (onOutage: string) => ({
    'shaper.config.json': JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: 'echo:',
      store: { type: 'redis', url: 'redis://me:s3cret@127.0.0.1:1', onOutage },
      buckets: { client: { rate: '5/s' } },
    }),
  })
  const cwd = t.testdir({ closed: config('closed'), local: config('local') })
  // Both wait until the store times out, so they run together.
  const failing = shaper(['start'], { cwd: `${cwd}/closed` })
  const { child, url, finished } = shaper(['start'], { cwd: `${cwd}/local` })
  const closed = await failing.finished
  t.equal(closed.code, 1)
  t.equal(closed.stdout, '')
  t.match(
    closed.stderr,
    /^shaper: the store redis does not answer( \([^\n]*\))?; start it, or set "onOutage" to "local" or "open"\n$/,
  )
  t.notMatch(closed.stderr, /s3cret/)
  const { statusCode, body } = await request(await url)
  await body.dump()
  t.equal(statusCode, 200)
  child.kill('SIGTERM')
  const { code, stderr } = await finished
  t.equal(code, 0)
  t.match(stderr, /the store does not answer: going on alone, at 1\/1 of the rates/)
  t.notMatch(stderr, /s3cret/)
})
