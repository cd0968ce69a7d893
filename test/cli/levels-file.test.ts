/** Levels over restarts of the real program: a signal, a kill, a damaged file, a path that cannot be used. */
import { once } from 'node:events'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { until } from '../servers/redis.js'
import { type Command, shaper, shaperHere } from './command.js'

const CONFIG = {
  ...{ listen: '127.0.0.1:0', upstream: 'echo:' },
  store: { type: 'memory', file: 'levels.json' },
  buckets: { client: { key: 'header:x-user', rate: '6/h', capacity: 12 } },
  routes: [{ name: 'api', mode: 'meter' }],
}

function place(t: Test, config: object = CONFIG): string {
  return t.testdir({ 'shaper.config.json': JSON.stringify(config) })
}

function start(t: Test, cwd: string, workers: readonly string[] = []): Command {
  const command = shaper(['start', ...workers], { cwd })
  t.teardown(() => command.child.kill('SIGKILL'))
  return command
}

async function ask(command: Command, user: string, count = 1): Promise<number[]> {
  const url = await command.url
  const statuses: number[] = []
  for (let asked = 0; asked < count; asked += 1)
    statuses.push((await fetch(url, { headers: { 'x-user': user } })).status)
  return statuses
}

async function end({ child, finished }: Command): Promise<void> {
  child.kill('SIGTERM')
  const { code } = await finished
  if (code !== 0) throw new Error(`it ended with ${code}`)
}

const WORKERS = ['--workers', '2']

t.test(
  'SIGTERM keeps all, SIGKILL all but the last seconds: one process, workers, and one after the other',
  async t => {
    const cwd = place(t)
    const written = async () => {
      const { levels } = JSON.parse(readFileSync(join(cwd, 'levels.json'), 'utf8'))
      // 6/h is 0.1 in a minute.
      return Math.ceil(levels.find(([, key]: [string, string]) => key === 'a')[2])
    }
    let level = 0
    for (const workers of [[], WORKERS]) {
      const killed = start(t, cwd, workers)
      t.same(await ask(killed, 'a', 3), [200, 200, 200])
      level += 3
      await until('it is written', async () => (await written()) === level, 60_000)
      t.equal(statSync(join(cwd, 'levels.json')).mode & 0o777, 0o600)
      t.same(await ask(killed, 'a', 1), [200], 'nobody will know of it')
      killed.child.kill('SIGKILL')
      await killed.finished
      const ended = start(t, cwd, workers)
      t.same(await ask(ended, 'a', 2), [200, 200])
      await end(ended)
      level += 2
      t.equal(await written(), level)
      t.match(ended.stderr(), /levels are back from levels\.json/)
    }
    const last = start(t, cwd)
    t.same(await ask(last, 'a', 3), [200, 200, 429])
    await end(last)
  },
)

for (const workers of [[], WORKERS]) {
  t.test(`a damaged file does not keep it from serving, ${workers[0] ?? 'one process'}`, async t => {
    const cwd = place(t)
    const torn = '{"shaperLevels":1,"writtenAt":"2026-11-29T09:00:00.000Z","levels":[\n["client","a",12,'
    writeFileSync(join(cwd, 'levels.json'), torn)
    const command = start(t, cwd, workers)
    t.same(await ask(command, 'a', 2), [200, 200])
    t.match(
      command.stderr(),
      /store\.file: levels\.json is not complete; all levels start at 0\. It is now levels\.json\.damaged, for you to look at or remove/,
    )
    t.equal(readFileSync(join(cwd, 'levels.json.damaged'), 'utf8'), torn)
    await end(command)
    const whole = readFileSync(join(cwd, 'levels.json'), 'utf8')
    t.equal(JSON.parse(whole).count, 1)
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    t.teardown(() => server.close())
    const listen = `127.0.0.1:${(server.address() as AddressInfo).port}`
    const { code, stderr } = await shaper(['start', '--listen', listen, ...workers], { cwd }).finished
    t.equal(code, 1)
    t.match(stderr, /is in use/)
    t.equal(readFileSync(join(cwd, 'levels.json'), 'utf8'), whole, 'a start that fails leaves it as it is')
  })
}

t.test('what waits is served before the end, and only what has passed is in the file', async t => {
  const shape = {
    ...CONFIG,
    buckets: { client: { key: 'header:x-user', rate: '10/s', capacity: 20 } },
    routes: [{ name: 'api' }],
  }
  for (const workers of [[], WORKERS]) {
    const cwd = place(t, shape)
    const command = start(t, cwd, workers)
    await command.url
    let answered = 0
    const answers = Array.from({ length: 8 }, async () => {
      const [status] = await ask(command, 'a')
      answered += 1
      return status
    })
    const all = Promise.allSettled(answers)
    await until('the first one is answered', () => answered > 0)
    await end(command)
    // One that came too late is refused.
    const statuses = (await all).map(each => (each.status === 'fulfilled' ? each.value : 200))
    t.same(new Set(statuses), new Set([200]))
    const { levels } = JSON.parse(readFileSync(join(cwd, 'levels.json'), 'utf8'))
    for (const [, , level] of levels) t.ok(level <= 1, `${level}`)
  }
})

t.test('a file of another program stays, and a path that cannot be used is told before anything starts', async t => {
  const cwd = t.testdir({ 'other.json': '{"name":"other"}' })
  const refused = async (file: string) => {
    writeFileSync(join(cwd, 'shaper.config.json'), JSON.stringify({ ...CONFIG, store: { type: 'memory', file } }))
    const { code, stderr } = await shaperHere(['check'], { cwd })
    t.equal(code, 2)
    return stderr.trim()
  }
  const other = join(cwd, 'other.json')
  t.equal(
    await refused(other),
    `shaper: store.file: "${other}" is there and was not written by this program; name another path, or remove it`,
  )
  t.equal(readFileSync(other, 'utf8'), '{"name":"other"}')
  t.match(await refused(join(cwd, 'none/levels.json')), /store\.file: ".*none\/levels\.json" needs the folder ".*none"/)
  const { code, stderr } = await shaper(['start'], { cwd }).finished
  t.equal(code, 2)
  t.match(stderr, /store\.file: ".*none\/levels\.json" needs the folder/)
})
