import { Bucket, LEVEL_TOLERANCE } from '../bucket/bucket.js'
import type { BucketLimits } from '../bucket/limits.js'
import type { Lane, ShareNode } from '../queue/lane.js'
import type { BucketRef } from '../store.js'

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
export class StoredBucket extends Bucket<ShareNode, Lane> {
  readonly key: string
  readonly #groupOf: (name: string, key: string) => string
  readonly #trust: StoreTrust
  /** Cost units at a time in ms, as the store told. */
  #told = 0
  #toldAt = 0
  /** What is left of that, besides what is here, while the store cannot be asked: cost units at a time in ms. */
  #elsewhere = 0
  #elsewhereAt = 0
  /** When it was retuned or reset last, in ms. What the store was asked before says nothing about when it is free. */
  changedAt = -Infinity
  /** What the store is being asked about, in order. */
  readonly #inquiries: Inquiry[] = []

  /** @param groupOf where an instance lives: asked anew each time, as a reload may change it */
  constructor(limits: BucketLimits, key: string, groupOf: (name: string, key: string) => string, trust: StoreTrust) {
    super(limits)
    this.key = key
    this.#groupOf = groupOf
    this.#trust = trust
  }

  /** What the store is asked about. */
  get ref(): BucketRef {
    const limits = this.limits.whole ?? this.limits
    return { limits, key: this.key, group: this.#groupOf(limits.name, this.key) }
  }

  /** The store counts the time until the next slot at its rate: what is left of it changes as the rate does. */
  override setLimits(limits: BucketLimits, now: number): void {
    const left = this.hold(now) === 0 ? this.freeAt - now : 0
    const { rate } = this.limits.whole ?? this.limits
    super.setLimits(limits, now)
    const { rate: changed } = limits.whole ?? limits
    if (changed === rate) return
    this.changedAt = now
    if (left > 0) this.occupyUntil(now + (left * rate) / changed)
  }

  override reset(now: number): void {
    super.reset(now)
    this.changedAt = now
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

  /** Whether the store is being asked about a request for this instance. */
  get asked(): boolean {
    return this.#inquiries.length > 0
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
    return this.asked || super.engaged
  }

  override level(now: number): number {
    if (!this.#trust.trusted) {
      return super.level(now) + Math.max(0, this.#elsewhere - (now - this.#elsewhereAt) * this.limits.rate)
    }
    const { rate } = this.limits.whole ?? this.limits
    return Math.max(0, this.#told - Math.max(0, now - this.#toldAt) * rate)
  }

  /** From now on the store cannot be asked: what it has told last of what is elsewhere leaks away here. */
  detach(now: number): void {
    this.#elsewhere = Math.max(0, this.#told - (now - this.#toldAt) * this.limits.rate - super.level(now))
    this.#elsewhereAt = now
  }

  /** What waits here has to fit, too: a meter leaks while an upstream is slow, and a queue does not. */
  override excess(cost: number, now: number): number {
    const excess = this.waiting > 0 ? this.queued + cost - this.limits.capacity : 0
    return Math.max(super.excess(cost, now), excess <= LEVEL_TOLERANCE ? 0 : excess)
  }

  override idle(now: number): boolean {
    return super.idle(now) && this.level(now) === 0
  }
}
