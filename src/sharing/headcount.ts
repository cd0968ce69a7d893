/**
 * How many instances share the store: the largest number that any of its shards has told lately, less those that have left in
 * order. A shard that has lost its data has an empty registry, and must not make every instance believe that it is the only
 * one. What a shard told before it failed counts until others have told more recent numbers for a while.
 */
import type { Roll } from './store.js'

/** How long a number of instances counts after it was seen, and the assumed one after the store was first seen, in ms. */
const MEMORY_MS = 30_000

/** Lower bounds on the number of instances, this one included. */
export interface LeastInstances {
  /** Holds until the store has answered for a while: all instances may start at once, and it may fail before they are counted. */
  readonly assumed?: number | undefined
  readonly workers?: number | undefined
}

export class Headcount {
  readonly #least: LeastInstances
  readonly #changed: () => void
  #sightings: readonly { readonly shard: string; readonly at: number; readonly count: number }[] = []
  /** ms. Undefined: the store has not answered. */
  #firstAt: number | undefined
  #isCounted = false
  /** How many instances had left each shard at its last answered beat. */
  readonly #left = new Map<string, number>()

  constructor(least: LeastInstances, changed: () => void) {
    this.#least = least
    this.#changed = changed
  }

  get instances(): number {
    const { assumed = 1, workers = 1 } = this.#least
    return Math.max(workers, this.#isCounted ? 1 : assumed, ...this.#sightings.map(({ count }) => count))
  }

  /** @param at ms */
  seen(shard: string, { count, left }: Roll, at: number): void {
    const before = this.instances
    this.#firstAt ??= at
    this.#isCounted ||= at - this.#firstAt >= MEMORY_MS
    const newlyLeft = Math.max(0, left - (this.#left.get(shard) ?? left))
    this.#left.set(shard, left)
    const others = this.#sightings
      .map(known => (known.shard === shard ? { ...known, count: known.count - newlyLeft } : known))
      .filter(known => known.at > at - MEMORY_MS && (known.shard !== shard || known.count > count))
    this.#sightings = [...others, { shard, at, count }]
    if (this.instances !== before) this.#changed()
  }

  /** A shard is no more, or has another name. Those who leave `heir` have left it, too. */
  gone(shard: string, heir: string): void {
    this.#sightings = this.#sightings.map(known => (known.shard === shard ? { ...known, shard: heir } : known))
    this.#left.delete(shard)
  }
}
