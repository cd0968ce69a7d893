import type { Elsewhere, LaneName } from '../bucket/elsewhere.js'
import { type BucketLimits, slackOf, timeToPass } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { QueuedBucket } from '../bucket/queued-bucket.js'
import { costAt, costIn, type Demand, type Lane, type SharedBucket, type Source } from '../queue/lane.js'
import { laneAlone, SAME_TIME } from '../queue/ready-lanes.js'
import { type BucketRef, FRAME, type OtherDemand } from '../store.js'
import { hashOf } from '../structures/string-hash.js'
import { type BucketLease, MANY_REQUESTS } from './bucket-lease.js'
import { laneNameOf } from './lane-arrivals.js'
import { PromisingBucket } from './promising-bucket.js'

/**
 * How requests pass: at once; after claiming a slot from the store, which is asked and whose last answers hold; or not at all,
 * while it is not known whether the store grants any.
 */
export type ReleaseMode = 'direct' | 'claimed' | 'none'

/** A part of the store that fails by itself, as this instance sees it. */
export interface StoreShard {
  readonly mode: ReleaseMode
  /** Whether it is in doubt: a question about several shards has failed, maybe because of another. */
  readonly isDoubtful: boolean
  /** As `Store.keepsOrder`. */
  readonly keepsOrder: boolean
  /** Whether requests of several routes or classes may wait in the bucket of this name, here or in other instances. */
  hasSeveralLanes(bucket: string): boolean
  /** Where the slots of this instance lie while it is alone. Undefined: anywhere. */
  readonly turn: Turn | undefined
  /** How many requests have been decided without it. */
  decidedAlone: number
  /** It has answered a question of this time in ms. */
  answered(askedAt: number): void
}

/** Instances that are alone take turns: of each n slots of the whole rate one belongs to each. */
export interface Turn {
  /** The number of this instance among them, from 0. */
  readonly rank: number
  readonly instances: number
  /** The common beginning, in ms. */
  readonly epoch: number
}

/** Periods. A slot that is this much before its turn is in it. */
const TURN_TOLERANCE = 1e-3

/** ms. After a lease it is known for so long what waits in other instances. */
const OTHERS_KNOWN = 1_000

/** ms. What an ended lease owes is paid by the slots of the next one, if that begins within this time of when it would have drained, unless nobody else leased. */
const DEBT_LIFE = 1_000

/** ms. Where three requests claim in a shorter time, slots are leased: a store has at most ten calls in a second. */
const FEW_CLAIMS = 4 * FRAME

/** A question to the store. */
export interface Inquiry {
  /** What to do with the answer. Undefined until it is there. */
  deal: (() => void) | undefined
}

/** Deals with answers in the order of the questions, so that requests are queued in the order of their arrival. */
export class Inquiries {
  readonly #asked: Inquiry[] = []

  /** How many are not dealt with. */
  get size(): number {
    return this.#asked.length
  }

  /** Registers a question. */
  ask(): Inquiry {
    const inquiry: Inquiry = { deal: undefined }
    this.#asked.push(inquiry)
    return inquiry
  }

  /** As `ask`, from the deal of an earlier question of the same request: it stays before those that came later. */
  askAgain(): Inquiry {
    const inquiry: Inquiry = { deal: undefined }
    this.#asked.unshift(inquiry)
    return inquiry
  }

  answered(inquiry: Inquiry, deal: () => void): void {
    inquiry.deal = deal
    for (let first = this.#asked[0]; first?.deal !== undefined; first = this.#asked[0]) {
      this.#asked.shift()
      first.deal()
    }
  }
}

/**
 * A bucket instance that is kept in a store. Here are the requests that wait for it, the store's last answers, and a meter
 * of its own, which counts only what passes while the store cannot be asked.
 */
export class StoredBucket extends QueuedBucket<Source, Lane> {
  readonly key: string
  readonly #groupOf: (name: string, key: string) => string
  shard: StoreShard
  /** The level that the store reported last: cost units, at a time in ms. */
  #reported = 0
  #reportedAt = 0
  /** The part of it that other instances caused, once the store cannot be asked: cost units, at a time in ms. */
  #fromOthers = 0
  #fromOthersAt = 0
  /** What waits in other instances, as the store has said at a time in ms. */
  #others: readonly OtherDemand[] = []
  #othersAt = -Infinity
  /** Cost units for which other instances had slots then. */
  slotsElsewhere = 0
  /** The part of all slots that this instance had then. */
  #slotPart = 1
  /** When all that was leased then by anybody has drained, in ms. */
  #leasedUntil = -Infinity
  /** When the store may grant the next claim, in ms. Of a bucket with a burst: a claim without slack. */
  claimableAt = -Infinity
  /** What is leased of it. Then `claimableAt` is when the next leased slot can be given to a request. */
  lease: BucketLease | undefined = undefined
  /** When what has left by a lease that has ended has drained, in ms. */
  leaseDrainedAt = -Infinity
  /** Cost units that have left by a lease that has ended, and for which it had no slots. */
  #leaseDebt = 0
  /** ms. So long all of it is to be paid. Then, and where nobody else has leased, it drains. */
  #debtUntil = -Infinity
  /** How many of the requests that wait have a slot or ask for one. */
  claiming = 0
  /** ms. A slot is given to a request so much earlier, where it has to claim slots of other buckets as well. */
  claimLead = 0
  /** ms. Until then other requests, too, get their slots as early: the next one may have to claim again. */
  claimLeadUntil = -Infinity
  /** When it will have drained of what the store is known to have granted, in ms. Only of a bucket with a burst. */
  grantedUntil = -Infinity
  /** When it will have drained of what this instance was granted, in ms. */
  ownUntil = -Infinity
  /** When its rate changed, it was reset or a cost was taken out, in ms. The answer to an earlier question no longer says when it is free. */
  changedAt = -Infinity
  /** Whether requests of another priority than the usual one have come to it. */
  hasPriorities = false
  /** How many claims for it are on their way or granted. */
  claims = 0
  /** How many claims were refused since the last one that was granted. */
  refusals = 0
  /** What waits for it waits behind this bucket alone, in all instances. So it was found, and it holds until then, in ms. */
  sole: StoredBucket | undefined = undefined
  soleUntil = -Infinity
  /** What the last reports have found so here, and how many of them. */
  soleSeen: StoredBucket | undefined = undefined
  soleReports = 0
  /** When the last claims for it were made, in ms. */
  #claimedAt = [-Infinity, -Infinity]
  /** How many requests have asked the store in the present frame. */
  askers = 0
  #askersSince = -Infinity
  /** Whether it stood idle before the last release. */
  #wasIdle = false
  /** The questions about requests that are on their way. This bucket instance has to stay until all are answered. */
  readonly inquiries = new Inquiries()
  /** What the store has promised to rejected clients, as far as is known. */
  readonly promising = new PromisingBucket()
  /** The requests that wait for leased room, of this bucket or of another in their stack. They ask about the rest of it then. */
  #refills: Inquiries | undefined

  /** @param groupOf the group of a bucket instance. Called each time, as a reload may change it. */
  constructor(limits: BucketLimits, key: string, groupOf: (name: string, key: string) => string, shard: StoreShard) {
    super(limits)
    this.key = key
    this.#groupOf = groupOf
    this.shard = shard
  }

  /** Its name for the store. */
  get ref(): BucketRef {
    const limits = this.limits.whole ?? this.limits
    return { limits, key: this.key, group: this.#groupOf(limits.name, this.key) }
  }

  /** Neither what passed here alone nor the store's schedule may delay requests. */
  override get drainedAt(): number {
    return Math.max(super.drainedAt, this.claimableAt)
  }

  /** Whether requests are admitted by room that is leased. */
  get hasRoom(): boolean {
    return this.lease?.leasesRoom === true
  }

  override freeFor(cost: number): number {
    if (this.lease !== undefined) return Math.max(super.freeFor(cost), this.claimableAt)
    const limits = this.limits.whole ?? this.limits
    return Math.max(super.freeFor(cost), this.claimableAt - slackOf(limits, cost) / limits.rate)
  }

  /** Requests that have claimed a slot came first, so they leave first. */
  override get shut(): boolean {
    const { mode } = this.shard
    return mode === 'none' || (mode === 'direct' && this.claims > 0) || super.shut
  }

  override pass(cost: number, earliest: number): number {
    this.#wasIdle = earliest > this.drainedAt + SAME_TIME
    return super.pass(cost, earliest)
  }

  /** This instance is alone from now on. The first release is in its turn, and so are those that follow without a gap. */
  startTurns(now: number): void {
    if (this.waiting > 0) this.claimableAt = this.#inTurn(Math.max(now, this.drainedAt))
  }

  /** A request has passed. If the bucket was idle that was at once, and the next one waits for the turn of this instance. */
  keepTurn(): void {
    if (this.#wasIdle && this.shard.mode === 'direct') this.claimableAt = this.#inTurn(this.drainedAt)
  }

  /** The first moment of this instance's turn, not before `at`. In ms. */
  #inTurn(at: number): number {
    const { turn } = this.shard
    const { name, rate, whole, burst, grace } = this.limits
    // What moves its slots anyway loses time with each turn that it waits for.
    if (turn === undefined || whole === undefined || burst !== undefined || grace !== undefined) return at
    // Keys do not leave in step.
    const offset = (hashOf(`${name}:${this.key}`, 0) >>> 0) / 2 ** 32
    const period = 1 / rate
    const first = turn.epoch + ((turn.rank + offset) / turn.instances) * period
    return first + Math.ceil((at - first) / period - TURN_TOLERANCE) * period
  }

  override setLimits(limits: BucketLimits, now: number): void {
    const { rate } = this.limits.whole ?? this.limits
    const { rate: changed } = limits.whole ?? limits
    // It has drained at the rate that ends now.
    if (changed !== rate) this.levelReported(this.#known(now), now)
    super.setLimits(limits, now)
    if (changed === rate) return
    this.changedAt = now
    this.lease?.setRate(changed)
    // The store counts the time until the next slot at its rate, too.
    if (this.claimableAt > now) this.claimableAt = now + ((this.claimableAt - now) * rate) / changed
    if (this.leaseDrainedAt > now) this.leaseDrainedAt = now + ((this.leaseDrainedAt - now) * rate) / changed
    if (this.ownUntil > now) this.ownUntil = now + ((this.ownUntil - now) * rate) / changed
    if (this.grantedUntil > now) this.grantedUntil = now + ((this.grantedUntil - now) * rate) / changed
  }

  override reset(now: number): void {
    super.reset(now)
    this.claimableAt = now
    this.grantedUntil = now
    this.ownUntil = now
    this.leaseDrainedAt = now
    this.#leaseDebt = 0
    this.changedAt = now
    this.promising.reset()
  }

  /** Takes the level that the store has answered. */
  levelReported(level: number, now: number): void {
    this.#reported = level
    this.#reportedAt = now
  }

  /** The store is told as well. Its next answer says when this bucket is free. Until it answers the known level counts. */
  override settle(difference: number, now: number): number {
    if (this.shard.mode !== 'claimed') return super.settle(difference, now)
    const { rate, capacity } = this.limits.whole ?? this.limits
    const level = this.#known(now)
    const change = Math.max(-level, Math.min(difference, Math.max(0, capacity - level)))
    this.levelReported(level + change, now)
    if (difference > 0) return change
    this.changedAt = now
    if (this.lease !== undefined) return change
    this.claimableAt = Math.min(this.claimableAt, Math.max(now, this.claimableAt + difference / rate))
    this.grantedUntil = Math.min(this.grantedUntil, Math.max(now, this.grantedUntil + difference / rate))
    this.ownUntil = Math.min(this.ownUntil, Math.max(now, this.ownUntil + difference / rate))
    return change
  }

  /** Whether what waits leaves in the order of its arrival, in whichever instances it waits: it is in one lane. */
  #isInOrder(place?: number): boolean {
    const { mode, keepsOrder } = this.shard
    if (mode !== 'claimed' || !keepsOrder) return false
    if (this.waiting > 0) return laneAlone(this)?.stack[0] === this
    // Who waits elsewhere is in the same lane.
    return this.isOneLane(place)
  }

  /** Whether all that may wait for it is in one lane, as far as the configuration says. */
  isOneLane(place?: number): boolean {
    return place === 0 && !this.hasPriorities && !this.shard.hasSeveralLanes(this.limits.name)
  }

  override aheadElsewhere(now: number, place?: number): number {
    return this.#isInOrder(place) ? Math.max(0, this.level(now) - this.queued) : 0
  }

  /**
   * This instance gets its part of the slots: the part that it has of what waits. It is not known which slots a store will grant. Where
   * the store keeps the order, all that waits elsewhere leaves first.
   */
  override copy(now: number, place?: number): QueuedBucket<Source, Lane> {
    if (this.shard.mode !== 'claimed') return super.copy(now, place)
    const limits = this.limits.whole ?? this.limits
    const isInOrder = this.#isInOrder(place)
    const { rate, next } = limits
    const { drainedAt } = this
    const held = drainedAt < Infinity ? Math.max(0, drainedAt - now) * rate : 0
    // What the bucket still holds delays all. The rest of the level waits, here or in other instances.
    const elsewhere = isInOrder || this.queued === 0 ? 0 : Math.max(0, this.level(now) - held - this.queued)
    const part = this.queued === 0 ? 1 : this.queued / (this.queued + elsewhere)
    const copy = new QueuedBucket<Source, Lane>({
      ...limits,
      rate: rate * part,
      ...(next && { next: { ...next, rate: next.rate * part } }),
    })
    copy.set(isInOrder ? this.aheadElsewhere(now, place) : held * part, now)
    copy.queued = this.queued
    copy.waiting = this.waiting
    copy.leastCost = this.leastCost
    return copy
  }

  /**
   * Where nobody waits here, a level that delays is of requests that wait in other instances. A newcomer does not queue behind
   * them, unless the store keeps the order: it is granted one of the next slots, after half a frame in the mean.
   */
  override waitBetweenOthers(cost: number, now: number, place: number): number | undefined {
    const limits = this.limits.whole ?? this.limits
    const level = this.level(now) - slackOf(limits, cost)
    if (this.shard.mode !== 'claimed' || this.waiting > 0 || level <= 0 || this.#isInOrder(place)) return undefined
    return Math.min(timeToPass(limits, level, now), FRAME / 2 + timeToPass(limits, cost, now))
  }

  /** The store keeps the room. What is known here of bookings is what its own clients are told again. */
  override reserved(now: number): number {
    return this.shard.mode === 'claimed' ? 0 : super.reserved(now)
  }

  /** The level that the store has answered changes by this many cost units. */
  levelChanged(by: number): void {
    this.#reported += by
  }

  /** Slots are claimed one by one again. The first one not before what has left has drained here, as the store does not know when. */
  endLease(): void {
    const { drainedAt, until, available, isSole } = this.lease!
    this.#leaseDebt = Math.max(0, -available)
    // What is leased is of all instances, so a debt drains behind it. A lease that has got no slots ends with the debt of the one before.
    const paidAt = Math.max(this.leaseDrainedAt, drainedAt, until + this.#leaseDebt / this.limits.rate)
    this.leaseDrainedAt = this.#leaseDebt > LEVEL_TOLERANCE ? paidAt : drainedAt
    this.#debtUntil = this.leaseDrainedAt + (isSole ? -Infinity : DEBT_LIFE)
    this.lease = undefined
  }

  /**
   * What the slots of a new lease have to pay for, in cost units: it has left by the last one. The bucket may have drained since, but others
   * may have used that.
   */
  leaseDebtAt(now: number): number {
    const left = Math.max(0, this.leaseDrainedAt - now) * this.limits.rate
    const debt = now < this.#debtUntil ? this.#leaseDebt : Math.min(this.#leaseDebt, left)
    return debt > LEVEL_TOLERANCE ? debt : 0
  }

  /** A cost that has left by a lease that has ended does not leave. */
  untakeLeased(cost: number): void {
    this.#leaseDebt = Math.max(0, this.#leaseDebt - cost)
  }

  /** From when on a claim may be granted, in ms, as far as is known here. */
  claimableFrom(now: number): number {
    return this.leaseDebtAt(now) > 0 ? Math.max(now, this.leaseDrainedAt) : now
  }

  /** Takes note of a claim that was granted. Whether there were several lately. */
  claimedOften(now: number): boolean {
    const [earliest, ...later] = this.#claimedAt as [number, ...number[]]
    this.#claimedAt = [...later, now]
    return now - earliest < FEW_CLAIMS
  }

  /** Takes note of a request that asks the store. Whether there are so many that a call for each is too much. */
  askedOften(now: number): boolean {
    if (now - this.#askersSince > FRAME) {
      this.#askersSince = now
      this.askers = 0
    }
    this.askers += 1
    return this.askers > 2 * MANY_REQUESTS
  }

  get refills(): Inquiries {
    this.#refills ??= new Inquiries()
    return this.#refills
  }

  /** Whether a request waits for an answer of the store before it is queued or rejected. */
  get asked(): boolean {
    return this.inquiries.size > 0 || this.awaitsRoom
  }

  /** Whether a request waits for leased room. */
  get awaitsRoom(): boolean {
    return this.#refills !== undefined && this.#refills.size > 0
  }

  override get engaged(): boolean {
    return this.asked || this.lease !== undefined || super.engaged
  }

  /**
   * Takes note of what the store says that waits in other instances, and of the slots that this instance and those have, in cost units. Until
   * then, in ms, all slots are given out.
   */
  othersReported(
    others: readonly OtherDemand[],
    { own, slots, until }: { own: number; slots: number; until: number },
    now: number,
  ): void {
    this.#others = others
    this.#slotPart = slots > 0 ? Math.max(0, own) / (Math.max(0, own) + slots) : 1
    this.#leasedUntil = until
    this.#othersAt = now
    this.slotsElsewhere = slots
  }

  /** Cost units that waited in other instances without a slot, as the store said last. */
  get queuedElsewhere(): number {
    return this.#others.reduce((sum, { cost }) => sum + cost, 0)
  }

  /** The part of its rate that this instance has: its part of what is leased, or an equal one if that is more. */
  get slotShare(): number {
    return this.lease === undefined ? 1 : Math.max(this.#slotPart, 1 / this.lease.instances)
  }

  /** Whether it is known who waits in other instances, or that nobody does. A request of this cost may have left just now. */
  knowsOthers(cost: number, now: number): boolean {
    return this.#hearsOfOthers(now) || this.level(now) - this.queued <= cost + LEVEL_TOLERANCE
  }

  #hearsOfOthers(now: number): boolean {
    return this.lease?.isKnown === true || now - this.#othersAt <= OTHERS_KNOWN
  }

  override elsewhere(now: number, place: number, lane?: LaneName): Elsewhere | undefined {
    const { lease, shard } = this
    if (shard.mode !== 'claimed' || !this.#hearsOfOthers(now)) return undefined
    if (shard.keepsOrder && this.isOneLane(place)) return undefined
    const claiming = this.waiting === 0 ? 0 : (this.claiming * this.queued) / this.waiting
    const available = lease?.available ?? 0
    const until = Math.max(now, lease === undefined ? this.claimableAt : -Infinity, this.#leasedUntil)
    const name = lane && shard.keepsOrder ? laneNameOf(lane) : undefined
    const part = this.#growthOfOthers(claiming + available, until - now, now)
    return {
      others: this.#others.map(({ priority, weight, cost, lane }) => {
        return { priority, weight, cost: cost * part, isBefore: lane !== undefined && lane === name }
      }),
      covered: Math.max(0, claiming + available),
      slotAfter: ahead => Math.max(now, ahead < claiming ? now : (lease?.slotAfter(ahead - claiming) ?? now)),
      until,
    }
  }

  /**
   * How much more waits elsewhere than was reported. Where buckets of their own let only a part of it through in a frame the rest is not
   * reported.
   *
   * @param covered cost units of what waits here
   * @param span ms for which the slots of all are given out
   */
  #growthOfOthers(covered: number, span: number, now: number): number {
    const reported = this.queuedElsewhere
    const { rate } = this.limits.whole ?? this.limits
    const withSlots = Math.max(0, span * rate - covered)
    return reported === 0 ? 1 : Math.max(1, (this.level(now) - this.queued - withSlots) / reported)
  }

  /** What is left of the level that the store reported last. */
  #known(now: number): number {
    const { rate } = this.limits.whole ?? this.limits
    return Math.max(0, this.#reported - Math.max(0, now - this.#reportedAt) * rate)
  }

  override level(now: number): number {
    if (this.shard.mode !== 'claimed') {
      return super.level(now) + Math.max(0, this.#fromOthers - (now - this.#fromOthersAt) * this.limits.rate)
    }
    const level = this.#known(now)
    return this.hasRoom ? Math.max(0, level + this.lease!.unknown) : level
  }

  /** From now on the store cannot be asked. The part of the level that other instances caused leaks away here. */
  detach(now: number): void {
    if (this.lease !== undefined) {
      if (this.hasRoom) this.levelReported(this.level(now), now)
      // What others have leased may still leave.
      this.claimableAt = Math.max(now, this.lease.until)
      this.lease = undefined
    }
    this.#fromOthers = Math.max(0, this.#reported - (now - this.#reportedAt) * this.limits.rate - super.level(now))
    this.#fromOthersAt = now
  }

  /** The queue here has to fit, too: the store's meter leaks while an upstream is slow, and a queue does not. */
  override excess(cost: number, now: number): number {
    const excess = this.waiting > 0 ? this.queued + cost - this.limits.capacity : 0
    return Math.max(super.excess(cost, now), excess <= LEVEL_TOLERANCE ? 0 : excess)
  }

  override idle(now: number): boolean {
    return super.idle(now) && this.level(now) === 0
  }
}

/** The names of buckets for the store, as they are now, with what a request costs in each where that differs. */
export function refsFor(buckets: readonly SharedBucket[], demand?: Demand): BucketRef[] {
  return (buckets as readonly StoredBucket[]).map(bucket =>
    demand?.costs === undefined ? bucket.ref : { ...bucket.ref, cost: costIn(demand, bucket) },
  )
}

/**
 * A request has passed a stack without the store. Buckets whose shards answer have the limits of all instances. They count it
 * at this instance's share of them, as it counts in the others.
 */
export function passedAlone(demand: Demand, slot: number): void {
  const stack = demand.stack as readonly StoredBucket[]
  let share = 1
  for (const { limits } of stack)
    if (limits.whole !== undefined) share = Math.min(share, limits.rate / limits.whole.rate)
  for (const [place, bucket] of stack.entries()) {
    if (bucket.shard.mode !== 'claimed') continue
    const { rate } = bucket.limits.whole ?? bucket.limits
    bucket.claimableAt = Math.max(bucket.claimableAt, slot + costAt(demand, place) / (rate * share))
  }
  stack.at(-1)?.keepTurn()
}
