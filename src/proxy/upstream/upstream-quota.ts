/**
 * An upstream's announced limits, and their effects: a pause at its gates, and a lower rate in the buckets in front of
 * it.
 *
 * There is one object for each URL, and each resource of it, however routes use it. It outlives changes of the configuration. Instances on one
 * store exchange what they learn about requests. The newest rate counts for all of them, because the upstream counts their
 * requests together. Of tokens each learns from its own answers, which tell what all have used.
 */
import type { UpstreamSettings } from '../../config/settings.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { Gate } from '../../core/queue/lane.js'
import type { Shaper } from '../../core/shaper.js'
import { LearnedQuotas } from '../../http/quota/learned-quotas.js'
import { growPause, hasStatus, LONGEST_PAUSE, type PauseRule, pauseAfter } from '../../http/quota/pause-rule.js'
import { type Fields, type Limited, readQuotas } from '../../http/quota/quota-fields.js'
import type { UpstreamState } from '../../sharing/board.js'
import { ASK_INTERVAL, SharedPause } from '../../sharing/shared-pause.js'
import type { Sharing } from '../../sharing/sharing.js'
import type { Observer } from '../observe/observer.js'

/** ms. A pause that we sent may come back from the store this much longer. */
const ROUND_TRIP = 10

/** The part of the ProxyContext that it needs. */
interface QuotaContext {
  readonly clock: Clock
  readonly wallNow: () => number
  readonly shaper: Shaper
  readonly sharing: Sharing | undefined
  readonly observer: Observer
  /** Called when a rate has changed and the buckets in front of the upstream must follow. */
  rateLearned(quota: UpstreamQuota): void
}

interface Warming {
  /** @param from ms of the clock */
  warmUp(from: number): void
}

type QuotaSettings = Pick<UpstreamSettings, 'pauseOn' | 'retry' | 'learn'>

export class UpstreamQuota {
  readonly #name: string
  readonly #gates = new Set<Gate>()
  /** Upstreams that warm up after a pause. */
  readonly warming = new Set<Warming>()
  readonly #learned = new LearnedQuotas()
  #context: QuotaContext | undefined
  #pausedUntil = -Infinity
  /** The rate of requests that another instance learned, in cost units per ms, valid until a time in ms. */
  #fromOthers = { rate: Infinity, until: -Infinity }
  #expiry: Cancel = () => false
  #poll: Cancel = () => false
  /** Its pause and its rate in the store. */
  #shared: SharedPause | undefined
  #stopListening: (() => void) | undefined

  constructor(name: string) {
    this.#name = name
  }

  rateOf(limited: Limited): number {
    return this.#learned.rateOf(limited)
  }

  attach(gate: Gate): void {
    this.#gates.add(gate)
    const now = this.#context?.clock.now() ?? Infinity
    if (this.#pausedUntil > now) this.#context!.shaper.engine.pause(gate, this.#pausedUntil - now)
  }

  detach(gate: Gate): void {
    this.#gates.delete(gate)
    if (this.#gates.size > 0) return
    this.#expiry()
    this.#poll()
    this.#stopListening?.()
  }

  /** Starts the exchange with other instances. Later calls with the same context do nothing. */
  join(context: QuotaContext): void {
    if (this.#context !== undefined) return
    this.#context = context
    const { sharing, clock } = context
    if (sharing === undefined) return
    const received = (state: UpstreamState): void => this.#receivedFromOthers(state)
    const shared = new SharedPause({ store: sharing.store, clock, name: this.#name, received })
    this.#shared = shared
    this.#stopListening = sharing.store.listen?.(news => {
      if (news.about === 'upstream' && news.name === this.#name) shared.told(news.state)
    })
    this.#exchange()
  }

  /** Learns from an answer. @param tokens what is reserved for its request of a limit on tokens; undefined: nothing is known */
  received(settings: QuotaSettings, status: number, fields: Fields, tokens?: number): void {
    const context = this.#context!
    const now = context.clock.now()
    const wallNow = context.wallNow()
    const quotas = settings.learn ? readQuotas(fields, wallNow) : []
    const longest = settings.pauseOn?.max ?? LONGEST_PAUSE
    const left = this.#learned.learn(quotas, now, { longest, ...(tokens !== undefined && { costs: { tokens } }) })
    const pause = Math.max(pauseAfter(ruleOf(settings, status, fields), status, fields, wallNow), left)
    const hasOwn = quotas.some(({ bucket }) => bucket !== 'tokens')
    if (hasOwn) this.#fromOthers.until = -Infinity
    const isNews = this.#pause(pause, now)
    const isNotable = quotas.length > 0 && this.#follow(now)
    // News from others is not sent on, or it would circulate for ever.
    const rateFor = hasOwn ? this.#learned.expiresAt('requests') - now : Infinity
    if (isNews || isNotable) this.#exchange(this.#stateToSend(pause, rateFor))
  }

  /** @returns false if the current pause lasts at least as long */
  #pause(ms: number, now: number): boolean {
    const left = Math.max(0, this.#pausedUntil - now)
    if (ms <= left) return false
    this.#pausedUntil = now + growPause(left, ms)
    const { shaper, observer } = this.#context!
    // First: at the end of the pause the rates fall before the gates open.
    for (const upstream of this.warming) upstream.warmUp(this.#pausedUntil)
    let expired = 0
    for (const gate of this.#gates) {
      for (const count of shaper.engine.pause(gate, this.#pausedUntil - now).values()) expired += count
    }
    observer.paused?.(this.#name, this.#pausedUntil - now, expired)
    return true
  }

  /** Adapts the buckets to the known rates. @returns whether that of requests has changed: others want to know */
  #follow(now: number): boolean {
    const context = this.#context!
    const { rate, until } = this.#fromOthers
    const changed = this.#learned.follow(now, now < until ? rate : undefined)
    this.#planExpiry(now)
    if (changed.length === 0) return false
    context.rateLearned(this)
    context.shaper.engine.replan(this.#gates, () => Infinity)
    for (const limited of changed) context.observer.learned?.(this.#name, this.rateOf(limited) * 1_000, limited)
    return changed.includes('requests')
  }

  #planExpiry(now: number): void {
    this.#expiry()
    const { until } = this.#fromOthers
    const ofRequests = until > now ? until : this.#learned.expiresAt('requests')
    const at = Math.min(ofRequests, this.#learned.expiresAt('tokens'))
    const { clock } = this.#context!
    if (at < Infinity) this.#expiry = clock.at(at, () => this.#follow(clock.now()))
  }

  /** @param rateFor how long the rate holds, in ms; Infinity: no rate is sent */
  #stateToSend(pause: number, rateFor: number): UpstreamState {
    const rate = this.rateOf('requests')
    const isKnown = rateFor < Infinity && rate < Infinity
    return { pausedFor: Math.max(0, pause), rate: isKnown ? rate : undefined, rateFor: isKnown ? rateFor : 0 }
  }

  /** Sends news to the other instances and asks for theirs. Repeats the question regularly. */
  #exchange(state?: UpstreamState): void {
    const { sharing, clock } = this.#context!
    if (sharing === undefined) return
    this.#poll()
    this.#poll = clock.at(clock.now() + ASK_INTERVAL, () => this.#exchange())
    if (sharing.ready) this.#shared!.exchange(state)
  }

  #receivedFromOthers({ pausedFor, rate, rateFor }: UpstreamState): void {
    if (this.#gates.size === 0) return
    const now = this.#context!.clock.now()
    if (pausedFor > this.#pausedUntil - now + ROUND_TRIP) this.#pause(pausedFor, now)
    if (rate === undefined) return
    this.#fromOthers = { rate, until: now + rateFor }
    this.#follow(now)
  }
}

/** Whether the settings use anything that an upstream announces. */
export function listensTo({ pauseOn, retry, learn }: QuotaSettings): boolean {
  return pauseOn !== undefined || retry !== undefined || learn
}

/**
 * The pause rule for an answer. One with a status of `retry` pauses the upstream for its Retry-After even where `pauseOn` would not.
 */
function ruleOf({ pauseOn, retry }: QuotaSettings, status: number, fields: Fields): PauseRule {
  const longest = pauseOn?.max ?? LONGEST_PAUSE
  if (retry === undefined) return pauseOn ?? { status: [], default: 0, max: 0 }
  if (pauseOn !== undefined && hasStatus(pauseOn.status, status, fields)) return pauseOn
  return { status: retry.status, default: 0, max: longest }
}
