/** A whole configuration: the shaper of the proxy, on a virtual clock that moves to each arrival in turn. */
import { allLimits } from '../../config/report/longest-waits.js'
import { hasSchedule, presentRates, settingsAt } from '../../config/schedule.js'
import type { RouteSettings, Settings } from '../../config/settings.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import { BucketTable } from '../../core/bucket-table.js'
import { createVirtualClock } from '../../core/clock.js'
import { Gate, type LaneRoute, type SharedBucket, type Waiter } from '../../core/queue/lane.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import { type Arrival, type Rejection, Shaper } from '../../core/shaper.js'
import type { RequestKind, RouteDirectory } from '../input/client-directory.js'
import type { LeavingClients } from './leaving-clients.js'
import { patienceOf } from './route-patience.js'
import type { ReplayRun } from './run.js'
import { RunTally } from './run-tally.js'

/** ms */
const MINUTE = 60_000

export interface ShaperRunOptions {
  /** Clients that leave, of whom all are as patient. Undefined: the `patience` of routes counts, and nobody leaves. */
  readonly clients?: LeavingClients
  /** How long answers take, in ms. */
  readonly service?: number
}

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
  /** Undefined: no rate depends on the time. */
  readonly #scheduled: Settings | undefined
  /** ms since 1970 of the beginning of the log. */
  #origin = 0
  /** When the rates are looked up next, in ms of the core. */
  #nextLook = Infinity
  /** The present rates that depend on the time. */
  #rates = ''
  /** The present limits by those of the configuration, where they differ. */
  #present = new Map<BucketLimits, BucketLimits>()

  readonly #clients: LeavingClients | undefined
  readonly #service: number

  constructor(settings: Settings, directory: RouteDirectory, { clients, service = 0 }: ShaperRunOptions = {}) {
    this.#clients = clients
    this.#service = service
    const { limits } = settings
    if (hasSchedule(settings)) this.#scheduled = settings
    this.#directory = directory
    this.#shaper = new Shaper({ clock: this.#clock, maxQueued: limits.maxQueued })
    this.#bucketTable = new BucketTable(limits.maxKeys)
  }

  begin(origin: number): void {
    this.#origin = origin
  }

  arrive(at: number, id: number, agent: number): void {
    const now = this.#moveTo(at)
    const start = this.#start
    const kind = this.#directory.kinds[id]!
    const { rule, keys, client } = kind
    const { tally } = this
    tally.arrive(at, client, agent)
    if (rule?.settings.mode === 'off') {
      this.#clients?.turn(0)
      return tally.pass(at)
    }
    const arrival = rule !== undefined && keys !== undefined ? this.#arrival(kind, now) : undefined
    if (rule === undefined || arrival === undefined) {
      this.notByBuckets += 1
      return tally.reject(client, agent)
    }
    const { patience = Infinity } = arrival
    const waiter: Waiter = {
      deadline: now + patience,
      release: slot => {
        this.#clients?.turn(slot - now)
        this.#answered(arrival)
        tally.delay(slot + start, slot - now, client, agent)
      },
      expire: expiredAt => {
        if (this.#clients !== undefined && expiredAt - now >= patience - SAME_TIME) return this.#clients.giveUp()
        tally.expired += 1
        tally.reject(client, agent)
      },
      reject: () => tally.reject(client, agent),
    }
    const { mode, maxWait } = rule.settings
    const verdict = mode === 'shape' ? this.#shaper.admit(arrival, waiter, maxWait) : this.#shaper.meter(arrival)
    if (verdict === 'released') {
      this.#clients?.turn(0)
      this.#answered(arrival)
      tally.pass(at)
    } else if ('reason' in verdict) {
      if (verdict.reason === 'crowded') this.notByBuckets += 1
      if (this.#clients !== undefined && isGivenUp(verdict, arrival, maxWait)) this.#clients.giveUp()
      else tally.reject(client, agent)
    } else {
      this.#clients?.wait(verdict, this.#clock, this.#shaper)
    }
  }

  /** @returns the time of the core */
  #moveTo(at: number): number {
    if (Number.isNaN(this.#start)) {
      this.#start = at
      if (this.#scheduled !== undefined) this.#look(0)
    }
    this.#runUntil(at - this.#start)
    return at - this.#start
  }

  /** Lets time pass, with the changes of rates on the way. */
  #runUntil(until: number): void {
    while (this.#nextLook <= until) {
      this.#clock.runUntil(this.#nextLook)
      this.#look(this.#nextLook)
    }
    this.#clock.runUntil(until)
  }

  /** Sets the rates of a moment. They change at whole minutes only. */
  #look(now: number): void {
    const wall = this.#origin + this.#start + now
    this.#nextLook = now + MINUTE - (wall % MINUTE)
    const rates = presentRates(this.#scheduled!, wall)
      .map(({ rate }) => rate)
      .join()
    if (rates === this.#rates) return
    this.#rates = rates
    const configured = this.#scheduled!.buckets
    const present = settingsAt(this.#scheduled!, { wall, now }).buckets
    const known = this.#present
    this.#present = new Map()
    for (const [place, bucket] of configured.entries()) {
      const lists = [allLimits(bucket), allLimits(present[place]!)] as const
      for (const [at, own] of lists[0].entries()) {
        const before = known.get(own) ?? own
        const after = lists[1][at]!
        this.#present.set(own, before.rate === after.rate ? before : after)
      }
      for (const [, instance] of this.#bucketTable.entries(bucket.name)) {
        const own = lists[0].find(({ tier }) => tier === instance.limits.tier)!
        const limits = this.#present.get(own)!
        if (instance.limits !== limits) this.#shaper.control.setLimits(instance, limits)
      }
    }
    const maxWaits = new Map(this.#scheduled!.routes.map(({ name, maxWait }) => [name, maxWait]))
    this.#shaper.control.replan(this.#gates.values(), ({ name }) => maxWaits.get(name)!)
  }

  end(): void {
    while (this.#scheduled !== undefined && this.#shaper.queued > 0) this.#runUntil(this.#nextLook)
    this.#clock.runAll()
    this.tally.series.end()
  }

  /** An answer takes no time: a log does not say how long others would take. */
  #answered({ route, stack }: Arrival): void {
    this.#shaper.leave(route.gate, stack)
  }

  /** The longest predicted wait to which the patience of a route admits, in ms. Undefined: any. */
  #longestWait(route: RouteSettings): number | undefined {
    const patience = patienceOf(route)
    return patience === undefined ? undefined : patience - this.#service
  }

  #arrival({ rule, keys, limits, cost, costs, weight, priority }: RequestKind, now: number): Arrival | undefined {
    const stack: SharedBucket[] = []
    for (const [place, configured] of limits.entries()) {
      const own = this.#present.get(configured) ?? configured
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
    const patience = this.#clients === undefined ? this.#longestWait(rule!.settings) : this.#clients.longestWait
    return { route: lane, stack, cost, costs, weight, priority, patience }
  }
}

/** Its client would have left before the answer. If it may not wait so long for another reason, too, this one counts. */
function isGivenUp({ reason }: Rejection, { patience = Infinity }: Arrival, maxWait: number): boolean {
  return reason === 'max-wait' && patience < Infinity && patience <= maxWait
}
