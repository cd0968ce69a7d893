/** What instances ask of the decider, and what it answers. sharing/store.ts says what each verb means. */
import type { BucketLimits } from '../core/bucket/limits.js'

export interface BucketRef {
  readonly limits: BucketLimits
  readonly key: string
  /** A store decides on the buckets of one group in one step, and may decide on several groups in steps and undo them. */
  readonly group: string
  /** Cost units of a request in this bucket, where those of a stack differ. It stands for each cost of the request that is not 0. */
  readonly cost?: number
}

/** A booking of the bucket at a place of the stack. Whole numbers. */
export interface Redemption {
  readonly place: number
  readonly client: number
  readonly booking: number
}

/** Rejected clients are to be told when to come back: one that books, or any others, whose instance divides the moments. */
export interface AppointmentRequest {
  readonly bucket: BucketRef
  /** Cost units in this bucket, of the first of them. */
  readonly cost: number
  /** Cost units of those behind it. One that books has nobody behind it. */
  readonly more: number
  /** Stands for the first of them: a whole number, the same in all instances. 0: who they are is not known. */
  readonly client: number
  /** The number of a booking, if one is made: whole, and unlike all others. 0: only moments are asked for. */
  readonly booking: number
  /** ms. The longest predicted wait to which the first is admitted. */
  readonly maxWait: number
  /** ms. The first does not fit earlier, because of something that the store does not know. */
  readonly fit: number
}

export interface AppointmentAnswer {
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
  readonly demand: readonly ClassDemand[]
  readonly largest: number
  /** ms from the store's decision until this instance can use a slot. */
  readonly lead: number
  /** About how late moments of the store are mapped here, in ms. */
  readonly late: number
  /** Cost units per ms. It can use slots no faster, as other buckets hold back what waits. Infinity: none does. */
  readonly pace: number
  /** Cost units that wait in it, less its slots. Negative: it has more slots than wait. */
  readonly lacks: number
  /** What its room holds, in cost units: what it has admitted, and `filled`, less what has drained. Negative: more was given back. */
  readonly held: number
  /** How much can have drained of it by then, in cost units. More does until the report is there. */
  readonly drained: number
  /** Cost units that it goes on admitting until the answer. */
  readonly kept: number
  /** Cost units that it would like to admit before its next report. Negative: it asks for each admission. */
  readonly want: number
  /** ms that the schedule which it knows reaches ahead. A store that has lost its data goes on after it. */
  readonly ahead: number
  readonly returned: readonly LeasedSlot[]
}

export interface LeaseAnswer {
  /** In the order of their times. They are added to those that it has. */
  readonly slots: readonly LeasedSlot[]
  readonly nextAt: number
  /** When all that is leased so far has drained, in ms of the instance's clock. */
  readonly until: number
  /** Cost units that it may admit, besides those that it has kept. Its room is a bucket of its own, of `room + filled`. */
  readonly room: number
  /** Cost units that it holds at `roomFrom`. */
  readonly filled: number
  /** Cost units per ms at which it drains from `roomFrom` to `roomUntil`, in ms of the instance's clock. */
  readonly roomRate: number
  readonly roomFrom: number
  readonly roomUntil: number
  /** Cost units that are left for all. */
  readonly spare: number
  /** Cost units that all instances have admitted, less what has drained. */
  readonly level: number
  readonly instances: number
  /** How late all of them use their slots, in ms: as late as the latest of them, or little less than they did before. */
  readonly lateBy: number
  /** What waits in the others, one entry for each class, or for each class and lane. */
  readonly others: readonly OtherDemand[]
}
