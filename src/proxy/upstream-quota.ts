/**
 * What an upstream says of its limits, and what follows: a pause before its gate, a lower rate in the buckets before it.
 *
 * Where instances share a store they tell each other. The rate that was heard last is everybody's: an upstream speaks of
 * what all of them together have left.
 */
import type { UpstreamSettings } from '../config/settings.js'
import type { Cancel, Clock } from '../core/clock.js'
import type { Gate } from '../core/lane.js'
import type { Shaper } from '../core/shaper.js'
import type { UpstreamState } from '../core/store.js'
import { type Fields, readQuota } from '../quota/fields.js'
import { LearnedRate } from '../quota/learned-rate.js'
import { pauseAfter } from '../quota/pause.js'
import type { Sharing } from '../stores/sharing.js'
import type { Observer } from './events.js'

/** A change of the rate by less than this part of it is let be: who waits is planned anew each time. */
const NOTABLE = 0.01

/** The longest pause, in ms, where the configuration has none: then it is asked again. */
const LONGEST_PAUSE = 60_000

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

export class UpstreamQuota {
  readonly #settings: UpstreamSettings
  readonly #gate: Gate
  readonly #learned: LearnedRate | undefined
  /** What another instance has heard: cost units per ms, until a time in ms. */
  #heard = { rate: Infinity, until: -Infinity }
  /** Cost units per ms, as the buckets have it. */
  #rate = Infinity
  #expiry: Cancel = () => false
  #inquiry: Cancel = () => false
  #line: QuotaLine | undefined

  constructor(settings: UpstreamSettings, gate: Gate) {
    this.#settings = settings
    this.#gate = gate
    if (settings.learn) this.#learned = new LearnedRate()
  }

  /** Cost units per ms that it allows; Infinity: it does not say. */
  get rate(): number {
    return this.#rate
  }

  /** From now on what other instances have heard counts, too. To be called again for a line that it is in already. */
  join(line: QuotaLine): void {
    if (this.#line !== undefined) return
    this.#line = line
    this.#exchange(line)
  }

  /** Takes note of an answer. */
  hear(status: number, fields: Fields): void {
    const line = this.#line!
    const { pauseOn } = this.#settings
    const now = line.clock.now()
    const wallNow = line.wallNow()
    let pause = pauseOn === undefined ? 0 : pauseAfter(pauseOn, status, fields, wallNow)
    const quota = this.#learned && readQuota(fields, wallNow)
    if (quota !== undefined) {
      this.#learned!.learn(quota, now)
      pause = Math.max(pause, Math.min(this.#learned!.pausedUntil - now, pauseOn?.max ?? LONGEST_PAUSE))
      this.#heard.until = -Infinity
    }
    const isNews = pause > this.#gate.pausedFor(now)
    if (isNews) this.#pause(line, pause)
    const isNotable = quota !== undefined && this.#follow(line, now)
    if (isNews || isNotable) this.#exchange(line, this.#told(pause, now))
  }

  close(): void {
    this.#expiry()
    this.#inquiry()
  }

  #pause(line: QuotaLine, ms: number): void {
    const expired = line.shaper.control.pause(this.#gate, ms)
    const count = [...expired.values()].reduce((sum, more) => sum + more, 0)
    line.observer.paused?.(this.#settings.url, ms, count)
  }

  /** Lets the buckets follow what is known. False: that is what they do. */
  #follow(line: QuotaLine, now: number): boolean {
    const rate = now < this.#heard.until ? this.#heard.rate : (this.#learned?.allowed(now) ?? Infinity)
    this.#expire(line)
    if (rate === this.#rate || Math.abs(rate - this.#rate) < this.#rate * NOTABLE) return false
    this.#rate = rate
    line.relearned(this)
    line.shaper.control.replan([this.#gate], () => Infinity)
    line.observer.learned?.(this.#settings.url, rate * 1_000)
    return true
  }

  #expire(line: QuotaLine): void {
    this.#expiry()
    const { expiresAt = Infinity } = this.#learned ?? {}
    const at = this.#heard.until > line.clock.now() ? this.#heard.until : expiresAt
    if (at < Infinity) this.#expiry = line.clock.at(at, () => this.#follow(line, line.clock.now()))
  }

  #told(pause: number, now: number): UpstreamState {
    const rate = this.#rate < Infinity ? this.#rate : undefined
    const rateFor = rate === undefined ? 0 : Math.max(0, Math.min(this.#learned?.expiresAt ?? 0, now + DAY) - now)
    return { pausedFor: Math.max(0, pause), rate, rateFor }
  }

  /** Tells the other instances, and asks what they have heard; from then on again and again. */
  #exchange(line: QuotaLine, told?: UpstreamState): void {
    const { sharing } = line
    if (sharing === undefined) return
    this.#inquiry()
    this.#inquiry = line.clock.at(line.clock.now() + INQUIRY, () => this.#exchange(line))
    if (!sharing.ready) return
    const answered = (state: UpstreamState): void => this.#learn(line, state)
    const answer = sharing.store.exchange(this.#settings.url, told)
    if (answer instanceof Promise) answer.then(answered, () => undefined)
    else answered(answer)
  }

  #learn(line: QuotaLine, { pausedFor, rate, rateFor }: UpstreamState): void {
    const now = line.clock.now()
    // What it was told itself comes back a little longer.
    if (pausedFor > this.#gate.pausedFor(now) + INQUIRY) this.#pause(line, pausedFor)
    else if (pausedFor > 0 && !this.#gate.paused) this.#pause(line, pausedFor)
    if (!this.#settings.learn || rate === undefined) return
    this.#heard = { rate, until: now + rateFor }
    this.#follow(line, now)
  }
}

/** ms */
const DAY = 86_400_000
