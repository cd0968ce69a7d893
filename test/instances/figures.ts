/** Figures from recorded events. Times are in ms, rates in requests per ms. */

/** An event of the request with this path. */
export interface Seen {
  readonly at: number
  readonly path: string
}

/** A pause of a process, and the ms of it in which the process had the processor. */
export interface Pause {
  readonly from: number
  readonly to: number
  readonly cpu: number
}

export interface Worst {
  /** The excess over the bound in requests. Not above 0: the bound holds. */
  readonly excess: number
  readonly from: number
  readonly to: number
}

/** A window of length W may have rate * (W + max(period, this)) requests, and this many more; in ms. */
const SLACK = { time: 10, count: 4 }

/** The window with the largest excess. */
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

/** Requests per second, between the first and the last event in a span. */
export function rateOf(seen: readonly Seen[], from: number, to: number): number {
  const times = seen.map(({ at }) => at).filter(at => at >= from && at <= to)
  return ((times.length - 1) / (Math.max(...times) - Math.min(...times))) * 1_000
}

/** A longer pause in which a process wanted to run and could not is the machine's fault, in ms. */
const MACHINE = { ms: 5, share: 0.7 }

export function machinePauses(pauses: readonly Pause[]): Pause[] {
  return pauses.filter(({ from, to, cpu }) => to - from > MACHINE.ms && cpu < MACHINE.share * (to - from))
}

/** The longest pause that touches a window, in ms. A pause just before it delays events in it. */
export function longestPause(pauses: readonly Pause[], { from, to }: Worst): number {
  const touching = pauses.filter(pause => pause.from <= to && pause.to >= from - SLACK.time)
  return Math.max(0, ...touching.map(pause => pause.to - pause.from))
}

/** The share of a span in which processes stood still, as a mean over `count` processes. */
export function stoodStill(pauses: readonly Pause[], from: number, to: number, processes: number): number {
  const overlap = pauses.map(pause => Math.max(0, Math.min(to, pause.to) - Math.max(from, pause.from)))
  return overlap.reduce((sum, ms) => sum + ms, 0) / processes / (to - from)
}

/** A span of this length in ms is quiet if processes stand still for less than this share of it. */
const QUIET = { span: 500, stood: 0.03 }

/**
 * The number of quiet spans, the events in them, and for how long processes stood still in them, in ms. `delayed`: what was due in
 * pauses just before them is seen in them; ms of such pauses.
 */
export function quietly(
  seen: readonly Seen[],
  { from, to }: { readonly from: number; readonly to: number },
  stood: (from: number, to: number) => number,
  pauses: readonly Pause[],
) {
  const quiet = { spans: 0, ms: 0, count: 0, stood: 0, delayed: 0 }
  for (let begin = from; begin + QUIET.span <= to; begin += QUIET.span) {
    const end = begin + QUIET.span
    if (stood(begin, end) >= QUIET.stood) continue
    const before = pauses.filter(pause => pause.from < begin && pause.to > begin - SLACK.time)
    quiet.spans += 1
    quiet.ms += QUIET.span
    quiet.count += seen.filter(({ at }) => at >= begin && at < end).length
    quiet.stood += stood(begin, end) * QUIET.span
    quiet.delayed += Math.max(0, ...before.map(pause => begin - pause.from))
  }
  return quiet
}

/** How often a request was sent before an earlier request of the same client on the same instance. */
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
