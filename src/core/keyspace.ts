import { Bucket, type BucketLimits } from './bucket.js'
import type { Outlet, SharedBucket } from './lane.js'

/** How many instances a newcomer looks at, to find one to evict, when all places are taken. */
const CANDIDATES = 64

/** How many it looks at otherwise: more than one, so that sweeping outruns arriving. */
const SWEEP = 2

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
export class Keyspace {
  readonly #buckets = new Map<string, Instances>()
  readonly #maxKeys: number
  #size = 0

  constructor(maxKeys: number) {
    this.#maxKeys = maxKeys
  }

  /** How many instances there are, of all buckets or of one. */
  size(name?: string): number {
    return name === undefined ? this.#size : (this.#buckets.get(name)?.byKey.size ?? 0)
  }

  /** The instance of `key`, made when new; undefined: every place is taken by an instance with waiters. */
  find(limits: BucketLimits, key: string, now: number): SharedBucket | undefined {
    const instances = this.#buckets.get(limits.name) ?? this.#open(limits.name)
    const known = instances.byKey.get(key)
    if (known !== undefined) return known
    if (this.#size >= this.#maxKeys) {
      if (!this.#evict(instances, now) && !this.#evictElsewhere(instances, now)) return undefined
    } else {
      this.#sweep(instances, SWEEP, now)
    }
    const bucket = new Bucket<Outlet>(limits)
    instances.byKey.set(key, bucket)
    this.#size += 1
    return bucket
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

  #evictElsewhere(full: Instances, now: number): boolean {
    for (const instances of this.#buckets.values()) {
      if (instances !== full && this.#evict(instances, now)) return true
    }
    return false
  }

  /** Makes one place at least. */
  #evict(instances: Instances, now: number): boolean {
    const before = this.#size
    const emptiest = this.#sweep(instances, CANDIDATES, now)
    if (this.#size < before) return true
    return emptiest !== undefined && this.#remove(instances, emptiest)
  }

  /** Looks at `count` instances and drops the idle ones; returns the key of the emptiest other without waiters. */
  #sweep(instances: Instances, count: number, now: number): string | undefined {
    let emptiest: string | undefined
    let lowest = Infinity
    for (let looked = 0; looked < Math.min(count, instances.byKey.size); looked += 1) {
      const step = instances.hand.next()
      if (step.done) {
        instances.hand = instances.byKey.entries()
        continue
      }
      const [key, bucket] = step.value
      if (bucket.waiting > 0) continue
      const level = bucket.level(now)
      if (level === 0) this.#remove(instances, key)
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
