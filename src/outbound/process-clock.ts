/**
 * One precise clock for all shapers of a process, created when something first has to wait. Its timers do not keep the
 * process alive. `stayAlive` does, with an interval of its own.
 */
import { performance } from 'node:perf_hooks'
import type { Cancel, Clock } from '../core/clock.js'
import { createPreciseClock } from '../pacing/precise.js'

let precise: Clock | undefined

export const processClock: Clock = {
  now: () => performance.now(),
  at(due, run) {
    if (due <= performance.now()) return soon(run)
    precise ??= createPreciseClock(undefined, { background: true })
    return precise.at(due, run)
  },
}

/** After the present tick. This needs no precision, so it starts none. */
function soon(run: () => void): Cancel {
  let pending = true
  setImmediate(() => {
    if (!pending) return
    pending = false
    run()
  })
  return () => {
    const was = pending
    pending = false
    return was
  }
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
