// @ts-check
/**
 * How evenly requests arrive at the upstream: the queue is never empty, and the sink records each arrival. It also checks
 * the rate, and the bound of docs/semantics.md.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import {
  startAll,
  startBusy,
  startLoad,
  startNginx,
  startPeer,
  startProbedShaper,
  startShaper,
  startSink,
} from '../participants.js'
import { entry, gapErrors, median, quantile, slope, worstExcess } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

/** @typedef {import('../processes.js').Program} Program */

/** Releases before this time, in ms, belong to the first burst and are left out. */
const SETTLING = 300

/** The time between the starts of two clients, in ms. Modulo the period no two start at the same time. */
const APART = 7.3

/** @type {{ clients: number, rate: number, together?: boolean }[]} */
const SCENARIOS = [
  { clients: 1, rate: 100 },
  { clients: 1, rate: 500 },
  { clients: 10, rate: 100 },
  { clients: 10, rate: 500 },
]

/** All clients have their slots at the same instant. */
const TOGETHER = { clients: 10, rate: 100, together: true }

/** By rate per second: how far off it may be, in %, quiet and beside a process that uses 20 % of a core. */
const RATES = [
  { rate: 1, most: 0.1 },
  { rate: 10, most: 0.1 },
  { rate: 100, most: 0.1 },
  { rate: 1000, most: 0.1 },
  { rate: 5000, most: 0.1 },
  { rate: 1000, most: 0.1, busy: true },
  { rate: 5000, most: 0.3, busy: true },
]

const PERCENTILES = [
  { name: 'p50', q: 0.5, target: 0.15 },
  { name: 'p90', q: 0.9, target: 0.25 },
  { name: 'p99', q: 0.99, target: 0.6 },
  { name: 'p99.9', q: 0.999, target: 1 },
]

/** The most CPU of the proxy, in % of a core. */
const MOST_CPU = { '1 x 100/s': 4, '10 x 500/s': 50 }

/** Gaps of each round, at least, so that p99 of five rounds rests on 10,000. */
const GAPS = 2_000

/** Peers that are measured for as long as `GAPS` takes. */
const LONG = ['shaper', 'nginx limit_req']

/** @param {{ clients: number, rate: number, together?: boolean }} scenario */
function nameOf({ clients, rate, together }) {
  return `${clients} x ${rate}/s${together ? ' in step' : ''}`
}

/** @param {{ rate: number, busy?: boolean }} load */
function besideOf({ rate, busy }) {
  return `${rate}/s${busy ? ' beside a busy process' : ''}`
}

/** @param {number} port of the upstream @param {'precise' | 'timer'} [pacing] */
function shaperConfig(port, pacing) {
  const rates = [...new Set([...SCENARIOS, ...RATES].map(({ rate }) => rate))]
  return {
    upstream: `http://127.0.0.1:${port}`,
    ...(pacing && { pacing }),
    buckets: Object.fromEntries(
      rates.map(rate => [`r${rate}`, { key: 'header:x-key', rate: `${rate}/s`, capacity: 100_000 }]),
    ),
    // The load of each scenario ends by hanging up. The next one must not be judged by that.
    routes: rates.map(rate => ({
      name: `r${rate}`,
      match: { path: `/r${rate}/*` },
      buckets: [`r${rate}`],
      patience: 'none',
    })),
  }
}

function nginxConfig() {
  const rates = [...new Set(SCENARIOS.map(({ rate }) => rate))]
  return {
    http: rates.map(rate => `limit_req_zone $http_x_key zone=r${rate}:1m rate=${rate}r/s;`).join('\n'),
    locations: rates
      .map(rate => `location /r${rate}/ { limit_req zone=r${rate} burst=10000; proxy_pass http://sink; }`)
      .join('\n'),
  }
}

/**
 * The arrivals of each client in ms, while its queue is kept full.
 *
 * @param {object} setup
 * @param {Program} setup.sink
 * @param {Program} setup.load
 * @param {Program} setup.proxy
 * @param {number} setup.rate
 * @param {number} setup.clients
 * @param {boolean} [setup.together] all clients start at once
 * @param {boolean} [setup.probed] whether to record the times of sending, too
 * @param {number} setup.seconds
 */
export async function arrivals({ sink, load, proxy, rate, clients, together = false, probed = false, seconds }) {
  const names = Array.from({ length: clients }, (_, client) => ({ path: `/r${rate}/${client}`, key: `key${client}` }))
  const connections = Math.max(4, Math.min(100, Math.ceil(rate / 30)))
  await sink.ask('record')
  if (probed) await proxy.ask('record')
  await load.ask({ port: proxy.port, clients: names, connections, ...(!together && { apart: APART }) })
  await sleep(SETTLING)
  const cpu = proxy.cpu()
  const began = performance.now()
  await sleep(seconds * 1000)
  const busy = ((proxy.cpu() - cpu) / (performance.now() - began)) * 1e5
  const sent = probed ? await proxy.ask('stop') : []
  const [recorded, told] = [await sink.ask('stop'), await load.ask('stop')]
  if (told.refused + told.failed > 0) {
    throw new Error(`${proxy.name} at ${rate}/s: ${told.refused} answers other than 200, ${told.failed} without any`)
  }
  const begin = recorded.times[0] + SETTLING + (together ? 0 : clients * APART)
  const series = Array.from({ length: clients }, (_, client) =>
    recorded.times.filter(
      (/** @type {number} */ time, /** @type {number} */ at) => recorded.clients[at] === client && time >= begin,
    ),
  )
  // Queued requests end before the next turn.
  await sleep(50)
  return { series, cpu: busy, sent: sent.filter((/** @type {number} */ time) => time >= sent[0] + SETTLING) }
}

/** @param {import('../main.js').Context} context */
export async function smoothness({ quick, rounds: wanted, missing, progress }) {
  const sink = await startSink()
  const load = await startLoad()
  const candidates = [
    { name: 'shaper', start: () => startShaper(shaperConfig(sink.port)) },
    { name: 'nginx limit_req', program: 'nginx', start: () => startNginx(sink.port, nginxConfig()) },
    {
      name: 'Bottleneck + http-proxy',
      packages: ['bottleneck', 'http-proxy'],
      start: () => startPeer('bottleneck', sink.port),
    },
  ]
  if (!quick) {
    candidates.push(
      {
        name: 'shaper, pacing: timer',
        start: () => startShaper(shaperConfig(sink.port, 'timer'), { name: 'shaper, pacing: timer' }),
      },
      {
        name: 'RateLimiterQueue + http-proxy',
        packages: ['rate-limiter-flexible', 'http-proxy'],
        start: () => startPeer('rate-limiter-queue', sink.port),
      },
    )
  }
  const started = await startAll(candidates, missing)
  const seconds = quick ? 1.25 : 5
  const scenarios = quick ? SCENARIOS : [...SCENARIOS, TOGETHER]
  const rounds = wanted ?? (quick ? 1 : 5)

  for (const proxy of started.values()) {
    await arrivals({ sink, load, proxy, rate: 500, clients: 10, seconds: quick ? 0.3 : 2 })
  }
  /** @type {Record<string, Record<string, number[]>>} by scenario and peer, then figure: one value per round */
  const raw = {}
  for (let round = 0; round < rounds; round += 1) {
    for (const scenario of scenarios) {
      const { clients, rate } = scenario
      progress(`smoothness: ${clients} x ${rate}/s, round ${round + 1} of ${rounds}`)
      for (const [name, proxy] of started) {
        const enough = !quick && LONG.includes(name) ? GAPS / (clients * rate) : 0
        const length = Math.max(seconds, enough)
        const { series, cpu } = await arrivals({ sink, load, proxy, seconds: length, ...scenario })
        const errors = series.flatMap(times => [...gapErrors(times, 1000 / rate)])
        const figures = entry(raw, `${nameOf(scenario)}, ${name}`, () => ({
          p50: [],
          p90: [],
          p99: [],
          'p99.9': [],
          cpu: [],
        }))
        for (const { name: percentile, q } of PERCENTILES) figures[percentile].push(quantile(errors, q))
        figures.cpu.push(cpu)
      }
    }
  }

  await Promise.all([...started.values()].map(program => program.stop()))

  const probed = await startProbedShaper(shaperConfig(sink.port))
  const other = await startBusy()
  await arrivals({ sink, load, proxy: probed, rate: 500, clients: 10, seconds: quick ? 0.3 : 2 })
  const measured = RATES.map(each => ({
    ...each,
    rates: /** @type {number[]} */ ([]),
    sent: /** @type {number[]} */ ([]),
    arrived: /** @type {number[]} */ ([]),
  }))
  for (let round = 0; round < rounds; round += 1) {
    for (const { rate, busy, ...figures } of measured) {
      // Slow scenarios take longer.
      if (rate === 1 && round > 0) continue
      const length = rate === 1 ? (quick ? 3 : 20) : quick ? 1.25 : 5
      progress(`smoothness: measured rate at ${besideOf({ rate, busy })}, round ${round + 1} of ${rounds}`)
      await other.ask(busy ? 'spin' : 'rest')
      const setup = { sink, load, proxy: probed, rate, clients: 1, probed: true, seconds: length }
      const { series, sent } = await arrivals(setup)
      figures.rates.push(slope(series[0]))
      figures.sent.push(worstExcess(sent, rate))
      figures.arrived.push(worstExcess(series[0], rate))
    }
  }
  await Promise.all([sink, load, probed, other].map(program => program.stop()))

  /** @param {string} scenario @param {string} name @param {string} figure */
  const of = (scenario, name, figure) => median(raw[`${scenario}, ${name}`]?.[figure] ?? [])
  const checks = []
  const rows = []
  for (const each of scenarios) {
    const scenario = nameOf(each)
    for (const name of started.keys()) {
      const row = [scenario, name]
      for (const { name: percentile } of PERCENTILES) row.push(fixed(of(scenario, name, percentile), 3))
      row.push(`${fixed(of(scenario, name, 'cpu'), 1)} %`)
      rows.push(row)
    }
    if (!started.has('nginx limit_req')) continue
    for (const { name: percentile, target } of PERCENTILES) {
      const value = of(scenario, 'shaper', percentile) / of(scenario, 'nginx limit_req', percentile)
      checks.push({
        figure: `gap error ${percentile}, ${scenario}, against nginx`,
        value: ratio(value),
        target: `<= ${target}x`,
        met: value <= target,
      })
    }
  }
  for (const [scenario, most] of Object.entries(MOST_CPU)) {
    const cpu = of(scenario, 'shaper', 'cpu')
    checks.push({ figure: `CPU at ${scenario}`, value: `${fixed(cpu, 1)} %`, target: `<= ${most} %`, met: cpu <= most })
  }

  const rateRows = []
  for (const { rate, busy, most, ...figures } of measured) {
    const name = besideOf({ rate, busy })
    const got = median(figures.rates)
    const off = (got / rate - 1) * 100
    const sent = Math.max(...figures.sent)
    const arrived = Math.max(...figures.arrived)
    rateRows.push([name, fixed(got, rate < 100 ? 4 : 2), `${fixed(off, 3)} %`, fixed(sent, 2), fixed(arrived, 2)])
    checks.push(
      {
        figure: `measured rate at ${name}`,
        value: `${fixed(off, 3)} %`,
        target: `+-${most} %`,
        met: Math.abs(off) <= most,
      },
      {
        figure: `worst window at ${name} as sent, above the bound by`,
        value: fixed(sent, 2),
        target: '<= 0',
        met: sent <= 0,
      },
      {
        figure: `worst window at ${name} as arrived, above the bound by`,
        value: fixed(arrived, 2),
        target: '<= 0',
        met: arrived <= 0,
      },
    )
  }
  return {
    checks,
    tables: [
      {
        title: 'Error of the gap between two arrivals of a client, ms (clients x rate of each)',
        columns: ['load', 'peer', ...PERCENTILES.map(({ name }) => name), 'CPU'],
        rows,
      },
      {
        title:
          'Rate of arrivals, and the worst window against r * (W + max(1/r, 5 ms)) + 1, in requests (0: at the bound)',
        columns: ['r', 'measured', 'off by', 'worst window as sent', 'as arrived'],
        rows: rateRows,
      },
    ],
    raw: { gaps: raw, rates: measured },
  }
}
