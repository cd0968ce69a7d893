// @ts-check
/**
 * The library and its peers against simulated APIs with strict limits; calls whose cost is known afterwards; and processes that
 * share a Redis. Each client and each simulator has its own process. The clients of one dialect run side by side, because they
 * wait nearly all the time.
 */
import { existsSync } from 'node:fs'
import { DIALECTS, idealTime, leastTime, MODEL } from '../dialects.js'
import { DIST } from '../participants.js'
import { freePort, hasPackage, hasProgram, result, start, startOwn } from '../processes.js'
import { median, quantile, worstLevel, worstWindow } from '../statistics.js'
import { fixed, percent, ratio } from '../tables.js'

/** @typedef {import('../tables.js').Check} Check @typedef {import('../tables.js').Table} Table */

const CALLS = 600

const PEERS = {
  Bottleneck: 'bottleneck',
  'p-throttle': 'p-throttle',
  'p-queue': 'p-queue',
  limiter: 'limiter',
  octokit: '@octokit/plugin-throttling',
}

const TARGETS = { longer: 1.02, used: 0.95, gap: 0.5 }

/** Of the model calls. The estimate is the most that a call can cost. Why these: docs/outbound.md. */
export const ADVICE = { margin: 0.96, estimate: MODEL.most, burst: 2 * MODEL.most }

const CALLERS = 100

const NODE_ARGS = ['--import', '@tapjs/typescript/import']

const SHARED = { processes: 4, rate: 10 }

/** @param {string} dialect @param {string} who @param {number} calls */
async function against(dialect, who, calls) {
  const ideal = idealTime(DIALECTS[dialect], calls)
  const longest = 2 * ideal + 10_000
  const simulator = startOwn('simulator.js', [dialect])
  const url = `http://127.0.0.1:${await simulator.message()}`
  const { done, took } = await result('dialects.js', [DIST, who, dialect, url, String(calls), String(longest)])
  const { refused } = await simulator.ask('seen')
  await simulator.stop()
  return { dialect, who, refused, lost: calls - done, took, ideal, least: leastTime(DIALECTS[dialect], calls) }
}

/** @typedef {Awaited<ReturnType<typeof against>>} Row */

/** @param {Row[]} rows @returns {{ table: Table, checks: Check[] }} */
function dialectResults(rows) {
  const checks = rows
    .filter(({ who }) => who === 'shaper')
    .flatMap(({ dialect, refused, lost, took, ideal }) => {
      const { title } = DIALECTS[dialect]
      return [
        { figure: `refused or lost, ${title}`, value: `${refused + lost}`, target: '0', met: refused + lost === 0 },
        {
          figure: `time against the ideal, ${title}`,
          value: `${fixed(took / ideal, 3)}x`,
          target: `<= ${ratio(TARGETS.longer)}`,
          met: took / ideal <= TARGETS.longer,
        },
      ]
    })
  const table = {
    title: 'Calls at once to strict APIs. The ideal spaces windows evenly; the least possible fills each at once',
    columns: ['limit', 'client', 'refused', 'lost', 's', 'against the ideal', 'against the least possible'],
    rows: rows.map(({ dialect, who, refused, lost, took, ideal, least }) => [
      DIALECTS[dialect].title,
      who,
      `${refused}`,
      `${lost}`,
      fixed(took / 1_000, 2),
      ratio(took / ideal),
      least > 0 ? ratio(took / least) : '-',
    ]),
  }
  return { table, checks }
}

/** The model calls in real time, a minute in 6 s. @param {number} minutes */
async function realModelCalls(minutes) {
  const ms = minutes * MODEL.minute
  const simulator = startOwn('simulator.js', ['model'])
  const url = `http://127.0.0.1:${await simulator.message()}`
  await result('dialects.js', [DIST, JSON.stringify(ADVICE), 'model', url, String(CALLERS), String(ms)])
  const { accepted } = await simulator.ask('seen')
  await simulator.stop()
  const began = accepted[0].at
  const sent = /** @type {{ at: number, cost: number }[]} */ (accepted)
    .map(({ at, cost }) => ({ at: at - began, cost }))
    .filter(({ at }) => at <= ms)
  return {
    used: sent.reduce((sum, { cost }) => sum + cost, 0) / (MODEL.tokens * minutes),
    overMinute: worstWindow(sent, MODEL.tokens, MODEL.minute),
    overBucket: worstLevel(sent, MODEL.tokens, MODEL.minute),
  }
}

/** @typedef {{ used: number, overMinute: number, overBucket: number }} Use */

/** @param {string} how @param {Use} use @returns {Check[]} */
function useChecks(how, { used, overMinute, overBucket }) {
  return [
    {
      figure: `tokens used, ${how}`,
      value: `${fixed(used * 100, 1)} %`,
      target: `>= ${percent(TARGETS.used)}`,
      met: used >= TARGETS.used,
    },
    {
      figure: `most tokens in any minute above the limit, ${how}`,
      value: fixed(overMinute, 0),
      target: `<= ${MODEL.most - MODEL.least} (one estimate's error)`,
      met: overMinute <= MODEL.most - MODEL.least,
    },
    {
      figure: `most above a bucket that refills evenly, ${how}`,
      value: fixed(overBucket, 0),
      target: '<= 0',
      met: overBucket <= 0,
    },
  ]
}

/** @param {number} calls of each process @returns {Promise<number[]>} gaps in ms at the server */
async function sharedGaps(calls) {
  const port = await freePort()
  const redis = start('redis-server', [
    '--port',
    String(port),
    '--bind',
    '127.0.0.1',
    '--save',
    '',
    '--appendonly',
    'no',
  ])
  redis.port = port
  await redis.listening()
  const simulator = startOwn('simulator.js', ['counter'])
  const url = `http://127.0.0.1:${await simulator.message()}`
  const args = [DIST, `redis://127.0.0.1:${port}`, 'shared', url, String(calls), '0']
  await Promise.all(Array.from({ length: SHARED.processes }, () => result('dialects.js', args)))
  const { accepted } = await simulator.ask('seen')
  await simulator.stop()
  await redis.stop()
  const times = /** @type {{ at: number }[]} */ (accepted).map(({ at }) => at)
  return times.slice(1).map((at, place) => at - times[place])
}

/** @param {number[]} gaps @returns {{ table: Table, checks: Check[] }} */
function gapResults(gaps) {
  const least = (Math.min(...gaps) * SHARED.rate) / 1_000
  const rate = (gaps.length * 1_000) / gaps.reduce((sum, gap) => sum + gap, 0)
  const title = `${SHARED.processes} processes on a Redis, ${SHARED.rate}/s in all`
  const check = {
    figure: `smallest gap at the server, ${title}`,
    value: `${fixed(least, 2)}/r`,
    target: `>= ${TARGETS.gap}/r`,
    met: least >= TARGETS.gap,
  }
  const row = [
    `${gaps.length + 1}`,
    fixed(rate, 2),
    fixed(Math.min(...gaps), 1),
    fixed(quantile(gaps, 0.01), 1),
    fixed(median(gaps), 1),
  ]
  return {
    table: { title, columns: ['calls', 'per second', 'smallest gap, ms', 'p1', 'p50'], rows: [row] },
    checks: [check],
  }
}

/** @param {import('../main.js').Context} context */
export async function dialects({ quick, missing, progress }) {
  const peers = Object.entries(PEERS).flatMap(([name, needs]) => {
    if (hasPackage(needs)) return [name]
    missing.add(needs)
    return []
  })
  const calls = quick ? 100 : CALLS
  /** @type {Row[]} */
  const rows = []
  for (const dialect of Object.keys(DIALECTS)) {
    progress(`dialects: ${DIALECTS[dialect].title}`)
    rows.push(...(await Promise.all(['shaper', ...peers].map(who => against(dialect, who, calls)))))
  }
  const { table, checks } = dialectResults(rows)
  const tables = [table]
  progress('dialects: model calls')
  const real = await realModelCalls(quick ? 2 : 10)
  /** @type {Use[]} */
  const virtual = []
  if (existsSync(new URL('../model-calls.ts', import.meta.url))) {
    virtual.push(await result('model-calls.js', [JSON.stringify(ADVICE)], NODE_ARGS))
  } else missing.add('test/bench/model-calls.ts')
  checks.push(...useChecks('10 minutes of 6 s', real))
  checks.push(...virtual.flatMap(use => useChecks('5 minutes on the virtual clock', use)))
  if (hasProgram('redis-server')) {
    progress('dialects: processes on a Redis')
    const gaps = gapResults(await sharedGaps(quick ? 10 : 60))
    checks.push(...gaps.checks)
    tables.push(gaps.table)
  } else missing.add('redis-server')
  return { checks, tables, raw: { rows, real, virtual } }
}
