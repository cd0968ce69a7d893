/** Counts the outcomes of requests: in all, by client, by class of user agent, by second. */
import { AGENT_CLASSES, type AgentClass } from '../../http/agent-class.js'
import { Series } from './time-series.js'
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
  requests = 0
  atOnce = 0
  delayed = 0
  rejected = 0
  /** Rejected requests that had been queued first. */
  expired = 0
  readonly waits = new Waits()
  readonly series = new Series()
  readonly #agents = AGENT_CLASSES.map(() => ({ requests: 0, delayed: 0, rejected: 0 }))
  #clients = 0
  #counts = new Uint32Array(COLUMNS << 10)
  #waited = new Float64Array(1 << 10)
  #longest = new Float64Array(1 << 10)

  /** How many clients there are. */
  get clients(): number {
    return this.#clients
  }

  /** Counts an arrival. Its outcome follows now or later. @param at ms */
  arrive(at: number, client: number, agent: number): void {
    if (client >= this.#clients) this.#enter(client)
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

  /** The outcomes by class of user agent. */
  agents(): Readonly<Record<AgentClass, Outcomes>> {
    return Object.fromEntries(AGENT_CLASSES.map((name, at) => [name, { ...this.#agents[at]! }])) as Record<
      AgentClass,
      Outcomes
    >
  }

  outcomes(client: number): ClientOutcomes {
    if (client >= this.#clients) {
      return { client, requests: 0, delayed: 0, rejected: 0, agent: 'empty', meanWait: 0, maxWait: 0 }
    }
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
    for (let at = 0; at < this.#clients; at += 1) {
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
    for (let client = 0; client < this.#clients; client += 1) {
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
    this.#clients = client + 1
    if (this.#clients <= this.#waited.length) return
    const length = Math.max(2 * this.#waited.length, this.#clients)
    const { counts, waited, longest } = { counts: this.#counts, waited: this.#waited, longest: this.#longest }
    this.#counts = new Uint32Array(COLUMNS * length)
    this.#counts.set(counts)
    this.#waited = new Float64Array(length)
    this.#waited.set(waited)
    this.#longest = new Float64Array(length)
    this.#longest.set(longest)
  }
}
