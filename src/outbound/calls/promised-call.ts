/** Calls whose result settles a promise. */

import type { CallContext } from '../call-context.js'
import { unwatch, watch } from './abort-signals.js'
import { Call } from './call.js'
import { type CallOptions, type CallSettings, checkKey, readCallOptions } from './call-options.js'

/** What `admit` resolves to. */
export interface Admitted {
  /** How long it waited, in ms. */
  readonly waitMs: number
}

/** A call whose result settles a promise. */
export abstract class PromisedCall<T> extends Call {
  protected readonly callerSignal: AbortSignal | undefined
  protected resolve: (value: T) => void = ignore
  protected fail: (error: unknown) => void = ignore

  constructor(context: CallContext, key: string, settings: CallSettings) {
    const { cost, costs, maxWait, priority, id } = settings
    super(context, { key: checkKey(key), cost, costs, maxWait, priority, id })
    this.callerSignal = settings.signal
  }

  /** Queues it, and settles a promise when it is over. */
  begin(resolve: (value: T) => void, reject: (error: unknown) => void): void {
    this.resolve = resolve
    this.fail = reject
    const signal = this.callerSignal
    if (signal?.aborted) return reject(signal.reason)
    this.start()
    if (signal === undefined || !this.pending) return
    // `start` emits `queued`. A listener may have aborted the call.
    if (signal.aborted) this.cancel(signal.reason)
    else watch(signal, this)
  }

  protected override refuse(error: unknown): void {
    this.#unwatch()
    this.fail(error)
  }

  protected override go(waitMs: number): boolean {
    this.#unwatch()
    // Before the function runs: it may say at once what it really costs.
    this.context.sendOrder.count(this.route, this)
    return this.proceed(waitMs)
  }

  #unwatch(): void {
    if (this.callerSignal !== undefined) unwatch(this.callerSignal, this)
  }

  protected abstract proceed(waitMs: number): boolean
}

export class AdmitCall extends PromisedCall<Admitted> {
  constructor(context: CallContext, key: string, options: CallOptions | undefined) {
    super(context, key, readCallOptions(options, context.names))
  }

  protected override proceed(waitMs: number): boolean {
    this.resolve({ waitMs })
    return true
  }
}

function ignore(): void {}
