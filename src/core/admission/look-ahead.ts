/**
 * How long newcomers wait, found by letting what waits leave: a copy of the lanes, share nodes and buckets goes on by the same
 * rules as they do (queue/ready-lanes.ts), as fast as it can. So the answer is exact if nobody else comes, nobody leaves, and
 * whatever passes is sent in its slot. Places in flight are left out, as nobody knows when requests end.
 *
 * The copy has all lanes that meet a newcomer at a bucket, or meet one of these, and so on. So the time to make it, and to run
 * it, grows with the requests that wait there.
 */
import { allSources } from '../bucket/waiting.js'
import { ignore } from '../maybe-promise.js'
import { DEFAULT_PRIORITY } from '../priority.js'
import {
  type Arrival,
  costAt,
  Gate,
  Lane,
  type LaneRoute,
  type SharedBucket,
  ShareNode,
  type Source,
  Ticket,
} from '../queue/lane.js'
import { passStack } from '../queue/pass-stack.js'
import { ReadyLanes, SAME_TIME } from '../queue/ready-lanes.js'
import { addLast, countQueued, openLane, sourcesBelow } from '../queue/tree.js'
import { DueHeap } from '../structures/due-heap.js'

/** A newcomer, and for how many ms nothing leaves to its upstream. */
export interface Newcomer {
  readonly arrival: Arrival
  readonly pause: number
}

const NO_WAITER = { release: ignore, expire: ignore, reject: ignore }

class TooMany extends Error {}

export interface LookAheadOptions {
  /** ms */
  readonly now: number
  readonly most: number
  /** Of buckets that become free at one moment the one with the lower number is first. Absent: any. */
  orderOf?(bucket: SharedBucket): number
}

/** The newcomers, ready to leave, each as if alone: it has weight, but takes no slot. Undefined: too many requests wait. */
export function lookAhead(newcomers: readonly Newcomer[], options: LookAheadOptions): LookAhead | undefined {
  try {
    return new LookAhead(newcomers, options)
  } catch (error) {
    if (error instanceof TooMany) return undefined
    throw error
  }
}

export class LookAhead {
  readonly #ready = new ReadyLanes()
  readonly #pauses = new DueHeap<Gate>()
  readonly #now: number
  // By what they are copies of.
  readonly #gates = new Map<Gate, Gate>()
  readonly #routes = new Map<LaneRoute, LaneRoute>()
  readonly #buckets = new Map<SharedBucket, SharedBucket>()
  readonly #sources = new Map<Source, Source>()
  readonly #changing: SharedBucket[] = []
  readonly #open: SharedBucket[] = []
  readonly #newcomers = new Map<Ticket, number>()
  /** ms. Undefined: it has not left yet. */
  readonly waits: (number | undefined)[]
  /** How many requests may still be copied. */
  #room: number

  constructor(newcomers: readonly Newcomer[], { now, most, orderOf }: LookAheadOptions) {
    this.#now = now
    this.#room = most
    this.waits = newcomers.map(() => undefined)
    const arrivals = newcomers.map(({ arrival, pause }) => this.#arrivalOf(arrival, pause))
    this.#copySources()
    this.#lineUp(orderOf)
    this.#changing.sort((a, b) => a.limits.next!.at - b.limits.next!.at)
    while (Math.min(this.#ready.due, this.#pauses.nextDue, this.#nextChange) <= now + SAME_TIME) this.#advance()
    for (const [index, arrival] of arrivals.entries()) this.#join(arrival, index)
    this.#release(now)
  }

  /** Lets the next thing happen. False: all newcomers have left. */
  next(): boolean {
    return this.#newcomers.size > 0 && this.#advance()
  }

  #advance(): boolean {
    const free = this.#ready.due
    const resumed = this.#pauses.nextDue
    if (this.#nextChange < Math.min(free, resumed)) this.#change(this.#changing.shift()!)
    else if (resumed <= free) {
      const gate = this.#pauses.next
      if (gate === undefined) return false
      this.#pauses.remove(gate)
      this.#ready.gateOpened(gate)
      this.#release(resumed)
    } else this.#release(this.#ready.free(free))
    return true
  }

  /** ms. Infinity: no limits change. */
  get #nextChange(): number {
    return this.#changing[0]?.limits.next?.at ?? Infinity
  }

  #change(bucket: SharedBucket): void {
    const { next, ...limits } = bucket.limits
    const { at, rate, capacity } = next!
    bucket.setLimits({ ...limits, rate, capacity }, at)
    this.#ready.plan(bucket)
  }

  #arrivalOf(arrival: Arrival, pause: number): Arrival {
    const { route, stack, priority = DEFAULT_PRIORITY } = arrival
    const copy = {
      ...arrival,
      route: this.#routeOf(route),
      stack: stack.map((bucket, place) => this.#bucketOf(bucket, place)),
    }
    copy.route.gate.rootOf(priority)
    this.#pause(copy.route.gate, pause)
    return copy
  }

  #pause(gate: Gate, pause: number): void {
    if (pause <= 0) return
    gate.due = this.#now + pause
    if (gate.paused) this.#pauses.move(gate, gate.due)
    else this.#pauses.add(gate, gate.due)
  }

  #gateOf(gate: Gate): Gate {
    const known = this.#gates.get(gate)
    if (known !== undefined) return known
    const copy = new Gate()
    this.#gates.set(gate, copy)
    this.#pause(copy, gate.pausedFor(this.#now))
    return copy
  }

  #routeOf(route: LaneRoute): LaneRoute {
    const known = this.#routes.get(route)
    if (known !== undefined) return known
    const copy = { name: route.name, gate: this.#gateOf(route.gate) }
    this.#routes.set(route, copy)
    return copy
  }

  #bucketOf(bucket: SharedBucket, place?: number): SharedBucket {
    const known = this.#buckets.get(bucket)
    if (known !== undefined) return known
    const copy = bucket.copy(this.#now, place)
    this.#buckets.set(bucket, copy)
    if (copy.limits.next !== undefined) this.#changing.push(copy)
    this.#open.push(bucket)
    return copy
  }

  #copySources(): void {
    for (let bucket = this.#open.pop(); bucket !== undefined; bucket = this.#open.pop()) {
      for (const source of allSources(bucket)) this.#copyTree(source)
    }
    const copyOf = (source: Source | undefined): Source | undefined => source && this.#sources.get(source)
    for (const [{ source, extras }, copy] of this.#buckets) {
      copy.source = copyOf(source)
      if (extras === undefined || extras.otherSources.length === 0) continue
      copy.openExtras().otherSources = extras.otherSources.map(other => copyOf(other)!)
    }
    for (const [gate, copy] of this.#gates) {
      for (const { priority, fairQueue } of gate.roots)
        copy.rootOf(priority).fairQueue.copyFrom(fairQueue, at => copyOf(at as Source))
    }
  }

  #copyTree(source: Source): void {
    let top = source
    while (top.parent?.parent !== undefined) top = top.parent
    if (!this.#sources.has(top)) this.#copySource(top, this.#gateOf(top.gate).rootOf(top.priority))
  }

  #copySource(source: Source, parent: ShareNode): void {
    const { bucket, weight, deficit, round } = source
    const own = bucket && this.#bucketOf(bucket)
    const copy: Source =
      source instanceof Lane
        ? new Lane(
            this.#routeOf(source.route),
            source.stack.map(each => this.#bucketOf(each)),
            parent,
            own,
          )
        : new ShareNode(parent.gate, parent.priority, parent, own)
    this.#sources.set(source, copy)
    copy.deficit = deficit
    copy.round = round
    copy.since = source.since
    copy.unused = source.unused
    copy.weight = weight
    addLast(parent, copy)
    if (copy instanceof Lane) {
      this.#room -= source.waiting
      if (this.#room < 0) throw new TooMany()
      return copyTickets(source as Lane, copy)
    }
    for (const below of sourcesBelow(source as ShareNode)) this.#copySource(below, copy)
    copy.fairQueue.copyFrom((source as ShareNode).fairQueue, at => this.#sources.get(at as Source))
  }

  /** What waits for its bucket to drain is planned. */
  #lineUp(orderOf: LookAheadOptions['orderOf']): void {
    const waiting = new Set<SharedBucket>()
    for (const [original, copy] of this.#sources) {
      if (copy.list !== undefined) continue
      if (original.bucket !== undefined) waiting.add(original.bucket)
      else if (copy.awaited) this.#ready.opened(copy as Lane, this.#now)
    }
    const planned = orderOf === undefined ? waiting : [...waiting].sort((a, b) => orderOf(a) - orderOf(b))
    for (const bucket of planned) this.#ready.plan(this.#buckets.get(bucket)!)
    for (const gate of this.#gates.values()) this.#ready.gateOpened(gate)
  }

  #join(arrival: Arrival, index: number): void {
    const lane = openLane(arrival)
    const ticket = new Ticket(lane, arrival.cost, this.#now, NO_WAITER)
    ticket.costs = arrival.costs
    for (const [place, bucket] of lane.stack.entries()) bucket.enqueue(costAt(ticket, place))
    countQueued(lane, ticket.cost)
    for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) {
      at.fairQueue.learn(ticket.cost, lane.weight)
    }
    lane.tickets.push(ticket)
    this.#newcomers.set(ticket, index)
    if (lane.tickets.size === 1) this.#ready.opened(lane, this.#now)
  }

  #release(slot: number): void {
    for (let ticket = this.#ready.next(slot); ticket !== undefined; ticket = this.#ready.next(slot)) {
      this.#withdraw(ticket, slot)
      const index = this.#newcomers.get(ticket)
      if (index === undefined) {
        passStack(ticket, slot, slot)
        for (const bucket of ticket.stack) this.#ready.occupied(bucket, slot)
      } else {
        this.#newcomers.delete(ticket)
        this.waits[index] = slot - this.#now
        giveTurnBack(ticket)
      }
    }
  }

  #withdraw(ticket: Ticket, slot: number): void {
    const { lane, cost } = ticket
    lane.tickets.remove(ticket)
    countQueued(lane, -cost)
    for (const [place, bucket] of lane.stack.entries()) {
      bucket.dequeue(costAt(ticket, place))
      if (bucket.nextCost > 0) this.#ready.pickAgain(bucket, slot)
    }
    if (lane.tickets.size === 0) this.#ready.closed(lane)
  }
}

/** A newcomer was not there for the others: they have the turn that it was charged for. */
function giveTurnBack({ lane, cost }: Ticket): void {
  for (let at: ShareNode | undefined = lane.parent; at?.parent !== undefined; at = at.parent) at.deficit += cost
}

function copyTickets(from: Lane, to: Lane): void {
  for (const list of [from.claiming, from.tickets]) {
    if (list === undefined) continue
    for (let ticket = list.first; ticket !== undefined; ticket = ticket.next) {
      const copy = new Ticket(to, ticket.cost, ticket.arrivedAt, NO_WAITER)
      copy.costs = ticket.costs
      to.tickets.push(copy)
      countQueued(to, ticket.cost)
    }
  }
}
