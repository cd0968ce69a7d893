/**
 * Other limits of single keys, for a while (sharing/board.ts). They survive a reload, and end by themselves. With a store they are kept
 * there, and all instances have them. News of a change comes at once. It may be lost, so all overrides are read from time to time.
 * Without a store they are kept here.
 */

import type { BucketLimits, NextLimits } from '../core/bucket/limits.js'
import type { Cancel, Clock } from '../core/clock.js'
import { type Board, MOST_OVERRIDES, type Override } from '../sharing/board.js'
import { type Store, StoreError } from '../sharing/store.js'

/** ms between two questions to the store for all overrides. */
const ASK_INTERVAL = 5_000
/** ms. An end that the store tells later or earlier by less than this is the same. */
const SAME_END = 500
/** Names of the buckets that upstreams adapt. What is left for them on the board is theirs (upstream/adaptive-limit.ts). */
const ADAPTED = /^adaptive(:|$)/

interface OverridesOptions {
  readonly clock: Clock
  /** ms of the clock of the buckets */
  now(): number
  readonly store: Pick<Store, 'board' | 'listen'> | undefined
  /** The limits of a key are others from now on. */
  changed(bucket: string, key: string): void
  /** To be told: an override was set here or by another instance, or it has ended. */
  told(override: Override, what: 'set' | 'ended'): void
}

interface Lasting {
  readonly override: Override
  readonly end: number
  readonly endsAt: number
  readonly cancel: Cancel
  /** What is made of limits. */
  readonly made: WeakMap<BucketLimits, BucketLimits>
}

export class Overrides {
  readonly #options: OverridesOptions
  /** By bucket name, then by key. */
  readonly #lasting = new Map<string, Map<string, Lasting>>()
  #size = 0
  #changes = 0
  #stopListening: (() => void) | undefined
  #cancelAsking: Cancel | undefined
  #isClosed = false

  constructor(options: OverridesOptions) {
    this.#options = options
  }

  /** @param limits without an override @returns those of the key, always the same object */
  limitsOf(limits: BucketLimits, key: string): BucketLimits {
    if (this.#size === 0) return limits
    const lasting = this.#lasting.get(limits.name)?.get(key)
    if (lasting === undefined) return limits
    const known = lasting.made.get(limits)
    if (known !== undefined) return known
    const { capacity = limits.capacity } = lasting.override
    // A quota has none, though the bucket may have had one when this was set.
    const rate = limits.quota === undefined ? (lasting.override.rate ?? limits.rate) : limits.rate
    const made = { ...limits, rate, capacity, next: nextOf(limits, lasting) }
    lasting.made.set(limits, made)
    return made
  }

  list(): Override[] {
    const now = this.#options.clock.now()
    return [...this.#all()].map(({ override, end }) => ({ ...override, endsIn: end - now }))
  }

  find(bucket: string, key: string): Override | undefined {
    const lasting = this.#lasting.get(bucket)?.get(key)
    return lasting && { ...lasting.override, endsIn: lasting.end - this.#options.clock.now() }
  }

  /** Takes over what other instances have set so far, and listens to them. */
  join(): void {
    const { store } = this.#options
    if (store === undefined) return
    this.#stopListening = store.listen?.(news => {
      if (news.about === 'override') this.#heard(news.override)
    })
    void this.#ask()
  }

  close(): void {
    this.#isClosed = true
    this.#stopListening?.()
    this.#cancelAsking?.()
    for (const { cancel } of this.#all()) cancel()
  }

  /** Sets an override. False: there are as many as there may be. @throws StoreError if the store does not answer */
  async set(override: Override): Promise<boolean> {
    const { store } = this.#options
    const before = this.#changes
    if (store === undefined) {
      if (this.#size >= MOST_OVERRIDES && this.find(override.bucket, override.key) === undefined) return false
    } else if (!(await boardOf(store).setOverride(override))) return false
    // What was heard meanwhile may be newer.
    if (this.#changes === before) this.#heard(override)
    return true
  }

  /** Ends an override before its time. False: there is none. @throws StoreError if the store does not answer */
  async end(bucket: string, key: string): Promise<boolean> {
    const { store } = this.#options
    const before = this.#changes
    const isKnown = this.find(bucket, key) !== undefined
    const wasThere = store !== undefined && (await boardOf(store).endOverride(bucket, key))
    if (this.#changes === before) this.#ended(bucket, key)
    return wasThere || isKnown
  }

  *#all(): Generator<Lasting> {
    for (const keys of this.#lasting.values()) yield* keys.values()
  }

  #heard(override: Override): void {
    const { bucket, key, endsIn } = override
    if (ADAPTED.test(bucket)) return
    if (endsIn <= 0) return this.#ended(bucket, key)
    const { clock, changed, told } = this.#options
    const end = clock.now() + endsIn
    const before = this.#drop(bucket, key)
    const cancel = clock.at(end, () => this.#ended(bucket, key))
    const keys = this.#lasting.get(bucket) ?? new Map<string, Lasting>()
    this.#lasting.set(bucket, keys)
    const isSame = before !== undefined && isAlike(before, override, end)
    const endsAt = this.#options.now() + endsIn
    keys.set(key, { override, end, endsAt, cancel, made: isSame ? before.made : new WeakMap() })
    this.#size += 1
    this.#changes += 1
    if (isSame) return
    changed(bucket, key)
    told(override, 'set')
  }

  #ended(bucket: string, key: string): void {
    const before = this.#drop(bucket, key)
    if (before === undefined) return
    this.#changes += 1
    const { changed, told } = this.#options
    changed(bucket, key)
    told({ ...before.override, endsIn: 0 }, 'ended')
  }

  #drop(bucket: string, key: string): Lasting | undefined {
    const keys = this.#lasting.get(bucket)
    const lasting = keys?.get(key)
    if (lasting === undefined) return undefined
    lasting.cancel()
    keys!.delete(key)
    if (keys!.size === 0) this.#lasting.delete(bucket)
    this.#size -= 1
    return lasting
  }

  /** Asks the store for all of them, and again later. What changes meanwhile is newer than its answer. */
  async #ask(): Promise<void> {
    const { clock, store } = this.#options
    const before = this.#changes
    try {
      const all = (await store!.board?.overrides()) ?? []
      if (this.#changes === before && !this.#isClosed) this.#takeOver(all)
    } catch {
      // The store is away. What is known lasts until its end.
    }
    if (!this.#isClosed) this.#cancelAsking = clock.at(clock.now() + ASK_INTERVAL, () => void this.#ask())
  }

  #takeOver(all: readonly Override[]): void {
    const names = new Set(all.map(({ bucket, key }) => JSON.stringify([bucket, key])))
    for (const { override } of [...this.#all()]) {
      const { bucket, key } = override
      if (!names.has(JSON.stringify([bucket, key]))) this.#ended(bucket, key)
    }
    for (const override of all) this.#heard(override)
  }
}

/** What limits with an override become next: at its end, or with the time of day before that. */
function nextOf({ rate, capacity, next }: BucketLimits, { override, endsAt }: Lasting): NextLimits {
  if (next === undefined || next.at >= endsAt) return { at: endsAt, rate, capacity }
  if (override.rate !== undefined) return { at: endsAt, rate: next.rate, capacity }
  return { ...next, capacity: override.capacity ?? next.capacity }
}

function boardOf({ board }: Pick<Store, 'board'>): Board {
  if (board === undefined) throw new StoreError('the store cannot keep overrides yet')
  return board
}

function isAlike({ override, end }: Lasting, { rate, capacity }: Override, newEnd: number): boolean {
  return override.rate === rate && override.capacity === capacity && Math.abs(end - newEnd) < SAME_END
}
