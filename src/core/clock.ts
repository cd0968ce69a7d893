/** Cancels a planned run. False: it has run, or was cancelled before. */
export type Cancel = () => boolean

/** Where all time in the program comes from. */
export interface Clock {
  /** Monotonic milliseconds, fractional. The origin is arbitrary. */
  now(): number
  /** Runs once, at `due` or later, never before. A `due` in the past runs as soon as possible. */
  at(due: number, run: () => void): Cancel
}

/** A clock that moves only on command, for tests and replay. */
export interface VirtualClock extends Clock {
  /** Moves time to `until`. Runs everything due on the way, in order of its wake-up. */
  runUntil(until: number): void
  /** Runs until nothing is planned. Returns the time of the last wake-up. */
  runAll(): number
}

/**
 * @param options.start the first `now()`, in ms
 * @param options.lateness ms from the due time to the wake-up, 0 or more. Called once for each wake-up.
 */
export function createVirtualClock(options: { start?: number; lateness?: () => number } = {}): VirtualClock {
  const lateness = options.lateness ?? (() => 0)
  const planned = new Set<{ wake: number; run: () => void }>()
  let time = options.start ?? 0

  function runNext(until: number): boolean {
    let next: { wake: number; run: () => void } | undefined
    for (const entry of planned) if (next === undefined || entry.wake < next.wake) next = entry
    if (next === undefined || next.wake > until) return false
    planned.delete(next)
    time = Math.max(time, next.wake)
    next.run()
    return true
  }

  return {
    now: () => time,
    at(due, run) {
      const entry = { wake: Math.max(due, time) + lateness(), run }
      planned.add(entry)
      return () => planned.delete(entry)
    },
    runUntil(until) {
      while (runNext(until));
      time = Math.max(time, until)
    },
    runAll() {
      while (runNext(Infinity));
      return time
    },
  }
}
