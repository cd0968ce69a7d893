/**
 * One request that waits for its turn, is sent, and may be sent again.
 *
 * Its handler gets a controller at once, so that it can be aborted while it waits. Its body is not touched before its
 * release. From its release until it is written nobody else of its key passes: a connection that is slow to open would
 * bunch what comes after it. The next slot is counted from when it was written.
 */
import type { IncomingHttpHeaders } from 'node:http'
import type { Dispatcher } from 'undici'
import { pauseAfter } from '../quota/pause.js'
import { Attempt, type Sender } from './attempt.js'
import { Call } from './call.js'
import { HeldController } from './held-controller.js'
import type { RequestSettings } from './options.js'
import { discard, fieldsOf, isRepeatable, streamOf } from './request-parts.js'
import type { Traffic } from './traffic.js'

type Options = Dispatcher.DispatchOptions

export class HeldRequest extends Call implements Sender {
  readonly handler: Dispatcher.DispatchHandler
  readonly controller: HeldController
  readonly #dispatch: Dispatcher.Dispatch
  readonly #options: Options
  readonly #settings: RequestSettings<Options>
  /** When it was let go last, in ms. */
  #passedAt = 0
  /** How often it has been sent again. */
  #retries = 0

  constructor(
    traffic: Traffic,
    settings: RequestSettings<Options>,
    facts: { readonly key: string; readonly cost: number },
    request: { dispatch: Dispatcher.Dispatch; options: Options; handler: Dispatcher.DispatchHandler },
  ) {
    super(traffic, facts.key, facts.cost, undefined)
    this.#settings = settings
    this.#dispatch = request.dispatch
    this.#options = request.options
    this.handler = request.handler
    this.controller = new HeldController(this.#onAbort)
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
    this.#passedAt = this.traffic.clock.now()
    this.route.gate.closed = true
    const attempt = new Attempt(this)
    try {
      this.#dispatch(this.#options, attempt)
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

  /** The handler is told; what it makes of it is not ours, and whoever called us has more to do. */
  failed(error: Error): void {
    this.#letBodyGo()
    try {
      this.handler.onResponseError?.(this.controller, error)
    } catch (thrown) {
      process.nextTick(() => {
        throw thrown
      })
    }
  }

  /** The gate opens again. */
  written(): void {
    const { traffic, route, stack, cost } = this
    traffic.shaper.control.sent(route.gate, stack, cost, this.#passedAt)
  }

  answered(real: Dispatcher.DispatchController, status: number, headers: IncomingHttpHeaders): boolean {
    const { pauseOn, retry } = this.#settings
    const pause = pauseOn === undefined ? 0 : pauseAfter(pauseOn, status, fieldsOf(headers), Date.now())
    if (pause > 0) this.traffic.pause(pause, this.key)
    if (!retry.status.includes(status) || this.#retries >= retry.max || !isRepeatable(this.#options)) return false
    this.controller.attach(undefined)
    this.#retries += 1
    if (this.again()) return true
    this.controller.attach(real)
    return false
  }

  ended(started: boolean, dumped: boolean): void {
    const { traffic, route } = this
    // It was never written: whoever comes next has nothing to wait for.
    if (!started) route.gate.closed = false
    if (dumped) traffic.leave(route)
    else this.finish()
    if (!started) traffic.shaper.wake(route.gate)
    this.#letBodyGo()
  }

  readonly #onAbort = (reason: Error): void => {
    this.cancel(reason)
  }

  readonly #onBodyError = (error: Error): void => {
    if (!this.controller.aborted && this.pending) this.controller.abort(error)
  }

  #letBodyGo(): void {
    streamOf(this.#options.body)?.off('error', this.#onBodyError)
  }
}
