/**
 * Waiting and release in time: a discrete-event simulation. The clock only says how far it may go.
 *
 * Its events are: a bucket becomes free, a waiter gives up, a claimed slot is due, a pause ends. `settle` runs all that are
 * due, in the order of their times and not of the wake-up. Each decision settles first, so at `now` it never sees a slot
 * that is past but not used yet. What was admitted, and in which slots it left, is the same whether wake-ups came on time or
 * late, up to the forfeit rule of queued-bucket.ts.
 *
 * A request is released in the first moment at which it heads its lane, every bucket of its stack is free, the gate of its
 * upstream is open and it has its turn (fair-queue.ts). That moment is its slot: an event's time, or `now` when an arrival
 * or the opening of a gate makes it possible. Where a store grants slots, a slot is claimed at that moment (slot-claims.ts).
 *
 * A ticket is in a lane from its admission until exactly one of release, cancel and expire takes it out. Only that one calls
 * its waiter.
 */

import { dropRank, updateRank } from '../admission/fair-drop.js'
import { type LookAhead, lookAhead, type Newcomer } from '../admission/look-ahead.js'
import { type BucketLimits, graceAt } from '../bucket/queued-bucket.js'
import type { Cancel, Clock } from '../clock.js'
import type { MaybePromise } from '../maybe-promise.js'
import {
  type Arrival,
  costAt,
  type Demand,
  type Gate,
  type Rejection,
  type SharedBucket,
  type ShareNode,
  StoredTicket,
  Ticket,
  type Waiter,
} from '../queue/lane.js'
import { passedAt, passStack } from '../queue/pass-stack.js'
import { ReadyLanes, SAME_TIME } from '../queue/ready-lanes.js'
import { countQueued, openLane } from '../queue/tree.js'
import { WaitingClients } from '../queue/waiting-clients.js'
import { Claims } from '../shared/slot-claims.js'
import { passedAlone, type ReleaseMode, type StoredBucket } from '../shared/stored-bucket.js'
import type { ClaimAnswer, Store } from '../store.js'
import { DueHeap } from '../structures/due-heap.js'
import { LinkedList } from '../structures/linked-list.js'
import { ArmedReleases } from './armed-releases.js'
import { SendLatency } from './send-latency.js'
import { CallbackQueue } from './waiter-callbacks.js'
import { WakeUp } from './wake-up.js'

/** Takes back what is armed. False: some of it has been sent, so its slot has passed. */
type Recall = (armed: ArmedReleases) => boolean

/** Each further try takes note of a release that was sent after the one before. */
const MOST_RECALLS = 1_000

/**
 * ms. A request that waits longer for its connection holds nobody up any more. So several notice that an upstream takes no
 * connections.
 */
const LONGEST_HOLD = 1_000

export interface EngineOptions {
  readonly clock: Clock
  /** Wakes the core where some ms do not matter. With it, and without a store, releases are armed (armed-releases.ts). */
  readonly timer?: Clock
  /** Grants slots of buckets whose shards are claimed from. */
  readonly store?: Store
  /** A question about these buckets, of this time in ms, was not answered. */
  readonly unanswered?: (stack: readonly SharedBucket[], askedAt: number) => void
}

export class Engine {
  /** When the last arrival passed at once, in ms. */
  passedAt = -Infinity
  readonly #clock: Clock
  readonly #readyLanes = new ReadyLanes()
  readonly #deadlines = new DueHeap<Ticket>()
  readonly #pauses = new DueHeap<Gate>()
  readonly #callbacks = new CallbackQueue()
  readonly #claims: Claims | undefined
  readonly #sending = new SendLatency()
  readonly #waiting = new WaitingClients<Ticket>()
  readonly #shadows = new WaitingClients<Ticket>()
  /** Requests for which buckets are held. Each keeps what cancels the end of its hold, and since when in ms. */
  readonly #holds = new Map<Arrival, { readonly cancel: Cancel; readonly since: number }>()
  /** For what happens by itself. */
  readonly #wakeUp: WakeUp
  readonly #armed: ArmedReleases | undefined
  /** For what is armed. */
  readonly #look: WakeUp | undefined

  constructor({ clock, timer, store, unanswered }: EngineOptions) {
    this.#clock = clock
    const wake = (): void => {
      this.settle()
      this.notify()
    }
    this.#wakeUp = new WakeUp(clock, wake)
    if (store === undefined) {
      this.#look = timer && new WakeUp(timer, wake)
      this.#armed = timer && new ArmedReleases(this.#readyLanes, this.#deadlines, () => clock.now())
      return
    }
    this.#claims = new Claims({ store, clock }, this.#readyLanes, {
      now: () => clock.now(),
      wake: () => this.wake(),
      leave: (ticket, slot, now) => {
        this.#left(ticket)
        this.#release(ticket, slot, now)
      },
      failed: (stack, askedAt) => unanswered?.(stack, askedAt),
    })
  }

  /** How many requests wait. Shadows of dry runs do not count. */
  get queued(): number {
    return this.#waiting.size
  }

  /** Looks ahead from now on, as far as is needed to see newcomers leave (admission/look-ahead.ts). */
  lookAhead(newcomers: readonly Newcomer[], most: number): LookAhead | undefined {
    const now = this.settle()
    const ahead = lookAhead(newcomers, { now, most, orderOf: this.#readyLanes.positionOf })
    this.notify()
    return ahead
  }

  /** All that wait. Shadows of dry runs are apart. */
  waitingLike({ shadow }: { readonly shadow?: boolean }): WaitingClients<Ticket> {
    return shadow ? this.#shadows : this.#waiting
  }

  /** How requests of a stack pass. One shut shard shuts the whole stack. Else one that is away lets it pass without the store. */
  releaseModeOf(stack: readonly SharedBucket[]): ReleaseMode {
    if (this.#claims === undefined) return 'direct'
    let found: ReleaseMode = stack.length === 0 ? 'direct' : 'claimed'
    for (const bucket of stack) {
      const { mode } = (bucket as StoredBucket).shard
      if (mode === 'none') return 'none'
      if (mode === 'direct') found = 'direct'
    }
    return found
  }

  /** The shards of these buckets have changed how requests pass. */
  releaseModeChanged(buckets: Iterable<SharedBucket>): void {
    const now = this.#clock.now()
    for (const bucket of buckets) {
      if (bucket.shut) this.#readyLanes.occupied(bucket)
      else this.#readyLanes.reopened(bucket, now)
    }
    this.wake()
  }

  /** Lets happen what is due, one moment at a time, as a late send moves the slots after it. Returns the time. */
  settle(): number {
    let now = this.#clock.now()
    while (this.#advance(now)) {
      this.#callbacks.callAll(this.#onReleased)
      now = this.#clock.now()
    }
    return now
  }

  /** As `settle`, before a request is admitted or its cost is metered: what it could change is armed no more. */
  settleFor(arrival: Arrival, place: 'behind' | 'before'): number {
    const now = this.settle()
    return this.#armed === undefined || this.#armed.recallFor(arrival, place)
      ? now
      : this.#settleAgain(armed => armed.recallFor(arrival, place))
  }

  /** As `settle`, before plans are changed: what is armed of them is taken back. `recall` as in `ArmedReleases`. */
  settleBefore(recall: Recall): number {
    const now = this.settle()
    return this.#armed === undefined || recall(this.#armed) ? now : this.#settleAgain(recall)
  }

  /** Takes back what is armed and what a change to an earlier moment could touch. Settles only if some has been sent. */
  recallFor(arrival: Arrival): void {
    this.#recall(armed => armed.recallFor(arrival, 'before'))
  }

  #recall(recall: Recall): void {
    if (this.#armed !== undefined && !recall(this.#armed)) this.#settleAgain(recall)
  }

  /** Some of what was to be taken back has been sent in the meantime. */
  #settleAgain(recall: Recall): number {
    for (let tries = 0; tries < MOST_RECALLS; tries += 1) {
      const now = this.settle()
      if (recall(this.#armed!)) return now
    }
    throw new Error('a release was sent before its slot')
  }

  /** Releases every request that can leave. The slot is the moment, in ms, that made it possible. */
  releaseReady(slot: number, now: number): void {
    for (let ticket = this.#readyLanes.next(slot); ticket !== undefined; ticket = this.#readyLanes.next(slot)) {
      if (this.releaseModeOf(ticket.lane.stack) === 'claimed') {
        this.#claims!.ask(ticket, now)
        continue
      }
      const leftAt = this.#armed?.take(ticket) ?? now
      this.withdraw(ticket)
      ticket.dates = this.#pass(ticket, slot, leftAt)
      ticket.lane.route.gate.enter(ticket.cost)
      this.#release(ticket, slot, leftAt)
    }
  }

  /**
   * Calls the waiters whose tickets have left, then arms the timer: sending goes first.
   *
   * @param newcomer it has been admitted just now. If it has left already, its waiter is called a moment later
   */
  notify(newcomer?: Ticket): void {
    this.#callbacks.callAll(this.#onReleased, newcomer)
    this.#plan()
  }

  /** Something may have become possible. */
  wake(): void {
    const now = this.settle()
    this.releaseReady(now, now)
    this.notify()
  }

  /** Lets an arrival pass now, without waiting. */
  passAtOnce(arrival: Arrival, now: number): void {
    this.passedAt = now
    this.#pass(arrival, now, now)
    arrival.route.gate.enter(arrival.cost)
  }

  /**
   * Puts a request into its lane, behind those that came before it. It takes part after `contend`.
   *
   * @param maxWait ms since `arrivedAt`, when it expires
   */
  join(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket {
    const ticket = this.countIn(arrival, waiter, arrivedAt)
    this.lineUp(ticket, arrivedAt + maxWait)
    return ticket
  }

  /** Counts a request in its lane and in its buckets. It does not stand in the lane yet. */
  countIn(arrival: Arrival, waiter: Waiter, arrivedAt: number): Ticket {
    const { stack, cost, costs, shadow = false, client } = arrival
    const lane = openLane(arrival)
    const TicketHere = this.#claims === undefined ? Ticket : StoredTicket
    const ticket = new TicketHere(lane, cost, arrivedAt, waiter)
    ticket.shadow = shadow
    ticket.costs = costs
    this.waitingLike(ticket).add(ticket, client)
    for (let place = 0; place < stack.length; place += 1) stack[place]!.enqueue(costAt(ticket, place))
    if (costs !== undefined) for (const bucket of stack) bucket.openExtras().mixed += 1
    countQueued(lane, cost)
    return ticket
  }

  /** Lets a ticket that is counted in stand in its lane, behind those that came before it. `due` in ms: it expires then. */
  lineUp(ticket: Ticket, due: number): void {
    const { lane, cost } = ticket
    for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) {
      at.fairQueue.learn(cost, lane.weight)
    }
    insertByArrival(lane.tickets, ticket)
    updateRank(lane)
    this.setDeadline(ticket, due)
    this.#armed?.changed(lane)
  }

  /** Lets a ticket that is counted in stand aside: it takes part after `lineUp`. */
  setAside(ticket: Ticket): void {
    const { lane } = ticket
    lane.aside ??= new LinkedList()
    insertByArrival(lane.aside, ticket)
    for (const bucket of lane.stack) bucket.aside += 1
    updateRank(lane)
  }

  /** False: it does not stand aside. */
  leaveAside(ticket: Ticket): boolean {
    const { lane } = ticket
    if (!lane.aside?.remove(ticket)) return false
    for (const bucket of lane.stack) bucket.aside -= 1
    return true
  }

  /** Lets the lane of a ticket that is first in it contend for slots. */
  contend(ticket: Ticket, now: number): void {
    const { lane } = ticket
    if (lane.tickets.size > 1 && lane.first === ticket) {
      // It goes before one that was first.
      for (const bucket of lane.stack) if (bucket.nextCost > 0) this.#readyLanes.pickAgain(bucket, now)
    }
    this.#readyLanes.opened(lane, now)
    this.releaseReady(now, now)
  }

  /** The store has answered a claim that came with the admission of this ticket, the last of its lane, asked for at this time in ms. */
  offer(ticket: Ticket, claim: ClaimAnswer, askedAt: number): void {
    this.#claims!.offer(ticket, claim, askedAt)
  }

  /** ms by which slots of a stack may be ahead of the horizon when they are claimed with an admission. */
  claimAhead(stack: readonly SharedBucket[]): number {
    return this.#claims?.ahead(stack) ?? 0
  }

  /** The room of a bucket is leased from now on, which has no room for this cost. */
  lease(bucket: SharedBucket, cost: number): void {
    this.#claims!.leases.startRoom(bucket as StoredBucket, cost)
  }

  /** Asks what waits for a bucket in other instances, before a request of this cost is decided on. `then` is called after the answer. */
  look(bucket: SharedBucket, cost: number, then: () => void): void {
    this.#claims!.leases.look(bucket as StoredBucket, cost, then)
  }

  /** A request has come to leased buckets. */
  arrivedAt(stack: readonly SharedBucket[]): void {
    for (const bucket of stack) this.#claims?.leases.arrived(bucket as StoredBucket)
  }

  /** Lets an arrival that has its leased room pass by leased slots that are there. False: it has to wait. */
  passByLease(arrival: Arrival): boolean {
    const now = this.settle()
    const passes = this.#claims!.passAtOnce(arrival, now)
    this.notify()
    return passes
  }

  /** Asks for more room of a leased bucket. `then` is called after the answer. */
  refill(bucket: SharedBucket, then: () => void): void {
    this.#claims!.leases.refill(bucket as StoredBucket, then)
  }

  /** A cost that was admitted leaves the levels. */
  uncountCost(demand: Demand): void {
    this.#claims!.uncount(demand)
  }

  /** A released request cost more than was reserved, or less if a difference is negative. @returns the real changes, by bucket */
  settleCost(demand: Demand, now: number): MaybePromise<readonly number[]> {
    const changes = demand.stack.map((bucket, place) => {
      const change = bucket.settle(costAt(demand, place), now)
      this.#readyLanes.occupied(bucket)
      return change
    })
    return this.#claims?.settle(demand, changes) ?? changes
  }

  /** How long, in ms, a free slot of this stack may take to arrive from the store. */
  patience(stack: readonly SharedBucket[]): number {
    return this.#claims?.patience(stack) ?? 0
  }

  /** Sets when the `maxWait` of a ticket is over, in ms, and looks at its deadline anew. Infinity: it has none. */
  setDeadline(ticket: Ticket, due: number): void {
    ticket.due = due
    const { deadline = Infinity } = ticket.waiter
    const first = Math.min(due, deadline)
    this.#deadlines.remove(ticket)
    if (first < Infinity) this.#deadlines.add(ticket, first)
  }

  /** Takes a waiter out of its lane without calling it. False: it has left already. */
  withdraw(ticket: Ticket): boolean {
    const { lane } = ticket
    if (!lane.tickets.remove(ticket) && !this.leaveAside(ticket) && !this.#claims?.remove(ticket)) return false
    this.#left(ticket)
    return true
  }

  /** Takes a waiter out of its lane because nobody wants it any more. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    // What is due at this very moment is not sent first, as it is not without arming.
    if (ticket.armed !== undefined) this.#recall(armed => armed.recall(ticket.lane))
    if (!this.withdraw(ticket)) return false
    this.#claims?.giveBack(ticket)
    return true
  }

  /** Lets a waiter expire. */
  expire(ticket: Ticket, now: number): void {
    // First: taking back what is armed settles, and would come here again.
    this.#deadlines.remove(ticket)
    if (!this.cancel(ticket)) return
    ticket.leftAt = now
    this.#callbacks.push(ticket)
  }

  /** Rejects a request that waited. It may have been withdrawn before. */
  reject(ticket: Ticket, rejection: Rejection): void {
    this.withdraw(ticket)
    this.#claims?.giveBack(ticket)
    this.#callbacks.push(ticket, rejection)
  }

  /** Returns the slot of a released ticket. A bucket of which it was the last is free again. */
  returnSlot(ticket: Ticket, slot: number): void {
    this.#claims?.giveBack(ticket)
    for (const [place, bucket] of ticket.stack.entries()) {
      bucket.restore(costAt(ticket, place), passedAt(ticket, slot, place))
      this.#readyLanes.plan(bucket, Math.max(bucket.freeAt, passedAt(ticket, slot, ticket.stack.length - 1)))
    }
    ticket.slot = undefined
  }

  /** Makes free again what has just passed at once, in buckets of which it was the last. */
  restore(demand: Demand): void {
    for (const [place, bucket] of demand.stack.entries()) {
      bucket.restore(costAt(demand, place), this.passedAt)
      this.#readyLanes.plan(bucket)
    }
  }

  /** A ticket that left will not be sent: a store no longer counts it. */
  uncount(ticket: Ticket): void {
    this.#claims?.giveBack(ticket)
  }

  /** A gate may have opened, and some buckets may no longer be shut. */
  open(gate: Gate | undefined, stack: readonly SharedBucket[], now: number): void {
    for (const bucket of stack) this.#readyLanes.reopened(bucket, now)
    if (gate !== undefined) this.#readyLanes.gateOpened(gate)
    this.releaseReady(now, now)
  }

  /** A request has passed, and is in flight. */
  enter(gate: Gate | undefined, stack: readonly SharedBucket[]): void {
    gate?.enter()
    for (const bucket of stack) {
      bucket.enter()
      if (bucket.shut) this.#readyLanes.occupied(bucket)
    }
  }

  /** Closes a gate until then, in ms. */
  pause(gate: Gate, until: number): void {
    gate.due = until
    if (gate.paused) return this.#pauses.move(gate, until)
    this.#pauses.add(gate, until)
    this.#claims?.recall(gate)
  }

  /** Closes a gate. Nothing of it is armed. */
  block(gate: Gate): void {
    gate.blocked = true
    this.#claims?.recall(gate)
  }

  /** Ends a pause. What waited for it can leave with the next `releaseReady`. */
  resume(gate: Gate): void {
    this.#pauses.remove(gate)
    this.#readyLanes.gateOpened(gate)
  }

  /** Changes what a bucket allows. */
  setLimits(bucket: SharedBucket, limits: BucketLimits, now: number): void {
    // The store knows nothing of shares.
    const isOther = this.#claims !== undefined && rateOfAll(limits) !== rateOfAll(bucket.limits)
    const wasShut = bucket.shut
    if (isOther) this.#claims!.recallFar(bucket, now)
    if (isOther && this.#isClaimed(bucket)) this.#claims!.rateEnds(bucket)
    bucket.setLimits(limits, now)
    if (isOther && this.#isClaimed(bucket)) this.#claims!.rateChanged(bucket)
    if (bucket.shut === wasShut) this.#readyLanes.plan(bucket)
    else if (wasShut) this.open(undefined, [bucket], now)
    else this.#readyLanes.occupied(bucket)
  }

  /** Forgets what has passed a bucket, and its block. */
  reset(bucket: SharedBucket, now: number): void {
    bucket.reset(now)
    this.#claims?.reset(bucket)
    this.#readyLanes.plan(bucket)
  }

  /** The request that passed its buckets last at `passedAt` was sent later. Times are in ms. */
  postpone(demand: Demand, passedAt: number, sentAt: number): void {
    const { stack } = demand
    for (const [place, bucket] of stack.entries()) {
      const cost = costAt(demand, place)
      // A store knows the slot only: the next one is not asked for before this instance has kept its distance.
      const postponed =
        this.#claims !== undefined && this.#isClaimed(bucket)
          ? this.#claims.postpone(bucket, cost, passedAt, sentAt)
          : bucket.postpone(cost, sentAt, graceAt(bucket.limits, place, stack.length))
      if (postponed) this.#readyLanes.occupied(bucket)
    }
  }

  /**
   * A request that has passed is not on the wire yet: nothing else passes its buckets towards its gate until `unhold`, or for a
   * second. Another upstream need not wait until this one takes a connection.
   *
   * @returns false if a store grants the slots: it knows nothing of this
   */
  hold(request: Arrival): boolean {
    if (this.#claims !== undefined) return false
    const { stack, route } = request
    // What is armed goes only after what is held. What has been sent meanwhile passes now: while held nobody takes note of it.
    const recall: Recall = armed => stack.every(bucket => armed.recallBucket(bucket, route.gate))
    const settles = this.#armed !== undefined && !recall(this.#armed)
    if (settles) this.#settleAgain(recall)
    for (const bucket of stack) this.#readyLanes.hold(bucket, request)
    const end = (): void => {
      this.unhold(request)
      this.wake()
    }
    const since = this.#clock.now()
    this.#holds.set(request, { cancel: this.#clock.at(since + LONGEST_HOLD, end), since })
    if (settles) this.notify()
    return true
  }

  /** It is on the wire, or will never be. */
  unhold(request: Arrival): void {
    const { stack } = request
    const hold = this.#holds.get(request)
    hold?.cancel()
    this.#holds.delete(request)
    for (const [place, bucket] of stack.entries()) {
      this.#readyLanes.unhold(bucket, request, place < stack.length - 1 ? (hold?.since ?? -Infinity) : -Infinity)
    }
  }

  /** Nothing happens by itself any more. */
  close(): void {
    this.#armed?.recallAll()
    for (const { cancel } of this.#holds.values()) cancel()
    this.#wakeUp.close()
    this.#claims?.leases.close()
    this.#look?.close()
  }

  /** Lets the next thing happen. False: nothing is due. */
  #advance(now: number): boolean {
    const free = this.#readyLanes.due
    const deadline = this.#deadlines.nextDue
    const claimed = this.#claims?.due ?? Infinity
    const resumed = this.#pauses.nextDue
    if (Math.min(free, deadline, claimed, resumed) > now + SAME_TIME) return false
    if (claimed <= Math.min(free, deadline, resumed)) {
      this.#claims!.advance(now)
      // A dropped claim puts its ticket back in contention. It also frees a place in the gate for all that wait there.
      this.releaseReady(now, now)
    } else if (resumed <= Math.min(free, deadline + SAME_TIME)) {
      this.resume(this.#pauses.next!)
      this.releaseReady(resumed, now)
    } else if (free <= deadline + SAME_TIME) this.releaseReady(this.#readyLanes.free(free), now)
    else this.#expireAll(deadline, now)
    return true
  }

  #isClaimed(bucket: SharedBucket): boolean {
    return (bucket as StoredBucket).shard.mode === 'claimed'
  }

  #expireAll(due: number, now: number): void {
    for (
      let ticket = this.#deadlines.next;
      ticket !== undefined && this.#deadlines.nextDue <= due;
      ticket = this.#deadlines.next
    ) {
      // A deadline that is later by now.
      this.setDeadline(ticket, ticket.due)
      if (this.#deadlines.dueOf(ticket) <= now + SAME_TIME) this.expire(ticket, now)
    }
  }

  #pass(demand: Demand & { readonly arrivedAt?: number }, slot: number, now: number): readonly number[] | undefined {
    const { stack } = demand
    const dates = passStack(demand, slot, now)
    for (const bucket of stack) bucket.enter()
    if (this.#claims !== undefined) passedAlone(demand, slot)
    for (const bucket of stack) this.#readyLanes.occupied(bucket, slot)
    return dates
  }

  #release(ticket: Ticket, slot: number, now: number): void {
    ticket.slot = slot
    ticket.leftAt = now
    this.#callbacks.push(ticket)
  }

  /** A ticket is no longer in its lane. */
  #left(ticket: Ticket): void {
    const { lane, cost } = ticket
    this.waitingLike(ticket).remove(ticket)
    this.#deadlines.remove(ticket)
    countQueued(lane, -cost)
    if (ticket.costs !== undefined) for (const bucket of lane.stack) bucket.openExtras().mixed -= 1
    for (let place = 0; place < lane.stack.length; place += 1) {
      const bucket = lane.stack[place]!
      bucket.dequeue(costAt(ticket, place))
      if (bucket.nextCost > 0) this.#readyLanes.pickAgain(bucket, this.#clock.now())
    }
    if (lane.tickets.size > 0) updateRank(lane)
    else if (this.#claims !== undefined) this.#claims.close(lane)
    else if (lane.hasAside) {
      this.#readyLanes.rest(lane)
      updateRank(lane)
    } else {
      dropRank(lane)
      this.#readyLanes.closed(lane)
    }
  }

  /** The delay of the send itself counts against the slots that follow. */
  readonly #onReleased = (ticket: Ticket): void => {
    if (ticket.slot !== undefined && ticket.armed?.sentAt === undefined) this.#countSending(ticket, ticket.slot)
    this.#armed?.sent(ticket)
  }

  #countSending(ticket: Ticket, slot: number): void {
    const sentAt = this.#clock.now()
    const { usual } = this.#sending
    this.#sending.record(sentAt - ticket.leftAt!)
    for (const [place, bucket] of ticket.stack.entries()) {
      const { limits } = bucket
      const countedAt = limits.grace === undefined ? sentAt : sentAt - usual
      // Another may have passed since.
      if (!bucket.passedLast(passedAt(ticket, slot, place))) continue
      const grace = graceAt(limits, place, ticket.stack.length)
      if (bucket.postpone(costAt(ticket, place), countedAt, grace)) {
        this.#readyLanes.plan(bucket, Math.max(bucket.freeAt, slot))
      }
    }
    ticket.leftAt = sentAt
  }

  /** Arms releases, and the clock for all else. */
  #plan(): void {
    if (this.#armed !== undefined) {
      const now = this.#clock.now()
      this.#armed.arm(now)
      this.#look!.by(this.#armed.dueAfter(now))
    }
    if (this.#callbacks.pending) return this.#wakeUp.by(this.#clock.now())
    const claimed = this.#claims?.due ?? Infinity
    this.#wakeUp.by(Math.min(this.#readyLanes.uncoveredDue, this.#deadlines.nextDue, claimed, this.#pauses.nextDue))
  }
}

/** A store may answer the requests of one client in another order than that of their arrival. */
function insertByArrival(tickets: LinkedList<Ticket>, ticket: Ticket): void {
  const { arrivedAt } = ticket
  const { first, last } = tickets
  if (last === undefined || last.arrivedAt <= arrivedAt) return tickets.push(ticket)
  let before = last
  // A request that comes back is mostly before all others.
  if (first!.arrivedAt > arrivedAt) before = first!
  else while (before.previous !== undefined && before.previous.arrivedAt > arrivedAt) before = before.previous
  tickets.insert(ticket, before)
}

/** The rate of all instances together, in cost units per ms. */
function rateOfAll({ whole, rate }: BucketLimits): number {
  return whole?.rate ?? rate
}
