import type { BucketLimits } from './bucket/queued-bucket.js'
import { Instances, KeyedBucket } from './instances.js'
import type { SharedBucket } from './queue/lane.js'
import { SearchBudget } from './structures/idle-sweep.js'
import { ownText } from './structures/text.js'

/** How many instances of a bucket are compared to find the emptiest one. */
const CANDIDATES = 64
/** Instances that each newcomer looks at: more than one, so that sweeping outruns arriving. */
const SWEPT = 2
const NONE: readonly SharedBucket[] = []

/**
 * All bucket instances, at most `maxKeys` of them. If there are too many, one goes that has drained and has no waiters: a new
 * one would do as well. If none is idle, the emptiest of some goes. One with waiters never goes.
 *
 * A newcomer looks at a bounded number of instances, on average. Else a flood of new keys would look at all of them each time.
 *
 * An instance that was held and put to `rest` sleeps (instances.ts): the next `find` makes another object for it. So who holds
 * and rests has to do both with all that it finds. Without `rest` nothing sleeps.
 */
export class BucketTable {
  readonly #buckets = new Map<string, Instances>()
  readonly #create: ((limits: BucketLimits, key: string) => SharedBucket) | undefined
  readonly #inUse: (key: string, bucket: SharedBucket, now: number) => boolean
  readonly #budget = new SearchBudget()
  #size = 0

  /**
   * @param maxKeys may be lowered below the number of instances. Newcomers are let in once enough have gone.
   * @param create makes an instance. Such ones never sleep.
   * @param inUse whether an instance has to stay though nobody waits for it
   */
  constructor(
    public maxKeys: number,
    create?: (limits: BucketLimits, key: string) => SharedBucket,
    inUse?: (key: string, bucket: SharedBucket, now: number) => boolean,
  ) {
    this.#create = create
    this.#inUse = inUse ?? (() => false)
  }

  size(name?: string): number {
    return name === undefined ? this.#size : (this.#buckets.get(name)?.size ?? 0)
  }

  /** Made when new. Undefined: no place was found. Instances in `keep` do not make place for it. */
  find(limits: BucketLimits, key: string, now: number, keep: readonly SharedBucket[] = NONE): SharedBucket | undefined {
    const instances = this.#buckets.get(limits.name) ?? this.#open(limits.name)
    const row = instances.find(key)
    if (row >= 0) return instances.wake(row)
    this.#budget.save(CANDIDATES * this.#buckets.size, this.#size)
    if (this.#size < this.maxKeys) this.#sweep(instances, now, keep)
    else if (!this.#makePlace(instances, now, keep)) return undefined
    this.#size += 1
    const own = ownText(key)
    return instances.add(own, limits, this.#create?.(limits, own))
  }

  /** A request uses this object until it calls `rest`. */
  hold(bucket: SharedBucket): void {
    if (bucket instanceof KeyedBucket) bucket.holders += 1
  }

  rest(bucket: SharedBucket): void {
    if (!(bucket instanceof KeyedBucket)) return
    bucket.holders -= 1
    bucket.home.sleep(bucket)
  }

  peek(name: string, key: string): SharedBucket | undefined {
    const instances = this.#buckets.get(name)
    const row = instances?.find(key) ?? -1
    return row < 0 ? undefined : instances!.wake(row)
  }

  /** As `peek`, but read-only: of an instance that sleeps it is a copy. */
  look(name: string, key: string): SharedBucket | undefined {
    const instances = this.#buckets.get(name)
    const row = instances?.find(key) ?? -1
    return row < 0 ? undefined : instances!.look(row)
  }

  *all(): Generator<SharedBucket> {
    for (const instances of this.#buckets.values()) for (const [, bucket] of instances.entries()) yield bucket
  }

  /** Of all buckets that have had instances. */
  names(): Iterable<string> {
    return this.#buckets.keys()
  }

  entries(name: string): Iterable<[string, SharedBucket]> {
    return this.#buckets.get(name)?.entries() ?? []
  }

  keys(name: string): Iterable<string> {
    return this.#buckets.get(name)?.keys() ?? []
  }

  #open(name: string): Instances {
    const instances = new Instances()
    this.#buckets.set(name, instances)
    return instances
  }

  #sweep(instances: Instances, now: number, keep: readonly SharedBucket[]): void {
    for (let looked = 0; looked < SWEPT && instances.size > 0; looked += 1) {
      const row = instances.next()
      const bucket = instances.look(row)
      if (!this.#mayGo(bucket, instances.keyOf(row), now, keep) || !bucket.idle(now)) continue
      this.#remove(instances, row)
      // What is in its row now is the newest, and hardly idle.
      instances.next()
    }
  }

  #makePlace(own: Instances, now: number, keep: readonly SharedBucket[]): boolean {
    const all = [own, ...[...this.#buckets.values()].filter(instances => instances !== own)]
    for (let looked = 0; looked < this.#size && !this.#budget.empty; looked += CANDIDATES) {
      for (const instances of all) {
        const left = Math.min(CANDIDATES, instances.size - looked)
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
      const row = instances.next()
      if (row < 0) break
      const key = instances.keyOf(row)
      const bucket = instances.look(row)
      if (!this.#mayGo(bucket, key, now, keep)) continue
      // A block that a flood of keys could lift would be none.
      const level = bucket.blockedFor(now) > 0 ? bucket.limits.capacity : bucket.level(now)
      if (bucket.idle(now)) this.#remove(instances, row)
      else busy.push({ key, level })
    }
    const tooMany = Math.max(0, this.#size - this.maxKeys + 1)
    if (tooMany === 0) return
    busy.sort((one, other) => one.level - other.level)
    for (const { key } of busy.slice(0, Math.min(tooMany, Math.ceil(busy.length / 2)))) {
      this.#remove(instances, instances.find(key))
    }
  }

  #mayGo(bucket: SharedBucket, key: string, now: number, keep: readonly SharedBucket[]): boolean {
    return !bucket.engaged && !keep.includes(bucket) && !this.#inUse(key, bucket, now)
  }

  #remove(instances: Instances, row: number): void {
    instances.remove(row)
    this.#size -= 1
  }
}
