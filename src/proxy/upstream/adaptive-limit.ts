/** The adaptive rate of an upstream (core/adaptive), as a bucket that everything on its way there passes. */
import type { AdaptSettings, BucketSettings } from '../../config/settings.js'
import {
  AdaptiveRate,
  type AdaptiveState,
  type SendFacts,
  type SentRequest,
} from '../../core/adaptive/adaptive-rate.js'
import type { BucketLimits } from '../../core/bucket/limits.js'
import { ignore, when } from '../../core/maybe-promise.js'
import type { Override } from '../../sharing/board.js'
import type { Store } from '../../sharing/store.js'

/** The key of its only instance: that of the key `all`. */
export const ADAPTIVE_KEY = 'all'
/** ms. Requests that do not wait for the bucket delay those that do by at most this. */
const LONGEST_DELAY = 1_000

interface AdaptiveContext {
  now(): number
  readonly isShared: boolean
  changed(limit: AdaptiveLimit): void
  found(limit: AdaptiveLimit): void
}

export class AdaptiveLimit {
  readonly #context: AdaptiveContext
  #rate: AdaptiveRate
  #targets: string
  /** Its definition. The rate is the highest that it may have. */
  bucket: BucketSettings
  /** What it allows at present. Another object whenever that changes. */
  limits: BucketLimits
  #phase: AdaptiveState['phase'] = 'doubling'

  constructor(name: string, targets: AdaptSettings, context: AdaptiveContext) {
    this.#context = context
    this.#rate = new AdaptiveRate(targets, context.now(), context.isShared ? 'shared' : 'own')
    this.#targets = JSON.stringify(targets)
    this.bucket = bucketOf(name, targets)
    this.limits = { ...this.bucket.limits, rate: this.#rate.rate }
  }

  /** Another configuration. The rate stays as far as it may. */
  configure(name: string, targets: AdaptSettings): void {
    const text = JSON.stringify(targets)
    if (name === this.bucket.name && text === this.#targets) return
    this.#targets = text
    this.bucket = bucketOf(name, targets)
    this.#rate.retarget(targets, this.#context.now())
    this.limits = { ...this.bucket.limits, rate: this.#rate.rate }
  }

  /** A request is sent. Its end is to be told once. @param at when, in ms */
  sent(facts: SendFacts, at: number): SentRequest {
    const request = this.#rate.sent(facts, at)
    this.#update()
    return request
  }

  answered(request: SentRequest, status: number): void {
    if (status >= 500 || status === 429) return this.failed(request)
    this.#rate.served(request, this.#context.now())
    this.#update()
  }

  failed(request: SentRequest): void {
    this.#rate.failed(request, this.#context.now())
    this.#update()
  }

  /** It was given up, or its answer says nothing of the upstream. */
  dropped(request: SentRequest): void {
    this.#rate.dropped(request, this.#context.now())
    this.#update()
  }

  get state(): AdaptiveState {
    return this.#rate.state
  }

  /** Another instance has found this. If it is older than what is known here, that is told once more. */
  heard(state: AdaptiveState): void {
    if (!this.#rate.adopt(state, this.#context.now())) return this.#context.found(this)
    this.#phase = state.phase
    this.#apply()
  }

  #update(): void {
    const { rate, phase } = this.#rate.state
    if (rate === this.limits.rate && phase === this.#phase) return
    this.#phase = phase
    this.#apply()
    this.#context.found(this)
  }

  #apply(): void {
    const { rate } = this.#rate
    if (rate === this.limits.rate) return
    this.limits = { ...this.limits, rate }
    this.#context.changed(this)
  }
}

function bucketOf(name: string, { max }: AdaptSettings): BucketSettings {
  const limits: BucketLimits = { name, rate: max, capacity: Infinity, overflow: 'reject', longestDelay: LONGEST_DELAY }
  const key = { parts: [{ kind: 'all' }], missing: 'all', duplicates: 'first', ipv6: 64 } as const
  return { name, key, status: 429, limits, rate: max, capacity: Infinity, tiers: [] }
}

const PHASES = ['doubling', 'climbing', 'draining'] as const
/** ms. Instances that start later find the rate of the last ones. */
const LIFE = 3_600_000
/** So many of its own states an instance may hear of late, and not take for news. */
const MOST_OWN = 32

/**
 * The adaptive rate of an upstream, as instances on one store share it. It is kept there as an override of its bucket, which has no other:
 * the rate, and in place of a capacity, which the bucket does not have, the number of falls and the phase. The last one who writes
 * counts. A fall that was overwritten by an older state is told once more (`AdaptiveLimit.heard`).
 */
export class SharedAdaptive {
  readonly #store: Pick<Store, 'board' | 'listen'>
  readonly #limits: () => Iterable<AdaptiveLimit>
  /** Those that this instance has told last and not heard of. The same state is news when another finds it later. */
  #told: string[] = []
  #stop: (() => void) | undefined

  constructor(store: Pick<Store, 'board' | 'listen'>, limits: () => Iterable<AdaptiveLimit>) {
    this.#store = store
    this.#limits = limits
  }

  /** Takes over what the others have found so far. Without an answer this instance begins as it would alone. */
  join(): void {
    this.#stop = this.#store.listen?.(news => {
      if (news.about === 'override') this.#heard(news.override)
    })
    const hear = (all: readonly Override[]): void => {
      for (const override of all) this.#heard(override)
    }
    when(this.#store.board?.overrides() ?? [], hear, ignore)
  }

  close(): void {
    this.#stop?.()
  }

  tell({ bucket: { name }, state }: AdaptiveLimit): void {
    const override: Override = {
      ...{ bucket: name, key: ADAPTIVE_KEY, endsIn: LIFE, rate: state.rate },
      capacity: PHASES.length * state.falls + PHASES.indexOf(state.phase),
    }
    this.#told = [...this.#told.slice(1 - MOST_OWN), textOf(override)]
    // Without the store each goes on by what it sees itself.
    when(this.#store.board?.setOverride(override) ?? false, ignore, ignore)
  }

  #heard(override: Override): void {
    const { bucket, rate, capacity: code } = override
    if (rate === undefined || code === undefined) return
    const own = this.#told.indexOf(textOf(override))
    if (own >= 0) {
      this.#told.splice(own, 1)
      return
    }
    const state = { rate, phase: PHASES[code % PHASES.length]!, falls: Math.floor(code / PHASES.length) }
    for (const limit of this.#limits()) if (limit.bucket.name === bucket) limit.heard(state)
  }
}

function textOf({ bucket, rate, capacity }: Override): string {
  return `${bucket} ${rate} ${capacity}`
}
