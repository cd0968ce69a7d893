/**
 * Lanes, and where they meet.
 *
 * A request passes its stack of buckets from the client's own to everyone's, and then the gate of the upstream. Lanes whose
 * stacks agree from some bucket on meet at a *share node* of it. Share nodes form a tree whose root is the gate:
 *
 *     lane (alice, api) --- node (alice) ---.
 *     lane (alice, web) ---'                 node (everyone) --- node (gate)
 *     lane (bob, api) ----- node (bob) -----'
 *
 * Each node has a fair queue (fair-queue.ts). A lane is in the queue of its node while requests wait in it. A node is in
 * the queue of its parent while its own queue has someone *and* its bucket is free. So the queue of the root has someone
 * exactly when some request may leave, and finding that request is a walk down the queues. Nobody polls a node whose bucket
 * has to drain: it comes back when the bucket's `freeAt` is due. A node weighs as much as the lanes that wait below it, so
 * that sharing is among lanes at every depth.
 */

import type { QueuedBucket } from '../bucket/queued-bucket.js'
import type { LaneRank } from '../bucket/waiting.js'
import type { Slot } from '../store.js'
import { NONE, withEntry, withoutEntry } from '../structures/compact-list.js'
import type { Timed } from '../structures/due-heap.js'
import { type Linked, LinkedList } from '../structures/linked-list.js'
import { type Contender, FairQueue } from './fair-queue.js'

/** Why a request is not admitted, or not kept. */
export interface Rejection {
  /**
   * - `overflow`: a bucket is full.
   * - `blocked`: it overflowed before and its `blockFor` lasts.
   * - `too-costly`: the cost is above a bucket's capacity, so it can never pass.
   * - `max-wait`: the predicted wait is too long.
   * - `crowded`: `maxQueued` requests wait, or (in `meter`) `maxInFlight` are in flight.
   * - `paused`: its upstream has asked for a pause, and it may not wait.
   * - `unavailable`: the store decides, and does not answer.
   */
  readonly reason: 'overflow' | 'blocked' | 'too-costly' | 'max-wait' | 'crowded' | 'paused' | 'unavailable'
  /** The buckets that are full, blocked, too small or too slow. */
  readonly buckets: readonly SharedBucket[]
  /**
   * A request of the same cost is admitted this much later if nobody else comes. Undefined: never (`too-costly`), or
   * unknown.
   */
  readonly retryAfterMs: number | undefined
}

/** The callbacks of a queued request. Each ticket ends with at most one of these. They must not throw. */
export interface Waiter {
  /** Its `maxWait` is its own and may be longer than that of all. A change of that does not apply to it. */
  readonly hasOwnMaxWait?: boolean
  /** Send it now. `slot` is the moment it became possible, `now` is at or after it. */
  release(slot: number, now: number): void
  /** It has waited for its `maxWait`. */
  expire(now: number): void
  /** It makes room for a lane with less than its share. */
  reject(rejection: Rejection): void
}

/** A bucket instance that requests wait for. */
export type SharedBucket = QueuedBucket<ShareNode, Lane>

/** The route of a lane, known by its identity: one object per configured route. */
export interface LaneRoute {
  readonly name: string
  readonly gate: Gate
}

/** What a request asks of its buckets. `stack` is ordered from the client's own bucket to everyone's. */
export interface Demand {
  readonly stack: readonly SharedBucket[]
  readonly cost: number
}

/** A request as the core sees it. */
export interface Arrival extends Demand {
  readonly route: LaneRoute
  /** Its lane's share of buckets that it contends for with others; 1 if absent. */
  readonly weight?: number
  /** It belongs to a dry run: nobody waits for it. */
  readonly shadow?: boolean
}

/** One queued request: the link in its lane and, if it has a `maxWait`, its place among the deadlines. */
export class Ticket implements Linked<Ticket>, Timed {
  list: object | undefined = undefined
  previous: Ticket | undefined = undefined
  next: Ticket | undefined = undefined
  due = Infinity
  place = -1
  /** The moment at which it could leave. Undefined before that, and after it was given back. */
  slot: number | undefined = undefined
  /** When it left the lane by itself, released or expired. */
  leftAt = 0
  /** A store has counted it. */
  counted = false
  /** It belongs to a dry run. */
  shadow = false
  /** The slot that a store has granted it. */
  granted: Slot | undefined = undefined
  /** Set when it had to make room for another. */
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

/** The requests of one key of one route that wait, in order. It exists while there are any. */
export class Lane implements Contender {
  list: object | undefined = undefined
  previous: Contender | undefined = undefined
  next: Contender | undefined = undefined
  deficit = 0
  round = 0
  readonly tickets = new LinkedList<Ticket>()
  /** Tickets before those, for which slots are claimed from a store. */
  claiming: LinkedList<Ticket> | undefined = undefined
  /** How many slots are claimed, whether granted yet or not. */
  claims = 0
  readonly route: LaneRoute
  readonly stack: readonly SharedBucket[]
  readonly parent: ShareNode
  weight: number
  /** Cost of the requests that wait. */
  queued = 0
  /** Its ranks in the buckets that compare their lanes. */
  ranks: readonly LaneRank<Lane>[] = NONE

  constructor(route: LaneRoute, stack: readonly SharedBucket[], parent: ShareNode, weight: number) {
    this.route = route
    this.stack = stack
    this.parent = parent
    this.weight = weight
  }

  advance(): number {
    return this.tickets.first!.cost
  }
}

/** Where lanes meet that have a bucket, and all buckets after it, in common. */
export class ShareNode implements Contender {
  list: object | undefined = undefined
  previous: Contender | undefined = undefined
  next: Contender | undefined = undefined
  weight = 0
  deficit = 0
  round = 0
  readonly fairQueue = new FairQueue()
  /** All lanes that wait here, in the queue or not. */
  lanes: readonly Lane[] = NONE
  /** Made when there is one: most nodes are those of a client's own bucket. */
  children: Set<ShareNode> | undefined = undefined
  readonly gate: Gate
  /** Undefined at the root. */
  readonly bucket: SharedBucket | undefined
  readonly parent: ShareNode | undefined

  constructor(gate: Gate, bucket?: SharedBucket, parent?: ShareNode) {
    this.gate = gate
    this.bucket = bucket
    this.parent = parent
  }

  get childCount(): number {
    return this.children?.size ?? 0
  }

  advance(): number {
    return this.fairQueue.advance().advance()
  }
}

/** In the order of their coming. */
export function childrenOf({ children }: ShareNode): Iterable<ShareNode> {
  return children ?? NONE
}

/** The last step before an upstream. It bounds the requests in flight, and is closed while the upstream pauses. */
export class Gate implements Timed {
  /** When the pause ends, in ms. Meaningless without one. */
  due = -Infinity
  /** Its place among all pauses. -1: there is none. */
  place = -1
  /** Closed for a moment: what has passed is not on the wire yet. */
  closed = false
  readonly root = new ShareNode(this)
  /** May change at any time. After a raise wake the gate. */
  maxInFlight: number
  #inFlight = 0

  constructor(maxInFlight = Infinity) {
    this.maxInFlight = maxInFlight
  }

  get open(): boolean {
    return this.place < 0 && !this.closed && this.#inFlight < this.maxInFlight
  }

  get paused(): boolean {
    return this.place >= 0
  }

  /** How much longer it pauses, in ms. */
  pausedFor(now: number): number {
    return this.place < 0 ? 0 : Math.max(0, this.due - now)
  }

  /** Whether a request could leave if it were open. */
  get awaited(): boolean {
    return this.root.fairQueue.size > 0
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

/** The lane of a route and a stack, if a request waits in it. */
export function findLane(route: LaneRoute, stack: readonly SharedBucket[]): Lane | undefined {
  let node: ShareNode | undefined = route.gate.root
  for (let at = stack.length - 1; at >= 0 && node !== undefined; at -= 1) node = findNode(stack[at]!, node)
  return node?.lanes.find(lane => lane.route === route)
}

/** The lane of a route and a stack, made when new. It has this weight from now on. */
export function openLane(route: LaneRoute, stack: readonly SharedBucket[], weight: number): Lane {
  const known = findLane(route, stack)
  if (known !== undefined) {
    if (known.weight !== weight) addWeight(known, weight - known.weight)
    return known
  }
  let node = route.gate.root
  for (let at = stack.length - 1; at >= 0; at -= 1) node = openNode(stack[at]!, node)
  const lane = new Lane(route, stack, node, 0)
  node.lanes = withEntry(node.lanes, lane)
  addWeight(lane, weight)
  return lane
}

/** Forgets a lane in which nobody waits, and every node on its way that no other lane passes. */
export function closeLane(lane: Lane): void {
  lane.parent.lanes = withoutEntry(lane.parent.lanes, lane)
  addWeight(lane, -lane.weight)
  for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) {
    if (at.lanes.length === 0 && at.childCount === 0) closeNode(at)
  }
}

function addWeight(lane: Lane, difference: number): void {
  lane.weight += difference
  for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) at.weight += difference
}

function findNode(bucket: SharedBucket, parent: ShareNode): ShareNode | undefined {
  return bucket.waitingState?.shareNodes.find(node => node.parent === parent)
}

function openNode(bucket: SharedBucket, parent: ShareNode): ShareNode {
  const known = findNode(bucket, parent)
  if (known !== undefined) return known
  const node = new ShareNode(parent.gate, bucket, parent)
  const waitingState = bucket.openWaitingState()
  waitingState.shareNodes = withEntry(waitingState.shareNodes, node)
  parent.children ??= new Set()
  parent.children.add(node)
  return node
}

function closeNode(node: ShareNode): void {
  const { bucket, parent } = node
  if (bucket?.waitingState === undefined || parent === undefined) return
  parent.children!.delete(node)
  bucket.waitingState.shareNodes = withoutEntry(bucket.waitingState.shareNodes, node)
}
