import { type BucketLimits, slackOf } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { QueuedBucket } from '../bucket/queued-bucket.js'
import type { Lane, Source } from '../queue/lane.js'
import type { BucketRef } from '../store.js'

/** Whether the store is asked, so that its last answers hold. */
export interface StoreTrust {
  trusted: boolean
}

/** A question to the store. */
export interface Inquiry {
  /** What to do with the answer. Undefined until it is there. */
  deal: (() => void) | undefined
}

/**
 * A bucket instance that is kept in a store. Here are the requests that wait for it, the store's last answers, and a meter
 * of its own, which counts only what passes while the store cannot be asked.
 */
export class StoredBucket extends QueuedBucket<Source, Lane> {
  readonly key: string
  readonly #groupOf: (name: string, key: string) => string
  readonly #trust: StoreTrust
  /** The level that the store reported last: cost units, at a time in ms. */
  #reported = 0
  #reportedAt = 0
  /** The part of it that other instances caused, once the store cannot be asked: cost units, at a time in ms. */
  #fromOthers = 0
  #fromOthersAt = 0
  /** When the store may grant the next claim, in ms. Of a bucket with a burst: a claim without slack. */
  claimableAt = -Infinity
  /** When it will have drained of what the store is known to have granted, in ms. Only of a bucket with a burst. */
  grantedUntil = -Infinity
  /** When its rate changed or it was reset, in ms. The answer to an earlier question no longer says when it is free. */
  changedAt = -Infinity
  /** The questions that are on their way, in order. */
  readonly #inquiries: Inquiry[] = []

  /** @param groupOf the group of a bucket instance. Called each time, as a reload may change it. */
  constructor(limits: BucketLimits, key: string, groupOf: (name: string, key: string) => string, trust: StoreTrust) {
    super(limits)
    this.key = key
    this.#groupOf = groupOf
    this.#trust = trust
  }

  /** Its name for the store. */
  get ref(): BucketRef {
    const limits = this.limits.whole ?? this.limits
    return { limits, key: this.key, group: this.#groupOf(limits.name, this.key) }
  }

  /** Neither what passed here alone nor the store's schedule may delay requests. */
  override get drainedAt(): number {
    return Math.max(super.drainedAt, this.claimableAt)
  }

  override freeFor(cost: number): number {
    const limits = this.limits.whole ?? this.limits
    return Math.max(super.freeFor(cost), this.claimableAt - slackOf(limits, cost) / limits.rate)
  }

  override setLimits(limits: BucketLimits, now: number): void {
    const { rate } = this.limits.whole ?? this.limits
    super.setLimits(limits, now)
    const { rate: changed } = limits.whole ?? limits
    if (changed === rate) return
    this.changedAt = now
    // The store counts the time until the next slot at its rate, too.
    if (this.claimableAt > now) this.claimableAt = now + ((this.claimableAt - now) * rate) / changed
    if (this.grantedUntil > now) this.grantedUntil = now + ((this.grantedUntil - now) * rate) / changed
  }

  override reset(now: number): void {
    super.reset(now)
    this.claimableAt = now
    this.grantedUntil = now
    this.changedAt = now
  }

  /** Takes the level that the store has answered. */
  levelReported(level: number, now: number): void {
    this.#reported = level
    this.#reportedAt = now
  }

  /** The level that the store has answered changes by this many cost units. */
  levelChanged(by: number): void {
    this.#reported += by
  }

  /** Registers a question to the store. This bucket instance has to stay until that is `answered`. */
  ask(): Inquiry {
    const inquiry: Inquiry = { deal: undefined }
    this.#inquiries.push(inquiry)
    return inquiry
  }

  /** Whether a question is on its way. */
  get asked(): boolean {
    return this.#inquiries.length > 0
  }

  /** Deals with answers in the order of the questions, so that requests are queued in the order of their arrival. */
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
      return super.level(now) + Math.max(0, this.#fromOthers - (now - this.#fromOthersAt) * this.limits.rate)
    }
    const { rate } = this.limits.whole ?? this.limits
    return Math.max(0, this.#reported - Math.max(0, now - this.#reportedAt) * rate)
  }

  /** From now on the store cannot be asked. The part of the level that other instances caused leaks away here. */
  detach(now: number): void {
    this.#fromOthers = Math.max(0, this.#reported - (now - this.#reportedAt) * this.limits.rate - super.level(now))
    this.#fromOthersAt = now
  }

  /** The queue here has to fit, too: the store's meter leaks while an upstream is slow, and a queue does not. */
  override excess(cost: number, now: number): number {
    const excess = this.waiting > 0 ? this.queued + cost - this.limits.capacity : 0
    return Math.max(super.excess(cost, now), excess <= LEVEL_TOLERANCE ? 0 : excess)
  }

  override idle(now: number): boolean {
    return super.idle(now) && this.level(now) === 0
  }
}
