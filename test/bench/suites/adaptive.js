// @ts-check
/** `upstream.adapt` in front of an HTTP service on PostgreSQL, whose capacity halves and comes back. */
import { startShaper } from '../participants.js'
import { postgresPrograms, startPostgres } from '../postgres.js'
import { freePort, startOwn } from '../processes.js'
import { fixed, percent } from '../tables.js'

/** More is offered than the service can do, so that the rate decides. */
const OFFERED = 1.15
const TARGETS = { tolerance: 0.1, seconds: 10, goodput: 0.9, p90: 800 }

/** @param {import('../main.js').Context} context */
export async function adaptive({ quick, missing, progress }) {
  const programs = postgresPrograms()
  if (programs === undefined) {
    missing.add('postgres')
    return { checks: [], tables: [], raw: {} }
  }
  const postgres = await startPostgres(programs)
  const service = startOwn('adaptive.js', [postgres.url])
  const port = await service.message()
  progress('adaptive: what the service can do')
  const { whole, half } = await service.ask({ do: 'measure', seconds: quick ? 3 : 8 }, 60_000)
  const admin = await freePort()
  const shaper = await startShaper({
    upstream: {
      url: `http://127.0.0.1:${port}`,
      adapt: { min: '5/s', max: '1000/s', latency: { p90: `${TARGETS.p90}ms` }, errors: 0.02 },
    },
    routes: [{ name: 'all', patience: 'none' }],
    limits: { maxQueued: 20_000 },
    admin: { listen: `127.0.0.1:${admin}` },
  })
  const seconds = quick ? 25 : 100
  const capacities = [whole, half, whole]
  const phases = capacities.map(capacity => ({ seconds, offered: OFFERED * capacity, isHalved: capacity === half }))
  progress(`adaptive: ${3 * seconds} s through shaper`)
  const plan = { do: 'run', port: shaper.port, admin, phases }
  /** @type {{ phases: { served: number, rates: { at: number, rate: number }[], p90: number }[], statuses: Record<string, number> }} */
  const run = await service.ask(plan, (3 * seconds + 60) * 1_000)
  await shaper.stop()
  await service.stop()
  await postgres.stop()
  const results = run.phases.map(({ served, rates, p90 }, phase) => {
    const capacity = capacities[phase]
    const first = rates.find(({ rate }) => Math.abs(rate / capacity - 1) <= TARGETS.tolerance)
    const later = rates.filter(({ at }) => at >= TARGETS.seconds).map(({ rate }) => rate)
    const mean = later.reduce((sum, rate) => sum + rate, 0) / later.length
    return { capacity, first: first?.at ?? Number.NaN, mean, part: served / (capacity * seconds), p90 }
  })
  const ideal = capacities.reduce((sum, capacity) => sum + capacity * seconds, 0)
  const goodput = run.phases.reduce((sum, { served }) => sum + served, 0) / ideal
  const slowest = Math.max(...results.map(({ first }) => first))
  const furthest = Math.max(...results.map(({ mean, capacity }) => Math.abs(mean / capacity - 1)))
  const rejected = Object.entries(run.statuses).reduce(
    (sum, [status, count]) => sum + (status === '200' ? 0 : count),
    0,
  )
  return {
    checks: [
      {
        figure: 'until the rate is within 10 % of the capacity, at most',
        value: `${fixed(slowest, 1)} s`,
        target: `<= ${TARGETS.seconds} s`,
        met: slowest <= TARGETS.seconds,
      },
      {
        figure: 'mean rate after that against the capacity, at most',
        value: percent(furthest),
        target: `<= ${percent(TARGETS.tolerance)}`,
        met: furthest <= TARGETS.tolerance,
      },
      {
        figure: 'answers against what the service can do',
        value: percent(goodput),
        target: `>= ${percent(TARGETS.goodput)}`,
        met: goodput >= TARGETS.goodput,
      },
      { figure: 'requests rejected or failed', value: String(rejected), target: '0', met: rejected === 0 },
    ],
    tables: [
      {
        title: `A service on PostgreSQL through \`upstream.adapt\`, ${seconds} s each: alone, beside a second load, alone`,
        columns: ['it can do', 'within 10 % after', 'mean rate from 10 s on', 'answers', 'p90 at the service'],
        rows: results.map(({ capacity, first, mean, part, p90 }) => [
          `${fixed(capacity, 0)}/s`,
          `${fixed(first, 1)} s`,
          `${fixed(mean, 0)}/s`,
          percent(part),
          `${fixed(p90, 0)} ms`,
        ]),
      },
    ],
    raw: { whole, half, ...run },
  }
}
