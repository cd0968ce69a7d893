export interface BucketLimits {
  readonly name: string
  readonly tier?: string
  /** Cost units per ms. */
  readonly rate: number
  /** Cost units. */
  readonly capacity: number
  /** So much may leave without spacing after idling, in cost units. Absent: one request. */
  readonly burst?: number
  /** If no later class makes room: rejects (default), fills the bucket, or rejects the newest of the heaviest lane. */
  readonly overflow?: 'reject' | 'fill' | 'fair'
  /** How long an overflow blocks the key: ms, or until the bucket has drained. */
  readonly blockFor?: number | 'drain'
  /** The part of the rate that goes to the classes behind the one that leaves, together: 0 to less than 1. Absent: 0.05. */
  readonly minShare?: number
  /** How many requests may be in flight: between their release and the end of their answer. Absent: any number. */
  readonly maxInFlight?: number
  /** ms. What is metered delays others by at most this. Absent: until it has drained. */
  readonly longestDelay?: number
  /** ms. A release that is later than this counts from when it happens, any other from its slot. */
  readonly grace?: number
  /** ms. So much lateness counts, and the rest is lost. Absent: as `graceAt` says. */
  readonly lateness?: number
  /** What they are known to become. Absent: nobody knows of a change. */
  readonly next?: NextLimits
  /** It is a quota: what has passed counts until the period is over, up to the capacity. The rate only has to be `ANY_RATE`. */
  readonly quota?: QuotaPeriod
  /** It paces what is left of the quota before it in its stack (pace.ts). */
  readonly paces?: true
  /** The common limits, where these are one instance's share of them. */
  readonly whole?: BucketLimits
}

/** What passes in a period counts in it. At its end the count starts anew, whatever the limits are then known to be. */
export interface QuotaPeriod {
  /** When it began, and when it is over, in ms of the core's clock. */
  readonly from: number
  readonly until: number
  /** When it is over, in ms since 1970: the same in all instances, so that a store tells periods apart by it. */
  readonly end: number
}

/** Whether a moment is in an earlier period than now. Both in ms of the core's clock. */
export function isFormer({ from, until }: QuotaPeriod, moment: number, now: number): boolean {
  return moment < (now < until ? from : until)
}

/** Limits from a moment of the core's clock on. */
export interface NextLimits {
  /** ms */
  readonly at: number
  readonly rate: number
  readonly capacity: number
}

/** How long a cost takes to leave a bucket that begins at `from`, in ms. Its rate may change meanwhile. */
export function timeToPass({ rate, next }: BucketLimits, cost: number, from: number): number {
  const time = cost / rate
  if (next === undefined || time <= next.at - from) return time
  const before = Math.max(0, next.at - from)
  return before + (cost - before * rate) / next.rate
}

/** ms until nothing is left in a bucket that delays requests. Below 0: since then. */
export function timeUntilDrained({ limits: { rate, next }, drainedAt }: Drained, now: number): number {
  if (next === undefined || drainedAt <= next.at || drainedAt === Infinity) return drainedAt - now
  return next.at + ((drainedAt - next.at) * rate) / next.rate - now
}

interface Drained {
  readonly limits: BucketLimits
  /** As its present rate has it, in ms. */
  readonly drainedAt: number
}

/** How much leaves a bucket between two moments, in cost units; as much below 0 if `until` is the earlier one. */
export function passedIn({ rate, next }: BucketLimits, from: number, until: number): number {
  if (next === undefined || until <= next.at) return (until - from) * rate
  const since = Math.max(from, next.at)
  return (since - from) * rate + (until - since) * next.rate
}
