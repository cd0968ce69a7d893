/**
 * A request that waits for its turn, is sent, and may be sent again.
 *
 * Its handler gets a controller at once, so it can be aborted while it waits. Its body is not touched before its
 * release. From its release until it is written no other request of its key is released: a connection that opens slowly
 * would bunch the requests behind it. The next slot is counted from the write.
 */
import { AsyncResource } from 'node:async_hooks'
import type { IncomingHttpHeaders } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Dispatcher } from 'undici'
import type { Clock } from '../../core/clock.js'
import { type Fields, fieldsOf } from '../../http/quota/field-values.js'
import { LimitInBody, mayTellInBody, UNNAMED_PAUSE } from '../../http/quota/limit-in-body.js'
import { hasStatus, LONGEST_PAUSE, namedPause, pauseAfter } from '../../http/quota/pause-rule.js'
import { resourceOf } from '../../http/quota/quota-fields.js'
import { UnwantedAnswer } from '../../http/unwanted-answer.js'
import type { CallContext } from '../call-context.js'
import { Call, type CallFacts } from '../calls/call.js'
import { Charge } from '../calls/run-call.js'
import { ExpiredError } from '../errors.js'
import type { KeyQueue, Writer } from '../key-queues.js'
import type { RequestSettings } from '../options.js'
import { discard, isNetworkError, isRepeatable, queueName, streamOf, withCredential } from './request-parts.js'

type Options = Dispatcher.DispatchOptions
/** ms. If a key spans several origins, its requests wait at most this long for the connection to one of them. */
const LONGEST_CONNECT = 1_000
/** The status of an answer to a credential that may not be valid (any more). */
const UNAUTHORIZED = 401

interface Sent {
  readonly dispatch: Dispatcher.Dispatch
  readonly options: Options
  readonly handler: Dispatcher.DispatchHandler
  /** Its key without a resource, if that is learnt. Undefined: it is not. */
  readonly keyAlone: string | undefined
}

export class HeldRequest extends Call implements Writer {
  /** The receiver of the answer, and the controller that it was given. */
  readonly handler: Dispatcher.DispatchHandler
  readonly controller: HeldController
  readonly #dispatch: Dispatcher.Dispatch
  readonly #options: Options
  readonly #settings: RequestSettings<Options>
  readonly #keyAlone: string | undefined
  /** The current attempt, and an earlier one's unwanted answer, which is still being read. */
  #attempt: Attempt | undefined
  #unwanted: UnwantedAnswer | undefined
  #retries = 0
  /** Unwanted answers that have not ended, and whose places in flight are free already. */
  #placesLeft = 0

  constructor(context: CallContext, settings: RequestSettings<Options>, facts: CallFacts, request: Sent) {
    super(context, facts)
    this.#settings = settings
    this.#dispatch = request.dispatch
    this.#options = request.options
    this.#keyAlone = request.keyAlone
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

  /** The head of its answer has arrived. Discards it on the attempt if the handler must not get it. */
  answered(attempt: Attempt, real: Dispatcher.DispatchController, status: number, headers: IncomingHttpHeaders): void {
    const { retry } = this.#settings
    this.#settle(status, headers)
    const fields = fieldsOf(headers)
    const route = this.#routeOf(fields)
    const pause = this.#pause(route, attempt, status, fields)
    if (route !== this.route) this.#gather()
    // A listener of `paused` may have aborted it.
    if (this.controller.aborted || (status === UNAUTHORIZED && this.#isMovedFromRefused(attempt, real))) return
    if (status < 300) this.#takeOut()
    if (!hasStatus(retry.status, status, fields)) return
    const backoff = namedPause(fields, Date.now()) === undefined ? this.#backoff() : 0
    const wait = backoff > 0 ? Math.max(backoff, route.gate.pausedFor(this.context.clock.now())) : 0
    if (!this.#mayRetry(wait)) return
    this.#retries += 1
    if (pause > 0 && this.#moveToOther(attempt, real)) return
    if (route === this.route && backoff === 0) return this.#sendAgain(attempt, real)
    this.#giveUpAnswer(attempt, real)
    if (route === this.route) return this.retryIn(backoff, new ExpiredError(this.key, 0))
    this.leaveFlight()
    this.joinQueue(route)
  }

  /** At the head of its queue. The caller gets the answer after all where that would take too long. */
  #sendAgain(attempt: Attempt, real: Dispatcher.DispatchController): void {
    this.controller.attach(undefined)
    this.#unwanted = attempt.discard(real)
    if (this.requeue()) return
    attempt.keep()
    this.#unwanted = undefined
    this.controller.attach(real)
  }

  /** The connection has failed before an answer. True: the request will be sent again, and this attempt is forgotten. */
  isSentAgain(error: Error): boolean {
    const backoff = this.#backoff()
    if (this.controller.aborted || !this.running || !isNetworkError(error) || !this.#mayRetry(backoff)) return false
    this.#retries += 1
    this.controller.attach(undefined)
    this.retryIn(backoff, error)
    // It may not have been written. The next request need not wait for it.
    this.context.sendOrder.unblock(this.route, this)
    return true
  }

  /** @param wait ms until then */
  #mayRetry(wait: number): boolean {
    if (this.#retries >= this.#settings.retry.max || !isRepeatable(this.#options)) return false
    return this.context.clock.now() - this.arrivedAt + wait <= this.maxWait
  }

  #backoff(): number {
    const { backoff, maxBackoff } = this.#settings.retry
    return Math.random() * Math.min(maxBackoff, backoff * 2 ** this.#retries)
  }

  #pause(route: KeyQueue, attempt: Attempt, status: number, fields: Fields): number {
    const { pauseOn, learn } = this.#settings
    const { context } = this
    const longest = pauseOn?.max ?? LONGEST_PAUSE
    const asked = pauseOn === undefined ? 0 : pauseAfter(pauseOn, status, fields, Date.now())
    const left = learn ? context.learned.learn(route, fields, this, longest) : 0
    const pause = Math.max(asked, left)
    if (pause > 0) context.pauses.announced(route, pause)
    if (pauseOn?.status.includes(429) && mayTellInBody(status, fields)) {
      const found = (): void => context.pauses.announced(route, Math.min(UNNAMED_PAUSE, longest))
      attempt.readAlong(new LimitInBody(fields, found))
    }
    return pause
  }

  /** The queue that an answer is about: that of the resource that it names. */
  #routeOf(fields: Fields): KeyQueue {
    const { context } = this
    const resource = this.#keyAlone === undefined ? undefined : resourceOf(fields)
    if (resource === undefined) return this.route
    context.resources.learn(this.#keyAlone!, this.#options.path, resource)
    return context.queueOf(queueName(this.#keyAlone!, resource), context.clock.now()) ?? this.route
  }

  /** Requests whose resource is known now wait with those that share it. Not before its pause: they would leave at once. */
  #gather(): void {
    for (const call of [...this.context.waiting]) if (call instanceof HeldRequest) call.#joinResource()
  }

  #joinResource(): void {
    if (this.#keyAlone === undefined) return
    const { resources, clock } = this.context
    const name = queueName(this.#keyAlone, resources.of(this.#keyAlone, this.#options.path))
    const queue = this.context.queueOf(name, clock.now())
    if (queue !== undefined && queue !== this.route) this.joinQueue(queue)
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
    this.#giveUpAnswer(attempt, real)
    this.leaveFlight()
    this.returnToFront()
    credentials.give()
    return true
  }

  /** It will be sent again, and leaves its place in flight at once. */
  #giveUpAnswer(attempt: Attempt, real: Dispatcher.DispatchController): void {
    this.controller.attach(undefined)
    this.#unwanted = attempt.discard(real)
    this.#placesLeft += 1
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

type Controller = Dispatcher.DispatchController
type Handler = Dispatcher.DispatchHandler
type HandlerMethod = 'onResponseStarted' | 'onResponseStart' | 'onResponseData' | 'onResponseEnd' | 'onRequestUpgrade'
/** How an attempt ended: before its request was written, with its answer or an error, or with an unwanted answer. */
type AttemptEnd = 'unsent' | 'sent' | 'discarded'

interface BodyReader {
  read(chunk: Buffer): void
  end(): void
}

/**
 * One attempt to send a request, as a handler for undici. It reports its end exactly once. undici calls it in the async
 * context in which the connection was opened; it switches to the caller's context, in which it was made.
 */
class Attempt extends AsyncResource implements Handler {
  readonly #sender: HeldRequest
  #started = false
  #over = false
  #failed = false
  /** Undefined: the handler gets the answer. */
  #unwanted: UnwantedAnswer | undefined
  #body: BodyReader | undefined
  #hasHead = false
  readonly #clock: Clock

  constructor(sender: HeldRequest, clock: Clock) {
    super('ShaperRequest')
    this.#sender = sender
    this.#clock = clock
  }

  /** Reads the answer to its end, to save its connection. The handler does not get it. */
  discard(real: Controller): UnwantedAnswer {
    this.#unwanted = new UnwantedAnswer(this.#clock, real)
    return this.#unwanted
  }

  readAlong(body: BodyReader): void {
    this.#body = body
  }

  /** The handler gets the answer after all. */
  keep(): void {
    this.#unwanted?.ended()
    this.#unwanted = undefined
  }

  onRequestStart(real: Controller): void {
    const { controller } = this.#sender
    if (controller.reason !== null) return real.abort(controller.reason)
    controller.attach(real)
    // undici starts it again if its connection was lost before anything was sent.
    if (this.#started) return
    this.#started = true
    // undici writes it right after this returns.
    queueMicrotask(() => this.#sender.written())
  }

  onResponseStarted(): void {
    this.#callHandler('onResponseStarted')
  }

  onResponseStart(real: Controller, status: number, headers: IncomingHttpHeaders, message?: string): void {
    if (status >= 200) {
      this.#hasHead = true
      const sender = this.#sender
      this.runInAsyncScope(sender.answered, sender, this, real, status, headers)
      if (this.#unwanted !== undefined || this.#over) return
    }
    this.#callHandler('onResponseStart', this.#sender.controller, status, headers, message)
  }

  onResponseData(_: Controller, chunk: Buffer): void {
    this.#body?.read(chunk)
    if (this.#unwanted !== undefined) this.#unwanted.read(chunk.length)
    else this.#callHandler('onResponseData', this.#sender.controller, chunk)
  }

  onResponseEnd(_: Controller, trailers: IncomingHttpHeaders): void {
    this.#end()
    if (this.#unwanted === undefined) this.#callHandler('onResponseEnd', this.#sender.controller, trailers)
  }

  onRequestUpgrade(_: Controller, status: number, headers: IncomingHttpHeaders, socket: Duplex): void {
    this.#end()
    this.#callHandler('onRequestUpgrade', this.#sender.controller, status, headers, socket)
  }

  /** May also come after the end, if the handler throws then. */
  onResponseError(_: Controller | undefined, error: Error): void {
    const sender = this.#sender
    if (!this.#over && !this.#hasHead && this.runInAsyncScope(sender.isSentAgain, sender, error)) {
      this.#over = true
      this.#failed = true
      return
    }
    this.#end()
    if (this.#unwanted !== undefined || this.#failed) return
    this.#failed = true
    this.runInAsyncScope(this.#sender.failed, this.#sender, error)
  }

  #callHandler<Name extends HandlerMethod>(name: Name, ...given: Parameters<NonNullable<Handler[Name]>>): void {
    const { handler } = this.#sender
    const method = handler[name] as ((...given: unknown[]) => void) | undefined
    if (method !== undefined) this.runInAsyncScope(method, handler, ...given)
  }

  #end(): void {
    if (this.#over) return
    this.#over = true
    this.#body?.end()
    this.#unwanted?.ended()
    this.#sender.ended(this.#unwanted !== undefined ? 'discarded' : this.#started ? 'sent' : 'unsent')
  }
}

type Raw = Dispatcher.DispatchController['rawHeaders']

/** What the handler gets at the beginning. While the request waits it works alone, then it passes on to the real one. */
class HeldController implements Dispatcher.DispatchController {
  readonly #aborted: (reason: Error) => void
  #real: Dispatcher.DispatchController | undefined
  #reason: Error | null = null
  #paused = false

  /** @param aborted called once if `abort` comes while there is no connection */
  constructor(aborted: (reason: Error) => void) {
    this.#aborted = aborted
  }

  /** @param real the controller of the request's connection; undefined: it has none any more */
  attach(real: Dispatcher.DispatchController | undefined): void {
    this.#real = real
    if (real !== undefined && this.#paused) real.pause()
  }

  abort(reason?: Error): void {
    if (this.aborted) return
    this.#reason = reason ?? new DOMException('This operation was aborted', 'AbortError')
    if (this.#real !== undefined) this.#real.abort(this.#reason)
    else this.#aborted(this.#reason)
  }

  pause(): void {
    this.#paused = true
    this.#real?.pause()
  }

  resume(): void {
    this.#paused = false
    this.#real?.resume()
  }

  get aborted(): boolean {
    return this.#reason !== null || (this.#real?.aborted ?? false)
  }

  get reason(): Error | null {
    return this.#reason ?? this.#real?.reason ?? null
  }

  get paused(): boolean {
    return this.#real?.paused ?? this.#paused
  }

  get rawHeaders(): NonNullable<Raw> | null {
    return this.#real?.rawHeaders ?? null
  }

  get rawTrailers(): NonNullable<Raw> | null {
    return this.#real?.rawTrailers ?? null
  }
}
