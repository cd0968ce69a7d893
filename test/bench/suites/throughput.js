// @ts-check
/** Requests per second without limits. Proxy, wrk and sink have at most one core each. */
import { startAll, startHaproxy, startNginx, startPeer, startShaper, startSink } from '../participants.js'
import { entry, median, spread } from '../statistics.js'
import { fixed, percent, ratio } from '../tables.js'
import { BROWSER_HEADERS, hasWrk, wrk } from '../wrk.js'

const TARGETS = [
  { against: 'http-proxy', least: 1.6 },
  { against: 'undici dispatch, bare', least: 0.85 },
]

/** The budget for a line of the access log, in us of CPU. */
const LINE_TARGET = 4

/** The default configuration and its peers, on requests with ten headers. All but http-proxy write a log. */
const LOGGING = 'shaper, access log'
const SILENT = 'shaper, no access log'
const DEFAULT_TARGETS = [
  { against: 'http-proxy', least: 3 },
  { against: 'nginx proxy_pass, access log', least: 0.6 },
]

/** @param {number} port of the upstream @param {object} [more] */
function shaperConfig(port, more) {
  return {
    upstream: `http://127.0.0.1:${port}`,
    buckets: { client: { key: 'ip', rate: '10000000/s', capacity: 1_000_000 } },
    routes: [{ name: 'api', buckets: ['client'] }],
    ...more,
  }
}

/** @param {import('../main.js').Context} context */
export async function throughput({ quick, rounds: wanted, missing, progress }) {
  if (!hasWrk()) {
    missing.add('wrk')
    return { checks: [], tables: [], raw: {} }
  }
  const sink = await startSink()
  /** @param {string} name */
  const node = name => ({ name, packages: [name], start: () => startPeer(name, sink.port) })
  const candidates = [
    { name: 'shaper', start: () => startShaper(shaperConfig(sink.port)) },
    { name: 'undici dispatch, bare', packages: ['undici'], start: () => startPeer('undici', sink.port) },
    node('http-proxy'),
    node('http-proxy-3'),
    node('httpxy'),
    node('fast-proxy'),
    { name: 'haproxy', program: 'haproxy', start: () => startHaproxy(sink.port) },
    {
      name: 'nginx proxy_pass',
      program: 'nginx',
      start: () => startNginx(sink.port, { locations: 'location / { proxy_pass http://sink; }' }),
    },
    ...(quick
      ? []
      : [
          {
            name: 'shaper, headers: false',
            start: () => startShaper(shaperConfig(sink.port, { headers: false }), { name: 'shaper, headers: false' }),
          },
          {
            name: 'shaper, access log and admin',
            start: () =>
              startShaper(shaperConfig(sink.port, { accessLog: true, admin: { listen: '127.0.0.1:0' } }), {
                name: 'shaper, access log and admin',
              }),
          },
          {
            name: 'shaper, mode: off',
            start: () =>
              startShaper(
                { upstream: `http://127.0.0.1:${sink.port}`, buckets: {}, routes: [{ name: 'api', mode: 'off' }] },
                { name: 'shaper, mode: off' },
              ),
          },
        ]),
  ]
  /** @type {import('../participants.js').Candidate[]} */
  const defaults = [
    {
      name: LOGGING,
      start: () => startShaper(shaperConfig(sink.port, { accessLog: true }), { name: LOGGING }),
    },
    { name: SILENT, start: () => startShaper(shaperConfig(sink.port), { name: SILENT }) },
    node('http-proxy'),
    {
      name: 'nginx proxy_pass, access log',
      program: 'nginx',
      start: () => startNginx(sink.port, { locations: 'location / { proxy_pass http://sink; }', accessLog: true }),
    },
  ]
  const seconds = quick ? 2 : 5
  const rounds = wanted ?? (quick ? 1 : 5)

  /** @param {import('../participants.js').Candidate[]} which @param {string} path @param {string[]} [headers] */
  async function race(which, path, headers) {
    const started = await startAll(which, missing)
    for (const { port } of started.values()) await wrk(port, path, quick ? 1 : 3, { headers })
    /** @type {Record<string, { rate: number[], cpu: number[] }>} */
    const raw = { direct: { rate: [], cpu: [] } }
    for (let round = 0; round < rounds; round += 1) {
      for (const [name, program] of [/** @type {const} */ (['direct', sink]), ...started]) {
        progress(`throughput: ${name}, round ${round + 1} of ${rounds}`)
        const cpu = program.cpu()
        const { rate, requests, bad } = await wrk(program.port, path, seconds, { headers })
        if (bad > 0) throw new Error(`${name}: ${bad} answers other than 2xx`)
        const figures = entry(raw, name, () => ({ rate: [], cpu: [] }))
        figures.rate.push(rate)
        figures.cpu.push(((program.cpu() - cpu) / requests) * 1e6)
      }
    }
    await Promise.all([...started.values()].map(program => program.stop()))
    return raw
  }

  const raw = await race(candidates, '/')
  const rawDefault = await race(defaults, '/v1/things/1?q=1', BROWSER_HEADERS)
  await sink.stop()

  const ours = median(raw.shaper.rate)
  const logging = median(rawDefault[LOGGING].rate)
  const line = median(rawDefault[LOGGING].cpu.map((cpu, round) => cpu - rawDefault[SILENT].cpu[round]))
  /**
   * @param {string} who @param {number} rate @param {typeof raw} figures
   * @param {{ against: string, least: number }[]} targets
   */
  const against = (who, rate, figures, targets) =>
    targets
      .filter(target => figures[target.against] !== undefined)
      .map(target => {
        const value = rate / median(figures[target.against].rate)
        return {
          figure: `${who} against ${target.against}`,
          value: ratio(value),
          target: `>= ${target.least}x`,
          met: value >= target.least,
        }
      })
  /** @param {string} title @param {number} rate @param {typeof raw} figures */
  const table = (title, rate, figures) => ({
    title,
    columns: ['peer', 'requests/s', 'spread', 'CPU us each', 'shaper against it'],
    rows: Object.entries(figures).map(([name, { rate: rates, cpu }]) => [
      name,
      fixed(median(rates), 0),
      percent(spread(rates)),
      fixed(median(cpu), 1),
      ratio(rate / median(rates)),
    ]),
  })
  return {
    checks: [
      ...against('shape route', ours, raw, TARGETS),
      ...against('default configuration, ten headers,', logging, rawDefault, DEFAULT_TARGETS),
      {
        figure: 'a line of the access log, us of CPU',
        value: fixed(line, 1),
        target: `<= ${LINE_TARGET}`,
        met: line <= LINE_TARGET,
      },
    ],
    tables: [
      table('Requests per second (wrk, 64 connections)', ours, raw),
      table('The default configuration: requests with ten headers, access log on', logging, rawDefault),
    ],
    raw: { bare: raw, default: rawDefault },
  }
}
