// @ts-check
/** How many requests a second get through when nothing limits them: one core each for proxy, wrk and sink, at most. */
import { startAll, startHaproxy, startNginx, startPeer, startShaper, startSink } from '../participants.js'
import { entry, median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'
import { hasWrk, wrk } from '../wrk.js'

const TARGETS = [
  { against: 'http-proxy', least: 1.6 },
  { against: 'undici dispatch, bare', least: 0.85 },
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
  const started = await startAll(candidates, missing)
  const seconds = quick ? 2 : 5
  const rounds = wanted ?? (quick ? 1 : 5)
  for (const { port } of started.values()) await wrk(port, '/', quick ? 1 : 3)
  /** @type {Record<string, { rate: number[], cpu: number[] }>} */
  const raw = { direct: { rate: [], cpu: [] } }
  for (let round = 0; round < rounds; round += 1) {
    for (const [name, program] of [/** @type {const} */ (['direct', sink]), ...started]) {
      progress(`throughput: ${name}, round ${round + 1} of ${rounds}`)
      const cpu = program.cpu()
      const { rate, requests, bad } = await wrk(program.port, '/', seconds)
      if (bad > 0) throw new Error(`${name}: ${bad} answers other than 2xx`)
      const figures = entry(raw, name, () => ({ rate: [], cpu: [] }))
      figures.rate.push(rate)
      figures.cpu.push(((program.cpu() - cpu) / requests) * 1e6)
    }
  }
  await Promise.all([sink, ...started.values()].map(program => program.stop()))

  const ours = median(raw.shaper.rate)
  return {
    checks: TARGETS.filter(({ against }) => raw[against] !== undefined).map(({ against, least }) => {
      const value = ours / median(raw[against].rate)
      return {
        figure: `shape route against ${against}`,
        value: ratio(value),
        target: `>= ${least}x`,
        met: value >= least,
      }
    }),
    tables: [
      {
        title: 'Requests per second (wrk, 64 connections)',
        columns: ['peer', 'requests/s', 'CPU us each', 'shaper against it'],
        rows: Object.entries(raw).map(([name, { rate, cpu }]) => [
          name,
          fixed(median(rate), 0),
          fixed(median(cpu), 1),
          ratio(ours / median(rate)),
        ]),
      },
    ],
    raw,
  }
}
