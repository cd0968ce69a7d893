import { AsyncResource } from 'node:async_hooks'
import type { IncomingHttpHeaders } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Dispatcher } from 'undici'
import type { Clock } from '../../core/clock.js'
import { UnwantedAnswer } from '../../http/unwanted-answer.js'
import type { HeldController } from './held-controller.js'

type Controller = Dispatcher.DispatchController
type Handler = Dispatcher.DispatchHandler
type HandlerMethod = 'onResponseStarted' | 'onResponseStart' | 'onResponseData' | 'onResponseEnd' | 'onRequestUpgrade'

/** How an attempt ended: before its request was written, with its answer or an error, or with an unwanted answer. */
export type AttemptEnd = 'unsent' | 'sent' | 'discarded'

/** Reads a body as it comes. */
interface BodyReader {
  read(chunk: Buffer): void
  end(): void
}

/** The request that an attempt sends. */
export interface Sender {
  /** The receiver of the answer, and the controller that it was given. */
  readonly handler: Handler
  readonly controller: HeldController
  /** The request has been written. */
  written(): void
  /** The head of its answer has arrived. Discards it on the attempt if the handler must not get it. */
  answered(attempt: Attempt, real: Controller, status: number, headers: IncomingHttpHeaders): void
  /** The connection has failed before an answer. True: the request will be sent again, and this attempt is forgotten. */
  isSentAgain(error: Error): boolean
  /** The attempt has ended, successfully or not. */
  ended(end: AttemptEnd): void
  failed(error: Error): void
}

/**
 * One attempt to send a request, as a handler for undici. It reports its end exactly once. undici calls it in the async
 * context in which the connection was opened; it switches to the caller's context, in which it was made.
 */
export class Attempt extends AsyncResource implements Handler {
  readonly #sender: Sender
  #started = false
  #over = false
  #failed = false
  /** Undefined: the handler gets the answer. */
  #unwanted: UnwantedAnswer | undefined
  /** Reads along. */
  #body: BodyReader | undefined
  #hasHead = false
  readonly #clock: Clock

  constructor(sender: Sender, clock: Clock) {
    super('ShaperRequest')
    this.#sender = sender
    this.#clock = clock
  }

  /** Reads the answer to its end, to save its connection. The handler does not get it. */
  discard(real: Controller): UnwantedAnswer {
    this.#unwanted = new UnwantedAnswer(this.#clock, real)
    return this.#unwanted
  }

  /** This reads the body of the answer, too. */
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
