/** One count for all who share it: processes, workers, and the program after a restart (contract 16.3). */
import t from 'tap'
import { request } from 'undici'
import { startPostgres } from '../servers/postgres.js'
import { startRedis, until } from '../servers/redis.js'
import { type Command, shaper } from './command.js'

const LIMIT = 25
const QUOTA = { key: 'header:x-key', quota: { limit: LIMIT, per: 'month' } }

const file = (more: object) => ({
  listen: '127.0.0.1:0',
  upstream: 'echo:',
  buckets: { pace: { key: 'all', rate: '1000/s', capacity: 100 }, calls: QUOTA },
  accessLog: false,
  ...more,
})

function start(t: Tap, cwd: string, args: readonly string[] = []): Command {
  const command = shaper(['start', ...args], { cwd })
  t.teardown(() => {
    command.child.kill('SIGKILL')
  })
  return command
}

const folder = (t: Tap, config: object): string => t.testdir({ 'shaper.config.json': JSON.stringify(config) })

type Tap = Pick<typeof t, 'testdir' | 'teardown'>

/** How many of `count` requests at once are answered 200 and 429, over connections of their own. */
async function ask(urls: readonly string[], count: number, key = 'a'): Promise<Record<number, number>> {
  const statuses: Record<number, number> = {}
  await Promise.all(
    Array.from({ length: count }, async (_, at) => {
      const { statusCode, body } = await request(urls[at % urls.length]!, { headers: { 'x-key': key }, reset: true })
      await body.dump()
      statuses[statusCode] = (statuses[statusCode] ?? 0) + 1
    }),
  )
  return statuses
}

const ALL = { 200: LIMIT, 429: 15 }

t.test('workers have one count', { buffered: true }, async t => {
  const command = start(t, folder(t, file({})), ['--workers', '2'])
  const url = await command.url
  t.same(await ask([url], LIMIT + 15), ALL)
  t.same(await ask([url], 3, 'b'), { 200: 3 })
})

t.test('two instances have one count: Redis, PostgreSQL', { buffered: true }, async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const postgres = await startPostgres()
  t.teardown(() => postgres.close())
  const timeout = '3s'
  for (const store of [
    { type: 'redis', url: redis.url, timeout },
    { type: 'postgres', url: postgres.url, timeout },
  ]) {
    await t.test(store.type, async t => {
      const cwd = folder(t, file({ store }))
      const commands = [start(t, cwd), start(t, cwd)]
      const urls = await Promise.all(commands.map(({ url }) => url))
      t.same(await ask(urls, LIMIT + 15), ALL)
      t.same(await ask(urls, 2), { 429: 2 })
      commands[0]!.child.kill('SIGKILL')
      t.same(await ask([urls[1]!], 2), { 429: 2 }, 'the count is that of the store')
    })
  }
})

t.test('a restart with store.file keeps the count, and a reset begins it anew', { buffered: true }, async t => {
  for (const args of [[], ['--workers', '2']]) {
    await t.test(args.join(' ') || 'one process', async t => {
      const config = file({ store: { type: 'memory', file: 'levels.json' }, admin: { listen: '127.0.0.1:0' } })
      const cwd = folder(t, config)
      const before = start(t, cwd, args)
      t.same(await ask([await before.url], 20), { 200: 20 })
      before.child.kill('SIGTERM')
      t.equal((await before.finished).code, 0)
      const after = start(t, cwd, args)
      const url = await after.url
      t.same(await ask([url], 10), { 200: 5, 429: 5 })
      await until('the admin server listens', () => /"url":"(http:[^"]+)","msg":"the admin/.test(after.stderr()))
      const [, admin] = /"url":"(http:[^"]+)","msg":"the admin/.exec(after.stderr())!
      const { body, statusCode } = await request(`${admin}/buckets/calls/a`, { method: 'DELETE' })
      await body.dump()
      t.equal(statusCode, 200)
      t.same(await ask([url], LIMIT + 15), ALL)
    })
  }
})
