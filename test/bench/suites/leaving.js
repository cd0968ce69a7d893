// @ts-check
/** What an upstream does for clients that have gone: clients give up after 2 s, and twice as many come as it may serve. */
import { startAll, startNginx, startShaper } from '../participants.js'
import { startOwn } from '../processes.js'
import { entry, median } from '../statistics.js'
import { fixed, percent } from '../tables.js'

const RATE = 100
const TARGETS = { wanted: 0.95, good: 0.95 * RATE }

/** @param {import('../main.js').Context} context */
export async function leaving({ quick, rounds: wanted, missing, progress }) {
  const load = startOwn('leaving.js')
  const upstream = await load.message()
  /** @param {object} route */
  const shaper = route => () =>
    startShaper({
      upstream: `http://127.0.0.1:${upstream}`,
      buckets: { all: { key: 'all', rate: `${RATE}/s`, capacity: 1_000 } },
      routes: [{ name: 'all', ...route }],
    })
  const [seconds, from] = quick ? [15, 7] : [60, 10]
  const rounds = wanted ?? (quick ? 1 : 3)
  /** @type {Record<string, { sent: number, good: number, rejected: number }[]>} */
  const raw = {}
  for (let round = 0; round < rounds; round += 1) {
    for (const candidate of [
      { name: 'shaper', start: shaper({}) },
      { name: 'shaper, patience: 2s', start: shaper({ patience: '2s' }) },
      { name: 'shaper, patience: none', start: shaper({ patience: 'none' }) },
      {
        name: 'nginx limit_req burst=1000',
        program: 'nginx',
        start: () =>
          startNginx(upstream, {
            http: `limit_req_zone $server_port zone=all:1m rate=${RATE}r/s;`,
            locations: 'location / { limit_req zone=all burst=1000; proxy_pass http://sink; }',
          }),
      },
    ]) {
      // Fresh: what one round has taught would help the next.
      const [proxy] = (await startAll([candidate], missing)).values()
      if (proxy === undefined) continue
      progress(`leaving: ${candidate.name}, round ${round + 1} of ${rounds}`)
      entry(raw, candidate.name, () => []).push(
        await load.ask({ port: proxy.port, rate: 2 * RATE, patience: 2_000, seconds, from }, (seconds + 20) * 1_000),
      )
      await proxy.stop()
    }
  }
  await load.stop()
  const span = seconds - from
  /** @param {string} name @param {(run: { sent: number, good: number }) => number} figure */
  const of = (name, figure) => median((raw[name] ?? []).map(figure))
  const part = of('shaper', ({ sent, good }) => good / sent)
  const good = of('shaper', run => run.good / span)
  return {
    checks: [
      {
        figure: 'of what the upstream serves, for clients still there',
        value: percent(part),
        target: `>= ${percent(TARGETS.wanted)}`,
        met: part >= TARGETS.wanted,
      },
      {
        figure: 'good answers per second',
        value: fixed(good, 1),
        target: `>= ${TARGETS.good}`,
        met: good >= TARGETS.good,
      },
    ],
    tables: [
      {
        title: `200/s come, 100/s may leave, an answer takes 300 ms, and clients give up after 2 s`,
        columns: ['peer', 'served per second', 'good per second', 'for clients still there'],
        rows: Object.keys(raw).map(name => [
          name,
          fixed(
            of(name, ({ sent }) => sent / span),
            1,
          ),
          fixed(
            of(name, run => run.good / span),
            1,
          ),
          percent(of(name, ({ sent, good }) => good / sent)),
        ]),
      },
    ],
    raw,
  }
}
