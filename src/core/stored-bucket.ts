import { Bucket } from './bucket.js'
import type { Junction, Lane } from './lane.js'
import type { BucketLimits } from './limits.js'
import type { BucketRef } from './store.js'

/** Whether what the store told last is still to be gone by. */
export interface StoreTrust {
  trusted: boolean
}

/**
 * A bucket instance that is kept in a store: what is here of it is what waits here, and what the store told last. While
 * the store cannot be asked it is a bucket like any other.
 */
export class StoredBucket extends Bucket<Junction, Lane> {
  readonly key: string
  readonly #group: string
  readonly #trust: StoreTrust
  /** Cost units at a time in ms, as the store told. */
  #told = 0
  #toldAt = 0
  /** How many requests the store is being asked about. */
  #asked = 0

  constructor(limits: BucketLimits, key: string, group: string, trust: StoreTrust) {
    super(limits)
    this.key = key
    this.#group = group
    this.#trust = trust
  }

  /** What the store is asked about. */
  get ref(): BucketRef {
    return { limits: this.limits.whole ?? this.limits, key: this.key, group: this.#group }
  }

  /** The store has told its level. */
  tell(level: number, now: number): void {
    this.#told = level
    this.#toldAt = now
  }

  /** The store is asked about a request that needs this instance; it is to stay until `answered`. */
  ask(): void {
    this.#asked += 1
  }

  answered(): void {
    this.#asked -= 1
  }

  override get engaged(): boolean {
    return this.#asked > 0 || super.engaged
  }

  override level(now: number): number {
    if (!this.#trust.trusted) return super.level(now)
    const { rate } = this.limits.whole ?? this.limits
    return Math.max(0, this.#told - Math.max(0, now - this.#toldAt) * rate)
  }

  override idle(now: number): boolean {
    return super.idle(now) && this.level(now) === 0
  }
}
