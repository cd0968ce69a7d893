/**
 * The fullest instances of one bucket, found without ever looking at all of them at once: a walk over a hundred thousand
 * would hold up releases. Each time some are looked at, those that stood out before, and those that were just queued for.
 */
import type { BucketTable } from '../../core/bucket-table.js'
import type { SharedBucket } from '../../core/queue/lane.js'

/** How many are told, kept in mind, and looked at each time. */
const LISTED = 20
const KEPT = 60
const LOOKED_AT = 500

export type Instance = readonly [key: string, bucket: SharedBucket]

export class Fullest {
  readonly #name: string
  readonly #keyspace: BucketTable
  #cursor: Iterator<[string, SharedBucket]> | undefined
  #kept: readonly Instance[] = []
  #hints: Instance[] = []

  constructor(name: string, keyspace: BucketTable) {
    this.#name = name
    this.#keyspace = keyspace
  }

  /** Something has just happened there. */
  hint(key: string, bucket: SharedBucket): void {
    if (this.#hints.length < KEPT) this.#hints.push([key, bucket])
  }

  /** Looks on; the fullest first. */
  list(now: number): readonly Instance[] {
    const seen = new Map<string, SharedBucket>([...this.#kept, ...this.#hints])
    this.#hints = []
    for (let looked = 0; looked < LOOKED_AT; looked += 1) {
      this.#cursor ??= this.#keyspace.entries(this.#name)[Symbol.iterator]()
      const step = this.#cursor.next()
      if (step.done) {
        this.#cursor = undefined
        break
      }
      const [key, bucket] = step.value
      if (fullness(bucket, now) > 0) seen.set(key, bucket)
    }
    this.#kept = [...seen]
      .filter(([key, bucket]) => this.#keyspace.peek(this.#name, key) === bucket)
      .map(instance => ({ instance, fullness: fullness(instance[1], now) }))
      .filter(({ fullness }) => fullness > 0)
      .sort((a, b) => b.fullness - a.fullness)
      .slice(0, KEPT)
      .map(({ instance }) => instance)
    return this.#kept.slice(0, LISTED)
  }
}

/** Blocked ones, and those that requests wait for, stand before what is merely full. */
function fullness(bucket: SharedBucket, now: number): number {
  const level = bucket.level(now) / bucket.limits.capacity
  const isBlocked = bucket.blockedFor(now) > 0
  return level + (bucket.waiting > 0 ? 1 : 0) + (isBlocked ? 1 : 0)
}
