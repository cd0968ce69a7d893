/** What a bucket allows. */
export interface BucketLimits {
  readonly name: string
  /** The tier of its keys, if any. */
  readonly tier?: string
  /** Cost units per ms. */
  readonly rate: number
  /** Cost units. */
  readonly capacity: number
  /** So much may leave without spacing after idling, in cost units. Absent: one request. */
  readonly burst?: number
  /**
   * What an overflow does where nobody of a class behind the newcomer's can make room: it only rejects (default), fills the bucket to its brim, or makes room for a lane with less
   * than its share by rejecting the newest of the heaviest lane.
   */
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
  /** The common limits, where these are one instance's share of them. */
  readonly whole?: BucketLimits
}

/** How much a bucket may still hold of what has left when a cost leaves, in cost units. Without a burst: nothing. */
export function slackOf({ burst }: BucketLimits, cost: number): number {
  return burst === undefined ? 0 : Math.max(0, burst - cost)
}
