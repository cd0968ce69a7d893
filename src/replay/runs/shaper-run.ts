/** A whole configuration: the shaper of the proxy, on a virtual clock that moves to each arrival in turn. */
import type { Settings } from '../../config/settings.js'
import { BucketTable } from '../../core/bucket-table.js'
import { createVirtualClock } from '../../core/clock.js'
import { Gate, type LaneRoute, type SharedBucket, type Waiter } from '../../core/queue/lane.js'
import { type Arrival, Shaper } from '../../core/shaper.js'
import type { RequestKind, RouteDirectory } from '../input/client-directory.js'
import type { ReplayRun } from './run.js'
import { RunTally } from './run-tally.js'

export class ShaperRun implements ReplayRun {
  readonly tally = new RunTally()
  /** Rejected requests without a route or a required key, or without room for another key or in the queue. */
  notByBuckets = 0
  readonly #directory: RouteDirectory
  readonly #clock = createVirtualClock()
  readonly #shaper: Shaper
  readonly #bucketTable: BucketTable
  readonly #gates = new Map<string, Gate>()
  readonly #lanes = new Map<string, LaneRoute>()
  /** The time of the first request, which is 0 for the core. */
  #start = Number.NaN

  constructor({ limits }: Settings, directory: RouteDirectory) {
    this.#directory = directory
    this.#shaper = new Shaper({ clock: this.#clock, maxQueued: limits.maxQueued })
    this.#bucketTable = new BucketTable(limits.maxKeys)
  }

  arrive(at: number, id: number, agent: number): void {
    if (Number.isNaN(this.#start)) this.#start = at
    const start = this.#start
    const now = at - start
    this.#clock.runUntil(now)
    const kind = this.#directory.kinds[id]!
    const { rule, keys, client } = kind
    const { tally } = this
    tally.arrive(at, client, agent)
    if (rule?.settings.mode === 'off') return tally.pass(at)
    const arrival = rule !== undefined && keys !== undefined ? this.#arrival(kind, now) : undefined
    if (rule === undefined || arrival === undefined) {
      this.notByBuckets += 1
      return tally.reject(client, agent)
    }
    const waiter: Waiter = {
      release: slot => {
        this.#answered(arrival)
        tally.delay(slot + start, slot - now, client, agent)
      },
      expire: () => {
        tally.expired += 1
        tally.reject(client, agent)
      },
      reject: () => tally.reject(client, agent),
    }
    const { mode, maxWait } = rule.settings
    const verdict = mode === 'shape' ? this.#shaper.admit(arrival, waiter, maxWait) : this.#shaper.meter(arrival)
    if (verdict === 'released') {
      this.#answered(arrival)
      tally.pass(at)
    } else if ('reason' in verdict) {
      if (verdict.reason === 'crowded') this.notByBuckets += 1
      tally.reject(client, agent)
    }
  }

  end(): void {
    this.#clock.runAll()
    this.tally.series.end()
  }

  /** An answer takes no time: a log does not say how long others would take. */
  #answered({ route, stack }: Arrival): void {
    this.#shaper.leave(route.gate, stack)
  }

  #arrival({ rule, keys, limits, cost, weight }: RequestKind, now: number): Arrival | undefined {
    const stack: SharedBucket[] = []
    for (const [place, own] of limits.entries()) {
      const bucket = this.#bucketTable.find(own, keys![place]!, now, stack)
      if (bucket === undefined) return undefined
      if (bucket.limits !== own) this.#shaper.control.setLimits(bucket, own)
      stack.push(bucket)
    }
    const { name, upstream } = rule!.settings
    let lane = this.#lanes.get(name)
    if (lane === undefined) {
      const gate = this.#gates.get(upstream.url) ?? new Gate()
      this.#gates.set(upstream.url, gate)
      lane = { name, gate }
      this.#lanes.set(name, lane)
    }
    return { route: lane, stack, cost, weight }
  }
}
