/** What the page has seen of each bucket, bounded. Rates are differences of samples; motion comes from event times. */

/** How long samples are kept, in ms. */
export const SPAN = 60_000
/** The most events of one kind to keep. */
const MOST_EVENTS = 4_096
/** A release this soon after an arrival, in ms, found the bucket idle if its slot was free. */
const AT_ONCE = 20
/** The longest time from an arrival to its rejection, in ms: a shared store may have to be asked. */
const ASKING = 250
/** `admitted`: arrivals that were not rejected; `asked`: all arrivals, as { time, isTurned }. */
const NONE = { arrivals: [], admitted: [], asked: [], releases: [], rejections: [] }

/** Estimates the server's time: the fastest of the last snapshots gives the offset between the clocks. */
export class ServerClock {
  #offsets = []

  sync(at) {
    this.#offsets.push(performance.now() - at)
    if (this.#offsets.length > 40) this.#offsets.shift()
  }

  reset() {
    this.#offsets = []
  }

  now() {
    return performance.now() - Math.min(...this.#offsets)
  }
}

export class History {
  /** Cumulative figures: { at, offered, released, rejected }. */
  samples = []
  /** Times of the instance in focus, in ms since 1970, oldest first. */
  events = { ...NONE }
  levels = []
  focus = undefined
  /** What the server has counted over the same time, for a page that has not seen as much of it. Undefined: it does not tell. */
  perSecond = undefined

  add(at, bucket) {
    const last = this.samples.at(-1)
    // The server has restarted.
    if (last !== undefined && (at < last.at || bucket.offered < last.offered)) this.#forget()
    this.samples.push({ at, offered: bucket.offered, released: bucket.released, rejected: bucket.rejected })
    this.perSecond = bucket.perSecond
    // One sample before the span is kept to interpolate from.
    while (this.samples.length > 2 && this.samples[1].at < at - SPAN - 3_000) this.samples.shift()

    const key = bucket.focus?.key ?? bucket.fullest[0]?.key
    const instance = bucket.fullest.find(each => each.key === key)
    const isOther = key !== this.focus?.key
    if (isOther) {
      this.levels = []
      this.events = { ...NONE }
    }
    const { rate, capacity, burst, tier } = instance ?? (isOther ? undefined : this.focus) ?? bucket
    const { level = 0, waiting = 0, oldestMs, blockedMs, overriddenUntil } = instance ?? {}
    const state = { rate, capacity, burst, tier, level, waiting, oldestMs, blockedMs, overriddenUntil }
    this.focus = key === undefined ? undefined : { key, ...state }
    this.levels.push({ at, level })
    while (this.levels[0].at < at - 5_000) this.levels.shift()
    for (const kind of ['arrivals', 'releases', 'rejections'])
      this.events[kind] = merged(this.events[kind], bucket.focus?.[kind] ?? [], at - SPAN)
    this.events.admitted = admitted(this.events)
    this.events.asked = asked(this.events)
  }

  /** Units per second of a cumulative figure over the last `ms`. */
  rate(figure, ms) {
    const last = this.samples.at(-1)
    const hasSeen = this.samples[0].at <= last.at - ms
    if (!hasSeen && this.perSecond !== undefined) return this.perSecond[figure]
    const from = Math.max(last.at - ms, this.samples[0].at)
    if (from === last.at) return 0
    return ((last[figure] - this.#at(figure, from)) / (last.at - from)) * 1_000
  }

  bins(now) {
    const bins = []
    const first = this.samples[0].at
    const whole = Math.floor(Math.min(now, this.samples.at(-1).at) / 1_000) * 1_000
    for (let end = whole; end > now - SPAN && end - 1_000 >= first; end -= 1_000) {
      const between = figure => this.#at(figure, end) - this.#at(figure, end - 1_000)
      // A release near the border of two seconds falls in either by chance. The mean of two seconds halves that noise.
      const smooth =
        end - 2_000 >= first ? (this.#at('released', end) - this.#at('released', end - 2_000)) / 2 : undefined
      bins.unshift({
        end,
        offered: between('offered'),
        released: smooth ?? between('released'),
        rejected: between('rejected'),
      })
    }
    return bins
  }

  levelAt(at) {
    return interpolated(this.levels, 'level', at)
  }

  /** A copy that later samples do not change. */
  still() {
    const { samples, levels, events, focus, perSecond } = this
    const copies = { samples: [...samples], levels: [...levels], events: { ...events } }
    return Object.assign(new History(), { ...copies, focus, perSecond })
  }

  eventRate(kind, ms) {
    const until = this.samples.at(-1).at
    // The server tells earlier events, too.
    const since = Math.min(this.samples[0].at, ...this.events.arrivals.slice(0, 1))
    const seen = Math.min(ms, Math.max(1_000, until - since))
    return (this.events[kind].filter(time => time > until - seen).length / seen) * 1_000
  }

  #at(figure, at) {
    return interpolated(this.samples, figure, at)
  }

  #forget() {
    this.samples = []
    this.levels = []
    this.events = { ...NONE }
  }
}

/** Arrivals without the rejected ones. The latest arrival before a rejection is taken for the rejected one. */
function admitted({ arrivals, rejections }) {
  const turned = new Set()
  let next = 0
  const waiting = []
  for (const rejection of rejections) {
    while (next < arrivals.length && arrivals[next] <= rejection) waiting.push(next++)
    const latest = waiting.pop()
    if (latest !== undefined && rejection - arrivals[latest] <= ASKING) turned.add(latest)
  }
  return arrivals.filter((_, index) => !turned.has(index))
}

function asked({ admitted, rejections }) {
  const as = isTurned => time => ({ time, isTurned })
  return [...admitted.map(as(false)), ...rejections.map(as(true))].sort((a, b) => a.time - b.time)
}

/** Appends the latest window of events to the older ones. */
function merged(known, latest, since) {
  const before = latest.length === 0 ? known : known.filter(time => time < latest[0])
  const all = [...before, ...latest]
  let from = Math.max(0, all.length - MOST_EVENTS)
  while (from < all.length && all[from] < since) from++
  return from === 0 ? all : all.slice(from)
}

function interpolated(samples, figure, at) {
  let after = samples.length - 1
  if (after < 0) return 0
  if (at >= samples[after].at) return samples[after][figure]
  while (after > 0 && samples[after - 1].at > at) after--
  if (after === 0) return samples[0][figure]
  const [a, b] = [samples[after - 1], samples[after]]
  return a[figure] + ((b[figure] - a[figure]) * (at - a.at)) / (b.at - a.at)
}

/**
 * The gaps between releases in ms, as { count, p50, p99 }, while requests waited. A request that arrives at an idle
 * bucket leaves at once: the gap before it is idle time, not unevenness, and is left out.
 */
export function gaps({ arrivals, releases }, perSecond) {
  const period = 1_000 / perSecond
  const found = []
  let next = 0
  for (let i = 1; i < releases.length; i++) {
    const [before, time] = [releases[i - 1], releases[i]]
    const idleSince = Math.max(time - AT_ONCE, before + period)
    while (next < arrivals.length && arrivals[next] < idleSince) next++
    const wasIdle = arrivals[next] <= time
    const isUnknown = arrivals.length === 0 || time < arrivals[0]
    if (wasIdle || (isUnknown && time - before > 1.5 * period)) continue
    found.push(time - before)
  }
  found.sort((a, b) => a - b)
  const quantile = share => found[Math.min(found.length - 1, Math.floor(found.length * share))] ?? 0
  return { count: found.length, p50: quantile(0.5), p99: quantile(0.99) }
}
