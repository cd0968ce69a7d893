import { performance } from 'node:perf_hooks'
import type { Clock } from '../core/clock.js'

/** The longest delay that Node's timers take, in ms. */
const LONGEST = 2 ** 31 - 1

/** A clock on Node's timers: up to about 2 ms late, and free while it waits. */
export function createTimerClock(): Clock {
  return {
    now: () => performance.now(),
    at(due, run) {
      let timer: NodeJS.Timeout | undefined
      const wake = (): void => {
        const left = due - performance.now()
        if (left > 0) {
          // Node truncates delays to whole ms, so it may wake early.
          timer = setTimeout(wake, Math.min(Math.ceil(left), LONGEST))
          return
        }
        timer = undefined
        run()
      }
      timer = setTimeout(wake, Math.min(Math.max(0, Math.ceil(due - performance.now())), LONGEST))
      return () => {
        if (timer === undefined) return false
        clearTimeout(timer)
        timer = undefined
        return true
      }
    },
  }
}
