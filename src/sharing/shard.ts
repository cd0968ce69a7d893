import type { BucketLimits } from '../core/bucket/limits.js'
import type { ReleaseMode } from '../core/release/slot-source.js'
import { Membership, type MembershipOptions, type MembershipState, type Turn } from './membership.js'
import type { Store } from './store.js'

/** While the store cannot be asked: decide alone, reject everything, or forward everything. */
export type OnOutage = 'local' | 'closed' | 'open'

/** A part of the store that fails by itself, and what follows for the buckets on it. */
export class Shard {
  readonly name: string
  readonly membership: Membership
  readonly #store: Store
  /** Whether requests of several routes or classes may wait in the bucket of this name, here or in other instances. */
  readonly hasSeveralLanes: (bucket: string) => boolean
  mode: ReleaseMode = 'claimed'
  /** Where the slots of this instance lie while it is alone. Undefined: anywhere. */
  turn: Turn | undefined
  decidedAlone = 0
  hasAnswered = false
  share = 1
  #limits = new WeakMap<BucketLimits, BucketLimits>()
  #reported = ''

  constructor(options: MembershipOptions & Pick<Shard, 'hasSeveralLanes'>) {
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

  takeShare(onOutage: OnOutage): void {
    const { share, turn } = this.membership
    this.turn = turn
    const own = onOutage === 'open' ? 1 : share
    if (own === this.share) return
    this.share = own
    this.#limits = new WeakMap()
  }

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

export function modeAfter(state: MembershipState, onOutage: OnOutage): ReleaseMode {
  if (state === 'shared' || state === 'returning') return 'claimed'
  return state === 'alone' && onOutage !== 'closed' ? 'direct' : 'none'
}
