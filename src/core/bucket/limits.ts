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
   * What an overflow does besides: nothing (default), fill the bucket to its brim, or make room for a lane that has
   * less than its share at the expense of the heaviest one.
   */
  readonly overflow?: 'reject' | 'fill' | 'fair'
  /** An overflow blocks the key for so many ms, or until the bucket has drained. */
  readonly blockFor?: number | 'drain'
  /** How late, in ms, a release may be and still count for its slot; a later one counts for when it happens. */
  readonly grace?: number
  /** Where these are an instance's share of limits that it has in common with others: those. */
  readonly whole?: BucketLimits
}
