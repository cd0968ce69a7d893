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
 * their order are those of admission/decide.ts, but that a store knows no turns: it compares the level with `maxWait`. An instance
 * that knows that a request has its turn in time asks for any wait (shared-shaper.ts). *A claim* takes the next slot of all buckets of a stack at once:
 *
 *     slot = max(now - min(since, back), free - slack / rate of each)      slack = max(0, burst - cost), or 0 without a burst
 *
 * It is granted if that is within the horizon, about one round trip ahead, or between `notBefore` and `within` and no further ahead than the
 * longest horizon. Because of the last bucket of the stack, the one that instances contend for most, it may be ahead by more. Because of another it may not, as the last one would be idle meanwhile. Where
 * a bucket is leased, it may not be ahead because of that: those who lease are in turn. Then `free = max(free, slot) + cost / rate`
 * for each.
 * Otherwise nothing changes, and the answer says when each bucket is free. `since` is how long the request has waited. So a
 * late claim can take an earlier slot, and no rate is lost. It never gets a slot from before it waited. `back` is short
 * enough that the answer arrives before the slot is forfeited (`longestBackDate`).
 *
 * *A gap.* Where another bucket of the stack makes the slot later than `free`, the time until then would be lost. It is a gap:
 *
 *     from max(now, free) to the moment from which the slot may be used (below)
 *
 * A store keeps the longest one of each bucket instance that has no burst. A claim gets a slot in it if its cost fits there. While the bucket is
 * leased no claim does, and claims with `notBefore` neither use gaps nor leave any: they are granted in the order of their moments. A cost that
 * is settled closes the gap, and so does one that is longer.
 *
 * *Leaving before the slot.* Where an answer takes long `back` is negative: the slot lies ahead by the way of the answer. In an idle
 * bucket that is time that nobody uses. So the request may leave as soon as the answer arrives, from
 *
 *     from = min(slot, max(now, free - slack / rate of each))
 *
 * Only the slot counts in `free`, and only by the slot is it late. The bound of the releases stays. Let requests leave at
 * e_i, with from_i <= e_i <= slot_i + SLOT_GRACE. Take the moments s_i = min(e_i, slot_i), and what `free` would be had the
 * slots been there: f_i = max(f_(i-1), s_i) + cost_i / rate. As s_i <= slot_i, f_i <= free_i. So
 *
 *     s_i >= from_i >= free_(i-1) - slack_i / rate >= f_(i-1) - slack_i / rate      and      s_i <= e_i <= s_i + SLOT_GRACE
 *
 * A store could have granted the slots s_i, and each request leaves in the grace of its own. A stack leaves after the `from` of each
 * of its buckets. Without a burst a slot that is given back moves `free` to itself, so not before f_(i-1). A slot in a gap has no time before
 * it, and the gap ends at the `from` of the slot behind it. So in the order of the s_i, too, each is as far from the next as its cost takes.
 *
 * A store decides on its own clock, so skew between instances does not matter. Times that pass this interface are in ms of
 * the instance's clock. The store maps them so that what it does not know of the network makes them late, never early. If
 * the store's clock goes back, all moments of a bucket go back with it: nobody waits for an hour that has passed already. So
 * each change is dated, and so is the end of a block until drained, and a new rate.
 *
 * *A lease* (docs/decisions/slot-leases.md) is for a bucket that instances contend for. An instance reports what waits in it and
 * gets slots of the next frame, in fair turns with the others, and room to admit requests without asking. There is one schedule:
 * each slot moves `free` to its end, whichever instance gets it. Leased room counts as part of the level. It may also grow with
 * time. Then the level drains more slowly, by as much as the room of all instances grows. Together that is at most `rate`.
 *
 * *A promise* (docs/decisions/appointments.md) is the moment at which a rejected client is to come back. All instances have one
 * sequence of them for each bucket instance. An instance asks for a part of it for many clients in one call. A promise may be a booking: then room is kept for its client from that moment on, and
 * an admission claims it.
 *
 * A store also shares what an upstream says about its limits. Its times are durations. Each begins when it arrives, so the
 * way to the store and back makes a pause end late, never early. Pauses and limits lapse by themselves.
 */
import type { Board, News } from './board.js'
import type { BucketLimits } from './bucket/limits.js'
import { isCost } from './bucket/meter.js'
import type { MaybePromise } from './maybe-promise.js'
import { LAST_PRIORITY } from './priority.js'
import type { UpstreamState } from './upstream-state.js'

/** One bucket instance. */
export interface BucketRef {
  readonly limits: BucketLimits
  readonly key: string
  /**
   * Bucket instances of one group live together. A stack of one group is decided on in one step. For a stack of several
   * groups a store may decide in steps and undo them: all or none, but not at one moment.
   */
  readonly group: string
  /** Cost units of a request in this bucket, where those of a stack differ. It stands for each cost of the request that is not 0. */
  readonly cost?: number
}

/** What a cost of a request is in this bucket. */
export function costOfRef({ cost: own }: BucketRef, cost: number): number {
  return own === undefined || cost === 0 ? cost : own
}

/**
 * Whether buckets can count what a request costs in each. With a cost that they cannot count an admission is `too-costly`, no claim is
 * granted, nothing is promised, and nothing changes. A store refuses it itself: another instance may be of another version.
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
  /** As in `ClaimRequest`. */
  readonly ahead?: number
  /**
   * A booking that it claims, and then no slot. Where it is due, what is kept for others does not matter. Once it is admitted it is
   * over, also where a stack of several groups is not.
   */
  readonly booked?: BookingClaim
}

/** A booking of the bucket at a place of the stack. Whole numbers. */
export interface BookingClaim {
  readonly place: number
  /** As it was asked for. */
  readonly client: number
  readonly booking: number
}

/**
 * Clients that a bucket has rejected are to be told when to come back: one that books, or any number of others. The others get a part
 * of the sequence of moments, and their instance divides it.
 */
export interface PromiseRequest {
  readonly bucket: BucketRef
  /** Cost units in this bucket, of the first of them. */
  readonly cost: number
  /** Cost units of those behind it. One that books has nobody behind it. */
  readonly more: number
  /** Stands for the client that books: a whole number. */
  readonly client: number
  /** The number of a booking, if one is made: whole, and unlike all others. 0: only moments are asked for. */
  readonly booking: number
  /** ms. The longest predicted wait to which the first is admitted. */
  readonly maxWait: number
  /** ms. The first does not fit earlier, because of something that the store does not know. */
  readonly fit: number
}

export interface PromiseAnswer {
  /** ms until the moment of the first. Without a booking it may come before it fits. */
  readonly after: number
  /** Cost units behind it that are promised as well. */
  readonly more: number
  /** The number of its booking. It may have been made before. 0: it has none. */
  readonly booking: number
  /** ms for which room is kept from then on. */
  readonly window: number
  /** False: as much is promised as may be, and it is told the last moment. */
  readonly made: boolean
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
   * ms by which the slot may be ahead of the horizon because of the last bucket of the stack, the one that instances contend for
   * most. Because of another bucket it may not, as the last one would be idle meanwhile. Absent: 0.
   */
  readonly ahead?: number
  /** ms of the instance's clock. The slot is not before. Absent: at any time. */
  readonly notBefore?: number
  /** ms by which the slot may be after `notBefore`. Absent: by any time. */
  readonly within?: number
}

export type ClaimAnswer =
  | { readonly granted: true; readonly slot: Slot }
  /** When each bucket of the stack is free for this cost, in ms of the instance's clock. */
  | { readonly granted: false; readonly freeAt: readonly number[] }

/**
 * The class of what will come before the next report, behind all priorities. All slots that nobody has a demand for are given to it, by
 * what the instances expect. So what comes can leave as soon as it comes. A weight of 0: this instance could do without. If all could,
 * nothing is given to it.
 */
export const FORECAST = LAST_PRIORITY + 1

/** What waits in an instance for one bucket instance: the requests of one priority. */
export interface ClassDemand {
  readonly priority: number
  /** Of the lanes in which they wait, together. */
  readonly weight: number
  /** Cost units that no leased slot covers yet. */
  readonly cost: number
  /** When they came, where they all wait in one lane. Only for a store that keeps their order. */
  readonly arrivals?: LaneArrivals
}

/** When the requests of a lane came. In between, moments are interpolated. */
export interface LaneArrivals {
  /** The route of the lane and its keys: the same in all instances. */
  readonly lane: string
  /** Cost units, from 0 on, of the requests that are before a request and have no leased slot yet. */
  readonly costs: readonly number[]
  /** When that request came, in ms of the instance's clock. */
  readonly times: readonly number[]
}

/** What waits in other instances for one bucket instance and has no leased slot yet, of one class. */
export interface OtherDemand {
  readonly priority: number
  /** Of the lanes in which they wait, together. */
  readonly weight: number
  /** Cost units. */
  readonly cost: number
  /** As in `LaneArrivals`, of what goes before a newcomer of that lane. Only of a store that keeps their order. */
  readonly lane?: string
}

/** Time of a bucket's schedule: it begins at `at` and lasts for as long as its cost takes to drain. */
export interface LeasedSlot {
  /** ms of the instance's clock, not before the slot by the store's clock. */
  readonly at: number
  /** Cost units. */
  readonly cost: number
  /** The store's name for it, to return it. */
  readonly token: unknown
}

/** An instance reports what it has and needs of a bucket instance, and asks for its part of the next frame. */
export interface LeaseRequest {
  readonly bucket: BucketRef
  /** Unique among all instances. */
  readonly instance: number
  /** Empty: nothing waits and nothing is expected. */
  readonly demand: readonly ClassDemand[]
  /** The largest cost that waits, in cost units. */
  readonly largest: number
  /** ms from the store's decision until this instance can use a slot. */
  readonly lead: number
  /** About how late moments of the store are mapped here, in ms. */
  readonly late: number
  /** Cost units per ms. It can use slots no faster, as buckets of their stacks hold back what waits in it. So they are dealt out no faster. Infinity: nothing does. */
  readonly pace: number
  /** Cost units that wait in it, less its slots. Negative: it has more slots than wait. */
  readonly lacks: number
  /** Cost units admitted since the last report, and those that it goes on admitting until the answer. May be negative. */
  readonly used: number
  /** Cost units that it would like to admit before its next report. Negative: it asks for each admission. */
  readonly want: number
  /** ms that the schedule which it knows reaches ahead. A store that has lost its data goes on after it. */
  readonly ahead: number
  /** Slots that it will not use. */
  readonly returned: readonly LeasedSlot[]
}

/** The report of an instance that has nothing and needs nothing. */
export const IDLE_REPORT: Omit<LeaseRequest, 'bucket' | 'instance'> = {
  ...{ demand: [], largest: 0, lead: 0, late: 0, pace: Infinity, lacks: 0, used: 0, want: 0, ahead: 0, returned: [] },
}

export interface LeaseAnswer {
  /** In the order of their times. They are added to those that it has. */
  readonly slots: readonly LeasedSlot[]
  /** When to ask again, in ms of the instance's clock. */
  readonly nextAt: number
  /** When all that is leased so far has drained, in ms of the instance's clock. */
  readonly until: number
  /** Cost units that it may admit. It replaces what was leased before. */
  readonly room: number
  /** Cost units per ms by which that grows from `roomFrom` to `roomUntil`, in ms of the instance's clock. */
  readonly roomRate: number
  readonly roomFrom: number
  readonly roomUntil: number
  /** Cost units that are left for all. */
  readonly spare: number
  /** Cost units that all instances have admitted, less what has drained. */
  readonly level: number
  /** How many instances lease of this bucket instance. */
  readonly instances: number
  /** How late all of them use their slots, in ms: as late as the latest of them, or little less than they did before. */
  readonly lateBy: number
  /** What waits in the others, one entry for each class, or for each class and lane. */
  readonly others: readonly OtherDemand[]
}

/** A moment at which a request may be sent. */
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
  /**
   * A claimed slot that is not used, and the cost it was claimed for. It is free again if it was the last one. With a burst
   * `free` goes back by what has not drained of the cost since the slot: but not where slots lie ahead.
   */
  readonly slot?: Slot
  readonly slotCost?: number
}

/**
 * What requests cost that have left is known better now. The schedule moves by the difference, and the level with it: up to a full
 * bucket, so that nobody waits for longer, or down to an empty one. A store without leases or claims ahead of it would have granted
 * the next slots so.
 */
export interface SettleRequest {
  /** In each bucket, or with `cost` of its reference. */
  readonly stack: readonly BucketRef[]
  /** Cost units more, or less if it is negative. Not 0. */
  readonly cost: number
}

/** What the registry of instances of one shard says. */
export interface Roll {
  /** How many instances there are. */
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
  /**
   * Answers by how much each bucket has changed: by what its level or its schedule has, whichever is more. Absent: costs are as they were
   * reserved.
   */
  settle?(request: SettleRequest): MaybePromise<readonly number[]>
  /** Whether it gives slots to the requests of one lane in the order of their arrival, in whichever instances they wait. Absent: no. */
  readonly keepsOrder?: boolean
  /** Absent: each instance tells its own clients. */
  promise?(request: PromiseRequest): MaybePromise<PromiseAnswer>
  /** Absent: all slots are claimed one by one. */
  lease?(request: LeaseRequest): MaybePromise<LeaseAnswer>
  /** Forgets a bucket instance. */
  reset(bucket: BucketRef): MaybePromise<void>
  /**
   * The names of the parts that fail by themselves. Each has a registry of instances. Another array once buckets have moved.
   * Empty: they are not known yet. Absent: the store is one.
   */
  readonly shards?: readonly string[] | undefined
  /** The shard that a bucket lives on. Absent: there is one. */
  shardOf?(bucket: BucketRef): string
  /** The heartbeat of the instance `id` at a shard. */
  beat(id: string, shard?: string): MaybePromise<Roll>
  /** The instance `id` leaves a shard for good. Absent: its heartbeats are missed after a while. */
  leave?(id: string, shard?: string): MaybePromise<void>
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
export const HORIZON = { least: 2, most: 500 }

/** ms. A slot that is later than this is forfeited. */
export const SLOT_GRACE = 8

/** ms. Where several lease a bucket, and half of a slot is at least this, a slot is used no later than that half: gaps stay even. */
export const EVEN_GRACE = 2

/** ms. The part of the grace that is reserve for a slow answer of the store. */
export const SLOT_RESERVE = 4

/**
 * ms. How far a slot may lie back for a claim that was on its way: its answer must still arrive in time. Negative: the slot
 * has to lie ahead.
 *
 * @param roundTrip the usual one, in ms
 */
export function longestBackDate(roundTrip: number): number {
  return SLOT_GRACE - SLOT_RESERVE - roundTrip
}

/** ms. Instances that contend for a bucket ask for slots this often. A lease covers as much and the way to the store. */
export const FRAME = 120

/** ms. Of an instance that is late with its report nothing more is leased, and after this its part goes to the others. */
export const LEASE_LIFE = 3 * FRAME

/** ms. What is kept for an instance goes to the others when its report is later than its lead by this. */
export const REPORT_LATE = 20

/** A frame has at most this many slots. At high rates one is for several requests. */
export const SLOTS_PER_FRAME = 128

/** ms. By so much the lateness of all who lease falls in a frame, once the farthest of them has left. */
export const LATENESS_STEP = 1

/** ms. A report may be put off by so much, so that those of different instances come to be evenly apart. */
export const REPORT_SHIFT = 6
