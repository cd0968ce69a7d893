// @ts-check
/**
 * nginx asks shaper with deploy/gate/nginx.conf: how evenly requests arrive at the application, and what large bodies cost,
 * against the same nginx that asks nobody.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { startDeployedNginx, startLoad, startNginx, startShaper, startSink } from '../participants.js'
import { hasProgram } from '../processes.js'
import { entry, gapErrors, median, quantile } from '../statistics.js'
import { fixed, ratio } from '../tables.js'
import { hasWrk, wrk } from '../wrk.js'

const RATE = 100
const SETTLING = 300
const BODY = 1_000_000
const PERCENTILES = [0.5, 0.9, 0.99]
/** ms */
const MOST_ERROR = 1
const LEAST_PART = 0.95

const ALONE = 'nginx alone'
const GATED = 'nginx asks shaper'

/** @param {string} rate */
function config(rate) {
  return {
    upstream: 'gate:',
    trustProxy: ['loopback'],
    buckets: { all: { key: 'all', rate, capacity: 100_000 } },
    routes: [{ name: 'gate', patience: 'none', gate: { rejectStatus: 403 } }],
  }
}

/** @param {import('../main.js').Context} context */
export async function gate({ quick, rounds: wanted, missing, progress }) {
  const lacks = [...(hasProgram('nginx') ? [] : ['nginx']), ...(hasWrk() ? [] : ['wrk'])]
  if (lacks.length > 0) {
    for (const lack of lacks) missing.add(lack)
    return { checks: [], tables: [], raw: {} }
  }
  const rounds = wanted ?? (quick ? 1 : 5)
  const gaps = await evenness({ quick, rounds, progress })
  const bodies = await uploads({ quick, rounds, progress })
  return {
    checks: [...gaps.checks, ...bodies.checks],
    tables: [gaps.table, bodies.table],
    raw: { gaps: gaps.raw, bodies: bodies.raw },
  }
}

/** @typedef {{ quick: boolean, rounds: number, progress: (text: string) => void }} Run */

/** @param {Run} run */
async function evenness({ quick, rounds, progress }) {
  const [sink, load, shaper] = [await startSink(), await startLoad(), await startShaper(config(`${RATE}/s`))]
  const nginx = await startDeployedNginx({ shaper: shaper.port, application: sink.port })
  /** @type {Record<string, number[]>} */
  const raw = {}
  for (let round = 0; round < rounds; round += 1) {
    progress(`gate: gaps, round ${round + 1} of ${rounds}`)
    await sink.ask('record')
    await load.ask({ port: nginx.port, clients: [{ path: '/1', key: 'a' }], connections: 20 })
    await sleep(SETTLING + (quick ? 1_500 : 20_000))
    const [{ times }, told] = [await sink.ask('stop'), await load.ask('stop')]
    if (told.refused + told.failed > 0) throw new Error(`${told.refused} refused, ${told.failed} failed`)
    const errors = gapErrors(
      times.filter((/** @type {number} */ time) => time >= times[0] + SETTLING),
      1000 / RATE,
    )
    for (const q of PERCENTILES) entry(raw, `p${q * 100}`, () => []).push(quantile([...errors], q))
    await sleep(100)
  }
  await Promise.all([sink, load, nginx, shaper].map(program => program.stop()))
  const p90 = median(raw.p90)
  return {
    raw,
    table: {
      title: `Error of the gap between two arrivals at the application behind nginx, ms, at ${RATE}/s`,
      columns: PERCENTILES.map(q => `p${q * 100}`),
      rows: [PERCENTILES.map(q => fixed(median(raw[`p${q * 100}`]), 3))],
    },
    checks: [
      {
        figure: `gap error p90 behind nginx at ${RATE}/s`,
        value: `${fixed(p90, 3)} ms`,
        target: `<= ${MOST_ERROR} ms`,
        met: p90 <= MOST_ERROR,
      },
    ],
  }
}

/** @param {Run} run */
async function uploads({ quick, rounds, progress }) {
  const application = await startNginx(1, {
    http: 'client_max_body_size 2m;',
    locations: 'location / { return 200 ok; }',
  })
  const shaper = await startShaper(config('1000000/s'))
  const ports = { shaper: shaper.port, application: application.port }
  const larger = (/** @type {string} */ text) => text.replace('http {', 'http { client_max_body_size 2m;')
  const peers = new Map([
    [ALONE, await startDeployedNginx(ports, text => larger(text).replace(/^ *auth_request .*$/m, ''))],
    [GATED, await startDeployedNginx(ports, larger)],
  ])
  /** Answers per second of each, which is first as often as the other. @param {number} round @param {number} seconds */
  const ratesOf = async (round, seconds) => {
    /** @type {Record<string, number>} */
    const rates = {}
    for (const name of round % 2 === 0 ? [ALONE, GATED] : [GATED, ALONE]) {
      const { rate, bad } = await wrk(peers.get(name)?.port ?? 0, '/1', seconds, { body: BODY })
      if (bad > 0) throw new Error(`${name}: ${bad} answers were not 200`)
      rates[name] = rate
    }
    return rates
  }
  await ratesOf(0, 1)
  /** @type {Record<string, number[]>} */
  const raw = { [ALONE]: [], [GATED]: [] }
  for (let round = 0; round < rounds; round += 1) {
    progress(`gate: bodies, round ${round + 1} of ${rounds}`)
    const rates = await ratesOf(round, quick ? 1 : 5)
    for (const name of [ALONE, GATED]) raw[name].push(rates[name])
  }
  const parts = raw[GATED].map((rate, at) => rate / raw[ALONE][at])
  await Promise.all([...peers.values(), application, shaper].map(program => program.stop()))
  const part = median(parts)
  return {
    raw: { ...raw, parts },
    table: {
      title: `POST with a body of ${BODY / 1e6} MB, answers per second`,
      columns: [ALONE, GATED, 'part'],
      rows: [[fixed(median(raw[ALONE]), 0), fixed(median(raw[GATED]), 0), fixed(part, 3)]],
    },
    checks: [
      {
        figure: 'bodies of 1 MB against nginx alone',
        value: ratio(part),
        target: `>= ${LEAST_PART}x`,
        met: part >= LEAST_PART,
      },
    ],
  }
}
