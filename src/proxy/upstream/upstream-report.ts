import type { SendFacts, SentRequest } from '../../core/adaptive/adaptive-rate.js'
import type { AdaptiveLimit } from './adaptive-limit.js'
import type { AttemptFailure, Breaker, UpstreamAttempt } from './breaker.js'
import type { Upstream } from './upstream.js'

/**
 * What an upstream's breaker and its adaptive rate hear of one request. Each of them hears once how it ended, each time that it was
 * sent.
 */
export class UpstreamReport {
  readonly #request: { readonly client: string }
  #breaker: Breaker | undefined
  /** Undefined: the breaker has heard of its end. */
  #attempt: UpstreamAttempt | undefined
  #limit: AdaptiveLimit | undefined
  /** Undefined: the adaptive rate has heard of its end. */
  #sent: SentRequest | undefined

  constructor(request: { readonly client: string }) {
    this.#request = request
  }

  /** It is on its way. */
  begin({ breaker }: Upstream): void {
    this.#breaker = breaker
    this.#attempt = breaker?.attempt()
  }

  /** The rate is found by what becomes of it. @param at when it was sent, in ms */
  measure(limit: AdaptiveLimit, facts: SendFacts, at: number): void {
    this.#limit = limit
    this.#sent = limit.sent(facts, at)
  }

  /** The head of an answer has come. */
  answered(status: number): void {
    const sent = this.#takeSent()
    if (sent !== undefined) this.#limit!.answered(sent, status)
    const attempt = this.#takeAttempt()
    if (attempt !== undefined) this.#breaker!.answered(attempt, status, this.#request.client)
  }

  /** There was no answer. */
  failed(failure: AttemptFailure): void {
    const sent = this.#takeSent()
    if (sent !== undefined) this.#limit!.failed(sent)
    const attempt = this.#takeAttempt()
    if (attempt !== undefined) this.#breaker!.failed(attempt, failure, this.#request.client)
  }

  /** It was given up. Nothing is known. */
  dropped(): void {
    this.unmeasured()
    const attempt = this.#takeAttempt()
    if (attempt !== undefined) this.#breaker!.dropped(attempt)
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
