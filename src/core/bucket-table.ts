import { type BucketLimits, QueuedBucket } from './bucket/queued-bucket.js'
import type { SharedBucket } from './queue/lane.js'
import { IdleSweep, SearchBudget } from './structures/idle-sweep.js'

/** How many instances of a bucket are compared to find the emptiest one. */
const CANDIDATES = 64

const NONE: readonly SharedBucket[] = []

/** The instances of one bucket, by key. */
class Instances {
  readonly byKey = new Map<string, SharedBucket>()
  readonly sweep = new IdleSweep(this.byKey)
}

/**
 * All bucket instances, at most `maxKeys` of them. An instance that has drained and has no waiters goes without loss: a new
 * one would do as well. If none is idle, the emptiest of some goes. One with waiters never goes.
 *
 * A newcomer looks at a bounded number of instances, on average. A flood of new keys while all instances have waiters would
 * otherwise look at all of them each time.
 */
export class BucketTable {
  readonly #buckets = new Map<string, Instances>()
  /** If it is lowered below the number of instances, newcomers drop some of them, and are let in once enough have gone. */
  maxKeys: number
  readonly #create: (limits: BucketLimits, key: string) => SharedBucket
  readonly #inUse: (key: string) => boolean
  readonly #budget = new SearchBudget()
  #size = 0

  /**
   * @param create makes an instance
   * @param inUse whether the instances of a key have to stay though nobody waits for them
   */
  constructor(
    maxKeys: number,
    create?: (limits: BucketLimits, key: string) => SharedBucket,
    inUse?: (key: string) => boolean,
  ) {
    this.maxKeys = maxKeys
    this.#create = create ?? (limits => new QueuedBucket(limits))
    this.#inUse = inUse ?? (() => false)
  }

  /** How many instances there are, of all buckets or of one. */
  size(name?: string): number {
    return name === undefined ? this.#size : (this.#buckets.get(name)?.byKey.size ?? 0)
  }

  /**
   * The instance of `key`, made when new. Undefined: no place was found, as most or all are taken by instances with waiters.
   *
   * @param keep instances that are about to be used and do not make place for it
   */
  find(limits: BucketLimits, key: string, now: number, keep: readonly SharedBucket[] = NONE): SharedBucket | undefined {
    const instances = this.#buckets.get(limits.name) ?? this.#open(limits.name)
    const known = instances.byKey.get(key)
    if (known !== undefined) return known
    this.#budget.save(CANDIDATES * this.#buckets.size, this.#size)
    if (this.#size < this.maxKeys) this.#sweep(instances, now, keep)
    else if (!this.#makePlace(instances, now, keep)) return undefined
    const bucket = this.#create(limits, key)
    instances.byKey.set(key, bucket)
    this.#size += 1
    return bucket
  }

  /** The instance of a bucket's key, if there is one. */
  peek(name: string, key: string): SharedBucket | undefined {
    return this.#buckets.get(name)?.byKey.get(key)
  }

  /** Every instance there is. */
  *all(): Generator<SharedBucket> {
    for (const { byKey } of this.#buckets.values()) yield* byKey.values()
  }

  /** Every instance of a bucket, with its key. */
  entries(name: string): Iterable<[string, SharedBucket]> {
    return this.#buckets.get(name)?.byKey ?? []
  }

  #open(name: string): Instances {
    const instances = new Instances()
    this.#buckets.set(name, instances)
    return instances
  }

  #sweep(instances: Instances, now: number, keep: readonly SharedBucket[]): void {
    const before = instances.byKey.size
    instances.sweep.sweep((bucket, key) => this.#mayGo(bucket, key, keep) && bucket.idle(now))
    this.#size -= before - instances.byKey.size
  }

  /** Drops instances of the same bucket or of another one until there is a place. */
  #makePlace(own: Instances, now: number, keep: readonly SharedBucket[]): boolean {
    const all = [own, ...[...this.#buckets.values()].filter(instances => instances !== own)]
    for (let looked = 0; looked < this.#size && !this.#budget.empty; looked += CANDIDATES) {
      for (const instances of all) {
        const left = Math.min(CANDIDATES, instances.byKey.size - looked)
        if (left > 0) this.#evictAmong(left, instances, now, keep)
        if (this.#size < this.maxKeys) return true
      }
    }
    return false
  }

  /** Looks at `count` instances. Drops those that are idle, then the emptier half of the others at most, until there is a place. */
  #evictAmong(count: number, instances: Instances, now: number, keep: readonly SharedBucket[]): void {
    const busy: { key: string; level: number }[] = []
    for (let looked = 0; looked < count && this.#budget.spend(); looked += 1) {
      const entry = instances.sweep.next()
      if (entry === undefined) break
      const [key, bucket] = entry
      if (!this.#mayGo(bucket, key, keep)) continue
      // A block that a flood of keys could lift would be none.
      const level = bucket.blockedFor(now) > 0 ? bucket.limits.capacity : bucket.level(now)
      if (bucket.idle(now)) this.#remove(instances, key)
      else busy.push({ key, level })
    }
    const tooMany = Math.max(0, this.#size - this.maxKeys + 1)
    if (tooMany === 0) return
    busy.sort((one, other) => one.level - other.level)
    for (const { key } of busy.slice(0, Math.min(tooMany, Math.ceil(busy.length / 2)))) this.#remove(instances, key)
  }

  #mayGo(bucket: SharedBucket, key: string, keep: readonly SharedBucket[]): boolean {
    return !bucket.engaged && !keep.includes(bucket) && !this.#inUse(key)
  }

  #remove(instances: Instances, key: string): void {
    instances.byKey.delete(key)
    this.#size -= 1
  }
}
