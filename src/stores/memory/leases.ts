/**
 * Leases of one bucket instance: who gets which slots and how much room. docs/decisions/slot-leases.md says why it keeps the
 * bound. lease.lua and lease.sql do the same, in turns only: where it is known when requests came, the oldest of a lane has its
 * slot (docs/decisions/workers-pipe.md).
 */
import { slackOf } from '../../core/bucket/limits.js'
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import { DEFAULT_MIN_SHARE, LAST_PRIORITY } from '../../core/priority.js'
import {
  EVEN_GRACE,
  FORECAST,
  FRAME,
  LATENESS_STEP,
  type LaneArrivals,
  LEASE_LIFE,
  type LeaseAnswer,
  type LeaseRequest,
  type OtherDemand,
  REPORT_LATE,
  REPORT_SHIFT,
  SLOT_RESERVE,
  SLOTS_PER_FRAME,
} from '../../core/store.js'
import {
  BEAT_LIFE,
  FULL_FRAME,
  KEPT_SLOT_GAP,
  LEAST_SLOTS,
  NEWCOMER_STEP,
  QUICK_LEEWAY,
  SAME_SLOT,
  SPARE_ROOTS,
} from '../constants.js'
import { type PromisingState, reservedOf } from './promises.js'

/** What a class of an instance still needs. */
interface Demand {
  readonly priority: number
  /** Of a forecast: the cost units that are expected in a frame. */
  readonly weight: number
  /** Turns count by it: the weight; for a forecast the cost units that it gets in a frame. */
  part: number
  /** Cost units without a slot. */
  cost: number
  /** The virtual time at which it has its turn: cost units divided by `part`. */
  turn: number
  /** Undefined: it waits in several lanes, or it is not known when it came. */
  readonly arrivals: LaneArrivals | undefined
  /** Cost units that have got slots since it was reported. */
  passed: number
  /** The first of the points of `arrivals` that has not passed. */
  point: number
}

interface OwnedSlot {
  readonly at: number
  readonly cost: number
}

interface Lessee {
  readonly instance: number
  seenAt: number
  /** When it reports next. */
  nextAt: number
  lead: number
  /** About how late moments are mapped there, in ms. */
  late: number
  largest: number
  /** Cost units per ms that it can use at most. */
  pace: number
  /** When it can use the next slot at that pace, in ms. -Infinity: at any time. */
  pacedAt: number
  demand: Demand[]
  /** Not fetched yet. */
  slots: OwnedSlot[]
  /** Room that counts in the level, and room that grows. */
  room: number
  roomRate: number
  roomUntil: number
  /** Cost units that wait in it, less the slots that it has or was dealt. Negative: more slots than wait. */
  lacks: number
}

/** The part of a bucket's state that leases touch. Moments in ms, the level in cost units at `at`. */
export interface LeasedState extends PromisingState {
  level: number
  at: number
  free: number
  /** The part of the rate at which room grows in leases, in cost units per ms. The level does not drain by it. */
  leasedRate: number
  /** All of that ends by then. */
  leasedUntil: number
  leases: BucketLeases | undefined
}

export interface BucketLeases {
  lessees: Lessee[]
  /** Slots that were returned, in the order of their times. */
  spare: OwnedSlot[]
  /** The virtual time of the last turn of each class. */
  turns: number[]
  /** What each class owes to those behind it, in cost units (min-share.ts). */
  owed: number[]
  /** How late all use their slots, in ms. */
  lateBy: number
  /** The part of the level by which more is known to wait than the meter says, in cost units. */
  beyond: number
  gone: Gone[]
}

/** What waits in an instance that does not report any more. It counts until the instance reports again, or until it is known to be gone. */
interface Gone {
  readonly instance: number
  /** Cost units. */
  readonly waits: number
  /** ms */
  readonly until: number
}

/** @param state at `now` */
export function lease(state: LeasedState, request: LeaseRequest, now: number): LeaseAnswer {
  state.leases ??= newLeases()
  const { leases } = state
  // Without what was known to wait beyond it.
  state.level = Math.max(0, state.level - leases.beyond)
  dropDead(state, leases, request, now)
  forget(state, leases, request, now)
  const known = leases.lessees.find(({ instance }) => instance === request.instance)
  const lessee = known ?? newLessee(leases, request, now)
  if (known !== undefined) takeBack(state, leases, known, request)
  // The data was lost. Since its last report others may have been given a frame more than it knows.
  else if (request.ahead > 0) state.free = Math.max(state.free, now + request.ahead + FRAME + REPORT_SHIFT)
  report(state, leases, lessee, request)
  const unused = settleRoom(state, lessee, request.used, now)
  lessee.seenAt = now
  lessee.nextAt = now
  allocate(state, leases, { bucket: request.bucket, newcomer: known === undefined ? lessee : undefined }, now)
  const reserved = reservedOf(state, now)
  leases.beyond = Math.max(0, waitingOf(state, leases, { ...request, reserved }, now) - state.level)
  state.level += leases.beyond
  const isDone = request.demand.length === 0 && request.want <= 0
  if (isDone) leave(leases, lessee)
  else leaseRoom(state, leases, lessee, { ...request, unused, reserved })
  followLateness(state, leases, lessee)
  const slots = lessee.slots.map(({ at, cost }) => ({ at, cost, token: at }))
  lessee.slots = []
  const slack = slackOf(request.bucket.limits, largestOf(leases)) / state.rate
  lessee.nextAt = nextReport(leases, lessee, { now, free: state.free - slack })
  lessee.roomUntil = lessee.nextAt + lessee.lead + LEASE_LIFE
  summarise(state, leases)
  let rooms = 0
  for (const other of leases.lessees) rooms += setApart(other, now)
  // Where it gets less room than it asks for, what waits is why. Who only looks, or leaves, is told what waits as well.
  const isTold = isDone || lessee.room < request.want - LEVEL_TOLERANCE
  return {
    slots,
    nextAt: lessee.nextAt,
    until: state.free,
    room: lessee.room,
    roomRate: lessee.roomRate,
    roomFrom: now,
    roomUntil: lessee.roomUntil,
    spare: spareIn(state, request, reserved),
    level: Math.max(0, state.level - rooms - (isTold ? 0 : leases.beyond)),
    instances: leases.lessees.length,
    lateBy: leases.lateBy,
    others: othersOf(leases, lessee),
  }
}

/** What waits in the others and has no slot. */
function othersOf({ lessees }: BucketLeases, lessee: Lessee): OtherDemand[] {
  const others: (OtherDemand & { weight: number; cost: number })[] = []
  for (const other of lessees) {
    if (other === lessee) continue
    for (const { priority, weight, cost, arrivals } of other.demand) {
      if (priority === FORECAST || cost <= LEVEL_TOLERANCE) continue
      const lane = arrivals?.lane
      const known = others.find(entry => entry.priority === priority && entry.lane === lane)
      if (known === undefined) others.push({ priority, weight, cost, ...(lane !== undefined && { lane }) })
      else {
        known.weight += weight
        known.cost += cost
      }
    }
  }
  return others.sort((one, other) => one.priority - other.priority)
}

/**
 * All use their slots as late as the farthest one does. When that has left, slots that were dealt out before are still used as late, by
 * the others. So the lateness falls little by little, and the schedule gives up as much time. Where nobody leases any more it falls at
 * once.
 */
function followLateness(state: LeasedState, leases: BucketLeases, lessee: Lessee): void {
  const { lessees, lateBy } = leases
  const latest = Math.max(0, ...lessees.map(({ late }) => late))
  leases.lateBy =
    lessees.length === 0 ? Math.min(lateBy, lessee.late) : Math.max(latest, lateBy - LATENESS_STEP / lessees.length)
  state.free += Math.max(0, lateBy - leases.lateBy)
}

/**
 * A bucket whose slots are more than a frame apart is reported once for each of them. The instance with the oldest request reports
 * first. The others follow half a frame later: if it stands still its slot is theirs, and there is still time to use it.
 */
function nextReport(leases: BucketLeases, lessee: Lessee, { now, free }: { now: number; free: number }): number {
  const soonest = apart(leases, lessee, now + FRAME)
  const inTime = free - leadOf(leases) - FRAME
  if (inTime < now + FRAME) return soonest
  const since = oldestOf(lessee)
  const isSecond = leases.lessees.some(other => other !== lessee && oldestOf(other) < since)
  return Math.max(soonest, isSecond ? inTime + FRAME / 2 : inTime)
}

/** When the oldest of its requests came that has no slot, in ms. Infinity: it is not known, or none waits. */
function oldestOf({ demand }: Lessee): number {
  let oldest = Infinity
  for (const each of demand)
    if (each.arrivals !== undefined && each.cost > LEVEL_TOLERANCE) oldest = Math.min(oldest, nextArrival(each))
  return oldest
}

/** Reports of different instances come to be evenly apart: else the first of some that report together would be dealt what is left. */
function apart({ lessees }: BucketLeases, lessee: Lessee, at: number): number {
  let before = -Infinity
  for (const other of lessees) if (other !== lessee && other.nextAt <= at) before = Math.max(before, other.nextAt)
  return Math.max(at, Math.min(before + FRAME / Math.max(1, lessees.length), at + REPORT_SHIFT))
}

function newLeases(): BucketLeases {
  return {
    ...{ lessees: [], spare: [], gone: [] },
    ...{ turns: zeros(FORECAST + 1), owed: zeros(LAST_PRIORITY), lateBy: 0, beyond: 0 },
  }
}

function newLessee(leases: BucketLeases, { instance, lead }: LeaseRequest, now: number): Lessee {
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
    roomRate: 0,
    roomUntil: now,
    lacks: 0,
  }
  leases.lessees.push(lessee)
  return lessee
}

/**
 * What an instance that is gone has not fetched goes to the others. What it may have admitted stays in the level, and drains. Where requests
 * wait in it, it would stay there for as long as others keep the bucket full: only what waits goes on counting.
 */
function dropDead(state: LeasedState, leases: BucketLeases, { bucket }: LeaseRequest, now: number): void {
  for (const lessee of leases.lessees.filter(({ nextAt, lead }) => now > nextAt + lead + LEASE_LIFE)) {
    const { instance, lacks: waits } = lessee
    if (waits > 0 && bucket.limits.overflow !== 'fill') {
      state.level = Math.max(0, state.level - setApart(lessee, now))
      leases.gone.push({ instance, waits, until: now + BEAT_LIFE })
    }
    leave(leases, lessee)
  }
  for (const lessee of leases.lessees) {
    if (!isLate(lessee, now)) continue
    addSpare(leases, lessee.slots)
    for (const { cost } of lessee.slots) lessee.lacks += cost
    lessee.slots = []
    lessee.demand = []
  }
}

function isLate({ nextAt, lead }: Lessee, now: number): boolean {
  return now > nextAt + lead + REPORT_LATE
}

function leave(leases: BucketLeases, lessee: Lessee): void {
  leases.lessees = leases.lessees.filter(other => other !== lessee)
  addSpare(leases, lessee.slots)
  lessee.slots = []
  lessee.room = 0
  lessee.roomRate = 0
}

function byTime(one: OwnedSlot, other: OwnedSlot): number {
  return one.at - other.at
}

function addSpare(leases: BucketLeases, slots: readonly OwnedSlot[]): void {
  if (slots.length > 0) leases.spare = [...leases.spare, ...slots].sort(byTime)
}

/** Returned slots become spare. Spare slots at the end of the schedule shorten it. What an instance returns that is not known is of a schedule before a reset. */
function takeBack(
  state: LeasedState,
  leases: BucketLeases,
  lessee: Lessee,
  { returned, bucket, largest }: LeaseRequest,
): void {
  const slack = slackOf(bucket.limits, largest) / state.rate
  const slots = returned.map(({ token, cost }) => ({ at: token as number, cost }))
  addSpare(leases, slots)
  lessee.pacedAt = Math.min(lessee.pacedAt, ...slots.map(({ at }) => at))
  const { spare } = leases
  for (let last = spare.at(-1); last !== undefined; last = spare.at(-1)) {
    if (Math.abs(last.at + last.cost / state.rate + slack - state.free) > SAME_SLOT) break
    state.free = last.at + slack
    spare.pop()
  }
}

function report(
  state: LeasedState,
  leases: BucketLeases,
  lessee: Lessee,
  { demand, largest, lead, lacks, late, pace }: LeaseRequest,
): void {
  lessee.lead = lead
  lessee.late = late
  lessee.largest = largest
  if (pace === Infinity) lessee.pacedAt = -Infinity
  lessee.pace = pace
  let pending = 0
  for (const { cost } of lessee.slots) pending += cost
  lessee.lacks = lacks - pending
  const share = (state.rate * FRAME) / leases.lessees.length
  lessee.demand = demand.map(({ priority, weight, cost, arrivals }) => {
    const known = lessee.demand.find(other => other.priority === priority)
    if (priority === FORECAST) {
      const present = leases.turns[priority]!
      return {
        ...{ priority, weight: cost, part: cost, cost: weight > 0 && cost > LEVEL_TOLERANCE ? Infinity : 0 },
        turn: known === undefined ? present : known.turn,
        ...{ arrivals: undefined, passed: 0, point: 0 },
      }
    }
    const turn = turnOf(known, leases.turns[priority]!, share / weight)
    return { priority, weight, part: weight, cost, turn, arrivals, passed: 0, point: 0 }
  })
  // Slots that wait for it serve the lowest class first.
  for (const entry of [...lessee.demand].sort((one, other) => one.priority - other.priority)) {
    const covered = Math.min(pending, entry.cost)
    if (entry.priority < FORECAST) pass(entry, covered)
    pending -= covered
  }
}

/**
 * The virtual time of the next turn of a class. What was behind is made up for, but no more than a part of a frame: in another order of
 * the reports it would have been served.
 */
function turnOf(known: Demand | undefined, present: number, credit: number): number {
  return known === undefined ? present : Math.max(known.turn, present - credit)
}

/** What counts in the level for it, admitted or not: room that was set apart, and what that has grown by since, in cost units. */
function setApart({ room, roomRate, roomUntil, seenAt }: Lessee, now: number): number {
  return room + roomRate * Math.max(0, Math.min(now, roomUntil) - seenAt)
}

/** Counts what it has admitted in place of what was set apart for it. Returns the rest of that, in cost units. */
function settleRoom(state: LeasedState, lessee: Lessee, used: number, now: number): number {
  const set = setApart(lessee, now)
  state.level = Math.max(0, state.level + used - set)
  lessee.room = 0
  lessee.roomRate = 0
  return Math.max(0, set - used)
}

/** Cost units that are left for all. Negative: more waits than fits. */
function spareIn({ level }: LeasedState, { bucket }: LeaseRequest, reserved: number): number {
  const { capacity } = bucket.limits
  return Math.min(capacity - level, Math.max(0, capacity - level - reserved))
}

/** An instance that comes back tells what waits in it. One that does not leaves nothing. */
function forget(state: LeasedState, leases: BucketLeases, { instance }: LeaseRequest, now: number): void {
  const isOver = (gone: Gone): boolean => gone.instance === instance || now > gone.until
  for (const gone of leases.gone) if (isOver(gone)) state.level = Math.max(0, state.level - gone.waits)
  leases.gone = leases.gone.filter(gone => !isOver(gone))
}

/**
 * What is known to wait in those that lease, with room that was set apart for those that are not late, in cost units. Each waits for a slot
 * that it does not have yet, or for one of the schedule. Where slots were lost it is more than the meter says.
 */
function waitingOf(
  state: LeasedState,
  leases: BucketLeases,
  { bucket, reserved }: Pick<RoomRequest, 'bucket' | 'reserved'>,
  now: number,
): number {
  // A rejected request may have filled it.
  if (bucket.limits.overflow === 'fill') return 0
  const slack = slackOf(bucket.limits, largestOf(leases)) / state.rate
  const ahead = Math.max(0, state.free - slack - now)
  let [waiting, pace] = [ahead * state.rate, 0]
  for (const { cost } of leases.spare) waiting -= cost
  for (const lessee of leases.lessees) pace += lessee.pace
  // Time that passes between the slots of those that are slow is nobody's.
  waiting = Math.min(waiting, ahead * Math.min(state.rate, pace))
  for (const { lacks } of leases.lessees) waiting += lacks
  for (const { waits } of leases.gone) waiting += waits
  if (waiting <= LEVEL_TOLERANCE) return 0
  for (const lessee of leases.lessees) if (!isLate(lessee, now)) waiting += setApart(lessee, now)
  // Slots are dealt out by what waits, for a frame and what reports and answers take. If less could wait, slots would lie idle.
  const dealt = (FRAME + 2 * leadOf(leases)) * state.rate
  return waiting - Math.max(0, dealt - Math.max(0, bucket.limits.capacity - reserved))
}

interface RoomRequest extends LeaseRequest {
  /** Cost units that were set apart for it and that it has not used. */
  readonly unused: number
  /** What is kept for others. */
  readonly reserved: number
}

/**
 * Sets room apart for it until its next report. Half of what is left stays for those that come. It keeps what it had: room grows
 * while its report is on its way, so an instance far away would get less otherwise.
 */
function leaseRoom(state: LeasedState, leases: BucketLeases, lessee: Lessee, request: RoomRequest): void {
  const { want, unused, largest, reserved } = request
  if (want < 0) return
  const alone = leases.lessees.length === 1
  const left = spareIn(state, request, reserved)
  const spare = Math.max(0, left)
  const room = Math.min(want, spare, Math.max(spare / 2, unused, alone ? largest : 0))
  let others = 0
  for (const other of leases.lessees) if (other !== lessee) others += other.roomRate
  lessee.room = room
  // What drains is for those who have booked.
  lessee.roomRate =
    reserved > 0
      ? 0
      : Math.max(0, Math.min(state.rate / leases.lessees.length, state.rate - others) + Math.min(0, left) / FRAME)
  state.level += room
}

function summarise(state: LeasedState, leases: BucketLeases): void {
  state.leasedRate = 0
  state.leasedUntil = -Infinity
  for (const { roomRate, nextAt, lead } of leases.lessees) {
    state.leasedRate += roomRate
    state.leasedUntil = Math.max(state.leasedUntil, nextAt + lead + LEASE_LIFE)
  }
  if (leases.lessees.length === 0) state.leases = undefined
}

/** Gives out the schedule up to the end of the next frame, to those who are there in time for it. `newcomer` reports for the first time. */
function allocate(state: LeasedState, leases: BucketLeases, { bucket, newcomer }: Allocation, now: number): void {
  const { limits } = bucket
  const { rate } = state
  const { lessees } = leases
  const lead = leadOf(leases)
  const largest = largestOf(leases)
  const most = Math.max(largest, (rate * FRAME) / SLOTS_PER_FRAME)
  const half = largest / rate / 2
  const leeway = half >= EVEN_GRACE ? half : QUICK_LEEWAY
  const isIdle = divide(leases, rate * FRAME)
  const isExpecting = lessees.some(({ demand }) => demand.some(({ cost }) => cost === Infinity))
  const late = lead + Math.min(SLOT_RESERVE, most / rate / 2)
  const apart = (KEPT_SLOT_GAP * most) / rate
  const share: Share = { limits, leases, lead, isExpecting, late, isIdle, most, apart, leeway }
  dealSpare(share, newcomer, now)
  dealSchedule(share, state, now)
  // Slots that were returned after the clock went back or the rate rose may lie behind the schedule.
  leases.spare.sort(byTime)
}

interface Allocation {
  readonly bucket: LeaseRequest['bucket']
  readonly newcomer: Lessee | undefined
}

/** Spare slots go to requests that wait, and then to what instances expect. While half of the frame is free only newcomers get the latter. */
function dealSpare(share: Share, newcomer: Lessee | undefined, now: number): void {
  const { leases, isIdle } = share
  const unclaimed: OwnedSlot[] = []
  for (const slot of leases.spare) {
    if (slot.at < now) continue
    const taker = nextTurn(share, slot.at)
    const isForNewcomer = isIdle && (taker === undefined || taker.demand.priority === FORECAST)
    const user = isForNewcomer ? newcomer && keptFor(share, newcomer, slot.at) : taker
    if (user === undefined) unclaimed.push(slot)
    else give(share, user, slot)
  }
  leases.spare = unclaimed
}

function dealSchedule(share: Share, state: LeasedState, now: number): void {
  const { limits, leases, most } = share
  const { rate } = state
  const largest = largestOf(leases)
  const end = endOf(leases, now)
  const slack = slackOf(limits, largest) / rate
  let at = Math.max(state.free - slack, now)
  while (at < end) {
    const taker = nextTurn(share, at)
    if (taker === undefined) {
      const coming = comingAfter(share, at)
      const first = Math.min(...coming.map(lessee => usableAt(share, lessee)))
      if (!(first > at && first < end)) break
      // Between the slots of those that are slow there are some for others. Else the time until somebody is there passes unused.
      if (first - at < most / rate || coming.every(lessee => at < readyAt(lessee))) at = first
      else {
        leases.spare.push({ at, cost: most })
        at += most / rate
        state.free = at + slack
      }
      continue
    }
    const { demand } = taker
    const enough = demand.priority === FORECAST ? Math.max(largest, demand.part / LEAST_SLOTS) : demand.cost
    const slot = { at, cost: Math.min(most, enough) }
    if (isKept(share, demand, at)) leases.spare.push(slot)
    else give(share, taker, slot)
    at += slot.cost / rate
    state.free = at + slack
  }
}

/** Whether a slot is kept for newcomers. */
function isKept({ leases, isIdle, apart }: Share, { priority }: Demand, at: number): boolean {
  return isIdle && priority === FORECAST && at - (leases.spare.at(-1)?.at ?? -Infinity) > apart
}

/** The forecast of a newcomer, if the slot at this time is one of those for it. */
function keptFor(share: Share, lessee: Lessee, at: number): Taker | undefined {
  const demand = lessee.demand.find(({ priority }) => priority === FORECAST)
  const last = lessee.slots.at(-1)?.at ?? -Infinity
  const isThere = demand !== undefined && takes(share, demand) && at >= readyAt(lessee)
  return isThere && at - last > NEWCOMER_STEP * share.apart ? { lessee, demand, inTurn: demand } : undefined
}

/**
 * Divides a frame among the forecasts. Each instance gets what it expects. On top it gets some square roots of that, because random arrivals
 * vary by the root. The rest is divided equally, so an instance with few requests also finds a slot soon. A full frame is divided by the root
 * alone: in proportion, instances with more slots would expect more and more. Returns whether at least half of the frame is free.
 */
function divide({ lessees, turns }: BucketLeases, frame: number): boolean {
  const forecasts = lessees.flatMap(({ demand }) => demand.filter(({ priority }) => priority === FORECAST))
  let expected = 0
  let roots = 0
  for (const { weight } of forecasts) {
    expected += weight
    roots += Math.sqrt(weight)
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

interface Share {
  readonly limits: LeaseRequest['bucket']['limits']
  readonly leases: BucketLeases
  readonly lead: number
  /** Whether slots that nobody has a demand for are given out. */
  readonly isExpecting: boolean
  /** ms. The oldest request has a slot that is so much before the time for which its instance has leases. */
  readonly late: number
  /** Whether at least half of the frame is free. */
  readonly isIdle: boolean
  /** Cost units. A slot has no more. */
  readonly most: number
  /** ms. The distance of slots that are kept for newcomers. */
  readonly apart: number
  /** ms. A slot may come so much before the pace of its instance. */
  readonly leeway: number
}

interface Taker {
  readonly lessee: Lessee
  readonly demand: Demand
  /** Whose turn it is. The slot may be for an older request of the same lane, elsewhere. */
  readonly inTurn: Demand
}

/** Whether it takes slots. A forecast of nothing has no weight, so it gets nothing. */
function takes({ isExpecting }: Share, { priority, part, cost }: Demand): boolean {
  return priority === FORECAST ? isExpecting && part > LEVEL_TOLERANCE : cost > LEVEL_TOLERANCE
}

/** Not before it has reported. */
function readyAt({ nextAt, lead }: Lessee): number {
  return nextAt + lead
}

/** Nor sooner than its pace lets it use one. */
function usableAt(share: Share, lessee: Lessee): number {
  return Math.max(readyAt(lessee), lessee.pacedAt - share.leeway)
}

function isInPace({ leeway }: Share, { pacedAt }: Lessee, at: number): boolean {
  return at >= pacedAt - leeway - SAME_SLOT
}

/** Who gets slots later, though nobody can use one at this time. */
function comingAfter(share: Share, at: number): Lessee[] {
  const { leases, lead } = share
  return leases.lessees.filter(lessee => {
    const isInTime = Math.max(at, usableAt(share, lessee)) <= latestOf(lessee, lead)
    return isInTime && lessee.demand.some(each => takes(share, each))
  })
}

/** Nothing later is kept for an instance that might be gone. Its report may take as long as its lead. */
function latestOf(lessee: Lessee, lead: number): number {
  return lessee.nextAt + lessee.lead + lead + FRAME
}

/** What the farthest of them needs. An instance that has not reported counts from the next time. */
function leadOf({ lessees }: BucketLeases): number {
  return Math.max(0, ...lessees.map(({ lead }) => lead))
}

/** The report of the only one is on its way for a part of the next frame, and nobody else reports meanwhile. */
function endOf(leases: BucketLeases, now: number): number {
  const lead = leadOf(leases)
  return now + lead + FRAME + (leases.lessees.length === 1 ? lead : 0)
}

function largestOf({ lessees }: BucketLeases): number {
  return Math.max(0, ...lessees.map(({ largest }) => largest))
}

/** Who has the slot at this time: of the lowest class, or of one behind to which it is owed. */
function nextTurn(share: Share, at: number): Taker | undefined {
  const { leases } = share
  let chosen: Taker | undefined
  for (const taker of firstsOf(share, at)) {
    if (taker === undefined) continue
    if (chosen !== undefined && taker.demand.priority === FORECAST) break
    if (chosen !== undefined && leases.owed[chosen.demand.priority]! + LEVEL_TOLERANCE < costOf(taker)) break
    chosen = taker
  }
  return chosen
}

/** Who has the turn of each class at this time. */
function firstsOf(share: Share, at: number): (Taker | undefined)[] {
  const { leases, lead } = share
  const firsts: (Taker | undefined)[] = []
  for (const lessee of leases.lessees) {
    if (at < readyAt(lessee) || at > latestOf(lessee, lead) || !isInPace(share, lessee, at)) continue
    for (const demand of lessee.demand) {
      if (!takes(share, demand)) continue
      const known = firsts[demand.priority]
      if (known === undefined || demand.turn < known.demand.turn)
        firsts[demand.priority] = { lessee, demand, inTurn: demand }
    }
  }
  return firsts.map(first => first && oldestLike(share, first, at))
}

/** Who has the oldest request of the lane whose turn it is. */
function oldestLike(share: Share, taker: Taker, at: number): Taker {
  const { arrivals, priority } = taker.demand
  if (arrivals === undefined) return taker
  let oldest = taker
  let since = nextArrival(taker.demand)
  for (const lessee of share.leases.lessees) {
    const isThere = at + share.late >= readyAt(lessee) && at <= latestOf(lessee, share.lead)
    if (!isThere || !isInPace(share, lessee, at)) continue
    for (const demand of lessee.demand) {
      if (demand.priority !== priority || demand.arrivals?.lane !== arrivals.lane || !takes(share, demand)) continue
      const came = nextArrival(demand)
      if (came >= since) continue
      since = came
      oldest = { lessee, demand, inTurn: taker.inTurn }
    }
  }
  return oldest
}

/** When the first request came that has no slot yet, in ms. */
function nextArrival(demand: Demand): number {
  const { arrivals, passed, point } = demand
  const { costs, times } = arrivals!
  if (point === 0 || point === costs.length) return times.at(point === 0 ? 0 : -1) ?? Infinity
  const [from, to] = [costs[point - 1]!, costs[point]!]
  return times[point - 1]! + ((passed - from) / (to - from)) * (times[point]! - times[point - 1]!)
}

function pass(demand: Demand, cost: number): void {
  demand.cost = Math.max(0, demand.cost - cost)
  demand.passed += cost
  const costs = demand.arrivals?.costs ?? []
  while (demand.point < costs.length && costs[demand.point]! <= demand.passed + LEVEL_TOLERANCE) demand.point += 1
}

function costOf({ lessee, demand }: Taker): number {
  return Math.min(lessee.largest, demand.cost)
}

function give({ limits, leases }: Share, { lessee, demand, inTurn }: Taker, slot: OwnedSlot): void {
  const { priority } = demand
  const { minShare = DEFAULT_MIN_SHARE } = limits
  const { owed } = leases
  for (let before = 0; before < Math.min(priority, LAST_PRIORITY); before += 1) {
    owed[before] = Math.max(0, owed[before]! - (1 - minShare) * slot.cost)
  }
  if (priority < LAST_PRIORITY) {
    const isAwaited = leases.lessees.some(other => other.demand.some(behind => isBehind(behind, priority)))
    owed[priority] = isAwaited ? owed[priority]! + minShare * slot.cost : 0
  }
  leases.turns[priority] = inTurn.turn
  inTurn.turn += slot.cost / inTurn.part
  pass(demand, slot.cost)
  lessee.slots.push(slot)
  if (lessee.pace < Infinity) lessee.pacedAt = Math.max(lessee.pacedAt, slot.at) + slot.cost / lessee.pace
  lessee.lacks -= slot.cost
  // So that those who got less have the next of the slots that nobody has a demand for.
  if (priority === FORECAST) return
  for (const forecast of lessee.demand) {
    if (forecast.priority === FORECAST && forecast.part > 0) forecast.turn += slot.cost / forecast.part
  }
}

function isBehind(demand: Demand, priority: number): boolean {
  return demand.priority > priority && demand.priority < FORECAST && demand.cost > LEVEL_TOLERANCE
}

function zeros(length: number): number[] {
  return Array.from({ length }, () => 0)
}
