/** The program as one executable, in an empty directory and without an environment. */
import { once } from 'node:events'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import t from 'tap'
import { request } from 'undici'
import { type Command, type Finished, ROOT, shaper } from './cli/command.js'
import { run } from './packed.js'
import { freePort } from './servers/free-port.js'
import { startPostgres } from './servers/postgres.js'
import { startRedis, until } from './servers/redis.js'

t.setTimeout(180_000)
await run(ROOT, process.execPath, 'scripts/build-binary.js')
const executable = `${ROOT}build/bin/shaper${process.platform === 'win32' ? '.exe' : ''}`

type Tap = Pick<typeof t, 'testdir' | 'teardown'>

const start = (cwd: string, ...args: string[]): Command => shaper(args, { executable, cwd })
const runs = (cwd: string, ...args: string[]): Promise<Finished> => start(cwd, ...args).finished

function directory(t: Tap, config: object): string {
  return t.testdir({ 'shaper.config.json': JSON.stringify(config) })
}

/** From the program's log. */
async function adminOf(command: Command): Promise<string> {
  const told = () => /"url":"(http:[^"]+)","msg":"the admin server listens"/.exec(command.stderr())?.[1]
  await until('the admin server listens', () => told() !== undefined)
  return told()!
}

t.test('it knows its version, and refuses what the program refuses', async t => {
  const cwd = directory(t, { upstream: 'echo:', buckets: { all: { rate: 'fast' } } })
  const begun = performance.now()
  const { version } = JSON.parse(readFileSync(`${ROOT}/package.json`, 'utf8')) as { version: string }
  t.same(await runs(cwd, '--version'), { code: 0, stdout: `${version}\n`, stderr: '' })
  t.comment(`${(performance.now() - begun).toFixed()} ms to start, ${(statSync(executable).size / 1e6).toFixed()} MB`)
  t.match(await runs(cwd, 'check'), { code: 2, stdout: '', stderr: /^shaper: .*buckets\.all\.rate/ })
  // The path of the executable is not taken for a command, nor is anything else.
  t.match(await runs(cwd, '/bin/sh'), { code: 2, stderr: /unknown command/ })
})

t.test('start with workers: requests, the dashboard, the waiting page, top, a restart', async t => {
  const listen = `127.0.0.1:${await freePort()}`
  const buckets = { all: { key: 'all', rate: '20/s', capacity: 4 } }
  const cwd = directory(t, { listen, upstream: 'echo:', admin: { listen: '127.0.0.1:0' }, buckets })
  const command = start(cwd, 'start', '--workers', '2')
  t.teardown(() => command.child.kill('SIGKILL'))
  const [url, admin] = [await command.url, await adminOf(command)]
  const burst = async (): Promise<number[]> => {
    const answers = Array.from({ length: 10 }, () => request(url, { headers: { accept: 'text/html' }, reset: true }))
    const pages = await Promise.all(
      answers.map(async answer => {
        const { statusCode, body } = await answer
        return { statusCode, text: await body.text() }
      }),
    )
    t.ok(
      pages.every(({ statusCode, text }) => (statusCode === 429) === text.startsWith('<!doctype html>')),
      'who is rejected gets the waiting page',
    )
    return pages.map(({ statusCode }) => statusCode)
  }
  const statuses = await burst()
  const served = statuses.filter(status => status === 200).length
  t.ok(served >= 4 && served < 10, `${statuses}`)
  t.equal(statuses.filter(status => status === 429).length, 10 - served)

  t.match(await (await request(admin)).body.text(), /<script type="module">[\s\S]*<\/script>/)
  const top = await runs(cwd, 'top', '--admin', admin, '--count', '1')
  t.match(top, { code: 0, stdout: /2 processes/ })

  const { stdout } = await runs(cwd, 'restart', '--admin', admin)
  const [, successor] = /process (\d+) serves now/.exec(stdout) ?? []
  t.not(Number(successor), command.child.pid)
  t.ok((await burst()).includes(200), 'the successor serves')
  t.notMatch(command.stderr(), /there is no thread to time releases/)
  command.child.kill('SIGTERM')
  t.match(await command.finished, { code: 0 })
})

t.test('the scripts of stores are in it', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const config = { listen: '127.0.0.1:0', upstream: 'echo:', buckets: { all: { key: 'all', rate: '5/s' } } }
  const cwd = directory(t, { ...config, store: { type: 'redis', url: redis.url, timeout: '3s' } })
  const command = start(cwd, 'start')
  t.teardown(() => command.child.kill('SIGKILL'))
  const { statusCode, body } = await request(await command.url)
  await body.dump()
  t.equal(statusCode, 200)
  t.notMatch(command.stderr(), /"level":(40|50).*store/)
  command.child.kill('SIGTERM')
  await once(command.child, 'close')

  const postgres = await startPostgres()
  t.teardown(() => postgres.close())
  writeFileSync(
    `${cwd}/shaper.config.json`,
    JSON.stringify({ ...config, store: { type: 'postgres', url: postgres.url } }),
  )
  t.match(await runs(cwd, 'migrate'), { code: 0, stdout: /^store postgres: table \S+ is there\n$/ })
})

t.test('replay, with its page', async t => {
  const line = '192.0.2.1 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 5 "-" "curl/8.0"\n'
  const cwd = t.testdir({ 'access.log': line.repeat(9) })
  const report = await runs(cwd, 'replay', 'access.log', '--rate', '1/s', '--capacity', '3', '--html', 'page.html')
  t.match(report, { code: 0, stdout: /^9 requests of 1 client/ })
  t.match(readFileSync(`${cwd}/page.html`, 'utf8'), /<script type="module">/)
})
