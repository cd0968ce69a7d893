/**
 * What an upstream says of its limits, and what follows: a pause before its gates, a lower rate in the buckets before it.
 *
 * There is one for each URL, whatever else differs in how routes use it, and it outlives changes of the configuration.
 * Where instances share a store they tell each other. The rate that was heard last is everybody's: an upstream speaks of
 * what all of them together have left.
 */
import type { UpstreamSettings } from '../../config/settings.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { Gate } from '../../core/queue/lane.js'
import type { Shaper } from '../../core/shaper.js'
import type { UpstreamState } from '../../core/store.js'
import { LearnedRate } from '../../http/quota/learned-rate.js'
import { type PauseRule, pauseAfter } from '../../http/quota/pause-rule.js'
import { type Fields, readQuota } from '../../http/quota/quota-fields.js'
import type { Sharing } from '../../sharing/sharing.js'
import type { Observer } from '../observe/observer.js'

/** A change of the rate by less than this part of it is let be: who waits is planned anew each time. */
const NOTABLE_CHANGE = 0.01

/** The longest pause, in ms, where the configuration has none: then it is asked again. */
const LONGEST_PAUSE = 60_000

/** A pause that lasts is made longer in steps of so many ms: each refusal tells a little later end. */
const PAUSE_STEP = 100

/** What was told to others comes back from the store as so many ms longer at most. */
const ROUND_TRIP = 10

/** ms: how often it is asked what other instances have heard. */
const POLL_INTERVAL = 1_000

/** What it needs of the line that it is in. */
export interface QuotaContext {
  readonly clock: Clock
  readonly wallNow: () => number
  readonly shaper: Shaper
  readonly sharing: Sharing | undefined
  readonly observer: Observer
  /** The buckets before the upstream are to follow its `rate`. */
  rateLearned(quota: UpstreamQuota): void
}

type QuotaSettings = Pick<UpstreamSettings, 'pauseOn' | 'retry' | 'learn'>

export class UpstreamQuota {
  readonly #url: string
  readonly #gates = new Set<Gate>()
  readonly #learned = new LearnedRate()
  #context: QuotaContext | undefined
  /** ms */
  #pausedUntil = -Infinity
  /** What another instance has heard: cost units per ms, until a time in ms. */
  #fromOthers = { rate: Infinity, until: -Infinity }
  /** No rate is lower, in cost units per ms: it has to be asked again some time. */
  #least = 1 / LONGEST_PAUSE
  /** Cost units per ms, as the buckets have it. */
  #rate = Infinity
  #expiry: Cancel = () => false
  #poll: Cancel = () => false

  constructor(url: string) {
    this.#url = url
  }

  /** Cost units per ms that it allows; Infinity: it does not say. */
  get rate(): number {
    return this.#rate
  }

  /** Requests to it pass this gate, too. */
  attach(gate: Gate): void {
    this.#gates.add(gate)
    const now = this.#context?.clock.now() ?? Infinity
    if (this.#pausedUntil > now) this.#context!.shaper.control.pause(gate, this.#pausedUntil - now)
  }

  /** None do any more; after the last one it is over. */
  detach(gate: Gate): void {
    this.#gates.delete(gate)
    if (this.#gates.size > 0) return
    this.#expiry()
    this.#poll()
  }

  /** From now on what other instances have heard counts, too. May be called again for the line that it is in. */
  join(context: QuotaContext): void {
    if (this.#context !== undefined) return
    this.#context = context
    this.#exchange()
  }

  /** Takes note of an answer. */
  received(settings: QuotaSettings, status: number, fields: Fields): void {
    const context = this.#context!
    const now = context.clock.now()
    const wallNow = context.wallNow()
    const longest = settings.pauseOn?.max ?? LONGEST_PAUSE
    let pause = pauseAfter(ruleOf(settings, status), status, fields, wallNow)
    const quota = settings.learn ? readQuota(fields, wallNow) : undefined
    if (quota !== undefined) {
      this.#learned.learn(quota, now)
      this.#least = 1 / longest
      this.#fromOthers.until = -Infinity
      pause = Math.max(pause, Math.min(this.#learned.pausedUntil - now, longest))
    }
    const isNews = this.#pause(pause, now)
    const isNotable = quota !== undefined && this.#follow(now)
    if (isNews || isNotable) this.#exchange(this.#stateToSend(pause, quota !== undefined, now))
  }

  /** False: it pauses for as long already. */
  #pause(ms: number, now: number): boolean {
    const left = Math.max(0, this.#pausedUntil - now)
    if (ms <= left) return false
    this.#pausedUntil = left > 0 ? this.#pausedUntil + Math.ceil((ms - left) / PAUSE_STEP) * PAUSE_STEP : now + ms
    const { shaper, observer } = this.#context!
    let expired = 0
    for (const gate of this.#gates) {
      for (const count of shaper.control.pause(gate, this.#pausedUntil - now).values()) expired += count
    }
    observer.paused?.(this.#url, this.#pausedUntil - now, expired)
    return true
  }

  /** Lets the buckets follow what is known. False: that is what they do. */
  #follow(now: number): boolean {
    const context = this.#context!
    const known = now < this.#fromOthers.until ? this.#fromOthers.rate : this.#learned.allowed(now)
    const rate = Math.max(known, this.#least)
    this.#planExpiry(now)
    if (rate === this.#rate || Math.abs(rate - this.#rate) < this.#rate * NOTABLE_CHANGE) return false
    this.#rate = rate
    context.rateLearned(this)
    context.shaper.control.replan(this.#gates, () => Infinity)
    context.observer.learned?.(this.#url, rate * 1_000)
    return true
  }

  #planExpiry(now: number): void {
    this.#expiry()
    const at = this.#fromOthers.until > now ? this.#fromOthers.until : this.#learned.expiresAt
    const { clock } = this.#context!
    if (at < Infinity) this.#expiry = clock.at(at, () => this.#follow(clock.now()))
  }

  /** What was heard here: what others have told is not told on, or it would never end. */
  #stateToSend(pause: number, isOwn: boolean, now: number): UpstreamState {
    const rateFor = isOwn ? this.#learned.expiresAt - now : Infinity
    const isKnown = rateFor < Infinity && this.#rate < Infinity
    return { pausedFor: Math.max(0, pause), rate: isKnown ? this.#rate : undefined, rateFor: isKnown ? rateFor : 0 }
  }

  /** Tells the other instances, and asks what they have heard; from then on again and again. */
  #exchange(state?: UpstreamState): void {
    const { sharing, clock } = this.#context!
    if (sharing === undefined) return
    this.#poll()
    this.#poll = clock.at(clock.now() + POLL_INTERVAL, () => this.#exchange())
    if (!sharing.ready) return
    const answered = (state: UpstreamState): void => this.#receivedFromOthers(state)
    const answer = sharing.store.exchange(this.#url, state)
    if (answer instanceof Promise) answer.then(answered, () => undefined)
    else answered(answer)
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

/** Whether anything that an upstream says is of interest. */
export function listensTo({ pauseOn, retry, learn }: QuotaSettings): boolean {
  return pauseOn !== undefined || retry !== undefined || learn
}

/** Who tries again waits for as long as it was told to, whether or not others are to. */
function ruleOf({ pauseOn, retry }: QuotaSettings, status: number): PauseRule {
  const longest = pauseOn?.max ?? LONGEST_PAUSE
  if (pauseOn?.status.includes(status) || retry === undefined) return pauseOn ?? { status: [], default: 0, max: 0 }
  return { status: retry.status, default: 0, max: longest }
}
