/**
 * One bucket instance: a meter (meter.ts), and the requests that wait for it.
 *
 * Its level is what the meter still *holds* plus what is *queued*: level(now) = hold(now) + queued
 *
 * A metered request adds its cost to the meter at once. A shaped one is first `queued`. At its release, never before `freeAt`,
 * its cost moves to the meter. So the two modes admit alike: in a busy period that starts at t0 the releases follow each other
 * without a gap. Between them `hold` falls at `rate`, and a release leaves `hold + queued` as it is. Both have level = sum of
 * costs - rate * (now - t0).
 *
 * *Burst.* A request leaves once the bucket holds no more of others than its *slack*, max(0, burst - cost); without a burst,
 * nothing. So after a release a bucket holds at most m = max(burst, cMax). When a release is possible depends on its cost
 * (`freeFor`). The bucket waits for the cost of the request whose turn it is (`nextCost`): a cheaper one does not overtake it.
 *
 * *Its own schedule.* Each bucket of a stack dates a release by itself, and counts its next slot from that date:
 *
 *     date = max(possible, now - grace)
 *
 * For the last bucket of the stack a release is possible in its slot, when the whole stack was free. While a request waits for
 * a bucket behind that other lanes keep busy, it is late and not idle (queue/pass-stack.ts). In the others it is possible as
 * soon as
 * - it has arrived,
 * - this bucket and those before it were free for it,
 * - its own lane's requests no longer kept a bucket behind busy. So a stack that no other lane contends for has one schedule.
 * A pause, a full gate and a late arrival end in a slot in which no bucket behind became free: then all dates are the slot.
 *
 * Lateness is counted once, whatever its reason. `graceAt` says how much counts: max(1 / rate, 5 ms) for the last bucket, which
 * the upstream sees, and four periods for the others. The rest is forfeited.
 *
 * The bound that users are promised follows. Number the releases of a bucket i..j in a window of W. Each is at most `grace`
 * later than its date and never before it, and no date is before the bucket was free. What the bucket holds is at least 0
 * before i and at most m after j. It rises by each cost and falls by at most `rate` in between. So
 *
 *     cost(i..j) <= m + rate * (date(j) - date(i)) <= m + rate * (W + grace).
 *
 * Neither priorities nor hang-ups nor appointments matter here: they choose who passes, or take out one that has not passed. An
 * armed release is dated as the core would (release/armed-releases.ts). So is the predicted wait (admission/look-ahead.ts).
 *
 * *Settling.* What a request costs may be known only after it has left. It passes with the cost that was reserved, and `settle`
 * adds the difference to what the bucket holds, or takes it out, never below 0. So
 *
 *     cost(i..j) + added(i..j) - taken(i..j) <= m + rate * (W + grace).
 *
 * What the requests i..j really cost exceeds that by no more than two errors of estimates, both of requests in flight at one
 * moment: what those of them cost more that are not settled by j, and what was taken out for requests before i that were not
 * settled at i. And by what is forgotten: a debt is at most a capacity. What was reserved in vain and has drained is lost.
 * `settle` answers what it has really added or taken out, and who settles a request again starts from there
 * (outbound/calls/charge.ts).
 *
 * A forfeited date only moves to a time at which the bucket holds less. What has drained in a stall may leave as a burst:
 * nothing left meanwhile. If limits set `grace`, a later release loses all of its lateness: two releases are never closer than
 * a period less the grace. A request that is sent later than it was released forfeits by the same rule (`postpone`) before the
 * next one passes, so the bound is that of what is sent. With a burst nothing drains in the time that is forfeited then, nor
 * while a request waits for its connection.
 */
import { PERIODS_BEHIND, SHORTEST_GRACE } from '../../decider/constants.js'
import { slackOf } from '../../decider/costs.js'
import { NONE, withEntry, withoutEntry } from '../structures/compact-list.js'
import type { Timed } from '../structures/due-heap.js'
import type { Elsewhere, LaneName } from './elsewhere.js'
import type { BucketLimits } from './limits.js'
import { LEVEL_TOLERANCE, Meter } from './meter.js'
import { Promises } from './promises.js'
import { type Held, WaitingExtras } from './waiting.js'

export type { BucketLimits } from './limits.js'

/** The rounding of a period at 5000/s after ten days, in cost units, is a tenth of this. */
const ROUNDING = 1e-5

/** Times are in ms, costs in cost units. @typeParam Source where its requests come from @typeParam Lane the queue of one key */
export class QueuedBucket<Source = unknown, Lane = unknown> extends Meter implements Timed {
  declare place: number
  /** Cost of the requests that wait to pass through. */
  declare queued: number
  declare waiting: number
  declare leastCost: number
  /** Where the requests that wait come from: one source for each node after the bucket. This is the first. */
  declare source: Source | undefined
  /** Its next releases are armed: the core need not wake for them in time. */
  declare covered: boolean
  /** How many requests have passed and are not over. Meaningless where nobody tells that they are (the library). */
  declare inFlight: number
  /** ms. Until then its last request keeps a bucket behind it busy, less that request's lateness. Infinity: not known. */
  declare busyBehind: number
  /** Undefined while nobody waits and no block lasts, and mostly else. */
  declare extras: WaitingExtras<Source, Lane> | undefined

  constructor(limits: BucketLimits) {
    super(limits)
    this.place = -1
    this.queued = 0
    this.waiting = 0
    this.leastCost = 0
    this.source = undefined
    this.covered = false
    this.inFlight = 0
    this.busyBehind = Infinity
    this.extras = undefined
  }

  get engaged(): boolean {
    if (this.waiting > 0 || (this.inFlight > 0 && this.allowed.maxInFlight !== undefined)) return true
    return this.holdsAny
  }

  /** Whether it is no more than a meter: nobody counts on it, and no block is kept. */
  get isPlain(): boolean {
    return this.source === undefined && this.extras === undefined && !this.engaged && this.place < 0
  }

  override setLimits(limits: BucketLimits, now: number): void {
    const { rate, burst } = this.limits
    // No slot becomes possible before now.
    if (burst !== limits.burst) this.set(this.leftAt(now), now)
    super.setLimits(limits, now)
    const { extras } = this
    if (extras?.pinnedDrainedAt === undefined || limits.rate === rate) return
    extras.pinnedDrainedAt = now + (Math.max(0, extras.pinnedDrainedAt - now) * rate) / limits.rate
  }

  override level(now: number): number {
    return this.hold(now) + this.queued
  }

  /** What it holds for those who look at it: the level of a store may leak while requests wait here for another bucket. */
  occupancy(now: number): number {
    return Math.max(this.queued, this.level(now))
  }

  /** Cost units that leave before a newcomer and do not wait here, where a store keeps the order of arrival. */
  aheadElsewhere(_now: number, _place: number): number {
    return 0
  }

  /** What waits for it in other instances. `lane` is that of a newcomer, if no other lane of its class waits here. */
  elsewhere(_now: number, _place: number, _lane?: LaneName): Elsewhere | undefined {
    return undefined
  }

  /** How long a request of this cost waits between those of other instances, in ms. Undefined: no others are known. */
  waitBetweenOthers(_cost: number, _now: number, _place: number): number | undefined {
    return undefined
  }

  override get drainedAt(): number {
    return this.extras?.pinnedDrainedAt ?? super.drainedAt
  }

  /** When the next release is possible. With a burst: of the request that the bucket waits for, else of any. */
  get freeAt(): number {
    return this.allowed.burst === undefined ? this.drainedAt : this.freeFor(this.nextCost)
  }

  freeFor(cost: number): number {
    const { allowed, heldAt } = this
    if (allowed.burst === undefined) return this.drainedAt
    const slack = slackOf(allowed, cost)
    const pinned = this.extras?.pinnedDrainedAt
    if (pinned !== undefined) return Math.max(heldAt, pinned - slack / allowed.rate)
    return heldAt + Math.max(0, this.held - slack) / allowed.rate
  }

  /** The cost of the request that a bucket with a burst waits for. 0: none has been picked. */
  get nextCost(): number {
    return this.extras?.nextCost ?? 0
  }

  set nextCost(cost: number) {
    if (cost !== this.nextCost) this.openExtras().nextCost = cost
  }

  /** How many of the requests that wait are set aside: they do not want a slot now. */
  get aside(): number {
    return this.extras?.aside ?? 0
  }

  set aside(aside: number) {
    this.openExtras().aside = aside
  }

  /** Whether requests wait that cost other amounts in other buckets of their stack. */
  get isMixed(): boolean {
    return this.extras !== undefined && this.extras.mixed > 0
  }

  /** Whether a request that passed towards this gate is not on the wire yet, and the burst has no room besides. */
  isHeldBefore(gate: object, cost = this.nextCost): boolean {
    if (this.extras?.held.some(({ route }) => route.gate === gate) !== true) return false
    const { burst } = this.allowed
    return burst === undefined || this.held + cost > burst + LEVEL_TOLERANCE
  }

  get holdsAny(): boolean {
    return this.extras !== undefined && this.extras.held.length > 0
  }

  /** What is left of what has passed when more passes. With a burst nothing drains while a request is not on the wire yet. */
  protected leftAt(now: number): number {
    return this.allowed.burst !== undefined && this.holdsAny ? this.held : this.hold(now)
  }

  /** A copy without its sources, and without what has passed and is not on the wire yet. `place` is that in a newcomer's stack. */
  copy(_now: number, _place?: number): QueuedBucket<Source, Lane> {
    const { maxInFlight: _, ...limits } = this.allowed
    const copy = new QueuedBucket<Source, Lane>(limits)
    copy.set(this.held, this.heldAt)
    copy.busyBehind = this.busyBehind
    copy.copyWaiting(this)
    return copy
  }

  protected copyWaiting({ queued, waiting, leastCost, extras }: QueuedBucket<Source, Lane>): void {
    this.queued = queued
    this.waiting = waiting
    this.leastCost = leastCost
    if (extras === undefined) return
    const copy = this.openExtras()
    copy.owed = extras.owed && [...extras.owed]
    copy.pinnedDrainedAt = extras.pinnedDrainedAt
    copy.fillBehindQueue = extras.fillBehindQueue
    copy.nextCost = extras.nextCost
  }

  addHeld(request: Held): void {
    const extras = this.openExtras()
    extras.held = withEntry(extras.held, request)
  }

  dropHeld(request: Held): void {
    const { extras } = this
    if (extras === undefined) return
    extras.held = withoutEntry(extras.held, request)
    this.closeExtras()
  }

  get hasPlace(): boolean {
    const { maxInFlight } = this.allowed
    return maxInFlight === undefined || this.inFlight < maxInFlight
  }

  /** Nothing can pass, whenever it is free. */
  get shut(): boolean {
    return !this.hasPlace
  }

  enter(): void {
    this.inFlight += 1
  }

  leave(): void {
    this.inFlight -= 1
  }

  /** Adds a metered cost, which passes at once. It takes room, but does not delay requests that wait already. */
  override fill(cost: number, now: number): void {
    this.endBlock(now)
    if (this.waiting > 0) this.openExtras().pinnedDrainedAt = this.drainedAt
    const { longestDelay, rate } = this.limits
    const left = this.leftAt(now)
    const most = longestDelay === undefined ? Infinity : Math.max(0, longestDelay * rate - left)
    this.set(left + Math.min(cost, most), now)
  }

  /** The bucket has just overflowed: fills or blocks it as its limits say. */
  applyOverflowPolicy(now: number): void {
    const { overflow, blockFor, capacity } = this.limits
    const room = capacity - this.level(now)
    if (overflow === 'fill' && room > 0) {
      if (this.waiting > 0) {
        const extras = this.openExtras()
        extras.fillBehindQueue = Math.min(extras.fillBehindQueue, this.hold(now)) + room
      }
      this.fill(room, now)
    }
    if (blockFor !== undefined) this.openExtras().blockedUntil = blockFor === 'drain' ? Infinity : now + blockFor
  }

  /** How much longer everything is rejected: 0, ms, or Infinity: until the bucket has drained. */
  blockedFor(now: number): number {
    const until = this.extras?.blockedUntil
    if (until === undefined) return 0
    if (until === Infinity) return this.level(now) <= LEVEL_TOLERANCE ? 0 : Infinity
    return Math.max(0, until - now)
  }

  /** Forgets a block that is over. To be called before a cost is added: a block until drained must not come back. */
  endBlock(now: number): void {
    const { extras } = this
    if (extras?.blockedUntil === undefined || this.blockedFor(now) > 0) return
    extras.blockedUntil = undefined
    this.closeExtras()
  }

  /** Whether dropping the instance loses nothing. */
  idle(now: number): boolean {
    if (this.engaged || this.hold(now) > 0 || this.blockedFor(now) > 0) return false
    return this.extras?.promises?.isOver(now) !== false
  }

  /** Forgets what passed, and any block. What is queued stays, and may leave from now on. */
  reset(now: number): void {
    this.held = 0
    this.heldAt = now
    this.busyBehind = Infinity
    const { extras } = this
    if (extras === undefined) return
    extras.fillBehindQueue = 0
    extras.pinnedDrainedAt = undefined
    extras.blockedUntil = undefined
    extras.promises = undefined
    this.closeExtras()
  }

  reserved(now: number): number {
    return this.extras?.promises?.reserved(now, this.allowed) ?? 0
  }

  /** What clients were told. Made when first needed. */
  openPromises(): Promises {
    const extras = this.openExtras()
    extras.promises ??= new Promises()
    return extras.promises
  }

  /** Forgets the promises if all of them are over, so that the bucket may sleep. */
  endPromises(now: number): void {
    const { extras } = this
    if (extras?.promises === undefined || !extras.promises.isOver(now)) return
    extras.promises = undefined
    this.closeExtras()
  }

  enqueue(cost: number): void {
    if (this.waiting === 0 || cost < this.leastCost) this.leastCost = cost
    this.queued += cost
    this.waiting += 1
  }

  dequeue(cost: number): void {
    this.waiting -= 1
    this.queued = this.waiting === 0 ? 0 : this.queued - cost
    if (this.waiting === 0) this.busyBehind = Infinity
    const { extras } = this
    if (this.waiting > 0 || extras === undefined) return
    extras.fillBehindQueue = 0
    extras.pinnedDrainedAt = undefined
    extras.nextCost = 0
    this.closeExtras()
  }

  openExtras(): WaitingExtras<Source, Lane> {
    this.extras ??= new WaitingExtras()
    return this.extras
  }

  /** Drops the extras once nobody waits. While they say more they stay, without the waiting requests. */
  closeExtras(): void {
    const { extras } = this
    if (extras === undefined || this.waiting > 0 || this.source !== undefined) return
    const { blockedUntil, held, promises } = extras
    // Nobody waits, so the next request fits: what clients were told no longer matters. Booked room does.
    const keepsRoom = promises !== undefined && promises.bookedCost > 0
    if (blockedUntil === undefined && held.length === 0 && !keepsRoom) this.extras = undefined
    else {
      extras.rankings = NONE
      extras.owed = undefined
    }
  }

  /** Lets a shaped cost pass. The next slot counts from `earliest`, in ms, or from what was metered later, which it answers. */
  pass(cost: number, earliest: number): number {
    const at = Math.max(earliest, this.heldAt)
    const { extras } = this
    const { burst, rate } = this.allowed
    const left = this.leftAt(at)
    this.held = left < ROUNDING ? cost : left + cost
    this.heldAt = at
    if (extras === undefined) return at
    // Without a burst nothing is left of shaped requests at a slot.
    const shaped = burst === undefined ? 0 : Math.max(0, ((extras.pinnedDrainedAt ?? at) - at) * rate)
    const metered = left - shaped
    extras.fillBehindQueue = metered < ROUNDING ? 0 : Math.min(extras.fillBehindQueue, metered)
    extras.pinnedDrainedAt = extras.fillBehindQueue === 0 ? undefined : at + (this.held - extras.fillBehindQueue) / rate
    return at
  }

  /** The last request was sent only at `sentAt`, in ms. False: that is within the grace, or the cost was another. */
  postpone(cost: number, sentAt: number, grace: number): boolean {
    const isOther = this.limits.burst === undefined ? this.held !== cost : this.held < cost
    const at = countedFrom(this.heldAt, sentAt, this.limits, grace)
    if (at === this.heldAt || isOther) return false
    this.heldAt = at
    return true
  }

  /**
   * What has passed turns out to have cost more by this difference, or less if it is negative. At most a capacity is held then,
   * if there is one, so nobody waits for longer. With less nothing is held that was not held before, so what has drained is not
   * given back.
   *
   * @returns what was really added, or taken out if it is negative
   */
  settle(difference: number, now: number): number {
    const { rate, quota } = this.limits
    // A quota counts all of it: nobody waits for that.
    const capacity = quota === undefined ? this.limits.capacity : Infinity
    const left = this.leftAt(now)
    const settled = Math.max(0, Math.min(left + difference, Math.max(left, capacity)))
    if (settled === left) return 0
    const { extras } = this
    if (extras?.pinnedDrainedAt !== undefined) {
      const pinned = Math.max(now, extras.pinnedDrainedAt) + (settled - left) / rate
      extras.pinnedDrainedAt = Math.max(now, pinned)
      extras.fillBehindQueue = Math.min(extras.fillBehindQueue, settled)
    }
    this.set(settled, now)
    return settled - left
  }

  passedLast(at: number): boolean {
    return this.heldAt === at
  }

  /** Makes the slot of a release free again, if nothing has passed since. `at` as it passed. */
  restore(cost: number, at: number): void {
    if (this.held < cost || this.heldAt !== at) return
    this.held = this.held === cost ? 0 : this.held - cost
    const { extras, heldAt } = this
    const { burst, rate } = this.limits
    if (burst !== undefined) {
      if (extras?.pinnedDrainedAt !== undefined) extras.pinnedDrainedAt -= cost / rate
      return
    }
    // What had been metered before does not delay those that wait.
    if (this.held > 0 && this.waiting > 0) this.openExtras().pinnedDrainedAt = heldAt
  }
}

/** When a release counts that was possible earlier, in ms. Lateness beyond the grace is lost; all of it if the limits set one. */
export function countedFrom(earliest: number, now: number, limits: BucketLimits, grace: number): number {
  if (now - earliest <= grace) return earliest
  return limits.grace === undefined ? now - grace : now
}

/** How late a release may be and still count from its slot, in ms, at a place in a stack of `stacked` buckets. */
export function graceAt({ rate, grace, lateness }: BucketLimits, place: number, stacked: number): number {
  return grace ?? lateness ?? Math.max((place < stacked - 1 ? PERIODS_BEHIND : 1) / rate, SHORTEST_GRACE)
}
