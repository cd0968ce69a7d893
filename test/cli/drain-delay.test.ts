/** `limits.drainDelay`: a balancer sees the end coming before connections are refused. */
import t from 'tap'
import { request } from 'undici'
import { until } from '../servers/redis.js'
import { type Command, shaper } from './command.js'

type Tap = Pick<typeof t, 'testdir' | 'teardown'>

function start(t: Tap, drainDelay: string, args: string[]): Command {
  const config = {
    listen: '127.0.0.1:0',
    upstream: 'echo:',
    buckets: { all: { key: 'all', rate: '1000/s', capacity: 1_000 } },
    limits: { drainDelay },
    admin: { listen: '127.0.0.1:0' },
  }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const command = shaper(['start', ...args], { cwd })
  t.teardown(() => {
    command.child.kill('SIGKILL')
  })
  return command
}

async function ask(url: string): Promise<{ status: number; connection: unknown }> {
  const { statusCode, headers, body } = await request(url)
  await body.dump()
  return { status: statusCode, connection: headers.connection }
}

// They are independent, and mostly wait.
t.jobs = 3

/** Longer than the steps of the test take. */
const DELAY = 5_000

for (const [name, args] of [
  ['one process', []],
  ['two workers', ['--workers', '2']],
] as const) {
  t.test(
    `SIGTERM to ${name}: /readyz is 503 at once, connections are accepted until the delay is over`,
    {
      buffered: true,
    },
    async t => {
      const command = start(t, `${DELAY}ms`, [...args])
      const url = await command.url
      const told = () => /"url":"(http[^"]+)"/.exec(command.stderr())?.[1]
      await until('the log has the address of the admin server', () => told() !== undefined)
      const admin = told()!
      t.equal((await ask(`${admin}/readyz`)).status, 200)
      t.equal((await ask(url)).connection, 'keep-alive')
      const signalledAt = performance.now()
      command.child.kill('SIGTERM')
      await until('a balancer sees it', async () => (await ask(`${admin}/readyz`)).status === 503)
      for (let count = 0; count < 6; count += 1) t.same(await ask(url), { status: 200, connection: 'close' })
      t.equal((await ask(`${admin}/healthz`)).status, 200)
      const isRefused = async (): Promise<boolean> => {
        return ask(url).then(
          () => false,
          ({ code }) => code === 'ECONNREFUSED',
        )
      }
      await until('no more are accepted', isRefused)
      t.ok(performance.now() - signalledAt >= DELAY - 5, 'not before the delay is over')
      t.equal((await command.finished).code, 0)
      t.match(command.stderr(), new RegExp(`"acceptsForMs":${DELAY},"msg":"shutting down"`))
    },
  )
}

t.test('SIGINT, as from a terminal, does not wait', { buffered: true }, async t => {
  const command = start(t, '10m', [])
  await command.ready
  command.child.kill('SIGINT')
  t.equal((await command.finished).code, 0)
  t.notMatch(command.stderr(), /acceptsForMs/)
})
