/** What a sweep does in the first reading of the logs: it sweeps if its grid is given, else it collects what it needs. */

import { Recording } from '../input/recording.js'
import type { Request } from '../runs/level-rows.js'
import { SweepRun } from '../runs/sweep-run.js'
import type { Plan } from './plan.js'
import { type Grid, type GridRequest, gridForPeak, pointsOf } from './sweep-grid.js'

export class Trial {
  readonly recording = new Recording()
  /** Undefined: the grid follows the traffic. */
  readonly grid: Grid | undefined
  readonly swept: SweepRun | undefined
  readonly #request: GridRequest
  readonly #records: boolean
  readonly #peak = new ClientPeak()

  constructor({ sweep = {}, target, limits }: Pick<Plan, 'sweep' | 'target' | 'limits'>, request: Request) {
    const { rates, capacities } = sweep
    this.#request = sweep
    this.grid = rates !== undefined && capacities !== undefined ? { rates, capacities } : undefined
    this.swept = this.grid && new SweepRun(pointsOf(this.grid), request)
    // A target is sought after the sweep, and what it finds is replayed, with the same requests.
    this.#records = target !== undefined || limits.sought === true || this.grid === undefined
  }

  arrive(at: number, client: number, agent: number): void {
    if (this.#records) this.recording.arrive(at, client, agent)
    if (this.swept !== undefined) return this.swept.arrive(at, client)
    this.#peak.arrive(at, client)
  }

  /** A grid for the traffic, within the axes that are given. */
  get gridFromTraffic(): Grid {
    return { ...gridForPeak(this.#peak.most), ...this.#request }
  }
}

/** The most requests of one client within a second, wherever that begins: a burst may lie across the end of one of the clock's. */
class ClientPeak {
  most = 1
  /** How many requests of each client are in the second that ends now. */
  readonly #counts = new Map<number, number>()
  /** Those requests, from place `first` on. */
  #times: number[] = []
  #clients: number[] = []
  #first = 0

  arrive(at: number, client: number): void {
    while (this.#first < this.#times.length && this.#times[this.#first]! <= at - 1_000) this.#leave()
    this.#times.push(at)
    this.#clients.push(client)
    const count = (this.#counts.get(client) ?? 0) + 1
    this.#counts.set(client, count)
    if (count > this.most) this.most = count
  }

  #leave(): void {
    const client = this.#clients[this.#first]!
    const count = this.#counts.get(client)! - 1
    if (count === 0) this.#counts.delete(client)
    else this.#counts.set(client, count)
    this.#first += 1
    // Half of the lists at least is to be dropped, so each entry is copied once on average.
    if (this.#first < 1_024 || this.#first < this.#times.length / 2) return
    this.#times = this.#times.slice(this.#first)
    this.#clients = this.#clients.slice(this.#first)
    this.#first = 0
  }
}
