/** Cancels what was planned. False: too late, it has run or was cancelled before. */
export type Cancel = () => boolean

/** Where all time in the program comes from. */
export interface Clock {
  /** Monotonic milliseconds, fractional; the origin is arbitrary. */
  now(): number
  /** Runs once at `due` (in the terms of `now`) or later, never before; a `due` in the past runs as soon as possible. */
  at(due: number, run: () => void): Cancel
}

/** A clock that only moves when told to, for tests and replay. */
export interface VirtualClock extends Clock {
  /** Moves time to `until`, running everything due on the way in order of its wake-up. */
  runUntil(until: number): void
  /** Runs until nothing is planned; returns the time of the last wake-up. */
  runAll(): number
}

/**
 * @param options.start the first `now()`, in ms
 * @param options.lateness how many ms after its due time a wake-up comes (0 or more); asked once per wake-up
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
