/** What an instance has leased of one bucket instance: slots, and room to admit requests. Times are in ms, costs in cost units. */

import type { BucketLimits } from '../core/bucket/limits.js'
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { FORECAST, FRAME, PERIODS_BEHIND, SHORTEST_GRACE, SLOT_GRACE } from '../decider/constants.js'
import type { ClassDemand, LaneArrivals, LeaseAnswer, LeasedSlot, LeaseRequest } from '../decider/record.js'

/** The part of a frame's growth by which an instance that has let slots lapse may ask for more than it used. */
const GROWTH = 1.5
/** ms. Where others lease too, reports are at least this far apart: the store has at most ten in a second. */
const LEAST_APART = 100
/** A slot for so many requests is not for one of them. */
const MANY_IN_SLOT = 4
/** So many slots of a slow bucket may wait for the slots of other buckets. */
const MOST_LATE = 3
/** What so many reports in a row have found is not by chance. */
export const FEW_REPORTS = 4
/** ms. Slots with at most this between them are adjacent. */
const SAME_END = 1e-3

/** A leased slot that a request has. Times in ms. */
export interface TakenSlot {
  readonly at: number
  readonly until: number
  /** What had passed of it unused, in cost units. */
  readonly lost: number
  /** What was taken of leased slots for it, in cost units. */
  readonly owed: number
}

/** So many requests of an instance in a frame are not worth a call to the store each. */
export const MANY_REQUESTS = 50
/** So many requests of clients below the rate may come close together. */
const FEW_IN_ROOM = 8

/** ms */
export interface Span {
  readonly at: number
  readonly until: number
}

/** How a request can use a slot, in ms. */
interface SlotUse {
  /** So late at most. */
  readonly late?: number
  /** Not before. What cannot be used then any more is left to others, if there is a later slot. */
  readonly from?: number
  /** The slots of other buckets, in their order, that others have and for which they need one of this bucket. */
  readonly needed?: readonly Span[]
}

/** A slot, or what is left of it: each request that takes a part of it moves its beginning. Times in ms, costs in cost units. */
interface OwnSlot {
  at: number
  cost: number
  /** The store's name for it. Undefined: a part of it is used. */
  token: unknown
  readonly whole: number
  lost: number
}

type RoomLimits = Pick<BucketLimits, 'rate' | 'overflow' | 'blockFor'>

/** Requests that a frame of a bucket lets through, at least, so that room and slots are leased ahead. Else they belong to who asks. */
const QUICK = 2

export function isQuick(rate: number, cost: number): boolean {
  return rate * FRAME >= QUICK * cost
}

export class BucketLease {
  nextAt = -Infinity
  /** When all that is leased by anybody has drained. */
  until = -Infinity
  /** How late all instances use their slots, in ms. */
  lateBy = 0
  readonly #limits: RoomLimits
  /** Whether room is leased, too. Until then the store is asked about each request, and exactly b are admitted. */
  #isRoomOpen = false
  #isRoomKnown = false
  #askedStore = 0
  /** When all that has left has drained, in ms. */
  drainedAt = -Infinity
  /** What is left is used, and nothing more is leased. */
  ending = false
  /** Whether all that waits fits in the next slots. */
  isRoomy = false
  #level = Infinity
  #rate: number
  readonly #slots: OwnSlot[] = []
  /** Cost that has left and for which no slot was there. The next ones pay for it. */
  #debt = 0
  /** A bucket of its own: its capacity, and what it held at `#heldAt`, which drains at `#roomRate`. */
  #room = 0
  #held = 0
  #heldAt = -Infinity
  #roomRate = 0
  #roomFrom = 0
  #roomUntil = 0
  #spare = 0
  #instances: number | undefined
  /** What it held by the last report. */
  #reported = 0
  /** Since the last report: what was admitted, what asked for it, in how many requests, and what has left. */
  #admitted = 0
  #asked = 0
  #requests = 0
  #taken = 0
  /** Whether it had no room for some. */
  #isFull = false
  /** Reports in a row without that. */
  #roomyReports = 0
  /** What has lapsed since something left. */
  #lapsed = 0
  #reportedAt = -Infinity
  #answeredAt = -Infinity
  /** Whether the last report said that it could claim one by one. */
  #couldClaim = false
  /** As it was reported last. */
  #late = 0
  #isBefore = false
  /** Cost units of what waits and has no slot, as far as the store knows. */
  #known = 0
  /** Cost units of room that the last report asked for. */
  #wanted = 0
  /** In all. */
  #want = 0
  /** Whether the store gave less. */
  #isScarce = false
  /** No more room is asked for before, in ms. */
  #refillFrom = -Infinity
  /** The largest cost since the last report, and before. */
  #largest = 0
  #largestBefore = 0
  /** What could be used in the last reports, in cost units per ms. */
  readonly #paces = Array<number>(FEW_REPORTS).fill(Infinity)
  readonly #unwanted: LeasedSlot[] = []

  /** @param asked cost that has asked for admission in the last frame @param debt cost that the first slots pay for */
  constructor(limits: RoomLimits, cost: number, { asked = 0, debt = 0 }: { asked?: number; debt?: number } = {}) {
    this.#debt = debt
    this.#limits = limits
    this.#rate = limits.rate
    this.#largest = cost
    this.#wanted = asked
    // As much may come again before the next report, and needs slots.
    this.#admitted = asked
  }

  get leasesRoom(): boolean {
    return this.#isRoomOpen && !this.ending
  }

  /** Room is leased from now on: the bucket is full, or there is too much to ask the store about. */
  openRoom(): void {
    this.#roomyReports = 0
    if (this.#isRoomOpen || !this.#sharesRoom()) return
    this.#isRoomOpen = true
    this.#asked += this.#askedStore
  }

  #isQuick(): boolean {
    return isQuick(this.#rate, Math.max(this.#largest, this.#largestBefore))
  }

  #sharesRoom(): boolean {
    const { overflow, blockFor } = this.#limits
    return this.#isQuick() && overflow !== 'fill' && blockFor === undefined
  }

  askStore(cost: number): void {
    this.#askedStore += cost
  }

  /** Whether all that waits leaves in this time, in ms. Where slots were lost the level says too little. */
  leavesWithin(demand: readonly ClassDemand[], within: number): boolean {
    let waiting = 0
    for (const { cost } of demand) waiting += cost
    const isShort = Math.max(this.#level, waiting) / this.#rate < within
    return isShort && this.#requests < MANY_REQUESTS && !this.#isFull
  }

  /** Whether claims would be granted: nobody else leases, or nobody has slots that reach further ahead than this, in ms. */
  grantsClaims(within: number): boolean {
    return this.isOnlyLessee || this.until - this.#answeredAt < within
  }

  /** Whether a request that comes now has to wait for the next report, though nothing else waits. */
  isOutOfSlots(now: number): boolean {
    return this.#couldClaim && !this.ending && this.next(now) === Infinity
  }

  /** Whether slots may go to younger requests elsewhere before the next report: the store does not know of one that has come. */
  mayLoseTurn(now: number): boolean {
    return !this.ending && this.nextAt - now > FRAME && this.#known < 2 * Math.max(this.#largest, this.#largestBefore)
  }

  soonest(now: number): number {
    return Math.max(now, this.#reportedAt + LEAST_APART)
  }

  get isEmpty(): boolean {
    return this.#slots.length === 0
  }

  /** When the last slot can still be used, in ms. */
  get lastUse(): number {
    const last = this.#slots.at(-1)
    return last === undefined ? -Infinity : last.at + this.#usableFor(last)
  }

  /** When the next request can leave. Infinity: not before the next report. */
  next(now: number): number {
    this.cutLate(now)
    return this.#slots[0]?.at ?? Infinity
  }

  /** ms. A slot for several requests: the next may use what has passed in this time, within the lateness of the bound. */
  pastFor(cost: number): number {
    const whole = this.#slots[0]?.whole ?? 0
    return whole < MANY_IN_SLOT * cost ? 0 : Math.min(SLOT_GRACE, (this.instances * whole) / this.#rate)
  }

  get late(): number {
    const first = this.#slots[0]
    return first === undefined ? 0 : this.#usableFor(first)
  }

  get half(): number {
    return (this.#slots[0]?.whole ?? 0) / this.#rate / 2
  }

  cut(moment: number): void {
    this.#pass(() => moment)
  }

  /** Takes the time of a request. Returns its slot. Only if there is one (`next`). */
  take(cost: number, now: number, { late = Infinity, from, needed }: SlotUse = {}): TakenSlot {
    this.cutLate(now)
    const place = from === undefined ? 0 : this.#placeFrom(from, late, needed ?? [])
    const slot = this.#slots[place]!
    const { at, lost, whole } = slot
    const usable = this.#usableFor(slot)
    // A slot for one request is used whole, and the next one comes in its time. Else all would come late, and too close to those of
    // others. Where it was later than the bound has room for, the next one is later.
    const isWhole = whole <= cost + LEVEL_TOLERANCE && now <= at - lost / this.#rate + usable
    const owed = isWhole && !this.isOnlyLessee ? cost - lost : cost
    // What is left of a slot may be as late as it can be. Time goes on until the request leaves.
    const until = Math.max(at + Math.min(late, usable), now + SHORTEST_GRACE)
    this.#taken += cost
    this.#lapsed = 0
    this.drainedAt = Math.max(this.drainedAt, at + cost / this.#rate)
    this.#largest = Math.max(this.#largest, cost)
    this.#debt += owed
    if (place > 0) this.#payFrom(place, owed)
    this.#settleDebt()
    return { at, until, lost, owed }
  }

  giveBack({ at, lost, owed }: TakenSlot, cost: number): void {
    // It may have been reported already.
    this.#taken = Math.max(0, this.#taken - cost)
    const settled = Math.min(this.#debt, owed)
    this.#debt -= settled
    if (owed - settled <= LEVEL_TOLERANCE) return
    this.#slots.push({ at, cost: owed - settled, whole: cost, token: undefined, lost })
    this.#slots.sort((one, other) => one.at - other.at)
  }

  /**
   * When its slots can be used, in ms, in their order. Those to come, until a moment and for what waits (cost units), are as far apart as its
   * share of the rate lets them.
   */
  spans(waiting: number, until: number): Span[] {
    const spans = this.#slots.map(slot => ({ at: slot.at, until: slot.at + this.#usableFor(slot) }))
    const last = this.#slots.at(-1)
    if (last === undefined) return spans
    const apart = (this.instances * last.whole) / this.#rate
    const late = this.#usableFor(last)
    let left = waiting - this.available
    for (let at = last.at + apart; left > 0 && at < until; at += apart) {
      spans.push({ at, until: at + late })
      left -= last.whole
    }
    return spans
  }

  get isKnown(): boolean {
    return this.#instances !== undefined
  }

  /** When the slot is that comes behind those for this cost, in ms. Infinity: there is none. */
  slotAfter(ahead: number): number {
    let left = ahead + this.#debt
    for (const { at, cost } of this.#slots) {
      if (left < cost - LEVEL_TOLERANCE) return at
      left -= cost
    }
    return Infinity
  }

  get available(): number {
    let cost = -this.#debt
    for (const slot of this.#slots) cost += slot.cost
    return cost
  }

  roomAt(now: number): number {
    return this.#room - this.#holds(now)
  }

  #holds(now: number): number {
    // More may have been given back than it held.
    return this.#held <= 0 ? this.#held : Math.max(0, this.#held - this.#drainedSince(this.#heldAt, now))
  }

  #drainedSince(from: number, now: number): number {
    return this.#roomRate * Math.max(0, Math.min(now, this.#roomUntil) - from)
  }

  /** Cost units that were admitted here and that the last report does not tell of. */
  get usedSince(): number {
    return this.#admitted
  }

  hasRoomFor(cost: number, now: number): boolean {
    return this.roomAt(now) > cost - LEVEL_TOLERANCE
  }

  /** Whether this instance has no room for a cost, and would have it after a report. */
  canRefill(cost: number, now: number): boolean {
    const room = this.roomAt(now)
    // Of what is left each gets half, the only one as much as one request needs.
    const gets = this.isOnlyLessee && this.#spare >= cost ? Math.max(this.#spare / 2, cost) : this.#spare / 2
    const mayGet = !this.#isRoomKnown || room + gets >= cost
    return room < cost && mayGet && now >= this.#refillFrom
  }

  /** A report was answered. If it got less room than it asked for, and not enough for this cost, others have it. */
  refilled(cost: number, now: number): void {
    if (this.#isScarce && this.roomAt(now) < cost) this.#refillFrom = now + LEAST_APART
  }

  get isAsked(): boolean {
    return this.#asked > 0
  }

  /** A cost was admitted, or given back if it is negative. */
  use(cost: number, now: number): void {
    this.#held = this.#holds(now) + cost
    this.#heldAt = now
    this.#admitted += cost
  }

  refuse(): void {
    this.#isFull = true
  }

  ask(cost: number): void {
    this.#asked += cost
    this.#requests += 1
    this.#largest = Math.max(this.#largest, cost)
  }

  /** The schedule passes at another rate. Slots of the old one go back. */
  setRate(rate: number): void {
    this.#rate = rate
    this.#unwanted.push(...this.#slots.filter(({ token }) => token !== undefined))
    this.#slots.length = 0
    this.#debt = 0
  }

  /** What to report: the demand less what is leased already, and the slots that nothing waits for. */
  report(demand: readonly ClassDemand[], claiming: number, times: ReportTimes): Report {
    const { lead, late, now, waits, arrivals } = times
    // Of a slow bucket nothing is dealt by forecast: it would be a whole slot. What comes is reported at once.
    const couldClaim = times.couldClaim || !this.#isQuick()
    this.#couldClaim = couldClaim
    this.#leaseRoom(times.capacity)
    // Each time that it asks before a frame has passed, it asks for twice as much.
    const isEarly = this.#instances === undefined || now < this.nextAt
    this.#wanted = 2 * (isEarly ? Math.max(this.#asked, this.#wanted) : this.#asked)
    this.cutLate(now)
    const largest = Math.max(this.#largest, this.#largestBefore)
    // The first report tells of the frame before it.
    const elapsed = this.#reportedAt === -Infinity ? FRAME : Math.max(1, now - this.#reportedAt)
    // Requests come while the answer is on its way.
    const kept = this.leasesRoom
      ? Math.max(0, Math.min(this.roomAt(now), largest + (2 * this.#asked * lead) / elapsed) + Math.min(0, this.#spare))
      : 0
    const held = this.#holds(now)
    const drained = this.#drainedSince(this.#roomFrom, now)
    const isLimited = this.#lapsed > LEVEL_TOLERANCE
    const returned = [...this.#unwanted, ...this.#surplus(demand, claiming, now + lead)]
    const report = {
      lacks: waits - this.available - claiming,
      demand: uncovered(demand, {
        covered: this.available + claiming,
        forecast: Math.max(demand.length === 0 ? 0 : largest, (this.#admitted * FRAME) / Math.max(FRAME, elapsed)),
        couldClaim,
        arrivals,
        most: isLimited ? GROWTH * this.#taken + largest : Infinity,
      }),
      largest,
      held,
      drained,
      kept,
      want: this.leasesRoom ? this.#wanted + (demand.length === 0 ? 0 : largest) : -1,
      returned,
    }
    this.#known = 0
    for (const { priority, cost } of report.demand) if (priority < FORECAST) this.#known += cost
    this.#want = report.want
    this.#reported = held
    this.#room = kept
    this.#held = 0
    this.#roomRate = 0
    this.#unwanted.length = 0
    this.#admitted = 0
    this.#asked = 0
    this.#askedStore = 0
    this.#requests = 0
    this.#isFull = false
    this.#taken = 0
    this.#lapsed = 0
    if (this.#largest > 0) this.#largestBefore = this.#largest
    this.#largest = 0
    this.#reportedAt = now
    this.#late = late
    this.#isBefore = times.isBefore
    return report
  }

  /**
   * Begins or ends to lease room. Instances may hold the room of two frames, and of one request each, unused. Where little more fits
   * others would reject what fits. So room of such a bucket is leased only while it is full, or while very much asks for it.
   */
  #leaseRoom(capacity: number): void {
    // A burst is over by the second report.
    if (this.#instances === undefined) return
    const frame = this.#rate * FRAME
    const largest = this.#largestBefore
    if (capacity >= 2 * frame + (this.#instances + FEW_IN_ROOM) * largest) {
      if (this.#sharesRoom()) this.openRoom()
      else this.#isRoomOpen = false
      return
    }
    this.#roomyReports = this.#isFull || this.#requests >= MANY_REQUESTS ? 0 : this.#roomyReports + 1
    if (this.#roomyReports >= FEW_REPORTS || !this.#sharesRoom()) this.#isRoomOpen = false
  }

  /** The pace to report, where what waits now can use slots at this one, in cost units per ms: the fastest of the last reports. */
  usualPace(pace: number): number {
    this.#paces.shift()
    this.#paces.push(pace)
    return Math.max(...this.#paces)
  }

  /** The last report. Slots for what waits are kept. */
  finish(demand: readonly ClassDemand[], claiming: number, { lead, now, waits }: ReportTimes): Report {
    this.cutLate(now)
    this.ending = true
    this.#admitted = 0
    const returned = [...this.#unwanted, ...this.#surplus(demand, claiming, now + lead)]
    this.#unwanted.length = 0
    this.#reported = this.#holds(now)
    this.#held = 0
    return {
      lacks: waits - this.available - claiming,
      demand: [],
      largest: Math.max(this.#largest, this.#largestBefore),
      held: this.#reported,
      drained: this.#drainedSince(this.#roomFrom, now),
      kept: 0,
      want: 0,
      returned,
    }
  }

  answered(answer: LeaseAnswer, now: number): void {
    this.#answeredAt = now
    this.nextAt = answer.nextAt
    // Moments of an instance far away are late by the way of the answer. So that all slots keep their distances, all are as late.
    this.lateBy = answer.lateBy
    const later = Math.max(0, answer.lateBy - this.#late)
    this.until = answer.until + later
    for (const slot of answer.slots) this.#slots.push({ ...slot, at: slot.at + later, whole: slot.cost, lost: 0 })
    for (const { cost } of answer.slots) this.#known = Math.max(0, this.#known - cost)
    if (answer.slots.length > 0) this.#slots.sort((one, other) => one.at - other.at)
    this.#settleDebt()
    this.#held = this.#holds(now) + Math.max(0, answer.filled - answer.roomRate * Math.max(0, now - answer.roomFrom))
    this.#heldAt = now
    this.#room += answer.room + answer.filled
    this.#isRoomKnown = this.#want >= 0
    this.#isScarce = answer.room < this.#want - LEVEL_TOLERANCE
    this.#roomRate = answer.roomRate
    this.#roomFrom = answer.roomFrom
    this.#roomUntil = answer.roomUntil
    this.#spare = answer.spare
    this.#level = answer.level
    this.#instances = answer.instances
  }

  /** The store may have counted the report. What waits is told with the next one; where nothing waits it is told once more. */
  failed(waits: number): void {
    if (waits === 0) this.#held += this.#reported
  }

  /** Whether a request may take another slot than the first. Where the bucket is full they go by turns. */
  get hasChoice(): boolean {
    return this.isRoomy && !this.isOnlyLessee
  }

  get isOnlyLessee(): boolean {
    return this.#instances === 1
  }

  get instances(): number {
    return this.#instances ?? 1
  }

  #settleDebt(): void {
    for (let first = this.#slots[0]; first !== undefined && this.#debt > LEVEL_TOLERANCE; first = this.#slots[0]) {
      if (first.cost <= this.#debt + LEVEL_TOLERANCE) {
        this.#slots.shift()
        this.#debt = Math.max(0, this.#debt - first.cost)
        continue
      }
      this.#shorten(first, this.#debt, this.#debt / this.#rate)
      this.#debt = 0
    }
  }

  /**
   * The first slot that can be used at `from` and that nobody needs. Else the first one that can be used then. The bound of several instances
   * has room for another order.
   */
  #placeFrom(from: number, late: number, needed: readonly Span[]): number {
    const isUsable = (slot: OwnSlot): boolean => slot.at + Math.min(late, this.#usableFor(slot)) >= from
    const isNeeded = neededOf(this.#slots, needed)
    const free = this.#slots.findIndex((slot, place) => isUsable(slot) && !isNeeded[place])
    return free >= 0 ? free : Math.max(0, this.#slots.findIndex(isUsable))
  }

  #payFrom(place: number, owed: number): void {
    const slot = this.#slots[place]!
    const paid = Math.min(slot.cost, owed)
    this.#debt -= paid
    if (slot.cost - paid <= LEVEL_TOLERANCE) this.#slots.splice(place, 1)
    else this.#shorten(slot, paid, paid / this.#rate)
  }

  /** A slot begins `time` ms later, as its first `cost` was used or lost. */
  #shorten(slot: OwnSlot, cost: number, time: number): void {
    slot.at += time
    slot.cost -= cost
    slot.token = undefined
  }

  /** How late a slot can be used, in ms. The bound of n instances has room for n - 1 slots that are late, or for the grace of a stack. */
  #usableFor({ whole }: OwnSlot): number {
    const slots = this.#isBefore ? PERIODS_BEHIND : Math.min(MOST_LATE, Math.max(1, this.instances - 1))
    return Math.max(SLOT_GRACE, (slots * whole) / this.#rate)
  }

  /** What cannot be used any more at this moment, in ms, is lost: time that has passed unused, but for the grace. */
  cutLate(moment: number): void {
    this.#pass(slot => moment - this.#usableFor(slot))
  }

  /** The time of each slot before this moment is lost. */
  #pass(momentOf: (slot: OwnSlot) => number): void {
    for (let first = this.#slots[0]; first !== undefined; first = this.#slots[0]) {
      const late = momentOf(first) - first.at
      if (late <= 0) return
      const lost = late * this.#rate
      first.lost += lost
      // The rest of a slot for one request would come too close to the next one.
      const isPart = first.whole <= this.#largest + LEVEL_TOLERANCE && first.lost > first.whole / 2
      if (lost >= first.cost - LEVEL_TOLERANCE || (isPart && (!this.isOnlyLessee || this.#isNextTaken(first)))) {
        this.#slots.shift()
        this.#lapsed += first.cost
        continue
      }
      this.#lapsed += lost
      this.#shorten(first, lost, late)
      return
    }
  }

  /** Whether what comes behind the first slot belongs to a request. */
  #isNextTaken({ at, cost }: OwnSlot): boolean {
    const end = at + cost / this.#rate
    return end < this.drainedAt - SAME_END && (this.#slots[1]?.at ?? Infinity) > end + SAME_END
  }

  /** Takes out the last of the slots that nothing waits for and that others can still use. */
  #surplus(demand: readonly ClassDemand[], claiming: number, usableFrom: number): LeasedSlot[] {
    let wanted = this.#admitted - claiming
    for (const { cost } of demand) wanted += cost
    let surplus = this.available - wanted
    const returned: LeasedSlot[] = []
    for (let last = this.#slots.at(-1); last !== undefined; last = this.#slots.at(-1)) {
      if (last.token === undefined || last.at < usableFrom || last.cost > surplus + LEVEL_TOLERANCE) break
      this.#slots.pop()
      returned.unshift(last)
      surplus -= last.cost
    }
    return returned
  }
}

/** Whether each of these slots is the first one for which another bucket has a slot that is not used yet. */
function neededOf(slots: readonly OwnSlot[], needed: readonly Span[]): readonly boolean[] {
  let known = 0
  let open = 0
  return slots.map(({ at }) => {
    while (known < needed.length && needed[known]!.at <= at + SAME_END) known += 1
    while (open < known && needed[open]!.until < at) open += 1
    if (open === known) return false
    open += 1
    return true
  })
}

/** Times in ms. */
interface ReportTimes {
  readonly capacity: number
  readonly lead: number
  readonly late: number
  readonly now: number
  readonly waits: number
  readonly couldClaim: boolean
  /** Whether all that waits waits for another bucket behind this one. */
  readonly isBefore: boolean
  /** When what waits of a class came, behind what is covered of it. Undefined: the store does not keep the order. */
  readonly arrivals?: ArrivalsOf | undefined
}

type ArrivalsOf = (priority: number, covered: number) => LaneArrivals | undefined

/** What a lease itself says in a report. */
export type Report = Omit<LeaseRequest, 'bucket' | 'instance' | 'lead' | 'late' | 'pace' | 'ahead'>

interface Coverage {
  readonly covered: number
  readonly forecast: number
  readonly couldClaim: boolean
  readonly arrivals: ArrivalsOf | undefined
  readonly most: number
}

function uncovered(
  demand: readonly ClassDemand[],
  { covered, forecast, most, couldClaim, arrivals: arrivalsOf }: Coverage,
): readonly ClassDemand[] {
  const sorted = [...demand].sort((one, other) => one.priority - other.priority)
  let left = covered
  let allowed = most
  const asked: ClassDemand[] = sorted.map(({ priority, weight, cost }) => {
    const served = Math.min(left, cost)
    left -= served
    const rest = Math.min(allowed, cost - served)
    allowed -= rest
    const arrivals = rest > LEVEL_TOLERANCE ? arrivalsOf?.(priority, served) : undefined
    return { priority, weight, cost: rest, ...(arrivals && { arrivals }) }
  })
  // What it has leased serves what comes before the next slots.
  if (forecast > LEVEL_TOLERANCE) asked.push({ priority: FORECAST, weight: couldClaim ? 0 : 1, cost: forecast })
  return asked
}
