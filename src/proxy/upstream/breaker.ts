/**
 * Keeps requests away from an upstream that fails (contract 8.4).
 *
 * After `failures` in a row the breaker opens: it blocks the gate of the upstream. One request at a time passes as a probe.
 * The time between probes doubles up to `maxProbe`. The first answer closes the breaker. Requests wait meanwhile. `hold` ms
 * after the opening all waiting requests are refused. Later ones are refused at once, except the next probe.
 *
 * A single client can open the breaker by failures to connect only. It may be able to cause failures of other kinds by
 * itself, so those count once two clients have had them.
 */
import type { BreakerSettings } from '../../config/settings.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { Gate } from '../../core/queue/lane.js'
import type { Shaper } from '../../core/shaper.js'
import type { Observer, RequestFailure } from '../observe/observer.js'
import type { WarmUp } from './warm-up.js'

/** A request on its way to the upstream. Its end is told once. */
export interface UpstreamAttempt {
  readonly isProbe: boolean
}

/** Why an attempt has failed. */
export interface AttemptFailure extends RequestFailure {
  /** Nothing was sent: there was no connection. */
  readonly unconnected?: boolean
}

const USUAL: UpstreamAttempt = { isProbe: false }
const PROBE: UpstreamAttempt = { isProbe: true }

/** The part of the ProxyContext that it needs. */
export interface BreakerContext {
  readonly shaper: Shaper
  readonly observer: Observer
}

/** What a breaker belongs to. */
export interface Protected {
  readonly url: string
  /** A reload may hand it on. */
  readonly gate: Gate
  readonly clock: Clock
  readonly warmUp: WarmUp | undefined
}

export class Breaker {
  readonly settings: BreakerSettings
  readonly #upstream: Protected
  #context: BreakerContext | undefined
  /** Failures in a row: to connect, and of requests that were sent, with the client that caused the first of these. */
  #unconnected = 0
  #unanswered = 0
  #client: string | undefined
  #hasOthers = false
  /** When it opened, in ms. Undefined: it is closed. */
  #openedAt: number | undefined
  /** From one probe to the next, in ms. */
  #interval = 0
  #nextProbeAt = 0
  #isGivenUp = false
  #failure: RequestFailure | undefined
  /** It is no longer used. Its gate may be another upstream's. */
  #isRetired = false
  #cancelProbe: Cancel = () => false
  #cancelHold: Cancel = () => false

  constructor(settings: BreakerSettings, upstream: Protected) {
    this.settings = settings
    this.#upstream = upstream
  }

  /** To be called before it is used. */
  join(context: BreakerContext): void {
    this.#context ??= context
  }

  get isOpen(): boolean {
    return this.#openedAt !== undefined
  }

  /** Why the last request failed. Undefined: it is closed. */
  get failure(): RequestFailure | undefined {
    if (this.#failure === undefined || !this.isOpen) return undefined
    const { detail, cause } = this.#failure
    return { detail, cause, isEarlier: true }
  }

  /** ms until the next probe. */
  get retryAfter(): number {
    return Math.max(0, this.#nextProbeAt - this.#upstream.clock.now())
  }

  /**
   * Whether a request that comes now is refused.
   *
   * @param mayWait whether it can wait for the breaker to close
   */
  refuses(mayWait: boolean): boolean {
    if (this.#openedAt === undefined || this.#upstream.gate.probe) return false
    return !mayWait || this.#isGivenUp
  }

  /** A request without a place in the gate is about to be sent. If the breaker is open, it is the probe. */
  passUngated(): void {
    const { gate } = this.#upstream
    if (!gate.blocked) return
    gate.probe = false
    gate.probing = true
  }

  /** A request is being sent. */
  attempt(): UpstreamAttempt {
    if (!this.#upstream.gate.probing) return USUAL
    // Others may have come while the probe waited for its bucket.
    if (this.#isGivenUp) this.#refuseAll()
    return PROBE
  }

  /** The head of an answer has arrived. */
  answered(attempt: UpstreamAttempt, status: number, client: string): void {
    if (this.settings.status.includes(status))
      return this.failed(attempt, { detail: `the upstream answered ${status}` }, client)
    this.#unconnected = 0
    this.#unanswered = 0
    this.#client = undefined
    this.#hasOthers = false
    if (this.#openedAt !== undefined) this.#close('answered')
  }

  /** A request could not be sent, or has failed after it was. */
  failed(attempt: UpstreamAttempt, failure: AttemptFailure, client: string): void {
    if (this.#isRetired) return
    this.#failure = failure
    if (this.#openedAt !== undefined) {
      if (attempt.isProbe) this.#probeFailed()
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
    const { gate } = this.#upstream
    if (!attempt.isProbe || !gate.probing || this.#isRetired) return
    gate.unprobe()
    this.#context!.shaper.wake(gate)
  }

  /** Another upstream has its gate from now on. What becomes of requests that it has sent does not count there. */
  retire(): void {
    this.close()
    if (this.#openedAt !== undefined) this.#close('handed-on')
  }

  /** Nothing happens any more. */
  close(): void {
    this.#isRetired = true
    this.#cancelProbe()
    this.#cancelHold()
  }

  #open(): void {
    const { clock, gate, url } = this.#upstream
    const now = clock.now()
    this.#openedAt = now
    this.#interval = this.settings.probe
    this.#cancelHold = clock.at(now + this.settings.hold, () => {
      this.#isGivenUp = true
      this.#refuseAll()
    })
    this.#context!.shaper.control.block(gate)
    this.#planProbe(now)
    this.#context!.observer.broken?.(url, 'failing', this.#failure)
  }

  #planProbe(now: number): void {
    const { clock, gate } = this.#upstream
    this.#nextProbeAt = now + this.#interval
    gate.probeAt = this.#nextProbeAt
    this.#cancelProbe = clock.at(this.#nextProbeAt, () => this.#context!.shaper.control.allowProbe(gate))
  }

  #probeFailed(): void {
    const { clock, gate } = this.#upstream
    gate.probing = false
    this.#interval = Math.min(this.settings.maxProbe, 2 * this.#interval)
    this.#planProbe(clock.now())
    if (this.#isGivenUp) this.#refuseAll()
  }

  #refuseAll(): void {
    this.#context!.shaper.control.refuseAll(this.#upstream.gate, this.retryAfter)
  }

  #close(why: 'answered' | 'handed-on'): void {
    const { gate, url } = this.#upstream
    this.#openedAt = undefined
    this.#isGivenUp = false
    this.#cancelProbe()
    this.#cancelHold()
    if (why === 'answered') this.#upstream.warmUp?.begin()
    this.#context!.shaper.control.unblock(gate)
    this.#context!.observer.broken?.(url, 'answering')
  }
}
