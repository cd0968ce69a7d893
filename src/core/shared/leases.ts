/**
 * The leases of one instance (docs/decisions/slot-leases.md): when to report, and what waits. A bucket is leased from the first
 * claim that is refused because of it, or the first overflow, until nothing waits for it any more.
 */

import { allSources } from '../bucket/waiting.js'
import type { Clock } from '../clock.js'
import type { MaybePromise } from '../maybe-promise.js'
import type { SharedBucket } from '../queue/lane.js'
import type { ClassDemand, LeaseAnswer, LeaseRequest, Store } from '../store.js'
import { BucketLease } from './bucket-lease.js'
import type { StoredBucket } from './stored-bucket.js'

/** ms beyond the horizon that an answer may take. */
const RESERVE = 5

/** What leases need of their claims. */
export interface Lessor {
  /** Cost of the requests that have a slot of a bucket, or ask for one. */
  claimingOf(bucket: SharedBucket): number
  horizonOf(bucket: SharedBucket): number
  /** There are other slots, or none. */
  changed(bucket: StoredBucket, now: number): void
  /** Something may be possible now. */
  wake(): void
  /** The store has not answered a question of this time in ms. */
  failed(bucket: StoredBucket, askedAt: number): void
}

export class Leases {
  readonly #store: Store
  readonly #clock: Clock
  readonly #lessor: Lessor
  readonly #leasing: boolean
  readonly #instance = Math.random()
  /** What waits for the answer to a report, by bucket. */
  readonly #reports = new Map<StoredBucket, (() => void)[]>()

  constructor({ store, clock, leasing }: { store: Store; clock: Clock; leasing: boolean }, lessor: Lessor) {
    this.#store = store
    this.#leasing = leasing
    this.#clock = clock
    this.#lessor = lessor
  }

  /** Leases a bucket from now on, for which a request of this cost waits. */
  start(bucket: StoredBucket, cost: number): void {
    const { limits } = bucket
    if (!this.#leasing || bucket.lease !== undefined || limits.whole !== undefined) return
    bucket.lease = new BucketLease(limits, cost)
    bucket.claimableAt = Infinity
    this.#report(bucket)
  }

  /** Reports a bucket before its time. */
  renew(bucket: StoredBucket): void {
    if (bucket.lease?.ending === false && !this.#reports.has(bucket)) this.#report(bucket)
  }

  /** Asks for more room. `then` is called after the answer. */
  refill(bucket: StoredBucket, then: () => void): void {
    if (bucket.lease?.ending !== false) return then()
    const waiting = this.#reports.get(bucket)
    if (waiting !== undefined) {
      waiting.push(then)
      return
    }
    this.#report(bucket, then)
  }

  #report(bucket: StoredBucket, then?: () => void): void {
    const { lease } = bucket
    if (lease === undefined) return then?.()
    const now = this.#clock.now()
    const lead = this.#lessor.horizonOf(bucket) + RESERVE
    const demand = demandOf(bucket)
    const claiming = this.#lessor.claimingOf(bucket)
    const isDone = (demand.length === 0 && !lease.isAsked) || lease.isEasy(demand)
    const report = isDone ? lease.finish(demand, claiming, lead, now) : lease.report(demand, claiming, lead, now)
    const waiting = then === undefined ? [] : [then]
    this.#reports.set(bucket, waiting)
    const request: LeaseRequest = { bucket: bucket.ref, instance: this.#instance, lead, ...report }
    when(
      this.#store.lease!(request),
      answer => {
        this.#reports.delete(bucket)
        if (bucket.lease === lease) this.#answered(bucket, lease, answer)
        for (const deal of waiting) deal()
      },
      () => {
        this.#reports.delete(bucket)
        lease.failed()
        this.#lessor.failed(bucket, now)
        if (bucket.lease === lease) this.#plan(bucket, lease, now + RESERVE)
        for (const deal of waiting) deal()
      },
      () => this.#lessor.wake(),
    )
  }

  #answered(bucket: StoredBucket, lease: BucketLease, answer: LeaseAnswer): void {
    const now = this.#clock.now()
    lease.answered(answer)
    bucket.levelReported(answer.level, now)
    if (!lease.ending) this.#plan(bucket, lease, lease.nextAt)
    else if (lease.isEmpty) bucket.lease = undefined
    else this.#clock.at(lease.lastUse, () => this.#end(bucket, lease))
    this.#lessor.changed(bucket, now)
  }

  #end(bucket: StoredBucket, lease: BucketLease): void {
    if (bucket.lease !== lease) return
    bucket.lease = undefined
    this.#lessor.changed(bucket, this.#clock.now())
    this.#lessor.wake()
  }

  #plan(bucket: StoredBucket, lease: BucketLease, at: number): void {
    this.#clock.at(at, () => {
      // It may have been reported meanwhile, which has planned the next one.
      const isDue = bucket.lease === lease && !lease.ending && lease.nextAt <= this.#clock.now()
      if (isDue && !this.#reports.has(bucket)) this.#report(bucket)
    })
  }
}

/** What waits for a bucket, by class. Behind an upstream that pauses or fails nothing can leave. */
function demandOf(bucket: SharedBucket): ClassDemand[] {
  const demand = new Map<number, { priority: number; weight: number; cost: number }>()
  for (const { priority, weight, queued, gate } of allSources(bucket)) {
    if (queued <= 0 || gate.paused || (gate.blocked && !gate.probe)) continue
    const entry = demand.get(priority)
    if (entry === undefined) demand.set(priority, { priority, weight, cost: queued })
    else {
      entry.weight += weight
      entry.cost += queued
    }
  }
  return [...demand.values()]
}

function when<T>(value: MaybePromise<T>, then: (value: T) => void, otherwise: () => void, after: () => void): void {
  if (!(value instanceof Promise)) return then(value)
  value.then(
    answer => {
      then(answer)
      after()
    },
    () => {
      otherwise()
      after()
    },
  )
}
