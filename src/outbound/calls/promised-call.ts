/** Calls that end in a promise. */

import type { CallContext } from '../call-context.js'
import { unwatch, watch } from './abort-signals.js'
import { Call } from './call.js'
import { type CallOptions, checkKey, readCallOptions } from './call-options.js'

/** A released call. */
export interface Admitted {
  /** How long it waited, in ms. */
  readonly waitMs: number
}

/** A call behind a promise. */
abstract class PromisedCall extends Call {
  readonly #signal: AbortSignal | undefined
  protected readonly fail: (error: unknown) => void

  constructor(context: CallContext, key: string, options: CallOptions | undefined, reject: (error: unknown) => void) {
    const { cost, maxWait, signal } = readCallOptions(options)
    super(context, checkKey(key), cost, maxWait)
    this.#signal = signal
    this.fail = reject
  }

  begin(): void {
    const signal = this.#signal
    if (signal?.aborted) return this.fail(signal.reason)
    this.start()
    if (signal === undefined || !this.pending) return
    // A listener of `queued` may have aborted it.
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

export class AdmitCall extends PromisedCall {
  readonly #resolve: (admitted: Admitted) => void

  constructor(
    context: CallContext,
    key: string,
    options: CallOptions | undefined,
    resolve: (admitted: Admitted) => void,
    reject: (error: unknown) => void,
  ) {
    super(context, key, options, reject)
    this.#resolve = resolve
  }

  protected override proceed(waitMs: number): boolean {
    this.#resolve({ waitMs })
    return true
  }
}

export class RunCall extends PromisedCall {
  readonly #resolve: (value: unknown) => void
  readonly #fn: () => unknown

  constructor(
    context: CallContext,
    key: string,
    options: CallOptions | undefined,
    resolve: (value: unknown) => void,
    reject: (error: unknown) => void,
    fn: () => unknown,
  ) {
    super(context, key, options, reject)
    this.#resolve = resolve
    this.#fn = fn
  }

  protected override proceed(): boolean {
    try {
      const result = this.#fn()
      if (isThenable(result)) {
        result.then(
          value => {
            this.finish()
            this.#resolve(value)
          },
          error => {
            this.finish()
            this.fail(error)
          },
        )
        return false
      }
      this.#resolve(result)
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
