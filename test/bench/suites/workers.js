// @ts-check
/** Two workers without a store against one process: CPU for each request, and the rate that they keep together. */
import { startShaper, startSink } from '../participants.js'
import { entry, median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'
import { hasWrk, wrk } from '../wrk.js'

const RATE = 1_000
const TARGETS = { cpu: 1.15, off: 0.001 }

/**
 * Requests per second at the upstream, but for the first second and the last half. wrk counts the time in which it opens its connections.
 *
 * @param {Float64Array} times ms
 */
function rateOf(times) {
  const [from, to] = [(times[0] ?? 0) + 1_000, (times.at(-1) ?? 0) - 500]
  const inside = times.filter(at => at >= from && at <= to)
  return ((inside.length - 1) / ((inside.at(-1) ?? 0) - (inside[0] ?? 0))) * 1_000
}

/** @param {import('../main.js').Context} context */
export async function workers({ quick, rounds: wanted, missing, progress }) {
  if (!hasWrk()) {
    missing.add('wrk')
    return { checks: [], tables: [], raw: {} }
  }
  const sink = await startSink()
  const seconds = quick ? 3 : 10
  const rounds = wanted ?? (quick ? 1 : 3)
  /** @type {Record<string, { rate: number, cpu: number }[]>} */
  const raw = {}
  const loads = [
    { load: 'without limits', rate: 10_000_000 },
    { load: `saturated at ${RATE}/s`, rate: RATE },
  ]

  /** @param {object} config @param {{ name: string, args: string[] }} options @param {boolean} isLimited */
  async function figuresOf(config, options, isLimited) {
    const shaper = await startShaper(config, options)
    await wrk(shaper.port, '/', 1)
    // At full speed it would cost too much.
    if (isLimited) await sink.ask('record')
    const before = shaper.cpu()
    const outcome = await wrk(shaper.port, '/', seconds)
    const cpu = ((shaper.cpu() - before) / outcome.requests) * 1e6
    const rate = isLimited ? rateOf((await sink.ask('stop')).times) : outcome.rate
    await shaper.stop()
    return { rate, cpu }
  }

  for (let round = 0; round < rounds; round += 1) {
    for (const { load, rate } of loads) {
      const config = {
        upstream: `http://127.0.0.1:${sink.port}`,
        buckets: { all: { key: 'all', rate: `${rate}/s`, capacity: 1_000_000 } },
      }
      for (const [name, args] of /** @type {const} */ ([
        ['one process', []],
        ['two workers', ['--workers', '2']],
      ])) {
        progress(`workers: ${name}, ${load}, round ${round + 1} of ${rounds}`)
        entry(raw, `${name}, ${load}`, () => []).push(await figuresOf(config, { name, args: [...args] }, rate === RATE))
      }
    }
  }
  await sink.stop()
  /** @param {string} name @param {'rate' | 'cpu'} figure */
  const of = (name, figure) => median((raw[name] ?? []).map(run => run[figure]))
  const cpu = of('two workers, without limits', 'cpu') / of('one process, without limits', 'cpu')
  const rate = of(`two workers, saturated at ${RATE}/s`, 'rate')
  return {
    checks: [
      {
        figure: 'CPU for each request, two workers against one process',
        value: ratio(cpu),
        target: `<= ${ratio(TARGETS.cpu)}`,
        met: cpu <= TARGETS.cpu,
      },
      {
        figure: `requests per second of ${RATE}, two workers`,
        value: fixed(rate, 2),
        target: `within ${TARGETS.off * 100} %`,
        met: Math.abs(rate / RATE - 1) <= TARGETS.off,
      },
    ],
    tables: [
      {
        title: 'Workers without a store',
        columns: ['what', 'requests/s', 'CPU for each, us'],
        rows: Object.keys(raw).map(name => [name, fixed(of(name, 'rate'), 1), fixed(of(name, 'cpu'), 1)]),
      },
    ],
    raw,
  }
}
