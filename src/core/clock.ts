/** Cancels a planned run. False: it has run, or was cancelled before. */
export type Cancel = () => boolean

/** Where all time in the program comes from. */
export interface Clock {
  /** Monotonic milliseconds, fractional. The origin is arbitrary. */
  now(): number
  /** Runs once, at `due` or later, never before. A `due` in the past runs as soon as possible. */
  at(due: number, run: () => void): Cancel
  /** ms since 1970, for what goes by the calendar. Absent: the time of the system. */
  wallNow?(): number
}

/** A clock that moves only on command, for tests and replay. */
export interface VirtualClock extends Clock {
  /** The time of the next wake-up. Infinity: nothing is planned. */
  next(): number
  /** Moves time to `until`. Runs everything due on the way, in order of its wake-up. */
  runUntil(until: number): void
  /** Runs until nothing is planned. Returns the time of the last wake-up. */
  runAll(): number
}

/** @param options.lateness ms from the due time to the wake-up, called once for each. */
export function createVirtualClock(options: { start?: number; lateness?: () => number } = {}): VirtualClock {
  const lateness = options.lateness ?? (() => 0)
  /** Few, in the order in which they came. */
  const planned: Planned[] = []
  let time = options.start ?? 0

  function remove(entry: Planned): boolean {
    const place = planned.indexOf(entry)
    if (place < 0) return false
    for (let at = place + 1; at < planned.length; at += 1) planned[at - 1] = planned[at]!
    planned.pop()
    return true
  }

  function runNext(until: number): boolean {
    let next = planned[0]
    for (let at = 1; at < planned.length; at += 1) if (planned[at]!.wake < next!.wake) next = planned[at]
    if (next === undefined || next.wake > until) return false
    remove(next)
    time = Math.max(time, next.wake)
    next.run()
    return true
  }

  return {
    now: () => time,
    at(due, run) {
      const entry = { wake: Math.max(due, time) + lateness(), run }
      planned.push(entry)
      return () => remove(entry)
    },
    next: () => Math.min(...planned.map(({ wake }) => wake)),
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

interface Planned {
  readonly wake: number
  readonly run: () => void
}
