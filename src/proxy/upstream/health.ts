/**
 * Keeps requests away from a server that fails (contract 8.4, 14.2).
 *
 * After `failures` in a row the breaker opens. One request at a time passes as a probe. The time between probes doubles up to
 * `maxProbe`. The first answer closes the breaker. While any server of the upstream is up the others take its requests.
 *
 * When none is up the gate of the upstream is blocked, and requests wait. `hold` ms later all waiting requests are refused.
 * Later ones are refused at once, except the next probe.
 *
 * A single client can open the breaker by failures to connect only. It may be able to cause failures of other kinds by
 * itself, so those count once two clients have had them.
 */
import type { BreakerSettings } from '../../config/settings.js'
import type { SendFacts, SentRequest } from '../../core/adaptive/adaptive-rate.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { ServerPlace } from '../../core/release/server-set.js'
import type { Shaper } from '../../core/shaper.js'
import type { Observer, RequestFailure } from '../observe/observer.js'
import type { AdaptiveLimit } from './adaptive-limit.js'

interface AttemptFailure extends RequestFailure {
  readonly unconnected?: boolean
}

/** A request that is on its way to the upstream. */
type UpstreamAttempt = 'usual' | 'probe'

/** The part of the ProxyContext that it needs. */
export interface HealthContext {
  readonly shaper: Shaper
  readonly observer: Observer
}

/** The server of a breaker. */
export interface Guarded {
  readonly url: string
  /** A reload may hand it on. */
  readonly place: ServerPlace
  readonly clock: Clock
  readonly warmUp: WarmUp | undefined
  readonly owner: ServerOwner
}

/** What the upstream does about its servers. */
export interface ServerOwner {
  /** All its servers are down. */
  readonly isDown: boolean
  /** A server has gone down, or has come up. */
  serverChanged(url: string, state: 'failing' | 'answering', failure?: RequestFailure): void
  /** A server that is down takes one request. */
  probeDue(): void
  /** A request of one of its servers is over. @param from where it had its place */
  left(from: 'inFlight' | 'ungated'): void
  /** Its probe may be another's: those that wait in vain are refused. */
  probeOver(): void
}

export class Breaker {
  readonly settings: BreakerSettings
  readonly #server: Guarded
  /** Failures in a row: to connect, and of requests that were sent, with the client that caused the first of these. */
  #unconnected = 0
  #unanswered = 0
  #client: string | undefined
  #hasOthers = false
  /** When it opened, in ms. Undefined: it is closed. */
  #openedAt: number | undefined
  /** From one probe to the next, in ms. */
  #interval = 0
  /** ms of the clock */
  nextProbeAt = 0
  #failure: RequestFailure | undefined
  /** It is no longer used. Its gate may be another upstream's. */
  #isRetired = false
  #cancelProbe: Cancel = () => false

  constructor(settings: BreakerSettings, server: Guarded) {
    this.settings = settings
    this.#server = server
  }

  get isOpen(): boolean {
    return this.#openedAt !== undefined
  }

  get failure(): RequestFailure | undefined {
    if (this.#failure === undefined || !this.isOpen) return undefined
    const { detail, cause } = this.#failure
    return { detail, cause, isEarlier: true }
  }

  attempt(): UpstreamAttempt {
    return this.#server.place.probing ? 'probe' : 'usual'
  }

  answered(attempt: UpstreamAttempt, status: number, client: string): void {
    if (this.settings.status.includes(status))
      return this.failed(attempt, { detail: `the upstream answered ${status}` }, client)
    this.startAnew()
  }

  failed(attempt: UpstreamAttempt, failure: AttemptFailure, client: string): void {
    if (this.#isRetired) return
    this.#failure = failure
    if (this.#openedAt !== undefined) {
      if (attempt === 'probe') this.#probeFailed()
      return
    }
    if (failure.unconnected) this.#unconnected += 1
    else {
      this.#unanswered += 1
      this.#client ??= client
      this.#hasOthers ||= this.#client !== client
    }
    if (this.#unconnected + (this.#hasOthers ? this.#unanswered : 0) >= this.settings.failures) this.#open()
  }

  /** A request was given up. Nothing is known. */
  dropped(attempt: UpstreamAttempt): void {
    const { place, owner } = this.#server
    if (attempt !== 'probe' || !place.probing || this.#isRetired) return
    place.unprobe()
    owner.probeDue()
  }

  /** It answers, or its check finds it up again: its failures are of before. */
  startAnew(): void {
    this.#unconnected = 0
    this.#unanswered = 0
    this.#client = undefined
    this.#hasOthers = false
    if (this.#openedAt !== undefined) this.#close('answered')
  }

  /** Another server has its place from now on. What becomes of requests that it has sent does not count there. */
  retire(): void {
    this.close()
    if (this.#openedAt !== undefined) this.#close('handed-on')
  }

  close(): void {
    this.#isRetired = true
    this.#cancelProbe()
  }

  #open(): void {
    const { clock, place, owner, url } = this.#server
    const now = clock.now()
    this.#openedAt = now
    this.#interval = this.settings.probe
    place.isBlocked = true
    this.#planProbe(now)
    owner.serverChanged(url, 'failing', this.#failure)
  }

  #planProbe(now: number): void {
    const { clock, place, owner } = this.#server
    this.#cancelProbe()
    this.nextProbeAt = now + this.#interval
    this.#cancelProbe = clock.at(this.nextProbeAt, () => {
      place.probe = true
      owner.probeDue()
    })
  }

  #probeFailed(): void {
    const { clock, place, owner } = this.#server
    place.probing = false
    this.#interval = Math.min(this.settings.maxProbe, 2 * this.#interval)
    this.#planProbe(clock.now())
    owner.probeOver()
  }

  #close(why: 'answered' | 'handed-on'): void {
    const { place, owner, url, warmUp } = this.#server
    this.#openedAt = undefined
    this.#cancelProbe()
    place.isBlocked = false
    place.probe = false
    place.probing = false
    if (why === 'answered') warmUp?.begin()
    owner.serverChanged(url, 'answering')
  }
}

/** The part of its rate at which a bucket begins. */
const LEAST = 0.1
/** Each change plans the waiting requests anew, so there are only so many. */
const STEPS = 18

/** The part of its usual rate that a server gets after it has failed or paused: it climbs evenly from a tenth to all of it. */
export class WarmUp {
  readonly #duration: number
  readonly #server: { readonly place: ServerPlace }
  #clock: Clock | undefined
  #changed: () => void = () => undefined
  #cancel: Cancel = () => false

  constructor(duration: number, server: { readonly place: ServerPlace }) {
    this.#duration = duration
    this.#server = server
  }

  join(clock: Clock, changed: () => void): void {
    this.#clock = clock
    this.#changed = changed
  }

  begin(from = this.#clock!.now()): void {
    this.#cancel()
    if (from <= this.#clock!.now()) this.#take(from, 0)
    else this.#cancel = this.#clock!.at(from, () => this.#take(from, 0))
  }

  close(): void {
    this.#cancel()
  }

  #take(from: number, step: number): void {
    this.#server.place.part = step === STEPS ? 1 : LEAST + ((1 - LEAST) * step) / STEPS
    if (step < STEPS) {
      const next = from + (this.#duration * (step + 1)) / STEPS
      this.#cancel = this.#clock!.at(next, () => this.#take(from, step + 1))
    }
    this.#changed()
  }
}

/** What an upstream's breaker and its adaptive rate hear of one request: once how it ended, each time that it was sent. */
export class UpstreamReport {
  readonly #request: { readonly client: string }
  #breaker: Breaker | undefined
  #attempt: UpstreamAttempt | undefined
  #limit: AdaptiveLimit | undefined
  #sent: SentRequest | undefined

  constructor(request: { readonly client: string }) {
    this.#request = request
  }

  begin({ breaker }: { readonly breaker: Breaker | undefined }): void {
    this.#breaker = breaker
    this.#attempt = breaker?.attempt()
  }

  /** The rate is found by what becomes of it. @param at when it was sent, in ms */
  measure(limit: AdaptiveLimit, facts: SendFacts, at: number): void {
    this.#limit = limit
    this.#sent = limit.sent(facts, at)
  }

  answered(status: number): void {
    const sent = this.#takeSent()
    if (sent !== undefined) this.#limit!.answered(sent, status)
    const attempt = this.#takeAttempt()
    if (attempt !== undefined) this.#breaker!.answered(attempt, status, this.#request.client)
  }

  failed(failure: AttemptFailure): void {
    const sent = this.#takeSent()
    if (sent !== undefined) this.#limit!.failed(sent)
    const attempt = this.#takeAttempt()
    if (attempt !== undefined) this.#breaker!.failed(attempt, failure, this.#request.client)
  }

  dropped(): void {
    this.unmeasured()
    const attempt = this.#takeAttempt()
    if (attempt !== undefined) this.#breaker!.dropped(attempt)
  }

  get isMeasured(): boolean {
    return this.#sent !== undefined
  }

  /** Its end says nothing of the rate. */
  unmeasured(): void {
    const sent = this.#takeSent()
    if (sent !== undefined) this.#limit!.dropped(sent)
  }

  #takeSent(): SentRequest | undefined {
    const sent = this.#sent
    this.#sent = undefined
    return sent
  }

  #takeAttempt(): UpstreamAttempt | undefined {
    const attempt = this.#attempt
    this.#attempt = undefined
    return attempt
  }
}
