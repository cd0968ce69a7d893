import type { Cancel } from '../core/clock.js'
import { Gate, type LaneRoute, type SharedBucket } from '../core/queue/lane.js'

/** Queues that each new one inspects, to drop idle ones. */
const SWEEP = 2

/** A call that was released, is not sent yet, and keeps its queue's gate closed. */
export interface Writer {
  /** Lets others pass, because it takes too long. */
  yieldTo(): void
}

/** The queue of one key. It has its own pause and its own bounds. */
export class KeyQueue implements LaneRoute {
  /** The key. */
  readonly name: string
  readonly gate: Gate
  /** Its bucket, once it has one. */
  stack: readonly SharedBucket[] = []
  /** Calls that have begun and not ended; of these, the waiting and the running ones. */
  calls = 0
  waiting = 0
  running = 0
  /** Cancels the notification about the end of its pause. */
  cancelNotification: Cancel = () => false
  /**
   * When the store was last asked about pauses, in ms. Pauses that end before the second time were resumed here and are
   * ignored.
   */
  askedAt = -Infinity
  ignorePausesUntil = -Infinity
  /** The call that was released and is not sent yet, and since when, in ms. */
  writer: Writer | undefined = undefined
  writingSince = -Infinity
  /** A timer limits the time of the writer. */
  writerWatched = false
  /** When its last call was sent, in ms, and its cost. Used only if a store grants the slots. */
  sentAt = -Infinity
  sentCost = 0

  constructor(key: string, maxInFlight: number) {
    this.name = key
    this.gate = new Gate(maxInFlight)
  }

  /** Whether dropping it would lose nothing. */
  idle(now: number): boolean {
    return this.calls === 0 && !this.gate.paused && this.stack.every(bucket => bucket.idle(now))
  }
}

/** All queues, by key. Each new one drops a few idle ones. */
export class KeyQueues implements Iterable<KeyQueue> {
  readonly #byKey = new Map<string, KeyQueue>()
  readonly #maxInFlight: number
  #sweepCursor = this.#byKey.values()
  maxKeys: number

  constructor(maxKeys: number, maxInFlight: number) {
    this.maxKeys = maxKeys
    this.#maxInFlight = maxInFlight
  }

  get size(): number {
    return this.#byKey.size
  }

  get(key: string): KeyQueue | undefined {
    return this.#byKey.get(key)
  }

  /** The queue of a key; creates it if needed. Undefined: `maxKeys` keys are in use or paused. */
  open(key: string, now: number, opened: (queue: KeyQueue) => void): KeyQueue | undefined {
    const known = this.#byKey.get(key)
    if (known !== undefined) return known
    this.#sweep(SWEEP, queue => queue.idle(now))
    // Dropping a queue loses what its bucket still holds, as in core/bucket-table.ts.
    if (this.size >= this.maxKeys) this.#sweep(this.size, queue => queue.calls === 0 && !queue.gate.paused)
    if (this.size >= this.maxKeys) return undefined
    const queue = new KeyQueue(key, this.#maxInFlight)
    this.#byKey.set(key, queue)
    opened(queue)
    return queue
  }

  [Symbol.iterator](): Iterator<KeyQueue> {
    return this.#byKey.values()
  }

  /** Inspects `count` queues and drops those that `mayGo`. If the table was full, stops at the first free place. */
  #sweep(count: number, mayGo: (queue: KeyQueue) => boolean): void {
    const full = this.size >= this.maxKeys
    for (let looked = 0; looked < count; looked += 1) {
      const step = this.#sweepCursor.next()
      if (step.done) {
        this.#sweepCursor = this.#byKey.values()
        continue
      }
      if (mayGo(step.value)) this.#byKey.delete(step.value.name)
      if (full && this.size < this.maxKeys) return
    }
  }
}
