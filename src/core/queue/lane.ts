/**
 * Lanes, and where they meet.
 *
 * A stack of buckets is passed from the client's own to everyone's, and then the gate of the upstream. Lanes whose
 * stacks agree from some bucket on meet at a *junction* of it; junctions form a tree whose root is the gate:
 *
 *     lane (alice, api) --- junction (alice) ---.
 *     lane (alice, web) ---'                     junction (everyone) --- junction (gate)
 *     lane (bob, api) ----- junction (bob) -----'
 *
 * Each junction has a ring (fair-queue.ts). A lane is in its junction's ring while somebody waits in it; a junction is in its
 * parent's while its own ring has someone *and* its bucket is free. So the root's ring is non-empty exactly when some
 * request may leave, and finding it is a walk down the rings. Nobody polls a junction whose bucket has to drain: it
 * comes back when the bucket's `freeAt` is due. A junction weighs as much as the lanes that wait below it, so that
 * sharing is among lanes at every depth.
 */

import type { QueuedBucket } from '../bucket/bucket.js'
import type { LaneRank } from '../bucket/waiting.js'
import type { Slot } from '../store.js'
import { NONE, withEntry, withoutEntry } from '../structures/compact-list.js'
import type { Timed } from '../structures/due-heap.js'
import { type Linked, LinkedList } from '../structures/linked-list.js'
import { type Contender, FairQueue } from './fair-queue.js'
import { attach, detach, type TreeNode } from './share-tree.js'

/** Why a request is not admitted, or not kept. */
export interface Rejection {
  /**
   * `overflow`: a bucket is full. `blocked`: it overflowed before and its `blockFor` lasts. `too-costly`: the cost is
   * above a bucket's capacity, it can never pass. `max-wait`: the predicted wait is too long. `crowded`: `maxQueued`
   * requests wait already. `paused`: its upstream has asked for a pause, and it may not wait. `unavailable`: it is for a store to say, which does not answer.
   */
  readonly reason: 'overflow' | 'blocked' | 'too-costly' | 'max-wait' | 'crowded' | 'paused' | 'unavailable'
  /** The buckets that refused. */
  readonly buckets: readonly SharedBucket[]
  /** A request of the same cost sent this much later is admitted if nobody else comes; undefined: never. */
  readonly retryAfterMs: number | undefined
}

/** Who is told about a queued request's fate; each ticket ends with at most one of these. Must not throw. */
export interface Waiter {
  /** It is to be sent now. `slot` is the moment it became possible, `now` at or after it. */
  release(slot: number, now: number): void
  /** It has waited for its `maxWait`. */
  expire(now: number): void
  /** It has made room for a lane with less than its share. */
  reject(rejection: Rejection): void
}

/** A bucket instance that requests wait for. */
export type SharedBucket = QueuedBucket<ShareNode, Lane>

/** What a lane is of: the identity counts, one object per configured route. */
export interface LaneRoute {
  readonly name: string
  readonly gate: Gate
}

/** A request as the core sees it. `stack` is ordered from the client's own bucket to everyone's. */
export interface Arrival {
  readonly route: LaneRoute
  readonly stack: readonly SharedBucket[]
  readonly cost: number
  /** Its lane's share of buckets that it contends for with others; 1 if absent. */
  readonly weight?: number
}

/** One queued request: the link in its lane and, where it has a `maxWait`, its place among the deadlines. */
export class Ticket implements Linked<Ticket>, Timed {
  list: object | undefined = undefined
  previous: Ticket | undefined = undefined
  next: Ticket | undefined = undefined
  due = Infinity
  place = -1
  /** The moment at which it could leave; undefined before that, and when it was given back. */
  slot: number | undefined = undefined
  /** When it left the lane by itself, released or expired. */
  leftAt = 0
  /** A store has counted it. */
  counted = false
  /** The slot that a store has granted it. */
  granted: Slot | undefined = undefined
  /** Set where it was taken out for another. */
  rejection: Rejection | undefined = undefined
  readonly lane: Lane
  readonly cost: number
  readonly arrivedAt: number
  readonly waiter: Waiter

  constructor(lane: Lane, cost: number, arrivedAt: number, waiter: Waiter) {
    this.lane = lane
    this.cost = cost
    this.arrivedAt = arrivedAt
    this.waiter = waiter
  }
}

/** One key of one route: who waits, in order. It exists while somebody does. */
export class Lane implements Contender {
  list: object | undefined = undefined
  previous: Contender | undefined = undefined
  next: Contender | undefined = undefined
  deficit = 0
  round = 0
  readonly tickets = new LinkedList<Ticket>()
  /** Those before them for whom slots are claimed; only where slots are a store's. */
  claiming: LinkedList<Ticket> | undefined = undefined
  /** How many slots are claimed, granted or not yet. */
  claims = 0
  readonly route: LaneRoute
  readonly stack: readonly SharedBucket[]
  readonly parent: ShareNode
  weight: number
  /** Cost of those who wait. */
  queued = 0
  /** Its places among the lanes of the buckets that compare them. */
  ranks: readonly LaneRank<Lane>[] = NONE

  constructor(route: LaneRoute, stack: readonly SharedBucket[], parent: ShareNode, weight: number) {
    this.route = route
    this.stack = stack
    this.parent = parent
    this.weight = weight
  }

  headCost(): number {
    return this.tickets.first!.cost
  }
}

/** Where lanes meet that have a bucket, and all that come after it, in common. */
export class ShareNode implements Contender, TreeNode<ShareNode> {
  list: object | undefined = undefined
  previous: Contender | undefined = undefined
  next: Contender | undefined = undefined
  weight = 0
  deficit = 0
  round = 0
  readonly ring = new FairQueue()
  /** Everyone who waits here, in the ring or not. */
  lanes: readonly Lane[] = NONE
  childCount = 0
  firstChild: ShareNode | undefined = undefined
  lastChild: ShareNode | undefined = undefined
  previousSibling: ShareNode | undefined = undefined
  nextSibling: ShareNode | undefined = undefined
  readonly gate: Gate
  /** Undefined at the root. */
  readonly bucket: SharedBucket | undefined
  readonly parent: ShareNode | undefined

  constructor(gate: Gate, bucket?: SharedBucket, parent?: ShareNode) {
    this.gate = gate
    this.bucket = bucket
    this.parent = parent
  }

  headCost(): number {
    return this.ring.pick().headCost()
  }
}

/** The last passage before an upstream: lets through what its limit of requests in flight allows, and nobody while it pauses. */
export class Gate implements Timed {
  /** When the pause ends, in ms; of no meaning without one. */
  due = -Infinity
  /** Among all pauses; -1: there is none. */
  place = -1
  /** Nobody passes for a moment: who has passed is not on the wire yet. */
  closed = false
  readonly junction = new ShareNode(this)
  readonly #maxInFlight: number
  #inFlight = 0

  constructor(maxInFlight = Infinity) {
    this.#maxInFlight = maxInFlight
  }

  get open(): boolean {
    return this.place < 0 && !this.closed && this.#inFlight < this.#maxInFlight
  }

  get paused(): boolean {
    return this.place >= 0
  }

  /** How much longer it pauses, in ms. */
  pausedFor(now: number): number {
    return this.place < 0 ? 0 : Math.max(0, this.due - now)
  }

  /** Whether anybody could go if it were open. */
  get awaited(): boolean {
    return this.junction.ring.size > 0
  }

  get inFlight(): number {
    return this.#inFlight
  }

  enter(): void {
    this.#inFlight += 1
  }

  leave(): void {
    this.#inFlight -= 1
  }
}

/** The lane of a route and a stack, if somebody waits in it. */
export function findLane(route: LaneRoute, stack: readonly SharedBucket[]): Lane | undefined {
  let junction: ShareNode | undefined = route.gate.junction
  for (let at = stack.length - 1; at >= 0 && junction !== undefined; at -= 1) {
    const parent: ShareNode = junction
    junction = stack[at]!.waitingState?.shareNodes.find(candidate => candidate.parent === parent)
  }
  return junction?.lanes.find(lane => lane.route === route)
}

/** The lane of a route and a stack, which exists from now on and has this weight. */
export function openLane(route: LaneRoute, stack: readonly SharedBucket[], weight: number): Lane {
  const known = findLane(route, stack)
  if (known !== undefined) {
    if (known.weight !== weight) weigh(known, weight - known.weight)
    return known
  }
  let junction = route.gate.junction
  for (let at = stack.length - 1; at >= 0; at -= 1) junction = openJunction(stack[at]!, junction)
  const lane = new Lane(route, stack, junction, 0)
  junction.lanes = withEntry(junction.lanes, lane)
  weigh(lane, weight)
  return lane
}

function weigh(lane: Lane, difference: number): void {
  lane.weight += difference
  for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) at.weight += difference
}

function openJunction(bucket: SharedBucket, parent: ShareNode): ShareNode {
  const outlet = bucket.openWaitingState()
  const known = outlet.shareNodes.find(junction => junction.parent === parent)
  if (known !== undefined) return known
  const junction = new ShareNode(parent.gate, bucket, parent)
  outlet.shareNodes = withEntry(outlet.shareNodes, junction)
  attach(junction, parent)
  return junction
}

/** Forgets a lane in which nobody waits, and every junction on its way that nobody else passes; outlets stay. */
export function closeLane(lane: Lane): void {
  lane.parent.lanes = withoutEntry(lane.parent.lanes, lane)
  weigh(lane, -lane.weight)
  for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) {
    if (at.lanes.length === 0 && at.childCount === 0) closeJunction(at)
  }
}

function closeJunction(junction: ShareNode): void {
  const { bucket, parent } = junction
  if (bucket?.waitingState === undefined || parent === undefined) return
  detach(junction, parent)
  bucket.waitingState.shareNodes = withoutEntry(bucket.waitingState.shareNodes, junction)
}
