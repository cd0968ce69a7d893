import { type BucketLimits, QueuedBucket } from './bucket/bucket.js'
import type { SharedBucket } from './queue/lane.js'

/** How many instances a newcomer looks at, to find one to evict, when all places are taken. */
const CANDIDATES = 64

/** How many it looks at otherwise: more than one, so that sweeping outruns arriving. */
const SWEEP = 2

const NONE: readonly SharedBucket[] = []

/** The instances of one bucket, by key. */
interface Instances {
  readonly byKey: Map<string, SharedBucket>
  /** Where sweeping goes on. */
  hand: Iterator<[string, SharedBucket]>
}

/**
 * All bucket instances, at most `maxKeys` of them. An instance that has drained and has no waiters is as good as a new
 * one, so it goes without loss: each newcomer sweeps a few. When none is idle the emptiest of some goes; one with
 * waiters never does.
 */
export class BucketTable {
  readonly #buckets = new Map<string, Instances>()
  /** More than there are at most; lowered, it lets nobody in until some have gone. */
  maxKeys: number
  readonly #create: (limits: BucketLimits, key: string) => SharedBucket
  readonly #inUse: (key: string) => boolean
  #size = 0

  /**
   * @param create makes an instance
   * @param inUse whether somebody counts on the instances of a key though nobody waits for them: they stay
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
   * The instance of `key`, made when new; undefined: every place is taken by an instance with waiters.
   *
   * @param keep instances that are about to be used and do not make place for it
   */
  find(limits: BucketLimits, key: string, now: number, keep: readonly SharedBucket[] = NONE): SharedBucket | undefined {
    const instances = this.#buckets.get(limits.name) ?? this.#open(limits.name)
    const known = instances.byKey.get(key)
    if (known !== undefined) return known
    if (this.#size >= this.maxKeys) {
      if (!this.#evict(instances, now, keep) && !this.#evictElsewhere(instances, now, keep)) return undefined
    } else {
      this.#sweep(instances, SWEEP, now, keep)
    }
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
    const byKey = new Map<string, SharedBucket>()
    const instances = { byKey, hand: byKey.entries() }
    this.#buckets.set(name, instances)
    return instances
  }

  #evictElsewhere(full: Instances, now: number, keep: readonly SharedBucket[]): boolean {
    for (const instances of this.#buckets.values()) {
      if (instances !== full && this.#evict(instances, now, keep)) return true
    }
    return false
  }

  /** Makes one place at least. */
  #evict(instances: Instances, now: number, keep: readonly SharedBucket[]): boolean {
    const before = this.#size
    const emptiest = this.#sweep(instances, CANDIDATES, now, keep)
    if (this.#size < before) return true
    return emptiest !== undefined && this.#remove(instances, emptiest)
  }

  /**
   * Looks at `count` instances, or more until it has found one that may go, and drops the idle ones; returns the key of
   * the emptiest other one that may go.
   */
  #sweep(instances: Instances, count: number, now: number, keep: readonly SharedBucket[]): string | undefined {
    const before = this.#size
    let emptiest: string | undefined
    let lowest = Infinity
    // One more than there are: the step at which the hand starts anew looks at nobody.
    for (let looked = 0; looked <= instances.byKey.size; looked += 1) {
      if (looked >= count && (emptiest !== undefined || this.#size < before || count < CANDIDATES)) break
      const step = instances.hand.next()
      if (step.done) {
        instances.hand = instances.byKey.entries()
        continue
      }
      const [key, bucket] = step.value
      if (bucket.engaged || keep.includes(bucket) || this.#inUse(key)) continue
      // A block that a flood of keys could lift would be none.
      const level = bucket.blockedFor(now) > 0 ? bucket.limits.capacity : bucket.level(now)
      if (bucket.idle(now)) this.#remove(instances, key)
      else if (level < lowest) {
        lowest = level
        emptiest = key
      }
    }
    return emptiest
  }

  #remove(instances: Instances, key: string): boolean {
    const removed = instances.byKey.delete(key)
    if (removed) this.#size -= 1
    return removed
  }
}
