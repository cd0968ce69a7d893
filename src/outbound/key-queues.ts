import type { Meter } from '../core/bucket/meter.js'
import type { Cancel } from '../core/clock.js'
import { type Demand, Gate, type GatePool, type LaneRoute, type SharedBucket } from '../core/queue/lane.js'
import { IdleSweep, SearchBudget } from '../core/structures/idle-sweep.js'
import type { SharedPause } from '../sharing/shared-pause.js'
import type { InFlight, LimitChanges } from './options.js'

/** How many queues a new one may inspect when all places are taken, on average. */
const CANDIDATES = 64

export interface ReleasedCost extends Demand {
  readonly releasedAt: number
}

/** A call that was released, is not sent yet, and keeps its queue's gate closed. */
export interface Writer {
  /** Lets others pass, because it takes too long. */
  yieldTo(): void
}

/** The queue of one key. It has its own pause and its own bounds. */
export class KeyQueue implements LaneRoute {
  readonly name: string
  readonly gate: Gate
  stack: readonly SharedBucket[] = []
  own: readonly SharedBucket[] = []
  /** Its limits by bucket, where they differ from those of other keys. */
  limits: LimitChanges | undefined
  /** Calls that have begun and not ended; of these, the waiting and the running ones. */
  calls = 0
  waiting = 0
  running = 0
  /** It is never dropped: a credential's pause is kept with it, though no call is. */
  isLasting = false
  /** Cancels the notification about the end of its pause. */
  cancelNotification: Cancel = () => false
  sharedPause: SharedPause | undefined = undefined
  /** The call that was released and is not sent yet, and since when, in ms. */
  writer: Writer | undefined = undefined
  writingSince = -Infinity
  /** A timer limits the time of the writer. */
  writerWatched = false
  /** How many calls were released as they came and may not be sent yet, and the last of them. */
  atOnce = 0
  lastAtOnce: ReleasedCost | undefined = undefined
  /** What has been sent, by bucket, as of the times at which it was sent. Empty unless a store grants the slots. */
  readonly sent: Meter[] = []

  constructor(key: string, { most, by }: InFlight, pool: GatePool) {
    this.name = key
    this.gate = new Gate(most)
    this.gate.byCost = by === 'cost'
    this.gate.pool = pool
  }

  /** Whether dropping it loses nothing. A key whose bucket still holds something would come back with an empty one. */
  idle(now: number): boolean {
    return this.calls === 0 && !this.gate.paused && !this.isLasting && this.own.every(bucket => bucket.idle(now))
  }
}

/** All queues, by key. Each new one drops a few idle ones. */
export class KeyQueues implements Iterable<KeyQueue> {
  readonly #byKey = new Map<string, KeyQueue>()
  readonly #pool: GatePool
  readonly #sweep = new IdleSweep(this.#byKey)
  readonly #budget = new SearchBudget()
  maxKeys: number
  maxInFlight: InFlight

  /** @param pool bounds the calls in flight of all keys */
  constructor(maxKeys: number, maxInFlight: InFlight, pool: GatePool) {
    this.maxKeys = maxKeys
    this.maxInFlight = maxInFlight
    this.#pool = pool
  }

  get size(): number {
    return this.#byKey.size
  }

  get(key: string): KeyQueue | undefined {
    return this.#byKey.get(key)
  }

  /** Undefined: `maxKeys` keys have calls, are paused, or owe time. @param opened prepares a new one. It may throw. */
  open(key: string, now: number, opened: (queue: KeyQueue) => void): KeyQueue | undefined {
    const known = this.#byKey.get(key)
    if (known !== undefined) return known
    this.#sweep.sweep(queue => queue.idle(now))
    this.#budget.save(CANDIDATES, this.size)
    if (this.size >= this.maxKeys && !this.#makePlace(now)) return undefined
    const queue = new KeyQueue(key, this.maxInFlight, this.#pool)
    opened(queue)
    this.#byKey.set(key, queue)
    return queue
  }

  [Symbol.iterator](): Iterator<KeyQueue> {
    return this.#byKey.values()
  }

  #makePlace(now: number): boolean {
    for (let left = this.size; left > 0 && this.size >= this.maxKeys && this.#budget.spend(); left -= 1) {
      const [key, queue] = this.#sweep.next()!
      if (queue.idle(now)) this.#byKey.delete(key)
    }
    return this.size < this.maxKeys
  }
}
