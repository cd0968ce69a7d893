// @ts-check
/** A hot page: many clients ask for it at once, and little of that may go to the upstream. */
import { startShaper } from '../participants.js'
import { startOwn } from '../processes.js'
import { entry, median } from '../statistics.js'
import { fixed } from '../tables.js'

const RATE = 10
/** Of the time that the queue takes without it. */
const TARGET = 0.01

/** @param {import('../main.js').Context} context */
export async function coalescing({ quick, rounds: wanted, progress }) {
  const load = startOwn('hot-page.js')
  const upstream = await load.message()
  const requests = quick ? 100 : 1_000
  const rounds = wanted ?? (quick ? 1 : 3)
  /** @type {Record<string, { ms: number, served: number }[]>} */
  const raw = {}
  for (let round = 0; round < rounds; round += 1) {
    for (const coalesce of [true, false]) {
      const name = coalesce ? 'shaper, coalesce' : 'shaper'
      progress(`coalescing: ${name}, round ${round + 1} of ${rounds}`)
      const proxy = await startShaper({
        upstream: `http://127.0.0.1:${upstream}`,
        buckets: { all: { key: 'all', rate: `${RATE}/s`, capacity: requests } },
        routes: [{ name: 'pages', coalesce }],
      })
      entry(raw, name, () => []).push(await load.ask({ port: proxy.port, requests }, 200_000))
      await proxy.stop()
    }
  }
  await load.stop()
  /** @param {string} name @param {'ms' | 'served'} figure */
  const of = (name, figure) => median((raw[name] ?? []).map(run => run[figure]))
  const part = of('shaper, coalesce', 'ms') / of('shaper', 'ms')
  return {
    checks: [
      {
        figure: 'time until all are answered, of that without `coalesce`',
        value: fixed(part, 4),
        target: `<= ${TARGET * (quick ? 10 : 1)}`,
        met: part <= TARGET * (quick ? 10 : 1),
      },
    ],
    tables: [
      {
        title: `${requests} clients ask for one page at once, ${RATE}/s may leave, an answer takes 20 ms`,
        columns: ['peer', 'all are answered after (s)', 'requests at the upstream'],
        rows: Object.keys(raw).map(name => [name, fixed(of(name, 'ms') / 1_000, 2), String(of(name, 'served'))]),
      },
    ],
    raw,
  }
}
