import { AsyncResource } from 'node:async_hooks'
import type { IncomingHttpHeaders } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Dispatcher } from 'undici'
import type { Cancel, Clock } from '../../core/clock.js'
import type { HeldController } from './held-controller.js'

type Controller = Dispatcher.DispatchController
type Handler = Dispatcher.DispatchHandler
type HandlerMethod = 'onResponseStarted' | 'onResponseStart' | 'onResponseData' | 'onResponseEnd' | 'onRequestUpgrade'

/** So much of an answer that nobody is to see is read for the sake of its connection, in bytes, and for so long, in ms. */
const LONGEST_DUMP = { size: 128 * 1_024, time: 1_000 }

/** Whose request is sent. */
export interface Sender {
  /** Who gets the answer, and what it knows as its controller. */
  readonly handler: Handler
  readonly controller: HeldController
  /** It has been written. */
  written(): void
  /** Its answer has come; true: it is not for the handler, and is read to its end for the sake of its connection. */
  answered(attempt: Attempt, real: Controller, status: number, headers: IncomingHttpHeaders): boolean
  /** It has ended, well or not. */
  ended(started: boolean, dumped: boolean): void
  failed(error: Error): void
}

/**
 * One sending of a request: undici's handler for it. It reports its end exactly once. undici calls it in the async
 * context in which the connection was opened. It switches to the context in which it was made, which is the caller's.
 */
export class Attempt extends AsyncResource implements Handler {
  readonly #sender: Sender
  #started = false
  #over = false
  #failed = false
  /** How much of an answer that nobody is to see has been read, in bytes; undefined: it is the handler's. */
  #dumped: number | undefined
  #forgetDump: Cancel = () => false
  readonly #clock: Clock
  #real: Controller | undefined

  constructor(sender: Sender, clock: Clock) {
    super('ShaperRequest')
    this.#sender = sender
    this.#clock = clock
  }

  /** Does without the rest of an answer that nobody is to see. */
  readonly stop = (): void => {
    if (!this.#over) this.#real?.abort(new Error('the rest of the answer is not wanted'))
  }

  onRequestStart(real: Controller): void {
    const { controller } = this.#sender
    if (controller.reason !== null) return real.abort(controller.reason)
    controller.attach(real)
    // undici starts it anew where its connection was lost before anything came of it.
    if (this.#started) return
    this.#started = true
    // It is written by whoever calls us, right after this.
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

  /** Also after the end, where the handler has thrown at it. */
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
