/**
 * How instances share buckets, in ten sentences:
 *
 * 1. Instances on one store have the same buckets: the store keeps what a leaky bucket needs, and decides there (store.ts,
 *    src/decider).
 * 2. A newcomer needs room in all of its buckets, which the instance asks for or has leased (shared-room.ts).
 * 3. With room it waits in a lane here, so order, priorities and fair turns are those of one process (core/queue).
 * 4. In its turn it needs a slot: a piece of the schedule of its buckets that nobody else has (store-slots.ts).
 * 5. The slot of an idle bucket is claimed together with the room, in one round trip.
 * 6. A busy bucket is leased: every 120 ms an instance reports what waits, and gets slots and room for the next frame
 *    (lease-client.ts, bucket-lease.ts).
 * 7. What is not used goes back, and what was missed is lost, so all instances together never exceed the rate
 *    (docs/decisions/slot-leases.md).
 * 8. Rejected clients are told moments of one sequence of the store, whichever instance they come to (promises.ts).
 * 9. Instances send heartbeats, so each knows how many there are (membership.ts, headcount.ts).
 * 10. While a part of the store does not answer, each instance has its part of each rate there, or what `onOutage` says
 *     (shard.ts, and this file).
 */
import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import type { Cancel, Clock } from '../core/clock.js'
import { ignore } from '../core/maybe-promise.js'
import type { Gate, SharedBucket } from '../core/queue/lane.js'
import type { ReleaseMode } from '../core/release/slot-source.js'
import type { Shaper } from '../core/shaper.js'
import { keptIn } from '../core/structures/maps.js'
import type { BucketRef } from '../decider/record.js'
import type { Kept, News } from './board.js'
import { Headcount, type LeastInstances } from './headcount.js'
import { type MembershipState, PROBE_MS } from './membership.js'
import { modeAfter, type OnOutage, Shard } from './shard.js'
import { shareBy } from './shared-room.js'
import type { Store } from './store.js'
import { StoredBucket } from './stored-bucket.js'

/** How long requests wait in an outage with `closed`, in ms. */
const CLOSED_WAIT_MS = 2_000
/** How long a start waits for the store. An instance that starts alone knows of no others. */
const JOIN_MS = 2_000
/** How long a reset waits for what the others tell of it, besides two round trips to the store, in ms. */
const KEPT_TOLD_MS = 150
const NOTHING_KEPT: Kept = { kept: 0, unreported: 0, waiting: 0, queued: 0 }
/** The shards of a store that is one, and while they are not known. */
const ONE: readonly string[] = ['']
/** From the best to the worst. */
const STATES: readonly MembershipState[] = ['shared', 'returning', 'doubtful', 'alone']

export interface ShardNews {
  /** Empty: the store is one. */
  readonly shard: string
  readonly state: MembershipState
  readonly instances: number
  readonly reason: string | undefined
  /** How many requests have been decided without it since it last answered. */
  readonly decidedAlone: number
}

/** A bucket instance after a reset, in all instances. `unreported` is of the others: the level here has what was admitted here. */
export interface Emptied extends Kept {
  /** What it holds: what waits, and what the last release still holds. */
  readonly level: number
}

export interface SharingOptions {
  readonly store: Store
  readonly onOutage: OnOutage
  /** For heartbeats. It may be a few ms late. */
  readonly clock: Clock
  readonly id: string
  readonly least?: LeastInstances | undefined
  /** Called when a shard has changed its state, and when the number of instances has changed. */
  changed?(news: ShardNews): void
}

export interface SharingContext {
  readonly shaper: Shaper
  readonly clock: Clock
  buckets(): Iterable<SharedBucket>
  peek(name: string, key: string): SharedBucket | undefined
  gates(): Iterable<Gate>
}

export class Sharing {
  readonly store: Store
  readonly #options: SharingOptions
  readonly #headcount: Headcount
  readonly #shards = new Map<string, Shard>()
  #listed: readonly string[] | undefined
  #hasJoined = false
  #context: SharingContext | undefined
  #groups: ReadonlyMap<string, string> = new Map()
  #severalLanes: ReadonlySet<string> = new Set()
  /** Whether all shards have been shared for long, so that no limits are parts of others. */
  #isWhole = true
  /** Cancels the end of the wait of each shard that this instance is alone without. */
  readonly #expiries = new Map<Shard, Cancel>()
  #stopListening: (() => void) | undefined
  readonly #farewells: (() => Promise<void>)[] = []

  constructor(options: SharingOptions) {
    this.#options = options
    this.store = options.store
    this.#headcount = new Headcount(options.least ?? {}, () => {
      for (const shard of this.#shards.values()) this.#apply(shard)
    })
    this.#look()
  }

  /** The state of the shard that is worst off. */
  get state(): MembershipState {
    const states = Array.from(this.#shards.values(), ({ membership }) => STATES.indexOf(membership.state))
    return STATES[Math.max(...states)]!
  }

  /** For the shaper whose buckets these are. @param clock that of the shaper */
  shareBy(clock: Clock): ReturnType<typeof shareBy> {
    const { store, onOutage } = this
    return shareBy({ store, clock, onOutage, unanswered: this.#unanswered, instances: () => this.instances })
  }

  get instances(): number {
    return this.#headcount.instances
  }

  get ready(): boolean {
    for (const { membership } of this.#shards.values()) if (membership.ready) return true
    return false
  }

  get onOutage(): OnOutage {
    return this.#options.onOutage
  }

  /** Why a shard does not answer. Undefined: all do, or nothing is known. */
  get reason(): string | undefined {
    const away = Array.from(this.#shards.values()).find(({ membership }) => !membership.ready)
    return away?.membership.reason
  }

  /** Whether newcomers are let in: by the store, or without it. */
  get admits(): boolean {
    return this.ready || this.#options.onOutage !== 'closed'
  }

  /** Connects to a shaper and joins the other instances. False: the store does not answer. */
  async join(context: SharingContext): Promise<boolean> {
    this.#context = context
    this.#stopListening = this.store.listen?.(this.#told)
    const { clock } = this.#options
    const deadline = clock.now() + JOIN_MS
    let answered = await this.#probeAll()
    while (!answered.all && clock.now() < deadline) {
      await new Promise<void>(resolve => clock.at(clock.now() + PROBE_MS, resolve))
      answered = await this.#probeAll()
    }
    this.#hasJoined = true
    for (const shard of this.#shards.values()) shard.membership.start(shard.hasAnswered ? 'shared' : 'alone')
    return answered.any
  }

  /** Tries all shards once, those included that are found meanwhile. */
  async #probeAll(): Promise<{ readonly any: boolean; readonly all: boolean }> {
    for (;;) {
      const tried = [...this.#shards.values()]
      const answers = await Promise.all(tried.map(shard => shard.probe()))
      if (tried.every(shard => this.#shards.get(shard.name) === shard) && tried.length === this.#shards.size)
        return { any: answers.includes(true), all: !answers.includes(false) }
    }
  }

  /** These buckets had no answer to a question of this time, in ms. Whose shards do answer, those are in doubt for a round trip. */
  readonly #unanswered = (stack: readonly SharedBucket[], askedAt: number): void => {
    const buckets = stack as readonly StoredBucket[]
    for (const shard of new Set(buckets.map(bucket => bucket.shard))) {
      const own = buckets.filter(bucket => bucket.shard === shard).map(({ ref }) => ref)
      shard.membership.failed(own, askedAt)
    }
  }

  /** Sets the store's group of each bucket name. In `severalLanes` requests of several routes or classes may wait. */
  group(groups: ReadonlyMap<string, string>, severalLanes: ReadonlySet<string> = new Set()): void {
    this.#groups = groups
    this.#severalLanes = severalLanes
    this.#assign()
  }

  createBucket(limits: BucketLimits, key: string): SharedBucket {
    const { name } = limits
    const shard = this.#shardOf({ limits, key, group: this.#groupOf(name, key) })
    return new StoredBucket(limits, key, this.#groupOf, shard)
  }

  readonly #groupOf = (name: string, key: string): string => this.#groups.get(name) ?? `${name}:${key}`

  limitsOf(limits: BucketLimits, key: string): BucketLimits {
    if (this.#isWhole) return limits
    return this.#shardOf({ limits, key, group: this.#groupOf(limits.name, key) }).limitsOf(limits)
  }

  /** Called when this instance leaves, if the store answers then. */
  beforeLeaving(farewell: () => Promise<void>): void {
    this.#farewells.push(farewell)
  }

  async close(): Promise<void> {
    const farewells = this.ready ? this.#farewells : []
    await Promise.all([
      ...Array.from(this.#shards.values(), ({ membership }) => membership.leave()),
      ...farewells.map(farewell => farewell().catch(ignore)),
    ])
    for (const cancel of this.#expiries.values()) cancel()
    this.#stopListening?.()
    await this.store.close()
  }

  /**
   * Forgets what has passed a bucket, for all instances. What waits goes on counting in the store.
   *
   * @returns what waits in all instances, as far as they tell it soon
   */
  async reset(bucket: StoredBucket): Promise<Emptied> {
    const { clock } = this.#context!
    const { ref } = bucket
    const told = this.#listenForKept(ref)
    try {
      await this.store.reset(ref)
      const emptiedAt = clock.now()
      const own = await this.#forgotten(bucket)
      const others = await told.all()
      const sum = (of: (kept: Kept) => number): number => others.reduce((total, kept) => total + of(kept), of(own))
      const { kept, queued } = { kept: sum(each => each.kept), queued: sum(each => each.queued) }
      // The first has left at the reset, if the rest of its stack allows.
      const drained = (clock.now() - emptiedAt) * ref.limits.rate
      const unreported = others.reduce((total, each) => total + each.unreported, 0)
      return { kept, unreported, queued, waiting: sum(each => each.waiting), level: Math.max(queued, kept - drained) }
    } finally {
      told.stop()
    }
  }

  /** Collects what the others tell of a reset. They may be fewer than is known, and news may be lost. */
  #listenForKept({ limits: { name }, key }: BucketRef): { all(): Promise<readonly Kept[]>; stop(): void } {
    const { clock, id } = this.#options
    const told = new Map<string, Kept>()
    let heardAll = ignore
    const stop = this.store.listen?.(news => {
      if (news.about !== 'kept' || news.bucket !== name || news.key !== key || news.from === id) return
      told.set(news.from, news.kept)
      if (told.size >= this.instances - 1) heardAll()
    })
    return {
      stop: () => stop?.(),
      all: async () => {
        if (stop !== undefined && told.size < this.instances - 1) {
          await new Promise<void>(resolve => {
            const cancel = clock.at(clock.now() + KEPT_TOLD_MS + 2 * this.store.horizon, resolve)
            heardAll = () => {
              cancel()
              resolve()
            }
          })
        }
        return [...told.values()]
      },
    }
  }

  /** Another instance has reset a bucket instance. Those that wait for it here ask the store anew. */
  readonly #told = (news: News): void => {
    if (news.about === 'reset') void this.#tellKept(news)
  }

  async #tellKept({ bucket: name, key }: { readonly bucket: string; readonly key: string }): Promise<void> {
    const bucket = this.#context!.peek(name, key) as StoredBucket | undefined
    const kept = bucket === undefined ? NOTHING_KEPT : await this.#forgotten(bucket)
    try {
      await this.store.board?.tell({ about: 'kept', from: this.#options.id, bucket: name, key, kept })
    } catch {
      // Who has reset it does not wait for long.
    }
  }

  async #forgotten(bucket: StoredBucket): Promise<Kept> {
    const { shaper, clock } = this.#context!
    // What was due before does not wait any more.
    shaper.engine.settle()
    const { ref, queued, unreported } = bucket
    bucket.levelReported(queued, clock.now())
    shaper.engine.reset(bucket)
    const kept = (): Kept => ({ kept: queued, unreported, waiting: bucket.waiting, queued: bucket.queued })
    if (queued === 0) return kept()
    // If it does not fit, because others were faster, that is nobody's overflow.
    const { blockFor: _, ...limits } = ref.limits
    const own = { ...ref, limits: { ...limits, overflow: 'reject' as const } }
    try {
      await this.store.admit({ stack: [own], cost: queued, maxWait: Infinity, claim: false })
    } catch {
      // The queue here has to fit as well, whatever the store counts.
    }
    return kept()
  }

  /** A bucket may have moved to a shard that is not listed yet. Then the first one stands for it until it is. */
  #shardOf(ref: BucketRef): Shard {
    const [first] = this.#shards.values()
    return this.#shards.get(this.store.shardOf?.(ref) ?? '') ?? first!
  }

  /** Asks the store for its shards. Those that are new begin as `alone` if any other is not shared: it may have taken its place. */
  readonly #look = (): void => {
    const { shards = ONE } = this.store
    if (shards === this.#listed) return
    const listed = new Set(shards.length > 0 ? shards : ONE)
    this.#listed = shards
    const begin = this.#shards.size > 0 && this.state !== 'shared' ? 'alone' : 'shared'
    for (const [name, shard] of this.#shards) {
      if (listed.has(name)) continue
      this.#shards.delete(name)
      this.#headcount.gone(name, [...listed][0]!)
      // Who comes next would count this instance in the registry for the time before the shards are known.
      void shard.membership.leave()
      this.#expiries.get(shard)?.()
      this.#expiries.delete(shard)
    }
    for (const name of listed) if (!this.#shards.has(name)) this.#open(name, begin)
    this.#assign()
  }

  #open(name: string, begin: 'shared' | 'alone'): void {
    const { store, clock, id } = this.#options
    const shard: Shard = new Shard({
      ...{ store, clock, id, shard: name, headcount: this.#headcount },
      hasSeveralLanes: bucket => this.#severalLanes.has(bucket),
      changed: () => this.#apply(shard),
      probed: this.#look,
    })
    this.#shards.set(name, shard)
    if (this.#hasJoined) shard.membership.start(begin)
  }

  #assign(): void {
    if (this.#context === undefined) return
    const moved = new Map<Shard, StoredBucket[]>()
    for (const bucket of this.#context.buckets() as Iterable<StoredBucket>) {
      const shard = this.#shardOf(bucket.ref)
      if (shard !== bucket.shard) keptIn(moved, shard, () => []).push(bucket)
    }
    for (const [shard, buckets] of moved) {
      this.#switch(buckets, shard.mode, () => {
        for (const bucket of buckets) bucket.shard = shard
      })
    }
  }

  #apply(shard: Shard): void {
    if (!this.#hasJoined) return
    const { onOutage } = this.#options
    const { share } = shard
    const mode = modeAfter(shard.membership.state, onOutage)
    shard.takeShare(onOutage)
    this.#isWhole = Array.from(this.#shards.values()).every(({ share }) => share === 1)
    if (mode !== shard.mode || share !== shard.share) this.#change(shard, mode)
    this.#expireLater(shard)
    this.#report(shard)
  }

  #change(shard: Shard, mode: ReleaseMode): void {
    const own = [...(this.#context!.buckets() as Iterable<StoredBucket>)].filter(bucket => bucket.shard === shard)
    this.#switch(own, mode, () => {
      shard.mode = mode
    })
  }

  /** Changes how requests pass these buckets by `commit`, after they have the limits of the new share. */
  #switch(buckets: readonly StoredBucket[], mode: ReleaseMode, commit: () => void): void {
    const { shaper, clock } = this.#context!
    const now = clock.now()
    const others = buckets.filter(({ shard }) => shard.mode !== mode)
    for (const bucket of others) if (bucket.shard.mode === 'claimed') bucket.detach(now)
    for (const bucket of buckets) {
      const { limits } = bucket
      const own = this.limitsOf(limits.whole ?? limits, bucket.key)
      if (own !== limits) shaper.engine.setLimits(bucket, own)
    }
    commit()
    if (mode === 'direct') for (const bucket of buckets) bucket.startTurns(now)
    if (others.length > 0) shaper.engine.releaseModeChanged(others)
  }

  #expireLater(shard: Shard): void {
    const { onOutage, clock } = this.#options
    if (shard.membership.state !== 'alone') {
      this.#expiries.get(shard)?.()
      this.#expiries.delete(shard)
    } else if (onOutage === 'closed' && !this.#expiries.has(shard)) {
      this.#expiries.set(
        shard,
        clock.at(clock.now() + CLOSED_WAIT_MS, () => this.#expireAll(shard)),
      )
    }
  }

  /** Expires the requests that wait for a shard, because without it nothing decides when they may leave. */
  #expireAll(shard: Shard): void {
    const { shaper, gates } = this.#context!
    shaper.engine.replan(gates(), (_, __, stack) =>
      stack.some(bucket => (bucket as StoredBucket).shard === shard) ? -1 : Infinity,
    )
  }

  #report(shard: Shard): void {
    const { name: of, membership, decidedAlone } = shard
    const { state, reason } = membership
    const news: ShardNews = { shard: of, state, instances: this.instances, reason, decidedAlone }
    if (!shard.noteReport(news)) return
    this.#options.changed?.(news)
    if (state === 'shared') shard.decidedAlone = 0
  }
}
