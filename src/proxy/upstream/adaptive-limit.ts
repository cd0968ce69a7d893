/** The adaptive rate of an upstream (core/adaptive), as a bucket that everything on its way there passes. */
import type { AdaptSettings, BucketSettings } from '../../config/settings.js'
import {
  AdaptiveRate,
  type AdaptiveState,
  type SendFacts,
  type SentRequest,
} from '../../core/adaptive/adaptive-rate.js'
import type { BucketLimits } from '../../core/bucket/limits.js'

/** The key of its only instance: that of the key `all`. */
export const ADAPTIVE_KEY = 'all'

/** ms. Requests that do not wait for the bucket delay those that do by at most this. */
const LONGEST_DELAY = 1_000

/** Statuses that say that the upstream did not serve a request: its own errors, and that it has too much to do. */
const TOO_MANY_REQUESTS = 429
const SERVER_ERROR = 500

export interface AdaptiveContext {
  now(): number
  /** Whether other instances send at the same rate. */
  readonly isShared: boolean
  /** `limits` have changed. */
  changed(limit: AdaptiveLimit): void
  /** This instance has found another state of the rate. */
  found(limit: AdaptiveLimit): void
}

export class AdaptiveLimit {
  readonly #now: () => number
  readonly #changed: (limit: AdaptiveLimit) => void
  readonly #found: (limit: AdaptiveLimit) => void
  #rate: AdaptiveRate
  #targets: string
  #bucket: BucketSettings
  #limits: BucketLimits
  #phase: AdaptiveState['phase'] = 'doubling'

  constructor(name: string, targets: AdaptSettings, { now, isShared, changed, found }: AdaptiveContext) {
    this.#now = now
    this.#changed = changed
    this.#found = found
    this.#rate = new AdaptiveRate(targets, now(), isShared ? 'shared' : 'own')
    this.#targets = JSON.stringify(targets)
    this.#bucket = bucketOf(name, targets)
    this.#limits = { ...this.#bucket.limits, rate: this.#rate.rate }
  }

  /** Its definition. The rate is the highest that it may have. */
  get bucket(): BucketSettings {
    return this.#bucket
  }

  /** What it allows at present. Another object whenever that changes. */
  get limits(): BucketLimits {
    return this.#limits
  }

  /** Another configuration. The rate stays as far as it may. */
  configure(name: string, targets: AdaptSettings): void {
    const text = JSON.stringify(targets)
    if (name === this.#bucket.name && text === this.#targets) return
    this.#targets = text
    this.#bucket = bucketOf(name, targets)
    this.#rate.retarget(targets, this.#now())
    this.#limits = { ...this.#bucket.limits, rate: this.#rate.rate }
  }

  /** A request is sent. Its end is to be told once. @param at when, in ms */
  sent(facts: SendFacts, at: number): SentRequest {
    const request = this.#rate.sent(facts, at)
    this.#update()
    return request
  }

  /** The head of its answer has come. */
  answered(request: SentRequest, status: number): void {
    if (status >= SERVER_ERROR || status === TOO_MANY_REQUESTS) return this.failed(request)
    this.#rate.served(request, this.#now())
    this.#update()
  }

  /** The upstream gave no answer. */
  failed(request: SentRequest): void {
    this.#rate.failed(request, this.#now())
    this.#update()
  }

  /** It was given up, or its answer says nothing of the upstream. */
  dropped(request: SentRequest): void {
    this.#rate.dropped(request, this.#now())
    this.#update()
  }

  /** What this instance and those that it has heard of have found. */
  get state(): AdaptiveState {
    return this.#rate.state
  }

  /** Another instance has found this. If it is older than what is known here, that is told once more. */
  heard(state: AdaptiveState): void {
    if (!this.#rate.adopt(state, this.#now())) return this.#found(this)
    this.#phase = state.phase
    this.#apply()
  }

  #update(): void {
    const { rate, phase } = this.#rate.state
    if (rate === this.#limits.rate && phase === this.#phase) return
    this.#phase = phase
    this.#apply()
    this.#found(this)
  }

  #apply(): void {
    const { rate } = this.#rate
    if (rate === this.#limits.rate) return
    this.#limits = { ...this.#limits, rate }
    this.#changed(this)
  }
}

function bucketOf(name: string, { max }: AdaptSettings): BucketSettings {
  const limits: BucketLimits = {
    name,
    rate: max,
    capacity: Infinity,
    overflow: 'reject',
    longestDelay: LONGEST_DELAY,
  }
  const key = { parts: [{ kind: 'all' }], missing: 'all', duplicates: 'first', ipv6: 64 } as const
  return { name, key, status: TOO_MANY_REQUESTS, limits, rate: max, capacity: Infinity, tiers: [] }
}
