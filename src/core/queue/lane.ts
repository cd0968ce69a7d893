/**
 * Lanes, and where they meet. tree.ts changes the tree.
 *
 * A request passes its stack of buckets from the client's own to everyone's, and then the gate of the upstream. Lanes whose
 * stacks agree from some bucket on meet at a *share node* of it. Share nodes form a tree whose root is the gate:
 *
 *     lane (alice, api) --- node (alice) ---.
 *     lane (alice, web) ---'                 node (everyone) --- node (gate)
 *     lane (bob, api) ----------------------'
 *
 * A lane that is alone at its first bucket stands for it, as Bob's does; a share node takes its place when a second lane comes.
 * So a bucket has *sources*, each before another node: a lane that is alone, or a share node.
 *
 * Requests of one priority form a class, and each class has a tree of its own before the gate. A key with requests of two
 * classes has two lanes, which meet at their own bucket only. Of the classes that wait for a bucket the lowest number that can
 * leave does, but for the share of the others (ready-lanes.ts).
 *
 * Each node has a fair queue (fair-queue.ts). A source is in the queue of the node behind it while a request waits in it or
 * below it *and* its bucket is free. So the queue of a root has someone exactly when some request may leave, and finding that
 * request is a walk down the queues. Nobody polls a source whose bucket has to drain: it comes back when the bucket's `freeAt`
 * is due. A node weighs as much as the lanes that wait below it, so that sharing is among lanes at every depth.
 */
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import type { QueuedBucket } from '../bucket/queued-bucket.js'
import type { LaneRank } from '../bucket/waiting.js'
import { DEFAULT_PRIORITY } from '../priority.js'
import { NONE } from '../structures/compact-list.js'
import type { Timed } from '../structures/due-heap.js'
import { type Linked, LinkedList } from '../structures/linked-list.js'
import { type Contender, FairQueue } from './fair-queue.js'
import type { ClientChain, ClientEntry } from './waiting-clients.js'

export interface Rejection {
  /**
   * - `overflow`: a bucket is full.
   * - `blocked`: it overflowed before and its `blockFor` lasts.
   * - `too-costly`: the cost is above a bucket's capacity, so it can never pass.
   * - `max-wait`: the predicted wait is too long.
   * - `crowded`: `maxQueued` requests wait and no client has more than this one, or it makes room for a client with fewer, or
   *   (in `meter`) `maxInFlight` are in flight.
   * - `in-flight`: (in `meter`) a bucket has as many requests in flight as it may.
   * - `paused`: its upstream has asked for a pause, and it may not wait.
   * - `unavailable`: the store decides, and does not answer.
   * - `down`: its upstream fails.
   */
  readonly reason:
    | 'overflow'
    | 'blocked'
    | 'too-costly'
    | 'max-wait'
    | 'crowded'
    | 'in-flight'
    | 'paused'
    | 'unavailable'
    | 'down'
  /** The buckets that are full, blocked, too small, too slow or have too many in flight. */
  readonly buckets: readonly SharedBucket[]
  /** ms until a like request is admitted if nobody else comes. Undefined: never (`too-costly`), or unknown. */
  readonly retryAfterMs: number | undefined
  /** It waited, and made room for another request. */
  readonly evicted?: boolean
  readonly booking?: number
}

/** The room that is kept from a request for others, in a bucket. */
export function reservedFrom({ redeems }: Demand, bucket: SharedBucket, now: number): number {
  const reserved = bucket.reserved(now)
  if (reserved === 0 || redeems === undefined) return reserved
  const isKept = bucket.extras?.promises?.of(redeems.client, now)?.booked?.id === redeems.id
  return isKept ? 0 : reserved
}

/** The callbacks of a queued request. Each ticket ends with at most one of these. They must not throw. */
export interface Waiter {
  /** Its `maxWait` is its own and may be longer than that of all. A change of that does not apply to it. */
  readonly hasOwnMaxWait?: boolean
  /** ms after its arrival. Its `maxWait` counts from then on. Undefined: from its arrival. */
  readonly maxWaitFrom?: number | undefined
  /** ms. A request like it is not admitted to a longer predicted wait. Absent: to any. */
  readonly longestWait?: number
  /** ms of the clock. Its client has no use for a later release. It may move. Absent: there is none. */
  readonly deadline?: number
  /** Send it now. `slot` is the moment it became possible, `now` is at or after it. */
  release(slot: number, now: number): void
  /** It has waited for its `maxWait`, or until its deadline. */
  expire(now: number): void
  /** It makes room for a lower number or for a lane with less than its share, or for a client with fewer requests. */
  reject(rejection: Rejection): void
  /** Arms its release: it is sent in its slot without the core. Undefined: that is not possible. */
  arm?(plan: ReleasePlan): ArmedSend | undefined
}

/** A release to come. Times are in ms. */
export interface ReleasePlan {
  readonly slot: number
  readonly latest: number
  readonly after: ArmedSend | undefined
}

export interface ArmedSend {
  readonly slot: number
  /** When it was sent, in ms. Undefined: it was not, or not yet. */
  readonly sentAt: number | undefined
  /** Takes it back: after this only the core can send it. False: it has been sent. */
  revoke(): boolean
  /** The core has taken note that it was sent or taken back. What follows it depends on it no more. */
  close(): void
}

/** Where the requests that wait for a bucket come from: a lane that is alone there, or the node where several meet. */
export type Source = Lane | ShareNode
export type SharedBucket = QueuedBucket<Source, Lane>

/** The route of a lane, known by its identity: one object per configured route. */
export interface LaneRoute {
  readonly name: string
  readonly gate: Gate
}

/** What a request asks of its buckets. `stack` is ordered from the client's own bucket to everyone's. */
export interface Demand extends Cost {
  readonly stack: readonly SharedBucket[]
  /** The booking that it redeems. In a bucket with this booking the room of other bookings does not count against it. */
  readonly redeems?: { readonly client: string; readonly id: number; readonly at: number }
}

/** Cost units. */
export interface Cost {
  /** In each bucket. Where they differ: in the last one. Lanes have their turns by it. */
  readonly cost: number
  /** In each bucket of the stack, where they differ. */
  readonly costs?: readonly number[] | undefined
}

export function costAt({ cost, costs }: Cost, place: number): number {
  return costs === undefined ? cost : costs[place]!
}

/** The cost in a bucket. 0: the stack does not have it. */
export function costIn({ stack, cost, costs }: Demand, bucket: SharedBucket): number {
  const place = stack.indexOf(bucket)
  return place < 0 ? 0 : costs === undefined ? cost : costs[place]!
}

export interface Arrival extends Demand {
  readonly route: LaneRoute
  /** Its lane's share of buckets that it contends for with others of its priority; 1 if absent. */
  readonly weight?: number
  /** 0 to 7: lower numbers leave first (priority.ts); 3 if absent. */
  readonly priority?: number
  /** It belongs to a dry run: nobody waits for it. */
  readonly shadow?: boolean
  /** Stands for its client, which has its share of `maxQueued`. Absent: it has none. */
  readonly client?: string
  /** ms. It is not admitted to a longer predicted wait, and may wait longer once it is. Absent: any. */
  readonly patience?: number | undefined
  /** If it is rejected, room is booked for it (admission/appointments.ts). `redeems`: the number of the booking that it uses. */
  readonly appointment?: { readonly redeems: number | undefined } | undefined
}

/** One queued request: the link in its lane and, if it may expire, its place among the deadlines. */
export class Ticket implements Linked<Ticket>, Timed, ClientEntry<Ticket>, Demand {
  list: object | undefined = undefined
  previous: Ticket | undefined = undefined
  next: Ticket | undefined = undefined
  place = -1
  /** When its `maxWait` is over, in ms. */
  due = Infinity
  /** The moment at which it could leave. Undefined before that, and after it was given back. */
  slot: number | undefined = undefined
  dates: readonly number[] | undefined = undefined
  /** When it left the lane by itself, released or expired, in ms. */
  leftAt: number | undefined = undefined
  shadow = false
  armed: ArmedSend | undefined = undefined
  client: string | ClientChain<Ticket> | undefined = undefined
  older: Ticket | undefined = undefined
  newer: Ticket | undefined = undefined
  costs: readonly number[] | undefined = undefined
  /** Where slots come from elsewhere: its cost is counted there. */
  declare counted: boolean | undefined

  constructor(
    public lane: Lane,
    readonly cost: number,
    readonly arrivedAt: number,
    readonly waiter: Waiter,
  ) {}

  get stack(): readonly SharedBucket[] {
    return this.lane.stack
  }
}

/** The tickets of one key, route and priority, in order. It exists while there are any, or some that claim or are set aside. */
export class Lane extends LinkedList<Ticket> implements Contender {
  list: object | undefined = undefined
  previous: Contender | undefined = undefined
  next: Contender | undefined = undefined
  deficit = 0
  round = 0
  since = 0
  unused = 0
  before: Source | undefined = undefined
  after: Source | undefined = undefined
  /** Tickets before those, for which slots are claimed from elsewhere (release/slot-source.ts). */
  claiming: LinkedList<Ticket> | undefined = undefined
  /** How many slots are claimed, whether granted yet or not. */
  claims = 0
  /** Tickets that have had their turn and could not be sent yet, in the order of their arrival. */
  aside: LinkedList<Ticket> | undefined = undefined
  /** The last of the tickets whose releases are armed. They are the first of the lane. */
  lastArmed: Ticket | undefined = undefined
  weight = 0
  /** Cost of the requests that wait. */
  queued = 0
  ranks: readonly LaneRank<Lane>[] = NONE

  /** @param bucket the first of its stack, if it is alone there. Else the bucket is that of `parent`, where it meets others. */
  constructor(
    readonly route: LaneRoute,
    readonly stack: readonly SharedBucket[],
    public parent: ShareNode,
    public bucket: SharedBucket | undefined = undefined,
  ) {
    super()
  }

  get gate(): Gate {
    return this.route.gate
  }

  get priority(): number {
    return this.parent.priority
  }

  /** How many requests wait, those that claim a slot or are set aside included. */
  get waiting(): number {
    return this.size + (this.claiming?.size ?? 0) + (this.aside?.size ?? 0)
  }

  /** Those that do not claim a slot. */
  get tickets(): LinkedList<Ticket> {
    return this
  }

  get awaited(): boolean {
    return this.size > 0
  }

  get hasAside(): boolean {
    return this.aside !== undefined && this.aside.size > 0
  }

  advance(): number {
    return this.first!.cost
  }
}

/** Where lanes of one priority meet that have a bucket, and all buckets after it, in common. */
export class ShareNode implements Contender {
  list: object | undefined = undefined
  previous: Contender | undefined = undefined
  next: Contender | undefined = undefined
  deficit = 0
  round = 0
  since = 0
  unused = 0
  before: Source | undefined = undefined
  after: Source | undefined = undefined
  /** All that meet here, in the queue or not: the lanes without a bucket first, then the sources of other buckets. */
  first: Source | undefined = undefined
  last: Source | undefined = undefined
  count = 0
  weight = 0
  /** Cost of the requests that wait below it. */
  queued = 0
  waiting = 0
  readonly fairQueue = new FairQueue()

  /** A root has no parent and no bucket. */
  constructor(
    readonly gate: Gate,
    readonly priority: number,
    readonly parent: ShareNode | undefined = undefined,
    readonly bucket: SharedBucket | undefined = undefined,
  ) {}

  /** Whether a request below it could use a slot of its bucket. */
  get awaited(): boolean {
    return this.fairQueue.size > 0
  }

  advance(): number {
    return this.fairQueue.advance().advance()
  }
}

/** A bound on the requests in flight. Their number and their cost are always counted: what is bounded may change while some run. */
class InFlightBound {
  /** `maxInFlight` is a bound on the cost of the requests in flight. Not with a store. */
  byCost = false
  #count = 0
  #cost = 0

  constructor(public maxInFlight = Infinity) {}

  get inFlight(): number {
    return this.byCost ? this.#cost : this.#count
  }

  get isFull(): boolean {
    return this.inFlight >= this.maxInFlight
  }

  /** Whether a request of this cost is within the bound that is not full. One that costs more than the bound passes alone. */
  hasRoomFor(cost: number): boolean {
    return !this.byCost || this.#cost <= LEVEL_TOLERANCE || this.#cost + cost <= this.maxInFlight + LEVEL_TOLERANCE
  }

  enter(cost = 1): void {
    this.#count += 1
    this.#cost += cost
  }

  leave(cost = 1): void {
    this.#count -= 1
    // Sums of fractions may leave a rest.
    this.#cost = this.#count === 0 ? 0 : this.#cost - cost
  }
}

/** The last step before an upstream: a bound on the requests in flight (not below what is armed), closed while it pauses. */
export class Gate extends InFlightBound implements Timed {
  /** When the pause ends, in ms. Meaningless without one. */
  due = -Infinity
  /** Its place among all pauses. -1: there is none. */
  place = -1
  /** Closed for a moment: what has passed is not on the wire yet. */
  closed = false
  /** Nothing passes but a probe, because the upstream fails. */
  blocked = false
  /** While it is blocked: the next request passes, as the probe. */
  probe = false
  /** The probe has passed. What becomes of it is not known yet. */
  probing = false
  /** When the next probe passes, in ms. Meaningless while it is not blocked. */
  probeAt = -Infinity
  /** The roots of the classes that have had requests, in the order of their first ones. */
  roots: readonly ShareNode[] = [new ShareNode(this, DEFAULT_PRIORITY)]
  /** How many releases to it are armed. They will take a place each. */
  armed = 0
  /** Called when a place is free that was taken or armed for. It must not call the core. */
  onRoom: (() => void) | undefined = undefined
  /** Bounds the requests in flight of several gates together. */
  pool: GatePool | undefined = undefined

  get open(): boolean {
    if (this.place >= 0 || this.closed || (this.blocked && !this.probe) || this.isFull) return false
    return this.pool === undefined || this.pool.admits(this)
  }

  fits(cost: number): boolean {
    return this.hasRoomFor(cost) && (this.pool === undefined || this.pool.fits(this, cost))
  }

  get paused(): boolean {
    return this.place >= 0
  }

  pausedFor(now: number): number {
    return this.place < 0 ? 0 : Math.max(0, this.due - now)
  }

  /** How much longer nothing passes, as far as is known: until the end of a pause, or until the next probe. In ms. */
  shutFor(now: number): number {
    const untilProbe = this.blocked && !this.probe ? this.probeAt - now : 0
    return Math.max(0, this.pausedFor(now), untilProbe)
  }

  /** The root of the requests without a priority of their own. */
  get root(): ShareNode {
    return this.roots[0]!
  }

  rootOf(priority: number): ShareNode {
    for (const known of this.roots) if (known.priority === priority) return known
    const root = new ShareNode(this, priority)
    this.roots = [...this.roots, root]
    return root
  }

  /** Whether a request could leave if it were open. */
  get awaited(): boolean {
    for (const root of this.roots) if (root.awaited) return true
    return false
  }

  override enter(cost = 1): void {
    super.enter(cost)
    this.pool?.enter(cost)
    if (!this.blocked) return
    this.probe = false
    this.probing = true
  }

  /** The probe was not sent after all. Another may pass. */
  unprobe(): void {
    if (!this.probing) return
    this.probing = false
    this.probe = this.blocked
  }

  override leave(cost = 1): void {
    super.leave(cost)
    this.pool?.leave(cost)
    this.onRoom?.()
  }

  disarm(): void {
    this.armed -= 1
    this.onRoom?.()
  }
}

/** A bound on the requests in flight of several gates. Those that it closes take turns. */
export class GatePool extends InFlightBound {
  #waiting = new Set<Gate>()

  /** Wakes gates that wait, while there are places. One whose request does not fit yet stays the first. */
  wake(wake: (gate: Gate) => void): void {
    for (const gate of this.#waiting) {
      if (this.isFull) return
      const before = this.inFlight
      this.#waiting.delete(gate)
      wake(gate)
      if (this.inFlight > before || !this.#waiting.has(gate)) continue
      this.#waiting.delete(gate)
      this.#waiting = new Set([gate, ...this.#waiting])
      return
    }
  }

  /** Whether any request of a gate may pass. If not, the gate waits. */
  admits(gate: Gate): boolean {
    if (!this.isFull) return true
    this.#waiting.add(gate)
    return false
  }

  /** Whether a request of this cost may. If not, its gate waits. */
  fits(gate: Gate, cost: number): boolean {
    if (this.hasRoomFor(cost)) return true
    this.#waiting.add(gate)
    return false
  }
}
