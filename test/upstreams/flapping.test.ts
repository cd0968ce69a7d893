/**
 * Servers that come and go under load, by their health checks and by DNS (contract 14): none gets a request once it is known to be away,
 * nobody is refused, and no connection is left. By hand: `SHAPER_LOAD=600000 TAP_TIMEOUT=900 node build/test/upstreams/flapping.test.js`.
 */
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { Agent, request } from 'undici'
import { shaper } from '../cli/command.js'
import { type DnsServer, startDns } from '../servers/dns.js'
import { freePort } from '../servers/free-port.js'
import { until } from '../servers/redis.js'

/** ms of load */
const LOAD = Number(process.env.SHAPER_LOAD ?? (process.env.SHAPER_DEEP === undefined ? 5_000 : 600_000))
const CLIENTS = 20
/** ms. How long a server stays as it is, at most. */
const LONGEST = 1_000
const HEALTH = { path: '/healthz', interval: '50ms', timeout: '1s', rise: 2, fall: 3 }

interface Flapping {
  readonly server: Server
  isAway: boolean
  /** What has told that it is away since it is. */
  told: number
  /** Requests that came although it was known to be away. */
  wrong: number
  served: number
}

/** @param most how often it has to be told that the server is away until that is known */
async function start(t: Test, host: string, port: number, most: number): Promise<Flapping> {
  const flapping: Flapping = {
    server: createServer((req, res) => {
      if (req.url === HEALTH.path) {
        if (flapping.isAway) flapping.told += 1
        res.writeHead(flapping.isAway ? 503 : 200).end()
        return
      }
      flapping.served += 1
      if (flapping.isAway && flapping.told > most) flapping.wrong += 1
      res.end('ok')
    }),
    ...{ isAway: false, told: 0, wrong: 0, served: 0 },
  }
  flapping.server.listen(port, host)
  await once(flapping.server, 'listening')
  t.teardown(() => {
    flapping.server.close()
    flapping.server.closeAllConnections()
  })
  return flapping
}

/** All but the first come and go. */
async function run(t: Test, upstream: object, all: readonly Flapping[], changed: () => void): Promise<void> {
  const config = {
    listen: '127.0.0.1:0',
    upstream: { ...upstream, keepAlive: '200ms' },
    buckets: { all: { key: 'all', rate: '500/s', capacity: 2 * CLIENTS } },
    accessLog: false,
  }
  const command = shaper(['start'], { cwd: t.testdir({ 'shaper.config.json': JSON.stringify(config) }) })
  t.teardown(async () => {
    command.child.kill('SIGTERM')
    await command.finished
  })
  const url = await command.url
  const dispatcher = new Agent({ connections: CLIENTS })
  t.teardown(() => dispatcher.close())
  const end = performance.now() + LOAD
  const statuses = new Set<number>()
  const client = async (): Promise<void> => {
    while (performance.now() < end) {
      const { statusCode, body } = await request(url, { dispatcher })
      await body.dump()
      statuses.add(statusCode)
    }
  }
  const flap = async (flapping: Flapping): Promise<void> => {
    while (performance.now() < end) {
      await sleep(Math.random() * LONGEST)
      Object.assign(flapping, { isAway: !flapping.isAway, told: 0 })
      changed()
    }
  }
  await Promise.all([...Array.from({ length: CLIENTS }, client), ...all.slice(1).map(flap)])
  t.same([...statuses], [200], 'nobody is refused')
  t.same(
    all.map(({ wrong }) => wrong),
    all.map(() => 0),
    'none has a request once it is known to be away',
  )
  t.comment(`requests: ${all.map(({ served }) => served).join(' ')}`)
  // One that is away by DNS is not checked, either.
  for (const { server } of all)
    await until('all connections are closed', async () => {
      const open = await new Promise<number>(resolve => server.getConnections((_, count) => resolve(count)))
      return open <= 1
    })
}

t.test('ten servers whose checks fail and pass again', { timeout: 2 * LOAD + 60_000 }, async t => {
  const ports = await Promise.all(Array.from({ length: 10 }, freePort))
  // The answer to the last check may be on its way.
  const all = await Promise.all(ports.map(port => start(t, '127.0.0.1', port, HEALTH.fall)))
  const servers = ports.map(port => `http://127.0.0.1:${port}`)
  await run(t, { servers, health: HEALTH }, all, () => undefined)
})

t.test('a name whose addresses change', { timeout: 2 * LOAD + 60_000 }, async t => {
  const port = await freePort()
  const hosts = ['127.0.0.2', '127.0.0.3', '127.0.0.4']
  const all: Flapping[] = []
  for (const host of hosts) all.push(await start(t, host, port, 2))
  const dns: DnsServer = await startDns(t)
  const tell = (): void =>
    dns.set(
      'A',
      'app.test',
      hosts.filter((_, at) => !all[at]!.isAway),
      1,
    )
  tell()
  // Each answer leaves out those that are away.
  const { push } = dns.questions
  dns.questions.push = (...questions) => {
    if (questions[0]!.startsWith('A ')) for (const each of all) if (each.isAway) each.told += 1
    return push.apply(dns.questions, questions)
  }
  await run(t, { url: `http://app.test:${port}`, dns: true, resolver: [dns.address] }, all, tell)
})
