/** A whole configuration: the shaper of the proxy, on a virtual clock that moves to each arrival in turn. */

import { allLimits } from '../../config/report/longest-waits.js'
import { hasSchedule, MINUTE, periodEnds, presentRates, settingsAt } from '../../config/schedule.js'
import type { RouteSettings, Settings } from '../../config/settings.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import { pacedLimits } from '../../core/bucket/pace.js'
import { BucketTable } from '../../core/bucket-table.js'
import { type Clock, createVirtualClock } from '../../core/clock.js'
import { Gate, type LaneRoute, type SharedBucket, type Ticket, type Waiter } from '../../core/queue/lane.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import { type Arrival, type Rejection, Shaper } from '../../core/shaper.js'
import { keptIn } from '../../core/structures/maps.js'
import type { RequestKind, RouteDirectory } from '../input/client-directory.js'
import { patienceOf } from './route-patience.js'
import { type ReplayRun, RunTally } from './run-tally.js'

/** Stored requests of a lane that wait in its queue, as in deliver/worker.ts. */
const QUEUED = 2
/** ms until a stored request that found no room tries again, if no other time is known. */
const AGAIN = 1_000

interface LoggedRequest {
  /** ms, as `arrive` is told it. */
  readonly at: number
  readonly kind: RequestKind
  readonly agent: number
}

/** Requests with the same keys that were accepted, in order. Those before `first` are over. */
interface StoredLane {
  waiting: LoggedRequest[]
  first: number
  queued: number
}

interface ShaperRunOptions {
  /** Clients that leave, of whom all are as patient. Undefined: the `patience` of routes counts, and nobody leaves. */
  readonly clients?: LeavingClients
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
  #rates = ''
  /** The present limits by those of the configuration, where they differ. */
  #present = new Map<BucketLimits, BucketLimits>()
  readonly #clients: LeavingClients | undefined
  readonly #service: number
  readonly #stored = new Map<string, StoredLane>()

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
    const kind = this.#directory.kinds[id]!
    const { rule, keys, client } = kind
    const { tally } = this
    tally.arrive(at, client, agent)
    if (rule?.settings.mode === 'off') {
      this.#clients?.turn(0)
      return tally.pass(at)
    }
    if (kind.isStored === true && keys !== undefined) return this.#store({ at, kind, agent })
    const arrival = rule !== undefined && keys !== undefined ? this.#arrival(kind, now) : undefined
    if (rule !== undefined && arrival !== undefined) return this.#ask(arrival, rule.settings, { at, kind, agent })
    this.notByBuckets += 1
    tally.reject(client, agent)
  }

  #ask(arrival: Arrival, { mode, maxWait }: RouteSettings, { at, kind: { client }, agent }: LoggedRequest): void {
    const { tally } = this
    const start = this.#start
    const now = this.#clock.now()
    const { patience = Infinity } = arrival
    // An answer takes no time: a log does not say how long others would take.
    const leave = (): void => this.#shaper.leave(arrival.route.gate, arrival.stack)
    const waiter: Waiter = {
      deadline: now + patience,
      release: slot => {
        this.#clients?.turn(slot - now)
        leave()
        tally.delay(slot + start, slot - now, client, agent)
      },
      expire: expiredAt => {
        if (this.#clients !== undefined && expiredAt - now >= patience - SAME_TIME) return this.#clients.giveUp()
        tally.expired += 1
        tally.reject(client, agent)
      },
      reject: () => tally.reject(client, agent),
    }
    const verdict = mode === 'shape' ? this.#shaper.admit(arrival, waiter, maxWait) : this.#shaper.meter(arrival)
    if (verdict === 'released') {
      this.#clients?.turn(0)
      leave()
      tally.pass(at)
    } else if ('reason' in verdict) {
      if (verdict.reason === 'crowded') this.notByBuckets += 1
      if (this.#clients !== undefined && isGivenUp(verdict, arrival, maxWait)) this.#clients.giveUp()
      else tally.reject(client, agent)
    } else {
      this.#clients?.wait(verdict, this.#clock, this.#shaper)
    }
  }

  #store(request: LoggedRequest): void {
    const { rule, keys } = request.kind
    const key = JSON.stringify([rule!.name, ...keys!])
    const lane = keptIn(this.#stored, key, () => ({ waiting: [], first: 0, queued: 0 }))
    lane.waiting.push(request)
    this.#send(lane)
  }

  /** The next ones of a lane enter their buckets. Nobody waits for the answer, so neither `maxWait` nor patience applies. */
  #send(lane: StoredLane): void {
    while (lane.queued < QUEUED && lane.first < lane.waiting.length) {
      const { at, kind, agent } = lane.waiting[lane.first]!
      const { tally } = this
      const now = this.#clock.now()
      const arrival = this.#arrival(kind, now)
      if (arrival === undefined) return this.#sendLater(lane, now + AGAIN)
      const sent = (slot: number): void => {
        this.#shaper.leave(arrival.route.gate, arrival.stack)
        const wait = slot + this.#start - at
        if (wait > SAME_TIME) tally.delay(at + wait, wait, kind.client, agent)
        else tally.pass(at)
      }
      const waiter: Waiter = {
        deadline: Infinity,
        release: slot => {
          sent(slot)
          lane.queued -= 1
          this.#sendLater(lane, this.#clock.now())
        },
        expire: () => {},
        reject: () => {},
      }
      const verdict = this.#shaper.admit({ ...arrival, patience: Infinity }, waiter, Infinity)
      if (verdict !== 'released' && 'reason' in verdict) {
        const { retryAfterMs = AGAIN } = verdict
        return this.#sendLater(lane, now + Math.max(1, retryAfterMs))
      }
      lane.first += 1
      if (verdict === 'released') sent(now)
      else lane.queued += 1
    }
    if (2 * lane.first < lane.waiting.length) return
    lane.waiting = lane.waiting.slice(lane.first)
    lane.first = 0
  }

  /** Not now: this may be a release. */
  #sendLater(lane: StoredLane, at: number): void {
    this.#clock.at(at, () => this.#send(lane))
  }

  #moveTo(at: number): number {
    if (Number.isNaN(this.#start)) {
      this.#start = at
      if (this.#scheduled !== undefined) this.#look(0)
    }
    this.#runUntil(at - this.#start)
    return at - this.#start
  }

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
    const present = presentRates(this.#scheduled!, wall).map(({ rate }) => rate)
    const rates = [...present, ...periodEnds(this.#scheduled!, wall)].join()
    if (rates === this.#rates) return
    this.#rates = rates
    const configured = this.#scheduled!.buckets
    const buckets = settingsAt(this.#scheduled!, { wall, now }).buckets
    const known = this.#present
    this.#present = new Map()
    for (const [place, bucket] of configured.entries()) {
      const lists = [allLimits(bucket), allLimits(buckets[place]!)] as const
      for (const [at, own] of lists[0].entries()) {
        const before = known.get(own) ?? own
        const after = lists[1][at]!
        const isSame = before.rate === after.rate && before.quota?.end === after.quota?.end
        this.#present.set(own, isSame ? before : after)
      }
      for (const [, instance] of this.#bucketTable.entries(bucket.name)) {
        const { limits: before } = instance
        const own = lists[0].find(each => each === before || known.get(each) === before)
        // Those of a single key follow with its next request.
        const limits = this.#present.get(own!) ?? before
        if (instance.limits !== limits) this.#shaper.engine.setLimits(instance, limits)
      }
    }
    const maxWaits = new Map(this.#scheduled!.routes.map(({ name, maxWait }) => [name, maxWait]))
    this.#shaper.engine.replan(this.#gates.values(), ({ name }) => maxWaits.get(name)!)
  }

  end(): void {
    while (this.#scheduled !== undefined && this.#shaper.queued > 0) this.#runUntil(this.#nextLook)
    this.#clock.runAll()
    this.tally.series.end()
  }

  /** What limits of the configuration are at present, or those of a single key: without a rate of its own it has that of its bucket. */
  #presentOf(configured: BucketLimits): BucketLimits {
    const known = this.#present.get(configured)
    if (known !== undefined || this.#scheduled === undefined) return known ?? configured
    const { limits: common } = this.#scheduled.buckets.find(({ name }) => name === configured.name)!
    const { rate, next, quota } = this.#present.get(common)!
    const { capacity } = configured
    const inherited = configured.rate === common.rate ? { rate, ...(next && { next: { ...next, capacity } }) } : {}
    const present = { ...configured, ...inherited, ...(quota && { quota }) }
    this.#present.set(configured, present)
    return present
  }

  #arrival({ rule, keys, limits, cost, costs, weight, priority }: RequestKind, now: number): Arrival | undefined {
    const stack: SharedBucket[] = []
    for (const [place, configured] of limits.entries()) {
      const known = configured.paces ? this.#bucketTable.peek(configured.name, keys![place]!) : undefined
      const own = configured.paces ? pacedLimits(configured, stack.at(-1)!, known, now) : this.#presentOf(configured)
      const bucket = this.#bucketTable.find(own, keys![place]!, now, stack)
      if (bucket === undefined) return undefined
      if (bucket.limits !== own) this.#shaper.engine.setLimits(bucket, own)
      stack.push(bucket)
    }
    const { name, upstream } = rule!.settings
    const gate = keptIn(this.#gates, upstream.url, () => new Gate())
    const lane = keptIn(this.#lanes, name, () => ({ name, gate }))
    const ofRoute = patienceOf(rule!.settings)
    const longestWait = ofRoute === undefined ? undefined : ofRoute - this.#service
    const patience = this.#clients === undefined ? longestWait : this.#clients.longestWait
    return { route: lane, stack, cost, costs, weight, priority, patience }
  }
}

/** Its client would have left before the answer. If it may not wait so long for another reason, too, this one counts. */
function isGivenUp({ reason }: Rejection, { patience = Infinity }: Arrival, maxWait: number): boolean {
  return reason === 'max-wait' && patience < Infinity && patience <= maxWait
}

/** Times are in ms. */
interface LeavingOptions {
  /** How long a client waits for its answer. */
  readonly patience: number
  /** From the release to the answer. */
  readonly service: number
  /** What is done with requests whose answers would come too late. */
  readonly policy: 'keep' | 'give up'
}

/** Requests by what became of them. */
export interface LeavingCounts {
  inTime: number
  /** Sent, and answered after its client had left. */
  late: number
  /** Its client left while it was queued. */
  left: number
  givenUp: number
}

/**
 * Clients that all wait equally long for their answers and then leave. A log does not say who would have left.
 *
 * One that leaves while its request is queued takes the request with it, as with the proxy. One that leaves after its request
 * was sent is not noticed: the upstream works for nobody. Requests may be given up before that, by the rules of the proxy for a
 * known patience: on arrival if the predicted wait is too long, and while they wait once their answers would come too late.
 */
export class LeavingClients {
  readonly counts: LeavingCounts = { inTime: 0, late: 0, left: 0, givenUp: 0 }
  readonly #options: LeavingOptions
  /** In the order in which their clients leave: all wait equally long. Those before `#first` are over. */
  #waiting: { readonly ticket: Ticket; readonly leavesAt: number }[] = []
  #first = 0
  #planned = false

  constructor(options: LeavingOptions) {
    this.#options = options
  }

  /** The longest predicted wait to which a request is admitted, in ms. Undefined: any. */
  get longestWait(): number | undefined {
    const { patience, service, policy } = this.#options
    return policy === 'give up' ? patience - service : undefined
  }

  /** A request is queued. Its client leaves in time. */
  wait(ticket: Ticket, clock: Clock, shaper: Shaper): void {
    // One that is released in the same moment goes first.
    this.#waiting.push({ ticket, leavesAt: clock.now() + this.#options.patience + SAME_TIME })
    if (!this.#planned) this.#plan(clock, shaper)
  }

  /** A request is not admitted, or waits no longer, because its answer would come too late. */
  giveUp(): void {
    this.counts.givenUp += 1
  }

  /** A request is sent. `waited` in ms. */
  turn(waited: number): void {
    const { patience, service } = this.#options
    this.counts[waited + service > patience + SAME_TIME ? 'late' : 'inTime'] += 1
  }

  #plan(clock: Clock, shaper: Shaper): void {
    const next = this.#waiting[this.#first]
    this.#planned = next !== undefined
    if (next !== undefined) clock.at(next.leavesAt, () => this.#leave(clock, shaper))
  }

  #leave(clock: Clock, shaper: Shaper): void {
    const now = clock.now()
    for (; (this.#waiting[this.#first]?.leavesAt ?? Infinity) <= now; this.#first += 1) {
      if (shaper.cancel(this.#waiting[this.#first]!.ticket)) this.counts.left += 1
    }
    if (2 * this.#first >= this.#waiting.length) {
      this.#waiting = this.#waiting.slice(this.#first)
      this.#first = 0
    }
    this.#plan(clock, shaper)
  }
}
