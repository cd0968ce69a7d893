/** Calls whose result settles a promise. */

import type { CallContext } from '../call-context.js'
import { unwatch, watch } from './abort-signals.js'
import { Call } from './call.js'
import { type CallOptions, checkKey, readCallOptions } from './call-options.js'

/** What `admit` resolves to. */
export interface Admitted {
  /** How long it waited, in ms. */
  readonly waitMs: number
}

/** A call whose result settles a promise. */
abstract class PromisedCall<T> extends Call {
  readonly #signal: AbortSignal | undefined
  protected resolve: (value: T) => void = ignore
  protected fail: (error: unknown) => void = ignore

  constructor(context: CallContext, key: string, options: CallOptions | undefined) {
    const { cost, maxWait, signal } = readCallOptions(options)
    super(context, checkKey(key), cost, maxWait)
    this.#signal = signal
  }

  /** Queues it, and settles a promise when it is over. */
  begin(resolve: (value: T) => void, reject: (error: unknown) => void): void {
    this.resolve = resolve
    this.fail = reject
    const signal = this.#signal
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
    return this.proceed(waitMs)
  }

  #unwatch(): void {
    if (this.#signal !== undefined) unwatch(this.#signal, this)
  }

  protected abstract proceed(waitMs: number): boolean
}

export class AdmitCall extends PromisedCall<Admitted> {
  protected override proceed(waitMs: number): boolean {
    this.resolve({ waitMs })
    return true
  }
}

export class RunCall extends PromisedCall<unknown> {
  readonly #fn: () => unknown

  constructor(context: CallContext, key: string, options: CallOptions | undefined, fn: () => unknown) {
    super(context, key, options)
    this.#fn = fn
  }

  protected override proceed(): boolean {
    try {
      const result = this.#fn()
      if (isThenable(result)) {
        result.then(
          value => {
            this.finish()
            this.resolve(value)
          },
          error => {
            this.finish()
            this.fail(error)
          },
        )
        return false
      }
      this.resolve(result)
    } catch (error) {
      this.fail(error)
    }
    return true
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  const mayBe = (typeof value === 'object' && value !== null) || typeof value === 'function'
  return mayBe && 'then' in value && typeof value.then === 'function'
}

function ignore(): void {}
