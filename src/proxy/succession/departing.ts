/**
 * A process that has a successor no longer decides. What waits in it waits in the queues of the successor, as its *guests*
 * (guests.ts), each in the place that its arrival gives it. The successor says when a guest leaves, and this process sends it.
 * New requests on connections that are still open here are guests, too.
 *
 * So there is one schedule at every moment: up to the handover that of this process, from then on that of the successor. Both
 * read the same clock of the machine. The levels go over at once, and nothing passes here from then on, so a slot that this process
 * has given out is in the levels. Guests go over in batches, the first to come first, so the successor releases the first while the
 * last are still described. New requests go over behind them.
 *
 * This process says when a guest is on the wire. If that takes long the successor releases nothing else at its buckets meanwhile, so
 * nothing leaves above the rate, and a guest of another process does not pass it.
 *
 * With a store the levels are there, and the room of those that wait is counted there. So only the queues go over. This process
 * gives back its slots and leases at once, and the successor claims anew, in the order of arrival. A newcomer about whose room the
 * store is being asked goes over with the answer.
 *
 * A worker is such a process, too. Its successor is one of the new workers (cli/serving/worker-pool.ts).
 *
 * If the successor ends while guests wait, this process takes them in again, in order, at the levels of the handover.
 */

import type { AdaptiveState } from '../../core/adaptive/adaptive-rate.js'
import type { Mode, RoomSource } from '../../core/admission/room-source.js'
import type { Clock } from '../../core/clock.js'
import type { KeyedBucket } from '../../core/instances.js'
import type { TimedWait } from '../../core/patience/patience.js'
import { type Gate, type Rejection, type SharedBucket, Ticket, type Waiter } from '../../core/queue/lane.js'
import { lanesOf, openLane } from '../../core/queue/tree.js'
import { type AdmissionCallbacks, type Arrival, type Mover, Shaper, type Verdict } from '../../core/shaper.js'
import type { Override } from '../../sharing/board.js'
import { StoredBucket } from '../../sharing/stored-bucket.js'
import type { Route } from '../routing/route.js'

/** Moments are in ms of the machine's clock. */
export interface Guest {
  readonly id: number
  readonly route: string
  /** `again`: it has been admitted, and is at the head of its lane by its arrival. */
  readonly mode: 'shape' | 'meter' | 'again'
  readonly buckets: readonly { readonly name: string; readonly key: string; readonly tier?: string | undefined }[]
  readonly cost: number
  readonly costs?: readonly number[] | undefined
  readonly weight?: number | undefined
  readonly priority?: number | undefined
  readonly client?: string | undefined
  /** ms */
  readonly patience?: number | undefined
  readonly arrivedAt: number
  readonly due: number
  /** A store counts its cost. */
  readonly counted?: boolean | undefined
}

/** Of a process to its successor. */
export type GuestOrder =
  | { readonly verb: 'guests'; readonly guests: readonly Guest[] }
  /** `sent`: it is on the wire. */
  | { readonly verb: 'cancel' | 'sent' | 'ended' | 'unused'; readonly id: number }
  /** The process has ended, and its clients are gone. */
  | { readonly verb: 'gone' }
  /** `inFlight` requests were sent before the handover. The upstream pauses for `pausedFor` ms. */
  | { readonly verb: 'gate'; readonly route: string; readonly inFlight: number; readonly pausedFor: number }
  /** One of them is over. */
  | { readonly verb: 'left'; readonly route: string }
  /** What signs tickets. */
  | { readonly verb: 'key'; readonly key: string }
  | { readonly verb: 'override'; readonly override: Override }
  /** Of the upstream that has this bucket. */
  | { readonly verb: 'adaptive'; readonly bucket: string; readonly state: AdaptiveState }
  /** What is learnt of the patience of a client: its waits on this route, the newest first. */
  | { readonly verb: 'waits'; readonly route: string; readonly client: string; readonly waits: readonly TimedWait[] }

/** Of the successor, about a guest. */
export type GuestNews =
  | { readonly verb: 'released'; readonly id: number; readonly slot: number }
  | { readonly verb: 'queued' | 'expired' | 'unknown'; readonly id: number }
  | { readonly verb: 'rejected'; readonly id: number; readonly rejection: Refused }

/** A rejection. The buckets are told by their places in the stack. */
export interface Refused extends Omit<Rejection, 'buckets' | 'booking'> {
  readonly places: readonly number[]
}

export interface Link {
  send(order: GuestOrder): void
  /** The clock of the machine, in ms, to that of this process and back. */
  readonly machine: { ours(theirs: number): number; theirs(ours: number): number }
}

interface Asked {
  readonly callbacks: AdmissionCallbacks
  readonly arrival: Arrival
  readonly mode: Mode
  readonly arrivedAt: number
  /** ms */
  readonly maxWait: number
}

export class DepartingShaper extends Shaper implements Mover {
  readonly #former: Shaper
  readonly #clock: Clock
  readonly #link: Link
  #lastId = 0
  readonly #asked = new Map<number, Asked>()
  readonly #waiting = new Map<number, Ticket>()
  readonly #ids = new Map<Ticket, number>()
  /** Requests that were sent before the handover, and the route by which the successor knows their gate. */
  readonly #sentBefore = new Map<Gate, { readonly route: string; count: number }>()
  /** Of those that have passed. One that is sent again has two for a moment. */
  readonly #passed = new Map<Waiter, number[]>()
  /** Those that were released, and wait for their connection. */
  readonly #unsent = new Set<Waiter>()
  /** Ids of those that have left their places, by their tickets: their slots may be given back still. */
  readonly #left = new WeakMap<Waiter, number>()
  /** Those that are still in the former queues. */
  #toGo: Ticket[] = []
  #goneOver = 0
  #isComplete = false
  readonly #shut: Gate[] = []
  #next: NodeJS.Immediate | undefined
  #resolve: () => void = () => undefined
  /** All that waited when it began has gone over. */
  readonly complete = new Promise<void>(resolve => {
    this.#resolve = resolve
  })

  /** Takes over all that waits on these routes. Nothing is to be armed. */
  constructor(former: Shaper, routes: readonly Pick<Route, 'name' | 'lane'>[], clock: Clock, link: Link) {
    const { source: slots } = former.engine
    // What has passed here may still cost more or less. The store is told.
    super({ clock, maxQueued: former.maxQueued, ...(slots && { share: () => ({ slots, room: NO_ROOM }) }) })
    this.#former = former
    former.mover = this
    this.#clock = clock
    this.#link = link
    const now = clock.now()
    for (const { name: route, lane } of routes) {
      const { gate } = lane
      if (this.#sentBefore.has(gate)) continue
      if (!gate.blocked) {
        former.engine.block(gate)
        this.#shut.push(gate)
      }
      const lanes = lanesOf(gate)
      // Claims have places, too.
      const inFlight = lanes.reduce((left, { claims }) => left - claims, gate.inFlight)
      this.#sentBefore.set(gate, { route, count: inFlight })
      link.send({ verb: 'gate', route, inFlight, pausedFor: gate.pausedFor(now) })
      for (const { claiming, tickets } of lanes) this.#toGo.push(...(claiming ?? []), ...tickets)
    }
    this.#toGo.sort((a, b) => a.arrivedAt - b.arrivedAt)
    slots?.retire(new Set(this.#toGo.flatMap(({ stack }) => stack)))
    this.#next = setImmediate(() => this.#goOver())
  }

  /** Of the former shaper. */
  entered(ticket: Ticket | undefined): void {
    if (ticket !== undefined) this.#toGo.push(ticket)
    if (!this.#isComplete) this.#next ??= setImmediate(() => this.#goOver())
  }

  #goOver(): void {
    const guests: Guest[] = []
    for (const ticket of this.#toGo.slice(this.#goneOver, this.#goneOver + BATCH)) {
      const { client, shadow, lane, list } = ticket
      // It has left its queue if it has expired, or was given up.
      if (list === undefined || list === lane.aside) continue
      // First: an empty lane has no weight.
      if (!shadow)
        guests.push(this.#guestOf(this.#await(ticket), ticket, typeof client === 'object' ? client.client : client))
      this.#former.engine.withdraw(ticket)
    }
    this.#goneOver = Math.min(this.#goneOver + BATCH, this.#toGo.length)
    this.#link.send({ verb: 'guests', guests })
    this.#next = undefined
    if (this.#goneOver < this.#toGo.length) this.#next = setImmediate(() => this.#goOver())
    else if (this.#former.asking === 0) this.#allGone()
  }

  #allGone(): void {
    this.#isComplete = true
    for (const gate of this.#shut) this.#former.engine.unblock(gate)
    for (const [id, asked] of this.#asked) this.#sendAsked(id, asked)
    this.#resolve()
  }

  /** Asks the successor about a new request. */
  override arrive(arrival: Arrival, callbacks: AdmissionCallbacks, mode: Mode, maxWait: number): void {
    // Nobody waits for a shadow.
    if (arrival.shadow) return callbacks.decided('released')
    const now = this.#clock.now()
    const id = this.#nextId()
    const asked = { callbacks, arrival, mode, arrivedAt: now, maxWait }
    this.#asked.set(id, asked)
    // Behind those that came before it.
    if (this.#isComplete) this.#sendAsked(id, asked)
  }

  #sendAsked(id: number, { arrival, mode, arrivedAt, maxWait }: Asked): void {
    const guest = this.#describe(id, arrival, { arrivedAt, due: arrivedAt + maxWait })
    this.#link.send({ verb: 'guests', guests: [{ ...guest, mode: mode === 'meter' ? 'meter' : 'shape' }] })
  }

  override requeue(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt: number): Ticket {
    const ticket = this.#ticketOf(arrival, waiter, arrivedAt)
    ticket.due = arrivedAt + maxWait
    const id = this.#await(ticket)
    this.#link.send({ verb: 'guests', guests: [this.#guestOf(id, ticket, arrival.client)] })
    return ticket
  }

  override setAside(arrival: Arrival, waiter: Waiter, passed: Ticket | undefined, arrivedAt: number): Ticket {
    this.leaveQuietly(arrival.route.gate, arrival.stack, waiter)
    if (passed !== undefined) this.giveBack(passed)
    arrival.route.gate.unprobe()
    return this.#ticketOf(arrival, waiter, arrivedAt)
  }

  override comeBack(ticket: Ticket, due: number): void {
    ticket.due = due
    ticket.slot = undefined
    this.#link.send({ verb: 'guests', guests: [this.#guestOf(this.#await(ticket), ticket, undefined)] })
  }

  override cancel(ticket: Ticket): boolean {
    const id = this.#ids.get(ticket)
    if (id === undefined) return this.#former.cancel(ticket)
    if (!this.#waiting.delete(id)) return false
    this.#ids.delete(ticket)
    this.#link.send({ verb: 'cancel', id })
    return true
  }

  override cancelOneOfMany(ticket: Ticket): boolean {
    return this.cancel(ticket)
  }

  override leave(gate: Gate | undefined, stack: readonly SharedBucket[], waiter?: Waiter): void {
    gate?.leave()
    for (const bucket of stack) bucket.leave()
    const ids = waiter && this.#passed.get(waiter)
    const id = ids?.shift()
    if (id === undefined) return this.#leftBefore(gate)
    if (ids!.length === 0) this.#passed.delete(waiter!)
    this.#left.set(waiter!, id)
    this.#link.send({ verb: 'ended', id })
  }

  #leftBefore(gate: Gate | undefined): void {
    const before = gate && this.#sentBefore.get(gate)
    if (before === undefined || before.count === 0) return
    before.count -= 1
    this.#link.send({ verb: 'left', route: before.route })
  }

  override leaveQuietly(gate: Gate, stack: readonly SharedBucket[], waiter: Waiter): void {
    this.leave(gate, stack, waiter)
  }

  override giveBack(ticket: Ticket): void {
    ticket.slot = undefined
    const id = this.#left.get(ticket.waiter)
    if (id !== undefined) this.#link.send({ verb: 'unused', id })
  }

  /** The successor holds its buckets. */
  override hold(_: Arrival, waiter: Waiter): void {
    this.#unsent.add(waiter)
  }

  override unhold(request: Arrival, fate: 'sent' | 'never-sent', waiter: Waiter): void {
    if (!this.#unsent.delete(waiter)) this.#former.unhold(request, fate, waiter)
    else if (fate === 'sent') this.#sent(waiter)
  }

  #sent(waiter: Waiter): void {
    const id = this.#passed.get(waiter)?.at(-1)
    if (id !== undefined && !this.#unsent.has(waiter)) this.#link.send({ verb: 'sent', id })
  }

  told(news: GuestNews): void {
    const ticket = this.#waiting.get(news.id)
    const asked = this.#asked.get(news.id)
    this.#asked.delete(news.id)
    if (asked !== undefined) return this.#settle(news, asked)
    if (ticket === undefined) {
      // It was cancelled while this was on its way.
      if (news.verb === 'released')
        for (const verb of ['ended', 'unused'] as const) this.#link.send({ verb, id: news.id })
      return
    }
    if (news.verb === 'queued') return
    this.#forget(news.id, ticket)
    const now = this.#clock.now()
    const { waiter, stack, lane } = ticket
    if (news.verb === 'released') {
      const slot = Math.min(now, this.#link.machine.ours(news.slot))
      ticket.slot = slot
      ticket.leftAt = now
      this.#pass(news.id, waiter, lane.gate, stack)
      waiter.release(slot, now)
      this.#sent(waiter)
    } else if (news.verb === 'rejected') waiter.reject(rejectionOf(news.rejection, stack))
    else waiter.expire(now)
  }

  /** The successor is gone. Those that wait are this process's again. @returns the shaper that decides from now on */
  end(): Shaper {
    const former = this.#former
    clearImmediate(this.#next)
    former.mover = undefined
    former.engine.source?.resume()
    const here = this.#toGo.slice(this.#goneOver).filter(ticket => former.engine.withdraw(ticket))
    const tickets = [...this.#waiting.values(), ...here].sort((a, b) => a.arrivedAt - b.arrivedAt)
    this.#waiting.clear()
    for (const ticket of tickets) {
      const { route, stack } = ticket.lane
      former.engine.takeIn(ticket, { route, stack, cost: ticket.cost, costs: ticket.costs }, ticket.due)
    }
    for (const { arrival, callbacks, mode, maxWait } of this.#asked.values())
      former.arrive(arrival, callbacks, mode, maxWait)
    this.#asked.clear()
    if (this.#isComplete) former.wake()
    else this.#allGone()
    return former
  }

  #settle(news: GuestNews, { callbacks, arrival, arrivedAt, maxWait }: Asked): void {
    let verdict: Verdict
    if (news.verb === 'released') {
      this.#pass(news.id, callbacks, arrival.route.gate, arrival.stack)
      verdict = 'released'
    } else if (news.verb === 'queued') {
      verdict = this.#ticketOf(arrival, callbacks, arrivedAt)
      // The store has room for it.
      if (this.#former.engine.releaseModeOf(arrival.stack) === 'claimed') verdict.counted = true
      verdict.due = arrivedAt + maxWait
      this.#waiting.set(news.id, verdict)
      this.#ids.set(verdict, news.id)
    } else if (news.verb === 'rejected') verdict = rejectionOf(news.rejection, arrival.stack)
    else verdict = { reason: 'unavailable', buckets: [], retryAfterMs: undefined }
    callbacks.decided(verdict)
    this.#sent(callbacks)
  }

  #pass(id: number, waiter: Waiter, gate: Gate, stack: readonly SharedBucket[]): void {
    gate.enter()
    for (const bucket of stack) bucket.enter()
    const ids = this.#passed.get(waiter)
    if (ids === undefined) this.#passed.set(waiter, [id])
    else ids.push(id)
  }

  #ticketOf(arrival: Arrival, waiter: Waiter, arrivedAt: number): Ticket {
    const { cost, costs } = arrival
    const lane = openLane(arrival)
    const { source } = this.#former.engine
    const ticket = source?.createTicket(lane, cost, arrivedAt, waiter) ?? new Ticket(lane, cost, arrivedAt, waiter)
    ticket.costs = costs
    return ticket
  }

  #nextId(): number {
    this.#lastId += 1
    return this.#lastId
  }

  #await(ticket: Ticket): number {
    const id = this.#nextId()
    this.#waiting.set(id, ticket)
    this.#ids.set(ticket, id)
    return id
  }

  #forget(id: number, ticket: Ticket): void {
    this.#waiting.delete(id)
    this.#ids.delete(ticket)
  }

  #guestOf(id: number, ticket: Ticket, client: string | undefined): Guest {
    const { lane, cost, costs, arrivedAt, due, counted } = ticket
    const { route, stack, weight, priority } = lane
    const arrival = { route, stack, cost, costs, weight, priority, ...(client !== undefined && { client }) }
    return { ...this.#describe(id, arrival, { arrivedAt, due }), ...(counted && { counted }) }
  }

  #describe(
    id: number,
    { route, stack, cost, costs, weight, priority, client, patience }: Arrival,
    { arrivedAt, due }: { readonly arrivedAt: number; readonly due: number },
  ): Guest {
    const { machine } = this.#link
    const buckets = stack.map(bucket => ({ name: bucket.limits.name, key: keyOf(bucket), tier: bucket.limits.tier }))
    const when = { arrivedAt: machine.theirs(arrivedAt), due: machine.theirs(due) }
    return {
      id,
      mode: 'again' as const,
      route: route.name,
      buckets,
      cost,
      costs,
      weight,
      priority,
      client,
      patience,
      ...when,
    }
  }
}

/** Each newcomer is the successor's. */
const NO_ROOM: RoomSource = { reserve: () => undefined, promise: (_, alone) => alone(1) }

/** Guests in one message: less than a ms of work. */
const BATCH = 20

function keyOf(bucket: SharedBucket): string {
  if (bucket instanceof StoredBucket) return bucket.key
  return (bucket as KeyedBucket).home.keyOf((bucket as KeyedBucket).row)
}

function rejectionOf({ places, ...rest }: Refused, stack: readonly SharedBucket[]): Rejection {
  return { ...rest, buckets: places.map(place => stack[place]!) }
}
