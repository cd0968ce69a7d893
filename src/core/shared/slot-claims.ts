/**
 * Releases by slots that a store grants.
 *
 * Lanes, fair queues and the times at which buckets are free decide whose turn it is, as without a store. But the request
 * does not pass: it claims. It leaves the contention and waits for the slot. A slot belongs to the lane and goes to the
 * request that is first in it then, so a hang-up costs nothing and all behind it move up. A slot that no request of the lane
 * can take goes back to the store.
 *
 * Each bucket has a time at which the next claim may be granted (`claimableAt`). After a grant it is the slot plus the time
 * that the cost takes, less the horizon. After a refusal it is the store's answer. While claims are on their way they count
 * as granted one after the other, so several can be under way where slots are closer than a round trip. A bucket with a burst
 * counts from the time at which it will have drained (`grantedUntil`), and the slack of a claim lets it go earlier.
 *
 * A slot that is missed by more than `SLOT_GRACE` goes back to the store.
 */

import { dropRank, updateRank } from '../admission/fair-drop.js'
import { slackOf } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { type Gate, type Lane, type SharedBucket, StoredTicket, type Ticket } from '../queue/lane.js'
import type { ReadyLanes } from '../queue/ready-lanes.js'
import { isFree } from '../queue/ready-lanes.js'
import { type BucketRef, type ClaimAnswer, SLOT_GRACE, type Slot, type Store } from '../store.js'
import { DueHeap, type Timed } from '../structures/due-heap.js'
import { LinkedList } from '../structures/linked-list.js'
import type { StoredBucket } from './stored-bucket.js'

/** ms. The least time from a refusal to the next try. */
const RETRY = 0.25

/**
 * Each time that another instance gets a slot, the next one may be further ahead than the horizon: by this part of it, and
 * by at most this many ms. So instances take turns, whichever has the shorter way to the store.
 */
const TURN_AHEAD = { step: 0.5, most: 20 }

/** A slot that a lane has been granted. */
class Grant implements Timed {
  place = -1
  readonly lane: Lane
  readonly cost: number
  readonly slot: Slot

  constructor(lane: Lane, cost: number, slot: Slot) {
    this.lane = lane
    this.cost = cost
    this.slot = slot
  }
}

/** What claims need of their engine. */
export interface Claimant {
  now(): number
  /** Something may be possible now. */
  wake(): void
  /** A claiming ticket has its slot. */
  leave(ticket: Ticket, slot: Slot, now: number): void
  /** The store has not answered. */
  failed(lane: Lane, askedAt: number): void
}

export class Claims {
  readonly #store: Store
  readonly #readyLanes: ReadyLanes
  readonly #claimant: Claimant
  readonly #grants = new DueHeap<Grant>()
  /** Cost of the claims that are on their way, by bucket. */
  readonly #asked = new Map<SharedBucket, number>()
  /** ms by which this instance may claim further ahead than the horizon, by bucket. */
  readonly #ahead = new Map<SharedBucket, number>()

  constructor(store: Store, readyLanes: ReadyLanes, claimant: Claimant) {
    this.#store = store
    this.#readyLanes = readyLanes
    this.#claimant = claimant
  }

  /** How long, in ms, a free slot of this stack may take to arrive. */
  patience(stack: readonly SharedBucket[]): number {
    return 2 * this.#horizon(stack) + SLOT_GRACE
  }

  /** Whether a claim is on its way, or a granted slot is not used yet. */
  get busy(): boolean {
    return this.#asked.size > 0 || this.#grants.size > 0
  }

  /** When the next slot is, in ms. */
  get due(): number {
    return this.#grants.nextDue
  }

  /** Claims a slot for the first ticket of a lane, whose turn it is. */
  ask(ticket: Ticket, now: number): void {
    const { lane, cost } = ticket
    this.#startClaiming(ticket)
    for (const bucket of stored(lane.stack)) {
      this.#asked.set(bucket, (this.#asked.get(bucket) ?? 0) + cost)
      bucket.claimableAt = Math.max(now, bucket.claimableAt) + cost / bucket.limits.rate
      this.#readyLanes.occupied(bucket)
    }
    const ahead = this.#ahead.get(lane.stack.at(-1)!) ?? 0
    const asked = this.#store.claim({ stack: refs(lane.stack), cost, since: now - ticket.arrivedAt, ahead })
    if (!(asked instanceof Promise)) return this.#answered(lane, cost, now, asked)
    const answered = (claim?: ClaimAnswer): void => {
      this.#answered(lane, cost, now, claim)
      this.#claimant.wake()
    }
    asked.then(answered, () => answered())
  }

  /** Takes the answer to a claim that came with the admission of the lane's last ticket, asked for at this time in ms. */
  offer(lane: Lane, cost: number, claim: ClaimAnswer, askedAt: number): void {
    // Others may have passed meanwhile, or the upstream fails.
    const mayPass = lane.route.gate.open && lane.stack.every(bucket => bucket.hasPlace)
    if (claim.granted && !mayPass) return this.#return(lane, cost, claim.slot)
    if (claim.granted) this.#startClaiming(lane.tickets.first!)
    this.#applyAnswer(lane, cost, claim, askedAt)
  }

  /**
   * Tells the store the new rate of a bucket that requests wait for. The store applies a rate when it is called with it.
   * Without this the time until the next slot would pass at the old rate until the next claim.
   */
  rateChanged(bucket: SharedBucket): void {
    if (bucket.waiting > 0) ignore(this.#store.giveBack({ stack: refs([bucket]), cost: 0 }))
  }

  /** A request was sent later than it passed. False: that is within the bucket's grace. */
  postpone(bucket: SharedBucket, cost: number, passedAt: number, sentAt: number): boolean {
    const { rate, grace = Infinity } = bucket.limits
    if (sentAt - passedAt <= grace) return false
    const stored = bucket as StoredBucket
    stored.claimableAt = Math.max(stored.claimableAt, sentAt + cost / rate)
    return true
  }

  /** The store has forgotten a bucket and the slots granted before, so their lanes claim new ones. */
  reset(bucket: SharedBucket): void {
    this.#dropAll(({ lane }) => lane.stack.includes(bucket))
  }

  /** Takes out a claiming ticket. The next in its lane takes its place. False: it is not claiming. */
  remove(ticket: Ticket): boolean {
    const { lane } = ticket
    if (!lane.claiming?.remove(ticket)) return false
    const next = lane.tickets.first
    if (next !== undefined) {
      lane.tickets.remove(next)
      lane.claiming.push(next)
    } else {
      // A claim that is on its way is given back when it is answered.
      const surplus = this.#grants.find(grant => grant.lane === lane)
      if (surplus !== undefined) this.#giveUp(surplus)
    }
    return true
  }

  /** Gives the slot that is due to its lane. */
  advance(now: number): void {
    const grant = this.#grants.next!
    const { lane, cost, slot } = grant
    const ticket = lane.claiming?.first
    const fits = ticket !== undefined && ticket.cost <= cost + LEVEL_TOLERANCE
    if (!fits || now - slot.at > SLOT_GRACE) {
      this.#drop(grant)
      return
    }
    this.#grants.remove(grant)
    lane.claims -= 1
    lane.claiming!.remove(ticket)
    if (ticket instanceof StoredTicket) ticket.granted = slot
    this.#claimant.leave(ticket, slot, now)
  }

  /** A gate pauses: gives back the slots of all lanes before it. */
  recall(gate: Gate): void {
    this.#dropAll(({ lane }) => lane.route.gate === gate)
  }

  /** Gives back to the store what it has counted for a ticket, and its slot. */
  giveBack(ticket: Ticket): void {
    if (!(ticket instanceof StoredTicket)) return
    const { counted, lane, granted: slot } = ticket
    if (!counted && slot === undefined) return
    ticket.counted = false
    ticket.granted = undefined
    const cost = counted ? ticket.cost : 0
    ignore(this.#store.giveBack({ stack: refs(lane.stack), cost, ...(slot && { slot, slotCost: ticket.cost }) }))
    if (slot !== undefined) this.#free(lane)
  }

  /** Closes a lane in which nobody waits any more, unless some claim or are set aside. */
  close(lane: Lane): void {
    if (lane.tickets.size > 0) return
    this.#readyLanes.rest(lane)
    if (lane.claims > 0 || (lane.claiming?.size ?? 0) > 0 || lane.hasAside) return updateRank(lane)
    dropRank(lane)
    this.#readyLanes.closed(lane)
    for (const bucket of lane.stack) if (bucket.waiting === 0) this.#ahead.delete(bucket)
  }

  #startClaiming(ticket: Ticket): void {
    const { lane } = ticket
    lane.tickets.remove(ticket)
    lane.claiming ??= new LinkedList()
    lane.claiming.push(ticket)
    lane.claims += 1
    lane.route.gate.enter()
    for (const bucket of lane.stack) bucket.enter()
    if (lane.tickets.size > 0) return
    this.#readyLanes.rest(lane)
    updateRank(lane)
  }

  #answered(lane: Lane, cost: number, askedAt: number, claim: ClaimAnswer | undefined): void {
    for (const bucket of lane.stack) {
      const left = this.#asked.get(bucket)! - cost
      if (left > LEVEL_TOLERANCE) this.#asked.set(bucket, left)
      else this.#asked.delete(bucket)
    }
    if (claim === undefined) this.#claimant.failed(lane, askedAt)
    if (claim?.granted) this.#applyAnswer(lane, cost, claim, askedAt)
    else {
      this.#stopClaiming(lane)
      if (claim !== undefined) this.#applyAnswer(lane, cost, claim, askedAt)
      this.close(lane)
    }
  }

  /** Learns from an answer when the next claims are possible, and keeps a granted slot. */
  #applyAnswer(lane: Lane, cost: number, claim: ClaimAnswer, askedAt: number): void {
    if (claim.granted) this.#granted(new Grant(lane, cost, claim.slot))
    else this.#refused(lane, cost, claim.freeAt, askedAt)
  }

  #granted(grant: Grant): void {
    const { lane, cost, slot } = grant
    const now = this.#claimant.now()
    const horizon = this.#horizon(lane.stack)
    for (const bucket of stored(lane.stack)) {
      this.#ahead.delete(bucket)
      const { rate, whole } = bucket.limits
      // This instance's share of the rate counts from now and in full.
      const share = whole === undefined ? now : now + cost / rate
      const asked = this.#asked.get(bucket) ?? 0
      const from = bucket.limits.burst === undefined ? slot.at : Math.max(bucket.grantedUntil, slot.at)
      bucket.grantedUntil = from + cost / rate
      this.#nextClaim(bucket, Math.max(share, bucket.grantedUntil - horizon + asked / rate), now)
    }
    this.#grants.add(grant, slot.at)
    const { gate } = lane.route
    const shut = gate.paused || (gate.blocked && !gate.probing)
    if (lane.claiming!.size < lane.claims || shut) this.#drop(grant)
  }

  /** The claims that are on their way will be refused, too. */
  #refused(lane: Lane, cost: number, freeAt: readonly number[], askedAt: number): void {
    const now = this.#claimant.now()
    const horizon = this.#horizon(lane.stack)
    const stack = stored(lane.stack)
    // If the bucket has changed since, the store has to be asked again.
    const frees = stack.map((bucket, place) => (bucket.changedAt > askedAt ? now : freeAt[place]!))
    const last = Math.max(...frees)
    if (frees.at(-1) === last) this.#goFurtherAhead(stack.at(-1)!, horizon)
    for (const [place, bucket] of stack.entries()) {
      const free = frees[place]!
      const ahead = horizon + (this.#ahead.get(bucket) ?? 0)
      const limits = bucket.limits.whole ?? bucket.limits
      const slack = slackOf(limits, cost) / limits.rate
      bucket.grantedUntil = free + slack
      this.#nextClaim(bucket, Math.max(free === last ? now + RETRY : now, free - ahead) + slack, now)
    }
  }

  #goFurtherAhead(bucket: SharedBucket, horizon: number): void {
    const ahead = (this.#ahead.get(bucket) ?? 0) + horizon * TURN_AHEAD.step
    this.#ahead.set(bucket, Math.min(TURN_AHEAD.most, ahead))
  }

  /** The next claim for a bucket may be granted then, in ms. */
  #nextClaim(bucket: StoredBucket, at: number, now: number): void {
    bucket.claimableAt = at
    if (isFree(bucket, now)) this.#readyLanes.plan(bucket)
    else this.#readyLanes.occupied(bucket)
  }

  #horizon(stack: readonly SharedBucket[]): number {
    return this.#store.horizonOf?.(refs(stack)) ?? this.#store.horizon
  }

  #dropAll(test: (grant: Grant) => boolean): void {
    for (let grant = this.#grants.find(test); grant !== undefined; grant = this.#grants.find(test)) this.#drop(grant)
  }

  #drop(grant: Grant): void {
    this.#giveUp(grant)
    this.close(grant.lane)
  }

  /** Gives back a slot that no request takes. Its lane may be empty then, and is to be closed, once. */
  #giveUp(grant: Grant): void {
    const { lane, cost, slot } = grant
    this.#grants.remove(grant)
    this.#return(lane, cost, slot)
    this.#stopClaiming(lane)
  }

  #return(lane: Lane, cost: number, slot: Slot): void {
    ignore(this.#store.giveBack({ stack: refs(lane.stack), cost: 0, slot, slotCost: cost }))
    this.#free(lane)
  }

  /** A slot was given back: the store may have another one soon. */
  #free(lane: Lane): void {
    const now = this.#claimant.now()
    for (const bucket of stored(lane.stack)) {
      // This instance's share has been used, whether granted or not.
      if (bucket.limits.whole !== undefined) continue
      bucket.claimableAt = now
      bucket.grantedUntil = now
      this.#readyLanes.plan(bucket)
    }
  }

  /** One claim less: the last claiming ticket contends again. */
  #stopClaiming(lane: Lane): void {
    lane.claims -= 1
    lane.route.gate.leave()
    lane.route.gate.unprobe()
    this.#readyLanes.gateOpened(lane.route.gate)
    const now = this.#claimant.now()
    for (const bucket of lane.stack) {
      const wasShut = bucket.shut
      bucket.leave()
      if (wasShut) this.#readyLanes.reopened(bucket, now)
    }
    const { claiming } = lane
    const ticket = claiming?.last
    if (claiming === undefined || ticket === undefined || claiming.size <= lane.claims) return
    claiming.remove(ticket)
    lane.tickets.unshift(ticket)
    if (lane.tickets.size > 1) return
    this.#readyLanes.opened(lane, now)
    updateRank(lane)
  }
}

/** With a store all buckets are stored ones. */
function stored(stack: readonly SharedBucket[]): readonly StoredBucket[] {
  return stack as readonly StoredBucket[]
}

function refs(stack: readonly SharedBucket[]): BucketRef[] {
  return stored(stack).map(bucket => bucket.ref)
}

function ignore(promise: void | Promise<void>): void {
  if (promise instanceof Promise) promise.catch(() => undefined)
}
