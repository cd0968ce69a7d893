import { type BucketLimits, QueuedBucket } from './bucket/queued-bucket.js'
import type { Lane, Source } from './queue/lane.js'

/** Where keyed buckets sleep. */
export interface KeyedBuckets {
  /** Puts one to sleep if nobody counts on it, nobody waits and no block lasts. */
  sleep(bucket: KeyedBucket): void
}

/** A bucket instance of a table (bucket-table.ts) that can be put to sleep: two numbers are all that the table keeps then. */
export class KeyedBucket extends QueuedBucket<Source, Lane> {
  declare readonly home: KeyedBuckets
  /** Its row there. */
  declare row: number
  /** How many count on this very object. */
  declare holders: number

  constructor(limits: BucketLimits, home: KeyedBuckets, row: number) {
    super(limits)
    this.home = home
    this.row = row
    this.holders = 0
  }

  /** Takes over its two numbers from there. */
  load(numbers: Float64Array, at: number): void {
    this.held = numbers[at]!
    this.heldAt = numbers[at + 1]!
  }

  /** Writes its two numbers there. From then on this object is a copy, of use only to read it. */
  save(numbers: Float64Array, at: number): void {
    numbers[at] = this.held
    numbers[at + 1] = this.heldAt
  }
}
