import { Bucket } from './bucket.js'
import type { Junction, Lane } from './lane.js'
import type { BucketLimits } from './limits.js'
import type { BucketRef } from './store.js'

/** Whether what the store told last is still to be gone by. */
export interface StoreTrust {
  trusted: boolean
}

/** Something the store is asked about. */
export interface Inquiry {
  /** What is to be done; undefined until it is answered. */
  deal: (() => void) | undefined
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
  /** What the store is being asked about, in order. */
  readonly #inquiries: Inquiry[] = []

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

  /** The store is asked about a request that needs this instance: it is to stay until that is `answered`. */
  ask(): Inquiry {
    const inquiry: Inquiry = { deal: undefined }
    this.#inquiries.push(inquiry)
    return inquiry
  }

  /** Answers are dealt with in the order in which they were asked for: who came first is queued first. */
  answered(inquiry: Inquiry, deal: () => void): void {
    inquiry.deal = deal
    for (let first = this.#inquiries[0]; first?.deal !== undefined; first = this.#inquiries[0]) {
      this.#inquiries.shift()
      first.deal()
    }
  }

  override get engaged(): boolean {
    return this.#inquiries.length > 0 || super.engaged
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
