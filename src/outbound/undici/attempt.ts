import { AsyncResource } from 'node:async_hooks'
import type { IncomingHttpHeaders } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Dispatcher } from 'undici'
import type { Cancel, Clock } from '../../core/clock.js'
import type { HeldController } from './held-controller.js'

type Controller = Dispatcher.DispatchController
type Handler = Dispatcher.DispatchHandler
type HandlerMethod = 'onResponseStarted' | 'onResponseStart' | 'onResponseData' | 'onResponseEnd' | 'onRequestUpgrade'

/** Bytes and ms of an unwanted answer that are read to save its connection. */
const LONGEST_DUMP = { size: 128 * 1_024, time: 1_000 }

/** The request that an attempt sends. */
export interface Sender {
  /** The receiver of the answer, and the controller that it was given. */
  readonly handler: Handler
  readonly controller: HeldController
  /** The request has been written. */
  written(): void
  /**
   * The head of its answer has arrived.
   *
   * @returns true if the handler must not get the answer: it is read to its end to save its connection
   */
  answered(attempt: Attempt, real: Controller, status: number, headers: IncomingHttpHeaders): boolean
  /** The attempt has ended, successfully or not. */
  ended(started: boolean, dumped: boolean): void
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
  /** Bytes read of an unwanted answer; undefined: the handler gets the answer. */
  #dumped: number | undefined
  #forgetDump: Cancel = () => false
  readonly #clock: Clock
  #real: Controller | undefined

  constructor(sender: Sender, clock: Clock) {
    super('ShaperRequest')
    this.#sender = sender
    this.#clock = clock
  }

  /** Drops the rest of an unwanted answer. */
  readonly stop = (): void => {
    if (!this.#over) this.#real?.abort(new Error('the rest of the answer is not wanted'))
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
      this.#real = real
      this.#dumped = 0
      const sender = this.#sender
      if (this.runInAsyncScope(sender.answered, sender, this, real, status, headers)) {
        if (!this.#over) this.#forgetDump = this.#clock.at(this.#clock.now() + LONGEST_DUMP.time, this.stop)
        return
      }
      this.#dumped = undefined
    }
    this.#callHandler('onResponseStart', this.#sender.controller, status, headers, message)
  }

  onResponseData(_: Controller, chunk: Buffer): void {
    if (this.#dumped === undefined) return this.#callHandler('onResponseData', this.#sender.controller, chunk)
    this.#dumped += chunk.length
    if (this.#dumped > LONGEST_DUMP.size) this.stop()
  }

  onResponseEnd(_: Controller, trailers: IncomingHttpHeaders): void {
    this.#end()
    if (this.#dumped === undefined) this.#callHandler('onResponseEnd', this.#sender.controller, trailers)
  }

  onRequestUpgrade(_: Controller, status: number, headers: IncomingHttpHeaders, socket: Duplex): void {
    this.#end()
    this.#callHandler('onRequestUpgrade', this.#sender.controller, status, headers, socket)
  }

  /** May also come after the end, if the handler throws then. */
  onResponseError(_: Controller | undefined, error: Error): void {
    this.#end()
    if (this.#dumped !== undefined || this.#failed) return
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
    this.#forgetDump()
    this.#sender.ended(this.#started, this.#dumped !== undefined)
  }
}
