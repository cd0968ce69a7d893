/**
 * Finds the fullest instances of one bucket. A walk over a hundred thousand instances would delay releases, so each call
 * looks at three groups only: the next few hundred instances, the fullest ones of the last call, and those with recent
 * events.
 */
import type { BucketTable } from '../../core/bucket-table.js'
import type { SharedBucket } from '../../core/queue/lane.js'

/** How many instances to list, to keep for the next call, and to look at in each call. */
const LISTED = 20
const KEPT = 60
const LOOKED_AT = 500

export type Instance = readonly [key: string, bucket: SharedBucket]

export class Fullest {
  readonly #name: string
  readonly #bucketTable: BucketTable
  #cursor: Iterator<[string, SharedBucket]> | undefined
  #kept: readonly Instance[] = []
  #hints: Instance[] = []

  constructor(name: string, bucketTable: BucketTable) {
    this.#name = name
    this.#bucketTable = bucketTable
  }

  /** Marks an instance with a recent event. */
  hint(key: string, bucket: SharedBucket): void {
    if (this.#hints.length < KEPT) this.#hints.push([key, bucket])
  }

  /** Looks at further instances, and lists the fullest ones, the fullest first. */
  list(now: number): readonly Instance[] {
    const seen = new Map<string, SharedBucket>([...this.#kept, ...this.#hints])
    this.#hints = []
    for (let looked = 0; looked < LOOKED_AT; looked += 1) {
      this.#cursor ??= this.#bucketTable.entries(this.#name)[Symbol.iterator]()
      const step = this.#cursor.next()
      if (step.done) {
        this.#cursor = undefined
        break
      }
      const [key, bucket] = step.value
      if (fullness(bucket, now) > 0) seen.set(key, bucket)
    }
    this.#kept = [...seen]
      .filter(([key, bucket]) => this.#bucketTable.peek(this.#name, key) === bucket)
      .map(instance => ({ instance, fullness: fullness(instance[1], now) }))
      .filter(({ fullness }) => fullness > 0)
      .sort((a, b) => b.fullness - a.fullness)
      .slice(0, KEPT)
      .map(({ instance }) => instance)
    return this.#kept.slice(0, LISTED)
  }
}

/** Ranks blocked instances and those with waiting requests above merely full ones. */
function fullness(bucket: SharedBucket, now: number): number {
  const level = bucket.level(now) / bucket.limits.capacity
  const isBlocked = bucket.blockedFor(now) > 0
  return level + (bucket.waiting > 0 ? 1 : 0) + (isBlocked ? 1 : 0)
}
