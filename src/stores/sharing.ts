/** This instance as one of many on one store: which limits are its own, and who decides while the store is away. */
import type { BucketLimits } from '../core/bucket.js'
import type { Clock } from '../core/clock.js'
import type { Gate, SharedBucket } from '../core/lane.js'
import type { Passage, Shaper } from '../core/shaper.js'
import { type OnOutage, SharedShaper } from '../core/shared-shaper.js'
import type { Store } from '../core/store.js'
import { StoredBucket, type StoreTrust } from '../core/stored-bucket.js'
import { Membership, type MembershipState } from './membership.js'

/** How long, in ms, those who wait already are kept through an outage with `closed`. */
const CLOSED_PATIENCE = 2_000

export interface SharingOptions {
  readonly store: Store
  readonly onOutage: OnOutage
  /** For heartbeats, where a few ms do not matter. */
  readonly clock: Clock
  /** Of this instance, unlike all others'. */
  readonly id: string
  /** What the state has become, and how many instances there are. */
  changed?(state: MembershipState, instances: number): void
}

/** What sharing needs of the line it is in. */
export interface SharingLine {
  readonly shaper: Shaper
  readonly clock: Clock
  buckets(): Iterable<SharedBucket>
  gates(): Iterable<Gate>
}

export class Sharing {
  readonly store: Store
  readonly #options: SharingOptions
  readonly #trust: StoreTrust = { trusted: true }
  readonly #membership: Membership
  #shaper: SharedShaper | undefined
  #line: SharingLine | undefined
  #groups: ReadonlyMap<string, string> = new Map()
  #shares = new WeakMap<BucketLimits, BucketLimits>()
  #share = 1
  #told = ''
  #closing = (): boolean => false

  constructor(options: SharingOptions) {
    this.#options = options
    this.store = options.store
    const { store, clock, id } = options
    this.#membership = new Membership({ store, clock, id, changed: () => this.#changed() })
  }

  get state(): MembershipState {
    return this.#membership.state
  }

  get shaper(): SharedShaper {
    return this.#shaper!
  }

  /** How many instances there are, this one included, as far as is known. */
  get instances(): number {
    return this.#membership.instances
  }

  /** Whether decisions are the store's. */
  get ready(): boolean {
    return this.#membership.state === 'shared' || this.#membership.state === 'returning'
  }

  /** Takes its place in a line, and among the instances. False: the store does not answer. */
  join(line: SharingLine): Promise<boolean> {
    this.#line = line
    this.#shaper = new SharedShaper({
      shaper: line.shaper,
      store: this.store,
      clock: line.clock,
      onOutage: this.#options.onOutage,
      unanswered: (stack, askedAt) => this.#membership.failed(stack, askedAt),
    })
    this.#changed()
    return this.#membership.join()
  }

  /** A slot that was asked for in these buckets' name had no answer. */
  unanswered(stack: readonly SharedBucket[], askedAt: number): void {
    this.#membership.failed(
      stack.map(bucket => (bucket as StoredBucket).ref),
      askedAt,
    )
  }

  /** Which buckets live together in the store: groups by the names of buckets; one without lives by itself. */
  group(groups: ReadonlyMap<string, string>): void {
    this.#groups = groups
  }

  createBucket(limits: BucketLimits, key: string): SharedBucket {
    return new StoredBucket(limits, key, this.#groupOf, this.#trust)
  }

  readonly #groupOf = (name: string, key: string): string => this.#groups.get(name) ?? `${name}:${key}`

  /** What of these limits is this instance's now. */
  limitsOf(limits: BucketLimits): BucketLimits {
    if (this.#share === 1) return limits
    const known = this.#shares.get(limits)
    if (known !== undefined) return known
    const share = { ...limits, rate: limits.rate * this.#share, whole: limits }
    this.#shares.set(limits, share)
    return share
  }

  async close(): Promise<void> {
    this.#membership.close()
    this.#closing()
    await this.store.close()
  }

  #changed(): void {
    const { state, instances } = this.#membership
    const { onOutage, clock, changed } = this.#options
    this.#shaper!.asking = this.ready
    if (this.#trust.trusted && !this.ready) this.#detach()
    this.#trust.trusted = this.ready
    const share = onOutage === 'open' ? 1 : this.#membership.share
    if (share !== this.#share) this.#rescale(share)
    this.#line!.shaper.passage = passageOf(state, onOutage)
    if (state !== 'alone') this.#closing()
    else if (onOutage === 'closed') this.#closing = clock.at(clock.now() + CLOSED_PATIENCE, this.#giveUp)
    const told = `${state} ${instances}`
    if (told !== this.#told) changed?.(state, instances)
    this.#told = told
  }

  #detach(): void {
    const now = this.#line!.clock.now()
    for (const bucket of this.#line!.buckets()) (bucket as StoredBucket).detach(now)
  }

  #rescale(share: number): void {
    this.#share = share
    this.#shares = new WeakMap()
    const { shaper, buckets } = this.#line!
    for (const bucket of buckets()) shaper.control.retune(bucket, this.limitsOf(bucket.limits.whole ?? bucket.limits))
  }

  /** Nobody can tell when those who wait may go. */
  readonly #giveUp = (): void => {
    this.#line!.shaper.control.replan(this.#line!.gates(), () => -1)
  }
}

function passageOf(state: MembershipState, onOutage: OnOutage): Passage {
  if (state === 'shared' || state === 'returning') return 'claimed'
  return state === 'alone' && onOutage !== 'closed' ? 'direct' : 'none'
}
