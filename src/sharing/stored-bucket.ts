import { type Elsewhere, type LaneName, laneNameOf } from '../core/bucket/elsewhere.js'
import { type BucketLimits, isFormer, timeToPass } from '../core/bucket/limits.js'
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { QueuedBucket } from '../core/bucket/queued-bucket.js'
import { costAt, costIn, type Demand, type Lane, type SharedBucket, type Source } from '../core/queue/lane.js'
import { onlyLaneFor, SAME_TIME } from '../core/queue/ready-lanes.js'
import { hashOf } from '../core/structures/text.js'
import { FRAME } from '../decider/constants.js'
import { slackOf } from '../decider/costs.js'
import type { BucketRef, OtherDemand } from '../decider/record.js'
import { type BucketLease, MANY_REQUESTS } from './bucket-lease.js'
import { PromisingBucket } from './promising-bucket.js'
import type { Shard } from './shard.js'

/** Periods. A slot that is this much before its turn is in it. */
const TURN_TOLERANCE = 1e-3
/** ms. After a lease it is known for so long what waits in other instances. */
const OTHERS_KNOWN = 1_000
/** ms. The slots of the next lease pay what an ended one owes, if it begins within this time. */
const DEBT_LIFE = 1_000
/** ms. Where three requests claim in a shorter time, slots are leased: a store has at most ten calls in a second. */
const FEW_CLAIMS = 4 * FRAME

export interface Inquiry {
  /** What to do with the answer. Undefined until it is there. */
  deal: (() => void) | undefined
}

/** Deals with answers in the order of the questions, so that requests are queued in the order of their arrival. */
export class Inquiries {
  readonly #asked: Inquiry[] = []

  get size(): number {
    return this.#asked.length
  }

  /** @param place `first`: from the deal of an earlier question of the same request, which stays before those that came later */
  ask(place: 'first' | 'last' = 'last'): Inquiry {
    const inquiry: Inquiry = { deal: undefined }
    if (place === 'first') this.#asked.unshift(inquiry)
    else this.#asked.push(inquiry)
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

/** A bucket that a store keeps: the requests that wait here, the store's last answers, and a meter for the time without it. */
export class StoredBucket extends QueuedBucket<Source, Lane> {
  readonly #groupOf: (name: string, key: string) => string
  /** The level that the store reported last: cost units, at a time in ms. */
  #reported = 0
  #reportedAt = 0
  /** ms. Nothing has left that level since this question but what drains. -Infinity: it may have. */
  #heardFrom = -Infinity
  #loweredAt = -Infinity
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
  /** When it last changed by itself, in ms: an earlier question's answer no longer says when it is free. */
  changedAt = -Infinity
  /** When it was reset last, in ms: slots that were claimed before are forgotten. */
  resetAt = -Infinity
  /** Whether requests of another priority than the usual one have come to it. */
  hasPriorities = false
  /** How many claims for it are on their way or granted. */
  claims = 0
  /** How many claims were refused since the last one that was granted. */
  refusals = 0
  /** What waits for it waits behind this bucket alone, in all instances. So it was found, and it holds until then, in ms. */
  narrower: StoredBucket | undefined = undefined
  narrowerUntil = -Infinity
  /** What the last reports have found so here, and how many of them. */
  narrowerSeen: StoredBucket | undefined = undefined
  narrowerReports = 0
  /** When the last claims for it were made, in ms. */
  #claimedAt = [-Infinity, -Infinity]
  /** How many requests have asked the store in the present frame. */
  askers = 0
  #askersSince = -Infinity
  #wasIdle = false
  /** Whether its slots are in the turn of this instance, since it is alone. */
  #isInStep = false
  /** The questions about requests that are on their way. This bucket instance has to stay until all are answered. */
  readonly inquiries = new Inquiries()
  /** What the store has promised to rejected clients, as far as is known. */
  readonly promising = new PromisingBucket()
  /** The requests that wait for leased room, of this bucket or of another in their stack. They ask about the rest of it then. */
  #refills: Inquiries | undefined

  /** @param groupOf the group of a bucket instance. Called each time, as a reload may change it. */
  constructor(
    limits: BucketLimits,
    readonly key: string,
    groupOf: (name: string, key: string) => string,
    public shard: Shard,
  ) {
    super(limits)
    this.#groupOf = groupOf
  }

  get ref(): BucketRef {
    const limits = this.limits.whole ?? this.limits
    return { limits, key: this.key, group: this.#groupOf(limits.name, this.key) }
  }

  /** Neither what passed here alone nor the store's schedule may delay requests. */
  override get drainedAt(): number {
    return Math.max(super.drainedAt, this.claimableAt)
  }

  get hasRoom(): boolean {
    return this.lease?.leasesRoom === true
  }

  /** Cost units that were admitted to leased room and of which no report has told. */
  get unreported(): number {
    return this.hasRoom ? this.lease!.usedSince : 0
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
    this.#isInStep = false
    if (this.waiting > 0) this.claimableAt = this.#inTurn(Math.max(now, this.drainedAt))
  }

  /**
   * A request has passed. If the bucket was idle that was at once, and the next one waits for the turn of this instance. So it does behind
   * slots that the store has granted.
   */
  keepTurn(): void {
    if (this.shard.mode !== 'direct' || (this.#isInStep && !this.#wasIdle)) return
    this.claimableAt = this.#inTurn(this.drainedAt)
    this.#isInStep = this.claims === 0
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
    for (const moment of ['claimableAt', 'leaseDrainedAt', 'ownUntil', 'grantedUntil'] as const)
      if (this[moment] > now) this[moment] = now + ((this[moment] - now) * rate) / changed
  }

  override reset(now: number): void {
    super.reset(now)
    this.claimableAt = now
    this.grantedUntil = now
    this.ownUntil = now
    this.leaseDrainedAt = now
    this.#leaseDebt = 0
    this.changedAt = now
    this.resetAt = now
    this.#heardFrom = -Infinity
    this.#loweredAt = now
    this.promising.reset()
  }

  /** @param askedAt when the store was asked, in ms. Absent: it was not */
  levelReported(level: number, now: number, askedAt = -Infinity): void {
    this.#reported = level
    this.#reportedAt = now
    this.#heardFrom = askedAt > this.#loweredAt ? askedAt : -Infinity
  }

  /** ms for which the store would reject this cost, by what it has said in the last frame. 0: it has to be asked. */
  fullFor(cost: number, now: number): number {
    const { rate, capacity, overflow, blockFor, quota } = this.limits.whole ?? this.limits
    // The store has to know of each rejection then.
    const isTold = overflow === 'fill' || blockFor !== undefined
    if (isTold || this.hasRoom || now - this.#heardFrom > FRAME) return 0
    if (quota !== undefined) return this.#known(now) + cost > capacity + LEVEL_TOLERANCE ? quota.until - now : 0
    const wait = this.#heardFrom + (this.#reported + cost - capacity) / rate - now
    return wait > SAME_TIME ? wait : 0
  }

  /** The store is told as well. Its next answer says when this bucket is free. Until it answers the known level counts. */
  override settle(difference: number, now: number): number {
    if (this.shard.mode !== 'claimed') return super.settle(difference, now)
    const { rate, capacity: most, quota } = this.limits.whole ?? this.limits
    const capacity = quota === undefined ? most : Infinity
    const level = this.#known(now)
    const change = Math.max(-level, Math.min(difference, Math.max(0, capacity - level)))
    this.levelReported(level + change, now)
    if (difference > 0) return change
    this.changedAt = now
    if (this.lease !== undefined) return change
    for (const moment of ['claimableAt', 'grantedUntil', 'ownUntil'] as const)
      this[moment] = Math.min(this[moment], Math.max(now, this[moment] + difference / rate))
    return change
  }

  /** Whether what waits leaves in the order of its arrival, in whichever instances it waits: it is in one lane. */
  #isInOrder(place?: number): boolean {
    const { mode, keepsOrder } = this.shard
    if (mode !== 'claimed' || !keepsOrder) return false
    if (this.waiting > 0) return onlyLaneFor(this)?.stack[0] === this
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

  /** This instance gets its part of the slots, or, where the store keeps the order, those behind all others. */
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

  /** A newcomer does not queue behind others elsewhere, unless the store keeps the order: it waits half a frame in the mean. */
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

  /** A cost was admitted to leased room, or given back if it is negative. The level has drained until now. */
  useRoom(cost: number, now: number): void {
    this.lease!.use(cost, now)
    this.levelReported(this.#known(now), now)
    this.levelChanged(cost, now)
  }

  levelChanged(by: number, now: number): void {
    this.#reported += by
    if (by < 0) this.#loweredAt = now
  }

  /** Slots are claimed one by one again. The first one not before what has left has drained here, as the store does not know when. */
  endLease(): void {
    const { drainedAt, until, available, isOnlyLessee } = this.lease!
    this.#leaseDebt = Math.max(0, -available)
    // What is leased is of all instances, so a debt drains behind it. A lease that has got no slots ends with the debt of the one before.
    const paidAt = Math.max(this.leaseDrainedAt, drainedAt, until + this.#leaseDebt / this.limits.rate)
    this.leaseDrainedAt = this.#leaseDebt > LEVEL_TOLERANCE ? paidAt : drainedAt
    this.#debtUntil = this.leaseDrainedAt + (isOnlyLessee ? -Infinity : DEBT_LIFE)
    this.lease = undefined
  }

  /** Cost units that left by the last lease and that a new one has to pay for. Others may have used what has drained since. */
  leaseDebtAt(now: number): number {
    const left = Math.max(0, this.leaseDrainedAt - now) * this.limits.rate
    const debt = now < this.#debtUntil ? this.#leaseDebt : Math.min(this.#leaseDebt, left)
    return debt > LEVEL_TOLERANCE ? debt : 0
  }

  /** A cost that has left by a lease that has ended does not leave. */
  giveBackLeased(cost: number): void {
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

  get awaitsRoom(): boolean {
    return this.#refills !== undefined && this.#refills.size > 0
  }

  override get engaged(): boolean {
    return this.asked || this.lease !== undefined || super.engaged
  }

  /** What waits in other instances, and the slots of this one and of those, in cost units. All slots are given out `until` then. */
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

  /** How much more waits elsewhere than was reported. `covered` here has slots, and all are given out for `span` ms. */
  #growthOfOthers(covered: number, span: number, now: number): number {
    const reported = this.queuedElsewhere
    const { rate } = this.limits.whole ?? this.limits
    const withSlots = Math.max(0, span * rate - covered)
    return reported === 0 ? 1 : Math.max(1, (this.level(now) - this.queued - withSlots) / reported)
  }

  #known(now: number): number {
    const { rate, quota } = this.limits.whole ?? this.limits
    if (quota !== undefined) return isFormer(quota, this.#reportedAt, now) ? 0 : this.#reported
    return Math.max(0, this.#reported - Math.max(0, now - this.#reportedAt) * rate)
  }

  override level(now: number): number {
    if (this.shard.mode !== 'claimed') {
      return super.level(now) + Math.max(0, this.#fromOthers - (now - this.#fromOthersAt) * this.limits.rate)
    }
    return this.#known(now)
  }

  /** From now on the store cannot be asked. The part of the level that other instances caused leaks away here. */
  detach(now: number): void {
    if (this.lease !== undefined) {
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

/** A request has passed without the store: buckets whose shards answer count it at this instance's share of their limits. */
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
