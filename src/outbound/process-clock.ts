/**
 * One precise clock for all shapers of a process, created when something first has to wait. Its timers do not keep the
 * process alive. `stayAlive` does, with an interval of its own.
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

/** A call waits: keeps the process alive. */
export function stayAlive(): void {
  waiting += 1
  if (waiting > 1) return
  keeper ??= setInterval(() => undefined, 2 ** 31 - 1)
  keeper.ref()
}

/** A call no longer waits. */
export function mayEnd(): void {
  waiting -= 1
  if (waiting === 0) keeper!.unref()
}
