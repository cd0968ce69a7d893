/**
 * The interface to state that instances share. For each bucket instance a store keeps what a leaky bucket needs. All of it
 * leaks away with time, so a crashed instance leaves nothing behind:
 *
 *     level at `at`    cost units; level(now) = max(0, level - (now - at) * rate): decides admissions
 *     free             when what was granted has drained: decides releases
 *     blocked          when a block ends: a moment, or "when drained"
 *
 * *Admission* (docs/semantics.md) is on the level: every bucket of the stack takes the cost or none does, with the reasons of
 * admission/decide.ts. But a store knows no turns: it compares the level with `maxWait`. An instance that knows that a request
 * has its turn in time asks for any wait. *A claim* takes the next slot of all buckets of a stack at once:
 *
 *     slot = max(now - min(since, back), free - slack / rate of each)      slack = max(0, burst - cost), or 0 without a burst
 *
 * It is granted within the horizon, about one round trip ahead, or between `notBefore` and `within`. Because of the last bucket
 * of the stack, the one that instances contend for most, it may be further ahead. Because of another it may not, as the last
 * one would be idle meanwhile, nor because of a leased one: those who lease are in turn. Then `free = max(free, slot) + cost /
 * rate` for each. Else nothing changes, and the answer says when each bucket is free. `since` is how long the request has
 * waited: so a late claim loses no rate, and gets no slot from before it waited. The answer arrives before the slot is
 * forfeited (`longestBackDate`).
 *
 * A bucket behind may make the slot later than the others are free. Those count it from before, as the core does
 * (bucket/queued-bucket.ts): from when the request was there and they were free, at most four periods before.
 *
 * *Leaving before the slot.* Where an answer takes long `back` is negative: the slot lies ahead by the way of the answer. In an
 * idle bucket nobody uses that time. So the request may leave as soon as the answer arrives, from
 *
 *     from = min(slot, max(now, free - slack / rate of each))
 *
 * Only the slot counts in `free`, and only by the slot is it late. The bound of the releases stays. Let requests leave at e_i,
 * with from_i <= e_i <= slot_i + SLOT_GRACE. Take the moments s_i = min(e_i, slot_i), and what `free` would be had the slots
 * been there: f_i = max(f_(i-1), s_i) + cost_i / rate. As s_i <= slot_i, f_i <= free_i. So
 *
 *     s_i >= from_i >= free_(i-1) - slack_i / rate >= f_(i-1) - slack_i / rate      and      s_i <= e_i <= s_i + SLOT_GRACE
 *
 * A store could have granted the slots s_i, and each request leaves in the grace of its own. A slot that is given back moves
 * `free` to itself, so not before f_(i-1).
 *
 * *Times* are in ms of the instance's clock. A store decides on its own clock, and maps them so that what it does not know of
 * the network makes them late, never early. If its clock goes back, all moments of a bucket go back with it: so each change is
 * dated.
 *
 * *A lease* (docs/decisions/slot-leases.md) is for a bucket that instances contend for. An instance reports what waits in it,
 * and gets slots of the next frame, in fair turns with the others, and room to admit requests without asking. Each slot moves
 * `free` to its end, whichever instance gets it. Leased room counts in the level as a whole. It
 * is a bucket of its own, which drains at a part of the rate: the level drains more slowly by as much, and not below that room.
 *
 * *A promise* (docs/decisions/appointments.md) is the moment at which a rejected client is to come back. All instances have one
 * sequence of them for each bucket instance. A promise may be a booking: room is kept for its client from then on, until an
 * admission claims it.
 *
 * *What an upstream says* of its limits is shared as durations that begin when they arrive: a pause ends late, never early.
 */

import type { MaybePromise } from '../core/maybe-promise.js'
import { MOST_AHEAD, SLOT_GRACE, SLOT_RESERVE } from '../decider/constants.js'
import { costOfRef, isCost } from '../decider/costs.js'
import type {
  AppointmentAnswer,
  AppointmentRequest,
  BucketRef,
  LeaseAnswer,
  LeaseRequest,
  Redemption,
} from '../decider/record.js'
import type { Board, News, UpstreamState } from './board.js'

/**
 * Whether buckets can count what a request costs in each. Else an admission is `too-costly`, no claim is granted, nothing is
 * promised, and nothing changes. A store checks it itself: another instance may be of another version.
 */
export function areCosts(stack: readonly BucketRef[], cost: number): boolean {
  return stack.every(ref => isCost(costOfRef(ref, cost)))
}

export interface AdmitRequest {
  /** From the client's own bucket to everyone's. */
  readonly stack: readonly BucketRef[]
  readonly cost: number
  /** ms. Infinity: any wait will do. */
  readonly maxWait: number
  /** Claim as well, with `since` 0, if it is admitted. */
  readonly claim: boolean
  readonly ahead?: number
  /** A booking that it claims, and then no slot. If it is due the room of others does not count. Once admitted it is over. */
  readonly booked?: Redemption
}

export type Admission =
  | {
      readonly admitted: true
      /** Cost units in each bucket, this request included. */
      readonly levels: readonly number[]
      readonly claim?: ClaimAnswer
    }
  | {
      readonly admitted: false
      readonly levels: readonly number[]
      readonly reason: 'overflow' | 'blocked' | 'too-costly' | 'max-wait'
      /** The places, in the stack, of the buckets that are full, blocked, too small or too slow. */
      readonly refusing: readonly number[]
      /** Undefined: never. */
      readonly retryAfterMs: number | undefined
    }

export interface ClaimRequest {
  readonly stack: readonly BucketRef[]
  readonly cost: number
  /** ms. How long this request has waited. */
  readonly since: number
  /** ms by which the slot may be ahead of the horizon because of the last bucket of the stack. Absent: 0. */
  readonly ahead?: number
  /** ms of the instance's clock. The slot is not before. Absent: at any time. */
  readonly notBefore?: number
  /** ms by which the slot may be after `notBefore`. Absent: by any time. */
  readonly within?: number
  /** So many of the first buckets are not the last of the request's stack: they may count the slot from before. Absent: 0. */
  readonly own?: number
}

export type ClaimAnswer =
  | { readonly granted: true; readonly slot: Slot }
  /** When each bucket of the stack is free for this cost, in ms of the instance's clock. */
  | { readonly granted: false; readonly freeAt: readonly number[] }

export const IDLE_REPORT: Omit<LeaseRequest, 'bucket' | 'instance'> = {
  ...{ demand: [], largest: 0, lead: 0, late: 0, pace: Infinity, lacks: 0 },
  ...{ held: 0, drained: 0, kept: 0, want: 0, ahead: 0, returned: [] },
}

export interface Slot {
  /** ms of the instance's clock, not before the slot by the store's clock. It is forfeited when it is missed by `SLOT_GRACE`. */
  readonly at: number
  /** ms of the instance's clock, not after `at`. The request may be sent from then on, as nobody uses the time until the slot. */
  readonly from: number
  /** The store's name for it, to give it back. */
  readonly token: unknown
}

/** With a cost of 0 and no slot only the rates count: the time until the next slots passes at them from then on. */
export interface GiveBackRequest {
  readonly stack: readonly BucketRef[]
  /** What leaves the levels. 0: only the slot is given back. */
  readonly cost: number
  /** A claimed slot that is not used, and its cost. It is free again if it was the last; of a burst what has not drained is. */
  readonly slot?: Slot
  readonly slotCost?: number
  /** As of its claim. */
  readonly own?: number
}

/**
 * What requests cost that have left is known better now. Schedule and level move by the difference: up to a full bucket, so
 * that nobody waits for longer, or down to an empty one.
 */
export interface SettleRequest {
  readonly stack: readonly BucketRef[]
  /** Cost units more, or less if it is negative. Not 0. */
  readonly cost: number
}

/** What the registry of instances of one shard says. */
export interface Roll {
  readonly count: number
  /** How many have left in order. Lower than before: the shard has lost its data. */
  readonly left: number
  /** How many of those that are there have a lower id than the one that asks. */
  readonly rank: number
  /** When the shard's clock showed 0, in ms of the instance's clock. Instances agree on it but for the way to the store. */
  readonly epoch: number
}

/** Why a store did not answer. The instance decides alone then. */
export class StoreError extends Error {
  override readonly name = 'StoreError'
  /** The same in all versions. */
  readonly code = 'SHAPER_STORE_UNAVAILABLE'

  constructor(message = 'the store does not answer', options?: ErrorOptions) {
    super(message, options)
  }
}

type DecidingVerb = 'admit' | 'claim' | 'giveBack' | 'settle' | 'appoint' | 'lease'
/** The verbs that change what a store keeps. */
export type StoreVerb = DecidingVerb | 'reset' | 'beat' | 'leave' | 'exchange'

/** Each verb is one atomic step, on the store's clock. Rejects with `StoreError`; never hangs. */
export interface Store {
  /** How far ahead a claim is granted now, in ms. It follows the measured round trip. */
  readonly horizon: number
  /** The same for a stack, if buckets live at different distances. */
  horizonOf?(stack: readonly BucketRef[]): number
  /** About how late its moments are mapped here, in ms: half of what the fastest round trip takes. Absent: they are exact. */
  latenessOf?(bucket: BucketRef): number
  admit(request: AdmitRequest): MaybePromise<Admission>
  claim(request: ClaimRequest): MaybePromise<ClaimAnswer>
  giveBack(request: GiveBackRequest): MaybePromise<void>
  /** Answers by how much each bucket has changed: its level or its schedule, whichever is more. Absent: costs are as reserved. */
  settle?(request: SettleRequest): MaybePromise<readonly number[]>
  /** Whether slots go to the requests of one lane in the order of their arrival, in any instance. Absent: no. */
  readonly keepsOrder?: boolean
  /** Absent: each instance tells its own clients. */
  appoint?(request: AppointmentRequest): MaybePromise<AppointmentAnswer>
  /** Absent: all slots are claimed one by one. */
  lease?(request: LeaseRequest): MaybePromise<LeaseAnswer>
  reset(bucket: BucketRef): MaybePromise<void>
  /** The parts that fail by themselves, each with its registry of instances. Empty: not known yet. Absent: the store is one. */
  readonly shards?: readonly string[] | undefined
  /** The shard that a bucket lives on. Absent: there is one. */
  shardOf?(bucket: BucketRef): string
  beat(id: string, shard?: string): MaybePromise<Roll>
  /** The instance `id` leaves a shard for good. Absent: its heartbeats are missed after a while. */
  leave?(id: string, shard?: string): MaybePromise<void>
  /**
   * Adds the news of an upstream, any text, to that of other instances. Answers what holds now. Without news it only asks.
   *
   * A pause ends at the known end or the new one, whichever is later. A rate replaces the known one and its life; `undefined`
   * leaves that. Neither lasts longer than a day, and impossible values are no news (`boundNews` in src/stores/news.ts).
   */
  exchange(upstream: string, news?: UpstreamState): MaybePromise<UpstreamState>
  /** Calls `listener` with the news of all instances as it comes. Returns how to stop. Absent: nothing is told. */
  listen?(listener: (news: News) => void): () => void
  /** What instances leave for each other. Absent: nothing can be left, or not yet. */
  readonly board?: Board | undefined
  close(): Promise<void>
}

/**
 * ms. How far ahead a slot may be claimed: 2.5 measured round trips, within these bounds. Half a round trip passes until the
 * store decides, half until the answer arrives, half may be lost by the mapping of its clock. One is reserve for slow calls.
 */
export const HORIZON = { least: 2, most: MOST_AHEAD }

/** ms. How far back a slot may lie so that the answer to its claim is in time. Negative: it has to lie ahead. @param roundTrip ms */
export function longestBackDate(roundTrip: number): number {
  return SLOT_GRACE - SLOT_RESERVE - roundTrip
}
