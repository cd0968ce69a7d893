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
const NOTABLE = 0.01

/** The longest pause, in ms, where the configuration has none: then it is asked again. */
const LONGEST_PAUSE = 60_000

/** A pause that lasts is made longer in steps of so many ms: each refusal tells a little later end. */
const STEP = 100

/** What was told to others comes back from the store as so many ms longer at most. */
const ROUND_TRIP = 10

/** ms: how often it is asked what other instances have heard. */
const INQUIRY = 1_000

/** What it needs of the line that it is in. */
export interface QuotaLine {
  readonly clock: Clock
  readonly wallNow: () => number
  readonly shaper: Shaper
  readonly sharing: Sharing | undefined
  readonly observer: Observer
  /** The buckets before the upstream are to follow its `rate`. */
  relearned(quota: UpstreamQuota): void
}

type Listening = Pick<UpstreamSettings, 'pauseOn' | 'retry' | 'learn'>

export class UpstreamQuota {
  readonly #url: string
  readonly #gates = new Set<Gate>()
  readonly #learned = new LearnedRate()
  #line: QuotaLine | undefined
  /** ms */
  #pausedUntil = -Infinity
  /** What another instance has heard: cost units per ms, until a time in ms. */
  #heard = { rate: Infinity, until: -Infinity }
  /** No rate is lower, in cost units per ms: it has to be asked again some time. */
  #least = 1 / LONGEST_PAUSE
  /** Cost units per ms, as the buckets have it. */
  #rate = Infinity
  #expiry: Cancel = () => false
  #inquiry: Cancel = () => false

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
    const now = this.#line?.clock.now() ?? Infinity
    if (this.#pausedUntil > now) this.#line!.shaper.control.pause(gate, this.#pausedUntil - now)
  }

  /** None do any more; after the last one it is over. */
  detach(gate: Gate): void {
    this.#gates.delete(gate)
    if (this.#gates.size > 0) return
    this.#expiry()
    this.#inquiry()
  }

  /** From now on what other instances have heard counts, too. May be called again for the line that it is in. */
  join(line: QuotaLine): void {
    if (this.#line !== undefined) return
    this.#line = line
    this.#exchange()
  }

  /** Takes note of an answer. */
  hear(settings: Listening, status: number, fields: Fields): void {
    const line = this.#line!
    const now = line.clock.now()
    const wallNow = line.wallNow()
    const longest = settings.pauseOn?.max ?? LONGEST_PAUSE
    let pause = pauseAfter(ruleOf(settings, status), status, fields, wallNow)
    const quota = settings.learn ? readQuota(fields, wallNow) : undefined
    if (quota !== undefined) {
      this.#learned.learn(quota, now)
      this.#least = 1 / longest
      this.#heard.until = -Infinity
      pause = Math.max(pause, Math.min(this.#learned.pausedUntil - now, longest))
    }
    const isNews = this.#pause(pause, now)
    const isNotable = quota !== undefined && this.#follow(now)
    if (isNews || isNotable) this.#exchange(this.#told(pause, quota !== undefined, now))
  }

  /** False: it pauses for as long already. */
  #pause(ms: number, now: number): boolean {
    const left = Math.max(0, this.#pausedUntil - now)
    if (ms <= left) return false
    this.#pausedUntil = left > 0 ? this.#pausedUntil + Math.ceil((ms - left) / STEP) * STEP : now + ms
    const { shaper, observer } = this.#line!
    let expired = 0
    for (const gate of this.#gates) {
      for (const count of shaper.control.pause(gate, this.#pausedUntil - now).values()) expired += count
    }
    observer.paused?.(this.#url, this.#pausedUntil - now, expired)
    return true
  }

  /** Lets the buckets follow what is known. False: that is what they do. */
  #follow(now: number): boolean {
    const line = this.#line!
    const known = now < this.#heard.until ? this.#heard.rate : this.#learned.allowed(now)
    const rate = Math.max(known, this.#least)
    this.#planExpiry(now)
    if (rate === this.#rate || Math.abs(rate - this.#rate) < this.#rate * NOTABLE) return false
    this.#rate = rate
    line.relearned(this)
    line.shaper.control.replan(this.#gates, () => Infinity)
    line.observer.learned?.(this.#url, rate * 1_000)
    return true
  }

  #planExpiry(now: number): void {
    this.#expiry()
    const at = this.#heard.until > now ? this.#heard.until : this.#learned.expiresAt
    const { clock } = this.#line!
    if (at < Infinity) this.#expiry = clock.at(at, () => this.#follow(clock.now()))
  }

  /** What was heard here: what others have told is not told on, or it would never end. */
  #told(pause: number, isOwn: boolean, now: number): UpstreamState {
    const rateFor = isOwn ? this.#learned.expiresAt - now : Infinity
    const isKnown = rateFor < Infinity && this.#rate < Infinity
    return { pausedFor: Math.max(0, pause), rate: isKnown ? this.#rate : undefined, rateFor: isKnown ? rateFor : 0 }
  }

  /** Tells the other instances, and asks what they have heard; from then on again and again. */
  #exchange(told?: UpstreamState): void {
    const { sharing, clock } = this.#line!
    if (sharing === undefined) return
    this.#inquiry()
    this.#inquiry = clock.at(clock.now() + INQUIRY, () => this.#exchange())
    if (!sharing.ready) return
    const answered = (state: UpstreamState): void => this.#learn(state)
    const answer = sharing.store.exchange(this.#url, told)
    if (answer instanceof Promise) answer.then(answered, () => undefined)
    else answered(answer)
  }

  #learn({ pausedFor, rate, rateFor }: UpstreamState): void {
    if (this.#gates.size === 0) return
    const now = this.#line!.clock.now()
    if (pausedFor > this.#pausedUntil - now + ROUND_TRIP) this.#pause(pausedFor, now)
    if (rate === undefined) return
    this.#heard = { rate, until: now + rateFor }
    this.#follow(now)
  }
}

/** Whether anything that an upstream says is of interest. */
export function listensTo({ pauseOn, retry, learn }: Listening): boolean {
  return pauseOn !== undefined || retry !== undefined || learn
}

/** Who tries again waits for as long as it was told to, whether or not others are to. */
function ruleOf({ pauseOn, retry }: Listening, status: number): PauseRule {
  const longest = pauseOn?.max ?? LONGEST_PAUSE
  if (pauseOn?.status.includes(status) || retry === undefined) return pauseOn ?? { status: [], default: 0, max: 0 }
  return { status: retry.status, default: 0, max: longest }
}
