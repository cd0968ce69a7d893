/** Leases of one bucket instance: who gets which slots and how much room (docs/decisions/slot-leases.md, workers-pipe.md). */
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { DEFAULT_MIN_SHARE, LAST_PRIORITY } from '../core/priority.js'
import {
  BEAT_LIFE,
  EVEN_GRACE,
  FIRST_FRAME,
  FORECAST,
  FRAME,
  FULL_FRAME,
  KEPT_SLOT_GAP,
  LATENESS_STEP,
  LEASE_LIFE,
  LEAST_SLOTS,
  NEWCOMER_STEP,
  QUICK_LEEWAY,
  REPORT_LATE,
  REPORT_SHIFT,
  SAME_SLOT,
  SLOT_RESERVE,
  SLOTS_PER_FRAME,
  SPARE_ROOTS,
} from './constants.js'
import type { ClassDemand, LaneArrivals, LeaseAnswer, LeaseRequest, OtherDemand } from './record.js'

export interface ClassNeed {
  readonly priority: number
  /** Of a forecast: the cost units that are expected in a frame. */
  readonly weight: number
  /** Turns count by it: the weight; for a forecast the cost units that it gets in a frame. */
  part: number
  cost: number
  /** The virtual time at which it has its turn: cost units divided by `part`. */
  turn: number
  /** Undefined: it waits in several lanes, or it is not known when it came. */
  readonly arrivals: LaneArrivals | undefined
  /** Cost units that have got slots since it was reported. */
  passed: number
  /** The first of the points of `arrivals` that has not passed. */
  point: number
  readonly lessee: Lessee
  /** The place of its lessee, and the turn by which it stands in its heap: it may have come later since. */
  place: number
  key: number
}

export interface OwnedSlot {
  at: number
  readonly cost: number
}

export interface Lessee {
  readonly instance: number
  seenAt: number
  nextAt: number
  lead: number
  /** About how late moments are mapped there, in ms. */
  late: number
  largest: number
  /** Cost units per ms that it can use at most. */
  pace: number
  /** When it can use the next slot at that pace, in ms. -Infinity: at any time. */
  pacedAt: number
  demand: ClassNeed[]
  /** Not fetched yet. */
  slots: OwnedSlot[]
  /**
   * Its room is a bucket of its own, cut from this one: the capacity, which counts in the level, what it held when it was cut,
   * and the rate at which that drains.
   */
  room: number
  filled: number
  roomRate: number
  roomUntil: number
  /** Cost units that wait in it, less the slots that it has or was dealt. Negative: more slots than wait. */
  lacks: number
  /** While slots are dealt: it uses them from when it has reported, and until when it might be gone, in ms. */
  readyAt: number
  latest: number
  forecast: ClassNeed | undefined
}

/** The part of a bucket's state that leases touch. Moments in ms, the level in cost units. */
export interface LeasedState {
  level: number
  free: number
  rate: number
  /** The part of the rate at which room grows in leases, in cost units per ms. The level does not drain by it. */
  leasedRate: number
  /** All of that ends by then. */
  leasedUntil: number
  /** The room of all. */
  leasedRoom: number
  leases: BucketLeases | undefined
}

export interface BucketLeases {
  lessees: Lessee[]
  spare: OwnedSlot[]
  /** The virtual time of the last turn of each class. */
  turns: number[]
  /** What each class owes to those behind it, in cost units (queue/ready-lanes.ts). */
  owed: number[]
  /** How late all use their slots, in ms. */
  lateBy: number
  /** The part of the level by which more is known to wait than the meter says, in cost units. */
  beyond: number
  gone: Gone[]
  /** What the farthest lessee needs, in ms, and the largest cost of any. */
  lead: number
  largest: number
}

/** Cost units that wait in an instance that does not report any more, until it does or, in ms, is known to be gone. */
interface Gone {
  readonly instance: number
  readonly waits: number
  until: number
}

export type LeaseReport = Omit<LeaseRequest, 'returned'> & {
  readonly returned: OwnedSlot[]
  /** Cost units that the bucket keeps for bookings. */
  readonly reserved: number
}

export type LeaseDeal = Omit<LeaseAnswer, 'slots'> & { readonly slots: readonly OwnedSlot[] }

export function noLeases(): BucketLeases {
  const turns: number[] = []
  const owed: number[] = []
  for (let priority = 0; priority <= FORECAST; priority += 1) turns.push(0)
  for (let priority = 0; priority < LAST_PRIORITY; priority += 1) owed.push(0)
  return { lessees: [], spare: [], turns, owed, lateBy: 0, beyond: 0, gone: [], lead: 0, largest: 0 }
}

/** The clock went back by this, in ms. It is negative. */
export function shiftLeases(leases: BucketLeases, by: number): void {
  for (const lessee of leases.lessees) {
    lessee.seenAt += by
    lessee.nextAt += by
    lessee.pacedAt += by
    lessee.roomUntil += by
    for (const slot of lessee.slots) slot.at += by
  }
  leases.spare = []
  for (const gone of leases.gone) gone.until += by
}

/** @param state at `now` */
export function lease(state: LeasedState, request: LeaseReport, now: number): LeaseDeal {
  const leases = state.leases ?? noLeases()
  state.leases = leases
  // Without what was known to wait beyond it.
  state.level = Math.max(0, state.level - leases.beyond, Math.min(state.level, state.leasedRoom))
  dropDead(state, leases, request, now)
  forget(state, leases, request, now)
  const known = lesseeOf(leases, request.instance)
  const lessee = known ?? newLessee(leases, request, now)
  if (known !== undefined) takeBack(state, leases, known, request)
  // The data was lost. Since its last report others may have been given a frame more than it knows.
  else if (request.ahead > 0) state.free = Math.max(state.free, now + request.ahead + FRAME + REPORT_SHIFT)
  report(state, leases, lessee, request)
  const unused = settleRoom(state, lessee, request, now)
  // Its reports come so much later than they are planned, by the way to it and back: they are a frame and this apart.
  const lag = Math.min(lessee.lead, Math.max(0, now - lessee.nextAt))
  lessee.seenAt = now
  lessee.nextAt = now
  measure(leases)
  const newcomer = known === undefined ? lessee : undefined
  const frame =
    newcomer !== undefined && oldestOf(lessee) < Infinity
      ? FIRST_FRAME
      : Math.max(FRAME, untilNext(leases, lessee, lag, now))
  allocate(state, leases, { request, newcomer, frame }, now)
  leases.beyond = Math.max(0, waitingOf(state, leases, request, now) - state.level)
  state.level += leases.beyond
  const isDone = request.demand.length === 0 && request.want <= 0
  if (isDone) {
    leave(leases, lessee)
    shorten(state, leases, request)
  }
  const given = isDone ? 0 : leaseRoom(state, leases, lessee, { request, unused, now })
  followLateness(state, leases, lessee)
  const { slots } = lessee
  lessee.slots = []
  measure(leases)
  const next = nextReport(leases, lessee, { now, free: state.free - slackIn(state, request, leases.largest) })
  lessee.nextAt = frame < FRAME && next <= now + FRAME + REPORT_SHIFT ? now + frame : next
  lessee.roomUntil = lessee.nextAt + lessee.lead + LEASE_LIFE
  summarise(state, leases)
  let rooms = 0
  for (const other of leases.lessees) rooms += setApart(other, now)
  // Where it gets less room than it asks for, what waits is why. Who only looks, or leaves, is told what waits as well.
  const isTold = isDone || given < request.want - LEVEL_TOLERANCE
  const { nextAt, filled, roomRate, roomUntil } = lessee
  return {
    slots,
    nextAt,
    until: state.free,
    room: given,
    filled,
    roomRate,
    roomFrom: now,
    roomUntil,
    spare: spareIn(state, request),
    level: Math.max(0, state.level - rooms - (isTold ? 0 : leases.beyond)),
    instances: leases.lessees.length,
    lateBy: leases.lateBy,
    others: othersOf(leases, lessee),
  }
}

function lesseeOf({ lessees }: BucketLeases, instance: number): Lessee | undefined {
  for (const lessee of lessees) if (lessee.instance === instance) return lessee
  return undefined
}

interface OtherSum extends OtherDemand {
  weight: number
  cost: number
}

function othersOf({ lessees }: BucketLeases, lessee: Lessee): OtherDemand[] {
  const others: OtherSum[] = []
  for (const other of lessees) {
    if (other !== lessee) for (const each of other.demand) addOther(others, each)
  }
  return others
}

/** They are in the order of their priorities. */
function addOther(others: OtherSum[], { priority, weight, cost, arrivals }: ClassNeed): void {
  if (priority === FORECAST || cost <= LEVEL_TOLERANCE) return
  const lane = arrivals?.lane
  for (const known of others) {
    if (known.priority === priority && known.lane === lane) {
      known.weight += weight
      known.cost += cost
      return
    }
  }
  const added: OtherSum = lane === undefined ? { priority, weight, cost } : { priority, weight, cost, lane }
  others.push(added)
  let place = others.length - 1
  while (place > 0 && others[place - 1]!.priority > priority) {
    others[place] = others[place - 1]!
    place -= 1
  }
  others[place] = added
}

/** All use their slots as late as the farthest one. When that has left, their lateness and the schedule fall little by little. */
function followLateness(state: LeasedState, leases: BucketLeases, lessee: Lessee): void {
  const { lessees, lateBy } = leases
  let latest = 0
  for (const { late } of lessees) latest = Math.max(latest, late)
  leases.lateBy =
    lessees.length === 0 ? Math.min(lateBy, lessee.late) : Math.max(latest, lateBy - LATENESS_STEP / lessees.length)
  state.free += Math.max(0, lateBy - leases.lateBy)
}

/** Where slots are more than a frame apart the instance with the oldest request reports first, the others half a frame later. */
function nextReport(leases: BucketLeases, lessee: Lessee, { now, free }: { now: number; free: number }): number {
  const soonest = evenlySpaced(leases, lessee, now + FRAME)
  const inTime = free - leases.lead - FRAME
  if (inTime < now + FRAME) return soonest
  const since = oldestOf(lessee)
  let first = inTime
  for (const other of leases.lessees) if (other !== lessee && oldestOf(other) < since) first = inTime + FRAME / 2
  return Math.max(soonest, first)
}

/** When the oldest of its requests came that has no slot, in ms. Infinity: it is not known, or none waits. */
function oldestOf({ demand }: Lessee): number {
  let oldest = Infinity
  for (const each of demand)
    if (each.arrivals !== undefined && each.cost > LEVEL_TOLERANCE) oldest = Math.min(oldest, nextArrival(each))
  return oldest
}

/** ms until one of them reports, by when they are expected. Each is so much later. */
function untilNext({ lessees }: BucketLeases, lessee: Lessee, lag: number, now: number): number {
  if (lessees.length === 1) return 0
  let next = now + FRAME + lag
  for (const other of lessees)
    if (other !== lessee && other.nextAt + lag > now) next = Math.min(next, other.nextAt + lag)
  return next - now
}

/** Reports come to be evenly apart: else the first of some together would be dealt what is left. */
function evenlySpaced({ lessees }: BucketLeases, lessee: Lessee, at: number): number {
  let before = -Infinity
  for (const other of lessees) if (other !== lessee && other.nextAt <= at) before = Math.max(before, other.nextAt)
  return Math.max(at, Math.min(before + FRAME / Math.max(1, lessees.length), at + REPORT_SHIFT))
}

function newLessee(leases: BucketLeases, { instance, lead }: LeaseReport, now: number): Lessee {
  const lessee: Lessee = {
    instance,
    seenAt: now,
    nextAt: now,
    lead,
    late: 0,
    largest: 0,
    pace: Infinity,
    pacedAt: -Infinity,
    demand: [],
    slots: [],
    room: 0,
    filled: 0,
    roomRate: 0,
    roomUntil: now,
    lacks: 0,
    readyAt: 0,
    latest: 0,
    forecast: undefined,
  }
  leases.lessees.push(lessee)
  return lessee
}

/** What an instance that is gone has not fetched goes to the others. What it may have admitted drains, but for what waits in it. */
function dropDead(state: LeasedState, leases: BucketLeases, { bucket }: LeaseReport, now: number): void {
  for (const lessee of leases.lessees) {
    if (now > lessee.nextAt + lessee.lead + LEASE_LIFE) {
      const { instance, lacks: waits } = lessee
      if (waits > 0 && bucket.limits.overflow !== 'fill') {
        state.level = Math.max(0, state.level - setApart(lessee, now))
        leases.gone.push({ instance, waits, until: now + BEAT_LIFE })
      }
      leave(leases, lessee)
    }
  }
  for (const lessee of leases.lessees) {
    if (isLate(lessee, now)) {
      addSpare(leases.spare, lessee.slots)
      for (const { cost } of lessee.slots) lessee.lacks += cost
      lessee.slots = []
      lessee.demand = []
    }
  }
}

function isLate({ nextAt, lead }: Lessee, now: number): boolean {
  return now > nextAt + lead + REPORT_LATE
}

function leave(leases: BucketLeases, lessee: Lessee): void {
  const others: Lessee[] = []
  for (const other of leases.lessees) if (other !== lessee) others.push(other)
  leases.lessees = others
  addSpare(leases.spare, lessee.slots)
  lessee.slots = []
  lessee.room = 0
  lessee.filled = 0
  lessee.roomRate = 0
}

/** By their times. Of equal times the first stays first. Most are in order. */
function putInOrder(slots: OwnedSlot[]): void {
  for (let place = 1; place < slots.length; place += 1) {
    const slot = slots[place]!
    let at = place
    while (at > 0 && slots[at - 1]!.at > slot.at) {
      slots[at] = slots[at - 1]!
      at -= 1
    }
    slots[at] = slot
  }
}

function addSpare(spare: OwnedSlot[], slots: OwnedSlot[]): void {
  putInOrder(slots)
  let known = spare.length
  let left = slots.length
  for (const slot of slots) spare.push(slot)
  while (left > 0) {
    const place = known + left - 1
    if (known > 0 && spare[known - 1]!.at > slots[left - 1]!.at) {
      known -= 1
      spare[place] = spare[known]!
    } else {
      left -= 1
      spare[place] = slots[left]!
    }
  }
}

/** How much of what has left a bucket may still hold when the largest cost leaves, in ms. */
function slackIn({ rate }: LeasedState, { bucket }: LeaseReport, largest: number): number {
  const { burst = 0 } = bucket.limits
  return Math.max(0, burst - largest) / rate
}

/** Returned slots become spare, those of before a reset as well. */
function takeBack(state: LeasedState, leases: BucketLeases, lessee: Lessee, request: LeaseReport): void {
  for (const { at } of request.returned) lessee.pacedAt = Math.min(lessee.pacedAt, at)
  addSpare(leases.spare, request.returned)
  shorten(state, leases, request)
}

/** Spare slots at the end shorten the schedule. */
function shorten(state: LeasedState, { spare }: BucketLeases, request: LeaseReport): void {
  const slack = slackIn(state, request, request.largest)
  let last = spare[spare.length - 1]
  while (last !== undefined && Math.abs(last.at + last.cost / state.rate + slack - state.free) <= SAME_SLOT) {
    state.free = last.at + slack
    spare.pop()
    last = spare[spare.length - 1]
  }
}

function report(state: LeasedState, leases: BucketLeases, lessee: Lessee, request: LeaseReport): void {
  const { largest, lead, lacks, late, pace } = request
  lessee.lead = lead
  lessee.late = late
  lessee.largest = largest
  if (pace === Infinity) lessee.pacedAt = -Infinity
  lessee.pace = pace
  let pending = 0
  for (const { cost } of lessee.slots) pending += cost
  lessee.lacks = lacks - pending
  // What it was behind is made up for, up to a part of a frame: in another order of reports it would have been served.
  const share = (state.rate * FRAME) / leases.lessees.length
  const demand: ClassNeed[] = []
  for (const each of request.demand) {
    const present = leases.turns[each.priority]!
    demand.push(newNeed(lessee, each, { present, earliest: present - share / each.weight }))
  }
  lessee.demand = demand
  // Slots that wait for it serve the lowest class first.
  for (let priority = 0; priority < FORECAST && pending > 0; priority += 1) {
    for (const each of demand) {
      if (each.priority !== priority) continue
      const covered = Math.min(pending, each.cost)
      pass(each, covered)
      pending -= covered
    }
  }
}

function newNeed(
  lessee: Lessee,
  told: ClassDemand,
  { present, earliest }: { present: number; earliest: number },
): ClassNeed {
  const { priority, weight, cost } = told
  const isForecast = priority === FORECAST
  const expected = weight > 0 && cost > LEVEL_TOLERANCE ? Infinity : 0
  const part = isForecast ? cost : weight
  let turn = present
  for (const known of lessee.demand) {
    if (known.priority === priority) turn = isForecast ? known.turn : Math.max(known.turn, earliest)
  }
  return {
    priority,
    weight: part,
    part,
    cost: isForecast ? expected : cost,
    turn,
    arrivals: isForecast ? undefined : told.arrivals,
    passed: 0,
    point: 0,
    lessee,
    place: 0,
    key: 0,
  }
}

/** How much it may admit now, at most, in cost units. */
function setApart(lessee: Lessee, now: number): number {
  return Math.min(lessee.room, lessee.room - lessee.filled + grown(lessee, now))
}

/** How much can have drained of its room, in cost units. */
function grown({ roomRate, roomUntil, seenAt }: Lessee, now: number): number {
  return roomRate * Math.max(0, Math.min(now, roomUntil) - seenAt)
}

/** What its room holds goes back to the bucket, and all but what it keeps is free again. Returns that, in cost units. */
function settleRoom(state: LeasedState, lessee: Lessee, { held, drained, kept }: LeaseReport, now: number): number {
  const since = grown(lessee, now) - drained
  const rest = held > 0 ? Math.max(0, held - Math.max(0, since)) : held
  const unused = lessee.room - rest - kept
  state.level = Math.max(0, state.level - unused)
  lessee.room = kept
  lessee.filled = 0
  lessee.roomRate = 0
  return Math.max(0, unused)
}

/** Cost units that are left for all. Negative: more waits than fits. */
function spareIn({ level }: LeasedState, { bucket, reserved }: LeaseReport): number {
  const { capacity } = bucket.limits
  return Math.min(capacity - level, Math.max(0, capacity - level - reserved))
}

/** An instance that comes back tells what waits in it. One that does not leaves nothing. */
function forget(state: LeasedState, leases: BucketLeases, { instance }: LeaseReport, now: number): void {
  const others: Gone[] = []
  for (const gone of leases.gone) {
    if (gone.instance === instance || now > gone.until) state.level = Math.max(0, state.level - gone.waits)
    else others.push(gone)
  }
  leases.gone = others
}

/** What the farthest of them needs. An instance that has not reported counts from the next time. */
function measure(leases: BucketLeases): void {
  leases.lead = 0
  leases.largest = 0
  for (const { lead, largest } of leases.lessees) {
    leases.lead = Math.max(leases.lead, lead)
    leases.largest = Math.max(leases.largest, largest)
  }
}

/** Cost units that are known to wait in those that lease, with the room of those that are not late. It may exceed the meter. */
function waitingOf(state: LeasedState, leases: BucketLeases, request: LeaseReport, now: number): number {
  const { limits } = request.bucket
  // A rejected request may have filled it.
  if (limits.overflow === 'fill') return 0
  const ahead = Math.max(0, state.free - slackIn(state, request, leases.largest) - now)
  let waiting = ahead * state.rate
  let pace = 0
  for (const { cost } of leases.spare) waiting -= cost
  for (const lessee of leases.lessees) pace += lessee.pace
  // Time that passes between the slots of those that are slow is nobody's.
  waiting = Math.min(waiting, ahead * Math.min(state.rate, pace))
  for (const { lacks } of leases.lessees) waiting += lacks
  for (const { waits } of leases.gone) waiting += waits
  if (waiting <= LEVEL_TOLERANCE) return 0
  // What it has admitted since its report is not known to wait yet.
  for (const lessee of leases.lessees)
    if (!isLate(lessee, now)) waiting += lessee.room - lessee.filled + grown(lessee, now)
  // Slots are dealt out by what waits, for a frame and what reports and answers take. If less could wait, slots would lie idle.
  const dealt = (FRAME + 2 * leases.lead) * state.rate
  // The first slot may lie ahead by the way of an answer, or as one before it was missed. That time counts in `ahead`, and nothing waits in
  // it. It is less than one request takes.
  const idle = Math.min(leases.largest, dealt)
  return waiting - Math.max(idle, dealt - Math.max(0, limits.capacity - request.reserved))
}

interface RoomRequest {
  readonly request: LeaseReport
  readonly unused: number
  readonly now: number
}

/**
 * Sets room apart until its next report: half of what is left, or what it had, as its report is on its way for a while. It gets
 * its part of what the bucket holds as well, which it lets drain. Returns the room that is free.
 */
function leaseRoom(
  state: LeasedState,
  leases: BucketLeases,
  lessee: Lessee,
  { request, unused, now }: RoomRequest,
): number {
  const { want, largest, reserved } = request
  if (want < 0) return 0
  const { rate } = state
  const sharing = leases.lessees.length
  const left = spareIn(state, request)
  const spare = Math.max(0, left)
  const given = Math.min(want, spare, Math.max(spare / 2, unused, sharing === 1 ? largest : 0))
  let others = 0
  let rooms = 0
  let free = 0
  for (const other of leases.lessees) {
    rooms += other.room
    free += setApart(other, now)
    if (other !== lessee) others += other.roomRate
  }
  // What drains is for those who have booked.
  lessee.roomRate =
    reserved > 0 ? 0 : Math.max(0, Math.min(rate / sharing, rate - others) + Math.min(0, left) / FRAME / sharing)
  const level = state.level - leases.beyond
  lessee.filled = Math.max(0, Math.min(level - rooms, ((level - free) * lessee.roomRate) / rate))
  lessee.room += given + lessee.filled
  state.level += given
  return given
}

function summarise(state: LeasedState, leases: BucketLeases): void {
  state.leasedRate = 0
  state.leasedUntil = -Infinity
  state.leasedRoom = 0
  for (const { room, roomRate, nextAt, lead } of leases.lessees) {
    state.leasedRoom += room
    state.leasedRate += roomRate
    state.leasedUntil = Math.max(state.leasedUntil, nextAt + lead + LEASE_LIFE)
  }
  if (leases.lessees.length === 0) state.leases = undefined
}

/** What is dealt out in one report, and who lines up for it. */
interface Deal {
  readonly leases: BucketLeases
  readonly minShare: number
  readonly end: number
  /** Whether slots that nobody has a demand for are given out. */
  readonly isExpecting: boolean
  /** ms. The oldest request has a slot that is so much before the time for which its instance has leases. */
  readonly late: number
  readonly isIdle: boolean
  /** Cost units. A slot has no more. */
  readonly most: number
  /** ms. The distance of slots that are kept for newcomers. */
  readonly keptGap: number
  /** ms. A slot may come so much before the pace of its instance. */
  readonly leeway: number
  /** Those classes that need slots, the lowest first. */
  classes: ClassLine[]
  /** Those who are not there yet, or cannot use slots so fast, and when the first of them can, in ms. */
  coming: ClassNeed[]
  nextReady: number
}

interface ClassLine {
  readonly priority: number
  /** Those who can use a slot now, as a heap: who has its turn is the first one. Of equal turns the first lessee has it. */
  readonly heap: ClassNeed[]
  /** How many need slots, now or later. */
  waiting: number
}

interface Allocation {
  readonly request: LeaseReport
  /** It reports for the first time. */
  readonly newcomer: Lessee | undefined
  /** ms until its next report */
  readonly frame: number
}

/** Gives out the schedule up to the end of the next frame. */
function allocate(
  state: LeasedState,
  leases: BucketLeases,
  { request, newcomer, frame }: Allocation,
  now: number,
): void {
  const { minShare = DEFAULT_MIN_SHARE } = request.bucket.limits
  const { rate } = state
  const { lead, largest } = leases
  const most = Math.max(largest, (rate * FRAME) / SLOTS_PER_FRAME)
  const half = largest / rate / 2
  const isIdle = divide(leases, rate * FRAME)
  const deal: Deal = {
    leases,
    minShare,
    // The report of the only one is on its way for a part of the next frame, and nobody else reports meanwhile.
    end: now + lead + frame + (leases.lessees.length === 1 ? lead : 0),
    isExpecting: prepare(leases),
    late: lead + Math.min(SLOT_RESERVE, most / rate / 2),
    isIdle,
    most,
    keptGap: (KEPT_SLOT_GAP * most) / rate,
    leeway: half >= EVEN_GRACE ? half : QUICK_LEEWAY,
    classes: [],
    coming: [],
    nextReady: Infinity,
  }
  if (leases.spare.length > 0) dealSpare(deal, newcomer, now)
  dealSchedule(deal, state, { slack: slackIn(state, request, leases.largest), now })
  // Slots that were returned after the clock went back or the rate rose may lie behind the schedule.
  putInOrder(leases.spare)
}

/** Whether anybody expects anything. */
function prepare({ lessees, lead }: BucketLeases): boolean {
  let isExpecting = false
  for (const lessee of lessees) {
    // Not before it has reported.
    lessee.readyAt = lessee.nextAt + lessee.lead
    // Nothing later is kept for an instance that might be gone. Its report may take as long as its lead.
    lessee.latest = lessee.nextAt + lessee.lead + lead + FRAME
    for (const { cost } of lessee.demand) if (cost === Infinity) isExpecting = true
  }
  return isExpecting
}

function dealSpare(deal: Deal, newcomer: Lessee | undefined, now: number): void {
  const { leases } = deal
  const unclaimed: OwnedSlot[] = []
  lineUp(deal)
  for (const slot of leases.spare) {
    if (slot.at < now) continue
    const inTurn = claimantOf(deal, newcomer, slot.at)
    if (inTurn === undefined) unclaimed.push(slot)
    else give(deal, inTurn, oldestLike(deal, inTurn, slot.at), slot)
  }
  leases.spare = unclaimed
}

/** Spare slots go to what waits, then to what is expected: of newcomers only, while half of the frame is free. */
function claimantOf(deal: Deal, newcomer: Lessee | undefined, at: number): ClassNeed | undefined {
  const inTurn = nextTurn(deal, at)
  if (!deal.isIdle || (inTurn !== undefined && inTurn.priority !== FORECAST)) return inTurn
  return newcomer === undefined ? undefined : keptFor(deal, newcomer, at)
}

function dealSchedule(deal: Deal, state: LeasedState, { slack, now }: { slack: number; now: number }): void {
  const { most, end } = deal
  const { rate } = state
  let at = Math.max(state.free - slack, now)
  if (at < end) lineUp(deal)
  while (at < end) {
    const inTurn = nextTurn(deal, at)
    if (inTurn === undefined && deal.nextReady >= end) return
    // Between the slots of those that are slow there are some for others. Else the time until somebody is there passes unused.
    if (inTurn === undefined && (deal.nextReady - at < most / rate || !isAnySlow(deal, at))) at = deal.nextReady
    else {
      const length = dealSlot(deal, inTurn, at) / rate
      state.free = Math.max(state.free, at) + length
      // What waits may leave as a burst. What is expected may not use that up.
      const isWaiting = inTurn !== undefined && inTurn.priority < FORECAST
      at = Math.max(state.free - slack, isWaiting ? at : at + length)
    }
  }
}

/** Returns the cost of the slot. */
function dealSlot(deal: Deal, inTurn: ClassNeed | undefined, at: number): number {
  const { leases, most } = deal
  const { spare } = leases
  const slot = { at, cost: most }
  if (inTurn === undefined) {
    spare.push(slot)
    return most
  }
  const taker = oldestLike(deal, inTurn, at)
  const isForecast = taker.priority === FORECAST
  slot.cost = Math.min(most, isForecast ? Math.max(leases.largest, taker.part / LEAST_SLOTS) : taker.cost)
  if (isForecast && deal.isIdle && at - lastOf(spare) > deal.keptGap) spare.push(slot)
  else give(deal, inTurn, taker, slot)
  return slot.cost
}

/** The time of the last of them, in ms. */
function lastOf(slots: readonly OwnedSlot[]): number {
  const last = slots[slots.length - 1]
  return last === undefined ? -Infinity : last.at
}

/** The forecast of a newcomer, if the slot at this time is one of those for it. */
function keptFor(deal: Deal, { forecast, slots, readyAt }: Lessee, at: number): ClassNeed | undefined {
  if (forecast === undefined || !takes(deal, forecast) || at < readyAt) return undefined
  return at - lastOf(slots) > NEWCOMER_STEP * deal.keptGap ? forecast : undefined
}

/**
 * Divides a frame among the forecasts. Each instance gets what it expects. On top it gets some square roots of that, because
 * random arrivals vary by the root. The rest is divided equally, so an instance with few requests also finds a slot soon. A
 * full frame is divided by the root alone: in proportion, instances with more slots would expect more and more. Returns whether
 * at least half of the frame is free.
 */
function divide({ lessees, turns }: BucketLeases, frame: number): boolean {
  const forecasts: ClassNeed[] = []
  let expected = 0
  let roots = 0
  for (const lessee of lessees) {
    lessee.forecast = undefined
    for (const each of lessee.demand) {
      if (each.priority === FORECAST) {
        lessee.forecast = each
        forecasts.push(each)
        expected += each.weight
        roots += Math.sqrt(each.weight)
      }
    }
  }
  const isFull = expected > FULL_FRAME * frame
  const byRoot = isFull ? frame : Math.min(frame - expected, SPARE_ROOTS * roots)
  const left = isFull ? 0 : frame - expected - byRoot
  const present = turns[FORECAST]!
  for (const forecast of forecasts) {
    const { weight } = forecast
    forecast.part =
      (isFull ? 0 : weight) + (weight > 0 ? (byRoot * Math.sqrt(weight)) / roots : 0) + left / forecasts.length
    const most = forecast.part > 0 ? frame / forecasts.length / forecast.part : 0
    forecast.turn = Math.min(Math.max(forecast.turn, present - most), present + most)
  }
  return left > frame / 2
}

/** Whether it takes slots. A forecast of nothing has no weight, so it gets nothing. */
function takes({ isExpecting }: Deal, { priority, part, cost }: ClassNeed): boolean {
  if (priority === FORECAST) return isExpecting && part > LEVEL_TOLERANCE
  return cost > LEVEL_TOLERANCE
}

/** Slots come in the order of their times from now on. */
function lineUp(deal: Deal): void {
  const lines: ClassLine[] = []
  for (let priority = 0; priority <= FORECAST; priority += 1) lines.push({ priority, heap: [], waiting: 0 })
  deal.coming = []
  deal.nextReady = -Infinity
  let place = 0
  for (const lessee of deal.leases.lessees) {
    place += 1
    for (const each of lessee.demand) {
      if (takes(deal, each)) {
        each.place = place
        lines[each.priority]!.waiting += 1
        deal.coming.push(each)
      }
    }
  }
  deal.classes = []
  for (const line of lines) if (line.waiting > 0) deal.classes.push(line)
}

function isInPace({ leeway }: Deal, { pacedAt }: Lessee, at: number): boolean {
  return at >= pacedAt - leeway - SAME_SLOT
}

function comeLater(deal: Deal, need: ClassNeed): void {
  const { readyAt, pacedAt, latest } = need.lessee
  const usableAt = Math.max(readyAt, pacedAt - deal.leeway)
  if (usableAt > latest) return
  deal.coming.push(need)
  deal.nextReady = Math.min(deal.nextReady, usableAt)
}

/** Whether somebody is there who can use no slot at this time, as the last one was just before. */
function isAnySlow({ coming }: Deal, at: number): boolean {
  for (const { lessee } of coming) if (lessee.readyAt <= at) return true
  return false
}

function arrive(deal: Deal, at: number): void {
  const known = deal.coming
  deal.coming = []
  deal.nextReady = Infinity
  for (const need of known) {
    if (need.lessee.readyAt > at || !isInPace(deal, need.lessee, at)) comeLater(deal, need)
    else for (const { priority, heap } of deal.classes) if (priority === need.priority) push(heap, need)
  }
}

/** Who has the slot at this time: of the lowest class, or of one behind to which it is owed. */
function nextTurn(deal: Deal, at: number): ClassNeed | undefined {
  if (at >= deal.nextReady - SAME_SLOT) arrive(deal, at)
  let chosen: ClassNeed | undefined
  for (const { heap } of deal.classes) {
    const first = firstOf(deal, heap, at)
    if (first !== undefined) {
      if (chosen !== undefined && !isOwed(deal, chosen.priority, oldestLike(deal, first, at))) break
      chosen = first
    }
  }
  return chosen
}

/** Whether a class owes a slot to one behind it. */
function isOwed({ leases }: Deal, before: number, { priority, lessee, cost }: ClassNeed): boolean {
  return priority !== FORECAST && leases.owed[before]! + LEVEL_TOLERANCE >= Math.min(lessee.largest, cost)
}

function firstOf(deal: Deal, heap: ClassNeed[], at: number): ClassNeed | undefined {
  let first = heap[0]
  while (first !== undefined) {
    const { lessee } = first
    if (at > lessee.latest || !takes(deal, first)) pop(heap)
    else if (!isInPace(deal, lessee, at)) {
      pop(heap)
      comeLater(deal, first)
    } else if (first.key < first.turn) replaceFirst(heap, first)
    else return first
    first = heap[0]
  }
  return undefined
}

/** Who has the oldest request of the lane whose turn it is. */
function oldestLike(deal: Deal, inTurn: ClassNeed, at: number): ClassNeed {
  if (inTurn.arrivals === undefined) return inTurn
  let oldest = inTurn
  for (const lessee of deal.leases.lessees) {
    if (at + deal.late < lessee.readyAt || at > lessee.latest || !isInPace(deal, lessee, at)) continue
    for (const each of lessee.demand) {
      if (isLike(each, inTurn) && takes(deal, each) && nextArrival(each) < nextArrival(oldest)) oldest = each
    }
  }
  return oldest
}

function isLike(one: ClassNeed, other: ClassNeed): boolean {
  return one.priority === other.priority && one.arrivals?.lane === other.arrivals?.lane
}

/** When the first request came that has no slot yet, in ms. */
function nextArrival({ arrivals, passed, point }: ClassNeed): number {
  const { costs, times } = arrivals!
  if (point === 0 || point === costs.length) return times[point === 0 ? 0 : times.length - 1] ?? Infinity
  const from = costs[point - 1]!
  const since = times[point - 1]!
  return since + ((passed - from) / (costs[point]! - from)) * (times[point]! - since)
}

function pass(need: ClassNeed, cost: number): void {
  need.cost = Math.max(0, need.cost - cost)
  need.passed += cost
  if (need.arrivals === undefined) return
  const { costs } = need.arrivals
  while (need.point < costs.length && costs[need.point]! <= need.passed + LEVEL_TOLERANCE) need.point += 1
}

/** Counts a slot of a class for those before it, and for those behind it. */
function owe(deal: Deal, priority: number, cost: number): void {
  const { minShare } = deal
  const { owed } = deal.leases
  for (let before = 0; before < Math.min(priority, LAST_PRIORITY); before += 1) {
    owed[before] = Math.max(0, owed[before]! - (1 - minShare) * cost)
  }
  if (priority < LAST_PRIORITY) owed[priority] = isAwaited(deal, priority) ? owed[priority]! + minShare * cost : 0
}

function isAwaited({ classes }: Deal, behind: number): boolean {
  for (const { priority, waiting } of classes) if (priority > behind && priority < FORECAST && waiting > 0) return true
  return false
}

/** @param taker who has it. It is the turn of another, of the same lane, if the request there is older. */
function give(deal: Deal, inTurn: ClassNeed, taker: ClassNeed, slot: OwnedSlot): void {
  const { priority, lessee } = taker
  const { forecast } = lessee
  owe(deal, priority, slot.cost)
  deal.leases.turns[priority] = inTurn.turn
  inTurn.turn += slot.cost / inTurn.part
  pass(taker, slot.cost)
  lessee.slots.push(slot)
  if (lessee.pace < Infinity) lessee.pacedAt = Math.max(lessee.pacedAt, slot.at) + slot.cost / lessee.pace
  lessee.lacks -= slot.cost
  for (const line of deal.classes) {
    if (line.priority === priority) {
      if (!takes(deal, taker)) line.waiting -= 1
      // Others that stand further down are moved when they come to the top.
      if (line.heap[0] === inTurn) replaceFirst(line.heap, inTurn)
    }
  }
  // So that those who got less have the next of the slots that nobody has a demand for.
  if (forecast !== undefined && forecast.part > 0 && priority < FORECAST) forecast.turn += slot.cost / forecast.part
}

function goesBefore(one: ClassNeed, other: ClassNeed): boolean {
  return one.key < other.key || (one.key === other.key && one.place < other.place)
}

function push(heap: ClassNeed[], need: ClassNeed): void {
  need.key = need.turn
  let at = heap.length
  heap.push(need)
  while (at > 0) {
    const above = Math.floor((at - 1) / 2)
    if (goesBefore(heap[above]!, need)) break
    heap[at] = heap[above]!
    at = above
  }
  heap[at] = need
}

/** Puts another one in the place of the first one. */
function replaceFirst(heap: ClassNeed[], need: ClassNeed): void {
  need.key = need.turn
  const size = heap.length
  let at = 0
  let below = 1
  while (below < size) {
    if (below + 1 < size && goesBefore(heap[below + 1]!, heap[below]!)) below += 1
    if (goesBefore(need, heap[below]!)) break
    heap[at] = heap[below]!
    at = below
    below = 2 * at + 1
  }
  heap[at] = need
}

function pop(heap: ClassNeed[]): void {
  const last = heap.pop()!
  if (heap.length > 0) replaceFirst(heap, last)
}
