/** What a bucket allows. */
export interface BucketLimits {
  readonly name: string
  /** The tier of its keys, if any. */
  readonly tier?: string
  /** Cost units per ms. */
  readonly rate: number
  /** Cost units. */
  readonly capacity: number
  /**
   * What an overflow does: it only rejects (default), fills the bucket to its brim, or makes room for a lane with less
   * than its share by rejecting the newest of the heaviest lane.
   */
  readonly overflow?: 'reject' | 'fill' | 'fair'
  /** How long an overflow blocks the key: ms, or until the bucket has drained. */
  readonly blockFor?: number | 'drain'
  /** How many requests may be in flight: between their release and the end of their answer. Absent: any number. */
  readonly maxInFlight?: number
  /** ms. What is metered delays others by at most this. Absent: until it has drained. */
  readonly longestDelay?: number
  /** ms. A release that is later than this counts from when it happens, any other from its slot. */
  readonly grace?: number
  /** The common limits, where these are one instance's share of them. */
  readonly whole?: BucketLimits
}
