// @ts-check
/**
 * One queue before four servers that fail in turn (servers-run.js): what fails, how even the rest stays beside one server, and when a
 * server has traffic again. nginx and HAProxy balance the same load, unshaped.
 */
import { FLEET_PROGRAMS, startFleet } from '../fleet.js'
import { startAll } from '../participants.js'
import { PEERS, runFaults, startShaperFor } from '../servers-run.js'
import { fixed, percent } from '../tables.js'

const RATE = 2_000
/** The most by which a second may differ from the rate. */
const MOST_OFF = 0.01
/** How much larger the gap error may be than with one server. */
const MOST_GAP = 1.5

/** @param {import('../main.js').Context} context */
export async function servers({ quick, missing, progress }) {
  const span = quick ? 2_000 : 6_000
  const rate = Number(process.env.SHAPER_SERVERS_RATE ?? RATE)
  const candidates = FLEET_PROGRAMS.map(program => ({ name: program, program, start: async () => undefined }))
  // @ts-expect-error only looked for
  const found = await startAll(candidates, missing)
  if (found.size < candidates.length) return { checks: [], tables: [], raw: {} }
  const fleet = await startFleet()
  /** @type {Record<string, Awaited<ReturnType<typeof runFaults>>>} */
  const raw = {}
  try {
    progress('servers: one server that does not fail')
    const one = fleet.slice(-1)
    const alone = await startShaperFor(one, rate)
    raw['shaper, one server'] = await runFaults({
      fleet: one,
      proxy: alone.proxy,
      rate,
      span,
      faults: [],
      admin: alone.admin,
    })
    await alone.proxy.stop()
    progress('servers: shaper')
    const { proxy, admin } = await startShaperFor(fleet, rate)
    raw.shaper = await runFaults({ fleet, proxy, rate, span, admin })
    await proxy.stop()
    for (const [name, start] of Object.entries(PEERS)) {
      progress(`servers: ${name}`)
      const [peer] = (
        await startAll([{ name, program: name.split(' ')[0].toLowerCase(), start: () => start(fleet) }], missing)
      ).values()
      if (peer === undefined) continue
      raw[name] = await runFaults({ fleet, proxy: peer, rate, span })
      await peer.stop()
    }
  } finally {
    for (const server of fleet) await server.stop()
  }
  const { seconds, failed, gapError, back } = raw.shaper
  const off = Math.max(...seconds.map(count => Math.abs(count / rate - 1)))
  const times = gapError / raw['shaper, one server'].gapError
  return {
    checks: [
      check('idempotent requests that failed', String(failed.idempotent), '0', failed.idempotent === 0),
      check('the most that a second differs from the rate', percent2(off), `<= ${percent2(MOST_OFF)}`, off <= MOST_OFF),
      check('gap error p99, to that with one server', fixed(times, 2), `<= ${MOST_GAP}`, times <= MOST_GAP),
      check(
        'servers that came back',
        String(back.filter(({ ms }) => ms > 0).length),
        '3',
        back.every(({ ms }) => ms > 0),
      ),
    ],
    tables: [
      {
        title: `${rate}/s over nginx, gunicorn, Apache prefork and Node; one after the other is away for ${span / 1_000} s`,
        columns: ['proxy', 'answers', 'GET failed', 'POST failed', 'gap error p99, ms', 'least and most in a second'],
        rows: Object.entries(raw).map(([name, run]) => [
          name,
          String(run.answered),
          String(run.failed.idempotent),
          String(run.failed.others),
          fixed(run.gapError, 3),
          run.seconds.length === 0 ? '-' : `${Math.min(...run.seconds)}, ${Math.max(...run.seconds)}`,
        ]),
      },
      {
        title: 'In flight at the servers that are up, by the metrics',
        columns: ['looks', 'within one of each other', 'most apart', 'most at one'],
        rows: [inFlightRow(raw.shaper.inFlight)],
      },
      {
        title: 'From its return to its first request, in ms',
        columns: ['proxy', 'SIGKILL', 'SIGTERM', 'SIGSTOP'],
        rows: Object.entries(raw)
          .filter(([, run]) => run.back.length > 0)
          .map(([name, run]) => [name, ...run.back.map(({ ms }) => fixed(ms, 0))]),
      },
    ],
    raw,
  }
}

/** @param {string} figure @param {string} value @param {string} target @param {boolean} met */
function check(figure, value, target, met) {
  return { figure, value, target, met }
}

/** @param {Awaited<ReturnType<typeof runFaults>>['inFlight']} found */
function inFlightRow(found) {
  const { looks, even, most, highest } = found ?? { looks: 0, even: 0, most: 0, highest: 0 }
  return [String(looks), percent(even / looks), String(most), String(highest)]
}

/** @param {number} part */
function percent2(part) {
  return `${(part * 100).toFixed(2)} %`
}
