/**
 * Which request can leave, and when. It keeps the fair queues of all share nodes true as buckets become busy and free, and
 * a heap of the moments at which they become free.
 *
 * Between two calls every fair queue is as lane.ts says. A bucket that is busy and has waiters is in the heap, once. Of the
 * classes that can leave the lowest number does, whichever its gate, unless a bucket owes a slot to one behind it.
 */
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { allSources, dropSource } from '../bucket/waiting.js'
import { DEFAULT_MIN_SHARE, LAST_PRIORITY } from '../priority.js'
import { DueHeap } from '../structures/due-heap.js'
import {
  type Arrival,
  costAt,
  costIn,
  type Gate,
  Lane,
  type SharedBucket,
  ShareNode,
  type Source,
  type Ticket,
} from './lane.js'
import { closeLane } from './tree.js'

/** ms. Times closer than this are one: the rounding of sums of periods. */
export const SAME_TIME = 1e-6

export function isFree(bucket: SharedBucket, now: number): boolean {
  return bucket.freeAt <= now + SAME_TIME && !bucket.shut
}

export function isFreeFor(bucket: SharedBucket, cost: number, now: number): boolean {
  if (bucket.limits.burst === undefined) return isFree(bucket, now)
  // Others may wait that cost more.
  const isAwaited = bucket.place >= 0 || bucket.nextCost > 0
  return !isAwaited && bucket.freeFor(cost) <= now + SAME_TIME && !bucket.shut
}

export class ReadyLanes {
  readonly #frees = new DueHeap<SharedBucket>()
  readonly #coveredFrees = new DueHeap<SharedBucket>()
  /** The first and the last of the classes that have had a request. */
  #firstClass = LAST_PRIORITY
  #lastClass = 0
  /** Roots below which a request may be ready, by their priorities. */
  readonly #ready: readonly ShareNode[][] = Array.from({ length: LAST_PRIORITY + 1 }, () => [])

  /** When the next bucket becomes free, in ms. Infinity: none is waited for. */
  get due(): number {
    return Math.min(this.uncoveredDue, this.coveredDue)
  }

  /** The same, of buckets for which the core has to wake in time. */
  get uncoveredDue(): number {
    return this.#frees.nextDue
  }

  get coveredDue(): number {
    return this.#coveredFrees.nextDue
  }

  /** The lane that waits alone for the next bucket for which the core has to wake in time, if it is alone. */
  get nextAlone(): Lane | undefined {
    const { next } = this.#frees
    return next && onlyLaneFor(next)
  }

  /** The core need not wake in time for the next releases of a lane, which is alone. */
  cover(lane: Lane): void {
    this.#move(lane, this.#frees, this.#coveredFrees)
  }

  uncover(lane: Lane): void {
    this.#move(lane, this.#coveredFrees, this.#frees)
  }

  #move({ stack }: Lane, from: DueHeap<SharedBucket>, to: DueHeap<SharedBucket>): void {
    for (const bucket of stack) {
      if (bucket.source === undefined || this.#heapOf(bucket) !== from) continue
      const planned = from.remove(bucket)
      bucket.covered = to === this.#coveredFrees
      if (planned) to.add(bucket, bucket.freeAt)
    }
  }

  #heapOf({ covered }: SharedBucket): DueHeap<SharedBucket> {
    return covered ? this.#coveredFrees : this.#frees
  }

  /** Of buckets that become free at one moment the order of these numbers decides. */
  readonly positionOf = (bucket: SharedBucket): number => this.#heapOf(bucket).positionOf(bucket)

  #nextFrees(): DueHeap<SharedBucket> {
    return this.coveredDue < this.uncoveredDue ? this.#coveredFrees : this.#frees
  }

  opened(lane: Lane, now: number): void {
    this.#activate(lane, now)
  }

  /** All waiters of a lane are claiming slots. */
  rest(lane: Lane): void {
    this.#deactivate(lane)
  }

  closed(lane: Lane): void {
    this.#deactivate(lane)
    closeLane(lane)
    for (const bucket of lane.stack) {
      if (bucket.source !== undefined) continue
      this.#heapOf(bucket).remove(bucket)
      bucket.covered = false
      bucket.closeExtras()
    }
  }

  /** A request has passed a bucket. Its sources leave the queues until it is free, or until `slot`. */
  occupied(bucket: SharedBucket, slot = -Infinity): void {
    if (bucket.source === undefined) return
    // Also when the bucket is in the heap: a slot that was given back is in it before any source has entered for it.
    this.#deactivateAll(bucket)
    this.plan(bucket, Math.max(bucket.freeAt, slot))
  }

  /** Puts the moment at which a bucket becomes free into the heap. One that is shut is planned again when it is not. */
  plan(bucket: SharedBucket, due = bucket.freeAt): void {
    if (bucket.source === undefined) return
    const frees = this.#heapOf(bucket)
    if (bucket.shut) frees.remove(bucket)
    else if (bucket.place >= 0) frees.move(bucket, due)
    else frees.add(bucket, due)
  }

  /** A bucket may wait for a request that has left: another is picked. */
  pickAgain(bucket: SharedBucket, now: number): void {
    // It became free before, which nobody has taken note of yet.
    if (this.#heapOf(bucket).dueOf(bucket) <= now) return
    bucket.nextCost = 0
    this.plan(bucket, Math.max(now, bucket.freeAt))
  }

  hold(bucket: SharedBucket, request: Arrival): void {
    bucket.addHeld(request)
    this.occupied(bucket)
  }

  /** It is on the wire, or will never be. `slot` as in `occupied`. */
  unhold(bucket: SharedBucket, request: Arrival, slot: number): void {
    bucket.dropHeld(request)
    this.plan(bucket, Math.max(bucket.freeAt, slot))
  }

  reopened(bucket: SharedBucket, now: number): void {
    if (isFree(bucket, now)) this.#activateAll(bucket, now)
    else this.plan(bucket)
  }

  gateOpened({ roots }: Gate): void {
    for (const root of roots) this.#pushReady(root)
  }

  /** Lets all buckets that become free at `due` be free. Returns that time. */
  free(due: number): number {
    let slot = due
    for (let frees = this.#nextFrees(); frees.nextDue <= due + SAME_TIME; frees = this.#nextFrees()) {
      const bucket = frees.next!
      slot = frees.nextDue
      frees.remove(bucket)
      bucket.nextCost = 0
      this.#activateAll(bucket, slot)
    }
    return slot
  }

  /** A lane that is alone takes note of buckets that became free, though its first request cannot leave yet. */
  catchUp(lane: Lane, now: number): void {
    for (const bucket of lane.stack) {
      if (this.#heapOf(bucket).dueOf(bucket) > now) continue
      this.#heapOf(bucket).remove(bucket)
      bucket.nextCost = 0
      this.#activateAll(bucket, now)
    }
    if (lane.stack.every(bucket => isFree(bucket, now))) this.#waitsForBurst(lane.first!, now)
  }

  #deactivateAll({ source, extras }: SharedBucket): void {
    if (source !== undefined) this.#deactivate(source)
    if (extras !== undefined) for (const other of extras.otherSources) this.#deactivate(other)
  }

  #activateAll({ source, extras }: SharedBucket, now: number): void {
    if (source?.awaited) this.#activate(source, now)
    if (extras !== undefined) for (const other of extras.otherSources) if (other.awaited) this.#activate(other, now)
  }

  #pushReady(root: ShareNode): void {
    const { priority } = root
    if (priority < this.#firstClass) this.#firstClass = priority
    if (priority > this.#lastClass) this.#lastClass = priority
    this.#ready[priority]!.push(root)
  }

  /** Takes the request that leaves next, if any can: the walk down the queues. Its turn is charged. `slot` in ms. */
  next(slot: number): Ticket | undefined {
    for (let priority = this.#firstClass; priority <= this.#lastClass; priority += 1) {
      const ticket = this.#nextOf(this.#ready[priority]!, slot)
      if (ticket !== undefined) return charge(ticket)
    }
    return undefined
  }

  /** A request that was taken does not leave after all: it has the next turn, too. */
  refund({ lane, cost }: Ticket): void {
    for (let at: Source = lane; at.parent !== undefined; at = at.parent) at.deficit += cost
  }

  #nextOf(ready: ShareNode[], slot: number): Ticket | undefined {
    const hasOthers = this.#firstClass < this.#lastClass
    const choose = hasOthers ? ticketToLeave : firstBelow
    for (let root = ready.at(-1); root !== undefined; root = ready.at(-1)) {
      const ticket = root.gate.open && root.awaited ? choose(root) : undefined
      if (ticket === undefined || !root.gate.fits(ticket.cost)) {
        ready.pop()
        continue
      }
      if (this.#waitsForBurst(ticket, slot)) continue
      if (hasOthers) countShares(ticket)
      return ticket
    }
    return undefined
  }

  /** Whether a bucket with a burst is not free for the cost of this request. Then it waits for that. */
  #waitsForBurst(ticket: Ticket, slot: number): boolean {
    const { lane } = ticket
    for (let place = 0; place < lane.stack.length; place += 1) {
      const bucket = lane.stack[place]!
      if (bucket.limits.burst === undefined) continue
      const cost = costAt(ticket, place)
      const isBusy = bucket.freeFor(cost) > slot + SAME_TIME
      if (!isBusy && !bucket.isHeldBefore(lane.gate, cost)) continue
      bucket.nextCost = cost
      // What is held is planned when it is no more.
      if (isBusy) this.occupied(bucket)
      else this.#deactivateAll(bucket)
      return true
    }
    return false
  }

  /** Lets a lane or node that can use a slot into the queues, as far up as buckets are free. */
  #activate(source: Source, now: number): void {
    let since = now
    for (let at = source; at.list === undefined; ) {
      const { parent, bucket } = at
      if (bucket !== undefined && !isFree(bucket, now) && !this.#picksAgain(bucket, at, now)) {
        this.plan(bucket)
        return
      }
      if (bucket !== undefined && bucket.place >= 0) this.#letIn(bucket, at, now)
      if (bucket?.isHeldBefore(at.gate)) return
      if (parent === undefined) {
        this.#pushReady(at as ShareNode)
        return
      }
      since = readySince(at, since, now)
      const behind = parent.bucket
      if (behind !== undefined && parent.fairQueue.size === 0) {
        parent.fairQueue.idled(behind.freeAt, now, behind.limits.rate)
      }
      parent.fairQueue.enter(at, since)
      at = parent
    }
  }

  /** A bucket waits for the cost of a request. One of a class before all others may have its turn before that. */
  #picksAgain(bucket: SharedBucket, newcomer: Source, now: number): boolean {
    if (bucket.nextCost === 0) return false
    const others = allSources(bucket).filter(other => other !== newcomer)
    if (others.some(other => other.priority <= newcomer.priority)) return false
    bucket.nextCost = 0
    if (!isFree(bucket, now)) return false
    for (const other of others) if (other.awaited) this.#activate(other, now)
    return true
  }

  /** A bucket is free because what it waited for has left just now. All others that wait for it take part again. */
  #letIn(bucket: SharedBucket, newcomer: Source, now: number): void {
    this.#heapOf(bucket).remove(bucket)
    for (const other of allSources(bucket)) if (other !== newcomer && other.awaited) this.#activate(other, now)
  }

  /** Takes a lane or node that can no longer use a slot out of the queues, and each node that was there for it only. */
  #deactivate(source: Source): void {
    for (let at = source; at.parent !== undefined && at.list !== undefined; at = at.parent) {
      at.parent.fairQueue.leave(at)
      if (at.parent.fairQueue.size > 0) return
    }
  }
}

/** Since when a source could use a slot, in ms. What its own bucket has let pass late is ready before (queued-bucket.ts). */
function readySince(source: Source, since: number, now: number): number {
  const { bucket } = source
  if (bucket === undefined) return now
  return Math.min(now, Math.max(bucket.freeAt, source instanceof Lane ? source.first!.arrivedAt : since))
}

function charge(ticket: Ticket): Ticket {
  for (let at: Source = ticket.lane; at.parent !== undefined; at = at.parent) {
    at.deficit -= ticket.cost
    yieldTurn(at)
  }
  return ticket
}

/** A bucket with sources before several gates lets those of a class take turns: the last to be let in is picked. */
function yieldTurn(source: Source): void {
  const { bucket } = source
  const extras = bucket?.extras
  if (bucket === undefined || extras === undefined || extras.otherSources.length === 0) return
  dropSource(bucket, source)
  extras.otherSources = allSources(bucket)
  bucket.source = source
}

/** The only lane that waits for a bucket. Undefined: there are several, or none. */
export function onlyLaneFor({ source, extras }: SharedBucket): Lane | undefined {
  return extras !== undefined && extras.otherSources.length > 0 ? undefined : onlyLane(source)
}

/** The only lane before a gate. Undefined: there are several, or none. */
export function onlyLaneAt({ roots }: Gate): Lane | undefined {
  const used = roots.filter(root => root.count > 0)
  return used.length === 1 ? onlyLane(used[0]) : undefined
}

/** The only lane below a node. Undefined: there are several, or none. */
export function onlyLane(source: Source | undefined): Lane | undefined {
  if (source === undefined || source instanceof Lane) return source
  return source.count === 1 ? onlyLane(source.first) : undefined
}

/**
 * The share of the classes behind the one that leaves (priority.ts), so that they are slow and do not starve.
 *
 * A bucket owes `minShare` of its rate to the classes behind the one that leaves, together, while one of them could leave. For
 * each class it keeps what it owes to those behind. With a minShare of m and a release of cost c:
 *
 *     owed += m * c          the class leaves
 *     owed -= (1 - m) * c    one behind it leaves
 *
 * As soon as `owed` covers the cost of the next request behind, that leaves in place of the class. In the long run those behind
 * leave with m of all that leaves, to within one request, the lowest number of them first, by the same rule. What is owed is
 * never below 0, and not kept when nobody waits behind: idle time is not banked. So a request of the first class waits for no
 * more than the slot that is in use, unless its class has used 1 / m slots with hardly a pause.
 *
 * Buckets are asked from everyone's to the client's own. Where a request leaves because its own bucket owes it a slot, it uses
 * the turn of a request of the same bucket, and takes nothing from other keys.
 */

/** The request that leaves next, where some below this root can and none of a class before it. */
function ticketToLeave(root: ShareNode): Ticket {
  let ticket = firstBelow(root)
  for (let owed = owedInPlaceOf(ticket); owed !== undefined; owed = owedInPlaceOf(ticket)) ticket = owed
  return ticket
}

function countShares(ticket: Ticket): void {
  const { stack, priority } = ticket.lane
  for (let place = 0; place < stack.length; place += 1) {
    const { extras, limits, source } = stack[place]!
    const cost = costAt(ticket, place)
    if (extras === undefined) continue
    if (extras.otherSources.length === 0) {
      extras.owed = undefined
      continue
    }
    const { minShare = DEFAULT_MIN_SHARE } = limits
    extras.owed ??= Array.from({ length: LAST_PRIORITY }, () => 0)
    for (let before = 0; before < priority; before += 1) {
      extras.owed[before] = Math.max(0, extras.owed[before]! - (1 - minShare) * cost)
    }
    if (priority === LAST_PRIORITY) continue
    const sources = [source!, ...extras.otherSources].filter(other => other.priority > priority)
    if (sources.length === 0) extras.owed[priority] = 0
    else if (sources.some(canLeave)) extras.owed[priority]! += minShare * cost
  }
}

/** The request that has its turn below a node, whatever is owed. Without a change in between it is the same one. */
function firstBelow(source: Source): Ticket {
  let at = source
  while (at instanceof ShareNode) at = at.fairQueue.advance() as Source
  return at.tickets.first!
}

/** The request to which a bucket of this one owes its slot. */
function owedInPlaceOf({ lane: { stack, priority } }: Ticket): Ticket | undefined {
  for (let place = stack.length - 1; place >= 0; place -= 1) {
    const owed = owedAt(stack[place]!, priority)
    if (owed !== undefined) return owed
  }
  return undefined
}

function owedAt(bucket: SharedBucket, priority: number): Ticket | undefined {
  const owed = bucket.extras?.owed?.[priority]
  if (owed === undefined || owed <= LEVEL_TOLERANCE) return undefined
  const source = firstBehind(bucket, priority)
  if (source === undefined) return undefined
  const ticket = owedAt(bucket, source.priority) ?? firstBelow(source)
  return owed + LEVEL_TOLERANCE >= costIn(ticket, bucket) ? ticket : undefined
}

/** Of the sources behind a class that can leave, that of the lowest number. The last of them has its turn among gates. */
function firstBehind({ source, extras }: SharedBucket, priority: number): Source | undefined {
  let first: Source | undefined
  for (const other of [source!, ...extras!.otherSources]) {
    if (other.priority <= priority || (first !== undefined && other.priority > first.priority)) continue
    if (canLeave(other)) first = other
  }
  return first
}

function canLeave(source: Source): boolean {
  if (!source.gate.open) return false
  for (let at = source; at.parent !== undefined; at = at.parent) if (at.list === undefined) return false
  return true
}
