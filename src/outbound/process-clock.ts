/**
 * One precise clock for all shapers of a process, created when something first has to wait. Its timers do not keep the
 * process alive. `stayAlive` does, with an interval of its own. And a clock for tests.
 */
import { performance } from 'node:perf_hooks'
import { quote } from '../config/messages.js'
import { type Cancel, type Clock, createVirtualClock } from '../core/clock.js'
import { createPreciseClock } from '../pacing/precise.js'
import { readMs } from './calls/call-options.js'

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

export function mayEnd(): void {
  waiting -= 1
  if (waiting === 0) keeper!.unref()
}

/** A clock that stands still until a test moves it. */
export interface TestClock extends Clock {
  /**
   * Moves time, and runs what is due on the way in its order. After each step promises go on, so calls may make further calls.
   *
   * @param time `"10s"`, or ms
   */
  advance(time: string | number): Promise<void>
}

/** Fake timers of a test may take its place later. */
const { setImmediate: realSetImmediate } = globalThis

/**
 * Creates a clock for tests: the option `clock` of `createShaper`, `shape` and `LeakyBucket`.
 *
 * @param options `date`: the date at its beginning, for quotas, e.g. `'2026-11-30T23:59:00Z'`. Default: now
 * @throws RangeError if that is no date
 * @example
 * const clock = createTestClock()
 * const shaper = createShaper({ rate: '1/s', clock })
 * await clock.advance('10s')
 */
export function createTestClock({ date = Date.now() }: { readonly date?: string | number | Date } = {}): TestClock {
  const clock = createVirtualClock()
  const start = new Date(date).getTime()
  if (Number.isNaN(start)) throw new RangeError(`date: ${quote(date)} is no date; use e.g. "2026-11-30T23:59:00Z"`)
  const settled = (): Promise<void> => new Promise(resolve => realSetImmediate(resolve))
  return {
    now: clock.now,
    at: clock.at,
    wallNow: () => start + clock.now(),
    async advance(time) {
      const until = clock.now() + readMs('time', time)
      if (until === Infinity) throw new RangeError('time: Infinity has no end; use e.g. "10s", or a number of ms')
      await settled()
      for (let next = clock.next(); next <= until; next = clock.next()) {
        clock.runUntil(next)
        await settled()
      }
      clock.runUntil(until)
    },
  }
}
