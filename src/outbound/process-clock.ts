/**
 * One precise clock for all shapers of a process, made when something has to wait for the first time. It keeps the process
 * alive only while somebody waits: its timers do not, and one that does is held instead.
 */
import { performance } from 'node:perf_hooks'
import type { Clock } from '../core/clock.js'
import { createPreciseClock } from '../pacing/precise.js'

let precise: Clock | undefined

export const processClock: Clock = {
  now: () => performance.now(),
  at(due, run) {
    precise ??= createPreciseClock(undefined, { background: true })
    return precise.at(due, run)
  },
}

let keeper: NodeJS.Timeout | undefined
let waiting = 0

/** Somebody waits: the process has to stay. */
export function stayAlive(): void {
  waiting += 1
  if (waiting > 1) return
  keeper ??= setInterval(() => undefined, 2 ** 31 - 1)
  keeper.ref()
}

/** One of them waits no more. */
export function mayEnd(): void {
  waiting -= 1
  if (waiting === 0) keeper!.unref()
}
