/**
 * Limits of single keys from outside, as requests find them. A table is swapped in one step. Then those who hold bucket instances of
 * changed keys are told. Until a source can be read again its last table stays.
 */
import { isDeepStrictEqual } from 'node:util'
import { capacityOf, isAnyRate } from '../../config/derived/default-capacity.js'
import { partOf } from '../../config/derived/worker-share.js'
import { ConfigError } from '../../config/load.js'
import { quoteFile } from '../../config/messages.js'
import { formatPath } from '../../config/problems.js'
import type { BucketSettings, OutsideLimits, TierSettings } from '../../config/settings.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import { type Cancel, type Clock, createVirtualClock } from '../../core/clock.js'
import { LimitTable, type OwnLimits } from '../../core/structures/limit-table.js'
import type { LimitsNews } from '../observe/observer.js'
import { checkBeginning, type LoadLimits, type LoadRequest, loadHere, loadInThread } from './load.js'
import { LimitsError } from './rows.js'
import { type WatchSource, watchSource } from './watch-source.js'

/** ms without another change before a file is read: most are written in several steps. */
const SETTLE = 100
/** ms after its first change at which a file is read that goes on changing. */
const LONGEST_SETTLE = 500
/** Sets whose limits are kept as objects. */
const MOST_MADE = 2 ** 18

/** Whose limits a bucket instance has: its own, those of its tier, or those of its bucket. */
export type BucketOwner = Pick<TierSettings, 'limits' | 'weight' | 'priority'>

export interface KeyLimitsOptions {
  readonly clock: Clock
  /** ms since 1970 */
  readonly wallNow: () => number
  /** Default: in a thread. */
  readonly load?: LoadLimits | undefined
  readonly watch?: WatchSource | undefined
  /** Keys of a bucket have other limits. Undefined: many of them. */
  changed(bucket: string, keys: readonly string[] | undefined): void
  told(news: LimitsNews): void
}

/** The limits of one bucket's keys. */
export class FollowedLimits {
  readonly #options: KeyLimitsOptions
  readonly #request: Omit<LoadRequest, 'before'>
  readonly #name: string
  readonly #ended = new AbortController()
  #stopWatching: (() => void) | undefined
  #table: LimitTable | undefined
  #loading: Promise<void> | undefined
  /** It has changed while it was read. */
  #isStale = false
  #changedAt: number | undefined
  #timer: Cancel | undefined
  /** Of these settings are the limits that are kept as objects. */
  #settings: BucketSettings | undefined
  readonly #bySet = new Map<number, BucketOwner>()
  /** By the numbers of a set as a text: so they stay the same objects with another table. */
  readonly #byNumbers = new Map<string, BucketOwner>()
  #last: LimitsNews | undefined
  /** ms since 1970, of the last time that it could be read. */
  readAt = 0

  constructor(settings: BucketSettings, options: KeyLimitsOptions) {
    this.#options = options
    this.#name = settings.name
    this.#request = requestFor(settings)
  }

  /** The last time that the source was read. */
  get last(): LimitsNews | undefined {
    return this.#last
  }

  get size(): number {
    return this.#table?.size ?? 0
  }

  /** The first keys of the source, with their limits. */
  *first(settings: BucketSettings, count: number): Generator<readonly [key: string, owner: BucketOwner]> {
    let left = count
    for (const entry of this.#table?.all() ?? []) {
      if (left === 0) return
      left -= 1
      const key = this.#table!.keyOf(entry)
      yield [key, this.ownerOf(settings, key)!]
    }
  }

  isFor(settings: BucketSettings): boolean {
    return isDeepStrictEqual(requestFor(settings), this.#request)
  }

  /** @throws LimitsError if the source cannot be read */
  async open(): Promise<void> {
    const { watch = watchSource } = this.#options
    this.#stopWatching = watch(this.#request.source, {
      clock: this.#options.clock,
      changed: () => this.#changed(),
      missing: failure => this.#tell({ bucket: this.#name, failure }),
    })
    this.#loading = this.#load()
    await this.#loading.catch(error => {
      this.close()
      throw error
    })
  }

  close(): void {
    this.#stopWatching?.()
    this.#timer?.()
    this.#ended.abort()
  }

  /** @param settings as they are at present @returns the same object as long as nothing changes. Undefined: the key has no limits here */
  ownerOf(settings: BucketSettings, key: string): BucketOwner | undefined {
    const set = this.#table?.find(key) ?? -1
    if (set < 0) return undefined
    if (settings !== this.#settings) {
      this.#settings = settings
      this.#bySet.clear()
      this.#byNumbers.clear()
    }
    return this.#bySet.get(set) ?? this.#make(settings, set)
  }

  #make(settings: BucketSettings, set: number): BucketOwner {
    if (this.#bySet.size >= MOST_MADE) this.#bySet.clear()
    if (this.#byNumbers.size >= MOST_MADE) this.#byNumbers.clear()
    const own = this.#table!.own(set)
    const name = own.join()
    const owner = this.#byNumbers.get(name) ?? createOwner(settings, own)
    this.#byNumbers.set(name, owner)
    this.#bySet.set(set, owner)
    return owner
  }

  #changed(): void {
    const { clock } = this.#options
    const now = clock.now()
    if (this.#loading !== undefined) {
      this.#isStale = true
      return
    }
    this.#changedAt ??= now
    this.#timer?.()
    this.#timer = clock.at(Math.min(now + SETTLE, this.#changedAt + LONGEST_SETTLE), () => this.#readAgain())
  }

  #readAgain(): void {
    this.#changedAt = undefined
    this.#loading = this.#load().catch((error: Error) => this.#tell({ bucket: this.#name, failure: error.message }))
  }

  async #load(): Promise<void> {
    const { load = loadInThread, wallNow, changed } = this.#options
    const before = this.#table
    try {
      const loaded = await load({ ...this.#request, before: before?.memory }, this.#ended.signal)
      if (this.#ended.signal.aborted) return
      this.#table = new LimitTable(loaded.memory)
      this.#bySet.clear()
      this.readAt = wallNow()
      this.#tell({ bucket: this.#name, ...loaded.report })
      if (before !== undefined && loaded.changed?.length !== 0) changed(this.#name, loaded.changed)
    } finally {
      this.#loading = undefined
      const { isStale } = { isStale: this.#isStale }
      this.#isStale = false
      if (isStale && !this.#ended.signal.aborted) this.#changed()
    }
  }

  #tell(news: LimitsNews): void {
    if (this.#ended.signal.aborted) return
    this.#last = news
    this.#options.told(news)
  }
}

function requestFor({ name, key, limits, quota, outside }: BucketSettings): Omit<LoadRequest, 'before'> {
  const leastInFlight = outside!.worker?.count ?? 1
  const by = quota === undefined ? (isAnyRate(limits) ? 'in flight' : 'rate') : 'quota'
  return { source: outside!.source, of: { name, key, by, leastInFlight } }
}

function createOwner({ limits, weight, outside }: BucketSettings, own: OwnLimits): BucketOwner {
  const [rate, capacity, ownWeight = weight, priority, maxInFlight] = own.map(given =>
    Number.isNaN(given) ? undefined : given,
  )
  return {
    limits: limitsOf(limits, outside!, { rate, capacity, maxInFlight }),
    ...(ownWeight !== undefined && { weight: ownWeight }),
    ...(priority !== undefined && { priority }),
  }
}

type Own = { readonly [name in 'rate' | 'capacity' | 'maxInFlight']: number | undefined }

/** As of a tier: without a capacity of its own, a rate of its own has the capacity that follows from it. */
function limitsOf(common: BucketLimits, outside: OutsideLimits, { rate, capacity, maxInFlight }: Own): BucketLimits {
  const { next, ...limits } = common
  const { worker, maxDelay, capacity: ofBucket } = outside
  const inFlight =
    maxInFlight === undefined ? {} : { maxInFlight: worker === undefined ? maxInFlight : partOf(maxInFlight, worker) }
  if (rate !== undefined) {
    const held = capacityOf({ rate, capacity: capacity ?? ofBucket, maxDelay, burst: limits.burst })
    return { ...limits, rate, capacity: held, ...inFlight }
  }
  const held = capacity ?? limits.capacity
  return { ...limits, capacity: held, ...(next && { next: { ...next, capacity: held } }), ...inFlight }
}

/** Those of all buckets. */
export class KeyLimits {
  readonly #options: KeyLimitsOptions
  #followed: ReadonlyMap<string, FollowedLimits> = new Map()

  constructor(options: KeyLimitsOptions) {
    this.#options = options
  }

  /** Undefined: the bucket has none. */
  of(bucket: string): FollowedLimits | undefined {
    return this.#followed.get(bucket)
  }

  all(): Iterable<readonly [bucket: string, limits: FollowedLimits]> {
    return this.#followed
  }

  ownerOf(settings: BucketSettings, key: string): BucketOwner | undefined {
    return settings.outside === undefined ? undefined : this.of(settings.name)?.ownerOf(settings, key)
  }

  /**
   * Reads what another configuration needs and what is not there yet.
   *
   * @returns puts it into effect, or gives it up
   * @throws ConfigError if a file cannot be used, LimitsError if PostgreSQL does not answer; then nothing has changed
   */
  async prepare(buckets: readonly BucketSettings[]): Promise<{ commit(): void; giveUp(): void }> {
    const next = new Map<string, FollowedLimits>()
    const giveUp = (): void => closeBut(this.#followed, next)
    for (const settings of buckets) {
      if (settings.outside === undefined) continue
      const known = this.of(settings.name)
      const isKnown = known?.isFor(settings) === true
      const limits = isKnown ? known : new FollowedLimits(settings, this.#options)
      next.set(settings.name, limits)
      if (isKnown) continue
      await limits.open().catch((error: Error) => {
        giveUp()
        throw explained(settings, error)
      })
    }
    const commit = (): void => {
      closeBut(next, this.#followed)
      this.#followed = next
    }
    return { commit, giveUp }
  }

  close(): void {
    for (const limits of this.#followed.values()) limits.close()
  }
}

/** Closes those that are not kept. */
function closeBut(kept: ReadonlyMap<string, FollowedLimits>, all: ReadonlyMap<string, FollowedLimits>): void {
  for (const [bucket, limits] of all) if (kept.get(bucket) !== limits) limits.close()
}

function explained({ name, outside }: BucketSettings, { message }: Error): Error {
  const { source } = outside!
  const path = formatPath(['buckets', name, 'limits'])
  if ('file' in source)
    return new ConfigError([{ path: `${path}.file`, message: `${quoteFile(source.file)}: ${message}` }])
  return new LimitsError(`${message}; start PostgreSQL, or change the url or the query`, `${path}.postgres`)
}

/** For a process that leaves reading them to others. @throws ConfigError */
export function checkFiles(buckets: readonly BucketSettings[]): void {
  for (const settings of buckets) {
    if (settings.outside === undefined) continue
    const { source, of } = requestFor(settings)
    try {
      if ('file' in source) checkBeginning(source.file, of)
    } catch (error) {
      throw explained(settings, error as Error)
    }
  }
}

/** Reads the limits of a configuration once, and does not follow them. @throws ConfigError, LimitsError */
export async function readKeyLimits(buckets: readonly BucketSettings[]): Promise<KeyLimits> {
  const nothing = (): void => undefined
  const quiet = { clock: createVirtualClock(), wallNow: () => 0, changed: nothing, told: nothing }
  const keyLimits = new KeyLimits({ ...quiet, load: loadHere, watch: () => nothing })
  const { commit } = await keyLimits.prepare(buckets)
  commit()
  return keyLimits
}
