/**
 * The leases of one instance (docs/decisions/slot-leases.md): when to report, and what waits. A bucket is leased from the first
 * claim that is refused because of it, or the first overflow, until nothing waits for it any more.
 */

import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { allSources } from '../bucket/waiting.js'
import type { Clock } from '../clock.js'
import type { MaybePromise } from '../maybe-promise.js'
import { type Lane, type SharedBucket, ShareNode, type Source } from '../queue/lane.js'
import { soleLane } from '../queue/ready-lanes.js'
import { sourcesBelow } from '../queue/tree.js'
import {
  type ClassDemand,
  FRAME,
  type LaneArrivals,
  type LeaseAnswer,
  type LeaseRequest,
  type Store,
} from '../store.js'
import { BucketLease, FEW_REPORTS } from './bucket-lease.js'
import { arrivalsOf } from './lane-arrivals.js'
import { MOST_SOURCES, paceOf, soleBeside } from './narrower.js'
import type { StoredBucket } from './stored-bucket.js'

/**
 * ms from a report until slots can be used: this part of the horizon, which is 1.25 round trips, and this reserve. Where slots of other buckets
 * are claimed for them, they have to be known by as much earlier as those are claimed (`claimLead`). A store grants claims in the order of
 * their moments only: the claims of an instance that knows its slots later than others would be refused.
 */
const LEASE_LEAD = { horizon: 0.5, reserve: 5 }

/** ms. A bucket is not leased any more if all that waits leaves in this time. */
const EASY = FRAME / 4

/** ms. So long after all that waits for a bucket was found to wait behind one other bucket, a few claims may be refused before it is leased. */
const SOLE_KNOWN = 10_000

/** The part of a bucket's rate that may be used where its slots are claimed one by one. */
const MOST_FILLED = 0.95

/** What leases need of their claims. */
export interface Lessor {
  /** Cost of the requests that have a slot of a bucket, or ask for one. */
  claimingOf(bucket: SharedBucket): number
  horizonOf(bucket: SharedBucket): number
  /** There are other slots, or none. */
  changed(bucket: StoredBucket, now: number): void
  /** Something may be possible now. */
  wake(): void
  /** The store has not answered a question of this time in ms. */
  failed(bucket: StoredBucket, askedAt: number): void
}

export class Leases {
  readonly #store: Store
  readonly #clock: Clock
  readonly #lessor: Lessor
  readonly #instance = Math.random()
  /** What waits for the answer to a report, by bucket. */
  readonly #reports = new Map<StoredBucket, (() => void)[]>()
  /** How to cancel what is planned. */
  readonly #plans = new Set<() => void>()
  #isClosed = false

  constructor({ store, clock }: { store: Store; clock: Clock }, lessor: Lessor) {
    this.#store = store
    this.#clock = clock
    this.#lessor = lessor
  }

  /** Leases a bucket from now on, for which a request of this cost waits. */
  start(bucket: StoredBucket, cost: number): void {
    if (this.#begin(bucket, cost) !== undefined) this.#report(bucket)
  }

  /**
   * Whether slots of a bucket are claimed one by one, though claims are refused: all that waits for it was found to wait behind one other
   * bucket. Others that come lease it, and then claims are refused because all slots of the next time are dealt out.
   */
  suitsClaims(bucket: StoredBucket): boolean {
    const { sole, soleUntil } = bucket
    return sole !== undefined && this.#clock.now() < soleUntil && soleBeside(bucket) === sole
  }

  /** Leases the room of a bucket from now on as well as its slots. A request of this cost has asked for it. */
  startRoom(bucket: StoredBucket, cost: number): void {
    if (bucket.lease !== undefined) return bucket.lease.openRoom()
    const lease = this.#begin(bucket, cost)
    if (lease === undefined) return
    lease.openRoom()
    // It has asked the store, and goes on asking: without this the lease would end with its first report.
    lease.ask(cost)
    this.#report(bucket)
  }

  /** Undefined: it is leased already, or cannot be. */
  #begin(bucket: StoredBucket, cost: number): BucketLease | undefined {
    const { limits } = bucket
    // A bucket that keeps the distance of late releases moves its slots, so they cannot be dealt out.
    if (limits.grace !== undefined) return undefined
    if (this.#store.lease === undefined || bucket.lease !== undefined || limits.whole !== undefined) return undefined
    const asked = bucket.askers * cost
    const lease = new BucketLease(limits, cost, { asked, debt: bucket.leaseDebtAt(this.#clock.now()) })
    bucket.lease = lease
    bucket.claimableAt = Infinity
    return lease
  }

  /**
   * Asks what waits for a bucket in other instances, if it is not known. A request of this cost is to be decided on. If nothing waits here
   * nothing is leased. `then` is called after the answer.
   */
  look(bucket: StoredBucket, cost: number, then: () => void): void {
    const waiting = this.#reports.get(bucket)
    if (waiting !== undefined) waiting.push(then)
    else if (bucket.lease === undefined && this.#begin(bucket, cost) !== undefined) this.#report(bucket, then)
    else then()
  }

  /** Reports a bucket before its time. */
  renew(bucket: StoredBucket): void {
    if (bucket.lease?.ending === false && !this.#reports.has(bucket)) this.#report(bucket)
  }

  /** A request has come to a bucket. If there is no slot for it though little waits, the bucket is reported at once. */
  arrived(bucket: StoredBucket): void {
    const { lease } = bucket
    if (lease === undefined) return
    const now = this.#clock.now()
    if (lease.isBare(now)) this.renew(bucket)
    else if (this.#store.keepsOrder === true && lease.mayLoseTurn(now)) this.#hasten(bucket, lease, now)
  }

  /** A slot that this instance had was returned. The next report may be as far away as the next slot: it has to ask for this one. */
  slotReturned(bucket: StoredBucket): void {
    const underway = this.#reports.get(bucket)
    if (underway !== undefined) {
      underway.push(() => this.slotReturned(bucket))
      return
    }
    const { lease } = bucket
    const now = this.#clock.now()
    if (lease?.ending === false && lease.nextAt - now > FRAME) this.#hasten(bucket, lease, now)
  }

  #hasten(bucket: StoredBucket, lease: BucketLease, now: number): void {
    lease.nextAt = lease.soonest(now)
    this.#plan(bucket, lease, lease.nextAt)
  }

  /** Asks for more room. `then` is called after the answer. */
  refill(bucket: StoredBucket, then: () => void): void {
    if (bucket.lease?.ending !== false) return then()
    const waiting = this.#reports.get(bucket)
    if (waiting !== undefined) {
      waiting.push(then)
      return
    }
    this.#report(bucket, then)
  }

  #report(bucket: StoredBucket, then?: () => void): void {
    const { lease } = bucket
    if (lease === undefined || this.#isClosed) return then?.()
    const now = this.#clock.now()
    const reach = LEASE_LEAD.horizon * this.#lessor.horizonOf(bucket) + LEASE_LEAD.reserve
    // Both have a reserve for slow answers: one will do.
    const lead = reach + Math.max(0, bucket.claimLead - LEASE_LEAD.reserve)
    const span = lead + 2 * FRAME
    const later = demandOf(bucket, span, now)
    const sole = soleEverywhere(bucket, span)
    if (sole !== undefined) Object.assign(bucket, { sole, soleUntil: now + SOLE_KNOWN })
    const isCalm = lease.isEasy(later, EASY) || sole !== undefined || leavesRoom(bucket, later, span)
    const demand = isCalm ? throughSole(demandOf(bucket, lead + EASY, now), sole, lead + EASY) : later
    const claiming = this.#lessor.claimingOf(bucket)
    const isDone = (demand.length === 0 && !lease.isAsked) || (isCalm && lease.isLeft(reach + 2 * EASY))
    const late = this.#store.latenessOf?.(bucket.ref) ?? 0
    const times = { lead, late, now, waits: bucket.queued, isCalm, arrivals: this.#arrivalsOf(bucket, demand, lead) }
    const report = isDone ? lease.finish(demand, claiming, times) : lease.report(demand, claiming, times)
    const waiting = then === undefined ? [] : [then]
    this.#reports.set(bucket, waiting)
    const ahead = Math.max(0, lease.until - now)
    const request: LeaseRequest = {
      ...{ bucket: bucket.ref, instance: this.#instance, lead, late, ahead },
      pace: lease.usualPace(paceOf(bucket, now)),
      ...report,
    }
    when(
      this.#store.lease!(request),
      answer => {
        this.#reports.delete(bucket)
        bucket.shard.answered(now)
        if (bucket.lease === lease) this.#answered(bucket, lease, answer)
        for (const deal of waiting) deal()
      },
      () => {
        this.#reports.delete(bucket)
        lease.failed(bucket.queued)
        // Then it ends with the next report.
        lease.ending = false
        this.#lessor.failed(bucket, now)
        if (bucket.lease === lease) this.#plan(bucket, lease, this.#clock.now() + FRAME)
        for (const deal of waiting) deal()
      },
      () => this.#lessor.wake(),
    )
    bucket.promising.reported(now)
  }

  /** Undefined: the store does not keep the order. */
  #arrivalsOf(bucket: StoredBucket, demand: readonly WaitingDemand[], lead: number) {
    if (this.#store.keepsOrder !== true) return undefined
    return (of: number, covered: number): LaneArrivals | undefined => {
      const { lane, cost: queued } = demand.find(({ priority }) => priority === of)!
      const span = bucket.limits.rate * (lead + 3 * FRAME)
      return lane && arrivalsOf(lane, { bucket, covered, queued, span })
    }
  }

  #answered(bucket: StoredBucket, lease: BucketLease, answer: LeaseAnswer): void {
    const now = this.#clock.now()
    lease.answered(answer, now)
    bucket.levelReported(answer.level, now)
    const own = lease.available + this.#lessor.claimingOf(bucket)
    const slots = answer.instances === 1 ? 0 : (lease.until - now) * bucket.limits.rate - own
    bucket.othersReported(answer.others, { own, slots: Math.max(0, slots), until: lease.until }, now)
    if (!lease.ending) this.#plan(bucket, lease, lease.nextAt)
    else if (lease.isEmpty) bucket.endLease()
    else this.#at(lease.lastUse, () => this.#end(bucket, lease))
    this.#lessor.changed(bucket, now)
  }

  #end(bucket: StoredBucket, lease: BucketLease): void {
    if (bucket.lease !== lease) return
    bucket.endLease()
    this.#lessor.changed(bucket, this.#clock.now())
    this.#lessor.wake()
  }

  /** Nothing is reported any more. */
  close(): void {
    this.#isClosed = true
    for (const cancel of this.#plans) cancel()
    this.#plans.clear()
  }

  #at(at: number, run: () => void): void {
    if (this.#isClosed) return
    const cancel = this.#clock.at(at, () => {
      this.#plans.delete(cancel)
      run()
    })
    this.#plans.add(cancel)
  }

  #plan(bucket: StoredBucket, lease: BucketLease, at: number): void {
    this.#at(at, () => {
      // It may have been reported meanwhile, which has planned the next one.
      const isDue = bucket.lease === lease && !lease.ending && lease.nextAt <= this.#clock.now()
      if (!isDue || this.#reports.has(bucket)) return
      this.#report(bucket)
      // A store that answers at once has done so.
      this.#lessor.wake()
    })
  }
}

interface WaitingDemand extends ClassDemand {
  /** Where all of it waits. Undefined: in several lanes. */
  readonly lane: Lane | undefined
}

/** What waits for a bucket and may leave in this time, in ms, by class. Behind an upstream that pauses or fails nothing can. */
function demandOf(bucket: SharedBucket, within: number, now: number): WaitingDemand[] {
  const demand = new Map<number, { priority: number; weight: number; cost: number; lane: Lane | undefined }>()
  const sources = allSources(bucket)
  // Sources count what waits by its cost in the last bucket of its stack. That may be nothing.
  const queued = bucket.isMixed ? sources.reduce((sum, source) => sum + source.queued, 0) : bucket.queued
  for (const source of sources) {
    const { priority, gate } = source
    if (source.waiting === 0 || gate.paused || (gate.blocked && !gate.probe)) continue
    const comes = comingFrom(source, within, now)
    const { weight } = comes
    const share = queued <= 0 ? source.waiting / bucket.waiting : comes.cost / queued
    if (weight <= 0) continue
    const cost = share * bucket.queued
    const entry = demand.get(priority)
    if (entry === undefined) demand.set(priority, { priority, weight, cost, lane: soleLane(source) })
    else {
      entry.weight += weight
      entry.cost += cost
      entry.lane = undefined
    }
  }
  return [...demand.values()]
}

/**
 * Whether narrower buckets hold back a part of what waits for a bucket, or would if more waited, and all that they let through in this time, in
 * ms, fits. Then slots are claimed one by one, each for the slot of the narrower bucket. Leased slots of two buckets lie apart, and some of
 * them would pass.
 */
function leavesRoom(bucket: StoredBucket, demand: readonly ClassDemand[], span: number): boolean {
  let own = 0
  for (const { cost } of demand) own += cost
  const isHeldBack = own < bucket.queued - LEVEL_TOLERANCE
  if (!isHeldBack) own = passing(bucket, span)
  if (own === Infinity) return false
  // Of the others only what has no slot is known. They may have as much to come as this one.
  const others = Math.max(bucket.queuedElsewhere, own * (bucket.lease!.instances - 1))
  return own + others <= MOST_FILLED * bucket.limits.rate * span
}

/** The part of a demand that another bucket lets through in this time, in ms. */
function throughSole(
  demand: readonly WaitingDemand[],
  sole: StoredBucket | undefined,
  within: number,
): readonly WaitingDemand[] {
  if (sole === undefined) return demand
  const { leastCost, limits, lease } = sole
  const queued = demand.reduce((sum, { cost }) => sum + cost, 0)
  const part = Math.min(1, ((limits.rate / lease!.instances) * within + leastCost) / queued)
  return demand.map(entry => ({ ...entry, cost: part * entry.cost }))
}

/** As `soleBeside`, for all that waits for a bucket, here and in other instances. */
function soleEverywhere(bucket: StoredBucket, span: number): StoredBucket | undefined {
  const sole = soleBeside(bucket)
  bucket.soleReports = sole === bucket.soleSeen ? bucket.soleReports + 1 : 1
  bucket.soleSeen = sole
  if (bucket.soleReports < FEW_REPORTS) return undefined
  const { instances, isKnown } = bucket.lease!
  if (sole === undefined || !isKnown) return undefined
  // Those that lease this one only have something else.
  if (sole.lease!.instances < instances) return undefined
  const others = instances - 1
  const share = sole.limits.rate / instances
  // What is expected elsewhere has slots as well.
  const slots = Math.min(bucket.slotsElsewhere, others * share * (span - FRAME))
  const most = others * (share * span + 2 * bucket.leastCost)
  return bucket.queuedElsewhere + slots <= most + LEVEL_TOLERANCE ? sole : undefined
}

/**
 * The cost that the buckets before this one let through in this time, in ms, if more waits for them. Infinity: there is none, or one that is not
 * busy itself. Then others like it may have requests next.
 */
function passing(bucket: StoredBucket, within: number): number {
  let cost = 0
  for (const source of allSources(bucket)) {
    if (!(source instanceof ShareNode) || source.count > MOST_SOURCES) return Infinity
    for (const below of sourcesBelow(source)) {
      if ((below.bucket as StoredBucket | undefined)?.lease === undefined) return Infinity
      cost += passesOf(below, within)
    }
  }
  return cost > 0 ? cost : Infinity
}

/** The cost that the bucket of a source lets through in this time, in ms. */
function passesOf({ bucket, queued, waiting }: Source, within: number): number {
  const { lease, limits } = (bucket ?? {}) as Partial<StoredBucket>
  const { rate, burst = 0 } = limits ?? UNLIMITED
  return (rate / (lease?.instances ?? 1)) * within + Math.max(burst, waiting > 0 ? queued / waiting : 0)
}

/** What comes from a source in some time, and the weight of the lanes that it comes from. */
interface Coming {
  readonly cost: number
  readonly weight: number
}

/**
 * What comes from a source in this time, in ms: the buckets before it let no more through. Lanes whose own bucket is not free by then
 * do not count: their turns would go to the others of their instance.
 */
function comingFrom(source: Source, within: number, now: number): Coming {
  if (!(source instanceof ShareNode) || source.count > MOST_SOURCES)
    return { cost: source.queued, weight: source.weight }
  let cost = 0
  let weight = 0
  for (const below of sourcesBelow(source)) {
    const bucket = below.bucket as StoredBucket | undefined
    if (below.waiting === 0 || (bucket !== undefined && freeAt(bucket, now) > now + within)) continue
    const comes = comingFrom(below, within, now)
    cost += Math.min(passesOf(below, within), comes.cost)
    weight += comes.weight
  }
  return { cost, weight }
}

/** When a bucket may let a request pass, in ms. A leased one without slots gets the next ones behind all that are leased. */
function freeAt(bucket: StoredBucket, now: number): number {
  const { lease } = bucket
  if (lease === undefined) return bucket.freeAt
  return lease.isEmpty && lease.until > -Infinity ? lease.until : now
}

const UNLIMITED = { rate: Infinity, burst: 0 }

function when<T>(value: MaybePromise<T>, then: (value: T) => void, otherwise: () => void, after: () => void): void {
  if (!(value instanceof Promise)) return then(value)
  value.then(
    answer => {
      then(answer)
      after()
    },
    () => {
      otherwise()
      after()
    },
  )
}
