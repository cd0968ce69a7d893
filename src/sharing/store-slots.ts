/**
 * Releases by slots that a store grants.
 *
 * Lanes, fair queues and the times at which buckets are free decide whose turn it is, as without a store. But the request
 * claims: it leaves the contention and waits for the slot. A slot belongs to the lane and goes to the request that is first in
 * it then, so a hang-up costs nothing. A slot that no request of the lane can take goes back to the store.
 *
 * Each bucket has a time at which the next claim may be granted (`claimableAt`): after a grant the slot and the time that the
 * cost takes, less the horizon; after a refusal the store's answer. Claims on their way count as granted one after the other,
 * so several can be under way. A bucket with a burst counts from when it will have drained (`grantedUntil`), and the slack of a
 * claim lets it go earlier.
 *
 * A request leaves as soon as its slot is there and may be used (`Slot.from`). All other times count from the slot itself. One
 * that is missed by more than `SLOT_GRACE` goes back to the store.
 */

import { dropRank, updateRank } from '../core/admission/fair-drop.js'
import type { ReservedRoom, RoomRequest } from '../core/admission/room-source.js'
import type { BucketLimits } from '../core/bucket/limits.js'
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { graceAt } from '../core/bucket/queued-bucket.js'
import type { Clock } from '../core/clock.js'
import { ignore, type MaybePromise, when } from '../core/maybe-promise.js'
import {
  type Arrival,
  costAt,
  costIn,
  type Demand,
  type Gate,
  type Lane,
  type SharedBucket,
  Ticket,
  type Waiter,
} from '../core/queue/lane.js'
import { isFree, type ReadyLanes, SAME_TIME } from '../core/queue/ready-lanes.js'
import type { ReleaseMode, SlotSource } from '../core/release/slot-source.js'
import type { Shaper } from '../core/shaper.js'
import { DueHeap, type Timed } from '../core/structures/due-heap.js'
import { LinkedList } from '../core/structures/linked-list.js'
import { EVEN_GRACE, FRAME, SHORTEST_GRACE, SLOT_GRACE } from '../decider/constants.js'
import { slackOf } from '../decider/costs.js'
import type { BucketRef } from '../decider/record.js'
import type { BucketLease, TakenSlot } from './bucket-lease.js'
import { allPass, Leases, slotsBefore } from './lease-client.js'
import type { ClaimAnswer, GiveBackRequest, Slot, Store } from './store.js'
import { passedAlone, refsFor, type StoredBucket } from './stored-bucket.js'

/** ms. The least time from a refusal to the next try. */
const RETRY = 0.25
/** ms. A bucket is free when this instance has used its slots, or this much later: moments of a store are mapped anew each time. */
const SAME_GRANT = 0.5
/** After so many in a row a bucket is leased. */
const FEW_REFUSALS = 3

/**
 * ms. Where the store keeps the order of arrival, claims reach so much further ahead. So an instance that claims slots one by
 * one hears that others lease them, and reports what waits, before a slot goes to a younger request. Leases reach ahead by a
 * frame and 6 ms.
 */
const BEFORE_LEASES = 12
/** ms. An instance claims no earlier than this because of another: what lies before the moment of a claim is lost to others. */
const MOST_LEAD = FRAME / 2
/** The part of the horizon in which a claim is mostly answered. */
const CLAIM_TIME = 0.5

/** The buckets of a stack, by how their slots come. `taken`: the slot of each leased bucket, in the order of `leased`. */
interface Parts {
  readonly claimed: readonly StoredBucket[]
  readonly leased: readonly StoredBucket[]
  readonly taken: readonly TakenSlot[]
}

/** A claim for the first request of a lane, made at this time in ms. */
interface Question extends Demand {
  readonly lane: Lane
  readonly parts: Parts
  readonly askedAt: number
  readonly arrivedAt: number
}

/** A ticket that may claim slots. */
class ClaimingTicket extends Ticket {
  override counted = false
  granted: Grant | undefined = undefined
}

const NOTHING_CLAIMED = { stack: [], own: 0 }

/** A slot of all buckets of a stack, claimed of some and leased of others. */
class Grant implements Timed, Demand {
  place = -1
  readonly lane: Lane
  readonly cost: number
  readonly costs: readonly number[] | undefined
  readonly at: number
  readonly slot: Slot | undefined
  readonly until: number
  readonly parts: Parts
  readonly since: number
  readonly #claimed: readonly BucketRef[]
  readonly #own: number
  readonly #askedAt: number

  constructor(question: Question, at: number, slot?: Slot) {
    const { lane, cost, costs, parts, askedAt, arrivedAt } = question
    this.since = arrivedAt
    this.#askedAt = askedAt
    this.lane = lane
    this.cost = cost
    this.costs = costs
    this.at = at
    this.slot = slot
    this.until = slot === undefined ? usableUntil(parts) : Math.min(at + SLOT_GRACE, meetsUntil(parts) + SAME_GRANT)
    this.parts = parts
    this.#claimed = refsFor(parts.claimed, question)
    this.#own = countOwn(parts, stored(lane.stack))
  }

  /** The buckets that know of its slot. One that was reset since has forgotten it: given back, it would shorten the new schedule. */
  get claimed(): { readonly stack: readonly BucketRef[]; readonly own: number } {
    const knows = this.parts.claimed.map(({ resetAt }) => resetAt <= this.#askedAt)
    if (!knows.includes(false)) return { stack: this.#claimed, own: this.#own }
    const stack = this.#claimed.filter((_, place) => knows[place])
    return { stack, own: knows.slice(0, this.#own).filter(Boolean).length }
  }

  get stack(): readonly SharedBucket[] {
    return this.lane.stack
  }
}

export interface StoreSlotsOptions {
  readonly store: Store
  readonly clock: Clock
  readonly shaper: Shaper
  readonly lanes: ReadyLanes
  /** The store has not answered a question of this time, in ms, about these. */
  unanswered(stack: readonly SharedBucket[], askedAt: number): void
  instances(): number
}

export class StoreSlots implements SlotSource {
  readonly #options: StoreSlotsOptions
  readonly #store: Store
  readonly #readyLanes: ReadyLanes
  readonly #grants = new DueHeap<Grant>()
  readonly #asked = new Map<SharedBucket, number>()
  readonly leases: Leases
  readonly passed = passedAlone

  constructor(options: StoreSlotsOptions) {
    const { store, clock, shaper, lanes, unanswered, instances } = options
    this.#options = options
    this.#store = store
    this.#readyLanes = lanes
    this.leases = new Leases(
      { store, clock },
      {
        claimingOf: bucket => this.#claimingOf(bucket),
        horizonOf: bucket => this.#horizon([bucket]),
        changed: (bucket, now) => this.#leaseChanged(bucket, now),
        wake: () => shaper.engine.wake(),
        failed: (bucket, askedAt) => unanswered([bucket], askedAt),
        instances,
      },
    )
  }

  modeOf(stack: readonly SharedBucket[]): ReleaseMode {
    let found: ReleaseMode = stack.length === 0 ? 'direct' : 'claimed'
    for (const bucket of stack) {
      const { mode } = (bucket as StoredBucket).shard
      if (mode === 'none') return 'none'
      if (mode === 'direct') found = 'direct'
    }
    return found
  }

  createTicket(lane: Lane, cost: number, arrivedAt: number, waiter: Waiter): Ticket {
    return new ClaimingTicket(lane, cost, arrivedAt, waiter)
  }

  /** ms by which slots may be ahead of the horizon, until leased ones are there. 0 where others may come first. */
  ahead({ stack, cost }: Demand): number {
    const last = stored(stack).at(-1)
    if (last === undefined || this.#store.lease === undefined) return 0
    const { overflow, grace, burst } = last.limits
    if (last.hasPriorities || overflow === 'fair' || grace !== undefined) return 0
    // A burst that was missed can be given back while no slot lies ahead.
    if (burst !== undefined) return 0
    // All that fits has its slot at once.
    if (this.leases.isSmall(last, cost)) return Math.max(FRAME, last.limits.capacity / last.limits.rate)
    return this.#store.keepsOrder === true ? FRAME + BEFORE_LEASES : FRAME
  }

  /** What the store has given a newcomer, with its answer if a slot was claimed as well. */
  roomFor({ arrival, arrivedAt }: RoomRequest, claim?: ClaimAnswer): ReservedRoom {
    const stack = stored(arrival.stack)
    return {
      patience: 2 * this.#horizon(stack) + SLOT_GRACE,
      offer: ticket => claim && this.#offer(ticket, claim, arrivedAt),
      linedUp: () => {
        for (const bucket of stack) this.leases.arrived(bucket)
      },
      giveBack: () => {
        const { cost } = arrival
        if (claim?.granted !== true) return this.giveBackRoom(arrival)
        for (const [place, bucket] of stack.entries())
          bucket.levelChanged(-costAt(arrival, place), this.#options.clock.now())
        this.#tellGivenBack({ stack: refsFor(stack, arrival), cost, slot: claim.slot, slotCost: cost })
      },
    }
  }

  get due(): number {
    return this.#grants.nextDue
  }

  /** Claims a slot for the first ticket of a lane, whose turn it is. What is leased of its stack is taken. */
  ask(ticket: Ticket, now: number): void {
    const { lane, cost, costs } = ticket
    const stack = stored(lane.stack)
    this.#cutLeases(stack, ticket, { arrivedAt: ticket.arrivedAt, now })
    // Its slot may be a little later than that of the lane before, which has to claim slots of other buckets. It keeps its turn.
    if (this.#waitsForLease(stack, now) || !this.#meets(stack, now)) return this.#readyLanes.refund(ticket)
    // Those whose claims are on their way came first. They have the first slots.
    const isFirst = (lane.claiming?.size ?? 0) === 0
    // Where a slot is for one request, each slot is settled by itself: after a stall the next one is judged by the time of then.
    const isQuick =
      isFirst && stack.every(({ lease }, place) => lease !== undefined && lease.pastFor(costAt(ticket, place)) > 0)
    const parts = this.#take(stack, ticket, now)
    const { claimed, taken } = parts
    const from = latest(taken)
    if (isQuick && from <= now + SAME_TIME) return this.#passLeased(ticket, from, now)
    this.#startClaiming(ticket)
    for (const bucket of parts.leased) if (bucket.shut) this.#readyLanes.occupied(bucket)
    const { arrivedAt } = ticket
    const question = { lane, stack, cost, costs, parts, askedAt: now, arrivedAt }
    if (claimed.length === 0) return this.#granted(new Grant(question, from))
    for (const bucket of claimed) {
      bucket.claimableAt = Math.max(now, bucket.claimableAt) + costIn(ticket, bucket) / bucket.limits.rate
      this.#readyLanes.occupied(bucket)
    }
    for (const [place, bucket] of stack.entries()) {
      this.#asked.set(bucket, (this.#asked.get(bucket) ?? 0) + costAt(ticket, place))
    }
    const since = now - arrivedAt
    const notBefore = taken.length === 0 ? {} : { notBefore: from, within: Math.max(0, meetsUntil(parts) - from) }
    const ahead = this.ahead(ticket)
    const own = countOwn(parts, stack)
    const asked = this.#store.claim({ stack: refsFor(claimed, ticket), cost, since, ahead, own, ...notBefore })
    if (!(asked instanceof Promise)) return this.#answered(question, asked)
    const answered = (claim?: ClaimAnswer): void => {
      this.#answered(question, claim)
      this.#options.shaper.engine.wake()
    }
    asked.then(answered, () => answered())
  }

  /** Passes an arrival at once by leased slots, each for many requests, if nobody waits before it. False: it has to line up. */
  passAtOnce(arrival: Arrival, now: number): boolean {
    const { route, cost } = arrival
    const stack = stored(arrival.stack)
    const mayPass = route.gate.open && route.gate.fits(cost)
    if (!mayPass || stack.some(({ waiting, shut }) => waiting > 0 || shut)) return false
    this.#cutLeases(stack, arrival, { arrivedAt: now, now })
    for (let place = 0; place < stack.length; place += 1) {
      const { lease } = stack[place]!
      if (lease!.pastFor(costAt(arrival, place)) === 0 || lease!.next(now) > now + SAME_TIME) return false
    }
    for (let place = 0; place < stack.length; place += 1) {
      const bucket = stack[place]!
      bucket.lease!.take(costAt(arrival, place), now)
      this.#leaseChanged(bucket, now)
      bucket.enter()
      if (bucket.shut) this.#readyLanes.occupied(bucket)
    }
    route.gate.enter()
    return true
  }

  #passLeased(ticket: Ticket, slot: number, now: number): void {
    const { lane, arrivedAt } = ticket
    lane.tickets.remove(ticket)
    lane.route.gate.enter()
    for (const bucket of lane.stack) {
      bucket.enter()
      if (bucket.shut) this.#readyLanes.occupied(bucket)
    }
    this.#options.shaper.engine.leave(ticket, Math.max(slot, Math.min(arrivedAt, now)), now)
  }

  /** A slot from before a request came is not for it, nor one that comes before the slots of other buckets can be claimed. */
  #cutLeases(stack: readonly StoredBucket[], demand: Demand, times: { arrivedAt: number; now: number }): void {
    const { arrivedAt, now } = times
    const claimed = stack.filter(({ lease }) => lease === undefined)
    if (claimed.length === stack.length) return
    const horizon = claimed.length === 0 ? 0 : this.#horizon(claimed)
    for (const bucket of stack) {
      const { lease } = bucket
      if (lease === undefined) continue
      const claimLead = horizon === 0 ? 0 : Math.max(horizon, Math.min(this.#leadOfAll(bucket, lease), MOST_LEAD))
      if (claimLead >= bucket.claimLead || now > bucket.claimLeadUntil) {
        bucket.claimLead = claimLead
        bucket.claimLeadUntil = now + FRAME
      }
      const past = lease.pastFor(costIn(demand, bucket))
      // Else others can use what is too soon for this one.
      const isTogether = horizon > 0 && claimed.every(other => allPass(bucket, other))
      const late = Math.min(lateIn(stack, bucket), lease.late) - CLAIM_TIME * horizon
      lease.cut(Math.max(Math.min(arrivedAt, now - past), now - (isTogether ? late : Math.max(past, late))))
    }
  }

  /** ms from a claim to the leased slot that it is for: as the farthest instance needs, so that claims come in order. */
  #leadOfAll({ ref }: StoredBucket, { lateBy }: BucketLease): number {
    return 3 * lateBy + 2 * (this.#store.latenessOf?.(ref) ?? 0)
  }

  /** Whether a leased slot that was there has lapsed. */
  #waitsForLease(stack: readonly StoredBucket[], now: number): boolean {
    let waits = false
    for (const bucket of stack) {
      if (bucket.lease === undefined) continue
      const at = bucket.lease.next(now) - bucket.claimLead
      if (at <= now + SAME_TIME) continue
      this.#leaseChanged(bucket, now)
      waits ||= bucket.lease !== undefined
    }
    return waits
  }

  /** Whether the next leased slots can be used together. One that lapses before that of the last bucket is lost. */
  #meets(stack: readonly StoredBucket[], now: number): boolean {
    const last = stack.at(-1)!
    if (last.lease === undefined) return true
    const at = last.lease.next(now)
    const lost = Math.max(now, at + evenGraceOf(last.lease, last)) + SAME_TIME
    let meets = true
    for (const bucket of stack) {
      if (bucket === last || bucket.lease === undefined) continue
      bucket.lease.cutLate(at)
      const next = bucket.lease.next(now)
      if (next <= lost) continue
      if (next === Infinity) this.#leaseChanged(bucket, now)
      else this.#nextClaim(bucket, next, now)
      meets = false
    }
    return meets
  }

  #take(stack: readonly StoredBucket[], ticket: Ticket, now: number): Parts {
    const claimed = stack.filter(bucket => bucket.lease === undefined)
    const leased = stack.filter(bucket => bucket.lease !== undefined)
    // By then the store has answered.
    const isMixed = claimed.length > 0 && leased.length > 0
    const from = isMixed ? now + CLAIM_TIME * this.#horizon(claimed) : now
    const taken = leased.map(bucket => {
      const lease = bucket.lease!
      if (!isMixed || !lease.hasChoice) return lease.take(costIn(ticket, bucket), now, { late: lateIn(stack, bucket) })
      const needed = slotsBefore(bucket, lease.until)
      return lease.take(costIn(ticket, bucket), now, { late: lateIn(stack, bucket), from, needed })
    })
    for (const bucket of leased) this.#leaseChanged(bucket, now)
    return { claimed, leased, taken }
  }

  #giveBackLeased({ leased, taken }: Parts, demand: Demand): void {
    const now = this.#options.clock.now()
    for (const [place, bucket] of leased.entries()) {
      if (bucket.lease === undefined) {
        bucket.giveBackLeased(costIn(demand, bucket))
        continue
      }
      bucket.lease.giveBack(taken[place]!, costIn(demand, bucket))
      this.#leaseChanged(bucket, now)
    }
  }

  #claimingOf(bucket: SharedBucket): number {
    let cost = this.#asked.get(bucket) ?? 0
    for (const grant of this.#grants.all()) cost += costIn(grant, bucket)
    return cost
  }

  #leaseChanged(bucket: StoredBucket, now: number): void {
    if (bucket.lease?.ending && bucket.lease.next(now) === Infinity) bucket.endLease()
    const { lease } = bucket
    const next = lease === undefined ? Math.max(now, bucket.leaseDrainedAt) : lease.next(now) - bucket.claimLead
    this.#nextClaim(bucket, next, now)
  }

  /** Takes the answer to a claim that came with the admission of the lane's last ticket, asked for at this time in ms. */
  #offer(ticket: Ticket, claim: ClaimAnswer, askedAt: number): void {
    const { lane, stack, cost, costs } = ticket
    // Others may have passed meanwhile, or the upstream fails.
    const mayPass = lane.route.gate.open && lane.stack.every(bucket => bucket.hasPlace)
    const parts = { claimed: stored(stack), leased: [], taken: [] }
    const question = { lane, stack, cost, costs, parts, askedAt, arrivedAt: askedAt }
    if (claim.granted && !mayPass) return this.#giveBackSlot(new Grant(question, claim.slot.at, claim.slot))
    if (claim.granted) this.#startClaiming(lane.tickets.first!)
    this.#applyAnswer(question, claim)
  }

  /** A store applies a rate when it is called with it, so it is told before and after the change. It knows nothing of shares. */
  limitsChange(bucket: SharedBucket, limits: BucketLimits, now: number): (() => void) | undefined {
    if ((limits.whole ?? limits).rate === (bucket.limits.whole ?? bucket.limits).rate) return undefined
    // Slots that are further ahead than the horizon are claimed anew at the new rate.
    const horizon = this.#horizon([bucket])
    this.#giveBackAll(({ lane, at }) => at > now + horizon && lane.stack.includes(bucket))
    if (!isClaimed(bucket)) return undefined
    const tell = (): void => {
      if (bucket.waiting > 0) this.#tellGivenBack({ stack: refsFor([bucket]), cost: 0 })
    }
    tell()
    return () => {
      tell()
      if ((bucket as StoredBucket).lease === undefined) return
      this.#nextClaim(bucket as StoredBucket, Infinity, this.#options.clock.now())
      this.leases.renew(bucket as StoredBucket)
    }
  }

  postpone(bucket: SharedBucket, cost: number, passedAt: number, sentAt: number): boolean | undefined {
    if (!isClaimed(bucket)) return undefined
    const { rate, grace = Infinity } = bucket.limits
    if (sentAt - passedAt <= grace) return false
    const stored = bucket as StoredBucket
    stored.claimableAt = Math.max(stored.claimableAt, sentAt + cost / rate)
    return true
  }

  /** The store has forgotten a bucket and the slots granted before, so their lanes claim new ones. */
  reset(bucket: SharedBucket): void {
    ;(bucket as StoredBucket).lease = undefined
    this.#giveBackAll(({ lane }) => lane.stack.includes(bucket))
  }

  /** One that comes back was before them: a slot goes to the first of its lane. The last that claims stands behind it again. */
  linedUp(ticket: Ticket): void {
    const { lane } = ticket
    const { claiming } = lane
    const last = claiming?.last
    if (last === undefined || last.arrivedAt <= ticket.arrivedAt) return
    lane.tickets.remove(ticket)
    this.#dropClaiming(last)
    lane.tickets.unshift(last)
    let later = claiming!.first
    while (later !== undefined && later.arrivedAt <= ticket.arrivedAt) later = later.next
    this.#pushClaiming(ticket, later)
  }

  remove(ticket: Ticket): boolean {
    const { lane } = ticket
    if (!this.#dropClaiming(ticket)) return false
    const next = lane.tickets.first
    if (next !== undefined) {
      lane.tickets.remove(next)
      this.#pushClaiming(next)
    } else {
      // A claim that is on its way is given back when it is answered.
      const [surplus] = this.#lastFirst(grant => grant.lane === lane)
      if (surplus !== undefined) this.#takeOut(surplus)
    }
    return true
  }

  advance(now: number): void {
    const grant = this.#grants.next!
    const { nextDue } = this.#grants
    const { lane, until } = grant
    const ticket = lane.claiming?.first
    // It claims by its own cost before those behind it do. Else they would claim again and again, each time too little for it.
    if (ticket !== undefined && !isWithin(ticket, grant)) return this.#giveBackAll(other => other.lane === lane)
    if (ticket === undefined || now > until) return this.#giveBackGrant(grant)
    this.#grants.remove(grant)
    lane.claims -= 1
    this.#dropClaiming(ticket)
    if (ticket instanceof ClaimingTicket) ticket.granted = grant
    this.#options.shaper.engine.leave(ticket, nextDue, now)
    for (const bucket of stored(lane.stack)) {
      const wasShut = bucket.shut
      bucket.claims -= 1
      if (wasShut) this.#readyLanes.reopened(bucket, now)
    }
  }

  close(): void {
    this.leases.close()
  }

  recall(gate: Gate): void {
    this.#giveBackAll(({ lane }) => lane.route.gate === gate)
  }

  /** Where many wait they lease at once. Claims would reach past the slots of older requests that another instance takes over. */
  takenOver(tickets: readonly Ticket[]): void {
    for (const ticket of tickets)
      for (const bucket of stored(ticket.stack))
        if (bucket.waiting > FEW_REFUSALS) this.leases.start(bucket, costIn(ticket, bucket))
  }

  retire(buckets: Iterable<SharedBucket>): void {
    this.leases.retire(buckets as Iterable<StoredBucket>)
  }

  resume(): void {
    this.leases.resume()
  }

  giveBack(ticket: Ticket): void {
    if (!(ticket instanceof ClaimingTicket)) return
    const { counted, lane, granted } = ticket
    if (!counted && granted === undefined) return
    ticket.counted = false
    ticket.granted = undefined
    const rest = counted ? this.#leaveRoom(ticket) : []
    // What was leased has passed by now.
    const { stack: claimed, own } = granted?.claimed ?? NOTHING_CLAIMED
    const slot = claimed.length === 0 ? undefined : granted?.slot
    const theirs = slot && { slot, slotCost: ticket.cost, own }
    // Where costs differ in buckets, those of the slot and of the request may, too.
    if (theirs !== undefined && claimed.length === rest.length && ticket.costs === undefined)
      this.#tellGivenBack({ stack: claimed, cost: ticket.cost, ...theirs })
    else {
      if (rest.length > 0) this.#tellGivenBack({ stack: rest, cost: ticket.cost })
      if (theirs !== undefined) this.#tellGivenBack({ stack: claimed, cost: 0, ...theirs })
    }
    if (granted !== undefined) this.#slotGivenBack(lane)
  }

  giveBackRoom(demand: Demand): void {
    const rest = this.#leaveRoom(demand)
    if (rest.length > 0) this.#tellGivenBack({ stack: rest, cost: demand.cost })
  }

  /** A released request cost more or less. @returns the store's changes where it counts, else those here */
  settle(demand: Demand, changes: readonly number[]): MaybePromise<readonly number[]> {
    const stack = stored(demand.stack)
    const claimed = stack.filter(({ shard }) => shard.mode === 'claimed')
    if (claimed.length === 0 || this.#store.settle === undefined) return changes
    const answer = this.#store.settle({ stack: refsFor(claimed, demand), cost: demand.cost })
    const merge = (theirs: readonly number[]): readonly number[] =>
      stack.map((bucket, place) => theirs[claimed.indexOf(bucket)] ?? changes[place]!)
    return answer instanceof Promise ? answer.then(merge, () => changes) : merge(answer)
  }

  /** Returns the buckets whose room is the store's. */
  #leaveRoom(demand: Demand): BucketRef[] {
    const stack = stored(demand.stack)
    for (const [place, bucket] of stack.entries()) {
      if (bucket.hasRoom) bucket.useRoom(-costAt(demand, place), this.#options.clock.now())
      else bucket.levelChanged(-costAt(demand, place), this.#options.clock.now())
    }
    return refsFor(
      stack.filter(bucket => !bucket.hasRoom),
      demand,
    )
  }

  #tellGivenBack(request: GiveBackRequest): void {
    when(this.#store.giveBack(request), ignore)
  }

  closeLane(lane: Lane): void {
    if (lane.tickets.size > 0) return
    this.#readyLanes.rest(lane)
    if (lane.claims > 0 || (lane.claiming?.size ?? 0) > 0 || lane.hasAside) return updateRank(lane)
    dropRank(lane)
    this.#readyLanes.closed(lane)
  }

  #startClaiming(ticket: Ticket): void {
    const { lane } = ticket
    lane.tickets.remove(ticket)
    this.#pushClaiming(ticket)
    lane.claims += 1
    lane.route.gate.enter()
    for (const bucket of stored(lane.stack)) {
      bucket.enter()
      bucket.claims += 1
    }
    if (lane.tickets.size > 0) return
    this.#readyLanes.rest(lane)
    updateRank(lane)
  }

  #pushClaiming(ticket: Ticket, before?: Ticket): void {
    const { lane } = ticket
    lane.claiming ??= new LinkedList()
    if (before === undefined) lane.claiming.push(ticket)
    else lane.claiming.insert(ticket, before)
    for (const bucket of stored(lane.stack)) bucket.claiming += 1
  }

  #dropClaiming(ticket: Ticket): boolean {
    const { lane } = ticket
    if (!lane.claiming?.remove(ticket)) return false
    for (const bucket of stored(lane.stack)) bucket.claiming -= 1
    return true
  }

  #answered(question: Question, claim: ClaimAnswer | undefined): void {
    const { lane, parts, askedAt } = question
    for (const [place, bucket] of lane.stack.entries()) {
      const left = this.#asked.get(bucket)! - costAt(question, place)
      if (left > LEVEL_TOLERANCE) this.#asked.set(bucket, left)
      else this.#asked.delete(bucket)
    }
    if (claim === undefined) this.#options.unanswered(lane.stack, askedAt)
    else for (const { shard } of parts.claimed) shard.answered(askedAt)
    if (claim?.granted) this.#applyAnswer(question, claim)
    else {
      this.#endClaim(lane)
      this.#giveBackLeased(parts, question)
      if (claim !== undefined) this.#applyAnswer(question, claim)
      this.closeLane(lane)
    }
  }

  /** Learns from an answer when the next claims are possible, and keeps a granted slot. */
  #applyAnswer(question: Question, claim: ClaimAnswer): void {
    if (!claim.granted) return this.#refused(question, claim.freeAt)
    const { lane } = question
    const { at } = claim.slot
    this.#granted(new Grant(question, at, claim.slot))
    // Many requests wait: one call for each of them would be too many.
    const last = stored(lane.stack).at(-1)!
    const now = this.#options.clock.now()
    const soonest = Math.max(now + this.#horizon([last]), latest(question.parts.taken))
    const isBusy = at - soonest > FRAME / 2 && last.claimedOften(now)
    if (isBusy && last.lease === undefined) this.leases.start(last, costIn(question, last))
  }

  #granted(grant: Grant): void {
    const { lane, at, slot, parts } = grant
    const now = this.#options.clock.now()
    for (const bucket of parts.claimed) {
      // Else it has been leased since.
      if (bucket.lease === undefined) this.#nextClaim(bucket, this.#nextAfter(grant, bucket, now), now)
      bucket.refusals = 0
    }
    this.#grants.add(grant, Math.max(slot?.from ?? at, Math.min(now, at)))
    const { gate } = lane.route
    const shut = gate.paused || (gate.blocked && !gate.probing)
    if (lane.claiming!.size < lane.claims || shut) this.#giveBackGrant(grant)
  }

  /** When the next claim for a bucket may be granted after this one, in ms. */
  #nextAfter(grant: Grant, bucket: StoredBucket, now: number): number {
    const { lane, at, parts } = grant
    const cost = costIn(grant, bucket)
    const { rate, whole, burst } = bucket.limits
    // This instance's share of the rate counts from now and in full.
    const share = whole === undefined ? now : now + cost / rate
    const asked = this.#asked.get(bucket) ?? 0
    const beyond = bucket === lane.stack.at(-1) ? this.ahead(grant) : 0
    const date = this.#dateOf(grant, bucket)
    bucket.grantedUntil = (burst === undefined ? date : Math.max(bucket.grantedUntil, at)) + cost / rate
    // It may be before slots that this instance has already.
    bucket.ownUntil =
      burst === undefined ? Math.max(bucket.ownUntil, date + cost / rate) : Math.max(bucket.ownUntil, at) + cost / rate
    return Math.max(share, bucket.grantedUntil - this.#reach(parts) - beyond + asked / rate)
  }

  /** From when a slot counts in a bucket, in ms, as the store does it. */
  #dateOf({ at, since, lane }: Grant, bucket: StoredBucket): number {
    const { limits, grantedUntil } = bucket
    if (bucket === lane.stack.at(-1) || limits.burst !== undefined) return at
    return Math.min(at, Math.max(grantedUntil, at - graceAt(limits, 0, lane.stack.length), since))
  }

  /** The claims that are on their way will be refused, too. */
  #refused(question: Question, freeAt: readonly number[]): void {
    const { lane, askedAt } = question
    const { claimed, taken } = question.parts
    const now = this.#options.clock.now()
    const wanted = Math.max(now, ...taken.map(({ at }) => at))
    const reach = this.#reach(question.parts)
    // One that has changed since has to be asked for again.
    const frees = claimed.map(({ changedAt }, place) => (changedAt > askedAt ? now : freeAt[place]!))
    const last = Math.max(...frees)
    const retryAt = this.#cutUnmet(question, frees, now)
    for (const [place, bucket] of claimed.entries()) {
      if (bucket.lease !== undefined) continue
      const free = frees[place]!
      const cost = costIn(question, bucket)
      const own = bucket.ownUntil - slackOf(bucket.limits, cost) / bucket.limits.rate
      const ahead = reach + (bucket === lane.stack.at(-1) ? this.ahead(question) : 0)
      const isLast = free === last
      // Within reach it is refused only because others lease the bucket.
      const isOthers =
        isLast && bucket === lane.stack.at(-1) && taken.length === 0 && free - ahead < askedAt - SAME_GRANT
      const soonest = isLast ? retryAt : now
      this.#nextClaim(bucket, Math.max(soonest, free - ahead) + waitForSlack(bucket, cost, free), now)
      // No other instance has this slot: it is behind those of this one, or it is free but lies too far ahead.
      if (!isOthers && free <= Math.max(own + SAME_GRANT, latest(taken))) continue
      bucket.refusals += 1
      const isOften = isLast && bucket.refusals > FEW_REFUSALS && !this.leases.suitsClaims(bucket)
      if (free - wanted > FRAME / 2 || isOften) this.leases.start(bucket, cost)
    }
  }

  /** Leased slots that lapse before a bucket is free that all pass as well are lost. Returns when to claim again, in ms. */
  #cutUnmet({ lane, parts }: Question, frees: readonly number[], now: number): number {
    const stack = stored(lane.stack)
    const last = Math.max(...frees)
    const bucket = parts.claimed[frees.indexOf(last)]!
    // Others lease the bucket, or the claim came too late.
    const isMet = parts.taken.length > 0 && last <= meetsUntil(parts)
    const horizon = this.#horizon(parts.claimed)
    for (const leased of parts.leased) {
      if (leased.lease === undefined || !allPass(leased, bucket)) continue
      leased.lease.cut((isMet ? now + horizon : last) - Math.min(lateIn(stack, leased), leased.lease.late))
      this.#leaseChanged(leased, now)
    }
    return Math.max(now + RETRY, isMet ? last - horizon : -Infinity)
  }

  #nextClaim(bucket: StoredBucket, at: number, now: number): void {
    bucket.claimableAt = at
    if (isFree(bucket, now)) this.#readyLanes.plan(bucket)
    else this.#readyLanes.occupied(bucket)
  }

  /** How far ahead slots are granted, in ms: within the horizon, and at the moments of what is leased. */
  #reach({ claimed, leased }: Parts): number {
    return Math.max(this.#horizon(claimed), ...leased.map(({ claimLead }) => claimLead))
  }

  #horizon(stack: readonly SharedBucket[]): number {
    return this.#store.horizonOf?.(refsFor(stack)) ?? this.#store.horizon
  }

  #giveBackAll(test: (grant: Grant) => boolean): void {
    for (const grant of this.#lastFirst(test)) if (grant.place >= 0) this.#giveBackGrant(grant)
  }

  /** The last slots first: the store has a slot again only if it is the last, and those that stay are the earlier ones. */
  #lastFirst(test: (grant: Grant) => boolean): Grant[] {
    return [...this.#grants.all()].filter(test).sort((one, other) => other.at - one.at)
  }

  #giveBackGrant(grant: Grant): void {
    this.#takeOut(grant)
    this.closeLane(grant.lane)
  }

  /** Gives back a slot that no request takes. Its lane may be empty then, and is to be closed, once. */
  #takeOut(grant: Grant): void {
    this.#grants.remove(grant)
    this.#giveBackSlot(grant)
    this.#endClaim(grant.lane)
  }

  #giveBackSlot(grant: Grant): void {
    const { lane, cost, slot, claimed, parts } = grant
    if (slot !== undefined && claimed.stack.length > 0)
      this.#tellGivenBack({ ...claimed, cost: 0, slot, slotCost: cost })
    this.#giveBackLeased(parts, grant)
    this.#slotGivenBack(lane)
  }

  /** A slot was given back: the store may have another one soon. */
  #slotGivenBack(lane: Lane): void {
    const now = this.#options.clock.now()
    for (const bucket of stored(lane.stack)) {
      if (bucket.lease !== undefined) this.leases.slotReturned(bucket)
      // This instance's share has been used, whether granted or not. A leased slot that is there still is known.
      if (bucket.limits.whole !== undefined || bucket.lease !== undefined) continue
      bucket.claimableAt = bucket.claimableFrom(now)
      bucket.grantedUntil = now
      bucket.ownUntil = now
      this.#readyLanes.plan(bucket)
    }
  }

  /** One claim less: the last claiming ticket contends again. */
  #endClaim(lane: Lane): void {
    lane.claims -= 1
    lane.route.gate.leave()
    lane.route.gate.unprobe()
    this.#readyLanes.gateOpened(lane.route.gate)
    const now = this.#options.clock.now()
    for (const bucket of stored(lane.stack)) {
      const wasShut = bucket.shut
      bucket.leave()
      bucket.claims -= 1
      if (wasShut) this.#readyLanes.reopened(bucket, now)
    }
    const { claiming } = lane
    const ticket = claiming?.last
    if (claiming === undefined || ticket === undefined || claiming.size <= lane.claims) return
    this.#dropClaiming(ticket)
    lane.tickets.unshift(ticket)
    if (lane.tickets.size > 1) return
    this.#readyLanes.opened(lane, now)
    updateRank(lane)
  }
}

/** ms from the time at which a cost may leave to that without its slack. A bucket with a burst counts from that one. */
function waitForSlack(bucket: StoredBucket, cost: number, free: number): number {
  const limits = bucket.limits.whole ?? bucket.limits
  const slack = slackOf(limits, cost) / limits.rate
  bucket.grantedUntil = free + slack
  return slack
}

/** How many of those that are claimed are not the last of the stack. */
function countOwn({ claimed }: Parts, stack: readonly StoredBucket[]): number {
  return claimed.length - (claimed.at(-1) === stack.at(-1) ? 1 : 0)
}

/** -Infinity: none is leased. */
function latest(taken: readonly TakenSlot[]): number {
  let last = -Infinity
  for (const { at } of taken) last = Math.max(last, at)
  return last
}

/** How late a leased slot of a stack can be used, in ms: so that the gaps behind its last bucket stay even. */
function lateIn(stack: readonly StoredBucket[], bucket: StoredBucket): number {
  return bucket === stack.at(-1) ? evenGraceOf(bucket.lease!, bucket) : Infinity
}

/** How late a leased slot of the last bucket can be used, in ms. The bound has room for a period. */
function evenGraceOf({ half, isOnlyLessee }: BucketLease, { limits }: SharedBucket): number {
  const even = Math.min(half, 1 / limits.rate - EVEN_GRACE)
  return even < EVEN_GRACE || isOnlyLessee ? Math.max(even, SHORTEST_GRACE) : even
}

function usableUntil({ taken }: Parts): number {
  return Math.min(...taken.map(({ until }) => until))
}

/**
 * Until when a claimed slot can be to meet the leased ones, in ms. It is mapped by another answer than they are, and the schedules of two
 * buckets in a stack follow each other: often one of its slots is exactly where the other's lapses. Without the tolerance a lane loses
 * that one again and again.
 */
function meetsUntil(parts: Parts): number {
  return usableUntil(parts) + SAME_GRANT
}

function isClaimed(bucket: SharedBucket): boolean {
  return (bucket as StoredBucket).shard.mode === 'claimed'
}

/** With a store all buckets are stored ones. */
function stored(stack: readonly SharedBucket[]): readonly StoredBucket[] {
  return stack as readonly StoredBucket[]
}

function isWithin(ticket: Ticket, slot: Demand): boolean {
  return ticket.stack.every((_, place) => costAt(ticket, place) <= costAt(slot, place) + LEVEL_TOLERANCE)
}
