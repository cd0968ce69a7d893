/** What is made of what was seen. Times are in ms, rates in requests per ms. */

/** Something that happened to the request of this path. */
export interface Seen {
  readonly at: number
  readonly path: string
}

/** When a process stood still, and for how many ms of that time it had the processor. */
export interface Pause {
  readonly from: number
  readonly to: number
  readonly cpu: number
}

export interface Worst {
  /** By how many requests it is above what is allowed; not above 0: the bound holds. */
  readonly excess: number
  readonly from: number
  readonly to: number
}

/** A window may have rate * (its length + the longer of a period and this, in ms), and so many more. */
const SLACK = { time: 10, count: 4 }

/** The window with the most above its bound. */
export function worstWindow(seen: readonly Seen[], rate: number): Worst {
  const times = seen.map(({ at }) => at).sort((one, other) => one - other)
  const allowed = rate * Math.max(1 / rate, SLACK.time) + SLACK.count
  let worst: Worst = { excess: -Infinity, from: 0, to: 0 }
  let start = { ahead: Infinity, at: 0 }
  for (const [count, at] of times.entries()) {
    const ahead = count - rate * at
    if (ahead < start.ahead) start = { ahead, at }
    const excess = ahead - start.ahead + 1 - allowed
    if (excess > worst.excess) worst = { excess, from: start.at, to: at }
  }
  return worst
}

/** Requests per second, from the first to the last that happened in between. */
export function rateOf(seen: readonly Seen[], from: number, to: number): number {
  const times = seen.map(({ at }) => at).filter(at => at >= from && at <= to)
  return ((times.length - 1) / (Math.max(...times) - Math.min(...times))) * 1_000
}

/** Pauses in which a process wanted to run and could not, longer than this, are the machine's. */
const MACHINE = { ms: 5, share: 0.7 }

export function machinePauses(pauses: readonly Pause[]): Pause[] {
  return pauses.filter(({ from, to, cpu }) => to - from > MACHINE.ms && cpu < MACHINE.share * (to - from))
}

/** The longest pause that touches a window, in ms; one before its begin has made late what is in it. */
export function longestPause(pauses: readonly Pause[], { from, to }: Worst): number {
  const touching = pauses.filter(pause => pause.from <= to && pause.to >= from - SLACK.time)
  return Math.max(0, ...touching.map(pause => pause.to - pause.from))
}

/** Which part of a span processes stood still, on average over so many of them. */
export function stoodStill(pauses: readonly Pause[], from: number, to: number, processes: number): number {
  const overlap = pauses.map(pause => Math.max(0, Math.min(to, pause.to) - Math.max(from, pause.from)))
  return overlap.reduce((sum, ms) => sum + ms, 0) / processes / (to - from)
}

/** A span of so many ms is quiet while processes stand still for less than this part of it. */
const QUIET = { span: 500, stood: 0.03 }

/** How many quiet spans there are, and what is seen in them. */
export function quietly(seen: readonly Seen[], from: number, to: number, stood: (from: number, to: number) => number) {
  const quiet = { spans: 0, ms: 0, count: 0 }
  for (let begin = from; begin + QUIET.span <= to; begin += QUIET.span) {
    const end = begin + QUIET.span
    if (stood(begin, end) >= QUIET.stood) continue
    quiet.spans += 1
    quiet.ms += QUIET.span
    quiet.count += seen.filter(({ at }) => at >= begin && at < end).length
  }
  return quiet
}

/** How often a request was sent before one of the same client that this instance had read before it. */
export function overtakings(read: readonly Seen[], sent: readonly Seen[], laneOf: (path: string) => string): number {
  const order = new Map(read.map(({ path }, place) => [path, place]))
  const last = new Map<string, number>()
  let count = 0
  for (const { path } of sent) {
    const lane = laneOf(path)
    const place = order.get(path) ?? -1
    if (place < (last.get(lane) ?? -1)) count += 1
    else last.set(lane, place)
  }
  return count
}
