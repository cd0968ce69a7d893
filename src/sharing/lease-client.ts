/** The leases of one instance, from the first refused claim or overflow until nothing waits (docs/decisions/slot-leases.md). */
import { laneNameOf } from '../core/bucket/elsewhere.js'
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { allSources } from '../core/bucket/waiting.js'
import type { Clock } from '../core/clock.js'
import { ignore, when } from '../core/maybe-promise.js'
import { costIn, Lane, type SharedBucket, ShareNode, type Source, type Ticket } from '../core/queue/lane.js'
import { onlyLane } from '../core/queue/ready-lanes.js'
import { sourcesBelow } from '../core/queue/tree.js'
import { FRAME } from '../decider/constants.js'
import type { ClassDemand, LaneArrivals, LeaseAnswer, LeaseRequest } from '../decider/record.js'
import { BucketLease, FEW_REPORTS, isQuick, MANY_REQUESTS, type Span } from './bucket-lease.js'
import type { Store } from './store.js'
import type { StoredBucket } from './stored-bucket.js'

/**
 * ms from a report until slots can be used: this part of the horizon, which is 1.25 round trips, and this reserve. Where slots
 * of other buckets are claimed for them, they have to be known by as much earlier as those are claimed (`claimLead`). A store
 * grants claims in the order of their moments only: the claims of an instance that knows its slots later than others would be
 * refused.
 */
const LEASE_LEAD = { horizon: 0.5, reserve: 5 }
/** ms. A bucket is not leased any more if all that waits leaves in this time. */
const LEAVES_SOON = FRAME / 4
/** ms. A bucket that others are found to wait behind counts as narrower for so long. */
const NARROWER_KNOWN = 10_000
/** The part of a bucket's rate that may be used where its slots are claimed one by one. */
const MOST_FILLED = 0.95
/** ms. Farther ahead slots are not claimed for those of other buckets: the time before each claim is lost to all other lanes. */
const CLAIM_REACH = 15
/** A bucket with fewer requests for each instance is small, and one with this many if not too many come for a call each. */
const LEAST_EACH = 3
const FEW_EACH = 5
/** ms. Slots of a small bucket are claimed so far ahead, at most. */
const SMALL_AHEAD = 500

export interface Lessor {
  /** Cost of the requests that have a slot of a bucket, or ask for one. */
  claimingOf(bucket: SharedBucket): number
  horizonOf(bucket: SharedBucket): number
  changed(bucket: StoredBucket, now: number): void
  wake(): void
  failed(bucket: StoredBucket, askedAt: number): void
  /** How many there are. */
  instances(): number
}

export class Leases {
  readonly #store: Store
  readonly #clock: Clock
  readonly #lessor: Lessor
  readonly #instance = Math.random()
  /** What waits for the answer to a report, by bucket. */
  readonly #reports = new Map<StoredBucket, (() => void)[]>()
  readonly #plans = new Set<() => void>()
  #isRetired = false
  #isClosed = false

  constructor({ store, clock }: { store: Store; clock: Clock }, lessor: Lessor) {
    this.#store = store
    this.#clock = clock
    this.#lessor = lessor
  }

  start(bucket: StoredBucket, cost: number): void {
    if (this.#begin(bucket, cost) !== undefined) this.#report(bucket)
  }

  /** Whether slots are claimed one by one, though some are refused: all that waits here was found to wait behind one other bucket. */
  suitsClaims(bucket: StoredBucket): boolean {
    const { narrower, narrowerUntil } = bucket
    return narrower !== undefined && this.#clock.now() < narrowerUntil && narrowerOf(bucket) === narrower
  }

  /** Leases the room of a bucket from now on as well as its slots. A request of this cost has asked for it. */
  startRoom(bucket: StoredBucket, cost: number): void {
    if (!isQuick(bucket.limits.rate, cost)) return
    if (bucket.lease !== undefined) return bucket.lease.openRoom()
    const lease = this.#begin(bucket, cost)
    if (lease === undefined) return
    lease.openRoom()
    // It has asked the store, and goes on asking: without this the lease would end with its first report.
    lease.ask(cost)
    this.#report(bucket)
  }

  /**
   * Whether there is so little room that most of what is leased would lie unused elsewhere. Each request asks the store for its room and
   * its slot then, so all that fits has to leave soon.
   */
  isSmall({ limits }: StoredBucket, cost: number): boolean {
    const { rate, capacity } = limits.whole ?? limits
    const instances = this.#lessor.instances()
    const isSlow = rate * FRAME <= MANY_REQUESTS * instances * cost
    const least = (isSlow ? FEW_EACH : LEAST_EACH) * instances * cost
    return instances > 1 && capacity < least && capacity <= rate * SMALL_AHEAD
  }

  /** Undefined: it is leased already, or cannot be. */
  #begin(bucket: StoredBucket, cost: number): BucketLease | undefined {
    const { limits } = bucket
    if (this.isSmall(bucket, cost)) return undefined
    // A bucket that keeps the distance of late releases moves its slots, so they cannot be dealt out.
    // The count of a quota is exact only where each request asks.
    if (limits.grace !== undefined || limits.quota !== undefined) return undefined
    if (this.#store.lease === undefined || bucket.lease !== undefined || limits.whole !== undefined) return undefined
    const asked = bucket.askers * cost
    const lease = new BucketLease(limits, cost, { asked, debt: bucket.leaseDebtAt(this.#clock.now()) })
    bucket.lease = lease
    bucket.claimableAt = Infinity
    return lease
  }

  /** Asks what waits for a bucket in other instances. `then` is called after the answer. If nothing waits here nothing is leased. */
  look(bucket: StoredBucket, cost: number, then: () => void): void {
    const waiting = this.#reports.get(bucket)
    if (waiting !== undefined) waiting.push(then)
    else if (bucket.lease === undefined && this.#begin(bucket, cost) !== undefined) this.#report(bucket, then)
    else then()
  }

  renew(bucket: StoredBucket): void {
    if (bucket.lease?.ending === false && !this.#reports.has(bucket)) this.#report(bucket)
  }

  /** All leases end with their next reports, those of these buckets at once: others use the slots. */
  retire(buckets: Iterable<StoredBucket>): void {
    this.#isRetired = true
    for (const bucket of buckets) this.renew(bucket)
  }

  resume(): void {
    this.#isRetired = false
  }

  /** A request has come to a bucket. If there is no slot for it though little waits, the bucket is reported at once. */
  arrived(bucket: StoredBucket): void {
    const { lease } = bucket
    if (lease === undefined) return
    const now = this.#clock.now()
    if (lease.isOutOfSlots(now)) this.renew(bucket)
    else if (this.#store.keepsOrder === true && lease.mayLoseTurn(now)) this.#hasten(bucket, lease, now)
  }

  /** A slot that this instance had was returned. The next report may be as far away as the next slot: it has to ask for this one. */
  slotReturned(bucket: StoredBucket): void {
    const underway = this.#reports.get(bucket)
    if (underway !== undefined) return void underway.push(() => this.slotReturned(bucket))
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
    if (waiting !== undefined) waiting.push(then)
    else this.#report(bucket, then)
  }

  #report(bucket: StoredBucket, then?: () => void): void {
    const { lease } = bucket
    if (lease === undefined || this.#isClosed) return then?.()
    const now = this.#clock.now()
    const reach = LEASE_LEAD.horizon * this.#lessor.horizonOf(bucket) + LEASE_LEAD.reserve
    // Both have a reserve for slow answers: one will do.
    const lead = reach + Math.max(0, bucket.claimLead - LEASE_LEAD.reserve)
    // Its next report is a frame and the way to the store and back away, and that of another one may come just before it.
    const span = lead + 2 * FRAME + reach
    const later = demandOf(bucket, span, now)
    const narrower = narrowerEverywhere(bucket, span)
    if (narrower !== undefined) Object.assign(bucket, { narrower, narrowerUntil: now + NARROWER_KNOWN })
    let own = 0
    for (const { cost } of later) own += cost
    lease.isRoomy = hasRoomFor(bucket, own, span)
    const couldClaim =
      lease.leavesWithin(later, LEAVES_SOON) ||
      narrower !== undefined ||
      (reach < CLAIM_REACH && leavesRoom(bucket, own, span))
    const demand = couldClaim
      ? throughNarrower(demandOf(bucket, lead + LEAVES_SOON, now), narrower, lead + LEAVES_SOON)
      : later
    const claiming = this.#lessor.claimingOf(bucket)
    const isDone =
      this.#isRetired ||
      this.isSmall(bucket, bucket.leastCost) ||
      (demand.length === 0 && !lease.isAsked) ||
      (couldClaim && lease.grantsClaims(reach + 2 * LEAVES_SOON))
    const late = this.#store.latenessOf?.(bucket.ref) ?? 0
    const arrivals = this.#arrivalsOf(bucket, demand, lead)
    const { capacity } = bucket.limits
    const isBefore = everyLane(bucket, ({ stack }) => stack.at(-1) !== bucket)
    const times = { capacity, lead, late, now, waits: bucket.queued, couldClaim, isBefore, arrivals }
    const report = isDone ? lease.finish(demand, claiming, times) : lease.report(demand, claiming, times)
    const waiting = then === undefined ? [] : [then]
    this.#reports.set(bucket, waiting)
    const ahead = Math.max(0, lease.until - now)
    const request: LeaseRequest = {
      ...{ bucket: bucket.ref, instance: this.#instance, lead, late, ahead },
      pace: lease.usualPace(paceOf(bucket, now)),
      ...report,
    }
    const asked = this.#store.lease!(request)
    const wake = asked instanceof Promise ? (): void => this.#lessor.wake() : ignore
    when(
      asked,
      answer => {
        this.#reports.delete(bucket)
        bucket.shard.answered(now)
        if (bucket.lease === lease) this.#answered(bucket, answer, now)
        if (this.#isRetired) this.renew(bucket)
        for (const deal of waiting) deal()
        wake()
      },
      () => {
        this.#reports.delete(bucket)
        lease.failed(bucket.queued)
        // Then it ends with the next report.
        lease.ending = false
        this.#lessor.failed(bucket, now)
        if (bucket.lease === lease) this.#plan(bucket, lease, this.#clock.now() + FRAME)
        for (const deal of waiting) deal()
        wake()
      },
    )
    bucket.promising.reported(now)
  }

  #arrivalsOf(bucket: StoredBucket, demand: readonly WaitingDemand[], lead: number) {
    if (this.#store.keepsOrder !== true) return undefined
    return (of: number, covered: number): LaneArrivals | undefined => {
      const { lane, cost: queued } = demand.find(({ priority }) => priority === of)!
      const span = bucket.limits.rate * (lead + 3 * FRAME)
      return lane && arrivalsOf(lane, { bucket, covered, queued, span })
    }
  }

  #answered(bucket: StoredBucket, answer: LeaseAnswer, askedAt: number): void {
    const now = this.#clock.now()
    const lease = bucket.lease!
    lease.answered(answer, now)
    bucket.levelReported(answer.level + lease.usedSince, now, askedAt)
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
    if (entry === undefined) demand.set(priority, { priority, weight, cost, lane: onlyLane(source) })
    else {
      entry.weight += weight
      entry.cost += cost
      entry.lane = undefined
    }
  }
  return [...demand.values()]
}

/** Whether all that narrower buckets let through in this time, in ms, fits. Then slots are claimed one by one. */
function leavesRoom(bucket: StoredBucket, own: number, span: number): boolean {
  const isHeldBack = own < bucket.queued - LEVEL_TOLERANCE
  return hasRoomFor(bucket, isHeldBack ? own : passing(bucket, span), span)
}

function hasRoomFor(bucket: StoredBucket, own: number, span: number): boolean {
  if (own === Infinity) return false
  // Of the others only what has no slot is known. They may have as much to come as this one.
  const others = Math.max(bucket.queuedElsewhere, own * (bucket.lease!.instances - 1))
  return own + others <= MOST_FILLED * bucket.limits.rate * span
}

/** The part of a demand that another bucket lets through in this time, in ms. */
function throughNarrower(
  demand: readonly WaitingDemand[],
  narrower: StoredBucket | undefined,
  within: number,
): readonly WaitingDemand[] {
  if (narrower === undefined) return demand
  const { leastCost, limits, lease } = narrower
  const queued = demand.reduce((sum, { cost }) => sum + cost, 0)
  const part = Math.min(1, ((limits.rate / lease!.instances) * within + leastCost) / queued)
  return demand.map(entry => ({ ...entry, cost: part * entry.cost }))
}

/** As `narrowerOf`, for all that waits for a bucket, here and in other instances. */
function narrowerEverywhere(bucket: StoredBucket, span: number): StoredBucket | undefined {
  const narrower = narrowerOf(bucket)
  bucket.narrowerReports = narrower === bucket.narrowerSeen ? bucket.narrowerReports + 1 : 1
  bucket.narrowerSeen = narrower
  if (bucket.narrowerReports < FEW_REPORTS) return undefined
  const { instances, isKnown } = bucket.lease!
  if (narrower === undefined || !isKnown) return undefined
  // Those that lease this one only have something else.
  if (narrower.lease!.instances < instances) return undefined
  const others = instances - 1
  const share = narrower.limits.rate / instances
  // What is expected elsewhere has slots as well.
  const slots = Math.min(bucket.slotsElsewhere, others * share * (span - FRAME))
  const most = others * (share * span + 2 * bucket.leastCost)
  return bucket.queuedElsewhere + slots <= most + LEVEL_TOLERANCE ? narrower : undefined
}

/** The cost that busy buckets before this one let through in this time, in ms. Infinity: one is not busy, or there is none. */
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

/** The slots, in their order, of the leased buckets that what waits for this one has to pass as well, until a moment in ms. */
export function slotsBefore(bucket: StoredBucket, until: number): readonly Span[] {
  const spans: Span[] = []
  for (const source of allSources(bucket)) {
    if (!(source instanceof ShareNode) || source.count > FEW_SOURCES) continue
    for (const { bucket: own, queued, waiting } of sourcesBelow(source)) {
      const lease = (own as StoredBucket | undefined)?.lease
      if (waiting > 0 && lease !== undefined) spans.push(...lease.spans(queued, until))
    }
  }
  return spans.sort((one, other) => one.at - other.at)
}

/** The cost that the bucket of a source lets through in this time, in ms. */
function passesOf({ bucket, queued, waiting }: Source, within: number): number {
  const { lease, limits } = (bucket ?? {}) as Partial<StoredBucket>
  const { rate, burst = 0 } = limits ?? UNLIMITED
  return (rate / (lease?.instances ?? 1)) * within + Math.max(burst, waiting > 0 ? queued / waiting : 0)
}

/** What comes from a source in this time, in ms. Lanes whose own bucket is not free by then give no turns to others. */
function comingFrom(source: Source, within: number, now: number): { cost: number; weight: number } {
  if (!(source instanceof ShareNode) || source.count > MOST_SOURCES)
    return { cost: source.queued, weight: source.weight }
  let cost = 0
  let weight = 0
  for (const below of sourcesBelow(source)) {
    const bucket = below.bucket as StoredBucket | undefined
    if (below.waiting === 0 || (bucket !== undefined && passesAt(bucket, now) > now + within)) continue
    const comes = comingFrom(below, within, now)
    cost += Math.min(passesOf(below, within), comes.cost)
    weight += comes.weight
  }
  return { cost, weight }
}

/** When a bucket may let a request pass, in ms. A leased one without slots gets the next ones behind all that are leased. */
function passesAt(bucket: StoredBucket, now: number): number {
  const { lease } = bucket
  if (lease === undefined) return bucket.freeAt
  return lease.isEmpty && lease.until > -Infinity ? lease.until : now
}

const UNLIMITED = { rate: Infinity, burst: 0 }
/** An instance gets slots by so much faster than it had them: its part may grow. */
const SHARE_ROOM = 1.15
/** Among more sources than this it is not looked at what each lane passes. */
const MOST_SOURCES = 1_000
/** Among more sources than this it is not looked at what slots each lane has. */
const FEW_SOURCES = 32

/** A leased bucket, no faster than this one, that all that waits for this one passes as well. Its slots are evenly apart. */
function narrowerOf(bucket: StoredBucket): StoredBucket | undefined {
  // Rates of different units do not compare.
  if (bucket.isMixed) return undefined
  let common: readonly SharedBucket[] | undefined
  const isOnlyLessee = everyLane(bucket, ({ stack }) => {
    common = (common ?? stack).filter(other => isNarrower(other, bucket, stack))
    return common.length > 0
  })
  return isOnlyLessee ? (common?.[0] as StoredBucket | undefined) : undefined
}

/** Whether all that waits for a bucket passes another one as well, as far as can be seen soon. */
export function allPass(bucket: SharedBucket, other: SharedBucket): boolean {
  return everyLane(bucket, ({ stack }) => stack.includes(other))
}

/**
 * How fast this instance can use slots of a bucket, in cost units per ms: each lane as fast as the narrowest bucket of its
 * stack lets it. Of a bucket that others lease as well that is about the part that this instance has of it. Slots that are even
 * in both buckets of a stack meet. A request whose own bucket is idle can use a slot at once, so it counts with one in this
 * frame, and in any frame there is one slot. Infinity: as fast as they come, or it cannot be seen soon.
 */
function paceOf(bucket: StoredBucket, now: number): number {
  // Turns are those of the oldest request there, whichever instance has it.
  if (bucket.isMixed || bucket.shard.keepsOrder) return Infinity
  const counted = new Set<SharedBucket>()
  let pace = 0
  const isHeldBack = everyLane(bucket, ({ stack }) => {
    const narrowest = narrowestBeside(bucket, stack)
    if (narrowest === undefined) return false
    if (!counted.has(narrowest)) pace += paceThrough(narrowest, now)
    counted.add(narrowest)
    // A bucket with a burst lets several through at once.
    return pace < bucket.limits.rate && narrowest.limits.burst === undefined
  })
  return isHeldBack && pace > 0 ? Math.max(pace, bucket.leastCost / FRAME) : Infinity
}

/** In a frame no more leaves than waits, and comes. */
function paceThrough({ limits, lease, slotShare, ownUntil, leastCost, queued }: StoredBucket, now: number): number {
  const isIdle = lease === undefined && ownUntil <= now
  const most = (queued + leastCost) / FRAME
  return Math.min(most, limits.rate * Math.min(1, SHARE_ROOM * slotShare) + (isIdle ? leastCost / FRAME : 0))
}

function everyLane(bucket: SharedBucket, holds: (lane: Lane) => boolean): boolean {
  let seen = 0
  const holdsBelow = (source: Source): boolean => {
    seen += 1
    if (source instanceof Lane) return holds(source)
    if (seen + source.count > MOST_SOURCES) return false
    for (let at = source.first; at !== undefined; at = at.after) if (!holdsBelow(at)) return false
    return true
  }
  return allSources(bucket).every(holdsBelow)
}

/** Of two that are as fast the first one of a stack counts as the narrower one. */
function isNarrower(other: SharedBucket, bucket: SharedBucket, stack: readonly SharedBucket[]): boolean {
  const { lease, limits } = other as StoredBucket
  const [place, own] = [stack.indexOf(other), stack.indexOf(bucket)]
  if (place === -1 || place === own || lease === undefined || limits.burst !== undefined) return false
  return limits.rate < bucket.limits.rate || (limits.rate === bucket.limits.rate && place < own)
}

/** The narrowest bucket of a stack, if slots of this one are to be as far apart as those of that one. Undefined: they are not. */
function narrowestBeside(bucket: StoredBucket, stack: readonly SharedBucket[]): StoredBucket | undefined {
  let narrowest: SharedBucket = bucket
  for (const other of stack) if (other.limits.rate < narrowest.limits.rate) narrowest = other
  if (narrowest !== bucket) return narrowest as StoredBucket
  // Its own slots need to be even only to meet those of another bucket.
  return stack.some(other => other !== bucket && (other as StoredBucket).lease !== undefined) ? bucket : undefined
}

/** From one point to the next the cost before them grows by this part, or by a request. So the first ones are told exactly. */
const GROWTH = 0.125
/** ms. Requests that come so much after the one before are told exactly as well. */
const GAP = 10
/** So few points take some microseconds to send and to read. */
const MOST_POINTS = 64
const MOST_SEEN = 1_000

/** The requests of a lane that have no slot of a bucket yet. Costs are in cost units. */
interface LaneRest {
  readonly bucket: SharedBucket
  /** Of the requests that have one. Negative: requests that have left used more than their slots. */
  readonly covered: number
  readonly queued: number
  /** Those behind this much are told only as a whole. */
  readonly span: number
}

interface Point {
  readonly cost: number
  /** ms */
  readonly at: number
}

function arrivalsOf(lane: Lane, rest: LaneRest): LaneArrivals {
  const points: Point[] = []
  const add = (point: Point): void => {
    if (point.cost !== points.at(-1)?.cost) points.push(point)
  }
  let mark = -Infinity
  let previous: Point | undefined
  for (const point of pointsOf(lane, rest)) {
    if (points.length >= MOST_POINTS) break
    const isLate = previous !== undefined && point.at - previous.at > GAP
    if (isLate) add(previous!)
    if (isLate || point.cost + LEVEL_TOLERANCE >= mark) {
      add(point)
      mark = point.cost * (1 + GROWTH)
    }
    previous = point
  }
  const { last } = lane.tickets
  const end = last && { cost: Math.max(0, rest.queued - rest.covered - costIn(last, rest.bucket)), at: last.arrivedAt }
  const known = points.at(-1)
  if (end !== undefined && (known === undefined || (end.cost > known.cost && end.at > known.at))) points.push(end)
  return { lane: laneNameOf(lane), costs: points.map(({ cost }) => cost), times: points.map(({ at }) => at) }
}

/** The requests without a slot, or the last that was looked at. One with a part of a slot leaves at its start. */
function* pointsOf({ claiming, tickets }: Lane, { bucket, covered, span }: LaneRest): Generator<Point> {
  let left = covered
  let before = 0
  let seen = 0
  let at: Ticket | undefined = claiming?.first ?? tickets.first
  for (; at !== undefined && before <= span && seen < MOST_SEEN; seen += 1) {
    const cost = costIn(at, bucket)
    const hasSlot = left > LEVEL_TOLERANCE || before + cost <= LEVEL_TOLERANCE
    if (!hasSlot || seen === MOST_SEEN - 1) yield { cost: before, at: at.arrivedAt }
    if (hasSlot) left -= cost
    else before += cost
    at = at.next ?? (at.list === claiming ? tickets.first : undefined)
  }
}
