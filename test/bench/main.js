#!/usr/bin/env node
// @ts-check
/**
 * The benchmark: shaper and its peers in turn, on the same work, in one run.
 *
 *     npm run bench [-- SUITE...] [--quick] [--rounds N] [--json FILE] [--check]
 *     npm run bench -- pacing --target URL [--sink PORT] [--rate N] [--clients N] [--seconds N]
 */
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { availableParallelism, cpus, release, type } from 'node:os'
import { parseArgs } from 'node:util'
import { lookAtMachine } from './machine.js'
import { checkBuilt } from './participants.js'
import { cpuTimes, hasProgram, killAll } from './processes.js'
import { adaptive } from './suites/adaptive.js'
import { coalescing } from './suites/coalescing.js'
import { decision } from './suites/decision.js'
import { dialects } from './suites/dialects.js'
import { gate } from './suites/gate.js'
import { importing } from './suites/importing.js'
import { lanes } from './suites/lanes.js'
import { leaving } from './suites/leaving.js'
import { memory } from './suites/memory.js'
import { outbound } from './suites/outbound.js'
import { reject } from './suites/reject.js'
import { replay } from './suites/replay.js'
import { servers } from './suites/servers.js'
import { smoothness } from './suites/smoothness.js'
import { stack } from './suites/stack.js'
import { store } from './suites/store.js'
import { throughput } from './suites/throughput.js'
import { workers } from './suites/workers.js'
import { suiteText } from './tables.js'
import { paceOf } from './target.js'

/**
 * @typedef {object} Context
 * @property {boolean} quick
 * @property {number} [rounds] replaces the number of each suite
 * @property {Set<string>} missing optional programs and packages that are not installed
 * @property {(text: string) => void} progress
 */

/** @type {Record<string, (context: Context) => Promise<import('./tables.js').Outcome>>} */
const SUITES = {
  smoothness,
  stack,
  throughput,
  reject,
  decision,
  lanes,
  memory,
  leaving,
  coalescing,
  adaptive,
  store,
  workers,
  servers,
  outbound,
  dialects,
  importing,
  replay,
  gate,
}

const PACKAGES = [
  'undici',
  'http-proxy',
  'http-proxy-3',
  'httpxy',
  'fast-proxy',
  'bottleneck',
  'p-throttle',
  'p-queue',
  'limiter',
  '@octokit/plugin-throttling',
  'rate-limiter-flexible',
  'ioredis',
  'pg',
]

/** The longest run, in ms. */
const LONGEST = 60 * 60_000

/** Without a terminal: the shortest time between two lines of progress, in ms. */
const PROGRESS_APART = 10_000

const USAGE = `npm run bench [-- SUITE...] [--quick] [--rounds N] [--json FILE] [--check]
npm run bench -- pacing --target URL [--sink PORT] [--rate N] [--clients N] [--seconds N]: how evenly any proxy lets requests through
--check: exit status 1 if a target is missed
suites: ${Object.keys(SUITES).join(', ')} (default: all)`

/** The participants and their versions. */
function versions() {
  /** @type {Record<string, string>} */
  const found = { node: process.versions.node }
  /** @param {string} name @param {string[]} args @param {RegExp} pattern */
  const program = (name, args, pattern) => {
    if (!hasProgram(name)) return
    const command = `PATH=$PATH:/usr/sbin:/sbin; ${name} ${args.join(' ')} 2>&1 || true`
    found[name] = pattern.exec(execFileSync('sh', ['-c', command], { encoding: 'utf8' }))?.[1] ?? '?'
  }
  program('nginx', ['-v'], /nginx\/(\S+)/)
  program('haproxy', ['-v'], /version (\d[\d.]*)/)
  program('redis-server', ['--version'], /v=(\S+)/)
  program('wrk', ['-v'], /wrk \D*(\d[\d.]*)/)
  for (const name of PACKAGES) {
    const manifest =
      createRequire(import.meta.url)
        .resolve.paths(name)
        ?.map(path => `${path}/${name}/package.json`) ?? []
    for (const path of manifest) {
      try {
        found[name] = JSON.parse(readFileSync(path, 'utf8')).version
        break
      } catch {
        // The package is not in this directory.
      }
    }
  }
  return found
}

/** @param {string[]} args @returns {Promise<number>} exit status */
async function run(args) {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      quick: { type: 'boolean' },
      rounds: { type: 'string' },
      json: { type: 'string' },
      check: { type: 'boolean' },
      target: { type: 'string' },
      sink: { type: 'string', default: '9000' },
      rate: { type: 'string', default: '100' },
      clients: { type: 'string', default: '1' },
      seconds: { type: 'string', default: '20' },
      help: { type: 'boolean' },
    },
  })
  if (values.help) {
    console.log(USAGE)
    return 0
  }
  const { target } = values
  if (target !== undefined || positionals.includes('pacing')) {
    const [sinkPort, rate, clients, seconds] = [values.sink, values.rate, values.clients, values.seconds].map(Number)
    const areNumbers = [sinkPort, rate, clients, seconds].every(number => Number.isInteger(number) && number > 0)
    if (target === undefined || !URL.canParse(target) || positionals.join() !== 'pacing' || !areNumbers || clients > 10)
      throw new TypeError('pacing wants --target http://127.0.0.1:PORT, whole numbers above 0, and at most 10 clients')
    console.log((await lookAtMachine(Math.min(10, seconds))).text)
    await paceOf({ target: new URL(target), sinkPort, rate, clients, seconds })
    return 0
  }
  const unknown = positionals.filter(name => !Object.hasOwn(SUITES, name))
  if (unknown.length > 0) throw new TypeError(`no such suite: ${unknown.join(', ')}`)
  const wanted = positionals.length > 0 ? positionals : Object.keys(SUITES)
  const rounds = values.rounds === undefined ? undefined : Number(values.rounds)
  if (rounds !== undefined && !(Number.isInteger(rounds) && rounds > 0)) throw new TypeError('--rounds wants a number')
  checkBuilt()
  /** @type {import('./tables.js').Report} */
  const report = {
    date: new Date().toISOString(),
    quick: values.quick ?? false,
    machine: {
      cpu: cpus()[0]?.model ?? 'unknown CPU',
      cores: String(availableParallelism()),
      system: `${type()} ${release()}`,
    },
    versions: versions(),
    missing: [],
    suites: {},
    failures: {},
    foreign: {},
  }
  const { text } = await lookAtMachine(report.quick ? 2 : 10)
  report.machine.state = text
  console.log(text)
  const missing = /** @type {Set<string>} */ (new Set())
  const began = performance.now()
  const progress = createProgress()
  for (const name of wanted) {
    const before = cpuTimes()
    const start = performance.now()
    try {
      report.suites[name] = await SUITES[name]({
        quick: report.quick,
        ...(rounds !== undefined && { rounds }),
        missing,
        progress,
      })
      progress('')
      const after = cpuTimes()
      const foreign = after.all - before.all - (after.own - before.own)
      report.foreign[name] = Math.max(0, foreign) / ((performance.now() - start) / 1000)
      console.log(suiteText(name, report.suites[name], report.foreign[name]))
    } catch (error) {
      progress('')
      report.failures[name] = /** @type {Error} */ (error).message
      console.log(`\n== ${name} ==\n\nfailed: ${/** @type {Error} */ (error).message}\n`)
    }
  }
  report.missing = [...missing]
  console.log(missing.size > 0 ? `missing, not measured: ${report.missing.join(', ')}` : 'no peer was missing')
  if (report.quick) console.log('--quick: one short round each, and fewer peers; not to be judged by')
  const checks = Object.values(report.suites).flatMap(suite => suite.checks)
  console.log(`${checks.filter(({ met }) => met).length} of ${checks.length} targets met`)
  console.log(`${((performance.now() - began) / 1000).toFixed(0)} s`)
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
  const missed = values.check === true && checks.some(({ met }) => !met)
  return missed || Object.keys(report.failures).length > 0 ? 1 : 0
}

/** Tells on stderr what is being measured: on a terminal always, else from time to time. @returns {(text: string) => void} */
function createProgress() {
  if (process.stderr.isTTY) return text => void process.stderr.write(`\r\x1b[K${text}`)
  let told = -Infinity
  return text => {
    if (text === '' || performance.now() - told < PROGRESS_APART) return
    told = performance.now()
    process.stderr.write(`${text}\n`)
  }
}

process.on('exit', killAll)
for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) process.on(signal, () => process.exit(130))
setTimeout(() => {
  console.error(`stopped after ${LONGEST / 60_000} minutes`)
  process.exit(1)
}, LONGEST).unref()

try {
  process.exit(await run(process.argv.slice(2)))
} catch (error) {
  console.error(`${/** @type {Error} */ (error).message}\n${error instanceof TypeError ? USAGE : ''}`)
  process.exit(2)
}
