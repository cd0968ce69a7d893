// @ts-check
/** Two workers without a store against one process: CPU for each request, and the rate that they keep together. */
import { startShaper, startSink } from '../participants.js'
import { entry, median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'
import { hasWrk, wrk } from '../wrk.js'

const RATE = 1_000
const TARGETS = { cpu: 1.15, off: 0.001 }

/** Seconds. Where CPU is compared the two take turns: the speed of a machine changes within a minute. */
const SLICE = 2

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
  const kinds = /** @type {const} */ ([
    ['one process', []],
    ['two workers', ['--workers', '2']],
  ])
  /** Of two workers, in parts of what one process took just before or after. @type {number[]} */
  const ratios = []
  /** @param {number} rate */
  const configOf = rate => ({
    upstream: `http://127.0.0.1:${sink.port}`,
    buckets: { all: { key: 'all', rate: `${rate}/s`, capacity: 1_000_000 } },
  })

  /** @param {import('../participants.js').Program} shaper @param {number} seconds */
  async function loadOf(shaper, seconds) {
    const before = shaper.cpu()
    const outcome = await wrk(shaper.port, '/', seconds)
    return { rate: outcome.rate, cpu: ((shaper.cpu() - before) / outcome.requests) * 1e6 }
  }

  async function withoutLimits() {
    const shapers = []
    for (const [name, args] of kinds) {
      const shaper = await startShaper(configOf(10_000_000), { name, args: [...args] })
      // Until its code is compiled.
      await wrk(shaper.port, '/', 5)
      shapers.push(shaper)
    }
    for (let slice = 0; slice < seconds / SLICE; slice += 1) {
      /** @type {number[]} */
      const cpus = []
      for (const place of slice % 2 === 0 ? [0, 1] : [1, 0]) {
        const figures = await loadOf(/** @type {import('../participants.js').Program} */ (shapers[place]), SLICE)
        cpus[place] = figures.cpu
        entry(raw, `${kinds[place]?.[0]}, without limits`, () => []).push(figures)
      }
      ratios.push((cpus[1] ?? 0) / (cpus[0] ?? 1))
    }
    for (const shaper of shapers) await shaper.stop()
  }

  for (let round = 0; round < rounds; round += 1) {
    progress(`workers: without limits, round ${round + 1} of ${rounds}`)
    await withoutLimits()
    for (const [name, args] of kinds) {
      progress(`workers: ${name}, saturated at ${RATE}/s, round ${round + 1} of ${rounds}`)
      const shaper = await startShaper(configOf(RATE), { name, args: [...args] })
      await wrk(shaper.port, '/', 1)
      // At full speed it would cost too much.
      await sink.ask('record')
      const { cpu } = await loadOf(shaper, seconds)
      const rate = rateOf((await sink.ask('stop')).times)
      entry(raw, `${name}, saturated at ${RATE}/s`, () => []).push({ rate, cpu })
      await shaper.stop()
    }
  }
  await sink.stop()
  /** @param {string} name @param {'rate' | 'cpu'} figure */
  const of = (name, figure) => median((raw[name] ?? []).map(run => run[figure]))
  const cpu = median(ratios)
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
