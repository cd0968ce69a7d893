/**
 * The interface to state that instances share.
 *
 * For each bucket instance a store keeps what a leaky bucket needs. All of it leaks away with time, so a crashed instance
 * leaves nothing behind:
 *
 *     level at `at`    cost units; level(now) = max(0, level - (now - at) * rate): decides admissions
 *     free             when what was granted has drained: decides releases
 *     blocked          when a block ends: a moment, or "when drained"
 *
 * *Admission* (docs/semantics.md) is on the level: every bucket of the stack takes the cost or none does. The reasons and
 * their order are those of admission/decide.ts. *A claim* takes the next slot of all buckets of a stack at once:
 *
 *     slot = max(now - min(since, back), free - slack / rate of each)      slack = max(0, burst - cost), or 0 without a burst
 *
 * It is granted if that is within the horizon, about one round trip ahead. Then `free = max(free, slot) + cost / rate` for each.
 * Otherwise nothing changes, and the answer says when each bucket is free. `since` is how long the request has waited. So a
 * late claim can take an earlier slot, and no rate is lost. It never gets a slot from before it waited. `back` is short
 * enough that the answer arrives before the slot is forfeited (`longestBackDate`).
 *
 * A store decides on its own clock, so skew between instances does not matter. Times that pass this interface are in ms of
 * the instance's clock. The store maps them so that what it does not know of the network makes them late, never early. If
 * the store's clock goes back, all moments of a bucket go back with it: nobody waits for an hour that has passed already. So
 * each change is dated, and so is the end of a block until drained, and a new rate.
 *
 * A store also shares what an upstream says about its limits. Its times are durations. Each begins when it arrives, so the
 * way to the store and back makes a pause end late, never early. Pauses and limits lapse by themselves.
 */
import type { BucketLimits } from './bucket/limits.js'

export type MaybePromise<T> = T | Promise<T>

/** One bucket instance. */
export interface BucketRef {
  readonly limits: BucketLimits
  readonly key: string
  /**
   * Bucket instances of one group live together. A stack of one group is decided on in one step. For a stack of several
   * groups a store may decide in steps and undo them: all or none, but not at one moment.
   */
  readonly group: string
}

export interface AdmitRequest {
  /** From the client's own bucket to everyone's. */
  readonly stack: readonly BucketRef[]
  readonly cost: number
  /** ms. Infinity: any wait will do. */
  readonly maxWait: number
  /** Claim as well, with `since` 0, if it is admitted. */
  readonly claim: boolean
}

export type Admission =
  | {
      readonly admitted: true
      /** Cost units in each bucket, this request included. */
      readonly levels: readonly number[]
      /** The answer to the claim, if one was made. */
      readonly claim?: ClaimAnswer
    }
  | {
      readonly admitted: false
      readonly levels: readonly number[]
      /** As in lane.ts. */
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
  /**
   * ms by which the slot may be ahead of the horizon because of the last bucket of the stack, the one that instances contend
   * for most. Because of another bucket it may not, as the last one would be idle meanwhile. Absent: 0.
   */
  readonly ahead?: number
}

export type ClaimAnswer =
  | { readonly granted: true; readonly slot: Slot }
  /** When each bucket of the stack is free for this cost, in ms of the instance's clock. */
  | { readonly granted: false; readonly freeAt: readonly number[] }

/** A moment at which a request may be sent. */
export interface Slot {
  /** ms of the instance's clock, not before the slot by the store's clock. */
  readonly at: number
  /** The store's name for it, to give it back. */
  readonly token: unknown
}

/** With a cost of 0 and no slot only the rates count: the time until the next slots passes at them from then on. */
export interface GiveBackRequest {
  readonly stack: readonly BucketRef[]
  /** What leaves the levels. 0: only the slot is given back. */
  readonly cost: number
  /**
   * A claimed slot that is not used, and the cost it was claimed for. It is free again if it was the last one. With a burst
   * `free` goes back by what has not drained of the cost since the slot, never before what it would be without the claim.
   */
  readonly slot?: Slot
  readonly slotCost?: number
}

/** What is known of an upstream's limits. Durations in ms from now. */
export interface UpstreamState {
  /** How much longer it pauses. 0: no pause. */
  readonly pausedFor: number
  /** Cost units per ms that it allows. Undefined: it has not said. */
  readonly rate: number | undefined
  /** How much longer that rate holds. 0: there is none. */
  readonly rateFor: number
}

/** Why a store did not answer. The instance decides alone then. */
export class StoreError extends Error {
  readonly code = 'SHAPER_STORE_UNAVAILABLE'
}

/** Each verb is one atomic step, on the store's clock. Rejects with `StoreError`; never hangs. */
export interface Store {
  /** How far ahead a claim is granted now, in ms. It follows the measured round trip. */
  readonly horizon: number
  /** The same for a stack, if buckets live at different distances. */
  horizonOf?(stack: readonly BucketRef[]): number
  admit(request: AdmitRequest): MaybePromise<Admission>
  claim(request: ClaimRequest): MaybePromise<ClaimAnswer>
  giveBack(request: GiveBackRequest): MaybePromise<void>
  /** Forgets a bucket instance. */
  reset(bucket: BucketRef): MaybePromise<void>
  /** The heartbeat of the instance `id`. Answers how many instances there are. */
  beat(id: string): MaybePromise<number>
  /** The instance `id` leaves for good. Absent: its heartbeats are missed after a while. */
  leave?(id: string): MaybePromise<void>
  /** How many instances had left at the last heartbeat. Lower than before: the store has lost its data. */
  readonly left?: number
  /**
   * Adds the news of an upstream to that of other instances. Answers what holds now. Without news it only asks.
   *
   * A pause ends at the known end or the new one, whichever is later. A rate replaces the known one and its life;
   * `undefined` leaves that in place. Neither lasts longer than a day, and impossible values are no news (`boundNews` in
   * src/stores/upstream-state.ts).
   *
   * @param upstream any text
   */
  exchange(upstream: string, news?: UpstreamState): MaybePromise<UpstreamState>
  close(): Promise<void>
}

/**
 * ms. How far ahead a slot may be claimed: 2.5 measured round trips, within these bounds. Half a round trip passes until the
 * store decides, half until the answer arrives, half may be lost by the mapping of its clock. One is reserve for slow calls.
 */
export const HORIZON = { least: 2, most: 400 }

/** ms. A slot that is later than this is forfeited. */
export const SLOT_GRACE = 8

/** ms. The part of the grace that is reserve for a slow answer of the store. */
const SLOT_RESERVE = 4

/**
 * ms. How far a slot may lie back for a claim that was on its way: its answer must still arrive in time. Negative: the slot
 * has to lie ahead.
 *
 * @param roundTrip the usual one, in ms
 */
export function longestBackDate(roundTrip: number): number {
  return SLOT_GRACE - SLOT_RESERVE - roundTrip
}
