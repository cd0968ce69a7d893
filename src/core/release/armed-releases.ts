/**
 * Releases that are armed: something else, faster than this process, sends them in their slots. The core decides, and takes
 * note later.
 *
 * What is armed has to be what the core would do at the slot. So it arms only what it can foresee:
 * 1. The lane is alone: no other lane waits for a bucket of its stack. Then its requests leave in order, the first when all its
 *    buckets are free, and each next one when the one before has drained from all of them:
 *
 *        slot(1) = max(freeAt)        slot(n + 1) = slot(n) + max(cost(n) / rate)
 *
 *    Nothing metered may be left in its buckets, as that delays the slots behind it. With a burst the first leave at once, by the
 *    core, and a next one when the buckets have drained to its slack.
 * 2. Its gate is open and will be: it has no limit, or it has room for all that is armed and nobody else waits at it.
 * 3. No request expires before its slot.
 * 4. None of its buckets bounds the requests in flight: when they end is not known.
 * Whatever could change one of these takes back first what is armed, from the last to the first: a reload, a pause, a new lane,
 * a metered cost, a cancellation, an arrival that takes the last place in flight. If one has been sent in the meantime the
 * caller settles once more, which takes note of it. So at any moment what has been sent is what the core releases when it
 * settles.
 *
 * The sender wakes the core when it has sent a request that no other follows. A request that is sent so late that its lateness
 * is forfeited moves the slots behind it: those are not sent then (`ReleasePlan.latest`).
 */
import { slackOf } from '../../decider/costs.js'
import { graceAt } from '../bucket/queued-bucket.js'
import { type Arrival, costAt, type Gate, type Lane, type SharedBucket, type Ticket } from '../queue/lane.js'
import { isLate } from '../queue/pass-stack.js'
import { onlyLaneAt, onlyLaneFor, type ReadyLanes } from '../queue/ready-lanes.js'
import { findLane } from '../queue/tree.js'
import type { DueHeap } from '../structures/due-heap.js'

/** ms. As many releases of a lane are armed as fall due in this time. */
const AHEAD = 5
/** So many at least, if they fall due in `MOST_AHEAD` ms. */
const LEAST = 2
const MOST_AHEAD = 25
/** ms. The sender tells when it has sent the last of a lane. This long after a slot the core looks without being told. */
const UNTOLD = 100
/** ms. A release due sooner is not armed. */
const TOO_SOON = 0.05
/** ms. Rounding. */
const MARGIN = 1e-3

export class ArmedReleases {
  readonly #readyLanes: ReadyLanes
  readonly #deadlines: DueHeap<Ticket>
  readonly #now: () => number
  readonly #lanes = new Set<Lane>()
  readonly #changed = new Set<Lane>()

  constructor(readyLanes: ReadyLanes, deadlines: DueHeap<Ticket>, now: () => number) {
    this.#now = now
    this.#readyLanes = readyLanes
    this.#deadlines = deadlines
  }

  changed(lane: Lane): void {
    this.#changed.add(lane)
  }

  arm(now: number): void {
    for (const lane of this.#changed) this.#armLane(lane, now)
    this.#changed.clear()
    while (this.#readyLanes.uncoveredDue <= now + MOST_AHEAD) {
      const lane = this.#readyLanes.nextAlone
      if (lane === undefined || !this.#armLane(lane, now)) return
    }
  }

  /** When to look again, in ms: the core has to take note, or more can be armed. Some ms do not matter. */
  dueAfter(now: number): number {
    const { coveredDue, nextAlone, uncoveredDue } = this.#readyLanes
    const comes =
      nextAlone !== undefined && uncoveredDue > now + MOST_AHEAD ? uncoveredDue - MOST_AHEAD + AHEAD : Infinity
    return Math.min(coveredDue + UNTOLD, comes)
  }

  /** Takes back what a request that joins its lane `behind` the others, or goes `before` them, could change. False as `recall`. */
  recallFor(arrival: Arrival, place: 'behind' | 'before'): boolean {
    if (this.#lanes.size === 0) return true
    const known = place === 'behind' ? findLane(arrival) : undefined
    const { stack } = arrival
    const { gate } = arrival.route
    let all = known !== undefined || gate.maxInFlight === Infinity || this.recallAll(gate)
    if (known === undefined) for (const bucket of stack) all = this.recallBucket(bucket) && all
    return all
  }

  /** @returns false if some of it has been sent: its slot has passed, and the caller has to settle once more */
  recall(lane: Lane): boolean {
    let last = lane.lastArmed
    for (; last?.armed !== undefined; last = last.previous) {
      if (!last.armed.revoke()) break
      last.armed.close()
      last.armed = undefined
      lane.route.gate.disarm()
    }
    const isRecalled = last === undefined && lane.lastArmed !== undefined
    this.#setLast(lane, last)
    // While the core slept it did not take note of buckets that became free before the slot.
    const now = this.#now()
    if (isRecalled && freeAt(lane) > now) this.#readyLanes.catchUp(lane, now)
    this.changed(lane)
    return last === undefined
  }

  /** As `recall`, for the lane that waits alone for a bucket, if it is at this gate. */
  recallBucket(bucket: SharedBucket, gate?: Gate): boolean {
    const lane = onlyLaneFor(bucket)
    if (lane?.lastArmed === undefined || (gate !== undefined && lane.gate !== gate)) return true
    return this.recall(lane)
  }

  /** As `recall`, for all lanes, or those at a gate. */
  recallAll(gate?: Gate): boolean {
    let all = true
    for (const lane of this.#lanes) {
      if (gate === undefined || lane.route.gate === gate) all = this.recall(lane) && all
    }
    return all
  }

  /** A ticket is released now. @returns when it was sent, in ms; undefined: only the core can send it */
  take({ armed, lane, previous }: Ticket): number | undefined {
    if (armed === undefined) return undefined
    lane.route.gate.armed -= 1
    if (lane.lastArmed?.armed === armed) this.#setLast(lane, previous)
    this.changed(lane)
    return armed.revoke() ? undefined : Math.max(armed.slot, armed.sentAt ?? 0)
  }

  /** A ticket that was taken has been sent. What is armed behind it stands if its slots are still those. */
  sent(ticket: Ticket): void {
    const { armed, lane } = ticket
    if (armed === undefined) return
    const next = lane.lastArmed === undefined ? undefined : lane.first?.armed
    if (next !== undefined && Math.abs(freeAt(lane) - next.slot) > MARGIN) this.recall(lane)
    armed.close()
    ticket.armed = undefined
  }

  /** Arms what it can of a lane. @returns whether the core need not wake in time: all that is due soon is armed */
  #armLane(lane: Lane, now: number): boolean {
    if (!isForeseeable(lane)) return false
    let last = lane.lastArmed
    let ticket = last === undefined ? lane.first : last.next
    let slot = last === undefined ? freeAt(lane) : slotAfter(last, ticket)
    const most = mostArmed(lane, slot)
    for (let count = countArmed(lane); ticket !== undefined && isSoon(slot, now, count); count += 1) {
      if (slot < now + TOO_SOON || slot > this.#deadlines.dueOf(ticket)) break
      if (count >= most || !arm(ticket, slot, last)) break
      last = ticket
      ticket = ticket.next
      slot = slotAfter(last, ticket)
    }
    this.#setLast(lane, last)
    const isCovered = last !== undefined && (ticket === undefined || !isSoon(slot, now, countArmed(lane)))
    if (isCovered) this.#readyLanes.cover(lane)
    else this.#readyLanes.uncover(lane)
    return isCovered
  }

  #setLast(lane: Lane, last: Ticket | undefined): void {
    lane.lastArmed = last
    if (last !== undefined) this.#lanes.add(lane)
    else if (this.#lanes.delete(lane)) this.#readyLanes.uncover(lane)
  }
}

/** Where the first request is late in a bucket, the slot of the next is known only once it has left. */
function mostArmed({ first, stack }: Lane, slot: number): number {
  return stack.length > 1 && isLate(first!, first!.armed?.slot ?? slot) ? 1 : Infinity
}

/** Whether a release in this slot is to be armed now, behind `count` others of its lane. */
function isSoon(slot: number, now: number, count: number): boolean {
  return slot <= now + AHEAD || (count < LEAST && slot <= now + MOST_AHEAD)
}

function arm(ticket: Ticket, slot: number, before: Ticket | undefined): boolean {
  const { lane, waiter } = ticket
  const { gate } = lane.route
  if (gate.inFlight + gate.armed >= gate.maxInFlight) return false
  ticket.armed = waiter.arm?.({ slot, latest: slot + grace(lane) - MARGIN, after: before?.armed })
  if (ticket.armed === undefined) return false
  gate.armed += 1
  return true
}

function isForeseeable(lane: Lane): boolean {
  const { gate } = lane.route
  if (lane.first === undefined || lane.stack.length === 0 || !gate.open || gate.blocked) return false
  if (gate.maxInFlight < Infinity && onlyLaneAt(gate) !== lane) return false
  // With a burst a request may be next and not picked yet: its gate has just opened.
  if (gate.awaited && lane.stack.some(({ limits }) => limits.burst !== undefined)) return false
  return lane.stack.every(
    bucket =>
      bucket.limits.maxInFlight === undefined &&
      bucket.extras?.pinnedDrainedAt === undefined &&
      !isHeld(bucket, gate) &&
      onlyLaneFor(bucket) === lane,
  )
}

/** Whether a request that is not on the wire yet could change slots. With a burst nothing drains meanwhile. */
function isHeld(bucket: SharedBucket, gate: Gate): boolean {
  return bucket.limits.burst === undefined ? bucket.isHeldBefore(gate) : bucket.holdsAny
}

function freeAt({ stack, first }: Lane): number {
  let latest = -Infinity
  for (let place = 0; place < stack.length; place += 1) {
    latest = Math.max(latest, stack[place]!.freeFor(costAt(first!, place)))
  }
  return latest
}

function slotAfter(last: Ticket, next: Ticket | undefined): number {
  const { slot } = last.armed!
  let latest = slot
  for (const [place, bucket] of last.stack.entries()) {
    const { limits } = bucket
    if (limits.burst === undefined) latest = Math.max(latest, slot + costAt(last, place) / limits.rate)
    else if (next !== undefined) {
      latest = Math.max(latest, drainedAfter(place, last) - slackOf(limits, costAt(next, place)) / limits.rate)
    }
  }
  return latest
}

/** When the bucket at a place has drained of what is armed, up to this ticket, in ms. */
function drainedAfter(place: number, last: Ticket): number {
  const { drainedAt, limits } = last.stack[place]!
  let drained = drainedAt
  for (let ticket = last.lane.first; ticket !== undefined; ticket = ticket === last ? undefined : ticket.next) {
    drained = Math.max(drained, ticket.armed!.slot) + costAt(ticket, place) / limits.rate
  }
  return drained
}

function grace({ stack }: Lane): number {
  let shortest = Infinity
  for (const [place, { limits }] of stack.entries()) {
    shortest = Math.min(shortest, graceAt(limits, place, stack.length))
  }
  return shortest
}

function countArmed({ lastArmed }: Lane): number {
  let count = 0
  for (let ticket = lastArmed; ticket !== undefined; ticket = ticket.previous) count += 1
  return count
}
