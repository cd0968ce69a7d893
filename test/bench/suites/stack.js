// @ts-check
/**
 * A client that always has requests waiting, behind its own bucket and one that it shares with light clients (Poisson, one
 * request each). How much of its own rate it gets, and how evenly all requests together reach the upstream.
 */
import { Agent, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { startAll, startLoad, startNginx, startShaper, startSink } from '../participants.js'
import { entry, median, quantile, slope } from '../statistics.js'
import { fixed } from '../tables.js'

/** Requests per second: of the client's bucket, of the shared one, and of the light clients. */
const ROWS = [
  { own: 20, shared: 60, others: 30 },
  { own: 50, shared: 100, others: 40 },
  { own: 20, shared: 25, others: 4 },
  { own: 100, shared: 200, others: 80 },
  { own: 10, shared: 30, others: 16 },
  { own: 50, shared: 100, others: 45 },
]

/** The least part of its own rate, in %, in the rows of the issue. In the last row the shared bucket is used to 95 %. */
const LEAST = [98, 98, 98, 98, 98, undefined]

const SETTLING = 2_000
const CONNECTIONS = 40

/** @param {number} port of the upstream */
function shaperConfig(port) {
  return {
    upstream: `http://127.0.0.1:${port}`,
    buckets: Object.fromEntries(
      ROWS.flatMap(({ own, shared }, row) => [
        [`own${row}`, { key: 'header:x-key', rate: `${own}/s`, capacity: 10_000 }],
        [`shared${row}`, { key: 'all', rate: `${shared}/s`, capacity: 10_000 }],
      ]),
    ),
    routes: ROWS.map((_, row) => ({
      name: `row${row}`,
      match: { path: `/row${row}/*` },
      buckets: [`own${row}`, `shared${row}`],
      // The load of each row ends by hanging up. The next one must not be judged by that.
      patience: 'none',
    })),
  }
}

function nginxConfig() {
  const zones = ROWS.map(
    ({ own, shared }, row) => `limit_req_zone $http_x_key zone=own${row}:8m rate=${own}r/s;
limit_req_zone $server_name zone=shared${row}:1m rate=${shared}r/s;`,
  )
  const locations = ROWS.map(
    (_, row) => `location /row${row}/ {
  limit_req zone=own${row} burst=9999; limit_req zone=shared${row} burst=9999; proxy_pass http://sink;
}`,
  )
  return { http: zones.join('\n'), locations: locations.join('\n') }
}

/**
 * Light clients, each with one request.
 *
 * @param {number} port @param {string} path @param {number} rate per second
 */
function startLight(port, path, rate) {
  const agent = new Agent({ keepAlive: true })
  const stop = new AbortController()
  const over = send()
  async function send() {
    let at = performance.now()
    for (let count = 0; ; count += 1) {
      at += (-Math.log(1 - Math.random()) / rate) * 1000
      await sleep(Math.max(0, at - performance.now()))
      if (stop.signal.aborted) return
      const headers = { 'x-key': `light${count}` }
      request({ port, host: '127.0.0.1', path, agent, headers, signal: stop.signal }, answer => answer.resume())
        .on('error', () => undefined)
        .end()
    }
  }
  return async () => {
    stop.abort()
    await over
    agent.destroy()
  }
}

/** @param {import('../main.js').Context} context */
export async function stack({ quick, rounds: wanted, missing, progress }) {
  const sink = await startSink()
  const load = await startLoad()
  const started = await startAll(
    [
      { name: 'shaper', start: () => startShaper(shaperConfig(sink.port)) },
      { name: 'nginx limit_req', program: 'nginx', start: () => startNginx(sink.port, nginxConfig()) },
    ],
    missing,
  )
  const seconds = quick ? 2 : 20
  const rounds = wanted ?? 1
  /** @type {Record<string, { own: number[], close: number[], p50: number[], p99: number[] }>} */
  const raw = {}
  for (let round = 0; round < rounds; round += 1) {
    for (const [row, { own, shared, others }] of ROWS.entries()) {
      for (const [name, proxy] of started) {
        progress(`stack: row ${row + 1}, ${name}, round ${round + 1} of ${rounds}`)
        await sink.ask('record')
        const stopLight = startLight(proxy.port, `/row${row}/1`, others)
        await load.ask({
          port: proxy.port,
          clients: [{ path: `/row${row}/0`, key: 'busy' }],
          connections: CONNECTIONS,
        })
        await sleep(SETTLING + seconds * 1000)
        const { times, clients } = await sink.ask('stop')
        await load.ask('stop')
        await stopLight()
        const from = times[0] + SETTLING
        /** @param {(at: number) => boolean} which */
        const series = which =>
          times.filter((/** @type {number} */ time, /** @type {number} */ at) => time >= from && which(at))
        const all = series(() => true)
        const gaps = all.slice(1).map((/** @type {number} */ time, /** @type {number} */ at) => time - all[at])
        const figures = entry(raw, `${row} ${name}`, () => ({ own: [], close: [], p50: [], p99: [] }))
        figures.own.push((slope(series(at => clients[at] === 0)) / own) * 100)
        const short = gaps.map((/** @type {number} */ gap) => Math.max(0, 1000 / shared - gap))
        figures.p50.push(quantile(short, 0.5))
        figures.p99.push(quantile(short, 0.99))
        figures.close.push((gaps.filter((/** @type {number} */ gap) => gap < 900 / shared).length / gaps.length) * 100)
      }
    }
  }
  await Promise.all([sink, load, ...started.values()].map(program => program.stop()))

  const checks = []
  const rows = []
  for (const [row, { own, shared, others }] of ROWS.entries()) {
    const name = `${own}/s behind ${shared}/s, ${others}/s of others`
    for (const peer of started.keys()) {
      const figures = /** @type {(typeof raw)[string]} */ (raw[`${row} ${peer}`])
      const [got, close, p50, p99] = [figures.own, figures.close, figures.p50, figures.p99].map(median)
      rows.push([name, peer, `${fixed(got, 1)} %`, `${fixed(close, 1)} %`, fixed(p50, 3), fixed(p99, 3)])
      const least = LEAST[row]
      if (peer === 'shaper' && least !== undefined) {
        checks.push({ figure: name, value: `${fixed(got, 1)} %`, target: `>= ${least} %`, met: got >= least })
      }
    }
  }
  return {
    checks,
    tables: [
      {
        title: 'A client that always has requests waiting; and the gaps at the upstream, of all clients together',
        columns: ['client', 'peer', 'of its rate', 'gaps below 0.9 periods', 'short by p50, ms', 'p99, ms'],
        rows,
      },
    ],
    raw,
  }
}
