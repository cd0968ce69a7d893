/** Everything that the calls of one shaper have in common: lines, buckets, pauses, and the store if there is one. */
import { randomUUID } from 'node:crypto'
import type { BucketLimits } from '../core/bucket/limits.js'
import { BucketTable } from '../core/bucket-table.js'
import type { Clock } from '../core/clock.js'
import type { SharedBucket } from '../core/queue/lane.js'
import { Shaper } from '../core/shaper.js'
import { Sharing } from '../sharing/sharing.js'
import { openStore } from '../stores/open.js'
import { DeferredStore } from './deferred-store.js'
import { DrainTimer } from './drain-timer.js'
import { ClosedError, OverflowError } from './errors.js'
import type { EventReporter } from './events.js'
import { type KeyQueue, KeyQueues } from './key-queues.js'
import type { Changes, ShaperSettings } from './options.js'
import { Pauses } from './pauses/pauses.js'
import { GRACE, SendOrder } from './send-order.js'

const BUCKET = 'outbound'

/** When to try again, in ms, where it is places that are lacking and not room in a bucket. */
export const RETRY_ADMISSION_MS = 1_000

/** Somebody who waits for a decision or for a release. */
export interface WaitingCall {
  /** May be decided on now. */
  apply(): void
  /** Gives up. */
  abandon(error: Error): void
}

export class CallContext {
  readonly clock: Clock
  readonly reporter: EventReporter
  readonly queues: KeyQueues
  readonly shaper: Shaper
  readonly sharing: Sharing | undefined
  /** Those who wait, in the order in which they came. */
  readonly waiting = new Set<WaitingCall>()
  /** How many run, and how many there are with those who wait. */
  running = 0
  calls = 0
  maxWait: number
  /** Whether calls can be decided on. */
  ready = true
  /** Nobody comes in; and nobody waits or runs any more, or is to. */
  closed = false
  ended = false
  readonly pauses: Pauses
  readonly sendOrder: SendOrder
  readonly #bucketTable: BucketTable
  #limits: BucketLimits
  #drainTimer: DrainTimer | undefined
  #drained: Promise<void> | undefined

  constructor(settings: ShaperSettings, clock: Clock, reporter: EventReporter) {
    const { rate, capacity, maxWait, maxInFlight, maxKeys, maxQueued, store } = settings
    this.clock = clock
    this.reporter = reporter
    this.maxWait = maxWait
    this.#limits = { name: BUCKET, rate, capacity, grace: GRACE }
    const queues = new KeyQueues(maxKeys, maxInFlight)
    this.queues = queues
    const inUse = (key: string): boolean => (queues.get(key)?.calls ?? 0) > 0
    if (store === undefined) {
      this.shaper = new Shaper({ clock, maxQueued })
      this.sendOrder = new SendOrder(clock, this.shaper)
      this.pauses = new Pauses({ control: this.shaper.control, clock, queues, reporter, store: undefined })
      this.#bucketTable = new BucketTable(maxKeys, undefined, inUse)
      return
    }
    const deferred = new DeferredStore('own' in store ? store.own : undefined)
    const onOutage = 'own' in store ? 'local' : store.onOutage
    const least = { assumed: 'own' in store ? undefined : store.instances }
    const sharing = new Sharing({ store: deferred, onOutage, clock, id: randomUUID(), least })
    this.sharing = sharing
    this.shaper = new Shaper({
      clock,
      maxQueued,
      store: deferred,
      unanswered: (lane, askedAt) => sharing.unanswered(lane.stack, askedAt),
    })
    this.sendOrder = new SendOrder(clock, this.shaper)
    this.#bucketTable = new BucketTable(maxKeys, (limits, key) => sharing.createBucket(limits, key), inUse)
    this.pauses = new Pauses({ control: this.shaper.control, clock, queues, reporter, store: deferred })
    this.ready = false
    void this.#join(sharing, async () => {
      if ('own' in store) return
      await deferred.opened(await openStore(store, clock, error => this.#complain(error)))
    })
  }

  async #join(sharing: Sharing, open: () => Promise<void>): Promise<void> {
    await open().catch((error: Error) => this.#complain(error))
    // Nobody is there any more who would leave again.
    if (this.ended) return
    const { shaper, clock } = this
    await sharing.join({
      shaper,
      clock,
      buckets: () => this.#bucketTable.all(),
      gates: () => Array.from(this.queues, queue => queue.gate),
    })
    this.ready = true
    for (const call of [...this.waiting]) call.apply()
  }

  #complain(error: Error): void {
    if (this.reporter.wants('error')) this.reporter.notify('error', error)
  }

  /** Its share of what the limits allow, where there is a store. */
  get limits(): BucketLimits {
    return this.sharing?.limitsOf(this.#limits) ?? this.#limits
  }

  /** The line of a key; undefined: there are too many. */
  queueOf(key: string, now: number): KeyQueue | undefined {
    return this.queues.open(key, now, this.#opened)
  }

  readonly #opened = (queue: KeyQueue): void => this.pauses.opened(queue)

  /** The bucket of a line, alone in its stack; undefined: there are too many. */
  stackOf(queue: KeyQueue, now: number): readonly SharedBucket[] | undefined {
    const bucket = this.#bucketTable.find(this.limits, queue.name, now)
    if (bucket === undefined) return undefined
    if (queue.stack[0] !== bucket) queue.stack = [bucket]
    return queue.stack
  }

  /** Somebody has passed a gate and is gone. */
  leave({ gate }: KeyQueue): void {
    gate.leave()
    if (gate.awaited) this.shaper.wake(gate)
  }

  /** The last call there was has ended. */
  idle(): void {
    if (this.reporter.wants('idle')) this.reporter.notify('idle')
    this.#drainTimer?.end()
  }

  /**
   * @param key undefined: all, those to come included
   * @throws OverflowError where it is a new one and there are too many
   */
  pause(ms: number, key: string | undefined): void {
    if (key === undefined) return this.pauses.pauseAll(ms)
    const queue = this.queueOf(key, this.clock.now())
    if (queue === undefined) throw new OverflowError('crowded', key, RETRY_ADMISSION_MS)
    this.pauses.pause(queue, ms)
  }

  resume(key: string | undefined): void {
    if (key === undefined) return this.pauses.resumeAll()
    const queue = this.queues.get(key)
    if (queue !== undefined) this.pauses.resume(queue)
  }

  /** Levels stay; those who wait leave at the new rate, or expire at once where that is too slow for them. */
  update({ rate, capacity, maxWait, maxKeys, maxQueued }: Changes): void {
    this.#limits = { ...this.#limits, ...(rate !== undefined && { rate }), ...(capacity !== undefined && { capacity }) }
    this.maxWait = maxWait ?? this.maxWait
    this.shaper.maxQueued = maxQueued ?? this.shaper.maxQueued
    this.#bucketTable.maxKeys = maxKeys ?? this.#bucketTable.maxKeys
    this.queues.maxKeys = maxKeys ?? this.queues.maxKeys
    const { control } = this.shaper
    for (const bucket of this.#bucketTable.all()) control.setLimits(bucket, this.limits)
    control.replan(
      Array.from(this.queues, queue => queue.gate),
      () => maxWait ?? Infinity,
    )
  }

  /** Lets nobody in; resolves when nobody waits and nothing runs, or after the least `timeout` in ms of all calls. */
  drain(timeout: number): Promise<void> {
    this.closed = true
    this.#drained ??= this.#drain()
    this.#drainTimer!.within(timeout)
    return this.#drained
  }

  async #drain(): Promise<void> {
    this.#drainTimer = new DrainTimer(this.clock)
    if (this.calls === 0) this.#drainTimer.end()
    await this.#drainTimer.over
    this.ended = true
    for (const call of [...this.waiting]) call.abandon(new ClosedError())
    this.pauses.close()
    await this.sharing?.close()
  }
}
