// @ts-check
/** Whether figures of this machine can be judged by: how late its timers are, and what else runs on it. */
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { cpuTimes } from './processes.js'
import { quantile } from './statistics.js'
import { QUIET } from './tables.js'

/** ms of a timer. */
const PERIOD = 2
/** ms. Where timers are later than this in one of a hundred cases, the tails of all participants are those of the machine. */
const LATE = 2
/** Of a core. More time than this was given to other machines. */
const STOLEN = 0.01

/** @param {number} seconds @returns {Promise<{ text: string, isQuiet: boolean }>} */
export async function lookAtMachine(seconds) {
  const lateness = []
  const [before, stolen, begun] = [cpuTimes(), steal(), performance.now()]
  while (performance.now() < begun + seconds * 1000) {
    const due = performance.now() + PERIOD
    await sleep(PERIOD)
    lateness.push(performance.now() - due)
  }
  const [after, passed] = [cpuTimes(), (performance.now() - begun) / 1000]
  const foreign = Math.max(0, after.all - before.all - (after.own - before.own)) / passed
  const taken = (steal() - stolen) / passed
  const [p50, p99] = [quantile(lateness, 0.5), quantile(lateness, 0.99)]
  const isQuiet = p99 <= LATE && foreign <= QUIET && taken <= STOLEN
  const state = `timers are late by ${p50.toFixed(2)} ms (p50) and ${p99.toFixed(2)} ms (p99); others use ${percent(foreign)} of a core, other machines ${percent(taken)}`
  const verdict = isQuiet
    ? 'It is quiet: figures and ratios can be judged by.'
    : 'It is not quiet: trust ratios of p50 and p90 of one run, and of CPU. Do not judge by p99, p99.9 or absolute figures.'
  return { text: `the machine: ${state}. ${verdict}`, isQuiet }
}

/** @param {number} part */
function percent(part) {
  return `${(100 * part).toFixed(1)} %`
}

/** Seconds of all cores that were given to other machines. */
function steal() {
  return Number(readFileSync('/proc/stat', 'utf8').split('\n', 1)[0].split(/ +/)[8]) / 100
}
