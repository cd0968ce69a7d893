/**
 * The seam to state that instances share.
 *
 * A store keeps, for each bucket instance, what a leaky bucket needs and nothing that a crashed instance could leave
 * behind: all of it leaks away with time.
 *
 *     level at `at`    cost units; level(now) = max(0, level - (now - at) * rate): the meter that admission goes by
 *     free             when the next slot is: the schedule that releases go by
 *     blocked          until when everything is rejected: a moment, or "until drained"
 *
 * *Admission* is contract 2.1 on the level: every bucket of the stack takes the cost or none does; the reasons and their
 * order are those of admission.ts. *A claim* takes the next slot of all buckets of a stack at once:
 *
 *     slot = max(now - min(since, back), free of each)
 *
 * and is granted if that is within the horizon, about one round trip ahead: then each `free = slot + cost / rate`. Else
 * nothing changes and the answer tells how long each bucket is busy. `since` is how long the request has been waiting:
 * a claim that comes late by a round trip does not cost rate, one for an idle bucket is not back-dated. `back` is such that
 * the answer is here before the slot is forfeited (`longestBackDate`).
 *
 * A store decides on its own clock, so skew between instances cannot enter. Times that pass the seam are in ms of the
 * instance's own clock: the store maps them so that what is unknown of the network makes them late, never early. A store
 * whose clock steps back shifts all of a bucket's moments with it: nobody waits for an hour that has been already.
 *
 * Besides, it passes on what an upstream has said of its own limits. Of that only durations pass the seam; each begins when
 * it gets there, so the way to the store and back makes a pause end late, never early. It lapses by itself as well.
 */
import type { BucketLimits } from './bucket/limits.js'

export type MaybePromise<T> = T | Promise<T>

/** One bucket instance. */
export interface BucketRef {
  readonly limits: BucketLimits
  readonly key: string
  /**
   * Instances of one group live together, and stacks of one group are decided on in one step. Where the groups of a stack
   * differ a store may decide in steps, and undo them: all or none, but not at one moment.
   */
  readonly group: string
}

export interface AdmitRequest {
  /** From the client's own bucket to everyone's. */
  readonly stack: readonly BucketRef[]
  readonly cost: number
  /** ms; Infinity: any wait will do. */
  readonly maxWait: number
  /** Also claim, with `since` 0, if it is admitted. */
  readonly claim: boolean
}

export type Admission =
  | {
      readonly admitted: true
      /** Cost units in each bucket, this request included. */
      readonly levels: readonly number[]
      /** The claim's answer where one was asked for. */
      readonly claim?: Claim
    }
  | {
      readonly admitted: false
      readonly levels: readonly number[]
      /** As in lane.ts. */
      readonly reason: 'overflow' | 'blocked' | 'too-costly' | 'max-wait'
      /** Places in the stack of the buckets that refused. */
      readonly refusing: readonly number[]
      /** Undefined: never. */
      readonly retryAfterMs: number | undefined
    }

export interface ClaimRequest {
  readonly stack: readonly BucketRef[]
  readonly cost: number
  /** For how many ms this request has waited. */
  readonly since: number
  /**
   * By how many ms more than the horizon the slot may be ahead for the sake of the last bucket of the stack, the one that
   * instances contend for most. For that of another it would leave the last one idle. Absent: 0.
   */
  readonly ahead?: number
}

export type Claim =
  | { readonly granted: true; readonly slot: Slot }
  /** When each bucket of the stack is free, in ms of the instance's clock. */
  | { readonly granted: false; readonly freeAt: readonly number[] }

/** A moment at which a request may be sent. */
export interface Slot {
  /** ms of the instance's clock; not before the slot by the store's. */
  readonly at: number
  /** The store's own name for it, to give it back. */
  readonly token: unknown
}

/** With a cost of 0 and no slot only the rates count: what is left until the next slots passes at them from then on. */
export interface GiveBackRequest {
  readonly stack: readonly BucketRef[]
  /** What leaves the levels; 0 where only the slot is given back. */
  readonly cost: number
  /** The claimed slot that nobody takes, and the cost it was claimed for: free again if it was the last one. */
  readonly slot?: Slot
  readonly slotCost?: number
}

/** What is known of an upstream's limits. Durations in ms from now. */
export interface UpstreamState {
  /** How much longer nothing is to be sent to it; 0: no pause. */
  readonly pausedFor: number
  /** Cost units per ms that it allows; undefined: it has not said. */
  readonly rate: number | undefined
  /** For how much longer that rate holds; 0 where there is none. */
  readonly rateFor: number
}

/** Why a store did not answer. Whoever asked decides alone. */
export class StoreError extends Error {
  readonly code = 'SHAPER_STORE_UNAVAILABLE'
}

/** Each verb is one atomic step, on the store's clock. Rejects with `StoreError`; never hangs. */
export interface Store {
  /** How far ahead a claim is granted now, in ms: it follows the measured round trip. */
  readonly horizon: number
  /** The same for a stack, where that depends on which it is: not all live equally far away. */
  horizonOf?(stack: readonly BucketRef[]): number
  admit(request: AdmitRequest): MaybePromise<Admission>
  claim(request: ClaimRequest): MaybePromise<Claim>
  giveBack(request: GiveBackRequest): MaybePromise<void>
  /** Forgets a bucket instance. */
  reset(bucket: BucketRef): MaybePromise<void>
  /** Tells that the instance `id` is there; answers how many are. */
  beat(id: string): MaybePromise<number>
  /** Takes the instance `id` out of those that are there: it does not come back. Absent: its beats are missed at length. */
  leave?(id: string): MaybePromise<void>
  /** How many instances have left so far, as the last beat has told. Lower than before: the store has lost its data. */
  readonly left?: number
  /**
   * Adds what was heard of an upstream to what other instances have; answers what holds now. Without news: asks only.
   *
   * A pause ends at the later of the end that is known and the new one. A rate replaces the one that is known, with its
   * life; `undefined` leaves that in place. Neither lasts for more than a day, and what cannot be is no news:
   * `boundNews` in src/stores/upstream-state.ts.
   *
   * @param upstream any text
   */
  exchange(upstream: string, heard?: UpstreamState): MaybePromise<UpstreamState>
  close(): Promise<void>
}

/**
 * How far ahead a slot may be claimed, in ms, within these bounds: 2.5 times the round trip, which a store measures. Half of
 * one passes until the store decides, half until the answer is here, half may be lost by the mapping of its clock; the
 * rest is for those that are slower than usual.
 */
export const HORIZON = { least: 2, most: 400 }

/** A slot that has passed by more than so many ms is forfeited. */
export const SLOT_GRACE = 8

/** What of the grace is left, in ms, for the store's answer being slower than usual. */
const SLOT_RESERVE = 4

/**
 * How far a slot may lie back, in ms, for a claim that was on its way: so far that its answer still comes in time to be
 * used. Negative: it has to lie ahead.
 *
 * @param roundTrip the usual one, in ms
 */
export function longestBackDate(roundTrip: number): number {
  return SLOT_GRACE - SLOT_RESERVE - roundTrip
}
