/**
 * One bucket for each client, with the same limits for all.
 *
 * It queues nothing, and is exact all the same: a meter admits exactly the requests that a queue admits, and a queued
 * request leaves when the level before it has drained to its slack, (level - slack) / rate later. The core promises both.
 */

import type { BucketLimits } from '../../core/bucket/limits.js'
import { Meter } from '../../core/bucket/meter.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import { slackOf } from '../../decider/costs.js'
import { type ReplayRun, RunTally } from './run-tally.js'

export class MeterRun implements ReplayRun {
  readonly tally = new RunTally()
  readonly #limits: BucketLimits
  readonly #cost: number
  readonly #mode: 'shape' | 'meter'
  readonly #slack: number
  readonly #buckets: Meter[] = []

  /** @param mode `shape`: an admitted request waits for its slot; `meter`: it leaves at once */
  constructor(limits: BucketLimits, cost: number, mode: 'shape' | 'meter') {
    this.#limits = limits
    this.#cost = cost
    this.#mode = mode
    this.#slack = slackOf(limits, cost)
  }

  arrive(at: number, client: number, agent: number): void {
    const { tally } = this
    tally.arrive(at, client, agent)
    this.#buckets[client] ??= new Meter(this.#limits)
    const bucket = this.#buckets[client]!
    if (bucket.excess(this.#cost, at) > 0) return tally.reject(client, agent)
    const wait = (bucket.level(at) - this.#slack) / this.#limits.rate
    bucket.fill(this.#cost, at)
    if (this.#mode === 'shape' && wait > SAME_TIME) tally.delay(at + wait, wait, client, agent)
    else tally.pass(at)
  }

  end(): void {
    this.tally.series.end()
  }
}
