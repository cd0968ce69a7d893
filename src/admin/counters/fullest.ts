/**
 * Finds the fullest instances of one bucket. A walk over a hundred thousand instances would delay releases, so each call
 * looks at three groups only: the next few hundred instances, the fullest ones of the last call, and those with recent
 * events.
 */
import type { BucketTable } from '../../core/bucket-table.js'
import type { SharedBucket } from '../../core/queue/lane.js'

const LISTED = 20
const KEPT = 60
const LOOKED_AT = 500
export type Instance = readonly [key: string, bucket: SharedBucket]

export class Fullest {
  readonly #name: string
  readonly #bucketTable: BucketTable
  #cursor: Iterator<[string, SharedBucket]> | undefined
  #kept: readonly string[] = []
  #hints: string[] = []

  constructor(name: string, bucketTable: BucketTable) {
    this.#name = name
    this.#bucketTable = bucketTable
  }

  hint(key: string): void {
    if (this.#hints.length < KEPT) this.#hints.push(key)
  }

  /** Looks at further instances, and lists the fullest ones, the fullest first. They are to be read at once. */
  list(now: number): readonly Instance[] {
    const seen = new Set<string>([...this.#kept, ...this.#hints])
    this.#hints = []
    for (let looked = 0; looked < LOOKED_AT; looked += 1) {
      this.#cursor ??= this.#bucketTable.entries(this.#name)[Symbol.iterator]()
      const step = this.#cursor.next()
      if (step.done) {
        this.#cursor = undefined
        break
      }
      const [key, bucket] = step.value
      if (fullness(bucket, now) > 0) seen.add(key)
    }
    const ranked = [...seen]
      .flatMap(key => this.#rank(key, now))
      .filter(({ fullness }) => fullness > 0)
      .sort((a, b) => b.fullness - a.fullness)
      .slice(0, KEPT)
    this.#kept = ranked.map(({ instance: [key] }) => key)
    return ranked.slice(0, LISTED).map(({ instance }) => instance)
  }

  #rank(key: string, now: number): { instance: Instance; fullness: number }[] {
    const bucket = this.#bucketTable.look(this.#name, key)
    return bucket === undefined ? [] : [{ instance: [key, bucket], fullness: fullness(bucket, now) }]
  }
}

/** Ranks blocked instances and those with waiting requests above merely full ones. */
export function fullness(bucket: SharedBucket, now: number): number {
  const level = bucket.occupancy(now) / bucket.limits.capacity
  const isBlocked = bucket.blockedFor(now) > 0
  return level + (bucket.waiting > 0 ? 1 : 0) + (isBlocked ? 1 : 0)
}
