/** Counts the outcomes of requests: in all, by client, by class of user agent, by second. */

import { AGENT_CLASSES, type AgentClass } from '../../http/agent-class.js'
import { grown } from '../input/grown.js'
import { Waits } from './wait-quantiles.js'

/** The columns of counts for each client. */
const COUNTS = { delayed: 0, rejected: 1, agents: 2 } as const
const COLUMNS = 2 + AGENT_CLASSES.length
/** The rounding error of a sum of periods, in ms: a slot this close before a second belongs to that second. */
const ROUNDING = 1e-4

export interface Outcomes {
  readonly requests: number
  readonly delayed: number
  readonly rejected: number
}

/** The outcomes of one client; waits in ms. */
export interface ClientOutcomes extends Outcomes {
  readonly client: number
  /** The class of user agent of most of its requests. */
  readonly agent: AgentClass
  readonly meanWait: number
  readonly maxWait: number
}

export class RunTally {
  clients = 0
  requests = 0
  atOnce = 0
  delayed = 0
  rejected = 0
  /** Rejected requests that had been queued first. */
  expired = 0
  readonly waits = new Waits()
  readonly series = new Series()
  readonly #agents = AGENT_CLASSES.map(() => ({ requests: 0, delayed: 0, rejected: 0 }))
  #counts = new Uint32Array(COLUMNS << 10)
  #waited = new Float64Array(1 << 10)
  #longest = new Float64Array(1 << 10)

  /** Counts an arrival. Its outcome follows now or later. @param at ms */
  arrive(at: number, client: number, agent: number): void {
    if (client >= this.clients) this.#enter(client)
    this.requests += 1
    this.#counts[client * COLUMNS + COUNTS.agents + agent]! += 1
    this.#agents[agent]!.requests += 1
    this.series.arrive(Math.floor(at / 1_000))
  }

  /** Counts a request that is released at once. @param at ms */
  pass(at: number): void {
    this.atOnce += 1
    this.series.release(Math.floor(at / 1_000))
  }

  /** It is sent upstream after a wait. @param at when, in ms */
  delay(at: number, wait: number, client: number, agent: number): void {
    this.delayed += 1
    this.#counts[client * COLUMNS + COUNTS.delayed]! += 1
    this.#agents[agent]!.delayed += 1
    this.#waited[client]! += wait
    if (wait > this.#longest[client]!) this.#longest[client] = wait
    this.waits.add(wait)
    this.series.release(Math.floor((at + ROUNDING) / 1_000))
  }

  reject(client: number, agent: number): void {
    this.rejected += 1
    this.#counts[client * COLUMNS + COUNTS.rejected]! += 1
    this.#agents[agent]!.rejected += 1
    this.series.reject()
  }

  agents(): Readonly<Record<AgentClass, Outcomes>> {
    const entries = AGENT_CLASSES.map((name, at) => [name, { ...this.#agents[at]! }] as const)
    return Object.fromEntries(entries) as Record<AgentClass, Outcomes>
  }

  outcomes(client: number): ClientOutcomes {
    if (client >= this.clients)
      return { client, requests: 0, delayed: 0, rejected: 0, agent: 'empty', meanWait: 0, maxWait: 0 }
    const counts = this.#counts.subarray(client * COLUMNS, (client + 1) * COLUMNS)
    const agents = [...counts.subarray(COUNTS.agents)]
    const delayed = counts[COUNTS.delayed]!
    return {
      client,
      requests: agents.reduce((sum, count) => sum + count, 0),
      delayed,
      rejected: counts[COUNTS.rejected]!,
      agent: AGENT_CLASSES[agents.indexOf(Math.max(...agents))]!,
      meanWait: delayed === 0 ? 0 : this.#waited[client]! / delayed,
      maxWait: this.#longest[client]!,
    }
  }

  /** How many clients had requests rejected, and how many had requests delayed. */
  hit(): { rejected: number; delayed: number } {
    let rejected = 0
    let delayed = 0
    for (let at = 0; at < this.clients; at += 1) {
      if (this.#counts[at * COLUMNS + COUNTS.rejected]! > 0) rejected += 1
      if (this.#counts[at * COLUMNS + COUNTS.delayed]! > 0) delayed += 1
    }
    return { rejected, delayed }
  }

  /** The clients hit hardest: by rejections, then by total wait. */
  hardest(most: number): ClientOutcomes[] {
    const worse = (a: number, b: number): number =>
      this.#counts[b * COLUMNS + COUNTS.rejected]! - this.#counts[a * COLUMNS + COUNTS.rejected]! ||
      this.#waited[b]! - this.#waited[a]! ||
      a - b
    let top: number[] = []
    for (let client = 0; client < this.clients; client += 1) {
      const isHit = this.#counts[client * COLUMNS + COUNTS.rejected]! > 0 || this.#waited[client]! > 0
      if (!isHit || (top.length >= most && worse(client, top[most - 1]!) > 0)) continue
      top.push(client)
      if (top.length >= 2 * most || top.length <= most) top = top.sort(worse).slice(0, most)
    }
    return top
      .sort(worse)
      .slice(0, most)
      .map(client => this.outcomes(client))
  }

  #enter(client: number): void {
    this.clients = client + 1
    if (this.clients <= this.#waited.length) return
    const length = Math.max(2 * this.#waited.length, this.clients)
    this.#counts = grown(this.#counts, COLUMNS * length)
    this.#waited = grown(this.#waited, length)
    this.#longest = grown(this.#longest, length)
  }
}

const POINTS = 1_000

/** A busy second, counted from the beginning of the log. */
export interface Peak {
  readonly second: number
  readonly arrivals: number
  readonly releases: number
  readonly rejected: number
}

const NO_PEAK: Peak = { second: 0, arrivals: 0, releases: 0, rejected: 0 }

/** Points of `width` seconds each. The first begins at second `first`. */
export interface SeriesPoints {
  readonly first: number
  readonly width: number
  readonly arrivals: readonly number[]
  readonly releases: readonly number[]
  readonly rejected: readonly number[]
  /** The most in a single second of each point. */
  readonly peakArrivals: readonly number[]
  readonly peakReleases: readonly number[]
}

/** Arrivals, releases and rejections by second, merged into fewer points as the log gets longer. */
class Series {
  busiest = NO_PEAK
  /** The second with the most releases. */
  fullest = NO_PEAK
  #first = Number.NaN
  #now = -Infinity
  #arrivals = 0
  #releases = 0
  #rejected = 0
  readonly #coming = new Map<number, number>()
  #width = 1
  #points = 0
  readonly #sums = [new Float64Array(POINTS), new Float64Array(POINTS), new Float64Array(POINTS)] as const
  readonly #peaks = [new Float64Array(POINTS), new Float64Array(POINTS)] as const

  /** @param second never before that of the last call */
  arrive(second: number): void {
    if (second !== this.#now) this.#advance(second)
    this.#arrivals += 1
  }

  reject(): void {
    this.#rejected += 1
  }

  /** @param second of the last arrival, or later */
  release(second: number): void {
    if (second === this.#now) this.#releases += 1
    else this.#coming.set(second, (this.#coming.get(second) ?? 0) + 1)
  }

  end(): void {
    if (Number.isNaN(this.#first)) return
    this.#close()
    for (const second of [...this.#coming.keys()].sort((a, b) => a - b)) {
      this.#now = second
      this.#releases = this.#coming.get(second)!
      this.#close()
    }
    this.#coming.clear()
  }

  toPoints(): SeriesPoints {
    const list = (values: Float64Array): number[] => [...values.subarray(0, this.#points)]
    const [arrivals, releases, rejected] = this.#sums
    const [peakArrivals, peakReleases] = this.#peaks
    return {
      ...{ first: Number.isNaN(this.#first) ? 0 : this.#first, width: this.#width },
      ...{ arrivals: list(arrivals), releases: list(releases), rejected: list(rejected) },
      ...{ peakArrivals: list(peakArrivals), peakReleases: list(peakReleases) },
    }
  }

  #advance(second: number): void {
    if (Number.isNaN(this.#first)) this.#first = second
    else this.#close()
    while (this.#coming.size > 0) {
      this.#now += 1
      const releases = this.#coming.get(this.#now)
      if (releases !== undefined) {
        this.#coming.delete(this.#now)
        this.#releases = releases
      }
      if (this.#now >= second) return
      if (releases !== undefined) this.#close()
    }
    this.#now = second
  }

  #close(): void {
    const peak = { second: this.#now, arrivals: this.#arrivals, releases: this.#releases, rejected: this.#rejected }
    if (peak.arrivals > this.busiest.arrivals) this.busiest = peak
    if (peak.releases > this.fullest.releases) this.fullest = peak
    while ((this.#now - this.#first) / this.#width >= POINTS) this.#fold()
    const at = Math.floor((this.#now - this.#first) / this.#width)
    this.#points = Math.max(this.#points, at + 1)
    this.#sums[0][at]! += peak.arrivals
    this.#sums[1][at]! += peak.releases
    this.#sums[2][at]! += peak.rejected
    this.#peaks[0][at] = Math.max(this.#peaks[0][at]!, peak.arrivals)
    this.#peaks[1][at] = Math.max(this.#peaks[1][at]!, peak.releases)
    this.#arrivals = 0
    this.#releases = 0
    this.#rejected = 0
  }

  /** Merges each two points into one. */
  #fold(): void {
    this.#width *= 2
    this.#points = Math.ceil(this.#points / 2)
    const halve = (values: Float64Array, join: (a: number, b: number) => number): void => {
      for (let at = 0; at < POINTS / 2; at += 1) values[at] = join(values[2 * at]!, values[2 * at + 1]!)
      values.fill(0, POINTS / 2)
    }
    for (const sums of this.#sums) halve(sums, (a, b) => a + b)
    for (const peaks of this.#peaks) halve(peaks, Math.max)
  }
}

/** Limits that requests are put through, in the order of arrival. */
export interface ReplayRun {
  /** Called before the first arrival. @param origin ms since 1970 of the beginning of the log */
  begin?(origin: number): void
  /**
   * @param at ms since the beginning of the log
   * @param id the number that the directory gives to the line
   * @param agent index in AGENT_CLASSES
   */
  arrive(at: number, id: number, agent: number): void
  end(): void
  readonly tally: RunTally
}
