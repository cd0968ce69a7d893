// @ts-check
/** The memory of a waiting request and of an idle key, each measured in fresh processes. */
import { setTimeout as sleep } from 'node:timers/promises'
import { DIST, startLoad, startNginx, startPeer, startShaper, startSink } from '../participants.js'
import { hasProgram, result } from '../processes.js'
import { entry, median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

const HELD = 10_000

const KEYS = 1_000_000

const TARGETS = { held: 1.25, nginx: 0.75, key: 80 }

/**
 * @param {{ load: Program, proxy: Program, held: number }} setup
 * @typedef {import('../processes.js').Program} Program
 */
async function perHeld({ load, proxy, held }) {
  const { port } = proxy
  const clients = [{ path: '/held/0', key: 'held' }]
  await sleep(500)
  // A fresh process: held requests would use the heap that a warm-up leaves free, and would seem to
  // cost less the more the server had needed before.
  const before = proxy.rss()
  await load.ask({ port, clients, connections: held }, 60_000)
  await sleep(1_500)
  const bytes = (proxy.rss() - before) / held
  const told = await load.ask('stop')
  if (told.answered > 1 || told.refused + told.failed > 0) {
    throw new Error(`${proxy.name}: of ${held} not all were held (${JSON.stringify(told)})`)
  }
  return bytes
}

/** @param {number} value */
function againstNginx(value) {
  return {
    figure: 'RSS per held request against nginx limit_req',
    value: ratio(value),
    target: `<= ${TARGETS.nginx}x`,
    met: value <= TARGETS.nginx,
  }
}

/** @param {import('../main.js').Context} context */
export async function memory({ quick, rounds: wanted, missing, progress }) {
  const sink = await startSink()
  const load = await startLoad()
  const held = quick ? HELD / 2 : HELD
  const peers = [
    {
      name: 'shaper',
      start: () =>
        startShaper({
          upstream: `http://127.0.0.1:${sink.port}`,
          limits: { maxQueued: 2 * HELD, connectionsPerClient: 2 * HELD, shutdownTimeout: '100ms' },
          buckets: { client: { key: 'header:x-key', rate: '1/h', capacity: 2 * HELD } },
          routes: [{ name: 'held', buckets: ['client'] }],
        }),
    },
    { name: 'bare Node http server', start: () => startPeer('holding', sink.port) },
  ]
  if (hasProgram('nginx')) {
    peers.push({
      name: 'nginx limit_req',
      start: () =>
        startNginx(sink.port, {
          http: 'limit_req_zone $http_x_key zone=held:1m rate=1r/m;',
          locations: `location / { limit_req zone=held burst=${2 * HELD}; proxy_pass http://sink; }`,
        }),
    })
  } else missing.add('nginx')
  const rounds = wanted ?? (quick ? 1 : 5)
  /** @type {Record<string, number[]>} */
  const raw = {}
  /** @type {number[]} */
  const keys = []
  for (let round = 0; round < rounds; round += 1) {
    for (const { name, start } of peers) {
      progress(`memory: ${name}, round ${round + 1} of ${rounds}`)
      const proxy = await start()
      const values = entry(raw, name, () => [])
      values.push(await perHeld({ load, proxy, held }))
      await proxy.stop()
    }
    progress(`memory: keys, round ${round + 1} of ${rounds}`)
    keys.push(await result('keys.js', [DIST, String(KEYS)], ['--expose-gc']))
  }
  await Promise.all([sink, load].map(program => program.stop()))

  const ours = median(raw.shaper)
  const value = ours / median(raw['bare Node http server'])
  const key = median(keys)
  return {
    checks: [
      {
        figure: 'RSS per held request against a bare Node http server',
        value: ratio(value),
        target: `<= ${TARGETS.held}x`,
        met: value <= TARGETS.held,
      },
      ...(raw['nginx limit_req'] === undefined ? [] : [againstNginx(ours / median(raw['nginx limit_req']))]),
      { figure: 'bytes per idle key', value: fixed(key, 0), target: `<= ${TARGETS.key}`, met: key <= TARGETS.key },
    ],
    tables: [
      {
        title: `kB of RSS per held request (${held} held)`,
        columns: ['peer', 'kB', 'shaper against it'],
        rows: Object.entries(raw).map(([name, values]) => [
          name,
          fixed(median(values) / 1000, 2),
          ratio(ours / median(values)),
        ]),
      },
    ],
    raw: { held: raw, keys },
  }
}
