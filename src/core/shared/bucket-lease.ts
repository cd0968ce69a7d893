/** What an instance has leased of one bucket instance: slots, and room to admit requests. Times are in ms, costs in cost units. */

import type { BucketLimits } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { type ClassDemand, FRAME, type LeaseAnswer, type LeasedSlot, SLOT_GRACE } from '../store.js'

/** The part of a frame's growth by which an instance that has let slots lapse may ask for more than it used. */
const GROWTH = 1.5

/** ms. Where others lease too, reports are at least this far apart: the store has at most ten in a second. */
const LEAST_APART = 100

/** A slot, or what is left of it. */
interface OwnSlot extends LeasedSlot {
  /** Cost units of the whole slot. */
  readonly whole: number
}

export class BucketLease {
  /** When to report next. */
  nextAt = -Infinity
  /** When all that is leased by anybody has drained. */
  until = -Infinity
  readonly #leasesRoom: boolean
  /** What is left is used, and nothing more is leased. */
  ending = false
  #level = Infinity
  #rate: number
  readonly #slots: OwnSlot[] = []
  /** Cost that has left and for which no slot was there. The next ones pay for it. */
  #debt = 0
  /** Without what has grown since `#roomFrom`. */
  #room = 0
  #roomRate = 0
  #roomFrom = 0
  #roomUntil = 0
  #spare = 0
  #instances = 1
  /** Admitted and not reported. */
  #unreported = 0
  /** What the last report said of it. */
  #reported = 0
  /** Since the last report: what was admitted, what asked for it, what has left, what lapsed. */
  #admitted = 0
  #asked = 0
  #taken = 0
  #lapsed = 0
  #reportedAt = -Infinity
  /** The largest cost since the last report, and before. */
  #largest = 0
  #largestBefore = 0
  /** To be returned with the next report. */
  readonly #unwanted: LeasedSlot[] = []

  /** @param cost of a request that waits */
  constructor({ rate, overflow, blockFor }: Pick<BucketLimits, 'rate' | 'overflow' | 'blockFor'>, cost: number) {
    this.#rate = rate
    this.#largest = cost
    // All have to know of a full bucket that blocks or fills.
    this.#leasesRoom = overflow !== 'fill' && blockFor === undefined
  }

  /** Whether requests are admitted by the room that is leased. */
  get leasesRoom(): boolean {
    return this.#leasesRoom && !this.ending
  }

  /** Whether so little waits everywhere that claims one by one are better. Where slots were lost the level says too little. */
  isEasy(demand: readonly ClassDemand[]): boolean {
    let waiting = 0
    for (const { cost } of demand) waiting += cost
    const isShort = Math.max(this.#level, waiting) / this.#rate < FRAME / 2
    return isShort && this.#asked <= this.#admitted + LEVEL_TOLERANCE
  }

  get isEmpty(): boolean {
    return this.#slots.length === 0
  }

  /** When the last slot can still be used, in ms. */
  get lastUse(): number {
    return (this.#slots.at(-1)?.at ?? -Infinity) + SLOT_GRACE
  }

  /** When the next request can leave. Infinity: not before the next report. */
  next(now: number): number {
    this.#lapse(now)
    return this.#slots[0]?.at ?? Infinity
  }

  /** Takes the time of a request. Returns its slot. Only if there is one (`next`). */
  take(cost: number, now: number): number {
    this.#lapse(now)
    const { at } = this.#slots[0]!
    this.#taken += cost
    this.#largest = Math.max(this.#largest, cost)
    this.#debt += cost
    this.#settleDebt()
    return at
  }

  /** The slot of a request that does not leave. */
  untake(at: number, cost: number): void {
    this.#taken -= cost
    const owed = Math.min(this.#debt, cost)
    this.#debt -= owed
    if (cost - owed <= LEVEL_TOLERANCE) return
    this.#slots.push({ at, cost: cost - owed, whole: cost, token: undefined })
    this.#slots.sort((one, other) => one.at - other.at)
  }

  /** Cost of the slots that are left. */
  get available(): number {
    let cost = -this.#debt
    for (const slot of this.#slots) cost += slot.cost
    return cost
  }

  /** How much it may admit now. */
  roomAt(now: number): number {
    return this.#room + this.#roomRate * Math.max(0, Math.min(now, this.#roomUntil) - this.#roomFrom)
  }

  /** Whether this instance has no room for a cost, and would have it after the next report. */
  canRefill(cost: number, now: number): boolean {
    const room = this.roomAt(now)
    if (this.isSole) return room < cost && room + this.#spare >= cost
    // Of what is left each gets half.
    return room < cost && room + this.#spare / 2 >= cost && now - this.#reportedAt >= LEAST_APART
  }

  /** Whether anything has asked for admission since the last report. */
  get isAsked(): boolean {
    return this.#asked > 0
  }

  /** A cost was admitted, or given back if it is negative. */
  use(cost: number): void {
    this.#room -= cost
    this.#unreported += cost
    this.#admitted += cost
  }

  /** A cost has asked for admission. */
  ask(cost: number): void {
    this.#asked += cost
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
  report(demand: readonly ClassDemand[], claiming: number, lead: number, now: number): Report {
    this.#lapse(now)
    const largest = Math.max(this.#largest, this.#largestBefore)
    const elapsed = Math.max(1, now - this.#reportedAt)
    // Requests come while the answer is on its way.
    const kept = this.leasesRoom
      ? Math.max(0, Math.min(this.roomAt(now), largest + (2 * this.#asked * lead) / elapsed))
      : 0
    const isLimited = this.#lapsed > LEVEL_TOLERANCE
    const returned = [...this.#unwanted, ...this.#surplus(demand, claiming, now + lead)]
    const report = {
      demand: uncovered(demand, {
        covered: this.available + claiming,
        forecast: Math.max(0, this.#admitted),
        most: isLimited ? GROWTH * this.#taken + largest : Infinity,
      }),
      largest,
      used: this.#unreported + kept,
      want: this.#leasesRoom ? 2 * this.#asked + (demand.length === 0 ? 0 : largest) : -1,
      returned,
    }
    this.#reported = report.used
    this.#unreported = -kept
    this.#room = kept
    this.#roomRate = 0
    this.#unwanted.length = 0
    this.#admitted = 0
    this.#asked = 0
    this.#taken = 0
    this.#lapsed = 0
    if (this.#largest > 0) this.#largestBefore = this.#largest
    this.#largest = 0
    this.#reportedAt = now
    return report
  }

  /** The last report. Slots for what waits are kept. */
  finish(demand: readonly ClassDemand[], claiming: number, lead: number, now: number): Report {
    this.#lapse(now)
    this.ending = true
    this.#admitted = 0
    const returned = [...this.#unwanted, ...this.#surplus(demand, claiming, now + lead)]
    this.#unwanted.length = 0
    this.#reported = this.#unreported
    this.#unreported = 0
    return {
      demand: [],
      largest: Math.max(this.#largest, this.#largestBefore),
      used: this.#reported,
      want: 0,
      returned,
    }
  }

  answered(answer: LeaseAnswer): void {
    this.nextAt = answer.nextAt
    this.until = answer.until
    for (const slot of answer.slots) this.#slots.push({ ...slot, whole: slot.cost })
    if (answer.slots.length > 0) this.#slots.sort((one, other) => one.at - other.at)
    this.#settleDebt()
    this.#room += answer.room
    this.#roomRate = answer.roomRate
    this.#roomFrom = answer.roomFrom
    this.#roomUntil = answer.roomUntil
    this.#spare = answer.spare
    this.#level = answer.level
    this.#instances = answer.instances
  }

  /** The store has not answered. It may have counted the report, which is counted once more then. */
  failed(): void {
    this.#unreported += this.#reported
  }

  get isSole(): boolean {
    return this.#instances === 1
  }

  #settleDebt(): void {
    for (let first = this.#slots[0]; first !== undefined && this.#debt > LEVEL_TOLERANCE; first = this.#slots[0]) {
      this.#slots.shift()
      if (first.cost <= this.#debt + LEVEL_TOLERANCE) {
        this.#debt = Math.max(0, this.#debt - first.cost)
        continue
      }
      const cost = first.cost - this.#debt
      this.#slots.unshift({ ...first, at: first.at + this.#debt / this.#rate, cost, token: undefined })
      this.#debt = 0
    }
  }

  /** Time that has passed unused is lost, but for the grace. */
  #lapse(now: number): void {
    for (let first = this.#slots[0]; first !== undefined; first = this.#slots[0]) {
      const late = now - SLOT_GRACE - first.at
      if (late <= 0) return
      const lost = late * this.#rate
      this.#slots.shift()
      if (lost >= first.cost - LEVEL_TOLERANCE) {
        this.#lapsed += first.cost
        continue
      }
      // The rest of a slot that is for one request would come too close to the slot of another instance.
      const isPart = !this.isSole && first.whole <= this.#largest + LEVEL_TOLERANCE && lost > first.whole / 2
      this.#lapsed += isPart ? first.cost : lost
      if (!isPart) this.#slots.unshift({ ...first, at: first.at + late, cost: first.cost - lost, token: undefined })
      if (!isPart) return
    }
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

export interface Report {
  readonly demand: readonly ClassDemand[]
  readonly largest: number
  readonly used: number
  readonly want: number
  readonly returned: readonly LeasedSlot[]
}

interface Coverage {
  /** Cost for which slots are there. They serve the lowest class first. */
  readonly covered: number
  /** Cost that is expected to come. It is of the last class that waits. */
  readonly forecast: number
  /** More is not asked for. */
  readonly most: number
}

function uncovered(demand: readonly ClassDemand[], { covered, forecast, most }: Coverage): readonly ClassDemand[] {
  const sorted = [...demand].sort((one, other) => one.priority - other.priority)
  let left = covered
  let allowed = most
  return sorted.map(({ priority, weight, cost }, place) => {
    const wanted = place === sorted.length - 1 ? cost + forecast : cost
    const served = Math.min(left, wanted)
    left -= served
    const asked = Math.min(allowed, wanted - served)
    allowed -= asked
    return { priority, weight, cost: asked }
  })
}
