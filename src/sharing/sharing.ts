/** Connects this instance to a shared store: its share of the limits, and how it decides without the store. */
import type { BucketLimits } from '../core/bucket/queued-bucket.js'
import type { Cancel, Clock } from '../core/clock.js'
import type { Gate, SharedBucket } from '../core/queue/lane.js'
import type { ReleaseMode, Shaper } from '../core/shaper.js'
import { StoredBucket, type StoreTrust } from '../core/shared/stored-bucket.js'
import { type OnOutage, SharedShaper } from '../core/shared-shaper.js'
import type { Store } from '../core/store.js'
import { type LeastInstances, Membership, type MembershipState } from './membership.js'

/** How long requests wait in an outage with `closed`, in ms. */
const CLOSED_WAIT_MS = 2_000

export interface SharingOptions {
  readonly store: Store
  readonly onOutage: OnOutage
  /** For heartbeats. It may be a few ms late. */
  readonly clock: Clock
  /** Unique among all instances. */
  readonly id: string
  readonly least?: LeastInstances | undefined
  /** Called with the new state and number of instances. */
  changed?(state: MembershipState, instances: number): void
}

/** The parts of a proxy or a library's shaper that sharing needs. */
export interface SharingContext {
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
  #context: SharingContext | undefined
  #groups: ReadonlyMap<string, string> = new Map()
  #shares = new WeakMap<BucketLimits, BucketLimits>()
  #share = 1
  #reported = ''
  /** Cancels the end of the wait in an outage. Undefined: this instance is not alone. */
  #expiry: Cancel | undefined

  constructor(options: SharingOptions) {
    this.#options = options
    this.store = options.store
    const { store, clock, id, least } = options
    this.#membership = new Membership({ store, clock, id, least, changed: () => this.#changed() })
  }

  get state(): MembershipState {
    return this.#membership.state
  }

  get shaper(): SharedShaper {
    return this.#shaper!
  }

  /** The known number of instances, this one included. */
  get instances(): number {
    return this.#membership.instances
  }

  /** Whether the store decides. */
  get ready(): boolean {
    return this.#membership.state === 'shared' || this.#membership.state === 'returning'
  }

  /** Connects to a shaper and joins the other instances. False: the store does not answer. */
  join(context: SharingContext): Promise<boolean> {
    this.#context = context
    this.#shaper = new SharedShaper({
      shaper: context.shaper,
      store: this.store,
      clock: context.clock,
      onOutage: this.#options.onOutage,
      unanswered: (stack, askedAt) => this.#membership.failed(stack, askedAt),
    })
    // Applies the first state without calling `changed`.
    this.#apply()
    return this.#membership.join()
  }

  /** Reports that a claim for these buckets had no answer. @param askedAt ms */
  unanswered(stack: readonly SharedBucket[], askedAt: number): void {
    this.#membership.failed(
      stack.map(bucket => (bucket as StoredBucket).ref),
      askedAt,
    )
  }

  /** Sets the group of each bucket name. The store keeps a group together. A bucket without a group is by itself. */
  group(groups: ReadonlyMap<string, string>): void {
    this.#groups = groups
  }

  createBucket(limits: BucketLimits, key: string): SharedBucket {
    return new StoredBucket(limits, key, this.#groupOf, this.#trust)
  }

  readonly #groupOf = (name: string, key: string): string => this.#groups.get(name) ?? `${name}:${key}`

  /** This instance's share of these limits. */
  limitsOf(limits: BucketLimits): BucketLimits {
    if (this.#share === 1) return limits
    const known = this.#shares.get(limits)
    if (known !== undefined) return known
    const { rate, burst } = limits
    const share = {
      ...limits,
      rate: rate * this.#share,
      ...(burst !== undefined && { burst: burst * this.#share }),
      whole: limits,
    }
    this.#shares.set(limits, share)
    return share
  }

  async close(): Promise<void> {
    await this.#membership.leave()
    this.#expiry?.()
    await this.store.close()
  }

  #changed(): void {
    this.#apply()
    const { state, instances } = this.#membership
    const current = `${state} ${instances}`
    if (current !== this.#reported) this.#options.changed?.(state, instances)
    this.#reported = current
  }

  #apply(): void {
    const { state } = this.#membership
    const { onOutage, clock } = this.#options
    this.#shaper!.asking = this.ready
    if (this.#trust.trusted && !this.ready) this.#detach()
    this.#trust.trusted = this.ready
    const share = onOutage === 'open' ? 1 : this.#membership.share
    if (share !== this.#share) this.#setShare(share)
    this.#context!.shaper.releaseMode = releaseModeOf(state, onOutage)
    if (state !== 'alone') {
      this.#expiry?.()
      this.#expiry = undefined
    } else if (onOutage === 'closed') this.#expiry ??= clock.at(clock.now() + CLOSED_WAIT_MS, this.#expireAll)
  }

  #detach(): void {
    const now = this.#context!.clock.now()
    for (const bucket of this.#context!.buckets()) (bucket as StoredBucket).detach(now)
  }

  #setShare(share: number): void {
    this.#share = share
    this.#shares = new WeakMap()
    const { shaper, buckets } = this.#context!
    for (const bucket of buckets())
      shaper.control.setLimits(bucket, this.limitsOf(bucket.limits.whole ?? bucket.limits))
  }

  /** Expires all waiting requests, because without the store nothing decides when they may leave. */
  readonly #expireAll = (): void => {
    this.#context!.shaper.control.replan(this.#context!.gates(), () => -1)
  }
}

function releaseModeOf(state: MembershipState, onOutage: OnOutage): ReleaseMode {
  if (state === 'shared' || state === 'returning') return 'claimed'
  return state === 'alone' && onOutage !== 'closed' ? 'direct' : 'none'
}
