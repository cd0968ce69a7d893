/** What all calls of one shaper share: queues by key, buckets, pauses, and the store if there is one. */
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

/** ms until a retry if a place is missing and not room in a bucket. */
export const RETRY_ADMISSION_MS = 1_000

/** A call that waits for a decision or for its release. */
export interface WaitingCall {
  /** The store is ready: asks for admission. */
  apply(): void
  abandon(error: Error): void
}

export class CallContext {
  readonly clock: Clock
  readonly reporter: EventReporter
  readonly queues: KeyQueues
  readonly shaper: Shaper
  readonly sharing: Sharing | undefined
  /** Waiting calls, in the order of arrival. */
  readonly waiting = new Set<WaitingCall>()
  /** Running calls, and all calls that have not ended. */
  running = 0
  calls = 0
  maxWait: number
  /** Whether calls can be decided. False until the store has been joined. */
  ready = true
  /** `closed`: no new calls. `ended`: no call waits or runs any more. */
  closed = false
  ended = false
  readonly pauses: Pauses
  readonly sendOrder: SendOrder
  readonly #bucketTable: BucketTable
  #limits: BucketLimits
  #drainTimer: DrainTimer | undefined
  #drained: Promise<void> | undefined

  constructor(settings: ShaperSettings, clock: Clock, reporter: EventReporter) {
    const { rate, capacity, burst, maxWait, maxInFlight, maxKeys, maxQueued, store } = settings
    this.clock = clock
    this.reporter = reporter
    this.maxWait = maxWait
    this.#limits = { name: BUCKET, rate, capacity, ...(burst !== undefined && { burst }), grace: GRACE }
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
      unanswered: (stack, askedAt) => sharing.unanswered(stack, askedAt),
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
    // Drained meanwhile: nothing would leave the registry again.
    if (this.ended) return
    const { shaper, clock } = this
    await sharing.join({
      shaper,
      clock,
      buckets: () => this.#bucketTable.all(),
      peek: (name, key) => this.#bucketTable.peek(name, key),
      gates: () => Array.from(this.queues, queue => queue.gate),
    })
    this.ready = true
    for (const call of [...this.waiting]) call.apply()
  }

  #complain(error: Error): void {
    if (this.reporter.wants('error')) this.reporter.notify('error', error)
  }

  /** The limits of a key; with a store this instance's share of them. */
  #limitsOf(key: string): BucketLimits {
    return this.sharing?.limitsOf(this.#limits, key) ?? this.#limits
  }

  /** The queue of a key. Undefined: too many keys are in use. */
  queueOf(key: string, now: number): KeyQueue | undefined {
    return this.queues.open(key, now, this.#opened)
  }

  readonly #opened = (queue: KeyQueue): void => this.pauses.opened(queue)

  /** The stack of a queue: its one bucket. Undefined: too many keys are in use. */
  stackOf(queue: KeyQueue, now: number): readonly SharedBucket[] | undefined {
    const bucket = this.#bucketTable.find(this.#limitsOf(queue.name), queue.name, now)
    if (bucket === undefined) return undefined
    if (queue.stack[0] !== bucket) queue.stack = [bucket]
    return queue.stack
  }

  /** A call has ended: frees its place in the gate. */
  leave({ gate }: KeyQueue): void {
    gate.leave()
    if (gate.awaited) this.shaper.wake(gate)
  }

  /** The last call has ended. */
  idle(): void {
    if (this.reporter.wants('idle')) this.reporter.notify('idle')
    this.#drainTimer?.end()
  }

  /**
   * @param key undefined: all keys, including new ones
   * @throws OverflowError if the key is new and too many keys are in use
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

  /**
   * Changes limits. Levels stay. Waiting calls leave at the new rate. A call that would then wait too long expires at
   * once. A new `maxWait` does not apply to waiting calls that have their own.
   */
  update({ rate, capacity, burst, maxWait, maxKeys, maxQueued }: Changes): void {
    this.#limits = {
      ...this.#limits,
      ...(rate !== undefined && { rate }),
      ...(capacity !== undefined && { capacity }),
      ...(burst !== undefined && { burst }),
    }
    this.maxWait = maxWait ?? this.maxWait
    this.shaper.maxQueued = maxQueued ?? this.shaper.maxQueued
    this.#bucketTable.maxKeys = maxKeys ?? this.#bucketTable.maxKeys
    this.queues.maxKeys = maxKeys ?? this.queues.maxKeys
    const { control } = this.shaper
    for (const [key, bucket] of this.#bucketTable.entries(BUCKET)) control.setLimits(bucket, this.#limitsOf(key))
    control.replan(
      Array.from(this.queues, queue => queue.gate),
      (_, { hasOwnMaxWait }) => (hasOwnMaxWait ? Infinity : (maxWait ?? Infinity)),
    )
  }

  /** Accepts no more calls. Resolves when all have ended, or after the shortest `timeout` (ms) of all `drain` calls. */
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
