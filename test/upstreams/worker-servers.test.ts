/**
 * Upstreams with few workers, each of which serves one connection at a time. With `connections` one worker is left for a
 * health check that goes straight to the upstream, whatever the load that passes shaper.
 */
import { Agent, get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { shaper } from '../cli/command.js'
import { startWorkerServer, timeOf, type WorkerServerName } from '../servers/worker-servers.js'
import { watchStalls } from '../stalls.js'

/** ms of load for each server. By hand: `SHAPER_LOAD=60000 TAP_TIMEOUT=600 node build/test/upstreams/worker-servers.test.js`. */
const LOAD = Number(process.env.SHAPER_LOAD ?? 5_000)

/** Clients that ask again as soon as they are answered. */
const CLIENTS = 20

interface Case {
  readonly server: WorkerServerName
  /** ms of an answer, where the server can wait */
  readonly service: number
  readonly upstream: object
  /** Requests per second that the bucket lets through. */
  readonly rate: number
  /** Requests per second that the upstream answers at least. */
  readonly least: number
  /** The longest that a health check may take, in ms. */
  readonly within?: number
}

const APACHE = 'Apache prefork, 4 workers'
const GUNICORN = 'gunicorn, 4 sync workers'
const PYTHON = "Python's http.server, one at a time"

const CASES: readonly Case[] = [
  // More requests than four workers can take.
  { server: GUNICORN, service: 400, upstream: { connections: 3 }, rate: 30, least: 5 },
  // A queue that drains slowly: connections opened ahead would hold all workers for a second.
  { server: GUNICORN, service: 5, upstream: { connections: 4, keepAlive: false }, rate: 3, least: 3, within: 500 },
  { server: APACHE, service: 0, upstream: { connections: 3 }, rate: 150, least: 75 },
  { server: APACHE, service: 0, upstream: { connections: 4, keepAlive: false }, rate: 150, least: 75 },
  { server: 'PHP, 4 workers', service: 400, upstream: { connections: 3 }, rate: 30, least: 5 },
  { server: PYTHON, service: 20, upstream: { connections: 1, keepAlive: false }, rate: 30, least: 15 },
]

/** Asks again and again until the time is over. Returns how often each status came. */
async function load(url: string, until: number): Promise<Map<number, number>> {
  const seen = new Map<number, number>()
  const agent = new Agent({ keepAlive: true })
  const client = async (number: number): Promise<void> => {
    // One in ten asks a route without limits.
    const path = number % 10 === 0 ? '/off' : '/'
    while (performance.now() < until) {
      const status = await new Promise<number>(resolve => {
        get(`${url}${path}`, { agent }, response => {
          response.resume().once('end', () => resolve(response.statusCode!))
        }).once('error', () => resolve(0))
      })
      seen.set(status, (seen.get(status) ?? 0) + 1)
      if (path === '/off') await sleep(50)
    }
  }
  await Promise.all(Array.from({ length: CLIENTS }, (_, number) => client(number)))
  agent.destroy()
  return seen
}

for (const { server, service, upstream, rate, least, within = 1_000 } of CASES) {
  t.test(`${server}, ${JSON.stringify(upstream)}: a health check is always answered`, async t => {
    const workers = await startWorkerServer(server, service)
    t.teardown(() => workers.stop())
    const file = t.testdir({
      'shaper.config.json': JSON.stringify({
        listen: '127.0.0.1:0',
        upstream: { url: workers.url, ...upstream },
        buckets: { all: { key: 'all', rate: `${rate}/s`, capacity: 100 } },
        routes: [{ match: { path: '/off' }, mode: 'off' }, {}],
        accessLog: false,
      }),
    })
    const proxy = shaper(['start', '-c', `${file}/shaper.config.json`])
    t.teardown(() => proxy.child.kill('SIGKILL'))
    const url = await proxy.url
    const stalls = watchStalls(t)
    const end = performance.now() + LOAD
    const times: number[] = []
    const probe = async (): Promise<void> => {
      while (performance.now() < end) {
        times.push((await timeOf(`${workers.url}/health`)) ?? Infinity)
        await sleep(50)
      }
    }
    const [answers] = await Promise.all([load(url, end), probe()])
    // What this process noticed late was answered before.
    const longest = Math.max(...times) - stalls.longest()
    t.comment(`${[...answers].join(' ')}; ${times.length} checks, the longest ${longest.toFixed(0)} ms`)
    t.same([...answers.keys()], [200], 'every request is answered')
    t.ok(answers.get(200)! > (LOAD / 1_000) * least, 'as many as it can answer')
    t.ok(longest < within, `the longest check took ${longest.toFixed(0)} ms`)
    t.notMatch(workers.output(), /WORKER TIMEOUT|SIGKILL|exited on signal/, 'no worker is killed')
  })
}
