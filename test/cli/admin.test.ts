/** What an operator sees of the real command: the admin server, the log, and several processes as one. */
import { createServer } from 'node:net'
import t from 'tap'
import { request } from 'undici'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { startRedis, until } from '../servers/redis.js'
import { type Command, shaper } from './command.js'

type Tap = Pick<typeof t, 'testdir' | 'teardown'>

function start(t: Tap, file: object, args: string[] = []): Command {
  const config = { listen: '127.0.0.1:0', upstream: 'echo:', admin: { listen: '127.0.0.1:0' }, ...file }
  const cwd = t.testdir({ 'shaper.config.json': JSON.stringify(config) })
  const command = shaper(['start', ...args], { cwd })
  t.teardown(() => {
    command.child.kill('SIGKILL')
  })
  return command
}

function records({ stderr }: Command): Record<string, unknown>[] {
  return stderr()
    .split('\n')
    .filter(line => line.endsWith('}'))
    .map(line => JSON.parse(line))
}

async function adminOf(command: Command): Promise<string> {
  await command.ready
  const told = () => records(command).find(({ msg }) => msg === 'the admin server listens')?.url
  await until('the log has it', () => told() !== undefined)
  return String(told())
}

async function ask(url: string, headers: Record<string, string> = {}): Promise<number> {
  const { statusCode, body } = await request(url, { headers })
  await body.dump()
  return statusCode
}

// They are independent, and mostly wait.
t.jobs = 3

t.test(
  'one line for each request: its outcome, hashed key, times and trace, and no secret',
  { buffered: true },
  async t => {
    const command = start(t, {
      buckets: { user: { key: 'header:x-api-key', rate: '1/m', capacity: 2, burst: 2 } },
      admin: { listen: '127.0.0.1:0', token: 'adm1n-s3cret-of-16' },
    })
    const url = await command.url
    const headers = {
      'x-api-key': 'k3y-s3cret',
      authorization: 'Bearer us3r-s3cret',
      cookie: 'session=c00kie-s3cret',
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    }
    const statuses = await Promise.all(
      Array.from({ length: 3 }, () => ask(`${url}/pay/now?card=qu3ry-s3cret#x`, headers)),
    )
    t.same(statuses.sort(), [200, 200, 429])
    t.equal(await ask(`${url}/`), 200)
    command.child.kill('SIGTERM')
    const { stderr } = await command.finished
    const lines = records(command).filter(({ msg }) => msg === 'request')
    t.equal(lines.length, 4, 'also those that waited to be written')
    const first = lines.find(({ outcome }) => outcome === 'forwarded')
    t.match(first, {
      route: 'default',
      outcome: 'forwarded',
      status: 200,
      method: 'GET',
      path: '/pay/now',
      key: /^[0-9a-f]{12}$/,
      waitMs: Number,
      upstreamMs: Number,
      trace: '0af7651916cd43dd8448eb211c80319c',
    })
    const keys = lines.filter(({ path }) => path === '/pay/now').map(({ key }) => key)
    t.equal(new Set(keys).size, 1, 'the same key has the same hash')
    t.not(lines.find(({ path }) => path === '/')!.key, keys[0])
    t.ok(lines.some(({ outcome, status }) => outcome === 'rejected' && status === 429))
    t.notMatch(stderr, /s3cret/)
  },
)

t.test('long: accessLog: false writes no access lines', { buffered: true }, async t => {
  const command = start(t, { accessLog: false, buckets: { user: { key: 'ip', rate: '100/s' } } })
  await ask(await command.url)
  command.child.kill('SIGTERM')
  await command.finished
  t.same(
    records(command).filter(({ msg }) => msg === 'request'),
    [],
  )
})

t.test('long: an admin address that is taken: one line, and nothing is left running', { buffered: true }, async t => {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise(resolve => server.once('listening', resolve))
  t.teardown(() => server.close())
  const { port } = server.address() as { port: number }
  const command = start(t, { buckets: { user: { rate: '5/s' } }, admin: { listen: `127.0.0.1:${port}` } })
  const { code, stdout, stderr } = await command.finished
  t.equal(code, 1)
  t.equal(stdout, '')
  t.match(
    stderr,
    new RegExp(`^shaper: the admin address 127\\.0\\.0\\.1:${port} is in use; choose another with --admin`, 'm'),
  )
})

t.test('several workers are reported as one', { buffered: true }, async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const command = start(
    t,
    {
      store: { type: 'redis', url: redis.url, timeout: '3s' },
      buckets: { user: { key: 'header:x-user', rate: '1/m', capacity: 3 } },
      routes: [{ name: 'api', mode: 'meter' }],
    },
    ['--workers', '2'],
  )
  const [url, admin] = [await command.url, await adminOf(command)]
  const snapshot = async (): Promise<Snapshot> => (await request(`${admin}/buckets`)).body.json() as Promise<Snapshot>
  const statuses: number[] = []
  // A connection each: they go to either worker.
  for (let sent = 0; sent < 12; sent += 1) statuses.push(await ask(url, { 'x-user': 'a', connection: 'close' }))
  t.equal(statuses.filter(status => status === 200).length, 3)
  await until('both know each other', async () => (await snapshot()).store.instances === 2)
  const { processes, store, buckets, routes } = await snapshot()
  t.match({ processes, store }, { processes: 2, store: { type: 'redis', ready: true, instances: 2 } })
  t.match(routes, [{ name: 'api', outcomes: { forwarded: 3, rejected: 9 } }])
  t.match(buckets, [{ name: 'user', offered: 12, released: 3, rejected: 9, fullest: [{ key: 'a' }] }])
  const metrics = await (await request(`${admin}/metrics`)).body.text()
  t.match(metrics, /^shaper_requests_total\{route="api",outcome="rejected"\} 9$/m)
  t.match(metrics, /^shaper_store_seconds_count [1-9]/m)
  const reset = await request(`${admin}/buckets/user/a`, { method: 'DELETE' })
  t.equal(reset.statusCode, 200)
  t.match(await reset.body.json(), { forgotten: /^2\.\d+$|^3$/, waiting: 0, level: 0, lastWaitMs: 0 })
  const missing = await request(`${admin}/buckets/nothing/a`, { method: 'DELETE' })
  t.equal(missing.statusCode, 404)
  await missing.body.dump()
  t.equal(await ask(url, { 'x-user': 'a', connection: 'close' }), 200, 'and a reset reaches all')
  t.equal(await ask(`${admin}/readyz`), 200)
  await redis.stop()
  await until('they notice', async () => !(await snapshot()).store.ready)
  t.equal(await ask(`${admin}/readyz`), 200, 'they go on without their store')
  t.equal(await ask(`${admin}/healthz`), 200)
  command.child.kill('SIGTERM')
  t.equal((await command.finished).code, 0)
})

t.test('long: /readyz without the store: 200 where newcomers are served, 503 with "closed"', async t => {
  for (const [onOutage, ...flags] of [['local'], ['open'], ['closed'], ['closed', '--workers', '2']]) {
    const redis = await startRedis()
    t.teardown(() => redis.stop())
    const store = { type: 'redis', url: redis.url, onOutage }
    const command = start(t, { store, buckets: { user: { rate: '100/s' } } }, flags)
    const [url, admin] = [await command.url, await adminOf(command)]
    t.equal(await ask(`${admin}/readyz`), 200)
    await redis.stop()
    const stateOfStore = async () => ((await (await request(`${admin}/buckets`)).body.json()) as Snapshot).store
    await until('it notices', async () => !(await stateOfStore()).ready)
    const { statusCode, body } = await request(`${admin}/readyz`)
    const served = await ask(url)
    const expected = onOutage === 'closed' ? [503, 'the store does not answer\n', 503] : [200, 'ready\n', 200]
    t.same([statusCode, await body.text(), served], expected, [onOutage, ...flags].join(' '))
    command.child.kill('SIGTERM')
    t.equal((await command.finished).code, 0)
  }
})
