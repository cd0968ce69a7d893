/**
 * Waiting and release in time: a discrete-event simulation. The clock only says how far it may go. It also changes buckets and
 * gates.
 *
 * Its events are: a bucket becomes free, a waiter gives up, a claimed slot is due, a pause ends. `settle` runs all that are
 * due, in the order of their times and not of the wake-up. Each decision settles first, so it never sees a slot that is past
 * but not used yet. What was admitted, and in which slots it left, is the same however late wake-ups came, up to the forfeit
 * rule of queued-bucket.ts.
 *
 * A request is released in the first moment at which it heads its lane, every bucket of its stack is free, its gate is open and
 * it has its turn (fair-queue.ts). That moment is its slot: an event's time, or `now` when an arrival or the opening of a gate
 * makes it possible. Where slots come from elsewhere, one is claimed at that moment (slot-source.ts).
 *
 * Exactly one of release, cancel and expire takes a ticket out of its lane. Only that one calls its waiter.
 */
import { slackOf } from '../../decider/costs.js'
import { dropRank, updateRank } from '../admission/fair-drop.js'
import { type LookAhead, lookAhead, type Newcomer } from '../admission/look-ahead.js'
import { type BucketLimits, timeToPass, timeUntilDrained } from '../bucket/limits.js'
import { graceAt } from '../bucket/queued-bucket.js'
import { allSources } from '../bucket/waiting.js'
import type { Cancel, Clock } from '../clock.js'
import type { MaybePromise } from '../maybe-promise.js'
import {
  type Arrival,
  costAt,
  type Demand,
  type Gate,
  type Lane,
  type LaneRoute,
  type Rejection,
  type SharedBucket,
  type ShareNode,
  Ticket,
  type Waiter,
} from '../queue/lane.js'
import { passedAt, passStack } from '../queue/pass-stack.js'
import { ReadyLanes, SAME_TIME } from '../queue/ready-lanes.js'
import { countQueued, lanesBelow, lanesOf, openLane } from '../queue/tree.js'
import { WaitingClients } from '../queue/waiting-clients.js'
import { DueHeap } from '../structures/due-heap.js'
import { LinkedList } from '../structures/linked-list.js'
import { ArmedReleases } from './armed-releases.js'
import type { ReleaseMode, SlotSource } from './slot-source.js'

/** Takes back what is armed. False: some of it has been sent, so its slot has passed. */
type Recall = (armed: ArmedReleases) => boolean
/** Each further try takes note of a release that was sent after the one before. */
const MOST_RECALLS = 1_000
/** ms. A request that waits longer for its connection holds nobody up: several notice an upstream that takes none. */
const LONGEST_HOLD = 1_000

export interface EngineOptions {
  readonly clock: Clock
  /** Wakes the core where some ms do not matter. With it, and without a source of slots, releases are armed (armed-releases.ts). */
  readonly timer?: Clock
}

export class Engine {
  /** When the last arrival passed at once, in ms. */
  passedAt = -Infinity
  readonly #clock: Clock
  readonly #readyLanes = new ReadyLanes()
  readonly #deadlines = new DueHeap<Ticket>()
  readonly #pauses = new DueHeap<Gate>()
  readonly #callbacks = new CallbackQueue()
  readonly source: SlotSource | undefined
  readonly #sending = new SendLatency()
  readonly #writing = new SendLatency()
  readonly #waiting = new WaitingClients<Ticket>()
  readonly #shadows = new WaitingClients<Ticket>()
  /** Requests for which buckets are held. Each keeps what cancels the end of its hold, and since when in ms. */
  readonly #holds = new Map<Arrival, { readonly cancel: Cancel; readonly since: number }>()
  readonly #wakeUp: WakeUp
  readonly #armed: ArmedReleases | undefined
  readonly #look: WakeUp | undefined

  /** @param source absent: all slots are those of the buckets here */
  constructor({ clock, timer }: EngineOptions, source?: (lanes: ReadyLanes) => SlotSource) {
    this.#clock = clock
    const wake = (): void => {
      this.settle()
      this.notify()
    }
    this.#wakeUp = new WakeUp(clock, wake)
    this.source = source?.(this.#readyLanes)
    if (this.source !== undefined || timer === undefined) return
    this.#look = new WakeUp(timer, wake)
    this.#armed = new ArmedReleases(this.#readyLanes, this.#deadlines, () => clock.now())
  }

  get queued(): number {
    return this.#waiting.size
  }

  get now(): number {
    return this.#clock.now()
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

  /** How requests of a stack pass. */
  releaseModeOf(stack: readonly SharedBucket[]): ReleaseMode {
    return this.source === undefined ? 'direct' : this.source.modeOf(stack)
  }

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

  #settleAgain(recall: Recall): number {
    for (let tries = 0; tries < MOST_RECALLS; tries += 1) {
      const now = this.settle()
      if (recall(this.#armed!)) return now
    }
    throw new Error('a release was sent before its slot')
  }

  releaseReady(slot: number, now: number): void {
    for (let ticket = this.#readyLanes.next(slot); ticket !== undefined; ticket = this.#readyLanes.next(slot)) {
      if (this.releaseModeOf(ticket.lane.stack) === 'claimed') {
        this.source!.ask(ticket, now)
        continue
      }
      const leftAt = this.#armed?.take(ticket) ?? now
      this.withdraw(ticket)
      ticket.dates = this.#pass(ticket, slot, leftAt)
      ticket.lane.route.gate.enter(ticket.cost)
      this.#release(ticket, slot, leftAt)
    }
  }

  /** Calls the waiters that have left, then arms the timer. That of `newcomer` is called a moment later. */
  notify(newcomer?: Ticket): void {
    this.#callbacks.callAll(this.#onReleased, newcomer)
    this.#plan()
  }

  wake(): void {
    const now = this.settle()
    this.releaseReady(now, now)
    this.notify()
  }

  passAtOnce(arrival: Arrival, now: number): void {
    this.passedAt = now
    this.#pass(arrival, now, now)
    arrival.route.gate.enter(arrival.cost)
  }

  /** Puts a request into its lane, behind earlier ones, until `maxWait` ms after `arrivedAt`. It takes part after `contend`. */
  join(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket {
    const ticket = this.countIn(arrival, waiter, arrivedAt)
    this.lineUp(ticket, arrivedAt + maxWait)
    return ticket
  }

  /** Counts a request in its lane and in its buckets. It does not stand in the lane yet. */
  countIn(arrival: Arrival, waiter: Waiter, arrivedAt: number): Ticket {
    const { cost, costs, shadow = false, client } = arrival
    const lane = openLane(arrival)
    const ticket =
      this.source === undefined
        ? new Ticket(lane, cost, arrivedAt, waiter)
        : this.source.createTicket(lane, cost, arrivedAt, waiter)
    ticket.shadow = shadow
    ticket.costs = costs
    this.#count(ticket, client)
    return ticket
  }

  /** Takes in a ticket that was withdrawn. It takes part at once. `due` in ms: it expires then. */
  takeIn(ticket: Ticket, arrival: Arrival, due: number): void {
    ticket.lane = openLane(arrival)
    this.#count(ticket, arrival.client)
    this.lineUp(ticket, due)
    this.contend(ticket, this.#clock.now())
  }

  #count(ticket: Ticket, client: string | undefined): void {
    const { stack, lane, cost, costs } = ticket
    this.waitingLike(ticket).add(ticket, client)
    for (let place = 0; place < stack.length; place += 1) stack[place]!.enqueue(costAt(ticket, place))
    if (costs !== undefined) for (const bucket of stack) bucket.openExtras().mixed += 1
    countQueued(lane, cost)
  }

  /** Lets a ticket that is counted in stand in its lane, behind those that came before it. `due` in ms: it expires then. */
  lineUp(ticket: Ticket, due: number): void {
    const { lane, cost } = ticket
    for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) {
      at.fairQueue.learn(cost, lane.weight)
    }
    insertByArrival(lane.tickets, ticket)
    this.source?.linedUp(ticket)
    updateRank(lane)
    this.setDeadline(ticket, due)
    this.#armed?.changed(lane)
  }

  /** Lets a ticket that is counted in stand aside: it takes part after `lineUp`. */
  setAside(ticket: Ticket): Ticket {
    const { lane } = ticket
    lane.aside ??= new LinkedList()
    insertByArrival(lane.aside, ticket)
    for (const bucket of lane.stack) bucket.aside += 1
    updateRank(lane)
    return ticket
  }

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
    if (!lane.tickets.remove(ticket) && !this.leaveAside(ticket) && !this.source?.remove(ticket)) return false
    this.#left(ticket)
    return true
  }

  /** Takes a waiter out of its lane because nobody wants it any more. False: it has left already. */
  cancel(ticket: Ticket): boolean {
    // What is due at this very moment is not sent first, as it is not without arming.
    if (ticket.armed !== undefined) this.#recall(armed => armed.recall(ticket.lane))
    if (!this.withdraw(ticket)) return false
    this.source?.giveBack(ticket)
    return true
  }

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
    this.source?.giveBack(ticket)
    this.#callbacks.push(ticket, rejection)
  }

  /** Returns the slot of a released ticket. A bucket of which it was the last is free again. */
  returnSlot(ticket: Ticket, slot: number): void {
    this.source?.giveBack(ticket)
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

  /** A gate may have opened, and some buckets may no longer be shut. */
  open(gate: Gate | undefined, stack: readonly SharedBucket[], now: number): void {
    for (const bucket of stack) this.#readyLanes.reopened(bucket, now)
    if (gate !== undefined) this.#readyLanes.gateOpened(gate)
    this.releaseReady(now, now)
  }

  enter(gate: Gate | undefined, stack: readonly SharedBucket[]): void {
    gate?.enter()
    for (const bucket of stack) {
      bucket.enter()
      if (bucket.shut) this.#readyLanes.occupied(bucket)
    }
  }

  /** Changes what a bucket allows. Its level stays, and requests that wait for it leave at the new rate. */
  setLimits(bucket: SharedBucket, limits: BucketLimits): void {
    const now = this.settleBefore(armed => armed.recallBucket(bucket))
    const wasShut = bucket.shut
    const changed = this.source?.limitsChange(bucket, limits, now)
    bucket.setLimits(limits, now)
    changed?.()
    if (bucket.shut === wasShut) this.#readyLanes.plan(bucket)
    else if (wasShut) this.open(undefined, [bucket], now)
    else this.#readyLanes.occupied(bucket)
    this.settle()
    this.notify()
  }

  /**
   * What has passed cost more than was reserved, or less where a difference is negative. What waits leaves later or sooner.
   *
   * @param differences in cost units. Where there are `costs`, its `cost` is not 0
   * @returns what has really been added or taken out, in each bucket: a level stays between 0 and the capacity
   */
  settleCost(differences: Demand): MaybePromise<readonly number[]> {
    const { stack } = differences
    const now = this.settleBefore(armed => stack.every(bucket => armed.recallBucket(bucket)))
    const changes = stack.map((bucket, place) => {
      const change = bucket.settle(costAt(differences, place), now)
      this.#readyLanes.occupied(bucket)
      return change
    })
    const settled = this.source?.settle(differences, changes) ?? changes
    this.wake()
    return settled
  }

  /** Empties a bucket of what has passed and ends its block. Requests that wait for it may leave. */
  reset(bucket: SharedBucket): void {
    bucket.reset(this.settleBefore(armed => armed.recallBucket(bucket)))
    this.source?.reset(bucket)
    this.#readyLanes.plan(bucket)
    this.wake()
  }

  /** Closes a gate for `ms`, or as long as before. @returns how many can no longer leave in time, and expired, by route */
  pause(gate: Gate, ms: number): Map<string, number> {
    const now = this.settleBefore(armed => armed.recallAll(gate))
    if (ms <= gate.pausedFor(now)) {
      this.notify()
      return new Map()
    }
    gate.due = now + ms
    if (gate.paused) this.#pauses.move(gate, gate.due)
    else {
      this.#pauses.add(gate, gate.due)
      this.source?.recall(gate)
    }
    return this.replan([gate], () => Infinity)
  }

  resume(gate: Gate): void {
    const now = this.settle()
    if (!gate.paused) return
    this.#endPause(gate)
    this.releaseReady(now, now)
    this.notify()
  }

  /** What waited for it can leave with the next `releaseReady`. */
  #endPause(gate: Gate): void {
    this.#pauses.remove(gate)
    this.#readyLanes.gateOpened(gate)
  }

  /** Closes a gate until `unblock`: nothing passes but the probes. */
  block(gate: Gate): void {
    this.settleBefore(armed => armed.recallAll(gate))
    gate.blocked = true
    this.source?.recall(gate)
    this.notify()
  }

  /** Lets one request pass a blocked gate: the first that waits, or the next that comes. */
  allowProbe(gate: Gate): void {
    gate.probe = gate.blocked
    this.#openGate(gate)
  }

  unblock(gate: Gate): void {
    gate.blocked = false
    gate.probe = false
    gate.probing = false
    this.#openGate(gate)
  }

  #openGate(gate: Gate): void {
    this.open(gate, [], this.settle())
    this.notify()
  }

  refuseAll(gate: Gate, retryAfterMs: number): void {
    this.settle()
    for (const lane of lanesOf(gate)) {
      for (const ticket of [...(lane.claiming ?? []), ...lane.tickets]) {
        if (!ticket.shadow) this.reject(ticket, { reason: 'down', buckets: [], retryAfterMs })
      }
    }
    this.wake()
  }

  /** The request that passed these buckets last, at `passedAt` in ms, is on the wire now. Its gate may open again. */
  sent(gate: Gate, demand: Demand, passedAt = Infinity): void {
    const now = this.settle()
    let sentAt = now
    if (passedAt < Infinity) {
      sentAt -= this.#writing.usual
      this.#writing.record(now - passedAt)
    }
    this.#postpone(demand, passedAt, sentAt)
    gate.closed = false
    this.open(gate, [], now)
    this.notify()
  }

  /** The request that passed its buckets last at `passedAt` was sent later. Times are in ms. */
  #postpone(demand: Demand, passedAt: number, sentAt: number): void {
    const { stack } = demand
    for (const [place, bucket] of stack.entries()) {
      const cost = costAt(demand, place)
      // A store knows the slot only: the next one is not asked for before this instance has kept its distance.
      const postponed =
        this.source?.postpone(bucket, cost, passedAt, sentAt) ??
        bucket.postpone(cost, sentAt, graceAt(bucket.limits, place, stack.length))
      if (postponed) this.#readyLanes.occupied(bucket)
    }
  }

  /**
   * A request that has passed is not on the wire yet, because its connection has to open: nothing else passes its buckets
   * towards its gate until `unhold`, or for a second. Another upstream need not wait for this one. To be called before anything
   * else happens. Where a store grants the slots, those of other instances go on.
   */
  hold(request: Arrival): void {
    const { stack, route } = request
    // What is armed goes only after what is held. What has been sent meanwhile passes now: while held nobody takes note of it.
    const recall: Recall = armed => stack.every(bucket => armed.recallBucket(bucket, route.gate))
    const settles = this.#armed !== undefined && !recall(this.#armed)
    if (settles) this.#settleAgain(recall)
    for (const bucket of stack) this.#readyLanes.hold(bucket, request)
    const end = (): void => {
      this.#endHold(request)
      this.wake()
    }
    const since = this.#clock.now()
    this.#holds.set(request, { cancel: this.#clock.at(since + LONGEST_HOLD, end), since })
    if (settles) this.notify()
  }

  /** A request that was held for is on the wire now, and the next slots count from now. Or it will never be sent. */
  unhold(request: Arrival, fate: 'sent' | 'never-sent'): void {
    const { stack } = request
    // What is armed towards other gates has slots of before.
    const now = this.settleBefore(armed => stack.every(bucket => armed.recallBucket(bucket)))
    if (fate === 'sent') this.#postpone(request, now, now)
    this.#endHold(request)
    this.wake()
  }

  #endHold(request: Arrival): void {
    const { stack } = request
    const hold = this.#holds.get(request)
    hold?.cancel()
    this.#holds.delete(request)
    for (const [place, bucket] of stack.entries()) {
      this.#readyLanes.unhold(bucket, request, place < stack.length - 1 ? (hold?.since ?? -Infinity) : -Infinity)
    }
  }

  /** Routes or gates are about to change: what has been sent is taken note of, and nothing is armed, towards one gate or all. */
  recall(gate?: Gate): void {
    this.settleBefore(armed => armed.recallAll(gate))
  }

  /** Deadlines of requests that wait at a gate may be earlier than they were. */
  deadlinesMoved(gate: Gate): void {
    this.settle()
    for (const { claiming, tickets } of lanesOf(gate))
      for (const ticket of [...(claiming ?? []), ...tickets]) this.setDeadline(ticket, ticket.due)
    this.wake()
  }

  /**
   * Limits have changed: a request that can no longer leave within its `maxWait` expires at once.
   *
   * @param maxWaitOf ms by route, waiter and stack. A shorter one counts for requests that wait already. A longer one does not, as
   *   the shorter may be the client's own wish.
   * @returns how many expired, by the name of their route
   */
  replan(gates: Iterable<Gate>, maxWaitOf: MaxWaitOf): Map<string, number> {
    const now = this.settleBefore(armed => armed.recallAll())
    const expired = new Map<string, number>()
    for (const gate of gates) this.#planLanes(lanesOf(gate), maxWaitOf, { now, expired })
    this.settle()
    this.notify()
    return expired
  }

  /** As `replan`, for the requests that wait for one bucket. */
  replanBucket(bucket: SharedBucket, maxWaitOf: MaxWaitOf): void {
    const now = this.settleBefore(armed => armed.recallBucket(bucket))
    this.#planLanes(allSources(bucket).flatMap(lanesBelow), maxWaitOf, { now, expired: new Map() })
    this.settle()
    this.notify()
  }

  #planLanes(lanes: readonly Lane[], maxWaitOf: MaxWaitOf, { now, expired }: Planned): void {
    // All plans are made before any request leaves.
    const plans = lanes.flatMap(lane => {
      return this.#planLane(lane, maxWaitOf, { now, start: now + lane.route.gate.pausedFor(now) })
    })
    for (const { ticket, due, tooLate } of plans) {
      this.setDeadline(ticket, due)
      if (!tooLate) continue
      const { name } = ticket.lane.route
      expired.set(name, (expired.get(name) ?? 0) + 1)
      this.expire(ticket, now)
    }
  }

  /** Every request of a lane, in order. A request that is too late delays none after it. */
  #planLane({ claiming, tickets, stack, route }: Lane, maxWaitOf: MaxWaitOf, { now, start }: Start): Plan[] {
    const ahead = stack.map(() => 0)
    return [...(claiming ?? []), ...tickets].map(ticket => {
      const { arrivedAt, waiter } = ticket
      const since = arrivedAt + (waiter.maxWaitFrom ?? 0)
      const due = Math.min(since + maxWaitOf(route, waiter, stack), ticket.due)
      const times = stack.map((bucket, place) => {
        const from = Math.max(start, now + timeUntilDrained(bucket, now))
        return from + timeToPass(bucket.limits, ahead[place]! - slackOf(bucket.limits, costAt(ticket, place)), from)
      })
      const tooLate = Math.max(start, ...times) > Math.min(due, waiter.deadline ?? Infinity) + SAME_TIME
      if (!tooLate) for (const place of ahead.keys()) ahead[place]! += costAt(ticket, place)
      return { ticket, due, tooLate }
    })
  }

  /** Nobody waits any more: nothing happens later, such as the end of a pause. */
  close(): void {
    this.#armed?.recallAll()
    for (const { cancel } of this.#holds.values()) cancel()
    this.#wakeUp.close()
    this.source?.close()
    this.#look?.close()
  }

  /** Lets the next thing happen. False: nothing is due. */
  #advance(now: number): boolean {
    const free = this.#readyLanes.due
    const deadline = this.#deadlines.nextDue
    const claimed = this.source?.due ?? Infinity
    const resumed = this.#pauses.nextDue
    if (Math.min(free, deadline, claimed, resumed) > now + SAME_TIME) return false
    if (claimed <= Math.min(free, deadline, resumed)) {
      this.source!.advance(now)
      // A dropped claim puts its ticket back in contention. It also frees a place in the gate for all that wait there.
      this.releaseReady(now, now)
    } else if (resumed <= Math.min(free, deadline + SAME_TIME)) {
      this.#endPause(this.#pauses.next!)
      this.releaseReady(resumed, now)
    } else if (free <= deadline + SAME_TIME) this.releaseReady(this.#readyLanes.free(free), now)
    else this.#expireAll(deadline, now)
    return true
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
    this.source?.passed(demand, slot)
    for (const bucket of stack) this.#readyLanes.occupied(bucket, slot)
    return dates
  }

  /** A ticket has got the slot that was claimed for it, and is in its lane no more. */
  leave(ticket: Ticket, slot: number, now: number): void {
    this.#left(ticket)
    this.#release(ticket, slot, now)
  }

  #release(ticket: Ticket, slot: number, now: number): void {
    ticket.slot = slot
    ticket.leftAt = now
    this.#callbacks.push(ticket)
  }

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
    else if (this.source !== undefined) this.source.closeLane(lane)
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

  #plan(): void {
    if (this.#armed !== undefined) {
      const now = this.#clock.now()
      this.#armed.arm(now)
      this.#look!.by(this.#armed.dueAfter(now))
    }
    if (this.#callbacks.pending) return this.#wakeUp.by(this.#clock.now())
    const claimed = this.source?.due ?? Infinity
    this.#wakeUp.by(Math.min(this.#readyLanes.uncoveredDue, this.#deadlines.nextDue, claimed, this.#pauses.nextDue))
  }
}

type MaxWaitOf = (route: LaneRoute, waiter: Waiter, stack: readonly SharedBucket[]) => number

/** Times in ms: the present, and when the gate opens. */
interface Start {
  readonly now: number
  readonly start: number
}

interface Planned {
  readonly now: number
  /** How many expired, by the name of their route. */
  readonly expired: Map<string, number>
}

interface Plan {
  readonly ticket: Ticket
  /** When its `maxWait` is over from now on, in ms. */
  readonly due: number
  readonly tooLate: boolean
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

/** Runs a function by the earliest time that was asked for. Only one timer is set at a time. */
class WakeUp {
  readonly #clock: Clock
  readonly #run: () => void
  /** ms. -Infinity: closed. */
  #at = Infinity
  #cancel: Cancel = () => false

  constructor(clock: Clock, run: () => void) {
    this.#clock = clock
    this.#run = run
  }

  by(due: number): void {
    if (due >= this.#at) return
    this.#cancel()
    this.#at = due
    this.#cancel = this.#clock.at(due, this.#wake)
  }

  close(): void {
    this.#cancel()
    this.#at = -Infinity
  }

  readonly #wake = (): void => {
    this.#at = Infinity
    this.#run()
  }
}

/** Tickets that have left their lanes and whose waiters are still to be called, in order, also when one calls back in. */
class CallbackQueue {
  readonly #ended = new LinkedList<Ticket>()
  /** Of those that had to make room for others. They are few, so tickets have no place for it. */
  readonly #rejections = new Map<Ticket, Rejection>()
  #calling = false

  push(ticket: Ticket, rejection?: Rejection): void {
    if (rejection !== undefined) this.#rejections.set(ticket, rejection)
    this.#ended.push(ticket)
  }

  /** Whether some are left that nobody is about to call. */
  get pending(): boolean {
    return !this.#calling && this.#ended.size > 0
  }

  /** Calls `released` after each released waiter. That of `newcomer` is not called: it does not know its ticket yet. */
  callAll(released: (ticket: Ticket) => void, newcomer?: Ticket): void {
    if (this.#calling) return
    this.#calling = true
    try {
      for (let ticket = this.#next(newcomer); ticket !== undefined; ticket = this.#next(newcomer)) {
        this.#ended.remove(ticket)
        const rejection = this.#rejections.size === 0 ? undefined : this.#rejections.get(ticket)
        if (rejection !== undefined) {
          this.#rejections.delete(ticket)
          ticket.waiter.reject(rejection)
        } else if (ticket.slot === undefined) ticket.waiter.expire(ticket.leftAt!)
        else {
          ticket.waiter.release(ticket.slot, ticket.leftAt!)
          released(ticket)
        }
      }
    } finally {
      this.#calling = false
    }
  }

  #next(newcomer: Ticket | undefined): Ticket | undefined {
    const { first } = this.#ended
    return first !== undefined && first === newcomer ? newcomer.next : first
  }
}

/** The usual time of a send: a moving average, in ms. Only the excess over it counts, as a constant delay shifts all. */
export class SendLatency {
  usual = 0

  record(taken: number): void {
    this.usual += (Math.min(taken, LONGEST_USUAL) - this.usual) * WEIGHT
  }
}

/** ms. A longer one is never usual. */
const LONGEST_USUAL = 1
const WEIGHT = 0.1
