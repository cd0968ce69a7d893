/** Connects this instance to a shared store: its share of the limits, and how it decides without the store or a shard of it. */
import type { News } from '../core/board.js'
import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import type { Cancel, Clock } from '../core/clock.js'
import type { Gate, SharedBucket } from '../core/queue/lane.js'
import type { Shaper } from '../core/shaper.js'
import { type ReleaseMode, StoredBucket } from '../core/shared/stored-bucket.js'
import { type OnOutage, SharedShaper } from '../core/shared-shaper.js'
import type { BucketRef, Store } from '../core/store.js'
import { Headcount, type LeastInstances } from './headcount.js'
import { type MembershipState, PROBE_MS } from './membership.js'
import { modeAfter, Shard } from './shard.js'

/** How long requests wait in an outage with `closed`, in ms. */
const CLOSED_WAIT_MS = 2_000

/** How long a start waits for the store. An instance that starts alone knows of no others. */
const JOIN_MS = 2_000

/** The shards of a store that is one, and while they are not known. */
const ONE: readonly string[] = ['']

/** From the best to the worst. */
const STATES: readonly MembershipState[] = ['shared', 'returning', 'doubtful', 'alone']

/** What has become of a shard of the store. */
export interface ShardNews {
  /** Empty: the store is one. */
  readonly shard: string
  readonly state: MembershipState
  /** The known number of instances, this one included. */
  readonly instances: number
  /** Why it does not answer, if that is known. */
  readonly reason: string | undefined
  /** How many requests have been decided without it since it last answered. */
  readonly decidedAlone: number
}

export interface SharingOptions {
  readonly store: Store
  readonly onOutage: OnOutage
  /** For heartbeats. It may be a few ms late. */
  readonly clock: Clock
  /** Unique among all instances. */
  readonly id: string
  readonly least?: LeastInstances | undefined
  /** Called when a shard has changed its state, and when the number of instances has changed. */
  changed?(news: ShardNews): void
}

/** The parts of a proxy or a library's shaper that sharing needs. */
export interface SharingContext {
  readonly shaper: Shaper
  readonly clock: Clock
  buckets(): Iterable<SharedBucket>
  /** A bucket instance that is known here. */
  peek(name: string, key: string): SharedBucket | undefined
  gates(): Iterable<Gate>
}

export class Sharing {
  readonly store: Store
  readonly #options: SharingOptions
  readonly #headcount: Headcount
  readonly #shards = new Map<string, Shard>()
  /** The shards of the store when it was last asked for them. */
  #listed: readonly string[] | undefined
  #hasJoined = false
  #shaper: SharedShaper | undefined
  #context: SharingContext | undefined
  #groups: ReadonlyMap<string, string> = new Map()
  #severalLanes: ReadonlySet<string> = new Set()
  /** Whether all shards have been shared for long, so that no limits are parts of others. */
  #isWhole = true
  /** Cancels the end of the wait of each shard that this instance is alone without. */
  readonly #expiries = new Map<Shard, Cancel>()
  #stopListening: (() => void) | undefined

  constructor(options: SharingOptions) {
    this.#options = options
    this.store = options.store
    this.#headcount = new Headcount(options.least ?? {}, () => this.#recount())
    this.#look()
  }

  /** The state of the shard that is worst off. */
  get state(): MembershipState {
    const states = Array.from(this.#shards.values(), ({ membership }) => STATES.indexOf(membership.state))
    return STATES[Math.max(...states)]!
  }

  get shaper(): SharedShaper {
    return this.#shaper!
  }

  /** The known number of instances, this one included. */
  get instances(): number {
    return this.#headcount.instances
  }

  /** Whether any shard of the store decides. */
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
    this.#shaper = new SharedShaper({
      shaper: context.shaper,
      store: this.store,
      clock: context.clock,
      onOutage: this.#options.onOutage,
      unanswered: this.unanswered,
    })
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

  /**
   * Reports that a question about these buckets had no answer. Nobody knows which of their shards has not answered. Those that do
   * answer are in doubt for a round trip.
   *
   * @param askedAt ms
   */
  readonly unanswered = (stack: readonly SharedBucket[], askedAt: number): void => {
    const buckets = stack as readonly StoredBucket[]
    for (const shard of new Set(buckets.map(bucket => bucket.shard as Shard))) {
      const own = buckets.filter(bucket => bucket.shard === shard).map(({ ref }) => ref)
      shard.membership.failed(own, askedAt)
    }
  }

  /**
   * Sets the group of each bucket name. The store keeps a group together. A bucket without a group is by itself.
   *
   * @param severalLanes buckets in which requests of several routes or classes may wait
   */
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

  /** This instance's share of the limits of a key. */
  limitsOf(limits: BucketLimits, key: string): BucketLimits {
    if (this.#isWhole) return limits
    return this.#shardOf({ limits, key, group: this.#groupOf(limits.name, key) }).limitsOf(limits)
  }

  async close(): Promise<void> {
    await Promise.all(Array.from(this.#shards.values(), ({ membership }) => membership.leave()))
    for (const cancel of this.#expiries.values()) cancel()
    this.#stopListening?.()
    await this.store.close()
  }

  /** Forgets what has passed a bucket, for all instances. What waits goes on counting in the store. */
  async reset(bucket: StoredBucket): Promise<void> {
    await this.store.reset(bucket.ref)
    await this.#forgotten(bucket)
  }

  /** Another instance has reset a bucket instance. Those that wait for it here ask the store anew. */
  readonly #told = (news: News): void => {
    if (news.about !== 'reset') return
    const bucket = this.#context!.peek(news.bucket, news.key) as StoredBucket | undefined
    if (bucket !== undefined) void this.#forgotten(bucket)
  }

  async #forgotten(bucket: StoredBucket): Promise<void> {
    const { shaper, clock } = this.#context!
    const { ref, queued } = bucket
    bucket.levelReported(queued, clock.now())
    shaper.control.reset(bucket)
    if (queued === 0) return
    // If it does not fit, because others were faster, that is nobody's overflow.
    const { blockFor: _, ...limits } = ref.limits
    const own = { ...ref, limits: { ...limits, overflow: 'reject' as const } }
    try {
      await this.store.admit({ stack: [own], cost: queued, maxWait: Infinity, claim: false })
    } catch {
      // The queue here has to fit as well, whatever the store counts.
    }
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

  /** Finds out on which shard each bucket lives. */
  #assign(): void {
    if (this.#context === undefined) return
    const moved = new Map<Shard, StoredBucket[]>()
    for (const bucket of this.#context.buckets() as Iterable<StoredBucket>) {
      const shard = this.#shardOf(bucket.ref)
      if (shard === bucket.shard) continue
      const others = moved.get(shard)
      if (others === undefined) moved.set(shard, [bucket])
      else others.push(bucket)
    }
    for (const [shard, buckets] of moved) {
      this.#switch(buckets, shard.mode, () => {
        for (const bucket of buckets) bucket.shard = shard
      })
    }
  }

  /** The number of instances has changed. */
  #recount(): void {
    for (const shard of this.#shards.values()) this.#apply(shard)
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

  /** Changes how requests pass the buckets of a shard. */
  #change(shard: Shard, mode: ReleaseMode): void {
    const own = [...(this.#context!.buckets() as Iterable<StoredBucket>)].filter(bucket => bucket.shard === shard)
    this.#switch(own, mode, () => {
      shard.mode = mode
    })
  }

  /**
   * Changes how requests pass these buckets. Nothing passes in the new way before the limits are those of the new share.
   *
   * @param commit makes the change
   */
  #switch(buckets: readonly StoredBucket[], mode: ReleaseMode, commit: () => void): void {
    const { shaper, clock } = this.#context!
    const now = clock.now()
    const others = buckets.filter(({ shard }) => shard.mode !== mode)
    for (const bucket of others) if (bucket.shard.mode === 'claimed') bucket.detach(now)
    for (const bucket of buckets) {
      const { limits } = bucket
      const own = this.limitsOf(limits.whole ?? limits, bucket.key)
      if (own !== limits) shaper.control.setLimits(bucket, own)
    }
    commit()
    if (mode === 'direct') for (const bucket of buckets) bucket.startTurns(now)
    if (others.length > 0) shaper.releaseModeChanged(others)
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
    shaper.control.replan(gates(), (_, __, stack) =>
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
