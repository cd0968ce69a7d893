/**
 * A request that waits for its turn, is sent, and may be sent again.
 *
 * Its handler gets a controller at once, so it can be aborted while it waits. Its body is not touched before its
 * release. From its release until it is written no other request of its key is released: a connection that opens slowly
 * would bunch the requests behind it. The next slot is counted from the write.
 */
import type { IncomingHttpHeaders } from 'node:http'
import type { Dispatcher } from 'undici'
import { fieldsOf } from '../../http/quota/field-values.js'
import { hasStatus, LONGEST_PAUSE, pauseAfter } from '../../http/quota/pause-rule.js'
import type { UnwantedAnswer } from '../../http/unwanted-answer.js'
import type { CallContext } from '../call-context.js'
import { Call, type CallFacts } from '../calls/call.js'
import { Charge } from '../calls/charge.js'
import type { Writer } from '../key-queues.js'
import type { RequestSettings } from '../options.js'
import { Attempt, type AttemptEnd, type Sender } from './attempt.js'
import { HeldController } from './held-controller.js'
import { discard, isRepeatable, streamOf, withCredential } from './request-parts.js'

type Options = Dispatcher.DispatchOptions

/** ms. If a key spans several origins, its requests wait at most this long for the connection to one of them. */
const LONGEST_CONNECT = 1_000

/** The status of an answer to a credential that may not be valid (any more). */
const UNAUTHORIZED = 401

export class HeldRequest extends Call implements Sender, Writer {
  readonly handler: Dispatcher.DispatchHandler
  readonly controller: HeldController
  readonly #dispatch: Dispatcher.Dispatch
  readonly #options: Options
  readonly #settings: RequestSettings<Options>
  /** The current attempt, and an earlier one's unwanted answer, which is still being read. */
  #attempt: Attempt | undefined
  #unwanted: UnwantedAnswer | undefined
  /** How often it has been sent again. */
  #retries = 0
  /** Unwanted answers that have not ended, and whose places in flight are free already. */
  #placesLeft = 0

  constructor(
    context: CallContext,
    settings: RequestSettings<Options>,
    facts: CallFacts,
    request: { dispatch: Dispatcher.Dispatch; options: Options; handler: Dispatcher.DispatchHandler },
  ) {
    super(context, facts)
    this.#settings = settings
    this.#dispatch = request.dispatch
    this.#options = request.options
    this.handler = request.handler
    this.controller = new HeldController(this.#onAbort)
    // Answers come in the context of their connection.
    if (settings.retry.max > 0) this.keepAsyncContext()
  }

  begin(): void {
    streamOf(this.#options.body)?.on('error', this.#onBodyError)
    try {
      this.handler.onRequestStart?.(this.controller, undefined)
    } catch (error) {
      return this.refuse(error)
    }
    if (this.controller.reason !== null) this.refuse(this.controller.reason)
    else this.start()
  }

  protected override go(): boolean {
    const { sendOrder, clock } = this.context
    sendOrder.block(this.route, this, this.#settings.key === 'origin' ? Infinity : LONGEST_CONNECT)
    const attempt = new Attempt(this, clock)
    this.#attempt = attempt
    try {
      const credential = this.context.credentials?.of(this.route)
      this.#dispatch(credential === undefined ? this.#options : withCredential(this.#options, credential), attempt)
    } catch (error) {
      attempt.onResponseError(undefined, error as Error)
    }
    return false
  }

  protected override refuse(error: unknown): void {
    const reason = error instanceof Error ? error : new Error('not sent', { cause: error })
    discard(this.#options.body, reason)
    this.failed(reason)
  }

  /** Reports to the handler. An error of the handler must not disturb our caller. */
  failed(error: Error): void {
    this.#unwatchBody()
    try {
      if (this.handler.onResponseError !== undefined) this.handler.onResponseError(this.controller, error)
      else this.handler.onError?.(error)
    } catch (thrown) {
      process.nextTick(() => {
        throw thrown
      })
    }
  }

  written(): void {
    this.context.sendOrder.written(this.route, this)
  }

  yieldTo(): void {
    this.context.sendOrder.sent(this.route, this, this)
  }

  answered(attempt: Attempt, real: Dispatcher.DispatchController, status: number, headers: IncomingHttpHeaders): void {
    const { pauseOn, retry, learn } = this.#settings
    const { context, route } = this
    this.#settle(status, headers)
    const fields = fieldsOf(headers)
    const asked = pauseOn === undefined ? 0 : pauseAfter(pauseOn, status, fields, Date.now())
    const left = learn ? context.learned.learn(route, fields, this, pauseOn?.max ?? LONGEST_PAUSE) : 0
    const pause = Math.max(asked, left)
    if (pause > 0) context.pauses.announced(route, pause)
    // A listener of `paused` may have aborted it.
    if (this.controller.aborted || (status === UNAUTHORIZED && this.#isMovedFromRefused(attempt, real))) return
    if (status < 300) this.#takeOut()
    const isRetried = hasStatus(retry.status, status, fields)
    if (!isRetried || this.#retries >= retry.max || !isRepeatable(this.#options)) return
    this.#retries += 1
    if (pause > 0 && this.#moveToOther(attempt, real)) return
    this.controller.attach(undefined)
    this.#unwanted = attempt.discard(real)
    if (this.requeue()) return
    attempt.keep()
    this.#unwanted = undefined
    this.controller.attach(real)
  }

  /** The answer says what the request really costs. */
  #settle(status: number, headers: IncomingHttpHeaders): void {
    const { costAfter } = this.#settings
    if (costAfter === undefined) return
    try {
      const cost = costAfter(status, headers)
      if (cost !== undefined) new Charge(this).change(cost)
    } catch (error) {
      // The server may have said anything. What was reserved stays.
      this.context.complainOfAnswer(new Error(`costAfter: ${(error as Error).message}`, { cause: error }))
    }
  }

  /** Another credential tries the request, if it may be sent again: this one may be invalid, or the request always be refused. */
  #isMovedFromRefused(attempt: Attempt, real: Dispatcher.DispatchController): boolean {
    if (!isRepeatable(this.#options)) return false
    this.refusedBy = [...this.refusedBy, this.route]
    return this.#moveToOther(attempt, real)
  }

  /** The request succeeds: the credentials that were answered 401 are invalid. Those that wait for them go back to the front. */
  #takeOut(): void {
    const { credentials, pauses } = this.context
    for (const queue of this.refusedBy) {
      if (queue !== this.route && credentials?.hasOther(this, [queue])) pauses.pause(queue, this.#settings.revokedFor)
    }
  }

  /** Another credential takes the request, if there is one that does not pause. */
  #moveToOther(attempt: Attempt, real: Dispatcher.DispatchController): boolean {
    const { credentials } = this.context
    if (!credentials?.hasOther(this, [...this.refusedBy, this.route])) return false
    this.controller.attach(undefined)
    this.#unwanted = attempt.discard(real)
    this.leaveFlight()
    this.#placesLeft += 1
    this.returnToFront()
    credentials.give()
    return true
  }

  ended(end: AttemptEnd): void {
    if (end === 'discarded') {
      if (this.#placesLeft === 0) this.leaveFlight()
      else this.#placesLeft -= 1
      return
    }
    this.finish()
    // It was never written, so the next request need not wait for it.
    if (end === 'unsent') this.context.sendOrder.unblock(this.route, this)
    this.#unwatchBody()
  }

  readonly #onAbort = (reason: Error): void => {
    this.#unwanted?.stop()
    if (this.cancel(reason) || !this.running) return
    // Its connection is still being opened. Nothing will be sent on it.
    discard(this.#options.body, reason)
    this.#attempt?.onResponseError(undefined, reason)
  }

  readonly #onBodyError = (error: Error): void => {
    if (!this.controller.aborted && this.pending) this.controller.abort(error)
  }

  #unwatchBody(): void {
    streamOf(this.#options.body)?.off('error', this.#onBodyError)
  }
}
