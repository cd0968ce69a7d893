import type { Cancel } from '../core/clock.js'
import { Gate, type LaneRoute, type SharedBucket } from '../core/queue/lane.js'

/** How many lines each new one looks at, to forget those that are as good as new. */
const SWEEP = 2

/** Whoever keeps a line's gate closed. */
export interface Writer {
  /** Lets others pass: it has taken too long. */
  yieldTo(): void
}

/** The line of one key: it is paused and bounded for itself. */
export class KeyQueue implements LaneRoute {
  /** The key. */
  readonly name: string
  readonly gate: Gate
  /** Its bucket, once it has had one. */
  stack: readonly SharedBucket[] = []
  /** How many calls have begun and not ended; of these, how many wait and how many run. */
  calls = 0
  waiting = 0
  running = 0
  /** Forgets to tell of the end of its pause. */
  cancelNotification: Cancel = () => false
  /** When a store was asked about pauses last, in ms; pauses that end by then are known and not wanted. */
  askedAt = -Infinity
  ignorePausesUntil = -Infinity
  /** Who has passed and is not on the wire yet, and since when, in ms. */
  writer: Writer | undefined = undefined
  writingSince = -Infinity
  /** Whether it is seen to that the holder does not take too long. */
  writerWatched = false
  /** When the last of it was sent, in ms, and its cost, where slots are a store's. */
  sentAt = -Infinity
  sentCost = 0

  constructor(key: string, maxInFlight: number) {
    this.name = key
    this.gate = new Gate(maxInFlight)
  }

  /** Whether one that is made anew will do as well. */
  idle(now: number): boolean {
    return this.calls === 0 && !this.gate.paused && this.stack.every(bucket => bucket.idle(now))
  }
}

/** All lines, by key. One that is idle goes without loss, a few whenever a new one comes. */
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

  /** The line of a key, made when new; undefined: all places are taken by keys that are in use, or paused. */
  open(key: string, now: number, opened: (queue: KeyQueue) => void): KeyQueue | undefined {
    const known = this.#byKey.get(key)
    if (known !== undefined) return known
    this.#sweep(SWEEP, queue => queue.idle(now))
    // What a bucket still holds is lost with its line, as with its instance (core/keyspace.ts).
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

  /** Looks at so many, until places are free, and drops those that may go. */
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
