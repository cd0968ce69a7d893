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
  /** The most requests of one client in one second. */
  #most = 1
  #second = -Infinity
  readonly #counts = new Map<number, number>()

  constructor({ sweep = {}, target }: Pick<Plan, 'sweep' | 'target'>, request: Request) {
    const { rates, capacities } = sweep
    this.#request = sweep
    this.grid = rates !== undefined && capacities !== undefined ? { rates, capacities } : undefined
    this.swept = this.grid && new SweepRun(pointsOf(this.grid), request)
    // A target is sought after the sweep, with the same requests.
    this.#records = target !== undefined || this.grid === undefined
  }

  arrive(at: number, client: number): void {
    if (this.#records) this.recording.arrive(at, client)
    if (this.swept !== undefined) return this.swept.arrive(at, client)
    const second = Math.floor(at / 1_000)
    if (second !== this.#second) this.#counts.clear()
    this.#second = second
    const count = (this.#counts.get(client) ?? 0) + 1
    this.#counts.set(client, count)
    if (count > this.#most) this.#most = count
  }

  /** A grid for the traffic, within the axes that are given. */
  get gridFromTraffic(): Grid {
    return { ...gridForPeak(this.#most), ...this.#request }
  }
}
