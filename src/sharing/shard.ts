import type { BucketLimits } from '../core/bucket/limits.js'
import type { ReleaseMode, StoreShard, Turn } from '../core/shared/stored-bucket.js'
import type { OnOutage } from '../core/shared-shaper.js'
import type { Store } from '../core/store.js'
import { Membership, type MembershipOptions, type MembershipState } from './membership.js'

/** A part of the store that fails by itself, and what follows for the buckets on it. */
export class Shard implements StoreShard {
  readonly name: string
  readonly membership: Membership
  readonly #store: Store
  readonly hasSeveralLanes: (bucket: string) => boolean
  mode: ReleaseMode = 'claimed'
  turn: Turn | undefined
  decidedAlone = 0
  /** Whether the last probe was answered. */
  hasAnswered = false
  /** The share of each rate that belongs to this instance. */
  share = 1
  #limits = new WeakMap<BucketLimits, BucketLimits>()
  #reported = ''

  constructor(options: MembershipOptions & Pick<StoreShard, 'hasSeveralLanes'>) {
    this.name = options.shard
    this.hasSeveralLanes = options.hasSeveralLanes
    this.#store = options.store
    this.membership = new Membership(options)
  }

  get keepsOrder(): boolean {
    return this.#store.keepsOrder === true
  }

  get isDoubtful(): boolean {
    return this.membership.state === 'doubtful'
  }

  answered(askedAt: number): void {
    this.membership.answered(askedAt)
  }

  async probe(): Promise<boolean> {
    this.hasAnswered = await this.membership.probe()
    return this.hasAnswered
  }

  /** Takes over the share and the turn that the membership tells. */
  takeShare(onOutage: OnOutage): void {
    const { share, turn } = this.membership
    this.turn = turn
    const own = onOutage === 'open' ? 1 : share
    if (own === this.share) return
    this.share = own
    this.#limits = new WeakMap()
  }

  /** This instance's share of these limits. */
  limitsOf(limits: BucketLimits): BucketLimits {
    if (this.share === 1) return limits
    const known = this.#limits.get(limits)
    if (known !== undefined) return known
    const { rate, burst, next } = limits
    const share = {
      ...limits,
      rate: rate * this.share,
      ...(next && { next: { ...next, rate: next.rate * this.share } }),
      ...(burst !== undefined && { burst: burst * this.share }),
      whole: limits,
    }
    this.#limits.set(limits, share)
    return share
  }

  /** Notes what is reported. False: it is what was reported last. */
  noteReport({ state, instances }: { readonly state: MembershipState; readonly instances: number }): boolean {
    const current = `${state} ${instances}`
    if (current === this.#reported) return false
    this.#reported = current
    return true
  }
}

/** How requests pass in this state of the membership. */
export function modeAfter(state: MembershipState, onOutage: OnOutage): ReleaseMode {
  if (state === 'shared' || state === 'returning') return 'claimed'
  return state === 'alone' && onOutage !== 'closed' ? 'direct' : 'none'
}
